"""What the learners of a run tell each other: how far the run is, when it stops, and what the first one writes down."""

import contextlib
import re
import time
import zlib
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from accel_rl.distributed.tensors import on_cpu
from accel_rl.errors import RunError, UsageError

MEETING = timedelta(minutes=5)  # for all learners to be there, from the first one on


class SyncCoordinator:
    """Learners in step, by torch.distributed: all make the same calls in the same order."""

    updates_together = True

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

    def local_share(self, number: int) -> int:
        return number // self.size + (self.rank < number % self.size)

    def all_gather(self, value: Any) -> list[Any]:
        values = [None] * self.size
        dist.all_gather_object(values, value, group=self._group)
        return values

    def send_report(self, value: Any, last: bool = False) -> list[Any]:
        return self._gather(value) or []

    def poll_reports(self) -> list[Any]:
        return []

    def submit_state(self, state: Any, last: bool) -> None:
        self._states = self._gather(on_cpu(state))

    def collect_states(self) -> list[Any] | None:
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
        sums = self.all_gather(zlib.crc32(parameters.detach().cpu().numpy().tobytes()))
        different = [rank for rank, each in enumerate(sums) if each != sums[0]]
        if different:
            raise RunError(
                f"at step {steps} the parameters of learner {different[0]} are not those of learner 0: they have not "
                "made the same updates (does the algorithm change parameters other than by `update`?)"
            )


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


def peer_failure_message(error: Exception) -> str | None:
    """If this is what a learner in step notices when another one is gone: in short, what that was."""
    if not isinstance(error, dist.DistError) and "gloo" not in str(error):
        return None
    said = re.sub(r"^\[\S+\] ", "", str(error).splitlines()[0])  # where in Gloo's source
    return said.split(". This is typically")[0]
