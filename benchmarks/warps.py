"""Models how a GPU's warps execute the interpreter: lanes in lock-step, each with its own console."""

import ast
import inspect

import numpy as np

from accel_rl.emulator import cpu
from accel_rl.emulator.compiled import entry, i32, jit

ALL, LARGEST, OLDEST, LOWEST = range(4)
ITERATIONS, FIRSTS, SECONDS, HEAVIES, DONE, COST, ALONE, WAITED = range(8)
MAX_LANES = 32


def cases_of_cpu() -> np.ndarray:
    """Returns the number of the branch of cpu.py's `run` that executes each opcode; 0: execution.py."""
    tree = ast.parse(inspect.getsource(cpu))
    run = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "run")
    tests = [node for node in ast.walk(run) if isinstance(node, ast.If) and _opcodes(node.test)]
    branch = max(tests, key=_chain_length)
    cases, number = np.zeros(256, np.int32), 0
    while True:
        number += 1
        cases[_opcodes(branch.test)] = number
        if not (len(branch.orelse) == 1 and isinstance(branch.orelse[0], ast.If)):
            return cases
        branch = branch.orelse[0]


def _chain_length(node: ast.If) -> int:
    return 1 + (_chain_length(node.orelse[0]) if len(node.orelse) == 1 and isinstance(node.orelse[0], ast.If) else 0)


def _opcodes(test: ast.expr) -> list[int]:
    """Returns the opcodes that a condition compares with."""
    return [
        node.comparators[0].value
        for node in ast.walk(test)
        if isinstance(node, ast.Compare)
        and isinstance(node.left, ast.Name)
        and node.left.id == "opcode"
        and isinstance(node.ops[0], ast.Eq)
        and isinstance(node.comparators[0], ast.Constant)
    ]


@jit
def _heavy(heavy_cost, lines, objects):
    cost = heavy_cost[0] + heavy_cost[1] * lines
    for item in range(6):
        if objects >> item & 1:
            cost += heavy_cost[2]
    return cost


@entry
def simulate(
    order, lanes, starts, ends, opcode, place, line, lines, dirty, tia, first, second, first_cost, second_cost,
    common, heavy_cost, by_line, policy, quorum, vote_cost, totals, scratch
):  # fmt: skip
    """Adds up what warps of so many lanes issue."""
    at, active, waits, chosen = scratch[0], scratch[1], scratch[2], scratch[3]
    stamp1, count1, heavy1, stamp2, groups = scratch[4], scratch[5], scratch[6], scratch[7], scratch[8]
    now = i32(0)
    for warp in range(order.shape[0] // lanes):
        for lane in range(lanes):
            at[lane] = starts[order[warp * lanes + lane]]
            waits[lane] = 0
        limit = i32(0) if by_line else i32(30000)
        while True:
            # The lanes that can go on
            running, waiting, unfinished = 0, 0, 0
            for lane in range(lanes):
                console = order[warp * lanes + lane]
                if at[lane] < ends[console]:
                    unfinished += 1
                    if waits[lane]:
                        waiting += 1
                    elif line[console, at[lane]] <= limit:
                        active[running] = lane
                        running += 1
            if unfinished == 0:
                break
            if waiting and (running == 0 or waiting >= quorum):
                # The dear part, for all lanes that wait for it
                most, objects, draws = 0, 0, 0
                for lane in range(lanes):
                    if waits[lane]:
                        console = order[warp * lanes + lane]
                        position = at[lane]
                        most = max(most, i32(lines[console, position]))
                        objects |= i32(dirty[console, position])
                        draws += 1
                        waits[lane] = 0
                        at[lane] += 1
                totals[HEAVIES] += 1
                totals[COST] += _heavy(heavy_cost, most, objects) + vote_cost
                continue
            if running == 0:
                limit += 1
                continue
            now += 1
            # Groups of lanes with the same case
            num_groups = 0
            for i in range(running):
                lane = active[i]
                case = first[opcode[order[warp * lanes + lane], at[lane]]]
                if stamp1[case] != now:
                    stamp1[case] = now
                    count1[case] = 0
                    groups[num_groups] = case
                    num_groups += 1
                count1[case] += 1
            num_chosen = running
            for i in range(running):
                chosen[i] = active[i]
            if policy != 0 and num_groups > 1:
                best, best_value = groups[0], i32(-1)
                if policy == 1:
                    for g in range(num_groups):
                        if count1[groups[g]] > best_value:
                            best, best_value = groups[g], count1[groups[g]]
                else:
                    best_value = i32(2**30)
                    for i in range(running):
                        lane = active[i]
                        console = order[warp * lanes + lane]
                        value = i32(at[lane] - starts[console]) if policy == 2 else i32(place[console, at[lane]])
                        if policy == 2:
                            value = i32(line[console, at[lane]]) * 1000
                        if value < best_value:
                            best, best_value = first[opcode[console, at[lane]]], value
                num_chosen = 0
                for i in range(running):
                    lane = active[i]
                    if first[opcode[order[warp * lanes + lane], at[lane]]] == best:
                        chosen[num_chosen] = lane
                        num_chosen += 1
                groups[0] = best
                num_groups = 1
            totals[ITERATIONS] += 1
            totals[COST] += common
            if policy:
                totals[COST] += vote_cost
            for g in range(num_groups):
                totals[FIRSTS] += 1
                totals[COST] += first_cost[groups[g]]
                heavy1[groups[g]] = 0
            for i in range(num_chosen):
                lane = chosen[i]
                console = order[warp * lanes + lane]
                op = opcode[console, at[lane]]
                other = second[op]
                totals[DONE] += 1
                totals[ALONE] += common + first_cost[first[op]]
                if other >= 0:
                    totals[ALONE] += second_cost[other]
                    if stamp2[other] != now:
                        stamp2[other] = now
                        totals[SECONDS] += 1
                        totals[COST] += second_cost[other]
                if tia[console, at[lane]]:
                    if lines[console, at[lane]]:
                        totals[ALONE] += _heavy(heavy_cost, i32(lines[console, at[lane]]), i32(dirty[console, at[lane]]))
                        if quorum:
                            waits[lane] = 1
                            continue
                        heavy1[first[op]] = 1
                at[lane] += 1
            if quorum == 0:
                for g in range(num_groups):
                    if heavy1[groups[g]]:
                        most, objects = 0, 0
                        for i in range(num_chosen):
                            lane = chosen[i]
                            console = order[warp * lanes + lane]
                            position = at[lane] - 1
                            if first[opcode[console, position]] == groups[g] and tia[console, position]:
                                most = max(most, i32(lines[console, position]))
                                objects |= i32(dirty[console, position])
                        totals[HEAVIES] += 1
                        totals[COST] += _heavy(heavy_cost, most, objects)

