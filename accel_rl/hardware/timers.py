"""Time that a device spends on its work, without waiting for it."""

import time
from typing import Any

import torch


class GpuClock:
    """Seconds that a GPU has spent on what was enqueued under `with clock:`; on the CPU, seconds."""

    def __init__(self, device: torch.device):
        self._device, self._seconds = device, 0.0
        self._events: list[tuple[Any, Any]] = []

    def __enter__(self) -> None:
        self._start = self._mark()

    def __exit__(self, *_: object) -> None:
        self._events.append((self._start, self._mark()))

    def _mark(self) -> Any:
        if self._device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def read(self) -> float:
        """Since the last reading. Waits for the GPU."""
        seconds = sum(_between(start, end) for start, end in self._events)
        self._events = []
        return seconds


def _between(start: Any, end: Any) -> float:
    if isinstance(start, float):
        return float(end - start)
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3
