"""Defines the methods by which an algorithm changes its parameters. An Exchange applies the gradient."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from accel_rl.hardware.allocator import LARGEST_KEPT
from accel_rl.models.bf16_weights import keep_copies
from accel_rl.updates.compiled_calls import CompiledCalls
from accel_rl.updates.cuda_graphs import CudaGraphs
from accel_rl.updates.exchange import Exchange
from accel_rl.updates.flat import FlatParameters
from accel_rl.updates.optimizers import Optimizer
from accel_rl.updates.terms import Loss, LossPart, PackedTerms, Terms, pack, pack_all, unpack, unpack_all
from accel_rl.updates.trees import leaves, slices, to_device

Result = TypeVar("Result")

Body = Callable[..., Terms]
"""body(update, part, learning_rate, *arguments) -> the result of `update.minimize`; see `Update.repeat`."""

MAX_REPEATED = 64  # updates in one graph, each of about a hundred operations


class Update:
    """Updates a module's parameters: computes gradients and applies them, for any number of learners.

    exchange: turns the gradient into new parameters, here and on the other learners (None: there is one learner).
    clip_grad_norm: largest norm of the gradient over all parameters together; None does not clip.
    slice_elements: on a CPU, `minimize` cuts the batch into slices whose tensors have at most this many elements. It
        bounds the memory of an update: pictures in float32 stay below allocator.LARGEST_KEPT. Smaller slices are slower
        (128 samples by 5 %), since each adds once to the gradient of all weights.
    cuda_graphs: on a GPU, `minimize` becomes one CUDA graph for each loss and shape of batch, and each `graphed`
        function one for each shape of its arguments.
    compiled: on a CPU, runs `minimize` and the updates of `repeat` and `once` as machine code; with several learners,
        only the gradient.
    tasks: auxiliary tasks (algos/auxiliary.py). `minimize` adds the losses that their draw(update) returns. They draw
        on the host, so updates are then made one by one, and not by machine code.
    log_norms: `minimize` also returns the norms of each parameter tensor, its gradient and its step, as "norm/...".
    """

    def __init__(
        self,
        module: nn.Module,
        optimizer: Optimizer,
        clip_grad_norm: float | None = None,
        exchange: Exchange | None = None,
        *,
        slice_elements: int = LARGEST_KEPT // 4 - 2**10,  # less the header that the C library adds
        cuda_graphs: bool = True,
        compiled: CompiledCalls | None = None,
        tasks: Any = None,
        log_norms: bool = False,
    ):
        self.module, self.parameters = module, FlatParameters(module)
        self._copies = keep_copies(module)
        self.exchange = exchange or Exchange()
        self.exchange.bind(self.parameters, optimizer, clip_grad_norm)
        self.slice_elements, self.tasks, self.log_norms = slice_elements, tasks, log_norms
        self.device = self.parameters.values.device
        self._on_cpu = self.device.type == "cpu"
        self._graph_is_all = self.exchange.is_capturable and optimizer.capturable
        self._graphs = CudaGraphs(self.device) if cuda_graphs and not self._on_cpu else None
        self.compiled = compiled if self._on_cpu and not (tasks or log_norms) else None
        self._is_in_graph = False  # True while this runs within a graph or machine code

    def graphed(self, function: Callable[..., Result], *arguments: Any, uses: Sequence[Tensor] = ()) -> Result:
        """Returns function(*arguments), computed without gradients; on a GPU by one launch, the replay of a CUDA graph.

        function: the same at each call; it enqueues the same operations each time, reads no value of a tensor, and
        returns tensors, nested like arguments. Nothing else that it reads may change, except in place.
        arguments: tensors and numbers, nested in NamedTuples, tuples, lists, dicts and rollouts, or None. A number
        arrives as a 0-d tensor; a rollout without its games and first_step. If all tensors [N, ...] are on the CPU, so
        is the work. uses: other tensors that function reads and that may be replaced by others.

        Results are valid until the next call of the same function. Passing them on, to `minimize` or to another
        graphed function, copies nothing."""
        is_elsewhere = self._are_elsewhere(arguments)
        self._refresh()
        with torch.no_grad():
            if self._graphs and not self._is_in_graph and not is_elsewhere:
                results: Result = self._graphs(function, partial(_call, function), arguments, uses)
                return results
            device = torch.device("cpu") if is_elsewhere else self.device
            return _call(function, *to_device(arguments, device))

    def _are_elsewhere(self, arguments: tuple[Any, ...]) -> bool:
        """Returns whether these are tensors on the CPU, though parameters are on a GPU; a replay's may be."""
        if self._on_cpu:
            return False
        return {leaf.device.type for leaf in leaves(arguments) if isinstance(leaf, Tensor) and leaf.dim()} == {"cpu"}

    def repeat(self, body: Body, parts: Sequence[Tensor], learning_rate: float, *arguments: Any) -> list[Terms]:
        """Returns body(self, part, learning_rate, *arguments) for each part in order; each call makes an update.

        If there is one learner and the parts [N] have one size, one graph runs all calls on a GPU, and machine code
        makes each on a CPU. body: uses only `minimize` and `graphed`, and follows the rules for functions of
        `graphed`. arguments: as in `graphed`."""
        parts = [*parts]
        is_even = len({len(part) for part in parts}) == 1 and len(parts) <= MAX_REPEATED
        calls = self._graphs or self.compiled
        if not (is_even and calls and self._graph_is_all) or self.tasks or self.log_norms:
            return [body(self, part, learning_rate, *arguments) for part in parts]
        if self._graphs:
            self._refresh()
            rate, work = torch.tensor(learning_rate, dtype=torch.float64), partial(self._repeat, body)
            return unpack_all(self._graphs(("repeat", body), work, (torch.stack(parts), rate, arguments)))
        return self._as_a_whole(body, parts, learning_rate, arguments)

    def once(self, body: Body, part: Any, learning_rate: float, *arguments: Any, uses: Sequence[Tensor] = ()) -> Terms:
        """Returns body(self, part, learning_rate, *arguments), which makes one update; with one learner, machine code
        makes it on a CPU.

        body: as in `repeat`. On a GPU, its calls of `graphed` and `minimize` are a graph each. part: as an argument of
        `graphed`. uses: as in `graphed`."""
        if not (self.compiled and self._graph_is_all):
            return body(self, part, learning_rate, *arguments)
        return self._as_a_whole(body, [part], learning_rate, arguments, uses)[0]

    def _as_a_whole(
        self,
        body: Body,
        parts: Sequence[Any],
        learning_rate: float,
        arguments: tuple[Any, ...],
        uses: Sequence[Tensor] = (),
    ) -> list[Terms]:
        """Makes updates by machine code for the whole of body."""

        def work(part: Any, learning_rate: Tensor, arguments: tuple[Any, ...]) -> PackedTerms:
            return pack(body(self, part, learning_rate, *arguments))

        rate = torch.tensor(learning_rate, dtype=torch.float64)

        def eager(part: Any) -> Terms:
            return body(self, part, learning_rate, *arguments)

        self._is_in_graph = True
        try:
            return self._by_machine_code(("whole", body), work, parts, (rate, arguments), eager, uses)
        finally:
            self._is_in_graph = False

    def _repeat(self, body: Body, parts: Tensor, learning_rate: Tensor, arguments: tuple[Any, ...]) -> PackedTerms:
        self._is_in_graph = True
        try:
            return pack_all([body(self, part, learning_rate, *arguments) for part in parts.unbind()])
        finally:
            self._is_in_graph = False

    def note_share_done(self, share: float) -> None:
        """Notes how much of the run is done, 0 to 1. The rest decides whether compiling pays off."""
        if self.compiled:
            self.compiled.share_done = share

    def read_compiled_share(self) -> float:
        """Returns the share of updates since the last reading that were made by machine code."""
        return self.compiled.read_share() if self.compiled else 0.0

    def sum(self, value: Tensor) -> Tensor:
        """Returns the sum over all learners that update together."""
        return self.exchange.sum(value)

    def max(self, value: Tensor) -> Tensor:
        """Returns the maximum over all learners that update together."""
        return self.exchange.max(value)

    def sync_target(self, target: nn.Module, count: int) -> None:
        """Copies the network into `target` if count has grown, see `Exchange.sync_target`."""
        self.exchange.sync_target(target, count)

    def pull(self) -> None:
        """Copies the newest central parameters, if there are any."""
        self.exchange.pull()
        self._refresh(always=True)

    def step(self, loss_sum: Tensor, num_samples: Tensor, learning_rate: float) -> Tensor:
        """Descends the gradient of loss_sum / num_samples, both summed over all learners that update together.

        loss_sum: 0-d, the sum of the loss over this learner's valid samples; num_samples: 0-d, their number. Returns
        the norm of the gradient before clipping, 0-d. Do not keep loss_sum: while its computation is alive, `minimize`
        cannot be captured."""
        self.parameters.zero_gradient()
        self._scale(loss_sum, num_samples).backward()  # type: ignore[no-untyped-call]
        return self._apply({}, num_samples, learning_rate)["grad_norm"]

    def minimize(
        self,
        loss: Loss,
        batch: tuple[Any, ...],
        num_samples: Tensor,
        learning_rate: float | Tensor,
    ) -> Terms:
        """Makes one update: descends the gradient of loss(*batch)[0] / num_samples, both summed over all learners that
        update together. If the number of samples is 0 on all of them, neither the gradient nor the terms are divided.

        loss: the same function at each update. batch: its arguments, tensors or NamedTuples of tensors, samples first
        [N, ...]. If they contain a Batch of sequences [T, B, ...], the loss sees the whole batch at once. Numbers are
        settings that change (clip range, entropy weight); they arrive as 0-d tensors. num_samples: the number of valid
        samples.

        Returns the loss's terms divided by num_samples, both summed over these learners, and "grad_norm", the norm of
        the gradient before clipping. A term with an entry for each sample [N, ...] is returned unchanged."""
        self._refresh()
        values_before = self.parameters.values.clone() if self.log_norms else None
        parts = [LossPart(loss, batch), *(self.tasks.draw(self) if self.tasks else ())]
        losses, batches = zip(*parts, strict=True)
        has_own_graph = bool(self._graphs or self.compiled) and not self._is_in_graph
        if has_own_graph:
            rate = torch.tensor(learning_rate, dtype=torch.float64)
            key, work, arguments = ("minimize", *losses), partial(self._graphed_update, losses), (num_samples, rate)
            if self._graphs:
                terms = unpack(self._graphs(key, work, (batches, *arguments)))
            else:
                eager = partial(self._eager_update, losses, num_samples, learning_rate)
                (terms,) = self._by_machine_code(key, work, [batches], arguments, eager)
        else:
            terms = self._in_slices(losses, batches, num_samples)
        if not (has_own_graph and self._graph_is_all):
            terms = self._apply(terms, num_samples, learning_rate)
        return terms if values_before is None else terms | self.parameters.norms(values_before)

    def _by_machine_code(self, *call: Any) -> list[Terms]:
        assert self.compiled
        terms = self.compiled(*call)
        torch.autograd.graph.increment_version(self.parameters.values)  # models/prepared.py reads it
        return terms

    def _in_slices(self, losses: Sequence[Loss], batches: Sequence[Any], num_samples: Tensor) -> Terms:
        """Computes the gradient, on a CPU in slices of the batch."""
        batch, *others = to_device(batches, self.device)
        parts = slices(batch, self.slice_elements) if self._on_cpu else [batch]
        pieces = [LossPart(losses[0], part) for part in parts] + [*map(LossPart, losses[1:], others)]
        return self._gradient(pieces, num_samples)

    def _eager_update(
        self, losses: Sequence[Loss], num_samples: Tensor, learning_rate: float | Tensor, batches: Sequence[Any]
    ) -> Terms:
        """Does operation by operation what machine code of `_graphed_update` does."""
        terms = self._in_slices(losses, batches, num_samples)
        return self._apply(terms, num_samples, learning_rate) if self._graph_is_all else terms

    def _graphed_update(
        self, losses: Sequence[Loss], batches: Sequence[Any], num_samples: Tensor, learning_rate: Tensor
    ) -> PackedTerms:
        """Does the part that a CUDA graph can hold: the whole update, or everything up to the gradient."""
        terms = self._gradient([*map(LossPart, losses, batches)], num_samples)
        return pack(self._apply(terms, num_samples, learning_rate) if self._graph_is_all else terms)

    def _apply(self, terms: Terms, num_samples: Tensor, learning_rate: float | Tensor) -> Terms:
        terms = self.exchange.apply(terms, num_samples, learning_rate)
        self._refresh(always=True)
        return terms

    def _gradient(self, parts: list[LossPart], num_samples: Tensor) -> Terms:
        """Stores the gradient of all parts in `parameters`; returns the terms of their losses, as sums."""
        is_recorded = self.compiled is not None and self.compiled.is_recording
        self.parameters.zero_gradient()
        sums: Terms = {}
        for loss, batch in parts:
            loss_sum, terms = loss(*batch)
            scaled = self._scale(loss_sum, num_samples)
            if is_recorded:
                self.parameters.differentiate(scaled)
            else:
                scaled.backward()  # type: ignore[no-untyped-call]
            sums |= {name: _merge(sums[name], term) if name in sums else term for name, term in terms.items()}
        return sums

    def _scale(self, loss_sum: Tensor, num_samples: Tensor) -> Tensor:
        """Divides loss_sum by num_samples, unless the exchange sums gradients: it divides them by the total number."""
        return loss_sum if self.exchange.sums_gradients else loss_sum / num_samples.clamp(min=1)

    def _refresh(self, always: bool = False) -> None:
        """Casts the parameters for layers that compute in bfloat16 on a GPU, see `Bf16Weights.refresh`."""
        if self._copies:
            self._copies.refresh(always)

    def close(self) -> None:
        """Releases what other processes share, and ends a compilation that is under way."""
        if self.compiled:
            self.compiled.forget()
        self.exchange.close()

    # ---- checkpoints ----

    def state_dict(self) -> dict[str, Any]:
        """Returns the state that all learners share."""
        return self.exchange.state_dict()

    def local_state_dict(self) -> dict[str, Any]:
        """Returns the state of this learner alone."""
        return self.exchange.local_state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.exchange.load_state_dict(state)
        self._forget_graphs()

    def load_local_state_dict(self, state: dict[str, Any]) -> None:
        self.exchange.load_local_state_dict(state)
        self._forget_graphs()

    def _forget_graphs(self) -> None:
        """Drops graphs that would still use replaced tensors."""
        for calls in (self._graphs, self.compiled):
            if calls:
                calls.forget()


def _call(function: Callable[..., Result], *arguments: Any) -> Result:
    results = function(*arguments)
    if not all(isinstance(leaf, Tensor) for leaf in leaves(results)):
        name = getattr(function, "__qualname__", function)
        raise TypeError(f"{name} returns a number, which a CUDA graph would freeze; return tensors")
    return results


def _merge(term: Tensor, next_term: Tensor) -> Tensor:
    """Merges a term of two parts of a batch: adds sums, concatenates entries for each sample."""
    return torch.cat([term, next_term]) if term.dim() else term + next_term
