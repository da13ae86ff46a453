"""How fast batches are put together, what drawing by priority costs, and the memory that a replay takes.

    python benchmarks/replay.py [--frames 1000000] [--contests stacks memory] [--json FILE]

One replay of so many random frames of 104x80 from 32 environments, filled as in training, serves all of these:

    memory           what the process takes more once it is filled, against the bytes of its frames; and what everything
                     beside the frames takes
    stacks           512 stacks of 4 frames, drawn uniformly, on one thread; and whole batches, which hold twice as
                     many. Against numpy.copyto of as many bytes: every stack is copied as a whole, from a random row
                     of the same frames into memory that is there already
    prioritized      DQN's updates in batches of 512 with Nature-CNN: draw, batch, network, rule and priorities; against
                     the same without priorities. Rates are agent steps/s at a training intensity of 8
    prioritized-gpu  the same with network and replay on a GPU

Contestants take turns; ratios are medians over the rounds with 95 % intervals.
"""

import copy
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from accel_rl.algos.dqn import DQN
from accel_rl.bench.output import shown, write_json
from accel_rl.bench.timing import Contestant, Repeated, Schedule, Turns, alternate, ratio, show_ratio
from accel_rl.envs.spec import EnvSpec
from accel_rl.errors import UsageError, unknown
from accel_rl.hardware.description import describe_machine, format_machine
from accel_rl.hardware.host_memory import free_bytes
from accel_rl.hardware.placement import pinned
from accel_rl.replay import Replay
from accel_rl.replay.replay import replay_bytes
from accel_rl.rollout import Rollout
from accel_rl.training.build import build_algo, build_update
from accel_rl.training.resolve import resolve

VERSION = 1  # of the JSON
CONTESTS = ("memory", "stacks", "prioritized", "prioritized-gpu")
NUM_ENVS, BATCH = 32, 512
MOST_STEPS = 250  # of each environment in a rollout that fills the replay; larger ones leave more freed memory behind
EPISODE_STEPS = 250
ROUNDS, BUDGET_S = 20, 60.0  # of each contest
UPDATES_PER_WAIT = 20  # on a GPU, which otherwise would be idle between two updates
TARGETS = {"stacks / copy": 0.6, "prioritized / uniform": 0.9}
MOST_RESIDENT, MOST_OTHER_BYTES = 1.05, 10**8  # of the frames' bytes, for a million of them

Result = dict[str, Any]


@dataclass(frozen=True)
class ReplayOptions:
    """seconds: of each contestant in a round. Raises UsageError for a value out of range."""

    frames: int = 1_000_000
    contests: tuple[str, ...] | None = None  # those that this machine can hold
    device: str = "auto"  # of the contest on a GPU
    seconds: float = 1.0
    rounds: int | None = None
    json: Path | None = None

    def __post_init__(self) -> None:
        for name in self.contests or ():
            if name not in CONTESTS:
                raise unknown("contest", name, CONTESTS)
        if self.frames < 4 * BATCH:
            raise UsageError(f"frames={self.frames} must be at least {4 * BATCH}")
        if not 0 < self.seconds < float("inf"):
            raise UsageError(f"seconds={self.seconds} must be greater than 0")
        if self.rounds is not None and self.rounds < 1:
            raise UsageError(f"rounds={self.rounds} must be at least 1")

    def schedule(self) -> Schedule:
        return Schedule(self.seconds, self.rounds) if self.rounds else Schedule(self.seconds, ROUNDS, BUDGET_S)


def random_rollouts(spec: EnvSpec, horizon: int) -> Iterator[Rollout]:
    """Rollouts that follow each other, all with the same random frames; episodes end everywhere."""
    history, rng = spec.frame_stack - 1, np.random.default_rng(0)
    rows = torch.from_numpy(rng.integers(0, 256, (history + horizon + 1, NUM_ENVS, *spec.row_shape), np.uint8))
    phase = torch.arange(NUM_ENVS) * EPISODE_STEPS // NUM_ENVS
    steps, generator = (horizon, NUM_ENVS), torch.Generator().manual_seed(0)
    none = torch.zeros(0, dtype=torch.int64)
    first = 0
    while True:
        age = (torch.arange(first, first + horizon + 1).unsqueeze(1) + phase) % EPISODE_STEPS
        yield Rollout(
            observation_rows=rows,
            age=age,
            frame_stack=spec.frame_stack,
            action=torch.randint(int(spec.action_space.n), steps, generator=generator),  # type: ignore[attr-defined]
            reward=torch.randn(steps, generator=generator),
            terminated=age[1:] == 0,
            truncated=torch.zeros(steps, dtype=torch.bool),
            valid=torch.ones(steps, dtype=torch.bool),
            reset=age == 0,
            policy_outputs={},
            final_step=none,
            final_env=none,
            final_observation=torch.zeros(0, *spec.observation_shape, dtype=torch.uint8),
            games=[],
            first_step=first * NUM_ENVS,
        )
        first += horizon


