"""Updates as CUDA graphs: some hundred launches of kernels become one."""

import logging
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor

logger = logging.getLogger("accel_rl")

WARM_UP = 2  # calls that run operation by operation, before one is captured
MOST_KINDS = 32  # of calls; each keeps memory of its own on the GPU

Loss = Callable[..., tuple[Tensor, dict[str, Tensor]]]
"""loss(**batch): its sum over the valid samples; and terms, detached: such sums to log, or an entry for each sample."""

Body = Callable[[Loss, dict[str, Tensor], Tensor, Tensor], dict[str, Tensor]]
"""body(loss, batch, weight, learning_rate) -> tensors by name. It enqueues the same work at each call."""


class CudaGraphs:
    """Calls of `body`; per loss, shapes and types, the third and all later ones are replays of one CUDA graph.

    A body that can't be captured (its loss looks at values) goes on operation by operation, after a warning; so does
    one that gets ever new losses or shapes. On the CPU, where it serves for tests, a replay calls the body again on
    the buffers that a graph would read; all else is the same.
    """

    def __init__(self, body: Body, device: torch.device):
        self.body, self.device = body, device
        self.is_on = True
        self._kinds: dict[Hashable, _Kind] = {}

    def __call__(self, loss: Loss, batch: dict[str, Tensor], weight: Tensor, learning_rate: float) -> dict[str, Tensor]:
        """What the body returns, in tensors that later calls leave alone."""
        if self.is_on:
            kind = self._kind(loss, batch, weight)
            if kind is not None:
                kind.fill(batch, weight, learning_rate)
                if kind.num_calls == WARM_UP:
                    self._capture(kind)
                if self.is_on:
                    return kind.run()
        rate = torch.full((), learning_rate, dtype=torch.float64, device=self.device)
        return self.body(loss, batch, weight, rate)

    def forget(self) -> None:
        """Call it when a tensor that the body has used lies elsewhere now."""
        self._kinds.clear()

    def _kind(self, loss: Loss, batch: dict[str, Tensor], weight: Tensor) -> "_Kind | None":
        shapes = tuple((name, value.shape, value.dtype) for name, value in batch.items())
        key = (loss, shapes, weight.dtype)
        if key not in self._kinds:
            if len(self._kinds) == MOST_KINDS:
                self._give_up(f"there were {MOST_KINDS} different losses or shapes of batches")
                return None
            self._kinds[key] = _Kind(self.body, loss, batch, weight, self.device)
        return self._kinds[key]

    def _capture(self, kind: "_Kind") -> None:
        try:
            kind.capture()
        except RuntimeError as error:  # a network of the user's that looks at values, for example
            self._give_up(str(error))

    def _give_up(self, why: str) -> None:
        logger.warning("the update can't be captured as a CUDA graph and runs without one: %s", why)
        self.is_on = False
        self._kinds.clear()


class _Kind:
    """The calls with one loss and one set of shapes: their buffers, and the graph that reads them."""

    def __init__(self, body: Body, loss: Loss, batch: dict[str, Tensor], weight: Tensor, device: torch.device):
        self.num_calls = 0
        self._body, self._loss = body, loss
        self._batch = {
            name: torch.empty(value.shape, dtype=value.dtype, device=device) for name, value in batch.items()
        }
        self._weight = torch.empty(weight.shape, dtype=weight.dtype, device=device)
        self._learning_rate = torch.empty((), dtype=torch.float64, device=device)
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._graph: Any = None
        self._names: list[str] = []
        self._values: Tensor | None = None  # where the graph leaves its results that are numbers
        self._arrays: dict[str, Tensor] = {}  # and the others

    def fill(self, batch: dict[str, Tensor], weight: Tensor, learning_rate: float) -> None:
        for name, value in batch.items():
            _copy(self._batch[name], value)
        _copy(self._weight, weight)
        self._learning_rate.fill_(learning_rate)

    def run(self) -> dict[str, Tensor]:
        self.num_calls += 1
        if self._graph:
            self._graph.replay()
        elif self._stream:
            # Not on the default stream, as PyTorch asks for what is to be captured.
            current = torch.cuda.current_stream(self._stream.device)
            self._stream.wait_stream(current)
            with torch.cuda.stream(self._stream):
                self._call()
            current.wait_stream(self._stream)
        else:
            self._call()
        assert self._values is not None
        numbers = dict(zip(self._names, self._values.clone().unbind(), strict=True))
        return numbers | {name: value.clone() for name, value in self._arrays.items()}

    def capture(self) -> None:
        if self._stream:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=self._stream):
                self._call()
            self._graph = graph

    def _call(self) -> None:
        results = self._body(self._loss, self._batch, self._weight, self._learning_rate)
        numbers = {name: value for name, value in results.items() if value.dim() == 0}
        self._names, self._values = list(numbers), _stacked(list(numbers.values()))
        self._arrays = {name: value for name, value in results.items() if value.dim()}


def _copy(buffer: Tensor, value: Tensor) -> None:
    """Without waiting for the GPU."""
    if value.dim() == 0 and value.device.type == "cpu":
        buffer.fill_(value.item())
    else:
        buffer.copy_(value, non_blocking=True)


def _stacked(numbers: list[Tensor]) -> Tensor:
    return torch.stack([number.float() for number in numbers]) if numbers else torch.empty(0)
