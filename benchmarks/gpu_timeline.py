"""Draws who waits for whom while a rollout is collected with a GPU, on a simulated clock.

python benchmarks/gpu_timeline.py [--out FILE.png] [--horizon 5] [--step 625] [--network 100] ...

The serving loop and its wait are accel_rl's real code (ServingLoop in samplers/alternating.py, WorkerPool.wait in
samplers/worker_pool.py).
Simulators, server and GPU are only durations in microseconds, all of them guesses except a step's. So the program
shows the order of events, not the speed, which gpu_session.py measures on a GPU.
"""

import heapq
import itertools
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from accel_rl.analysis.plot import COLORS, save
from accel_rl.errors import RunError
from accel_rl.samplers.alternating import ServingLoop
from accel_rl.samplers.base import NO_HOOK, StepHook
from accel_rl.samplers.env_arrays import NUM_GROUPS
from accel_rl.samplers.worker_pool import WorkerPool
from command_line import make_parser, run_program

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ON_SERVER, ON_GPU = ("receive", "act", "hand over", "hook"), ("upload", "network", "return")
GROUPS = [slice(0, 1), slice(1, 2)]  # as if each group had one environment


@dataclass(frozen=True)
class Durations:
    """The durations of the parts of a group's step, in whole microseconds, for 128 environments of Pong on 16 cores.

    step: 64 environments on 15 workers, 5 on the busiest one; each takes 125 as measured on an AMD EPYC
    (docs/benchmarks.md). The cores step one group after the other. All other durations are guesses.
    """

    step: int = 625
    spread: int = 90  # a group's step takes from step - spread to step + spread
    wake: int = 30  # from the end of the hand-over until the workers step
    receive: int = 35  # the server's own work: packs a row, enqueues its upload
    act: int = 35  # enqueues the network
    hand_over: int = 20  # writes the semaphores of 15 workers
    upload: int = 40  # 64 frames of 104 x 80
    network: int = 100
    back: int = 10  # copies the actions to the host
    hook: int = 200  # learning between two steps, if there is any


class Span(NamedTuple):
    """An activity from `start` to `end` [us]. group: -1 for a hook. t: its row; a "step" writes it."""

    what: str
    group: int
    t: int
    start: int
    end: int


class Clock:
    """A simulated clock [us] with its future events."""

    def __init__(self) -> None:
        self.now = 0
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = itertools.count()  # simultaneous events happen in the order in which they were planned

    def plan(self, time: int, happen: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time, next(self._numbers), happen))

    def advance(self, time: int) -> None:
        """Runs all events up to this time."""
        while self._events and self._events[0][0] <= time:
            self.now, _, happen = heapq.heappop(self._events)
            happen()
        self.now = time

    def advance_to_next(self) -> None:
        """Runs the next event. Raises RunError if there is none, since the server would wait forever."""
        if not self._events:
            raise RunError("the server waits for an event that will never happen")
        self.advance(self._events[0][0])


class Timeline:
    """The spans of one rollout, in the order in which they were planned."""

    def __init__(self, durations: Durations, horizon: int, hook: StepHook):
        self.durations, self.horizon, self.hook = durations, horizon, hook
        self.clock, self.spans = Clock(), list[Span]()
        self.seconds = dict.fromkeys(("env_wait", "inference", "gpu_wait", "action_wait"), 0.0)  # named as in the loop

    def add(self, what: str, group: int, t: int, start: int, duration: int) -> int:
        """Adds a span; returns its end."""
        self.spans.append(Span(what, group, t, start, start + duration))
        return start + duration

    def serve(self, what: str, group: int, t: int, duration: int) -> None:
        """Adds work of the server, and runs the events in the meantime."""
        self.clock.advance(self.add(what, group, t, self.clock.now, duration))

    def of(self, *whats: str) -> list[Span]:
        return [span for span in self.spans if span.what in whats]

    @property
    def end(self) -> int:
        return max(span.end for span in self.spans)