class Learners:
    """DQN with a filled replay that it draws from by priority; and another one, which draws uniformly from the same.

    Raises UsageError if the frames do not fit into memory."""

    def __init__(self, frames: int, device: str):
        settings = {"algo": "dqn", "env": "pong", "envs": NUM_ENVS, "network": "nature", "batch_size": BATCH}
        more = {"replay_size": frames, "device": device, "sampler": "serial", "steps": 10**12}
        configs = [resolve({**settings, **more, "prioritized": is_prioritized}) for is_prioritized in (True, False)]
        self.config, self.frames, spec = configs[0], frames, configs[0].spec
        self.device = torch.device(self.config.run.device)
        horizon = min(MOST_STEPS, frames // NUM_ENVS)
        _check_room(spec, frames, horizon, self.device)
        self.algos: list[DQN] = [build_algo(config) for config in configs]  # type: ignore[misc]
        self.updates = [build_update(config, algo.policy) for config, algo in zip(configs, self.algos, strict=True)]
        rollouts = random_rollouts(spec, horizon)
        first = next(rollouts)
        before = resident_bytes()
        self.replay = self._fill(first, rollouts)
        self.resident_bytes = resident_bytes() - before
        self.uniform = copy.copy(self.replay)  # the same frames
        self.uniform.priorities = None
        self.algos[1].replay = self.uniform

    def _fill(self, rollout: Rollout, rollouts: Iterator[Rollout]) -> Replay:
        for algo in self.algos:
            algo.prepare(self.config.algo.warmup_steps)
        self.algos[0].start(0, partial(build_update, self.config))
        replay = self.algos[0].replay
        assert replay
        replay.append(rollout)
        while replay.num_samples < self.frames:
            replay.append(next(rollouts))
        return replay

    @property
    def frame_bytes(self) -> int:
        return self.frames * int(np.prod(self.config.spec.row_shape))

    @property
    def other_bytes(self) -> int:
        """Of all that the replay keeps beside the frames."""
        ring, priorities = self.replay.ring, self.replay.priorities
        assert priorities
        tensors = [value for value in vars(ring).values() if isinstance(value, Tensor) and value is not ring.frames]
        return sum(tensor.nbytes for tensor in [*tensors, *vars(priorities.tree)["_levels"]])

    def contestant(self, name: str, index: int) -> Repeated:
        """The whole updates of one of the two."""
        algo, update, plan = self.algos[index], self.updates[index], self.config.plan
        is_gpu, replay = self.device.type == "cuda", self.algos[index].replay
        assert replay
        num_updates = UPDATES_PER_WAIT if is_gpu else 1
        num_steps: int = round(num_updates * BATCH / self.config.algo.training_intensity)

        def learn() -> int:
            torch.set_num_threads(plan.learning_threads)
            with pinned(plan.server_cpus):
                for _ in range(num_updates):
                    algo.learn_batch(replay, update)
                if is_gpu:
                    torch.cuda.synchronize(self.device)
            return num_steps

        return Repeated(name, learn)


def _check_room(spec: EnvSpec, frames: int, horizon: int, device: torch.device) -> None:
    needed = replay_bytes(spec, NUM_ENVS, frames, 1, prioritized=True)
    filling = (horizon + spec.frame_stack) * NUM_ENVS * int(np.prod(spec.row_shape))
    if device.type == "cpu":
        needed += filling
    for place, num_bytes in ((device, needed), (torch.device("cpu"), filling)):
        free = free_bytes(place)
        if num_bytes > free:
            raise UsageError(
                f"{frames:,} frames need {num_bytes / 1e9:.2f} GB on {place}, but {free / 1e9:.2f} GB are free: use "
                f"--frames {int(0.95 * frames * free / num_bytes)} or less"
            )


def resident_bytes() -> int:
    """Of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def run(options: ReplayOptions) -> Result:
    """Runs and prints the whole benchmark, and writes its file; returns what the JSON holds."""
    if options.json:  # now rather than after minutes of work
        options.json.parent.mkdir(parents=True, exist_ok=True)
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
    result = {
        "benchmark": "replay",
        "version": VERSION,
        "machine": describe_machine(),
        "options": shown(options),
        "contests": contests,
    }
    write_json(options.json, result)
    return result


def run_memory(learners: Learners) -> Result:
    return {
        "title": f"RecurrentInputs of {learners.frames:,} transitions",
        "frame_bytes": learners.frame_bytes,
        "resident_bytes": learners.resident_bytes,
        "resident / frames": learners.resident_bytes / learners.frame_bytes,
        "other_bytes": learners.other_bytes,
        "at most": {"resident / frames": MOST_RESIDENT, "other_bytes": MOST_OTHER_BYTES},
    }


def run_stacks(replay: Replay, options: ReplayOptions) -> Result:
    """Stacks, and whole batches with twice as many of them, against copies of as many bytes."""
    assert replay.priorities is None
    ring = replay.ring

    def stacks() -> int:
        index, _ = replay.draw(BATCH)
        return len(ring._stacks(index, index // ring.num_rows, ring.age.flatten()[index]))

    def batch() -> int:
        index, _ = replay.draw(BATCH)
        return len(replay.batch(index, replay.device).observation)

    contestants = [Repeated("stacks", stacks), copying("copy", replay, 1), Repeated("batch", batch)]
    contestants.append(copying("copy-2", replay, 2))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        turns = alternate(contestants, options.schedule(), "stacks")
    finally:
        torch.set_num_threads(threads)
    shape = "x".join(map(str, replay.ring.spec.observation_shape))
    title = f"Uniform batches of {BATCH}, each {shape}, from {replay.num_samples:,} frames, one thread"
    return _compared(title, "samples/s", turns, [("stacks", "copy"), ("batch", "copy-2")])


def copying(name: str, replay: Replay, stacks_per_sample: int) -> Repeated:
    """What copying the bytes of as many samples takes that are stacks_per_sample stacks each."""
    ring, rng = replay.ring, np.random.default_rng(0)
    frames, size = ring.frames.flatten(0, 1).numpy(), ring.history + 1
    count = BATCH * stacks_per_sample
    to = [*np.empty((count, size, *frames.shape[1:]), np.uint8)]

    def work() -> int:
        for row, stack in zip(rng.integers(0, len(frames) - size, count).tolist(), to, strict=True):
            np.copyto(stack, frames[row : row + size])
        return BATCH

    return Repeated(name, work)


def run_prioritized(learners: Learners, options: ReplayOptions) -> Result:
    contestants: Sequence[Contestant] = [learners.contestant("prioritized", 0), learners.contestant("uniform", 1)]
    start = time.perf_counter()
    turns = alternate(contestants, options.schedule(), "prioritized")
    config = learners.config
    title = f"DQN in batches of {BATCH} from {learners.frames:,} frames, Nature-CNN on {config.run.device}"
    result = _compared(title, "steps/s", turns, [("prioritized", "uniform")])
    return {**result, "learning_threads": config.plan.learning_threads, "seconds": time.perf_counter() - start}


def _compared(title: str, unit: str, turns: dict[str, Turns], pairs: list[tuple[str, str]]) -> Result:
    ratios = {f"{ours} / {other}": ratio(turns[ours].rates, turns[other].rates) for ours, other in pairs}
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
        print(f"{name:24}{show_ratio(value)}" + (f", to be at least {target}" if target else ""))
    if "resident_bytes" in contest:
        ratio_, other = contest["resident / frames"], contest["other_bytes"]
        print(f"frames                  {contest['frame_bytes'] / 1e9:12.3f} GB")
        print(f"resident                {contest['resident_bytes'] / 1e9:12.3f} GB")
        print(f"resident / frames       {ratio_:12.3f}, to be at most {MOST_RESIDENT}")
        print(f"everything but frames   {other / 1e9:12.3f} GB, to be at most {MOST_OTHER_BYTES / 1e9} for a million")
