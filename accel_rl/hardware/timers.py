"""Measures a device's working time without waiting for it."""

import time
from typing import Any

import torch


class DeviceTimer:
    """A timer that adds up a GPU's seconds for work enqueued within `with timer:`; on the CPU, the wall time."""

    def __init__(self, device: torch.device):
        self._device = device
        self._events: list[tuple[Any, Any]] = []
        self._spare: list[Any] = []  # events to reuse: making one takes longer than recording it

    def __enter__(self) -> None:
        self._start = self._mark()

    def __exit__(self, *_: object) -> None:
        self._events.append((self._start, self._mark()))

    def _mark(self) -> Any:
        if self._device.type != "cuda":
            return time.perf_counter()
        event: Any = self._spare.pop() if self._spare else torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def read(self) -> float:
        """Returns the seconds added up since the last call. Waits for the GPU."""
        events, self._events = self._events, []
        if self._device.type != "cuda":
            return float(sum(end - start for start, end in events))
        for _, end in events:
            end.synchronize()
        self._spare += [event for pair in events for event in pair]
        return float(sum(start.elapsed_time(end) for start, end in events)) / 1e3
