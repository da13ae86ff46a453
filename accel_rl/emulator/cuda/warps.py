"""Keeps the threads of a warp together: consoles of one game run the same program, but out of step.

A warp executes one instruction for all its threads (lanes) that are at the same place of a program. 32 consoles that
each run a frame on their own are soon at different places: 7 to 13 of them wait for one. Consoles that wait for each
other at the end of each line of the television are mostly at the same place.
"""

from functools import cache
from typing import Any

from accel_rl.emulator.compiled import JitFunction, i32, jit
from accel_rl.emulator.cpu import run
from accel_rl.emulator.frame_running import _load_start
from accel_rl.emulator.picture import draw_until
from accel_rl.emulator.registers import CLOCKS_PER_LINE
from accel_rl.emulator.state import INSTRUCTIONS, LEFT_OVER, PAINT, SLOT, STOP

LAST_CLOCK = 2**30  # later than any frame ends


def active_lanes() -> int:
    """Returns the lanes of this warp that are here now, one bit each; 1 on a CPU. In compiled functions only."""
    raise NotImplementedError


def wait_for(lanes: int) -> None:
    """Waits until all these lanes are here. All of them must come."""
    raise NotImplementedError


def lanes_with(lanes: int, condition: Any) -> int:
    """Waits for these lanes; returns those among them with the condition."""
    raise NotImplementedError


run_alone: Any = JitFunction(run.__wrapped__)


@jit
def run_in_step(s, rom, screen, max_instructions):
    """Does what `run` does in a whole frame; the lanes of a warp meet at the end of each line.

    They also complete the line's collisions there, together, unless they paint. A frame that is shown before its end
    must be complete up to its last access only: if it uses up its instructions, it runs again from its start."""
    here = active_lanes()
    running = here
    left = i32(max_instructions)
    completes = s[PAINT] == 0
    line_end = i32(CLOCKS_PER_LINE)
    while running:
        before = s[INSTRUCTIONS]
        run_alone(s, rom, screen, left, i32((line_end - s[LEFT_OVER] + 2) // i32(3)))
        left = i32(left - (s[INSTRUCTIONS] - before))
        if completes and left <= 0 and not s[STOP]:
            _load_start(s, s[SLOT])
            left, completes, line_end = i32(max_instructions), False, i32(LAST_CLOCK)
        goes_on = not s[STOP] and left > 0
        running = lanes_with(running, goes_on)
        if not goes_on:
            break
        if completes:
            draw_until(s, screen, line_end)
        line_end = i32(line_end + CLOCKS_PER_LINE)
    wait_for(here)


run.in_kernels = run_in_step

_for_gpu = False


def codegen_for_gpu() -> None:
    """Makes the functions above a GPU's in all that this process compiles from now on."""
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
