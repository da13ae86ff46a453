"""Marks the functions that Numba compiles, and runs them.

All of them follow one convention, so that CPUs and GPUs run the same source:

* Everything that changes is in the state (state.py), an array of int32 that functions receive as `s`.
* Numbers are int32 and are wrapped explicitly: `i32(...)` around every result that is kept, `& 0xFF` where the
  hardware has eight bits. Indices are never negative.
* Pictures are flat: `screen[160 * line + pixel]`.
* No objects, exceptions, allocations or floats.

Only the short-lived process that compiles imports Numba; all others load machine code from the disk.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from accel_rl.emulator.intrinsics import teach_numba_intrinsics
from accel_rl.emulator.machine_code import ArgumentTypes, MachineCode, load

i32 = np.int32
OPTIONS = {"error_model": "numpy", "_nrt": False, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}


class JitFunction:
    """A function that only compiled functions call; Numba treats it like a function of its own.

    in_kernels: the function that GPU kernels call instead; None: this one."""

    in_kernels: "JitFunction | None" = None
    makes_kernels = False  # whether this process compiles kernels

    def __init__(self, function: Callable[..., Any]):
        self.__doc__, self.__name__, self.__wrapped__ = function.__doc__, function.__name__, function
        self._dispatcher: Any = None

    @property
    def _numba_type_(self) -> Any:
        import numba

        if self.in_kernels is not None and JitFunction.makes_kernels:
            return self.in_kernels._numba_type_
        _teach_numba_address()
        teach_numba_intrinsics()
        if self._dispatcher is None:
            self._dispatcher = numba.njit(**OPTIONS)(self.__wrapped__)
        return numba.typeof(self._dispatcher)


class EntryFunction(JitFunction):
    """A function that Python calls. Its arguments are C-contiguous arrays and ints; it returns None or an int.

    It must be defined at the top level of a module that can be imported."""

    def __init__(self, function: Callable[..., Any]):
        super().__init__(function)
        self._compiled: dict[ArgumentTypes, MachineCode] = {}

    def sources(self) -> str:
        """Returns the source text of modules outside this folder that it depends on."""
        return Path(self.__wrapped__.__code__.co_filename).read_text()

    def __call__(self, *arguments: Any) -> Any:
        return self.bind(*arguments)()

    def bind(self, *arguments: Any) -> Callable[[], Any]:
        """Returns a call of the function with these arguments, which costs about a microsecond each time.

        The arrays are referenced, not copied, so each call reads their current contents."""
        types = tuple(_type_of(argument) for argument in arguments)
        if types not in self._compiled:
            self._compiled[types] = load(self, types)
        return self._compiled[types].bind(arguments)


def address(array: Any) -> Any:
    """Returns an array without its shape, in compiled functions only; its indices are those of the array.

    A call passes it in one register, but an array as seven or more words on the stack. That would cost a fifth of a
    frame and a third of the compilation, so entries pass state, ROM and pictures on without shapes."""
    raise NotImplementedError


@cache
def _teach_numba_address() -> None:
    import numba

    @numba.extending.intrinsic  # type: ignore[untyped-decorator]
    def data_pointer(_context: Any, array: Any) -> Any:
        def data(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return context.make_array(signature.args[0])(context, builder, arguments[0]).data

        return numba.types.CPointer(array.dtype)(array), data

    numba.extending.overload(address)(lambda array: lambda array: data_pointer(array))


def _type_of(argument: Any) -> str:
    if isinstance(argument, np.ndarray):
        if not argument.flags.c_contiguous:
            raise ValueError("a compiled function takes C-contiguous arrays")
        return f"{argument.dtype.name}[{', '.join([':'] * (argument.ndim - 1) + ['::1'])}]"
    return "int32"


def jit(function: Callable[..., Any]) -> Any:
    """Marks a function that only compiled functions call."""
    return JitFunction(function)


def entry(function: Callable[..., Any]) -> Any:
    """Marks a function that Python calls. The first call compiles it with all its callees."""
    return EntryFunction(function)
