"""Coordinates a run's learners in all but gradients and parameters, including the trivial case of one learner."""

from abc import ABC, abstractmethod
from enum import IntEnum
from typing import Any

import torch


class Request(IntEnum):
    """A request to a run. The largest of several counts.

    FINISH: end as if its steps were done, after one more rollout. STOP: end at once, with a checkpoint."""

    GO_ON = 0
    FINISH = 1
    STOP = 2


class Coordinator(ABC):
    """Connects a learner to the other learners of its run. Rank 0 is the one that logs and writes checkpoints.

    The methods defined here suit learners that do not wait for each other."""

    rank: int
    size: int
    is_synchronous: bool
    """True if all learners make each update together."""

    @abstractmethod
    def add_steps(self, num_steps: int) -> int:
        """Adds agent steps that this learner has done (0: none); returns the steps of the whole run."""

    def agree_on(self, request: Request) -> Request:
        """Returns what this learner does now. request: what it was asked to do."""
        return request

    def local_share(self, number: int) -> int:
        """Returns how many of `number` items this learner handles; `all_gather` collects the results."""
        return number

    def all_gather(self, value: Any) -> list[Any]:
        """Returns the values of all learners with a share, by rank."""
        return [value]

    def send_report(self, value: Any, last: bool = False) -> list[Any]:
        """Sends a report to rank 0; there, returns all reports that have arrived since the last call.

        last: this is the learner's last report; rank 0 then waits for the last reports of all learners."""
        return [value]

    def poll_reports(self) -> list[Any]:
        """Returns, on rank 0, the other learners' reports that have arrived since the last call; never waits."""
        return []

    @abstractmethod
    def submit_state(self, state: Any, last: bool) -> None:
        """Submits this learner's state for the next checkpoint; last: the learner does nothing more after that."""

    @abstractmethod
    def collect_states(self) -> list[Any] | None:
        """Returns, on rank 0, the states of all learners by rank; None until all have submitted new ones.

        Waits for the last states of all learners if rank 0's own is its last."""

    def read_seconds(self) -> dict[str, float]:
        """Returns the wall time that `agree_on` has taken since the last call: it waits for other learners."""
        return {}

    def check_parameters_agree(self, parameters: torch.Tensor) -> None:
        """Raises RunError if the parameters of synchronous learners differ."""


class SingleLearner(Coordinator):
    """Coordinates a run of one learner."""

    rank, size, is_synchronous = 0, 1, False

    def __init__(self, steps: int = 0):
        self._steps = steps
        self._states: list[Any] | None = None

    def add_steps(self, num_steps: int) -> int:
        self._steps += num_steps
        return self._steps

    def submit_state(self, state: Any, last: bool) -> None:
        self._states = [state]

    def collect_states(self) -> list[Any] | None:
        states, self._states = self._states, None
        return states


def copy_to_cpu(state: Any) -> Any:
    """Returns the nested dicts, lists and tuples of state, with copies of all tensors on the CPU."""
    if isinstance(state, torch.Tensor):
        return state.detach().to("cpu", copy=True)
    if isinstance(state, dict):
        return type(state)((name, copy_to_cpu(value)) for name, value in state.items())
    if type(state) in (list, tuple):
        return type(state)(map(copy_to_cpu, state))
    return state
