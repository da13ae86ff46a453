"""Measures how fast batches are assembled, what drawing by priority costs, and the memory that a replay takes.

python benchmarks/replay.py [--frames 1000000] [--contests memory stacks prioritized prioritized-gpu] [--json FILE]

All contests share one replay of random frames of 104x80 from 32 environments, filled as in training:

    memory           what the process takes more once the replay is filled, against the bytes of its frames; and what
                     everything besides the frames takes
    stacks           512 stacks of 4 frames, drawn uniformly, on one thread; and whole batches, which hold twice as
                     many. Against numpy.copyto of as many bytes: every stack is copied as a whole, from a random row
                     of the same frames into memory that is already allocated
    prioritized      DQN's updates in batches of 512 with Nature-CNN: draw, batch, network, optimizer and priorities;
                     against the same without priorities. Rates are agent steps/s at a training intensity of 8
    prioritized-gpu  the same with network and replay on a GPU

Contestants take turns; ratios are medians over the rounds with 95 % intervals.
"""

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from accel_rl.bench.output import create_parents, describe_run, write_json
from accel_rl.bench.timing import Contestant, Repeated, Turns, alternate, format_ratio, ratio
from accel_rl.errors import UsageError, unknown
from accel_rl.hardware.description import describe_machine, format_machine
from accel_rl.replay import Replay
from command_line import TurnOptions, add_json, add_turns, make_parser, run_program
from replay_contestants import BATCH, Learners, copying

VERSION = 1  # of the JSON
CONTESTS = ("memory", "stacks", "prioritized", "prioritized-gpu")
BUDGET_S = 60.0  # of each contest
TARGETS = {"stacks / copy": 0.6, "prioritized / uniform": 0.9}
MAX_RESIDENT, MAX_OTHER_BYTES = 1.05, 10**8  # targets: over the frames' bytes, and for a million of them

Result = dict[str, Any]


@dataclass(frozen=True)
class ReplayOptions(TurnOptions):
    """Options of the benchmark.

    contests: None for those that this machine can hold. device: of the contest on a GPU (auto: the first GPU). Raises
    UsageError for a value out of range."""

    frames: int = 1_000_000
    contests: tuple[str, ...] | None = None
    device: str = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.contests or ():
            if name not in CONTESTS:
                raise unknown("contest", name, CONTESTS)
        if self.frames < 4 * BATCH:
            raise UsageError(f"frames={self.frames} must be at least {4 * BATCH}, four batches")


def run(options: ReplayOptions) -> Result:
    """Runs the whole benchmark, prints its tables and writes its file; returns what the JSON holds."""
    create_parents(options.json)
    print(format_machine(describe_machine()))
    chosen = options.contests or (CONTESTS if torch.cuda.is_available() else CONTESTS[:-1])
    contests: dict[str, Result] = {}
    if {*chosen} - {"prioritized-gpu"}:
        learners = Learners(options.frames, "cpu")
        on_cpu: dict[str, Callable[[], Result]] = {
            "memory": lambda: run_memory(learners),
            "stacks": lambda: run_stacks(learners.uniform, options),
            "prioritized": lambda: run_prioritized(learners, options),
        }
        for name, contest in on_cpu.items():
            if name in chosen:
                contests[name] = contest()
                show(contests[name])
        del learners, on_cpu
    if "prioritized-gpu" in chosen:
        device = "cuda:0" if options.device == "auto" else options.device
        contests["prioritized-gpu"] = run_prioritized(Learners(options.frames, device), options)
        show(contests["prioritized-gpu"])
    result = {**describe_run("replay", VERSION, options), "contests": contests}
    write_json(options.json, result)
    return result


def run_memory(learners: Learners) -> Result:
    """Returns the memory that the filled replay takes."""
    return {
        "title": f"Memory of {learners.frames:,} transitions",
        "frame_bytes": learners.frame_bytes,
        "resident_bytes": learners.resident_bytes,
        "resident / frames": learners.resident_bytes / learners.frame_bytes,
        "other_bytes": learners.other_bytes,
        "at most": {"resident / frames": MAX_RESIDENT, "other_bytes": MAX_OTHER_BYTES},
    }


