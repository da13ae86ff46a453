"""Runs work as CUDA graphs: one launch instead of about a hundred."""

import logging
import operator
import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from accel_rl.hardware.capture import CaptureError, capture, fixed_shapes
from accel_rl.updates.foreach import copy_tensors
from accel_rl.updates.trees import dtype_of, leaves, map_leaves, structure, to_device

logger = logging.getLogger("accel_rl")

NUM_WARM_UP_CALLS = 2  # run operation by operation before a call is captured
MAX_DELAYED_CALLS = 1000  # also run this way while an argument comes from a function that is not captured yet
MAX_GRAPHED_CALLS = 32  # each keeps its own memory on the GPU
MAX_GRAPHS_PER_CALL = 4  # graphs that read other graphs' results in place; further ones copy them

Work = Callable[..., Any]
"""work(*arguments) -> a tree of tensors. It enqueues the same operations at each call."""


class CudaGraphs:
    """A cache of CUDA graphs: from the third call on, calls of a function with arguments of one structure and shape
    replay one graph.

    Arguments are copied into the memory that the graph reads, numbers only if they differ from the last call's.
    Results stay at the same addresses: the next call of the function overwrites them. Other functions read them in
    place when they receive them as arguments.

    A function that cannot be captured (it reads values) keeps running operation by operation, after a warning; so do
    all functions if there are too many functions or shapes. On a CPU, where tests use this class, a replay calls the
    function again on the graph's buffers; everything else is the same.
    """

    def __init__(self, device: torch.device):
        self.device = device
        self.is_enabled = True
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._calls: dict[Hashable, _Calls] = {}
        self._results: dict[int, tuple[Tensor, _Calls]] = {}  # results of graphs, by id (unique among alive tensors)
        self._not_capturable: set[Hashable] = set()

    def __call__(self, key: Hashable, work: Work, arguments: tuple[Any, ...], uses: Sequence[Tensor] = ()) -> Any:
        """Returns work(*arguments).

        key: the same if and only if work does the same. uses: other tensors that work reads and that may be replaced;
        then all graphs are dropped."""
        calls = self._find_calls(key, arguments, uses)
        if calls is None:
            return work(*to_device(arguments, self.device))
        inputs = leaves(arguments)
        if calls.num_warm_ups < NUM_WARM_UP_CALLS or self._is_delayed(calls, inputs):
            calls.num_warm_ups += 1
            results = self._warm_up(work, arguments)
            calls.warm_up_results = {id(leaf): weakref.ref(leaf) for leaf in leaves(results)}
            return results
        # A graph could overwrite its own results before it has read them, so it copies these.
        in_place = tuple(
            id(leaf) if self._results.get(id(leaf), (leaf, calls))[1] is not calls else None for leaf in inputs
        )
        if in_place not in calls.graphs and len(calls.graphs) >= MAX_GRAPHS_PER_CALL - 1:
            in_place = (None,) * len(inputs)
        known = calls.graphs.get(in_place)
        call = known or GraphedCall(work, arguments, [place is not None for place in in_place], self.device)
        call.fill(inputs)
        if not known and not self._capture(key, call):
            return work(*to_device(arguments, self.device))
        calls.graphs[in_place] = call
        results = call.run()
        if not known:
            for leaf in leaves(results):
                self._results.setdefault(id(leaf), (leaf, calls))  # another graph's result may be passed on
        return results

    def forget(self) -> None:
        """Drops all graphs. Call it after replacing a tensor that a function uses."""
        self._calls.clear()
        self._results.clear()

    def _find_calls(self, key: Hashable, arguments: tuple[Any, ...], uses: Sequence[Tensor]) -> "_Calls | None":
        if not self.is_enabled or key in self._not_capturable:
            return None
        whole_key = (key, structure(arguments))
        calls = self._calls.get(whole_key)
        if calls and not (len(uses) == len(calls.uses) and all(map(operator.is_, uses, calls.uses))):
            self.forget()
            calls = None
        if calls is None:
            if len(self._calls) == MAX_GRAPHED_CALLS:
                self._disable(f"there were {MAX_GRAPHED_CALLS} different losses, functions or shapes of batches")
                return None
            calls = self._calls[whole_key] = _Calls(uses)
        return calls

    def _is_delayed(self, calls: "_Calls", inputs: list[Any]) -> bool:
        """Returns whether an argument comes from a function that is not captured yet. A capture moves that function's
        results, so a graph captured now would soon be replaced."""
        if calls.graphs or calls.num_warm_ups >= MAX_DELAYED_CALLS:
            return False
        sources = [each for each in self._calls.values() if each is not calls and not each.graphs]
        return any(source.has_returned(leaf) for source in sources for leaf in inputs)

    def _warm_up(self, work: Work, arguments: tuple[Any, ...]) -> Any:
        """Calls work on the stream of its later capture, since libraries allocate memory at first calls."""
        arguments = to_device(arguments, self.device)
        if self._stream is None:
            return work(*arguments)
        current = torch.cuda.current_stream(self.device)
        self._stream.wait_stream(current)
        try:
            with torch.cuda.stream(self._stream), fixed_shapes():
                results = work(*arguments)
        finally:
            current.wait_stream(self._stream)
        for leaf in leaves(results):
            if leaf.device.type == "cuda":
                leaf.record_stream(current)  # otherwise the other stream could reuse its memory before it is read here
        return results

    def _capture(self, key: Hashable, call: "GraphedCall") -> bool:
        """Captures the call; returns False, and drops all calls of this key, if it cannot be captured."""
        try:
            call.capture(self._stream)
        except CaptureError as error:  # for example, a user's network that reads values
            name = getattr(key, "__qualname__", "the update")
            logger.warning("%s cannot be captured as a CUDA graph and runs without one: %s", name, error)
            self._not_capturable.add(key)
            for whole_key in [each for each in self._calls if each[0] == key]:  # type: ignore[index]
                del self._calls[whole_key]
            return False
        return True

    def _disable(self, reason: str) -> None:
        logger.warning("the update cannot be captured as a CUDA graph and runs without one: %s", reason)
        self.is_enabled = False
        self.forget()


