"""A sum tree: draws leaves with probability proportional to their values, and changes values, in logarithmic time.

Each node sums FAN_OUT children, so that a million leaves take 4 levels, and a batch passes each level in a few vector
operations, on a CPU or a GPU. A parent is always recomputed from its children, never corrected by a difference, so that
rounding errors do not accumulate.
"""

from typing import Any

import torch
from torch import Tensor

from accel_rl.hardware.cumulative_sum import cumulative_sum

FAN_OUT = 64


class SumTree:
    """Holds `size` leaves with float64 values of at least 0, initially 0. Raises ValueError if size is less than 1."""

    def __init__(self, size: int, device: str | torch.device = "cpu"):
        if size < 1:
            raise ValueError(f"size={size} must be at least 1")
        self.size = size
        self._levels: list[Tensor] = []  # leaves first; each padded with zeros to whole families of siblings
        while not self._levels or len(self._levels[-1]) > FAN_OUT:
            num_nodes = len(self._levels[-1]) // FAN_OUT if self._levels else size
            num_families = -(-num_nodes // FAN_OUT)
            self._levels.append(torch.zeros(num_families * FAN_OUT, dtype=torch.float64, device=device))

    @property
    def total(self) -> Tensor:
        """The sum of all values, 0-d."""
        return self._levels[-1].sum()

    def __getitem__(self, index: Tensor | slice) -> Tensor:
        """Returns the values of some leaves [K]."""
        return self._levels[0][: self.size][index]

    def update(self, index: Tensor, value: Tensor) -> None:
        """Sets the values [K] of leaves index int64 [K]; a leaf that occurs more than once gets the largest."""
        self._levels[0].scatter_reduce_(0, index, value.double(), "amax", include_self=False)
        for children, parents in zip(self._levels, self._levels[1:], strict=False):
            index = index // FAN_OUT
            parents[index] = children.view(-1, FAN_OUT)[index].sum(-1)

    def sample(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draws `count` leaves with replacement, each with probability proportional to its value.

        Returns their indices int64 and their probabilities float64 [count]. At least one value must be positive:
        otherwise the last leaf is drawn, with probability nan."""
        device = self._levels[0].device
        return self.choose(torch.rand(count, dtype=torch.float64, generator=generator, device=device))

    def choose(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Returns what `sample` does, drawn by given noise float64 [K], uniform in [0, 1)."""
        total = self.total
        index = self.find(noise * total)
        return index, self[index] / total

    def find(self, prefix: Tensor) -> Tensor:
        """Returns the leaves int64 [K] at which the cumulative sum first exceeds these prefix sums [K].

        A prefix at or beyond the total, which rounding can produce, gives the last leaf of positive value. A leaf of
        value 0 is never returned."""
        node = torch.zeros(prefix.shape, dtype=torch.int64, device=prefix.device)
        for level in reversed(self._levels):
            ends = cumulative_sum(level.view(-1, FAN_OUT)[node])  # cumulative sums of the children [K, FAN_OUT]
            last = ends[:, -1]
            prefix = torch.minimum(prefix, torch.nextafter(last, torch.zeros_like(last)))
            child = (ends <= prefix.unsqueeze(-1)).sum(-1).clamp(max=FAN_OUT - 1)
            before = ends.gather(-1, (child - 1).clamp(min=0).unsqueeze(-1)).squeeze(-1)
            prefix = prefix - before.where(child > 0, 0.0)
            node = node * FAN_OUT + child
        return node.clamp(max=self.size - 1)

    def state_dict(self) -> dict[str, Any]:
        return {"values": self[:]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._levels[0][: self.size] = state["values"]
        for children, parents in zip(self._levels, self._levels[1:], strict=False):
            parents[: len(children) // FAN_OUT] = children.view(-1, FAN_OUT).sum(-1)