class SimulatedPool:
    """Both groups' environments. The cores step one group after the other, like workers with both groups."""

    wait, _pause_s = WorkerPool.wait, WorkerPool._pause_s  # the real methods, which this program examines
    _spin = True  # the server has its own core

    def __init__(self, timeline: Timeline):
        self._timeline, self._random = timeline, random.Random(0)
        self._ready, self._rows_read = [False] * NUM_GROUPS, [0] * NUM_GROUPS
        self._rows = [0] * NUM_GROUPS  # the row that each group has written, or is about to write
        self._cores_free_at = 0
        self.status = SimpleNamespace(waited_s=0.0)  # the loop reads it; `measure` computes the real one

    def begin(self) -> None:
        for group in range(NUM_GROUPS):  # the first observations exist already
            self._write_row(group, 0)

    def _write_row(self, group: int, duration: int) -> None:
        timeline, row = self._timeline, self._rows[group]
        start = max(timeline.clock.now + timeline.durations.wake, self._cores_free_at)
        self._cores_free_at = timeline.add("step", group, row, start, duration)
        self._rows[group] += 1
        timeline.clock.plan(self._cores_free_at, lambda: self._ready.__setitem__(group, True))

    def announce_actions(self, group: int) -> None:
        durations = self._timeline.durations
        self._timeline.serve("hand over", group, self._rows[group] - 1, durations.hand_over)
        self._write_row(group, durations.step + self._random.randint(-durations.spread, durations.spread))

    def _wait_for_event(self, at_most_s: float | None = None) -> list[int]:
        self._timeline.clock.advance_to_next()
        return []

    def _acquire_announcements(self, ready: list[int]) -> None:
        """Does nothing, since the clock has done it."""

    def end(self) -> None:
        assert not any(self._ready)


class SimulatedServer:
    """An action server. Its GPU computes for one group at a time, and copies at the same time in each direction."""

    groups = GROUPS

    def __init__(self, timeline: Timeline):
        self._timeline, self.horizon = timeline, timeline.horizon
        self._free_at = dict.fromkeys(ON_GPU, 0)  # when each part of the GPU has finished its queue
        self._done_at = [0] * NUM_GROUPS  # when each group's queued work is done

    def _enqueue(self, what: str, group: int, t: int, duration: int) -> None:
        start = max(self._timeline.clock.now, self._done_at[group], self._free_at[what])
        self._free_at[what] = self._done_at[group] = self._timeline.add(what, group, t, start, duration)

    def begin(self, policy: Any, greedy: bool) -> None:
        """Does nothing, like `record`, `learner_has_worked` and `finish`: there is nothing to keep."""

    def receive(self, group: int, t: int) -> None:
        self._timeline.serve("receive", group, t, self._timeline.durations.receive)
        self._enqueue("upload", group, t, self._timeline.durations.upload)

    def act(self, group: int, t: int) -> None:
        durations = self._timeline.durations
        self._timeline.serve("act", group, t, durations.act)
        self._enqueue("network", group, t, durations.network)
        self._enqueue("return", group, t, durations.back)
        self._timeline.clock.plan(self._done_at[group], lambda: None)  # an event for the spinning server

    def has_acted(self, group: int) -> bool:
        return self._timeline.clock.now >= self._done_at[group]

    def wait_until_acted(self, group: int) -> None:
        self._timeline.clock.advance(max(self._timeline.clock.now, self._done_at[group]))

    def record(self) -> None: ...

    def learner_has_worked(self) -> None: ...

    def finish(self) -> None: ...


def simulate(
    durations: Durations, horizon: int, every: int = 0, envs_to_update: Callable[[int], slice | None] | None = None
) -> Timeline:
    """Collects one rollout. every: a hook runs at each multiple of this step; 0: no hook. envs_to_update: the groups,
    of GROUPS, that wait for the hook."""

    def learn(t: int) -> None:
        timeline.serve("hook", -1, t, durations.hook)

    timeline = Timeline(durations, horizon, StepHook(learn, every, envs_to_update) if every else NO_HOOK)
    pool: Any = SimulatedPool(timeline)
    server: Any = SimulatedServer(timeline)
    policy: Any = None
    ServingLoop(pool, timeline.seconds, lambda: timeline.clock.now / 1e6).collect(server, policy, hook=timeline.hook)
    return timeline


