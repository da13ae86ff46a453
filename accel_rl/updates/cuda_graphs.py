"""Updates as CUDA graphs: one launch in place of about a hundred."""

import logging
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor

from accel_rl.updates.trees import leaves, map_leaves

logger = logging.getLogger("accel_rl")

NUM_WARM_UP_CALLS = 2  # run operation by operation before a call is captured
MAX_GRAPHED_CALLS = 32  # each keeps memory of its own on the GPU

Loss = Callable[..., tuple[Tensor, dict[str, Tensor]]]
"""loss(*batch) -> the sum of the loss over the valid samples, and its terms, detached: sums to log [], or an entry for
each sample [N, ...]."""

Terms = dict[str, Tensor]

Body = Callable[[Loss, tuple[Any, ...], Tensor, Tensor], Terms]
"""body(loss, batch, num_samples, learning_rate) -> tensors by name. It enqueues the same work at each call."""


class CudaGraphs:
    """Calls `body`; the third and all later calls with one loss, shapes and dtypes replay one CUDA graph.

    A body that cannot be captured (its loss reads values) keeps running operation by operation, after a warning; so
    does one that keeps getting new losses or shapes. On a CPU, where tests use it, a replay calls the body again on the
    buffers that a graph would read; everything else is the same.
    """

    def __init__(self, body: Body, device: torch.device):
        self.body, self.device = body, device
        self.is_enabled = True
        self._calls: dict[Hashable, GraphedCall] = {}

    def __call__(self, loss: Loss, batch: tuple[Any, ...], num_samples: Tensor, learning_rate: float) -> Terms:
        """Returns what the body returns, in tensors that later calls leave alone."""
        if self.is_enabled:
            call = self._find_call(loss, batch, num_samples)
            if call is not None:
                call.fill(batch, num_samples, learning_rate)
                if call.num_runs == NUM_WARM_UP_CALLS:
                    self._capture(call)
                if self.is_enabled:
                    return call.run()
        rate = torch.full((), learning_rate, dtype=torch.float64, device=self.device)
        return self.body(loss, batch, num_samples, rate)

    def forget(self) -> None:
        """Drops all graphs. Call it after replacing a tensor that the body uses."""
        self._calls.clear()

    def _find_call(self, loss: Loss, batch: tuple[Any, ...], num_samples: Tensor) -> "GraphedCall | None":
        key = (loss, tuple((leaf.shape, leaf.dtype) for leaf in leaves(batch)), num_samples.dtype)
        if key not in self._calls:
            if len(self._calls) == MAX_GRAPHED_CALLS:
                self._disable(f"there were {MAX_GRAPHED_CALLS} different losses or shapes of batches")
                return None
            self._calls[key] = GraphedCall(self.body, loss, batch, num_samples, self.device)
        return self._calls[key]

    def _capture(self, call: "GraphedCall") -> None:
        try:
            call.capture()
        except RuntimeError as error:  # for example, a user's network that reads values
            self._disable(str(error))

    def _disable(self, reason: str) -> None:
        logger.warning("the update cannot be captured as a CUDA graph and runs without one: %s", reason)
        self.is_enabled = False
        self._calls.clear()


class GraphedCall:
    """Holds the calls with one loss and one set of shapes: their buffers, and the graph that reads them."""

    def __init__(self, body: Body, loss: Loss, batch: tuple[Any, ...], num_samples: Tensor, device: torch.device):
        self.num_runs = 0
        self._body, self._loss = body, loss
        self._batch = map_leaves(lambda leaf: torch.empty(leaf.shape, dtype=leaf.dtype, device=device), batch)
        self._num_samples = torch.empty(num_samples.shape, dtype=num_samples.dtype, device=device)
        self._learning_rate = torch.empty((), dtype=torch.float64, device=device)
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._graph: Any = None
        self._names: list[str] = []
        self._scalars: Tensor | None = None  # where the graph leaves its 0-d results
        self._arrays: Terms = {}  # and the others

    def fill(self, batch: tuple[Any, ...], num_samples: Tensor, learning_rate: float) -> None:
        """Copies the arguments of the next run into the buffers."""
        for buffer, value in zip(leaves(self._batch), leaves(batch), strict=True):
            _copy(buffer, value)
        _copy(self._num_samples, num_samples)
        self._learning_rate.fill_(learning_rate)

    def run(self) -> Terms:
        self.num_runs += 1
        if self._graph:
            self._graph.replay()
        elif self._stream:
            # PyTorch asks for warm-up on a stream other than the default one.
            current = torch.cuda.current_stream(self._stream.device)
            self._stream.wait_stream(current)
            with torch.cuda.stream(self._stream):
                self._call()
            current.wait_stream(self._stream)
        else:
            self._call()
        assert self._scalars is not None
        scalars = dict(zip(self._names, self._scalars.clone().unbind(), strict=True))
        return scalars | {name: value.clone() for name, value in self._arrays.items()}

    def capture(self) -> None:
        if self._stream:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=self._stream):
                self._call()
            self._graph = graph

    def _call(self) -> None:
        results = self._body(self._loss, self._batch, self._num_samples, self._learning_rate)
        scalars = {name: value for name, value in results.items() if value.dim() == 0}
        self._names, self._scalars = list(scalars), _stack(list(scalars.values()))
        self._arrays = {name: value for name, value in results.items() if value.dim()}


def _copy(buffer: Tensor, value: Tensor) -> None:
    """Copies without waiting for the GPU."""
    if value.dim() == 0 and value.device.type == "cpu":
        buffer.fill_(value.item())
    else:
        buffer.copy_(value, non_blocking=True)


def _stack(scalars: list[Tensor]) -> Tensor:
    return torch.stack([scalar.float() for scalar in scalars]) if scalars else torch.empty(0)
