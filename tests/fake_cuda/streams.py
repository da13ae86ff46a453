"""Streams and events. A stream is a queue of work that runs as late as is legal, or in a random legal order.

A missing wait therefore shows as wrong numbers, since the work to wait for has not happened yet.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from tests.fake_cuda.machine import machine

if TYPE_CHECKING:
    from tests.fake_cuda.graphs import Capture

Work = Callable[[], object]


class Queue:
    """The work of one stream, in order. During a capture, new work goes onto the graph's tape instead."""

    def __init__(self, gpu: int, name: str):
        self.gpu, self.name = gpu, name
        self.pending: deque[Work] = deque()
        self.num_done = self.num_pushed = 0
        self.capture: Capture | None = None
        self._is_running = False
        machine().queues.append(self)

    def push(self, work: Work) -> None:
        if self.capture is not None:
            self.capture.tape.append(work)
            return
        self.pending.append(work)
        self.num_pushed += 1
        run_some()

    def run_to(self, position: int) -> None:
        """Runs the work up to this position, and all work that it waits for."""
        if self.num_done >= position:
            return
        if self._is_running:
            raise RuntimeError(f"{self.name} waits for itself")
        self._is_running = True
        try:
            with (
                _disable_current_modes(),
                torch.inference_mode(False),
                torch.no_grad(),
                torch.autocast("cpu", enabled=False),
            ):
                while self.num_done < position:
                    work = self.pending.popleft()
                    self.num_done += 1
                    work()
        finally:
            self._is_running = False

    def run_all(self) -> None:
        self.run_to(self.num_pushed)


def run_some() -> None:
    """Runs some of the work of a random stream, if the order is random."""
    order = machine().order
    # A collective blocks this process until the others run theirs, so it runs only where all of them wait for it.
    if order is None or machine().num_collectives or order.random() < 0.5:
        return
    queue = order.choice(machine().queues)
    if not any(each._is_running for each in machine().queues):
        queue.run_to(queue.num_done + order.randint(0, len(queue.pending)))


def wait(reason: str, *queues: Queue, implicit: bool = False) -> None:
    """Makes the host wait for some queues. Raises RuntimeError while capturing, or if implicit waits are errors."""
    now = machine()
    refuse_in_capture(reason)
    if implicit and now.sync_debug_mode == 2:
        raise RuntimeError("called a synchronizing CUDA operation")
    now.counts.syncs[reason] += 1
    for queue in queues:
        queue.run_all()


def refuse_in_capture(what: str) -> None:
    """Raises RuntimeError, and invalidates the capture, if this thread's calls are being captured."""
    if (capture := machine().capture) is not None and capture.thread in (None, threading.get_ident()):
        capture.is_valid = False
        raise RuntimeError(f"CUDA error: operation not permitted when stream is capturing ({what})")


def current_queue(gpu: int | None = None) -> Queue:
    now = machine()
    return now.gpus[now.device if gpu is None else gpu].current


class Stream:
    """torch.cuda.Stream."""

    def __init__(self, device: Any = None, priority: int = 0, *, queue: Queue | None = None):
        gpu = gpu_index(device)
        self.queue = queue or Queue(gpu, f"stream {len(machine().queues)} of cuda:{gpu}")
        self.device = torch.device("cuda", self.queue.gpu)

    def wait_stream(self, other: Stream) -> None:
        self.wait_event(other.record_event())

    def wait_event(self, event: Event) -> None:
        if event.at is None:
            return
        queue, position, me = *event.at, self.queue
        if (me.capture is None) != (queue.capture is None):
            capture = me.capture or queue.capture
            assert capture
            capture.is_valid = False
            raise RuntimeError("CUDA error: dependency created on uncaptured work in another stream")
        if me.capture is not None and queue is not me:
            raise NotImplementedError("graphs of several streams")
        if queue is not me:
            me.push(lambda: queue.run_to(position))

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event

    def synchronize(self) -> None:
        wait("stream", self.queue)

    def query(self) -> bool:
        refuse_in_capture("query")
        return not self.queue.pending

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.queue is self.queue

    def __hash__(self) -> int:
        return id(self.queue)


QUERIES_UNTIL_DONE = 3


class Event:
    """torch.cuda.Event."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False):
        if interprocess:
            raise NotImplementedError("events of several processes")
        self.has_timing, self.num_queries = enable_timing, 0
        self.at: tuple[Queue, int] | None = None

    def record(self, stream: Stream | None = None) -> None:
        queue = stream.queue if stream else current_queue()
        if queue.capture is not None and self.has_timing:
            raise RuntimeError("CUDA error: a timing event cannot be recorded while capturing")
        self.at = (queue, queue.num_pushed)

    def wait(self, stream: Stream | None = None) -> None:
        (stream or current_stream()).wait_event(self)

    def synchronize(self) -> None:
        refuse_in_capture("event")
        machine().counts.syncs["event"] += 1
        if self.at:
            self.at[0].run_to(self.at[1])

    def query(self) -> bool:
        """Lets time pass, too, so repeated queries finally find the work done."""
        refuse_in_capture("query")
        if self.at is None or self.at[0].num_done >= self.at[1]:
            return True
        self.num_queries += 1
        if self.num_queries % QUERIES_UNTIL_DONE == 0:
            self.at[0].run_to(self.at[1])
        return False

    def elapsed_time(self, end: Event) -> float:
        """Returns a time [ms] that grows with the work in between."""
        if not (self.has_timing and end.has_timing and self.at and end.at):
            raise RuntimeError("both events must be recorded, with enable_timing=True")
        if not (self.query() and end.query()):
            raise RuntimeError("CUDA error: device not ready")
        return 0.01 * (1 + max(0, end.at[1] - self.at[1]))


class stream:  # noqa: N801
    """Replaces torch.cuda.stream: makes a stream and its device the current ones."""

    def __init__(self, stream: Stream | None):
        self.stream = stream

    def __enter__(self) -> None:
        if self.stream is None:
            return
        now, queue = machine(), self.stream.queue
        self._before = (now.device, now.gpus[queue.gpu].current)
        now.device, now.gpus[queue.gpu].current = queue.gpu, queue

    def __exit__(self, *_: object) -> None:
        if self.stream is None:
            return
        now, queue = machine(), self.stream.queue
        now.device, now.gpus[queue.gpu].current = self._before


def current_stream(device: Any = None) -> Stream:
    return Stream(queue=current_queue(gpu_index(device)))


def default_stream(device: Any = None) -> Stream:
    return Stream(queue=machine().gpus[gpu_index(device)].default)


def synchronize(device: Any = None) -> None:
    gpu = gpu_index(device)
    wait("device", *(queue for queue in machine().queues if queue.gpu == gpu))


def gpu_index(device: Any) -> int:
    """Returns a GPU's number. Raises RuntimeError for a GPU that does not exist."""
    now = machine()
    if device is None:
        return now.device
    if not isinstance(device, int):
        device = torch.device(device)
        if device.type != "cuda":
            raise ValueError(f"Expected a cuda device, but got: {device}")
        device = now.device if device.index is None else device.index
    if not 0 <= device < now.num_gpus:
        raise RuntimeError("CUDA error: invalid device ordinal")
    return int(device)
