"""Limits other people's files: unless the user trusts them, they may not name code or be unpickled."""

import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from accel_rl.envs.function_transfer import FUNCTION
from accel_rl.envs.make import ENVPOOL, VECTOR
from accel_rl.errors import UsageError

ACTS = ("algo", "network")
"""Settings that name the code that a policy needs to act."""
PLAYS = ("env", "wrappers", "env_options")
"""Settings that name the code that it needs to play games."""
BUILT_IN = {"algo": "accel_rl.algos.", "network": "accel_rl.models.", "env": "accel_rl.envs.threed:doom"}
"""Prefixes of names in this package that are allowed. Its other functions may do anything with their arguments."""


MAX_CHARACTERS = 100  # shown of a name in a message


def foreign_code(settings: dict[str, Any], names: Iterable[str] = (*ACTS, *PLAYS)) -> list[str]:
    """Returns, as text, the settings among these that name code outside this package.

    Texts in env_options that may name a module or a file also count, since what an environment does with them is
    unknown. Environments registered with gymnasium under a plain name do not count."""
    return [f"{name}={text[:MAX_CHARACTERS]!r}" for name in names for text in _foreign(name, settings.get(name))]


def _foreign(name: str, value: Any) -> list[str]:
    texts = list(_texts(value))
    if name == "env_options":
        return [text for text in texts if not set("./\\:").isdisjoint(text)]
    own = BUILT_IN.get(name)
    if name == "env":  # a program's function: its name imports no code
        texts = [text.removeprefix(VECTOR).removeprefix(ENVPOOL) for text in texts if not text.startswith(FUNCTION)]
    return [text for text in texts if ":" in text and not (own and text.startswith(own))]


def _texts(value: Any) -> Iterable[str]:
    """Yields all texts in a setting, at any depth."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from (*_texts(key), *_texts(each))
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _texts(each)


def check_code(settings: dict[str, Any], names: Iterable[str], source: Path, trust: bool) -> None:
    """Raises UsageError if source's settings name code outside this package, unless the user trusts it."""
    if not trust and (foreign := foreign_code(settings, names)):
        raise UsageError(
            f"{source} names code or files from outside accel_rl: {', '.join(foreign)}; --trust (in Python trust=True) "
            "imports and runs them: use it only if you know who wrote them"
        )


def check_owner(path: Path, trust: bool) -> None:
    """Raises UsageError if another user may have written a file to be unpickled, unless the user trusts it."""
    if trust or not hasattr(os, "geteuid"):  # a system without numeric user ids
        return
    status, folder, user = path.stat(), path.parent.stat(), os.geteuid()
    owner = status.st_uid
    in_open_folder = folder.st_mode & (stat.S_IWOTH | stat.S_ISVTX) == stat.S_IWOTH  # not if it is sticky
    if status.st_mode & stat.S_IWOTH or in_open_folder:
        place = path.parent if in_open_folder else path
        raise UsageError(
            f"every user of this machine may write to {place}, and reading {path.name} can run code (it is a pickle): "
            f"if you know who wrote it, protect it (chmod o-w {place}) or add --trust (in Python trust=True)"
        )
    if owner != user:
        raise UsageError(
            f"{path} belongs to user {_user_name(owner)}, not to you ({_user_name(user)}), and reading it can run code "
            "(it is a pickle): if you trust that user, add --trust (in Python trust=True)"
        )


def _user_name(uid: int) -> str:
    import pwd  # not available on every system

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
