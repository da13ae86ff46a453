"""Keeps the threads of a warp together: consoles of one game run the same program, but out of step.

A warp executes one instruction for all its threads (lanes) that are at the same place of a program. 32 consoles that
each run a frame independently are soon at different places: 7 to 13 of them wait for one. Consoles that wait for each
other at the end of each scanline are mostly at the same place.
"""

from functools import cache
from typing import Any


def active_lanes() -> int:
    """Returns the lanes of this warp that are here now, one bit each; 1 on a CPU. In compiled functions only."""
    raise NotImplementedError


def wait_for(lanes: int) -> None:
    """Waits until all these lanes are here. All of them must call it."""
    raise NotImplementedError


def lanes_with(lanes: int, condition: Any) -> int:
    """Waits for these lanes; returns those among them with the condition."""
    raise NotImplementedError


_for_gpu = False


def codegen_for_gpu() -> None:
    """Makes this process compile the functions above for a GPU from now on."""
    global _for_gpu
    _for_gpu = True


@cache
def teach_numba_warps() -> None:
    """Teaches Numba to compile the functions above."""
    import llvmlite.ir as ir
    from numba import extending, types

    int32, void = ir.IntType(32), ir.VoidType()

    def intrinsic(builder: Any, name: str, result: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(result, [each.type for each in arguments])
        known = builder.module.globals.get(name)
        return builder.call(known or ir.Function(builder.module, kind, name), arguments)

    @extending.intrinsic  # type: ignore[untyped-decorator]
    def active(_context: Any) -> Any:
        def make(_context: Any, builder: Any, _signature: Any, _arguments: Any) -> Any:
            return intrinsic(builder, "llvm.nvvm.activemask", int32, []) if _for_gpu else int32(1)

        return types.int32(), make

    @extending.intrinsic  # type: ignore[untyped-decorator]
    def wait(_context: Any, lanes: Any) -> Any:
        def make(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            if _for_gpu:
                intrinsic(builder, "llvm.nvvm.bar.warp.sync", void, arguments)
            return context.get_dummy_value()

        return types.none(types.int32), make

    @extending.intrinsic  # type: ignore[untyped-decorator]
    def vote(_context: Any, lanes: Any, condition: Any) -> Any:
        def make(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            lanes, condition = arguments
            if _for_gpu:
                return intrinsic(builder, "llvm.nvvm.vote.ballot.sync", int32, [lanes, condition])
            return builder.zext(condition, int32)

        return types.int32(types.int32, types.boolean), make

    extending.overload(active_lanes)(lambda: lambda: active())
    extending.overload(wait_for)(lambda lanes: lambda lanes: wait(lanes))
    extending.overload(lanes_with)(lambda lanes, condition: lambda lanes, condition: vote(lanes, condition))
