"""Settings are fields of frozen dataclasses. Each has a default, a help text, and the rule it must obey."""

import functools
import operator
import re
import shlex
import types
import typing
import unicodedata
from collections.abc import Callable, Container, Iterable
from dataclasses import field, fields
from typing import Any

from accel_rl.config.sources import parse_yaml
from accel_rl.errors import UsageError, unknown

LARGEST_INT, LARGEST_FLOAT = 2**63 - 1, 3.4e38
"""The largest numbers that tensors hold; beyond float32's range all are infinite."""

NOT_IN_TEXT = ("Cc", "Cs", "Zl", "Zp")  # Unicode's control characters, lone surrogates, line separators
LONGEST_SHOWN = 200  # characters of a value in an error message
MAX_SECONDS = 1e6  # system calls with a longer wait fail


def setting(
    default: Any,
    help: str,
    *,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    choices: tuple[str, ...] | None = None,
    check: Callable[[Any], object] | None = None,
    only_with: str | None = None,
    basic: bool = False,
) -> Any:
    """Makes a dataclass field. least, most: inclusive bounds; above: an exclusive bound.

    check: raises ValueError for a value that breaks its rule; the message has the rule and the way out: 'must be ...'.
    only_with: the setting without which this one changes nothing, as in "core" or "sampler queued" (see check_used).
    basic: --help shows the setting; --help-all shows all settings."""
    rule = {"least": least, "above": above, "most": most, "choices": choices, "check": check}
    metadata = {"help": help, "basic": basic, "only_with": only_with, **rule}
    if isinstance(default, dict):
        return field(default_factory=lambda: dict(default), metadata=metadata)
    return field(default=default, metadata=metadata)


basic_setting = functools.partial(setting, basic=True)


def build(cls: type, values: dict[str, Any]) -> Any:
    """Makes an instance of a settings dataclass from values of any source (YAML, flags, Python), converted and checked.

    Raises UsageError for a value of the wrong type or one that breaks its rule. All names must be fields of cls."""
    types_of = typing.get_type_hints(cls)
    converted = {name: _convert(name, value, types_of[name]) for name, value in values.items()}
    for f in fields(cls):
        _check(f.name, converted.get(f.name), f.metadata)
    return cls(**converted)


def pick(cls: type, values: dict[str, Any]) -> Any:
    """Builds a settings dataclass from the values that are its fields; ignores others."""
    return build(cls, {f.name: values[f.name] for f in fields(cls) if f.name in values})


def check_used(groups: Iterable[Any], chosen: Container[str]) -> None:
    """Raises UsageError for a chosen setting that changes nothing, since the one that it needs is off by default.

    groups: instances of settings dataclasses, which may need settings of each other."""
    every = [(f, getattr(group, f.name)) for group in groups for f in fields(group)]
    values = {f.name: value for f, value in every}
    for f, value in every:
        if f.name not in chosen or _is_off(value) or not f.metadata.get("only_with"):
            continue
        needed, _, wanted = f.metadata["only_with"].partition(" ")
        is_on = values[needed] == wanted if wanted else not _is_off(values[needed])
        if not is_on and needed not in chosen:
            flag = f"{flag_of(needed)} {wanted}".rstrip()
            raise UsageError(f"{f.name}={shown(value)} changes nothing without {flag}: add that, or omit this")


def _is_off(value: Any) -> bool:
    return value is None or value is False or value in ("none", ("none",))


def fields_checked_by(check: Callable[[Any], object], cls: Any) -> list[str]:
    """Returns the names of the settings with this check."""
    return [f.name for f in fields(cls) if f.metadata.get("check") is check]