# ---- waits that should not occur ----


class Task(NamedTuple):
    """A task of the server, which could have started at `ready` [us] and started at `start`."""

    what: str
    group: int
    t: int
    ready: int
    start: int
    idle: int  # microseconds in between without other work of the server


def tasks(timeline: Timeline) -> list[Task]:
    """Returns all tasks of the server, by the rules of `StepHook`."""
    spans = {(span.what, span.group, span.t): span for span in timeline.spans}
    hooks, found = timeline.of("hook"), []
    for span in timeline.of(*ON_SERVER):
        what, group, t = span[:3]
        if what == "receive":
            ready = max([spans["step", group, t].end, *(hook.end for hook in hooks if hook.t < t)])
        elif what == "act":
            ready = spans["receive", group, t].end
            if group in timeline.hook.next_call(t, timeline.horizon, GROUPS)[1] and ("hook", -1, t) in spans:
                ready = spans["hook", -1, t].end
        elif what == "hand over":
            ready = spans["return", group, t].end
        else:
            held = timeline.hook.next_call(t, timeline.horizon, GROUPS)[1]
            before = [spans["receive", each, t].end for each in range(NUM_GROUPS)]
            ready = max(before + [spans["hand over", each, t].end for each in range(NUM_GROUPS) if each not in held])
        busy = sum(max(0, min(s.end, span.start) - max(s.start, ready)) for s in timeline.of(*ON_SERVER))
        found.append(Task(what, group, t, ready, span.start, max(0, span.start - ready - busy)))
    return found


# ---- the table ----


class Waits(NamedTuple):
    """Times of one rollout in microseconds. trip: from a group's last announcement until its workers can step again,
    mean and longest. step: a group's step, mean."""

    wall: int
    simulators: int  # the cores wait for actions
    environments: int  # the server waits, and environments may end that
    gpu: int  # the server waits, and only the GPU can end that
    gpu_idle: int
    fillable: int  # the server waits although it has work
    trip: float
    longest_trip: int
    step: float


def measure(timeline: Timeline) -> Waits:
    wall, announced = timeline.end, {span[1:3]: span.end for span in timeline.of("step")}
    handed_over = timeline.of("hand over")
    trips = [span.end + timeline.durations.wake - announced[span.group, span.t] for span in handed_over]
    steps = [span.end - span.start for span in timeline.of("step") if span.t]
    env_wait, gpu_wait = (round(1e6 * timeline.seconds[name]) for name in ("env_wait", "gpu_wait"))
    return Waits(
        wall=wall,
        simulators=wall - sum(steps),
        environments=env_wait,
        gpu=gpu_wait,
        gpu_idle=wall - _length_of_union(timeline.of(*ON_GPU)),
        fillable=sum(task.idle for task in tasks(timeline)),
        trip=sum(trips) / len(trips),
        longest_trip=max(trips),
        step=sum(steps) / len(steps),
    )


def _length_of_union(spans: list[Span]) -> int:
    length, reached = 0, 0
    for span in sorted(spans, key=lambda span: span.start):
        length += max(0, span.end - max(span.start, reached))
        reached = max(reached, span.end)
    return length


def show(waits: Waits, horizon: int) -> str:
    """Returns a table of the waits."""
    rows = {
        "simulators wait for actions": waits.simulators,
        "the server waits for environments": waits.environments,
        "the server waits for the GPU alone": waits.gpu,
        "the server waits, but has something to do": waits.fillable,
        "the GPU is idle": waits.gpu_idle,
    }
    lines = [f"A rollout of {horizon} steps takes {waits.wall:,} us on the simulated clock"]
    lines += [f"  {name:44}{time:>7,} us {100 * time / waits.wall:>4.0f} %" for name, time in rows.items()]
    lines += [f"  {'a step of a group, mean':44}{waits.step:>7,.0f} us"]
    lines += [f"  {'its trip to the GPU, mean (longest)':44}{waits.trip:>7,.0f} us ({waits.longest_trip:,})"]
    return "\n".join(lines)


