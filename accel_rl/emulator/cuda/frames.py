"""Runs frames in the lanes of a warp, which meet before each instruction and at the end of each line."""

from typing import Any

from accel_rl.emulator.compiled import JitFunction, i32, jit
from accel_rl.emulator.cpu import run
from accel_rl.emulator.cuda.warps import active_lanes, lanes_with, wait_for
from accel_rl.emulator.frame_running import _load_start
from accel_rl.emulator.picture import draw_until
from accel_rl.emulator.registers import CLOCKS_PER_LINE
from accel_rl.emulator.state import INSTRUCTIONS, LEFT_OVER, PAINT, SLOT, STOP

LAST_CLOCK = 2**30  # later than any frame ends

run_alone: Any = JitFunction(run.__wrapped__)


@jit
def run_in_step(s, rom, screen, max_instructions):
    """Runs a whole frame like `run`; the lanes of a warp meet at the end of each line.

    They also complete the line's collisions there, together, unless they paint. A frame that is shown before its end
    must be complete only up to its last access, so if its instructions are used up, it runs again from its start."""
    here = active_lanes()
    running = here
    left = i32(max_instructions)
    completes = s[PAINT] == 0
    line_end = i32(CLOCKS_PER_LINE)
    while running:
        before = s[INSTRUCTIONS]
        run_alone(s, rom, screen, left, i32((line_end - s[LEFT_OVER] + 2) // i32(3)), running)
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
