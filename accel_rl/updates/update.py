"""The verbs with which an algorithm changes its parameters. Exchange says what follows the gradient."""

from typing import Any

import torch
from torch import Tensor, nn

from accel_rl.hardware.allocator import LARGEST_KEPT
from accel_rl.updates.cuda_graphs import CudaGraphs, Loss, Terms
from accel_rl.updates.exchange import Exchange
from accel_rl.updates.flat import FlatParameters
from accel_rl.updates.optimizers import Optimizer
from accel_rl.updates.trees import slices


class Update:
    """Computes gradients of a module's parameters and applies them, for however many learners there are.

    exchange: how the gradient becomes new parameters, here and on the other learners (None: there is one learner).
    clip_grad_norm: largest norm of the gradient over all parameters together; None does not clip.
    slice_elements: on a CPU, `minimize` takes the batch in slices of which no tensor has more elements than that. It
        bounds the memory of an update: pictures in float32 stay below allocator.LARGEST_KEPT. Smaller slices are
        slower (128 samples by 5 %), since each adds once to the gradient of all weights.
    cuda_graphs: on a GPU, `minimize` becomes one CUDA graph for each loss and shape of batch.
    layer_norms: `minimize` also returns the norms of each parameter tensor, its gradient and its step, as "norm/...".

    Besides its own methods it offers those of its exchange: `sum`, `max`, `pull`, `sync_target`, `locked_buffers`.
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
        layer_norms: bool = False,
    ):
        self.module, self.parameters = module, FlatParameters(module)
        self.exchange = exchange or Exchange()
        self.exchange.bind(module, self.parameters, optimizer, clip_grad_norm)
        self.sum, self.max, self.pull = self.exchange.sum, self.exchange.max, self.exchange.pull
        self.sync_target, self.locked_buffers = self.exchange.sync_target, self.exchange.locked_buffers
        self.slice_elements, self.layer_norms = slice_elements, layer_norms
        device = self.parameters.values.device
        self._on_cpu = device.type == "cpu"
        self._graph_is_all = self.exchange.is_capturable and optimizer.capturable
        self._graphs = CudaGraphs(self._graph_body, device) if cuda_graphs and not self._on_cpu else None

    def step(self, loss_sum: Tensor, num_samples: Tensor, learning_rate: float) -> Tensor:
        """Descends the gradient of loss_sum / num_samples, both summed over all learners that update together.

        loss_sum: 0-d, the sum of the loss over this learner's valid samples; num_samples: 0-d, how many these are.
        Returns the norm of the gradient before clipping, 0-d."""
        self.parameters.zero_gradient()
        self._scale(loss_sum, num_samples).backward()  # type: ignore[no-untyped-call]
        return self.exchange.apply({}, num_samples, learning_rate)["grad_norm"]

    def minimize(
        self,
        loss: Loss,
        batch: tuple[Any, ...],
        num_samples: Tensor,
        learning_rate: float,
        *,
        sliceable: bool = True,
    ) -> Terms:
        """Makes one update: descends the gradient of loss(*batch)[0] / num_samples, both summed over all learners that
        update together.

        loss: the same function at each update. batch: its arguments, tensors or NamedTuples of tensors, samples first
        [N, ...]; with sliceable=False in any order ([T, B, ...]), then the loss sees the whole batch at once. 0-d
        tensors are settings that change (clip range, entropy weight). num_samples: how many valid samples it has.

        Returns the loss's terms divided by num_samples, both summed over these learners, and "grad_norm", the norm of
        the gradient before clipping. A term with an entry for each sample [N, ...] is returned as it is."""
        values_before = self.parameters.values.clone() if self.layer_norms else None
        if self._graphs:
            terms = self._graphs(loss, batch, num_samples, learning_rate)
        else:
            parts = slices(batch, self.slice_elements) if sliceable and self._on_cpu else [batch]
            terms = self._gradient(loss, parts, num_samples)
        if not (self._graphs and self._graph_is_all):
            terms = self.exchange.apply(terms, num_samples, learning_rate)
        return terms if values_before is None else terms | self.parameters.norms(values_before)

    def _graph_body(self, loss: Loss, batch: tuple[Any, ...], num_samples: Tensor, learning_rate: Tensor) -> Terms:
        """Does what a CUDA graph can hold: the whole update, or everything up to the gradient."""
        terms = self._gradient(loss, [batch], num_samples)
        return self.exchange.apply(terms, num_samples, learning_rate) if self._graph_is_all else terms

    def _gradient(self, loss: Loss, parts: list[tuple[Any, ...]], num_samples: Tensor) -> Terms:
        """Leaves the gradient of this learner's batch in `parameters`; returns the terms of the loss, as sums."""
        self.parameters.zero_gradient()
        sums: Terms = {}
        for part in parts:
            loss_sum, terms = loss(*part)
            self._scale(loss_sum, num_samples).backward()  # type: ignore[no-untyped-call]
            sums = {name: _merge(sums[name], term) if name in sums else term for name, term in terms.items()}
        return sums

    def _scale(self, loss_sum: Tensor, num_samples: Tensor) -> Tensor:
        """An exchange that sums gradients over learners divides them itself, by the sum of num_samples."""
        return loss_sum if self.exchange.sums_gradients else loss_sum / num_samples.clamp(min=1)

    # ---- checkpoints, and the end ----

    def state_dict(self) -> dict[str, Any]:
        """Returns parameters and the optimizer's state, exactly: what all learners share."""
        return self.exchange.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.exchange.load_state_dict(state)
        if self._graphs:
            self._graphs.forget()

    def local_state_dict(self) -> dict[str, Any]:
        """Returns what belongs to this learner alone."""
        return self.exchange.local_state_dict()

    def load_local_state_dict(self, state: dict[str, Any]) -> None:
        self.exchange.load_local_state_dict(state)

    def read_seconds(self) -> dict[str, float]:
        """Returns the seconds that other learners have cost since the last reading, by cause; may wait for a GPU."""
        return self.exchange.read_seconds()

    def close(self) -> None:
        """Releases shared memory. Call it before the memory itself is unmapped."""
        self.exchange.close()


def _merge(term: Tensor, next_term: Tensor) -> Tensor:
    """Merges a term of two parts of a batch: adds sums, concatenates entries for each sample."""
    return torch.cat([term, next_term]) if term.dim() else term + next_term
