"""What the learners of a run tell each other, and what that is for one learner alone."""

from typing import Any, Protocol

import torch


class Coordinator(Protocol):
    """Rank 0 is the one that logs and writes checkpoints."""

    rank: int
    size: int
    updates_together: bool
    """Whether all learners make each update together."""

    def advance(self, num_steps: int) -> int:
        """This learner has done num_steps more agent steps (0: it only asks); returns those of the whole run."""

    def stops(self, wish: bool) -> bool:
        """Whether the run is to stop now, if this learner wishes so."""

    def local_share(self, number: int) -> int:
        """How much this learner does of something that `all_gather` brings together."""

    def all_gather(self, value: Any) -> list[Any]:
        """The value of each learner that does a part."""

    def send_report(self, value: Any, last: bool = False) -> list[Any]:
        """For rank 0: what learners have reported since it asked last. The last time it waits for what others report
        last."""

    def poll_reports(self) -> list[Any]:
        """For rank 0: what others have reported since then, without waiting and without its own."""

    def submit_state(self, state: Any, last: bool) -> None:
        """This learner's state, for the next checkpoint; last: it does nothing more after that."""

    def collect_states(self) -> list[Any] | None:
        """For rank 0: the states of all learners by rank, once all have offered one since it was last given them, and
        it has, too; else None. Waits for the others' last ones if its own is the last."""

    def read_seconds(self) -> dict[str, float]:
        """Wall time that `stops` has taken since the last reading, since it waits for others."""

    def compare(self, parameters: torch.Tensor, steps: int) -> None:
        """Raises RunError if learners that should have the same parameters have not."""


class SingleLearner:
    """One learner."""

    rank, size, updates_together = 0, 1, False

    def __init__(self, steps: int = 0):
        self._steps = steps
        self._states: list[Any] | None = None

    def advance(self, num_steps: int) -> int:
        self._steps += num_steps
        return self._steps

    def stops(self, wish: bool) -> bool:
        return wish

    def local_share(self, number: int) -> int:
        return number

    def all_gather(self, value: Any) -> list[Any]:
        return [value]

    def send_report(self, value: Any, last: bool = False) -> list[Any]:
        return [value]

    def poll_reports(self) -> list[Any]:
        return []

    def submit_state(self, state: Any, last: bool) -> None:
        self._states = [state]

    def collect_states(self) -> list[Any] | None:
        states, self._states = self._states, None
        return states

    def read_seconds(self) -> dict[str, float]:
        return {}

    def compare(self, parameters: torch.Tensor, steps: int) -> None:
        pass