class _Calls:
    """The calls of one function with one structure of arguments."""

    def __init__(self, uses: Sequence[Tensor]):
        self.num_warm_ups = 0
        self.uses = [*uses]
        self.warm_up_results: dict[int, weakref.ref[Tensor]] = {}  # results of the last warm-up, by id
        self.graphs: dict[Hashable, GraphedCall] = {}  # by the arguments that they read in place

    def has_returned(self, leaf: Any) -> bool:
        """Returns whether the last warm-up call returned this tensor."""
        found = self.warm_up_results.get(id(leaf))
        return found is not None and found() is leaf


class GraphedCall:
    """A graph, the buffers that it reads, and its results.

    is_in_place: for each leaf of the arguments, whether the graph reads it in place."""

    def __init__(self, work: Work, arguments: tuple[Any, ...], is_in_place: list[bool], device: torch.device):
        self._work, self._is_in_place = work, is_in_place

        def buffer(leaf: Any) -> Tensor:
            shape = leaf.shape if isinstance(leaf, Tensor) else ()
            return torch.empty(shape, dtype=dtype_of(leaf), device=device)

        inputs = leaves(arguments)
        self._buffers = [leaf if stays else buffer(leaf) for leaf, stays in zip(inputs, is_in_place, strict=True)]
        buffers = iter(self._buffers)
        self._arguments = map_leaves(lambda _: next(buffers), arguments)
        self._numbers: list[Any] = [None] * len(inputs)  # the numbers filled in last
        self._graph: Any = None
        self._results: Any = None

    def fill(self, inputs: list[Any]) -> None:
        """Copies the next run's arguments into the buffers."""
        targets, sources = [], []
        for index, (leaf, buffer, stays) in enumerate(zip(inputs, self._buffers, self._is_in_place, strict=True)):
            if stays:
                continue
            number = _number(leaf)
            if number is None:
                targets.append(buffer)
                sources.append(leaf)
            elif number != self._numbers[index]:
                buffer.fill_(number)
                self._numbers[index] = number
        copy_tensors(targets, sources)

    def capture(self, stream: "torch.cuda.Stream | None") -> None:
        if stream is not None:
            self._graph = capture(self._call, stream)

    def run(self) -> Any:
        if self._graph is not None:
            self._graph.replay()
        else:
            self._call()
        return map_leaves(lambda leaf: leaf, self._results)  # new containers, which the caller may change

    def _call(self) -> None:
        results = self._work(*self._arguments)
        if self._results is None:
            self._results = results
            return
        for kept, new in zip(leaves(self._results), leaves(results), strict=True):
            if kept.data_ptr() != new.data_ptr():
                kept.copy_(new)


def _number(leaf: Any) -> Any:
    """Returns the value of a number or of a 0-d tensor on the CPU, else None."""
    if not isinstance(leaf, Tensor):
        return leaf
    return leaf.item() if not leaf.dim() and leaf.device.type == "cpu" else None
