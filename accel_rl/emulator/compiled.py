"""Marks the functions that Numba compiles, and runs them.

One convention for all of them, so that a CPU and later a GPU run the same source:

* Everything that changes is in the state (see state.py), an array of int32; a function gets it as `s`.
* Numbers are int32, wrapped explicitly: `i32(...)` around every result that is kept, `& 0xFF` where the hardware has
  eight bits. Nothing is negative where it is an index.
* Pictures are flat there: `screen[160 * line + pixel]`.
* No objects, exceptions, allocations or floats.

Numba itself is imported only where something has to be compiled: later starts load machine code from the disk.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

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

        _teach_numba_memory()
        if self._dispatcher is None:
            self._dispatcher = numba.njit(**OPTIONS)(self.__wrapped__)
        return numba.typeof(self._dispatcher)


class EntryFunction(JitFunction):
    """A function that Python calls: with arrays (C-contiguous), ints and nothing else; it returns None or an int."""

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


def local_ints(count: int) -> Any:
    """Returns room for a constant number of int32 on the stack, in compiled functions only; it is not zeroed."""
    raise NotImplementedError


def as_words(pointer: Any) -> Any:
    """Returns an address of bytes as one of int64, in compiled functions only; it must be a multiple of 8."""
    raise NotImplementedError


@cache
def _teach_numba_memory() -> None:
    import numba

    @numba.extending.intrinsic  # type: ignore[untyped-decorator]
    def data_pointer(_context: Any, array: Any) -> Any:
        def data(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return context.make_array(signature.args[0])(context, builder, arguments[0]).data

        return numba.types.CPointer(array.dtype)(array), data

    @numba.extending.type_callable(local_ints)  # type: ignore[untyped-decorator]
    def type_local_ints(_context: Any) -> Any:
        is_constant = numba.types.IntegerLiteral
        return lambda count: numba.types.CPointer(numba.types.int32) if isinstance(count, is_constant) else None

    @numba.extending.lower_builtin(local_ints, numba.types.IntegerLiteral)  # type: ignore[untyped-decorator]
    def lower_local_ints(context: Any, builder: Any, signature: Any, _arguments: Any) -> Any:
        int32 = context.get_value_type(numba.types.int32)
        return numba.core.cgutils.alloca_once(builder, int32, size=signature.args[0].literal_value)

    @numba.extending.intrinsic  # type: ignore[untyped-decorator]
    def cast(_context: Any, pointer: Any) -> Any:
        words = numba.types.CPointer(numba.types.int64)

        def same(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            return builder.bitcast(arguments[0], context.get_value_type(words))

        return words(pointer), same

    numba.extending.overload(as_words)(lambda pointer: lambda pointer: cast(pointer))
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