def run_stacks(replay: Replay, options: ReplayOptions) -> Result:
    """Compares assembling stacks, and whole batches with twice as many of them, with copies of as many bytes."""
    assert replay.priorities is None
    ring = replay.ring

    def stacks() -> int:
        index, _ = replay.draw(BATCH)
        return len(ring.observations(index, ring.age.flatten()[index]))

    def batch() -> int:
        index, _ = replay.draw(BATCH)
        return len(replay.batch(index, replay.device).observation)

    contestants = [Repeated("stacks", stacks), copying("copy", replay, 1), Repeated("batch", batch)]
    contestants.append(copying("copy-2", replay, 2))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        turns = alternate(contestants, options.schedule(BUDGET_S), "stacks")
    finally:
        torch.set_num_threads(threads)
    shape = "x".join(map(str, replay.ring.spec.observation_shape))
    title = f"Uniform batches of {BATCH}, each {shape}, from {replay.num_samples:,} frames, one thread"
    return _compared(title, "samples/s", turns, [("stacks", "copy"), ("batch", "copy-2")])


def run_prioritized(learners: Learners, options: ReplayOptions) -> Result:
    """Compares updates with samples drawn by priority with updates with samples drawn uniformly."""
    contestants: Sequence[Contestant] = [learners.contestant("prioritized", 0), learners.contestant("uniform", 1)]
    start = time.perf_counter()
    turns = alternate(contestants, options.schedule(BUDGET_S), "prioritized")
    config = learners.config
    title = f"DQN in batches of {BATCH} from {learners.frames:,} frames, Nature-CNN on {config.run.device}"
    result = _compared(title, "steps/s", turns, [("prioritized", "uniform")])
    return {**result, "learning_threads": config.plan.learning_threads, "seconds": time.perf_counter() - start}


def _compared(title: str, unit: str, turns: dict[str, Turns], pairs: list[tuple[str, str]]) -> Result:
    """pairs: the contestants whose rates are divided, (above, below)."""
    ratios = {f"{above} / {below}": ratio(turns[above].rates, turns[below].rates) for above, below in pairs}
    return {
        "title": title,
        "unit": unit,
        "contestants": {name: {"rate": turn.median, "rates": turn.rates} for name, turn in turns.items()},
        "ratios": ratios,
        "at least": {name: TARGETS[name] for name in ratios if name in TARGETS},
    }


def show(contest: Result) -> None:
    """Prints one contest."""
    print(f"\n{contest['title']}")
    for name, contestant in contest.get("contestants", {}).items():
        print(f"{name:24}{contestant['rate']:12,.0f} {contest['unit']}")
    for name, value in contest.get("ratios", {}).items():
        target = contest["at least"].get(name)
        print(f"{name:24}{format_ratio(value)}" + (f", should be at least {target}" if target else ""))
    if "resident_bytes" in contest:
        ratio_, other = contest["resident / frames"], contest["other_bytes"]
        print(f"frames                  {contest['frame_bytes'] / 1e9:12.3f} GB")
        print(f"resident                {contest['resident_bytes'] / 1e9:12.3f} GB")
        print(f"resident / frames       {ratio_:12.3f}, should be at most {MAX_RESIDENT}")
        print(
            f"everything but frames   {other / 1e9:12.3f} GB, should be at most {MAX_OTHER_BYTES / 1e9} for a million"
        )


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument(
        "--frames", type=int, default=1_000_000, help="frames of 104x80 in the replay (1000000: 8.4 GB)"
    )
    names = f"contests among {', '.join(CONTESTS)} (all that this machine can hold)"
    parser.add_argument("--contests", nargs="+", metavar="CONTEST", help=names)
    parser.add_argument("--device", default="auto", help="device of the contest on a GPU (auto: the first GPU)")
    add_turns(parser, budget="one minute for each contest")
    add_json(parser)
    given: dict[str, Any] = vars(parser.parse_args())
    contests = given.pop("contests")
    return run_program(lambda: run(ReplayOptions(**given, contests=contests and tuple(contests))))


if __name__ == "__main__":
    sys.exit(main())
