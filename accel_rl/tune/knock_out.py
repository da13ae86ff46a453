"""A knock-out: contestants take turns, and those that are clearly behind the fastest one leave."""

import sys
import time
from collections.abc import Callable, Sequence

from accel_rl.bench.timing import Contestant, Schedule, Turns, ratio
from accel_rl.hardware.topology import count

CLEARLY_BEHIND = 0.97


def knock_out(
    contestants: Sequence[Contestant],
    pick: str,
    schedule: Schedule,
    label: str = "",
    clock: Callable[[], float] = time.perf_counter,
    *,
    leave: Callable[[Contestant], None] = lambda contestant: None,
    final_follows: bool = True,
) -> dict[str, Turns]:
    """Returns every contestant's turns by its name: in each round one of all that are still in.

    After the schedule's least_rounds and each later round, those leave that are clearly behind the fastest: the whole
    95 % interval of their ratio is below CLEARLY_BEHIND. The pick stays. Ends with the schedule's rounds or time, or
    once only one is not clearly behind; if a final follows, once two are left. A round for warm-up comes first and does
    not count. leave: called with each one that leaves. Progress goes to stderr."""
    turns = {contestant.name: Turns() for contestant in contestants}
    start, left, rounds = clock(), list(contestants), 0
    for contestant in contestants:
        contestant.run(schedule.seconds)
    while rounds < schedule.rounds and (rounds < schedule.least_rounds or clock() - start < schedule.budget_s):
        rounds += 1
        print(f"\r{label}: round {rounds}, {count(len(left), 'point')}   ", end="", file=sys.stderr, flush=True)
        for contestant in left if rounds % 2 else left[::-1]:
            turns[contestant.name].rates.append(contestant.run(schedule.seconds))
        if rounds < schedule.least_rounds:
            continue
        leader = turns[max(left, key=lambda contestant: turns[contestant.name].median).name].rates
        is_behind = {c.name: ratio(turns[c.name].rates, leader)["high"] < CLEARLY_BEHIND for c in left}
        for contestant in left:
            if is_behind[contestant.name] and contestant.name != pick:
                leave(contestant)
        left = [c for c in left if not is_behind[c.name] or c.name == pick]
        if len(left) <= 2 and (final_follows or len(left) == 1 or any(is_behind[c.name] for c in left)):
            break
    print("\r" + " " * (len(label) + 30) + "\r", end="", file=sys.stderr, flush=True)
    return turns


def strength(turns: Turns) -> tuple[int, float]:
    """Orders contestants of a knock-out: those that stayed longer first, then by their medians."""
    return len(turns.rates), turns.median
