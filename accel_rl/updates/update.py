"""The verbs by which an algorithm changes its parameters, and what they are for one learner alone.

Read this first; all_reduce.py and central.py differ in what comes after the gradient.
"""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from accel_rl.hardware.allocator import LARGEST_KEPT
from accel_rl.updates.cuda_graphs import CudaGraphs, Loss
from accel_rl.updates.flat import FlatParameters
from accel_rl.updates.optimizers import Rule

CLIP_EPSILON = 1e-7  # keeps a gradient of zeros finite, as in the original code


class Update(Protocol):
    """What an algorithm may do; it never asks how many learners there are."""

    def step(self, loss_sum: Tensor, weight: Tensor, learning_rate: float) -> Tensor:
        """Descends the gradient of loss_sum / weight, both summed over all learners that update together.

        loss_sum: scalar, the sum of the loss over the valid samples of this learner; weight: how many these are.
        Returns the norm of the gradient before clipping."""

    def minimize(
        self, loss: Loss, batch: dict[str, Tensor], weight: Tensor, learning_rate: float, *, sliceable: bool = True
    ) -> dict[str, Tensor]:
        """One update: descends the gradient of loss(**batch)[0] / weight, both summed over all learners that update
        together.

        batch: this learner's, samples first [N, ...]; with sliceable=False in any order ([T, B, ...]), then the loss
        sees all of it at once. 0-d tensors are settings that change (clip range, entropy weight). loss: the same
        function at each update. weight: how many valid samples the batch has.
        Returns the terms divided by weight, both summed over these learners, then "grad_norm", the norm of the gradient
        before clipping. A term that is not 0-d but has an entry for each sample [N, ...] is returned as it is."""

    def sum(self, value: Tensor) -> Tensor:
        """The sum over all learners that update together."""

    def max(self, value: Tensor) -> Tensor:
        """The maximum over all learners that update together."""

    def pull(self) -> None:
        """Takes over the newest parameters, where they are kept centrally."""

    def renew(self, target: nn.Module, count: int) -> None:
        """Makes `target` what the network is now, if count (of intervals that have gone by) is larger than the last
        time. Learners that share parameters share it: the first to come decides, the others take it over."""

    def exclusive(self, buffers: dict[str, Tensor]) -> AbstractContextManager[None]:
        """Meanwhile nobody else changes these running statistics, where learners share them without updating together:
        they are as the last one left them, and others find them as they are at the end."""


