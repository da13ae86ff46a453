"""Models how warps of a GPU execute the interpreter, one lane for each console, from consoles' instruction traces.

warp_rounds.py executes its loop. This module has the ways to execute it, the costs, and the order of consoles."""

import ast
import inspect
from dataclasses import dataclass

import numpy as np

from accel_rl.emulator import cpu
from accel_rl.emulator import opcodes as op
from accel_rl.emulator.registers import CLOCKS_PER_LINE
from instruction_traces import Array, Traces
from warp_rounds import ALL, LONE_COST, SCRATCH_ROWS, issue

LANES = 32  # lanes of a warp
# Costs are LLVM IR instructions that the interpreter executes: an instrumented build counted them, without vectors, in
# 36,000 instructions of six games that were not painted. A switch counts as one.
FETCH, VOTE, TIA_COST, RIOT_COST = 20, 12, 70, 95  # VOTE is a guess
COMPLETION, EACH_LINE, EACH_UPDATE = 60, 100, 180  # draw_until; a line of its span; a mask of an object
COSTS = np.array([FETCH, VOTE, TIA_COST, RIOT_COST, COMPLETION, EACH_LINE, EACH_UPDATE], np.int32)
EXECUTE = 125  # a call of execution.py, without its mode and operation
MODE_COSTS = {op.ABSOLUTE: 45, op.INDIRECT_X: 55, op.INDIRECT_Y: 50, op.JUMP_INDIRECT: 60}
MODE_COSTS |= dict.fromkeys((op.ZERO, op.ZERO_X, op.ZERO_Y), 15) | dict.fromkeys((op.ABSOLUTE_X, op.ABSOLUTE_Y), 20)
MODE_COST = np.array([MODE_COSTS.get(mode, 2) for mode in range(op.BREAK + 1)], np.int32)
OPERATION_COST = np.full(len(op.OPERATIONS), 6, np.int32)
OPERATION_COST[[op.ADC, op.SBC]] = 34
OPERATION_COST[op.STA : op.STY + 1] = 4
OPERATION_COST[op.ASL : op.BEQ + 1] = 10
OPERATION_COST[op.JSR : op.PLP + 1] = 120


@dataclass(frozen=True)
class Model:
    """A way to execute the interpreter.

    dispatch: opcode (a switch on it), cpu (the cases of cpu.py, and execution.py's two switches), or mode (a switch on
    the addressing mode, then one on the operation). quantum: the number of color clocks after which lanes meet; 0:
    only at the frame's end. policy: see ALL. quorum: lanes with a completion wait until this many do, or no lane can go
    on; 0: each completes within its case. finishes: all lanes complete each line where they meet at its end. order: the
    consoles of a warp: random; start, count or trace: similar in the address at the frame's start, the number of
    instructions of the frame before, or its addresses; own: those of this frame, which no program can know. lanes: the
    lanes of a warp that are used."""

    dispatch: str
    quantum: int = 0
    policy: int = ALL
    quorum: int = 0
    finishes: bool = False
    order: str = "random"
    lanes: int = LANES


def dispatch_table(name: str) -> Array:
    """Returns for each opcode its case, its case of the second switch (-1: none), and both bodies' costs, int32
    [4, 256]."""
    modes, operations = MODE_COST[op.MODE], OPERATION_COST[op.OPERATION]
    none = np.full(256, -1)
    if name == "opcode":
        return np.array([np.arange(256), none, modes + operations, np.zeros(256)], np.int32)
    if name == "mode":
        return np.array([op.MODE, op.OPERATION, modes, operations], np.int32)
    cases = cases_of_cpu()
    rare = cases == 0
    costs = np.zeros(256, np.int32)
    for case in range(1, cases.max() + 1):
        costs[cases == case] = (modes + operations)[cases == case].mean()
    costs[rare] = EXECUTE + MODE_COST[1]
    return np.array([cases, np.where(rare, op.OPERATION, -1), costs, operations], np.int32)


def cases_of_cpu() -> Array:
    """Returns the number of the branch of cpu.py's `run` that executes each opcode; 0: execution.py."""
    tree = ast.parse(inspect.getsource(cpu))
    chains: list[list[ast.If]] = [_chain(node) for node in ast.walk(tree) if isinstance(node, ast.If)]
    cases = np.zeros(256, np.int32)
    longest = max(chains, key=len)
    for number, branch in enumerate(longest, 1):
        compared = [node for node in ast.walk(branch.test) if isinstance(node, ast.Compare)]
        opcodes = [ast.literal_eval(node.comparators[0]) for node in compared if ast.unparse(node.left) == "opcode"]
        cases[opcodes] = number
    return cases


def _chain(node: ast.If) -> list[ast.If]:
    """Returns an `if` and its `elif`s."""
    following = node.orelse
    return [node, *(_chain(following[0]) if len(following) == 1 and isinstance(following[0], ast.If) else [])]


def warps_of(traces: Traces, frame: int, order: str) -> Array:
    """Returns the consoles in the order in which they form warps, int32. See Model."""
    consoles = np.arange(len(traces.codes))
    if order == "random":
        return consoles.astype(np.int32)
    if order == "start":
        keys = traces.places[consoles, traces.frames[:, frame]][None]
    elif order == "count":
        keys = np.diff(traces.frames, axis=1)[:, frame - 1][None]
    else:
        keys = _samples(traces, frame if order == "own" else frame - 1)
    return np.lexsort(keys[::-1]).astype(np.int32)


def _samples(traces: Traces, frame: int) -> Array:
    """Returns where the consoles' programs are at each eighth line of a frame, [lines, consoles]."""
    samples = []
    for clock in range(0, traces.display[1], 8 * CLOCKS_PER_LINE):
        places = []
        for console, (first, end) in enumerate(traces.frames[:, frame : frame + 2]):
            at = first + np.searchsorted(traces.clocks[console, first:end], clock)
            places.append(traces.places[console, min(at, end - 1)])
        samples.append(places)
    return np.array(samples)


def simulate(traces: Traces, frame: int, model: Model) -> Array:
    """Returns the totals of a frame, int64: see ROUNDS. Consoles that do not fill a warp are left out.

    ROUNDS of the loop, BODIES of the switches' cases and COMPLETIONS count what the warps executed. COST is their cost,
    COMPLETION_COST that of completions alone. DONE: the consoles' instructions. LONE_*: if each console were alone."""
    totals = np.zeros(LONE_COST + 1, np.int64)
    plan = [model.quantum, model.policy, model.quorum and min(model.quorum, model.lanes), model.finishes]
    starts, ends = (np.ascontiguousarray(traces.frames[:, i]) for i in (frame, frame + 1))
    issue(
        *(warps_of(traces, frame, model.order), model.lanes, starts, ends, traces.codes, traces.clocks, traces.places),
        *(dispatch_table(model.dispatch), COSTS, np.array([*plan, *traces.display], np.int32), totals),
        np.zeros((SCRATCH_ROWS, 256), np.int32),
    )
    return totals
