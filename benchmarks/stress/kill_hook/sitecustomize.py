"""Python imports this first in every process of a run of the kill matrix. A process that reaches the function named by
PHASE tells the matrix and goes on when it has an answer.

"module:function" announces a call, "module:function:after" its return, "module" its import."""

import functools
import importlib.abc
import importlib.util
import os
import socket
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

PHASE, SOCKET = "ACCEL_RL_KILL_PHASE", "ACCEL_RL_KILL_SOCKET"
RAISE, GO_ON = b"raise", b"go on"  # answers


def announce() -> None:
    with socket.socket(socket.AF_UNIX) as matrix:
        matrix.connect(os.environ[SOCKET])
        matrix.sendall(str(os.getpid()).encode())
        if matrix.recv(len(RAISE)) == RAISE:
            raise ValueError("struck on purpose")


def announced(function: Callable[..., Any], after: bool) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        if after:
            result = function(*arguments, **options)
            announce()
            return result
        announce()
        return function(*arguments, **options)

    return call


def watch(module: ModuleType, place: str) -> None:
    name, _, after = place.partition(":")
    *owners, last = name.split(".")
    owner = functools.reduce(getattr, owners, module)
    setattr(owner, last, announced(vars(owner)[last], bool(after)))


class Finder(importlib.abc.MetaPathFinder):
    """Finds the phase's module and adds the announcement to its import."""

    def __init__(self, name: str, place: str):
        self.name, self.place = name, place

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        assert spec and spec.loader
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            if self.place:
                watch(module, self.place)
            else:
                announce()

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


if PHASE in os.environ:
    module, _, place = os.environ[PHASE].partition(":")
    sys.meta_path.insert(0, Finder(module, place))
