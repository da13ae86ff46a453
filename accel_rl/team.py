"""What the learners of a run tell each other: how far the run is, when it stops, and what the first one writes down."""

import contextlib
import re
import time
import zlib
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from accel_rl.errors import RunError, UsageError

MEETING = timedelta(minutes=5)  # for all learners to be there, from the first one on


class Team(Protocol):
    """Rank 0 is the one that logs and writes checkpoints."""

    rank: int
    size: int

    def advance(self, num_steps: int) -> int:
        """This learner has done num_steps more agent steps (0: it only asks); returns those of the whole run."""

    def stops(self, wish: bool) -> bool:
        """Whether the run is to stop now, if this learner wishes so."""

    def part_of(self, number: int) -> int:
        """How much this learner does of something that `share` brings together."""

    def share(self, value: Any) -> list[Any]:
        """The value of each learner that does a part."""

    def report(self, value: Any, last: bool = False) -> list[Any]:
        """For rank 0: what learners have reported since it asked last. The last time it waits for what others report
        last."""

    def arrived(self) -> list[Any]:
        """For rank 0: what others have reported since then, without waiting and without its own."""

    def offer(self, state: Any, last: bool) -> None:
        """This learner's state, for the next checkpoint; last: it does nothing more after that."""

    def offered(self) -> list[Any] | None:
        """For rank 0: the states of all learners by rank, once all have offered one since it was last given them, and
        it has, too; else None. Waits for the others' last ones if its own is the last."""

    def read_seconds(self) -> dict[str, float]:
        """Wall time that `stops` has taken since the last reading, since it waits for others."""

    def compare(self, parameters: torch.Tensor, steps: int) -> None:
        """Raises RunError if learners that should have the same parameters have not."""


class Alone:
    """One learner."""

    rank, size = 0, 1

    def __init__(self, steps: int = 0):
        self._steps = steps
        self._states: list[Any] | None = None

    def advance(self, num_steps: int) -> int:
        self._steps += num_steps
        return self._steps

    def stops(self, wish: bool) -> bool:
        return wish

    def part_of(self, number: int) -> int:
        return number

    def share(self, value: Any) -> list[Any]:
        return [value]

    def report(self, value: Any, last: bool = False) -> list[Any]:
        return [value]

    def arrived(self) -> list[Any]:
        return []

    def offer(self, state: Any, last: bool) -> None:
        self._states = [state]

    def offered(self) -> list[Any] | None:
        states, self._states = self._states, None
        return states

    def read_seconds(self) -> dict[str, float]:
        return {}

    def compare(self, parameters: torch.Tensor, steps: int) -> None:
        pass


class Together:
    """Learners in step, by torch.distributed: all make the same calls in the same order."""

    def __init__(self, rank: int, size: int):
        self.rank, self.size, self.steps = rank, size, 0
        self._group = dist.new_group(backend="gloo", timeout=MEETING)
        self._flag = torch.zeros(1, dtype=torch.int32)
        self._states: list[Any] | None = None
        self._seconds = 0.0
        self._check: Callable[[], None] = lambda: None

    def begin(self, steps: int, timeout_s: float, check: Callable[[], None] | None = None) -> None:
        """steps: that a resumed run has behind it; timeout_s: how long learners wait for one that does not come.

        check: before rank 0 writes a checkpoint; raises RunError if it must not."""
        self.steps = steps
        for group in (None, self._group):
            dist.distributed_c10d._set_pg_timeout(timedelta(seconds=timeout_s), group)
        if check:
            self._check = check

    def advance(self, num_steps: int) -> int:
        self.steps += num_steps * self.size
        return self.steps

    def stops(self, wish: bool) -> bool:
        start = time.perf_counter()
        self._flag[0] = wish
        dist.all_reduce(self._flag, dist.ReduceOp.MAX, group=self._group)
        self._seconds += time.perf_counter() - start
        return bool(self._flag)

    def part_of(self, number: int) -> int:
        return number // self.size + (self.rank < number % self.size)

    def share(self, value: Any) -> list[Any]:
        values = [None] * self.size
        dist.all_gather_object(values, value, group=self._group)
        return values

    def report(self, value: Any, last: bool = False) -> list[Any]:
        return self._gather(value) or []

    def arrived(self) -> list[Any]:
        return []

    def offer(self, state: Any, last: bool) -> None:
        self._states = self._gather(on_cpu(state))

    def offered(self) -> list[Any] | None:
        states, self._states = self._states, None
        if states:
            self._check()
        return states

    def _gather(self, value: Any) -> list[Any] | None:
        values = [None] * self.size if self.rank == 0 else None
        dist.gather_object(value, values, group=self._group)
        return values

    def read_seconds(self) -> dict[str, float]:
        seconds, self._seconds = self._seconds, 0.0
        return {"exchange": seconds}

    def compare(self, parameters: torch.Tensor, steps: int) -> None:
        sums = self.share(zlib.crc32(parameters.detach().cpu().numpy().tobytes()))
        different = [rank for rank, each in enumerate(sums) if each != sums[0]]
        if different:
            raise RunError(
                f"at step {steps} the parameters of learner {different[0]} are not those of learner 0: they have not "
                "made the same updates (does the algorithm change parameters other than by `update`?)"
            )


def on_cpu(state: Any) -> Any:
    """The same with copies of all tensors, on the CPU: for another process, or for later."""
    if isinstance(state, torch.Tensor):
        return state.detach().to("cpu", copy=True)
    if isinstance(state, dict):
        return type(state)((name, on_cpu(value)) for name, value in state.items())
    if type(state) in (list, tuple):
        return type(state)(map(on_cpu, state))
    return state


@contextlib.contextmanager
def process_group(rank: int, size: int, port: int | None, by_nccl: bool) -> Iterator[None]:
    """Meanwhile torch.distributed's default group is that of the run's learners: NCCL for GPUs, Gloo for the rest.

    port: of the store that the launching process has opened on this machine; None: what the environment names
    (torchrun). Raises UsageError if NCCL is missing or the port is in use."""
    if by_nccl and not dist.is_nccl_available():
        raise UsageError(
            "update=all_reduce on GPUs needs NCCL, which this build of PyTorch does not have; use --update "
            "central_store, or CPU learners"
        )
    store = port and TCPStore("127.0.0.1", port, size, is_master=False, wait_for_workers=False)
    backend = "cpu:gloo,cuda:nccl" if by_nccl else "gloo"
    try:
        if not store:
            dist.init_process_group(backend, timeout=MEETING)
        else:
            dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=MEETING)
    except (dist.DistError, RuntimeError) as error:
        raise UsageError(
            f"the learners can't meet: {str(error).splitlines()[0]}; has one of them failed, is the port in use, or is "
            "GLOO_SOCKET_IFNAME (NCCL_SOCKET_IFNAME) not the network between them?"
        ) from None
    try:
        yield
    except BaseException:
        if not by_nccl:  # NCCL would wait for learners that may be gone
            dist.destroy_process_group()
        raise
    dist.destroy_process_group()


def what_is_lost(error: Exception) -> str | None:
    """If this is what a learner in step notices when another one is gone: in short, what that was."""
    if not isinstance(error, dist.DistError) and "gloo" not in str(error):
        return None
    said = re.sub(r"^\[\S+\] ", "", str(error).splitlines()[0])  # where in Gloo's source
    return said.split(". This is typically")[0]
