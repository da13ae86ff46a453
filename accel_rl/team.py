"""What the learners of a run tell each other: how far the run is, when it stops, and what the first one writes down."""

import contextlib
import pickle
import threading
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from accel_rl.errors import RunError, UsageError
from accel_rl.shared import Layout, SharedArrays

PATIENCE = timedelta(minutes=30)  # with learners that write a checkpoint or a replay
LAST = 2**62  # the number of a learner's last state


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
        """For rank 0: what learners have reported since it asked last; all of it if this is the last time."""

    def offer(self, number: int, state: Any) -> None:
        """This learner's state, for a checkpoint with that number; numbers rise, the last one is LAST."""

    def offered(self) -> list[Any] | None:
        """For rank 0: all states for the checkpoint that it has offered its own for; None if they are not all there,
        or have been given already. Waits for those of the last one."""

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

    def offer(self, number: int, state: Any) -> None:
        self._states = [state]

    def offered(self) -> list[Any] | None:
        states, self._states = self._states, None
        return states

    def compare(self, parameters: torch.Tensor, steps: int) -> None:
        pass


class Together:
    """Learners in step, by torch.distributed: all make the same calls in the same order."""

    def __init__(self, rank: int, size: int):
        self.rank, self.size, self._steps = rank, size, 0
        self._group = dist.new_group(backend="gloo", timeout=PATIENCE)
        self._flag = torch.zeros(1, dtype=torch.int32)
        self._states: list[Any] | None = None

    def begin(self, steps: int) -> None:
        """Of a run that is resumed, the steps that it has behind it."""
        self._steps = steps

    def advance(self, num_steps: int) -> int:
        self._steps += num_steps * self.size
        return self._steps

    def stops(self, wish: bool) -> bool:
        self._flag[0] = wish
        dist.all_reduce(self._flag, dist.ReduceOp.MAX, group=self._group)
        return bool(self._flag)

    def part_of(self, number: int) -> int:
        return number // self.size + (self.rank < number % self.size)

    def share(self, value: Any) -> list[Any]:
        values = [None] * self.size
        dist.all_gather_object(values, value, group=self._group)
        return values

    def report(self, value: Any, last: bool = False) -> list[Any]:
        return self._gather(value) or []

    def offer(self, number: int, state: Any) -> None:
        self._states = self._gather(state)

    def offered(self) -> list[Any] | None:
        states, self._states = self._states, None
        return states

    def _gather(self, value: Any) -> list[Any] | None:
        values = [None] * self.size if self.rank == 0 else None
        dist.gather_object(value, values, group=self._group)
        return values

    def compare(self, parameters: torch.Tensor, steps: int) -> None:
        sums = self.share(zlib.crc32(parameters.detach().cpu().numpy().tobytes()))
        different = [rank for rank, each in enumerate(sums) if each != sums[0]]
        if different:
            raise RunError(
                f"at step {steps} the parameters of learner {different[0]} are not those of learner 0: they have not "
                "made the same updates (does the algorithm change parameters other than by `update`?)"
            )


class Apart:
    """Learners that go on by themselves and share parameters; rank 0 reads what others send to it, meanwhile.

    to_first: this learner's connection to rank 0; from_others: rank 0's, by rank."""

    def __init__(
        self,
        rank: int,
        size: int,
        control: "Control",
        to_first: "Connection[Any, Any] | None" = None,
        from_others: "dict[int, Connection[Any, Any]] | None" = None,
    ):
        self.rank, self.size, self.control = rank, size, control
        self._to_first = to_first
        self._inbox = _Inbox(from_others or {})
        self._own: tuple[int, Any] | None = None

    def advance(self, num_steps: int) -> int:
        return self.control.count(self.rank, num_steps)

    def stops(self, wish: bool) -> bool:
        return wish  # each for itself

    def part_of(self, number: int) -> int:
        return number if self.rank == 0 else 0

    def share(self, value: Any) -> list[Any]:
        return [value]

    def report(self, value: Any, last: bool = False) -> list[Any]:
        if self._to_first:
            self._send("report", (last, value))
            return []
        return [value, *self._inbox.take_reports(last)]

    def offer(self, number: int, state: Any) -> None:
        if self._to_first:
            self._send("state", (number, state))
        else:
            self._own = (number, state)

    def offered(self) -> list[Any] | None:
        if self._own is None:
            return None
        number, own = self._own
        others = self._inbox.states(number, wait_for_all=number == LAST)
        if others is None:
            return None
        self._own = None
        return [own, *others]

    def compare(self, parameters: torch.Tensor, steps: int) -> None:
        pass

    def _send(self, kind: str, content: Any) -> None:
        assert self._to_first
        # Not by `send`: torch would put tensors into shared memory for it.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # its end is the launching process's business
            self._to_first.send_bytes(pickle.dumps((kind, content)))


