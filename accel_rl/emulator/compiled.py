"""Marks the functions that Numba compiles, and runs them.

One convention for all of them, so that a CPU and later a GPU run the same source:

* Everything that changes is in the state (see state.py), an array of int32; a function gets it as `s`.
* Numbers are int32, wrapped explicitly: `i32(...)` around every result that is kept, `& 0xFF` where the hardware has
  eight bits. Nothing is negative where it is an index.
* Pictures are flat there: `screen[160 * line + pixel]`.
* No objects, exceptions, allocations or floats.

Numba itself is imported only by the short-lived process that compiles; all others load machine code from the disk.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from accel_rl.emulator.intrinsics import teach_numba_intrinsics
from accel_rl.emulator.machine_code import ArgumentTypes, MachineCode, load

i32 = np.int32
OPTIONS = {"error_model": "numpy", "_nrt": False, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}


class JitFunction:
    """A function that only compiled functions call: Numba sees it as one of its own."""

    def __init__(self, function: Callable[..., Any]):
        self.__doc__, self.__name__, self.__wrapped__ = function.__doc__, function.__name__, function
        self._dispatcher: Any = None

    @property
    def _numba_type_(self) -> Any:
        import numba

        _teach_numba_address()
        teach_numba_intrinsics()
        if self._dispatcher is None:
            self._dispatcher = numba.njit(**OPTIONS)(self.__wrapped__)
        return numba.typeof(self._dispatcher)


class EntryFunction(JitFunction):
    """A function that Python calls: with arrays (C-contiguous), ints and nothing else; it returns None or an int.

    It stands at the top of a module that can be imported."""

    def __init__(self, function: Callable[..., Any]):
        super().__init__(function)
        self._compiled: dict[ArgumentTypes, MachineCode] = {}

    def __call__(self, *arguments: Any) -> Any:
        return self.bind(*arguments)()

    def bind(self, *arguments: Any) -> Callable[[], Any]:
        """Returns a call of the function with these arguments, which costs about a microsecond each time.

        Arrays are held, not copied: what is in them at the time of the call counts."""
        arguments = tuple(_flat_picture(argument) for argument in arguments)
        types = tuple(_type_of(argument) for argument in arguments)
        if types not in self._compiled:
            self._compiled[types] = load(self, types)
        return self._compiled[types].bind(arguments)


def address(array: Any) -> Any:
    """Returns an array without its shape, in compiled functions only; it is indexed as the array was.

    A call passes it in one register, an array as seven words or more on the stack, which costs a fifth of a frame and a
    third of the compilation: entries hand on state, ROM and pictures like this."""
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


def _flat_picture(argument: Any) -> Any:
    return argument.reshape(-1) if isinstance(argument, np.ndarray) and argument.ndim == 3 else argument


def _type_of(argument: Any) -> str:
    if isinstance(argument, np.ndarray):
        if not argument.flags.c_contiguous:
            raise ValueError("a compiled function takes C-contiguous arrays")
        return f"{argument.dtype.name}[{', '.join([':'] * (argument.ndim - 1) + ['::1'])}]"
    return "int32"


def jit(function: Callable[..., Any]) -> Any:
    """Marks a function that is only called by compiled functions."""
    return JitFunction(function)


def entry(function: Callable[..., Any]) -> Any:
    """Marks a function that Python calls; it is compiled, with all that it calls, by the first call."""
    return EntryFunction(function)