# ---- the picture ----

ROWS = {"simulators": ("step",), "server": ON_SERVER, "GPU, upload": ("upload",), "GPU, network": ("network",)}
HEIGHT = 0.62  # height of a bar


def draw(timeline: Timeline) -> "Figure":
    """Draws the simulators, the server and the GPU over milliseconds; 1650 x 645 pixels."""
    from matplotlib.figure import Figure

    waits = measure(timeline)
    figure = Figure(figsize=(11, 4.3), dpi=150, layout="constrained", facecolor="white")
    axes = figure.subplots()
    for row, whats in enumerate(ROWS.values()):
        for span in timeline.of(*whats):
            _draw_span(axes, -row, span)
    _draw_lines(axes, timeline)
    for group in range(NUM_GROUPS):
        axes.barh([0], [0], color=COLORS[group], label=f"group {group}")
    axes.plot([], [], color="#444444", label="a row is announced")
    axes.plot([], [], ":", color="#444444", label="actions are handed over")
    axes.set_yticks([-row for row in range(len(ROWS))], list(ROWS))
    axes.set(xlim=(0, timeline.end / 1e3), ylim=(-len(ROWS) + 0.55, 0.45), xlabel="simulated time [ms]")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.legend(frameon=False, loc="lower right", bbox_to_anchor=(1, 1), ncols=4, borderaxespad=0.2, fontsize=9)
    axes.set_title(f"A rollout of {timeline.horizon} steps", loc="left", fontsize=11, fontweight="bold")
    shares = (f"{100 * part / waits.wall:.0f} %" for part in (waits.simulators, waits.gpu, waits.gpu_idle))
    simulators, server, gpu = shares
    figure.supxlabel(
        f"simulators wait for actions {simulators}, the server for the GPU alone {server}; GPU idle {gpu}. "
        "The clock is simulated; all durations but a step's are guesses.",
        fontsize=9,
        color="#444444",
    )
    return figure


def _draw_span(axes: "Axes", y: int, span: Span) -> None:
    start, length = span.start / 1e3, (span.end - span.start) / 1e3
    color = COLORS[span.group] if span.group >= 0 else "#444444"
    axes.barh([y], [length], left=[start], height=HEIGHT, color=color, edgecolor="white", linewidth=0.5)
    if span.what == "step" and length:
        axes.text(start + length / 2, y, f"step {span.t - 1}", ha="center", va="center", color="white", fontsize=9)


def _draw_lines(axes: "Axes", timeline: Timeline) -> None:
    """Draws lines down to the server at each group's last announcement of a row, and up at each hand-over."""
    spans = {span[:3]: span for span in timeline.spans}
    for span in timeline.of("step"):
        received, color = spans["receive", span.group, span.t], COLORS[span.group]
        axes.plot([span.end / 1e3, received.start / 1e3], [-HEIGHT / 2, -1 + HEIGHT / 2], color=color, lw=1)
        if span.t:
            given = spans["hand over", span.group, span.t - 1]
            axes.plot([given.end / 1e3, span.start / 1e3], [-1 + HEIGHT / 2, -HEIGHT / 2], ":", color=color, lw=1)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--out", type=Path, metavar="FILE.png", help="draw the picture into this file")
    parser.add_argument("--horizon", type=int, default=5, help="steps of the rollout (5)")
    for field in fields(Durations):
        name, default = f"--{field.name.replace('_', '-')}", int(str(field.default))
        parser.add_argument(name, type=int, default=default, metavar="US", help=f"microseconds ({default})")
    options = parser.parse_args()
    durations = Durations(**{field.name: getattr(options, field.name) for field in fields(Durations)})
    timeline = simulate(durations, options.horizon)
    print(show(measure(timeline), options.horizon))
    if options.out:
        save(draw(timeline), options.out)


if __name__ == "__main__":
    sys.exit(run_program(main))