class LocalUpdate:
    """One learner: gradient, clip, rule.

    clip_grad_norm: the gradient's largest norm over all parameters together; None does not clip.
    slice_elements: on a CPU, `minimize` goes through the batch in slices, of which no tensor has more elements than
        that. It bounds the memory of an update: pictures in float32 stay below memory.LARGEST_KEPT. Smaller slices are
        slower (128 samples by 5 %): each adds once to the gradient of all weights.
    cuda_graphs: on a GPU, `minimize` becomes one CUDA graph for each loss and shape of batch.
    layer_norms: `minimize` also returns the norms of each parameter tensor, its gradient and its step, as "norm/...".
    """

    one_graph: ClassVar[bool] = True
    """Whether a CUDA graph can hold all of an update. Else it ends with the gradient."""
    mean_first: ClassVar[bool] = True
    """Whether this learner's weight is all of it. Else `_finish` has to divide the gradient, which is that of a sum."""

    def __init__(
        self,
        module: nn.Module,
        rule: Rule,
        clip_grad_norm: float | None = None,
        *,
        slice_elements: int = LARGEST_KEPT // 4 - 2**10,  # less the header that the C library adds
        cuda_graphs: bool = True,
        layer_norms: bool = False,
    ):
        self.module, self.parameters = module, FlatParameters(module)
        self.layer_norms = layer_norms
        self.rule, self.clip_grad_norm, self.slice_elements = rule, clip_grad_norm, slice_elements
        self.rule_state = rule.init(self.parameters.values)
        self._num_renewed = 0
        device = self.parameters.values.device
        self._on_cpu = device.type == "cpu"
        self._graph_is_all = self.one_graph and rule.capturable
        self._body = self._replay_all if self._graph_is_all else self._replay_gradient
        self._graphs = CudaGraphs(self._body, device) if cuda_graphs and not self._on_cpu else None

    def step(self, loss_sum: Tensor, weight: Tensor, learning_rate: float) -> Tensor:
        self.parameters.zero_gradient()
        self._divided(loss_sum, weight).backward()  # type: ignore[no-untyped-call]
        return self._finish({}, weight, learning_rate)["grad_norm"]

    def minimize(
        self, loss: Loss, batch: dict[str, Tensor], weight: Tensor, learning_rate: float, *, sliceable: bool = True
    ) -> dict[str, Tensor]:
        before = self.parameters.values.clone() if self.layer_norms else None
        if self._graphs:
            found = self._graphs(loss, batch, weight, learning_rate)
        else:
            parts = slices(batch, self.slice_elements) if sliceable and self._on_cpu else [batch]
            found = self._gradient(loss, parts, weight)
        graph_is_all = self._graphs is not None and self._graph_is_all
        stats = found if graph_is_all else self._finish(found, weight, learning_rate)
        return stats if before is None else stats | self.parameters.norms(before)

    def _replay_all(
        self, loss: Loss, batch: dict[str, Tensor], weight: Tensor, learning_rate: Tensor
    ) -> dict[str, Tensor]:
        return self._finish(self._gradient(loss, [batch], weight), weight, learning_rate)

    def _replay_gradient(
        self, loss: Loss, batch: dict[str, Tensor], weight: Tensor, learning_rate: Tensor
    ) -> dict[str, Tensor]:
        return self._gradient(loss, [batch], weight)

    def _gradient(self, loss: Loss, parts: Iterable[dict[str, Tensor]], weight: Tensor) -> dict[str, Tensor]:
        """Leaves the gradient of this learner's batch; returns the terms of the loss, as sums."""
        self.parameters.zero_gradient()
        sums: dict[str, Tensor] = {}
        for part in parts:
            loss_sum, terms = loss(**part)
            self._divided(loss_sum, weight).backward()  # type: ignore[no-untyped-call]
            sums = {name: _merge(sums[name], term) if name in sums else term for name, term in terms.items()}
        return sums

    def _divided(self, loss_sum: Tensor, weight: Tensor) -> Tensor:
        return loss_sum / weight.clamp(min=1) if self.mean_first else loss_sum

    def _finish(self, sums: dict[str, Tensor], weight: Tensor, learning_rate: float | Tensor) -> dict[str, Tensor]:
        """All of an update that comes after the gradient; returns what `minimize` does."""
        norm = self._clip()
        self.rule.apply(self.parameters.values, self.parameters.gradient, learning_rate, self.rule_state)
        return means(sums, weight) | {"grad_norm": norm}

    def _clip(self) -> Tensor:
        """Returns the norm before."""
        gradient = self.parameters.gradient
        norm: Tensor = torch.linalg.vector_norm(gradient)
        if self.clip_grad_norm is not None:
            gradient.mul_(norm.clamp(max=self.clip_grad_norm) / (norm + CLIP_EPSILON))
        return norm

    def sum(self, value: Tensor) -> Tensor:
        return value

    def max(self, value: Tensor) -> Tensor:
        return value

    def pull(self) -> None:
        pass

    def renew(self, target: nn.Module, count: int) -> None:
        if count > self._num_renewed:
            self._num_renewed = count
            copy_module(self.module, target)

    def exclusive(self, buffers: dict[str, Tensor]) -> AbstractContextManager[None]:
        return nullcontext()

    def read_seconds(self) -> dict[str, float]:
        """What other learners have cost since the last reading, by what it went for; may wait for a GPU."""
        return {}

    def close(self) -> None:
        """Before memory that learners share goes."""

    def private_state(self) -> dict[str, Any]:
        """What is this learner's alone, where `state_dict` is what all of them share."""
        return {}

    def load_private_state(self, state: dict[str, Any]) -> None:
        pass

    def state_dict(self) -> dict[str, Any]:
        """Parameters and the update rule's state, exactly."""
        return {"parameters": self.parameters.values, "rule": self.rule_state, "num_renewed": self._num_renewed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        values = self.parameters.values
        values.copy_(state["parameters"])
        self._num_renewed = state["num_renewed"]
        # Each tensor where the rule would put it; what the rule does not know yet, a step count, on the CPU.
        places = {name: value.device for name, value in self.rule.init(values).items()}
        self.rule_state = {
            name: value.to(places.get(name, values.device if value.dim() else "cpu"))
            for name, value in state["rule"].items()
        }
        if self._graphs:
            self._graphs.forget()


@torch.no_grad()
def copy_module(source: nn.Module, to: nn.Module) -> None:
    """The parameters and buffers of one network become those of another."""
    torch._foreach_copy_([*to.parameters(), *to.buffers()], [*source.parameters(), *source.buffers()])


def means(sums: dict[str, Tensor], weight: Tensor) -> dict[str, Tensor]:
    """Terms of a loss divided by the number of samples; those that have an entry for each sample as they are."""
    weight = weight.clamp(min=1)
    return {name: value if value.dim() else value / weight for name, value in sums.items()}


def _merge(term: Tensor, of_next_part: Tensor) -> Tensor:
    """A term of several parts of a batch: sums are added, entries for each sample follow each other."""
    return torch.cat([term, of_next_part]) if term.dim() else term + of_next_part


def slices(batch: dict[str, Tensor], most_elements: int) -> Iterator[dict[str, Tensor]]:
    """The batch cut along its samples into equal parts; 0-d tensors go with each of them.

    No tensor of a part has more than most_elements (but each has a sample, however large). Raises ValueError for
    tensors that do not hold equally many samples."""
    samples = {name: value for name, value in batch.items() if value.dim()}
    lengths = {name: len(value) for name, value in samples.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"samples per tensor are {lengths}, but must be equal; or call minimize with sliceable=False")
    num_samples = max(lengths.values(), default=0)
    largest = max((value.numel() for value in samples.values()), default=0)
    num_parts = max(1, min(num_samples, -(-largest // most_elements)))
    for part in range(num_parts):
        rows = slice(part * num_samples // num_parts, (part + 1) * num_samples // num_parts)
        yield batch | {name: value[rows] for name, value in samples.items()}
