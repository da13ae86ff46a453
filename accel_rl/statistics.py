"""What updates report, kept on their device until it is looked at, and the first of it that is not finite."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor


class NotFinite(NamedTuple):
    """update: its number since the run began, from 1; steps: agent steps of the run, those of its rollout included."""

    update: int
    steps: int
    name: str
    value: float


class Statistics:
    """The statistics of updates since the last row.

    A statistic is a tensor: [U], an entry for each update of its rollout, or 0-d, of the last (or only) one. Nothing
    here waits for a GPU but `look`.
    """

    def __init__(self) -> None:
        self.num_updates = 0  # since the run began, as far as looked at
        self._waiting: list[tuple[int, dict[str, Tensor]]] = []
        self._values: dict[str, list[float]] = {}  # what has been looked at, one number per update
        self._flaw: NotFinite | None = None

    def add(self, steps: int, stats: dict[str, Tensor]) -> None:
        """Those of one rollout, in the order of computation; steps: agent steps of the run, the rollout's included."""
        self._waiting.append((steps, stats))

    def look(self) -> NotFinite | None:
        """Fetches what is new from the device, at once. Returns the first of all so far, in the order of computation,
        that is nan or infinite."""
        waiting, self._waiting = self._waiting, []
        tensors = [torch.as_tensor(value).reshape(-1) for _, stats in waiting for value in stats.values()]
        if not tensors:
            return self._flaw
        if len({value.device for value in tensors}) > 1:
            tensors = [value.cpu() for value in tensors]
        numbers: list[float] = torch.cat(tensors).tolist()
        is_fine = all(map(math.isfinite, numbers))
        lengths, start = map(len, tensors), 0
        for steps, stats in waiting:
            values = {}
            for name, length in zip(stats, lengths, strict=False):  # ends with stats, before it takes a length
                values[name] = numbers[start : start + length]
                self._values.setdefault(name, []).extend(values[name])
                start += length
            self.num_updates += max(map(len, values.values()), default=0)
            if not is_fine and self._flaw is None:
                self._flaw = _first_flaw(values, self.num_updates, steps)
        return self._flaw

    def take(self) -> dict[str, list[float]]:
        """Each statistic's numbers, of the updates since the last row; begins a new row."""
        self.look()
        values, self._values = self._values, {}
        return values

    def get_state(self) -> dict[str, Any]:
        self.look()
        return {"num_updates": self.num_updates, "values": {name: list(v) for name, v in self._values.items()}}

    def set_state(self, state: dict[str, Any]) -> None:
        self.num_updates = state["num_updates"]
        self._values = {name: list(numbers) for name, numbers in state["values"].items()}


def _first_flaw(values: dict[str, list[float]], last_update: int, steps: int) -> NotFinite | None:
    """Of one rollout; by update, then in the order in which an update computes them."""
    flaws = [
        (last_update - len(numbers) + 1 + entry, order, name, number)
        for order, (name, numbers) in enumerate(values.items())
        for entry, number in enumerate(numbers)
        if not math.isfinite(number)
    ]
    if not flaws:
        return None
    update, _, name, number = min(flaws)
    return NotFinite(update, steps, name, number)