def flag_of(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def shown(value: Any) -> str:
    """Returns a value's text for an error message: on one line, and shortened if it is long."""
    try:
        text = repr(value)
    except ValueError:  # Python refuses to print integers of more than 4300 digits
        return "a number of thousands of digits"
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."


def _convert(name: str, value: Any, to: Any) -> Any:
    """Converts the value to the type that the field declares. Reads text from the command line as YAML."""
    value = _plain(value)
    accepted = typing.get_args(to) if isinstance(to, types.UnionType) else (to,)
    if (value is None or (isinstance(value, str) and value == "null")) and type(None) in accepted:
        return None
    wanted = next(t for t in accepted if t is not type(None))
    origin = typing.get_origin(wanted) or wanted
    if isinstance(value, str) and origin is not str:
        value = parse_mapping(name, value) if origin is dict else _parse(value, origin)
        if value is None and type(None) in accepted:
            return None
    if origin is float and isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise UsageError(f"{name}={shown(value)} must be at most {LARGEST_FLOAT:.3g}") from None
    if origin is int and isinstance(value, float) and value.is_integer():
        return int(value)
    if origin is tuple and isinstance(value, int | float) and not isinstance(value, bool):
        return (value,)
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(value)
    if origin is dict and isinstance(value, dict):
        return dict(value)
    if isinstance(value, origin) and not (origin is int and isinstance(value, bool)):
        return value
    raise UsageError(f"{name}={shown(value)} must be of type {getattr(wanted, '__name__', wanted)}")


def _plain(value: Any, in_mapping: bool = False) -> Any:
    """Converts NumPy's numbers and texts to Python's, and tuples in mappings to lists, as config.yaml holds them."""
    if isinstance(value, dict):
        return {_plain(key): _plain(item, in_mapping=True) for key, item in value.items()}
    if type(value) in (list, tuple):
        items = [_plain(item, in_mapping) for item in value]
        return items if in_mapping or type(value) is list else tuple(items)
    return value.item() if hasattr(value, "dtype") and getattr(value, "shape", None) == () else value


def _parse(text: str, kind: type) -> Any:
    if kind is tuple:
        items = text.strip("()[] ")
        if re.fullmatch(r"[\d.,x\s]*", items):  # 84x84, 84,84 and (84, 84) are the same; a module's name stays
            items = re.sub(r"(?<=\d)\s*x\s*(?=\d)", ",", items)
        text = f"[{items}]"
    if kind is int and (match := re.fullmatch(r"(\d+|\d*\.\d+)([kKM])", text)):
        text = match[1] + ("e6" if match[2] == "M" else "e3")
    if kind is int and re.fullmatch(r"[-+]?0[\d_]+", text):  # YAML would read an octal number
        return int(text)
    if kind in (int, float) and ":" in text:  # YAML would read 1:30 as 90
        return text
    try:
        return parse_yaml(text)
    except ValueError:
        return text


def parse_mapping(name: str, text: str) -> Any:
    """Parses a mapping in YAML. Raises UsageError for any other text, such as g=1, and shows how to type it."""
    value = _parse(text, dict)
    is_pair = re.compile(r"[\w.]+[=:]").match  # also {g:1}, which YAML reads as the name "g:1" without a value
    if value is None or (isinstance(value, dict) and not any(is_pair(str(key)) for key in value)):
        return value
    raise UsageError(f"{name}={shown(text)} must be a mapping, as in {flag_of(name)} {as_mapping(text)}")


def as_mapping(text: str) -> str:
    """Corrects a mapping written as `g=1 h=2`: returns '{g: 1, h: 2}', with quotes for the shell."""
    bare = text.removeprefix("dict(").strip("{}() ")
    pairs = [re.split("[=:]", pair, maxsplit=1) for pair in re.split(r"[,\s]+(?=\w+[=:])", bare)]
    words = [": ".join(word.strip() for word in pair) for pair in pairs if len(pair) == 2] or ["NAME: VALUE"]
    return shlex.quote("{" + ", ".join(words) + "}")


def _check(name: str, value: Any, rule: Any) -> None:
    if value is None:
        return
    least, above, most, choices = (rule.get(key) for key in ("least", "above", "most", "choices"))
    if choices and value not in choices:
        raise unknown(name, str(value), choices, f"(choose from {', '.join(choices)})")
    if isinstance(value, int | float):
        most_of_type = LARGEST_FLOAT if isinstance(value, float) else LARGEST_INT
        if not -most_of_type <= value <= most_of_type:
            raise UsageError(f"{name}={shown(value)} must be a finite number, at most {most_of_type:.3g}")
        bounds = (least, operator.ge, "at least"), (above, operator.gt, "greater than"), (most, operator.le, "at most")
        for bound, holds, words in bounds:
            if bound is not None and not holds(value, bound):
                raise UsageError(f"{name}={value} must be {words} {bound:g}")
    for text in value if isinstance(value, tuple) else [value]:
        if isinstance(text, str) and any(unicodedata.category(character) in NOT_IN_TEXT for character in text):
            raise UsageError(f"{name}={shown(value)} must be one line of text, without control or invalid characters")
    if check := rule.get("check"):
        try:
            check(value)
        except ValueError as error:
            raise UsageError(f"{name}={shown(value)} {error}") from None
