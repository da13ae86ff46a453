"""Passes functions that make environments to simulator processes: by name if they can import it, otherwise pickled."""

import pickle
import sys
from collections.abc import Callable
from typing import Any

import gymnasium

from accel_rl.errors import UsageError

FUNCTION = "function:"  # prefix of ids whose function only a program has

MakeEnv = Callable[..., Any]
"""A function or class that makes environments, like `package.module:factory`."""


def as_setting(function: MakeEnv, by_value: bool = False) -> tuple[str, bytes | None]:
    """Returns the function's name in a run's settings, and the pickled function if the name is not enough.

    If other processes can import the function, these are `package.module:name` and None. Otherwise, or if by_value,
    they are FUNCTION + name, and the pickle. Raises UsageError if the object is not callable or cannot be pickled."""
    if isinstance(function, gymnasium.Env | gymnasium.vector.VectorEnv) or not callable(function):
        raise UsageError(
            f"env={function!r} is neither a name nor a function; give a function that makes the environment, as in "
            "env=lambda: gymnasium.make(...)"
        )
    name = getattr(function, "__qualname__", type(function).__name__)
    module = getattr(function, "__module__", None) or ""
    if not by_value and _is_importable(module) and getattr(sys.modules[module], name, None) is function:
        return f"{module}:{name}", None
    return f"{FUNCTION}{name}", _pickle(function)


def _is_importable(module: str) -> bool:
    """Returns whether a process with the same paths can import the module; False for __main__, lest it run again."""
    return module != "__main__" and getattr(sys.modules.get(module), "__spec__", None) is not None


def _pickle(function: MakeEnv) -> bytes:
    import cloudpickle  # imported here: simulator processes only unpickle

    try:
        return cloudpickle.dumps(function)  # type: ignore[no-any-return]
    except Exception as error:  # objects that it refers to may raise anything
        raise UsageError(
            f"env={function!r} cannot be sent to simulator processes ({type(error).__name__}: {error}); create "
            "such objects inside of the function, or define it in a module"
        ) from None


def unpickle_function(content: bytes) -> MakeEnv:
    """Returns the function that `as_setting` has pickled."""
    return pickle.loads(content)  # type: ignore[no-any-return]


def missing_function(env_id: str, arguments: str = "") -> UsageError:
    """Returns the error for an environment whose function is known only by name.

    arguments: the other arguments of `accel_rl.train`, as text."""
    name = env_id.removeprefix(FUNCTION)
    shown = name.rpartition(".")[2].replace("<lambda>", "lambda: ...")
    return UsageError(
        f"the environment was made by {name}, a function of the program that started the run: pass it again, as in "
        f"accel_rl.train({arguments}env={shown})"
    )
