"""Executes the interpreter's loop as a warp of a GPU does: all lanes in lock-step.

Since Volta, a GPU executes one path of a warp at a time. The lanes on the other paths wait, and all meet again after
the branch, where the compiler has put a barrier. So one round of the interpreter's loop costs the fetch, and then the
body of each different case that a lane needs. The round ends when all these are done, and the next one begins with all
lanes that have not yet reached the place where they meet."""

from accel_rl.emulator.compiled import entry, i32, jit

# What an instruction accesses. COMPLETES: a register of the TIA, after completing the collisions of earlier lines.
# SPLITS: the same, after also completing a part of the current line.
NOTHING, TIA, RIOT, COMPLETES, SPLITS = range(5)
# An instruction is a number. It contains the opcode and, from these bits on, what it accesses, the number of lines that
# its completion touches (at most 31), and the objects whose masks the completion updates, one bit each.
ACCESS_BIT, LINES_BIT, UPDATES_BIT, OBJECTS = 8, 12, 17, 6
MOST_LINES = 31

# How lanes in different cases continue
ALL, LARGEST, LOWEST = range(3)  # each case in turn; only the case with most lanes; only that of the lowest address
# Words of the totals
ROUNDS, BODIES, COMPLETIONS, COST, COMPLETION_COST, DONE, LONE_BODIES, LONE_COST = range(8)
SCRATCH_ROWS = 14
_NEVER = 2**31 - 1


@jit
def _completion(costs, lines, updates):
    """Returns the cost of completing lines, with the masks of these objects updated."""
    cost = i32(costs[4] + costs[5] * lines)
    for item in range(OBJECTS):
        cost += i32(costs[6] * (updates >> item & 1))
    return cost


@jit
def _complete(totals, costs, lines, updates):
    """Adds a completion."""
    cost = _completion(costs, lines, updates)
    totals[COMPLETIONS] += 1
    totals[COST] += cost
    totals[COMPLETION_COST] += cost


@entry
def issue(order, lanes, starts, ends, codes, clocks, places, dispatch, costs, plan, totals, scratch):
    """Runs a frame of all warps. plan: quantum, policy, quorum, finishes, the displayed clocks."""
    console, at, active, waits, following, taken = (
        scratch[0], scratch[1], scratch[2], scratch[3], scratch[4], scratch[5]
    )  # fmt: skip
    groups, size, accessed, most, updated = scratch[6], scratch[7], scratch[8], scratch[9], scratch[10]
    body, last_round, last_second = scratch[11], scratch[12], scratch[13]
    quantum, policy, quorum, finishes = plan[0], plan[1], plan[2], plan[3]
    now = i32(0)
    for warp in range(order.shape[0] // lanes):
        for lane in range(lanes):
            console[lane] = order[warp * lanes + lane]
            at[lane] = following[lane] = starts[console[lane]]
            waits[lane] = 0
            taken[lane] = -1
        until = i32(quantum if quantum else _NEVER)
        while True:
            # Which lanes can go on?
            num_active, num_waiting, num_unfinished = 0, 0, 0
            for lane in range(lanes):
                if at[lane] < ends[console[lane]]:
                    num_unfinished += 1
                    if waits[lane]:
                        num_waiting += 1
                    elif clocks[console[lane], at[lane]] < until:
                        active[num_active] = lane
                        num_active += 1
            if num_unfinished == 0:
                break

            # The lanes that wait complete their lines together.
            if num_waiting and (num_active == 0 or num_waiting >= quorum):
                lines, updates = 0, 0
                for lane in range(lanes):
                    if waits[lane]:
                        code = codes[console[lane], at[lane]]
                        lines = max(lines, 1 if finishes else code >> LINES_BIT & MOST_LINES)
                        updates |= 0 if taken[lane] == at[lane] else code >> UPDATES_BIT
                        waits[lane] = 0
                        at[lane] += 1
                totals[COST] += costs[1]
                _complete(totals, costs, lines, updates)
                continue

            # All lanes have reached the end of the line.
            if num_active == 0:
                if finishes and plan[4] < until <= plan[5]:
                    updates = 0
                    for lane in range(lanes):
                        row, end = console[lane], ends[console[lane]]
                        following[lane] = max(following[lane], at[lane])
                        while following[lane] < end and codes[row, following[lane]] >> ACCESS_BIT & 15 < COMPLETES:
                            following[lane] += 1
                        if following[lane] < end and taken[lane] != following[lane]:
                            taken[lane] = following[lane]
                            updates |= codes[row, following[lane]] >> UPDATES_BIT
                    _complete(totals, costs, 1, updates)
                until += quantum
                continue

            # One round: each active lane fetches an instruction.
            now += 1
            num_groups = 0
            for i in range(num_active):
                lane = active[i]
                case = dispatch[0, codes[console[lane], at[lane]] & 0xFF]
                if last_round[case] != now:
                    last_round[case] = now
                    size[case] = accessed[case] = most[case] = updated[case] = 0
                    groups[num_groups] = case
                    num_groups += 1
                size[case] += 1
            chosen = i32(-1)
            if policy != ALL and num_groups > 1:
                best = i32(_NEVER)
                for i in range(num_active):
                    lane = active[i]
                    case = dispatch[0, codes[console[lane], at[lane]] & 0xFF]
                    value = i32(-size[case]) if policy == LARGEST else places[console[lane], at[lane]]
                    if value < best:
                        chosen, best = case, value
                groups[0] = chosen
                num_groups = 1
            totals[ROUNDS] += 1
            totals[COST] += costs[0] + (costs[1] if policy != ALL else 0)

            # The lanes of the chosen cases execute it.
            for i in range(num_active):
                lane = active[i]
                code = codes[console[lane], at[lane]]
                opcode = code & 0xFF
                case, second = dispatch[0, opcode], dispatch[1, opcode]
                if chosen >= 0 and case != chosen:
                    continue
                totals[DONE] += 1
                totals[LONE_BODIES] += 1
                totals[LONE_COST] += costs[0] + dispatch[2, opcode]
                if second >= 0:
                    totals[LONE_BODIES] += 1
                    totals[LONE_COST] += dispatch[3, opcode]
                    if last_second[second] != now:
                        last_second[second] = now
                        totals[BODIES] += 1
                        totals[COST] += dispatch[3, opcode]
                access = code >> ACCESS_BIT & 15
                totals[LONE_COST] += costs[3] if access == RIOT else (costs[2] if access else 0)
                accessed[case] |= i32(1 << access)
                body[case] = dispatch[2, opcode]
                if access >= COMPLETES:
                    lines, updates = code >> LINES_BIT & MOST_LINES, code >> UPDATES_BIT
                    totals[LONE_COST] += _completion(costs, lines, updates)
                    if access == SPLITS or not finishes:
                        if quorum:
                            waits[lane] = 1
                            continue
                        most[case] = max(most[case], 1 if finishes else lines)
                        updated[case] |= i32(0 if taken[lane] == at[lane] else updates)
                at[lane] += 1
            for group in range(num_groups):
                case = groups[group]
                totals[BODIES] += 1
                totals[COST] += body[case]
                if accessed[case] & ~(1 | 1 << RIOT):
                    totals[COST] += costs[2]
                if accessed[case] & 1 << RIOT:
                    totals[COST] += costs[3]
                if most[case]:
                    _complete(totals, costs, most[case], updated[case])
