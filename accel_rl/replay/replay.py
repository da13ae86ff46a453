"""Defines the replay of the Q-learning family: a ring of steps, drawn uniformly or by priority."""

from typing import Any

import torch
from torch import Tensor

from accel_rl.envs.spec import EnvSpec
from accel_rl.hardware.devices import restore_generator
from accel_rl.replay.ring import Ring, ring_bytes
from accel_rl.replay.sum_tree import SumTree
from accel_rl.replay.transitions import DrawnRows, TransitionBatch
from accel_rl.rollout import Rollout

MAX_SAVED_BYTES = 2 * 10**9  # largest replay that checkpoints include by default


class Replay:
    """A replay of the last `size` steps, rounded up to the same number for each environment.

    Draws are uniform, or prioritized if alpha is given; both with replacement.
    alpha, new_priority: see `PrioritizedDistribution`.
    generator: for the draws; on `device`, like the storage.
    """

    in_checkpoints = True

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
        num_rows = rows_per_env(spec, num_envs, size, n_step)
        self.ring = Ring(spec, num_envs, num_rows, n_step, discount, self.device)
        self.priorities: PrioritizedDistribution | None = None
        if alpha is not None:
            self.priorities = PrioritizedDistribution(num_envs * num_rows, alpha, new_priority, self.device)
        self.generator = generator or torch.Generator(self.device).manual_seed(0)

    @property
    def num_samples(self) -> int:
        """Number of steps that can be drawn."""
        return self.ring.num_envs * self.ring.num_steps

    @property
    def num_appended(self) -> int:
        """Number of steps ever appended."""
        return self.ring.num_envs * max(0, self.ring.newest_row - self.ring.first_row_ever)

    def append(self, rollout: Rollout) -> None:
        """Stores the rollout that follows the last one; overwrites the oldest steps."""
        ring = self.ring
        first, stop = ring.first_row, ring.first_row + ring.num_steps
        ring.append(rollout)
        if self.priorities is None:
            return
        if ring.num_steps and stop > first:
            # An environment that was replaced between the rollouts has made the last returns invalid.
            self.priorities.remove_invalid(ring.index_of(stop - 1, stop), ring.return_valid)
        self.priorities.remove(ring.index_of(first, min(ring.first_row, first + ring.num_rows)))
        new = ring.index_of(max(stop, ring.first_row), ring.first_row + ring.num_steps)
        self.priorities.add(new, ring.return_valid)

    def draw(self, count: int) -> tuple[Tensor, Tensor | None]:
        """Draws samples: returns indices int64 [count], and if prioritized, their probabilities float64 [count]."""
        return self.choose(self.draw_noise(count), self.ring.rows)

    def draw_noise(self, count: int) -> Tensor:
        """Draws uniform numbers float64 [count] in [0, 1), from which `choose` chooses samples."""
        return torch.rand(count, dtype=torch.float64, generator=self.generator, device=self.device)

    def choose(self, noise: Tensor, rows: DrawnRows) -> tuple[Tensor, Tensor | None]:
        """Draws like `draw`, from given noise. rows: `ring.rows`; prioritized draws do not use them."""
        if self.priorities is not None:
            return self.priorities.tree.choose(noise)
        # One random number in 0 ... num_samples - 1 determines both environment and step.
        ring = self.ring
        num_samples = ring.num_envs * rows.num_steps
        number = (noise * num_samples).long().clamp(max=num_samples - 1)
        env, step = number // rows.num_steps, number % rows.num_steps
        return env * ring.num_rows + (rows.first_row + step) % ring.num_rows, None

    def batch(self, index: Tensor, device: torch.device) -> TransitionBatch:
        """Returns the samples with these indices [K], on the given device, without importance weights."""
        return self.ring.gather(index).to(device)

    @property
    def replaceable(self) -> tuple[Tensor, ...]:
        """The tensors read by `batch` that may be replaced; all others are changed in place."""
        return (self.ring.final_frames,)

    def update_priorities(self, index: Tensor, priority: Tensor) -> None:
        """Sets the priorities [K] of samples [K]; the largest counts if an index occurs more than once."""
        if self.priorities is not None:
            self.priorities.update(index, priority.to(self.device), self.ring.return_valid)

    def state_dict(self) -> dict[str, Any]:
        priorities = self.priorities and self.priorities.state_dict()
        return {"ring": self.ring.state_dict(), "priorities": priorities, "generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.ring.load_state_dict(state["ring"])
        if self.priorities is not None:
            self.priorities.load_state_dict(state["priorities"])
        restore_generator(self.generator, state["generator"], "the replay's random draws")


class PrioritizedDistribution:
    """A distribution over samples with probability proportional to priority ** alpha (Schaul et al. 2016).

    new_priority: priority of samples that have not been drawn yet; None: the largest priority so far, at first 1.
    """

    def __init__(self, size: int, alpha: float, new_priority: float | None, device: torch.device):
        self.tree, self.alpha = SumTree(size, device), alpha
        self.new_priority = new_priority
        self.max_priority = torch.ones((), dtype=torch.float64, device=device)

    def add(self, index: Tensor, valid: Tensor) -> None:
        """Adds new samples [K]; valid [size] bool: invalid samples are never drawn."""
        new = self.new_priority
        priority = self.max_priority if new is None else torch.full_like(self.max_priority, new)
        self.tree.update(index, valid.flatten()[index] * priority**self.alpha)

    def remove(self, index: Tensor) -> None:
        """Removes samples [K] that have been overwritten."""
        self.tree.update(index, torch.zeros(len(index), dtype=torch.float64, device=index.device))

    def remove_invalid(self, index: Tensor, valid: Tensor) -> None:
        """Removes samples [K] that are no longer valid; valid [size] bool."""
        self.tree.update(index, self.tree[index] * valid.flatten()[index])

    def update(self, index: Tensor, priority: Tensor, valid: Tensor) -> None:
        """Sets the priorities [K] of samples [K]; valid [size] bool."""
        priority = priority.double()
        self.max_priority.copy_(torch.maximum(self.max_priority, priority.max()))  # in place: CUDA graphs read it
        self.tree.update(index, priority**self.alpha * valid.flatten()[index])

    def state_dict(self) -> dict[str, Any]:
        return {"tree": self.tree.state_dict(), "max_priority": self.max_priority}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.tree.load_state_dict(state["tree"])
        self.max_priority.copy_(state["max_priority"])


def importance_weights(probability: Tensor, num_samples: int | Tensor, beta: float | Tensor) -> Tensor:
    """Returns (N P)^-beta [K] float32, a correction for prioritized draws (Schaul et al. 2016, section 3.4).

    The caller divides by the largest weight of the batch, so that weights only scale updates down."""
    return (num_samples * probability).pow(-beta).float()


def rows_per_env(spec: EnvSpec, num_envs: int, size: int, n_step: int) -> int:
    """Returns how many rows each environment needs to draw from `size` steps; rows at both ends cannot be drawn."""
    return -(-size // num_envs) + n_step + spec.history


def replay_bytes(spec: EnvSpec, num_envs: int, size: int, n_step: int, prioritized: bool) -> int:
    """Returns the bytes that a replay of `size` steps allocates."""
    num_rows = rows_per_env(spec, num_envs, size, n_step)
    return ring_bytes(spec, num_envs, num_rows) + (9 * num_envs * num_rows if prioritized else 0)


def saves(checkpoint_replay: bool | None, num_bytes: int) -> bool:
    """Returns whether checkpoints include a replay of this size, given the setting checkpoint_replay."""
    return num_bytes <= MAX_SAVED_BYTES if checkpoint_replay is None else checkpoint_replay
