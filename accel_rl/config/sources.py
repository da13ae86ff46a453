"""Sources of settings: YAML files, and the settings that override them."""

import re
from pathlib import Path
from typing import Any

import yaml

from accel_rl.errors import UsageError

ALTERNATIVES = ({"workers", "envs_per_worker"}, {"device", "devices"})
"""Pairs of settings that exclude each other; the higher source decides which of them counts."""

MAX_ALIASES = 16  # in a YAML file: a few that refer to each other can expand past any memory


# YAML 1.1 recognizes numbers with an exponent only if they also have a decimal point, as in 1.0e-6.
_EXPONENT = "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), [*"-+.0123456789"]


class _Loader(yaml.SafeLoader):
    """Reads 1e-6 as a number, and "1e-6" as text."""


class _Dumper(yaml.SafeDumper):
    """Writes the text 1e-6 in quotes."""


_Loader.add_implicit_resolver(*_EXPONENT)
_Dumper.add_implicit_resolver(*_EXPONENT)


def read_yaml(path: Path, kind: str) -> dict[str, Any]:
    """Reads a YAML file of one flat mapping. Raises UsageError for any other content. kind: the expected content."""
    try:
        values = parse_yaml(path.read_text())
    except OSError as error:
        raise UsageError(f"cannot read {kind} from {path}: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    if not (isinstance(values, dict) and all(isinstance(name, str) for name in values)):
        raise UsageError(f"{path} must hold a mapping of {kind}, as in `learning_rate: 7.0e-4`")
    return values


def parse_yaml(text: str) -> Any:
    """Parses YAML. Raises ValueError for invalid text or too many aliases."""
    try:
        aliases = sum(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, yaml.SafeLoader))
        if aliases <= MAX_ALIASES:
            return yaml.load(text, _Loader)
    # `!!bool x`, `!!int ''`, `!!timestamp x` and the like raise Python's errors, not YAML's.
    except (yaml.YAMLError, LookupError, AttributeError, TypeError, RecursionError) as error:
        raise ValueError(str(error)) from None
    raise ValueError(f"more than {MAX_ALIASES} aliases (*name)")


def dump_yaml(values: dict[str, Any]) -> str:
    """Returns a mapping as YAML, in its order; `parse_yaml` returns equal values."""
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False)


def read_settings(folder: Path) -> dict[str, Any]:
    """Returns the settings of a run, from its config.yaml. Raises UsageError if the folder holds none."""
    if folder.is_file():
        raise UsageError(f"{folder} is a file; name the run's folder, {folder.parent}")
    if not (folder / "config.yaml").exists():
        raise UsageError(f"{folder} holds no run (no config.yaml)")
    return read_yaml(folder / "config.yaml", "settings")


def overlay(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Merges the settings of two sources; `above` replaces settings of `below`, and their ALTERNATIVES."""
    replaced = {name for pair in ALTERNATIVES if pair & above.keys() for name in pair}
    return {name: value for name, value in below.items() if name not in replaced} | above