@dataclass
class _Inbox:
    """What others have sent to rank 0, read by a thread of its own: nobody waits to be rid of it."""

    connections: "dict[int, Connection[Any, Any]]"
    _reports: list[Any] = field(default_factory=list)
    _states: dict[int, tuple[int, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._open = dict(self.connections)
        self._unfinished = set(self.connections)  # those whose last report is not here
        self._news = threading.Condition()
        if self.connections:
            threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        ranks = {connection: rank for rank, connection in self.connections.items()}
        while self._open:
            for connection in wait(list(self._open.values())):
                rank = ranks[connection]  # type: ignore[index]
                try:
                    kind, content = pickle.loads(self.connections[rank].recv_bytes())
                except (EOFError, OSError):
                    kind, content = "end", None
                with self._news:
                    if kind == "report":
                        last, value = content
                        self._reports.append(value)
                        if last:
                            self._unfinished.discard(rank)
                    elif kind == "state":
                        self._states[rank] = content
                    else:
                        del self._open[rank]
                        self._unfinished.discard(rank)
                    self._news.notify_all()

    def take_reports(self, wait_for_all: bool) -> list[Any]:
        with self._news:
            if wait_for_all:
                self._news.wait_for(lambda: not self._unfinished)
            reports, self._reports = self._reports, []
        return reports

    def states(self, number: int, wait_for_all: bool) -> list[Any] | None:
        """The others' states with that number or a higher one, by rank; None if they are not all there."""
        with self._news:
            if wait_for_all:
                self._news.wait_for(lambda: self._have(number) or not self._open)
            return [self._states[rank][1] for rank in sorted(self._states)] if self._have(number) else None

    def _have(self, number: int) -> bool:
        return all(rank in self._states and self._states[rank][0] >= number for rank in self.connections)


class Control:
    """What the launching process and its learners share: agent steps done by each learner, whether all are there, and
    the wish to stop."""

    def __init__(self, num_learners: int, fd: int | None = None):
        layout: Layout = {"steps": ((num_learners,), "<i8"), "go": ((1,), "<i8"), "stop": ((1,), "<i8")}
        self.memory = SharedArrays(layout, fd)
        arrays = self.memory.arrays
        self._steps, self._go, self._stop = arrays["steps"], arrays["go"], arrays["stop"]

    def begin(self, steps: int) -> None:
        """Of a run that is resumed, the steps that it has behind it."""
        self._steps[0] = steps

    def count(self, rank: int, num_steps: int) -> int:
        """Each learner counts its own, so that none waits for another; returns the sum."""
        self._steps[rank] += num_steps
        return int(self._steps.sum())

    def go(self) -> None:
        self._go[0] = 1

    def wait_for_go(self) -> None:
        while not self._go[0]:
            time.sleep(0.002)

    @property
    def stop(self) -> bool:
        return bool(self._stop[0])

    def ask_to_stop(self) -> None:
        self._stop[0] = 1


@contextlib.contextmanager
def process_group(rank: int, size: int, port: int | None, uses_gpus: bool) -> Iterator[None]:
    """Meanwhile torch.distributed's default group is that of the run's learners: NCCL for GPUs, Gloo for the rest.

    port: of the store that the launching process has opened on this machine; None: what the environment names
    (torchrun). Raises UsageError if NCCL is missing or the port is in use."""
    if uses_gpus and not dist.is_nccl_available():
        raise UsageError(
            "update=all_reduce on GPUs needs NCCL, which this build of PyTorch does not have; use --update "
            "central_store, or CPU learners"
        )
    store = port and TCPStore("127.0.0.1", port, size, is_master=False, wait_for_workers=False)
    backend = "cpu:gloo,cuda:nccl" if uses_gpus else "gloo"
    try:
        if not store:
            dist.init_process_group(backend, timeout=PATIENCE)
        else:
            dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=PATIENCE)
    except dist.DistNetworkError as error:
        raise UsageError(f"the learners can't meet: {str(error).splitlines()[0]}; is the port in use?") from None
    yield
    dist.destroy_process_group()  # not after a failure: another learner may be gone
