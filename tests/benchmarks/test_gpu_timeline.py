"""The serving loop on a simulated clock never waits needlessly, and counts its waits correctly."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpu_timeline import GROUPS, ON_GPU, ON_SERVER, Durations, Span, Timeline, measure, simulate, tasks

ROOT = Path(__file__).parents[2]
USUAL = Durations()
DURATIONS = {
    "usual": USUAL,
    "slow GPU": replace(USUAL, network=900, upload=300),
    "almost as long as a step": replace(USUAL, step=230, spread=60),
    "actions and a row at once": replace(USUAL, step=185, spread=0),
    "slow server": replace(USUAL, receive=200, act=250, hand_over=150),
    "slow hand-over": replace(USUAL, hand_over=500, step=100),
    "slow hook": replace(USUAL, hook=1500, network=300),
}
HOOKS: dict[str, dict[str, Any]] = {
    "no hook": {},
    "for nobody": {"every": 1},
    "for group 0": {"every": 2, "envs_to_update": lambda t: GROUPS[0]},
    "for both": {"every": 1, "envs_to_update": lambda t: slice(0, 2)},
    "in turn": {"every": 1, "envs_to_update": lambda t: [GROUPS[0], None, GROUPS[1]][t % 3]},
}


def moments(spans: Iterable[tuple[int, int]]) -> set[int]:
    """Returns all microseconds of some spans of time."""
    return {moment for start, end in spans for moment in range(start, end)}


def of(timeline: Timeline, whats: tuple[str, ...]) -> set[int]:
    return moments((span.start, span.end) for span in timeline.of(*whats))


def between(timeline: Timeline, first: str, then: str, row: Callable[[Span], int]) -> set[int]:
    """Returns all microseconds from the end of a group's `first` to the start of the `then` of row(first)."""
    starts = {(span.group, span.t): span.start for span in timeline.of(then)}
    return moments((span.end, starts[span.group, row(span)]) for span in timeline.of(first))


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("durations", DURATIONS)
def test_the_server_is_idle_only_if_it_has_nothing_to_do(durations: str, hook: str) -> None:
    """The server receives announced groups, enqueues received ones, hands over finished actions and runs hooks exactly
    as soon as the rules of hooks and its other work allow. It hands over actions before it receives another row,
    since simulators wait for them."""
    timeline = simulate(DURATIONS[durations], 6, **HOOKS[hook])
    done = tasks(timeline)
    assert len(done) == 2 * (7 + 6 + 6) + len(timeline.of("hook"))
    assert [task for task in done if task.idle or task.start < task.ready] == []
    received = [span.start for span in timeline.of("receive")]
    handed_over = [task for task in done if task.what == "hand over"]
    assert not [task for task in handed_over if any(task.ready <= start < task.start for start in received)]


@pytest.mark.parametrize("durations", DURATIONS)
def test_waits_are_counted_as_they_are(durations: str) -> None:
    """The loop's env_wait is the server's idle time while a group is simulated, gpu_wait its idle time while none is.
    The GPU has nothing to do only while each group is simulated or waits for a busy server."""
    timeline = simulate(DURATIONS[durations], 6)
    served = of(timeline, ON_SERVER)
    idle = set(range(max(served))) - served
    announced_at = {(span.group, span.t): span.end for span in timeline.of("step")}
    simulated = moments((span.end, announced_at[span.group, span.t + 1]) for span in timeline.of("hand over"))
    simulated |= set(range(announced_at[0, 0]))  # before the first row
    counted = {name: round(1e6 * seconds) for name, seconds in timeline.seconds.items()}
    found = {"env_wait": len(idle & simulated), "gpu_wait": len(idle - simulated), "inference": len(served)}
    assert counted == {**found, "action_wait": 0}
    assert found["gpu_wait"] > 0 or durations == "slow server"

    could_be_enqueued = between(timeline, "step", "receive", lambda span: span.t)
    assert not idle & could_be_enqueued - of(timeline, ON_GPU)


def test_hooks_are_no_part_of_sampling() -> None:
    """The loop counts all of the server's time except that of hooks."""
    timeline = simulate(USUAL, 6, every=1)
    hooks = len(of(timeline, ("hook",)))
    assert hooks == 6 * USUAL.hook
    assert round(1e6 * sum(timeline.seconds.values())) == max(of(timeline, ON_SERVER)) + 1 - hooks


def test_the_page_has_the_figures_of_the_simulation() -> None:
    """The sentence on why there are two groups has current figures, and by these no trip is as long as a step."""
    timeline = simulate(USUAL, 5)
    waits, steps = measure(timeline), of(timeline, ("step",))
    page = " ".join((ROOT / "docs" / "architecture.md").read_text().split())
    assert f"step takes {waits.step:.0f} microseconds and its trip to the GPU {waits.trip:.0f}" in page
    assert f"idle {100 * waits.simulators / waits.wall:.0f} % of the time" in page
    assert steps == set(range(min(steps), max(steps) + 1))  # from the first step to the last
    assert waits.longest_trip < waits.step
