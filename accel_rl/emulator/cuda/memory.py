"""Lays out the words of many consoles for a GPU: interleaved in groups of 32 consoles, the threads of a warp.

Word w of console c lies at word 32 w + c % 32 of group c // 32. The threads of a warp that read the same word read 128
consecutive bytes, and the distance from word to word is a constant, which costs nothing in an address.
"""

import inspect
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from accel_rl.emulator.compiled import EntryFunction, JitFunction
from accel_rl.emulator.cuda.warps import teach_numba_warps
from accel_rl.emulator.state import STATE_WORDS

LANES = 32  # consoles in a group
GLOBAL = 1  # LLVM's address space of a GPU's global memory; a CPU has only one


def console_state(states: Any, console: Any) -> Any:
    """Returns the state of one console, the `s` of the emulator's functions; in compiled functions only.

    states: int32 [words], interleaved."""
    raise NotImplementedError


def global_address(array: Any) -> Any:
    """Returns an array without its shape, as compiled.address does, in a GPU's global memory."""
    raise NotImplementedError


def constant_address(array: Any) -> Any:
    """Returns the same for an array that no thread of the launch writes to."""
    raise NotImplementedError


class Kernel(EntryFunction):
    """A function of a thread's number and other arguments, which a GPU runs for many threads at once.

    On a CPU it is an entry that takes the threads' numbers, int32, and runs one after another in this order. types: of
    the arguments after the thread's number, as Numba writes them."""

    def __init__(self, function: Callable[..., Any], types: tuple[str, ...]):
        self.body, self.types = JitFunction(function), types
        names = ", ".join([*inspect.signature(function).parameters][1:])
        source = f"def grid(threads, {names}):\n for i in range(threads.shape[0]):\n  body(threads[i], {names})"
        scope: dict[str, Any] = {"body": self.body}
        exec(compile(source, function.__code__.co_filename, "exec"), scope)
        grid = scope["grid"]
        grid.__name__, grid.__module__, grid.__doc__ = function.__name__, function.__module__, function.__doc__
        super().__init__(grid)

    def sources(self) -> str:
        names = "agent_kernels", "frames", "kernels", "memory", "warps"
        return "".join((Path(__file__).parent / f"{name}.py").read_text() for name in names)

    @property
    def _numba_type_(self) -> Any:
        teach_numba_kernels()
        return super()._numba_type_


def teach_numba_kernels() -> None:
    """Makes this process compile functions as kernels call them."""
    JitFunction.makes_kernels = True
    teach_numba_memory()
    teach_numba_warps()


INT, INTS, INTS_2D, BYTES, BYTES_2D = "int32", "int32[::1]", "int32[:, ::1]", "uint8[::1]", "uint8[:, ::1]"


def kernel(*types: str) -> Callable[[Callable[..., Any]], Kernel]:
    """Marks a function as a kernel; types: of its arguments after the thread's number."""
    return lambda function: Kernel(function, types)


@cache
def teach_numba_memory() -> None:
    """Teaches Numba to compile console_state, and the pointers that it returns."""
    import operator

    import llvmlite.ir as ir
    from numba import extending, types
    from numba.core.typing.templates import AbstractTemplate, infer_global, signature

    class GlobalPointer(types.Type):
        """A pointer to items in global memory that are `stride` items apart."""

        def __init__(self, dtype: Any, stride: int = 1, is_constant: bool = False):
            self.dtype, self.stride, self.is_constant = dtype, stride, is_constant
            super().__init__(f"GlobalPointer({dtype}, {stride}, {is_constant})")

    @extending.register_model(GlobalPointer)
    class GlobalPointerModel(extending.models.PrimitiveModel):
        def __init__(self, manager: Any, kind: Any):
            super().__init__(manager, kind, manager.lookup(kind.dtype).get_data_type().as_pointer(GLOBAL))

    @infer_global(operator.getitem)
    class GetItem(AbstractTemplate):
        def generic(self, arguments: Any, _keywords: Any) -> Any:
            pointer, index = arguments
            if isinstance(pointer, GlobalPointer) and isinstance(index, types.Integer):
                return signature(pointer.dtype, pointer, index)
            return None

    @infer_global(operator.setitem)
    class SetItem(AbstractTemplate):
        def generic(self, arguments: Any, _keywords: Any) -> Any:
            pointer, index, _ = arguments
            if isinstance(pointer, GlobalPointer) and isinstance(index, types.Integer):
                return signature(types.none, pointer, index, pointer.dtype)
            return None

    def element(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer, index = signature.args[:2]
        place = context.cast(builder, arguments[1], index, types.int32)
        if pointer.stride > 1:
            place = builder.mul(place, ir.IntType(32)(pointer.stride), flags=["nsw"])
        return builder.gep(arguments[0], [place], inbounds=True)

    @extending.lower_builtin(operator.getitem, GlobalPointer, types.Integer)  # type: ignore[untyped-decorator]
    def get_item(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        value = builder.load(element(context, builder, signature, arguments))
        if signature.args[0].is_constant:
            value.set_metadata("invariant.load", builder.module.add_metadata([]))
        return value

    @extending.lower_builtin(operator.setitem, GlobalPointer, types.Integer, types.Any)  # type: ignore[untyped-decorator]
    def set_item(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.store(arguments[2], element(context, builder, signature, arguments))

    def to_global(builder: Any, pointer: Any) -> Any:
        return builder.addrspacecast(pointer, pointer.type.pointee.as_pointer(GLOBAL))

    @extending.intrinsic  # type: ignore[untyped-decorator]
    def interleaved(_context: Any, states: Any, console: Any) -> Any:
        def start(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            int64 = ir.IntType(64)
            data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
            number = context.cast(builder, arguments[1], signature.args[1], types.int64)
            group = builder.lshr(number, int64(LANES.bit_length() - 1))
            lane = builder.and_(number, int64(LANES - 1))
            first = builder.gep(data, [builder.add(builder.mul(group, int64(LANES * STATE_WORDS)), lane)])
            return to_global(builder, first)

        return GlobalPointer(types.int32, LANES)(states, console), start

    def data_of(is_constant: bool) -> Any:
        @extending.intrinsic  # type: ignore[untyped-decorator]
        def data_pointer(_context: Any, array: Any) -> Any:
            def data(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
                return to_global(builder, context.make_array(signature.args[0])(context, builder, arguments[0]).data)

            return GlobalPointer(array.dtype, 1, is_constant)(array), data

        return data_pointer

    changing, constant = data_of(False), data_of(True)
    extending.overload(global_address)(lambda array: lambda array: changing(array))
    extending.overload(constant_address)(lambda array: lambda array: constant(array))
    extending.overload(console_state)(lambda states, console: lambda states, console: interleaved(states, console))
