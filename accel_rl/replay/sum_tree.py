"""Draws leaves of a sum tree with probability proportional to their values, and changes values, in logarithmic time.

Each node sums the values of its children, and a batch passes each level in a few vector operations. On a CPU a node has
64 children, the least work. On a GPU, where launches take longest, it has 1024, so a million leaves take 2 levels.
Parents are recomputed from their children, never corrected by differences, so rounding errors do not accumulate.
"""

from typing import Any

import torch
from torch import Tensor

FAN_OUT_ON_CPU, FAN_OUT_ON_GPU = 64, 1024
TICKET_BITS = 61  # a total has up to 2**61 tickets; even with those that rounding up adds, the sum fits an int64


class SumTree:
    """A tree of `size` leaves with float64 values of at least 0, initially 0. Raises ValueError if size is below 1."""

    def __init__(self, size: int, device: str | torch.device = "cpu"):
        if size < 1:
            raise ValueError(f"size={size} must be at least 1")
        self.size, self._on_cpu = size, torch.device(device).type == "cpu"
        self._fan_out = fan_out = FAN_OUT_ON_CPU if self._on_cpu else FAN_OUT_ON_GPU
        self._levels: list[Tensor] = []  # leaves first; each padded with zeros to whole families of siblings
        while not self._levels or len(self._levels[-1]) > fan_out:
            num_nodes = len(self._levels[-1]) // fan_out if self._levels else size
            num_families = -(-num_nodes // fan_out)
            self._levels.append(torch.zeros(num_families * fan_out, dtype=torch.float64, device=device))

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
            families = children.view(-1, self._fan_out)
            if len(index) >= len(families):  # copying the families of so many leaves would be more work
                parents[: len(families)] = families.sum(-1)
            else:
                index = index // self._fan_out
                parents[index] = families[index].sum(-1)

    def choose(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Draws leaves with replacement, each with probability proportional to its value.

        noise: float64 [K], uniform in [0, 1). Returns the leaves' indices int64 and probabilities float64 [K]. At least
        one value must be positive."""
        total = self.total
        index = self.find(noise * total, total)
        return index, self[index] / total

    def find(self, prefix: Tensor, total: Tensor) -> Tensor:
        """Returns the leaves int64 [K] at which the cumulative sum first exceeds these prefix sums [K].

        A prefix at or beyond the total, which rounding can produce, gives the last leaf of positive value. A leaf of
        value 0 is never returned. total: the sum of all values. On a GPU, prefixes are at most twice the total, which
        is at least 1e-280."""
        return self._find_by_sums(prefix) if self._on_cpu else self._find_by_tickets(prefix, total)

    def _find_by_sums(self, prefix: Tensor) -> Tensor:
        node = torch.zeros(prefix.shape, dtype=torch.int64)
        for level in reversed(self._levels):
            ends = level.view(-1, self._fan_out)[node].cumsum(-1)  # cumulative sums of the children [K, fan_out]
            last = ends[:, -1]
            prefix = torch.minimum(prefix, torch.nextafter(last, torch.zeros_like(last)))
            child = (ends <= prefix.unsqueeze(-1)).sum(-1).clamp(max=self._fan_out - 1)
            before = ends.gather(-1, (child - 1).clamp(min=0).unsqueeze(-1)).squeeze(-1)
            prefix = prefix - before.where(child > 0, 0.0)
            node = node * self._fan_out + child
        return node.clamp(max=self.size - 1)

    def _find_by_tickets(self, prefix: Tensor, total: Tensor) -> Tensor:
        """Finds leaves as in a lottery: each owns tickets in proportion to its value, numbered from 1 in its family.

        On a GPU, cumulative sums of floats depend on the order of the threads. Equal results in every run would need
        many launches, and PyTorch refuses them with --deterministic. Sums of integers are exact in any order. So a leaf
        of value 0, which owns no ticket, ends where the leaf before it ends, and the search takes that one.

        A value is multiplied by a power of two, which is exact, and rounded up: however small, it owns a ticket. So a
        node that owns tickets has a child that does. It may own a few more or fewer than its children together, since
        its own sum was rounded. A ticket beyond its children's counts as their last one."""
        scale = torch.frexp(total).mantissa / total * 2.0**TICKET_BITS  # tickets for a value of 1
        ticket, node = ((prefix * scale).long() + 1).view(1, -1), None  # [1, K]: all draws begin in one family
        for level in reversed(self._levels):
            families = level.view(-1, self._fan_out)
            values = families if node is None else families[node]  # [1 or K, fan_out]
            num_tickets = (values * scale).ceil_().nan_to_num_(0.0, 0.0).long()  # none if the total is 0 or not finite
            ends = num_tickets.cumsum(-1)
            ticket = torch.minimum(ticket, ends[:, -1:])
            child = torch.searchsorted(ends, ticket)
            if level is not self._levels[0]:
                ticket = (ticket - (ends - num_tickets).gather(-1, child)).view(-1, 1)
            child = child.view(-1)
            node = child if node is None else torch.add(child, node, alpha=self._fan_out)
        assert node is not None
        return node

    def state_dict(self) -> dict[str, Any]:
        return {"values": self[:]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        leaves = self._levels[0]
        self.update(torch.arange(self.size, device=leaves.device), state["values"].to(leaves.device).expand(self.size))
