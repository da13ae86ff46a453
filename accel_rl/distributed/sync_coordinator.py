"""Coordinates synchronous learners with torch.distributed: their steps, the stop, and the files that rank 0 writes."""

import contextlib
import os
import socket
import time
import zlib
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import TCPStore, distributed_c10d  # type: ignore[attr-defined]

from accel_rl.errors import RunError, UsageError, first_line
from accel_rl.hardware.limits import describe_exceeded_limit
from accel_rl.hardware.topology import loopback_interface
from accel_rl.training.coordinator import Coordinator, Request, copy_to_cpu
from accel_rl.training.log import logger
from accel_rl.updates.all_reduce import COLLECTIVES

RENDEZVOUS_TIMEOUT = timedelta(minutes=5)  # from the first learner's arrival to the last one's
NCCL_SPARE_S = 60.0  # NCCL's time-out ends the process and names no learner, so the roll call must come first


class SyncCoordinator(Coordinator):
    """A coordinator of synchronous learners, which all make the same calls in the same order."""

    is_synchronous = True

    def __init__(self, rank: int, size: int):
        self.rank, self.size, self.steps = rank, size, 0
        self._group = dist.new_group(backend="gloo", timeout=RENDEZVOUS_TIMEOUT)
        self._flag = torch.zeros(1, dtype=torch.int32)
        self._states: list[Any] | None = None
        self._seconds = 0.0

    def begin(self, steps: int, timeout_s: float, check: Callable[[], None] = lambda: None) -> None:
        """Sets steps and time-outs. steps: done by a resumed run; timeout_s: how long learners wait for a late one.

        check: called on rank 0 before a checkpoint is written; raises RunError if it must not be."""
        self.steps, self._check = steps, check
        try:
            for group in (None, self._group):  # None: the default group
                distributed_c10d._set_pg_timeout(timedelta(seconds=timeout_s), group)
            if "nccl" in dist.get_backend_config():
                backend = distributed_c10d._get_default_group()._get_backend(torch.device("cuda"))
                if not isinstance(backend, dist.ProcessGroupGloo):
                    backend._set_default_timeout(timedelta(seconds=timeout_s + NCCL_SPARE_S))
        except (AttributeError, TypeError):  # these functions are private and may change
            logger.warning(
                "learner_timeout_s=%g has no effect: this version of PyTorch cannot change the time-out of a process "
                "group",
                timeout_s,
            )

    def add_steps(self, num_steps: int) -> int:
        self.steps += num_steps * self.size
        return self.steps

    def agree_on(self, request: Request) -> Request:
        start = time.perf_counter()
        COLLECTIVES.value += 1
        self._flag[0] = request
        dist.all_reduce(self._flag, dist.ReduceOp.MAX, group=self._group)
        self._seconds += time.perf_counter() - start
        return Request(int(self._flag))

    def local_share(self, number: int) -> int:
        return number // self.size + (self.rank < number % self.size)

    def all_gather(self, value: Any) -> list[Any]:
        values = [None] * self.size
        COLLECTIVES.value += 1
        dist.all_gather_object(values, value, group=self._group)
        return values

    def send_report(self, value: Any, last: bool = False) -> list[Any]:
        return self._gather(value) or []

    def submit_state(self, state: Any, last: bool) -> None:
        self._states = self._gather(copy_to_cpu(state))

    def collect_states(self) -> list[Any] | None:
        states, self._states = self._states, None
        if states:
            self._check()
        return states

    def _gather(self, value: Any) -> list[Any] | None:
        values = [None] * self.size if self.rank == 0 else None
        COLLECTIVES.value += 1
        dist.gather_object(value, values, group=self._group)
        return values

    def read_seconds(self) -> dict[str, float]:
        seconds, self._seconds = self._seconds, 0.0
        return {"exchange": seconds}

    def check_parameters_agree(self, parameters: torch.Tensor) -> None:
        sums = self.all_gather(zlib.crc32(parameters.detach().cpu().numpy().tobytes()))
        different = [rank for rank, each in enumerate(sums) if each != sums[0]]
        if different:
            raise RunError(
                f"at step {self.steps} the parameters of learner {different[0]} differ from those of learner 0: they "
                "have not made the same updates (does the algorithm change parameters other than by `update`?)"
            )


@contextlib.contextmanager
def process_group(rank: int, size: int, port: int | None, offers_nccl: bool) -> Iterator[None]:
    """Joins the run's learners in torch.distributed's default group: Gloo, and NCCL for GPU tensors if offers_nccl.

    If PyTorch has NCCL, it connects at its first tensor; `AllReduce` decides whether it gets any. port: the port of the
    supervisor's store on this machine; None: torchrun's, from the environment. Raises UsageError if
    the learners cannot connect."""
    uses_nccl = offers_nccl and dist.is_nccl_available()
    if port and (loopback := loopback_interface()):  # the machine may have no other
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)
    backend = "cpu:gloo,cuda:nccl" if uses_nccl else "gloo"
    meeting: Any = {"store": connect(port, size), "rank": rank, "world_size": size} if port else {}
    try:
        dist.init_process_group(backend, timeout=RENDEZVOUS_TIMEOUT, **meeting)
    except (dist.DistError, RuntimeError) as error:
        if describe_exceeded_limit(error):
            raise
        raise UsageError(
            f"the learners cannot connect to each other: {first_line(error)}; has one of them failed, is the port in "
            "use, or does GLOO_SOCKET_IFNAME (NCCL_SOCKET_IFNAME) name another network than the one between them?"
        ) from None
    try:
        yield
    except BaseException:
        if not uses_nccl:  # NCCL would wait for learners that may be gone
            dist.destroy_process_group()
        raise
    dist.destroy_process_group()


def connect(port: int | None, size: int) -> TCPStore:
    """Opens another connection to the store where the learners meet. port: as for `process_group`."""
    host = "127.0.0.1" if port else os.environ["MASTER_ADDR"]
    return TCPStore(host, port or int(os.environ["MASTER_PORT"]), size, is_master=False, wait_for_workers=False)


def check_loopback() -> None:
    """Raises UsageError if processes on this machine cannot connect to each other; the store would retry for long."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), timeout=10).close()
    except OSError as error:
        raise UsageError(
            f"the learners cannot connect to each other at 127.0.0.1 ({error.strerror or error}): bring that interface "
            "up, as with `ip link set lo up`"
        ) from None
