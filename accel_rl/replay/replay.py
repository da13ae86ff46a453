"""Replay: what the Q-learning family draws its batches from."""

import logging
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from accel_rl.envs.spec import EnvSpec
from accel_rl.errors import UsageError
from accel_rl.replay.ring import Ring, TransitionBatch, ring_bytes
from accel_rl.replay.sum_tree import SumTree
from accel_rl.rollout import Rollout

logger = logging.getLogger("accel_rl")

USABLE = 0.95  # of the memory that is free: the rest is for what else grows


class Replay:
    """The last steps of every environment, `size` of them in all (rounded up to equally many of each).

    Drawn uniformly, or by priority if alpha is given; both with replacement. device: where it lies, and what it gives.
    generator: of the draws, on that device.
    """

    def __init__(
        self,
        spec: EnvSpec,
        num_envs: int,
        size: int,
        n_step: int = 1,
        discount: float = 0.99,
        alpha: float | None = None,
        new_priority: float | None = None,
        generator: torch.Generator | None = None,
        device: str | torch.device = "cpu",
    ):
        self.device = torch.device(device)
        num_rows = rows_for(spec, num_envs, size, n_step)
        self.ring = Ring(spec, num_envs, num_rows, n_step, discount, self.device)
        self.priorities = (
            Priorities(num_envs * num_rows, alpha, new_priority, self.device) if alpha is not None else None
        )
        self.generator = generator or torch.Generator(self.device).manual_seed(0)

    @property
    def num_samples(self) -> int:
        """Steps that can be drawn."""
        return self.ring.num_envs * self.ring.num_steps

    @property
    def num_appended(self) -> int:
        """Steps that it has been given so far."""
        return self.ring.num_envs * max(0, self.ring.newest - self.ring.first_ever)

    def append(self, rollout: Rollout) -> None:
        """Takes in a rollout that follows the last one, as which it overwrites the oldest steps."""
        ring = self.ring
        first, stop = ring.first_row, ring.first_row + ring.num_steps
        ring.append(rollout)
        if self.priorities is None:
            return
        if ring.num_steps and stop > first:
            self.priorities.withdraw(ring.index_of(stop - 1, stop), ring.whole)
        self.priorities.drop(ring.index_of(first, min(ring.first_row, first + ring.num_rows)))
        new = ring.index_of(max(stop, ring.first_row), ring.first_row + ring.num_steps)
        self.priorities.add(new, ring.whole)

    def draw(self, count: int, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor | None]:
        """The indices of count samples, and their probabilities float64 if they are drawn by priority [count].

        generator: in place of the replay's own, on its device."""
        generator = generator or self.generator
        if self.priorities is not None:
            return self.priorities.tree.sample(count, generator)
        # One number decides the environment and the step: as many as there are samples.
        ring = self.ring
        number = torch.randint(self.num_samples, (count,), generator=generator, device=self.device)
        env, step = number // ring.num_steps, number % ring.num_steps
        return env * ring.num_rows + (ring.first_row + step) % ring.num_rows, None

    def batch(self, index: Tensor, device: torch.device) -> TransitionBatch:
        """Returns the samples with these indices [K] on a device."""
        samples = self.ring.samples(index)
        # Down from a GPU, a copy that is not waited for could be read before it has come.
        on_device = (None if v is None else v.to(device, non_blocking=device.type == "cuda") for v in samples)
        return TransitionBatch(*on_device)

    def update_priorities(self, index: Tensor, priority: Tensor) -> None:
        """New priorities [K] of samples [K]; of one that is named several times, the largest counts."""
        if self.priorities is not None:
            self.priorities.update(index, priority.to(self.device), self.ring.whole)

    def state_dict(self) -> dict[str, Any]:
        priorities = self.priorities and self.priorities.state_dict()
        return {"ring": self.ring.state_dict(), "priorities": priorities, "generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.ring.load_state_dict(state["ring"])
        if self.priorities is not None:
            self.priorities.load_state_dict(state["priorities"])
        set_generator(self.generator, state["generator"])


def set_generator(generator: torch.Generator, state: Tensor) -> None:
    """Goes on from a saved state, unless that is one of another kind of device."""
    if state.shape == generator.get_state().shape:
        generator.set_state(state)
    else:
        logger.warning("the replay's draws start anew: their generator was one of another kind of device")


class Priorities:
    """Draws in proportion to priority ** alpha (Schaul et al. 2016).

    new_priority: of samples that have not been drawn yet; None: the largest priority that there has been (1 at first).
    """

    def __init__(self, size: int, alpha: float, new_priority: float | None, device: torch.device):
        self.tree, self.alpha = SumTree(size, device), alpha
        self.new_priority = new_priority
        self.largest = torch.ones((), dtype=torch.float64, device=device)

    def add(self, index: Tensor, valid: Tensor) -> None:
        """Samples that are new; valid [size] bool: the others are never drawn."""
        index = index.flatten()
        first = self.largest if self.new_priority is None else torch.full_like(self.largest, self.new_priority)
        self.tree.update(index, valid.flatten()[index] * first**self.alpha)

    def drop(self, index: Tensor) -> None:
        """Samples that are no more."""
        index = index.flatten()
        self.tree.update(index, torch.zeros(len(index), dtype=torch.float64, device=index.device))

    def withdraw(self, index: Tensor, valid: Tensor) -> None:
        """Those of the samples that are not valid any more."""
        index = index.flatten()
        self.tree.update(index, self.tree[index] * valid.flatten()[index])

    def update(self, index: Tensor, priority: Tensor, valid: Tensor) -> None:
        priority = priority.double()
        self.largest = torch.maximum(self.largest, priority.max())
        self.tree.update(index, priority**self.alpha * valid.flatten()[index])

    def state_dict(self) -> dict[str, Any]:
        return {"tree": self.tree.state_dict(), "largest": self.largest}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.tree.load_state_dict(state["tree"])
        self.largest.copy_(state["largest"])


def importance(probability: Tensor, num_samples: int, beta: float) -> Tensor:
    """(N P)^-beta [K] float32, what makes up for having drawn these samples so often (Schaul et al. 2016).

    To be divided by the largest of the batch, so that the weights only scale updates down."""
    return (num_samples * probability).pow(-beta).float()


def rows_for(spec: EnvSpec, num_envs: int, size: int, n_step: int) -> int:
    """Rows of each environment, of which `size` steps of all can be drawn: those at both ends can't."""
    return -(-size // num_envs) + n_step + max(spec.frame_stack - 1, 0)


def needed_bytes(spec: EnvSpec, num_envs: int, size: int, n_step: int, prioritized: bool) -> int:
    num_rows = rows_for(spec, num_envs, size, n_step)
    return ring_bytes(spec, num_envs, num_rows) + (9 * num_envs * num_rows if prioritized else 0)


def check_room(needed: int, size: int, device: torch.device) -> int:
    """The bytes that are free on the device. Raises UsageError if those needed for `size` samples are more."""
    free = free_bytes(device)
    usable = free * USABLE
    if needed > usable:
        other = "--replay-device cpu, or " if device.type != "cpu" else ""
        raise UsageError(
            f"replay_size={size} needs {needed / 1e9:.2f} GB on {device}, but of {free / 1e9:.2f} GB that are free it "
            f"can have {usable / 1e9:.2f}: use {other}--replay-size {int(size * usable / needed)} or less"
        )
    return free


def free_bytes(device: torch.device) -> int:
    """What can still be allocated: of a GPU, or of main memory, as far as the process's control group lets it."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    free = [2**62]
    for line in _read(Path("/proc/meminfo")).splitlines():
        if line.startswith("MemAvailable:"):
            free.append(int(line.split()[1]) * 1024)
    for group, limit, used, cache in (
        ("/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
        ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        most, now = (_read(Path(group, name)).strip() for name in (limit, used))
        if most.isdigit() and now.isdigit():
            # Files that were read or written lately count as used, and make room when it is needed.
            kept = dict(line.split() for line in _read(Path(group, "memory.stat")).splitlines())
            free.append(int(most) - int(now) + int(kept.get(cache, 0)))
    return max(0, min(free))


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
