"""The contestants of benchmarks/replay.py: two DQN learners on one filled replay, and plain copies of its frames."""

import copy
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from accel_rl.algos.dqn import DQN
from accel_rl.bench.timing import Repeated
from accel_rl.envs.spec import EnvSpec
from accel_rl.errors import UsageError
from accel_rl.hardware.host_memory import free_bytes
from accel_rl.hardware.placement import pinned
from accel_rl.replay import Replay
from accel_rl.replay.replay import replay_bytes
from accel_rl.rollout import Rollout
from accel_rl.training.build import build_algo, build_update
from accel_rl.training.resolve import resolve

NUM_ENVS, BATCH = 32, 512
MAX_FILL_STEPS = (
    250  # of each environment in a rollout that fills the replay; larger ones leave more freed memory behind
)
EPISODE_STEPS = 250
UPDATES_PER_WAIT = 20  # on a GPU, which would otherwise be idle between two updates


def random_rollouts(spec: EnvSpec, horizon: int) -> Iterator[Rollout]:
    """Yields consecutive rollouts, all with the same random frames, in which episodes end at different steps."""
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
    """Two DQN learners with one filled replay: the first draws from it by priority, the second uniformly.

    Raises UsageError if the frames do not fit into memory."""

    def __init__(self, frames: int, device: str):
        settings = {"algo": "dqn", "env": "pong", "envs": NUM_ENVS, "network": "nature", "batch_size": BATCH}
        settings |= {"device": device, "sampler": "serial", "steps": 10**12}
        # The second learner's own replay is small, since it is replaced.
        configs = [
            resolve({**settings, "prioritized": is_prioritized, "replay_size": size})
            for is_prioritized, size in ((True, frames), (False, 4 * BATCH))
        ]
        self.config, self.frames, spec = configs[0], frames, configs[0].spec
        self.device = torch.device(self.config.run.device)
        horizon = min(MAX_FILL_STEPS, frames // NUM_ENVS)
        _check_room(spec, frames, horizon, self.device)
        self.algos: list[DQN] = [build_algo(config) for config in configs]  # type: ignore[misc]
        self.updates = [build_update(config, algo.policy) for config, algo in zip(configs, self.algos, strict=True)]
        self.algos[1].setup(0, partial(build_update, configs[1]))
        rollouts = random_rollouts(spec, horizon)
        first = next(rollouts)
        before = resident_bytes()
        self.replay = self._fill(first, rollouts)
        self.resident_bytes = resident_bytes() - before
        self.uniform = copy.copy(self.replay)  # the same frames
        self.uniform.priorities = None
        self.algos[1].replay = self.uniform

    def _fill(self, rollout: Rollout, rollouts: Iterator[Rollout]) -> Replay:
        self.algos[0].setup(0, partial(build_update, self.config))
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
        """Bytes of all that the replay keeps besides the frames."""
        ring, priorities = self.replay.ring, self.replay.priorities
        assert priorities
        tensors = [value for value in vars(ring).values() if isinstance(value, Tensor) and value is not ring.frames]
        return sum(tensor.nbytes for tensor in [*tensors, *vars(priorities.tree)["_levels"]])

    def contestant(self, name: str, index: int) -> Repeated:
        """Returns a contestant that makes whole updates with the learner of this index. Its rate is agent steps/s."""
        algo, update, plan = self.algos[index], self.updates[index], self.config.plan
        is_gpu = self.device.type == "cuda"
        num_updates = UPDATES_PER_WAIT if is_gpu else 1
        num_steps: int = round(num_updates * BATCH / self.config.algo.training_intensity)

        def learn() -> int:
            torch.set_num_threads(plan.learning_threads)
            with pinned(plan.server_cpus):
                for _ in range(num_updates):
                    algo.learn_batch(update)
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
                f"frames={frames:,} need {num_bytes / 1e9:.2f} GB on {place}, but {free / 1e9:.2f} GB are free; use "
                f"--frames {int(0.95 * frames * free / num_bytes)} or less"
            )


def resident_bytes() -> int:
    """Returns the bytes of memory that this process occupies."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def copying(name: str, replay: Replay, stacks_per_sample: int) -> Repeated:
    """Returns a contestant that copies as many bytes as a batch of BATCH samples of stacks_per_sample stacks has."""
    ring, rng = replay.ring, np.random.default_rng(0)
    frames, size = ring.frames.flatten(0, 1).numpy(), ring.history + 1
    count = BATCH * stacks_per_sample
    targets = [*np.empty((count, size, *frames.shape[1:]), np.uint8)]

    def work() -> int:
        for row, target in zip(rng.integers(0, len(frames) - size, count).tolist(), targets, strict=True):
            np.copyto(target, frames[row : row + size])
        return BATCH

    return Repeated(name, work)
