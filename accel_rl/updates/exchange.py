"""Applies a gradient: clips it and runs the optimizer. A single learner has nothing to exchange.

all_reduce.py and store_exchange.py are for several learners; they differ in `apply`, and in what else learners share.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from accel_rl.models.bf16_weights import refresh
from accel_rl.updates.flat import FlatParameters
from accel_rl.updates.foreach import copy_tensors
from accel_rl.updates.optimizers import Optimizer, State
from accel_rl.updates.terms import Terms

CLIP_EPSILON = 1e-7  # keeps a gradient of zeros finite, as in the original code


class Exchange:
    """The exchange of a single learner, which applies its gradients; the base class of all other exchanges.

    An `Update` binds it to its parameters before the first use.
    """

    is_capturable: ClassVar[bool] = True
    """True if a CUDA graph, or machine code, can hold `apply`."""
    sums_gradients: ClassVar[bool] = False
    """True if `apply` sums gradients over learners, so that it needs the gradient of a sum of losses, not of a mean."""

    parameters: FlatParameters
    optimizer: Optimizer
    clip_grad_norm: float | None
    optimizer_state: State
    num_syncs: int  # the count of the target network's last sync

    def bind(self, parameters: FlatParameters, optimizer: Optimizer, clip_grad_norm: float | None) -> None:
        """Sets the parameters to change, their optimizer and the clipping norm."""
        self.parameters, self.optimizer, self.clip_grad_norm = parameters, optimizer, clip_grad_norm
        self.optimizer_state = optimizer.init(parameters.values)
        self.num_syncs = 0

    def apply(self, sums: Terms, num_samples: Tensor, learning_rate: float | Tensor) -> Terms:
        """Updates the parameters by the gradient stored in `parameters`.

        sums: terms of the loss over this learner's samples. Returns their means over the samples of all learners that
        update together, and "grad_norm"."""
        grad_norm = self._clip()
        self.optimizer.apply(self.parameters.values, self.parameters.gradient, learning_rate, self.optimizer_state)
        return means(sums, num_samples) | {"grad_norm": grad_norm}

    def _clip(self) -> Tensor:
        """Scales the gradient down to the largest allowed norm; returns the original norm."""
        gradient = self.parameters.gradient
        norm: Tensor = torch.linalg.vector_norm(gradient)
        if self.clip_grad_norm is not None:
            gradient.mul_(norm.clamp(max=self.clip_grad_norm) / (norm + CLIP_EPSILON))
        return norm

    # ---- the interface for algorithms: values of all learners that update together ----

    def sum(self, value: Tensor) -> Tensor:
        """Returns the sum over all learners that update together."""
        return value

    def max(self, value: Tensor) -> Tensor:
        """Returns the maximum over all learners that update together."""
        return value

    def pull(self) -> None:
        """Copies the newest central parameters, if there are any."""

    def sync_target(self, target: nn.Module, count: int) -> None:
        """Copies the network into `target` if count, the number of past intervals, has grown since the last sync.

        Learners that share parameters share the target, too: the first learner syncs it, the others copy it."""
        if count > self.num_syncs:
            self.num_syncs = count
            copy_module(self.parameters.module, target)

    def locked_buffers(self, buffers: dict[str, Tensor]) -> AbstractContextManager[None]:
        """Locks running statistics that learners share without updating together.

        On entry the buffers receive the last learner's values; on exit other learners can see the new ones."""
        return nullcontext()

    # ---- checkpoints, and the end ----

    def state_dict(self) -> dict[str, Any]:
        """Returns the state that all learners share: parameters and optimizer state, exactly."""
        return {"parameters": self.parameters.values, "optimizer": self.optimizer_state, "num_syncs": self.num_syncs}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        values = self.parameters.values
        values.copy_(state["parameters"])
        self.num_syncs = state["num_syncs"]
        self.optimizer_state = to_devices(state["optimizer"], self.optimizer.init(values), values.device)

    def local_state_dict(self) -> dict[str, Any]:
        """Returns this learner's own state."""
        return {}

    def load_local_state_dict(self, state: dict[str, Any]) -> None:
        pass

    def read_seconds(self) -> dict[str, float]:
        """Returns the seconds that other learners have cost since the last reading, by cause; may wait for a GPU."""
        return {}

    def close(self) -> None:
        """Releases shared memory. Call it before the memory itself is unmapped."""


def means(sums: Terms, num_samples: Tensor) -> Terms:
    """Divides the terms of a loss by the number of samples; terms with an entry for each sample stay unchanged."""
    count = num_samples.clamp(min=1)
    return {name: value if value.dim() else value / count for name, value in sums.items()}


def to_devices(saved: State, initial: State, device: torch.device) -> State:
    """Returns a saved optimizer state on the optimizer's initial devices.

    Vectors that first exist after an update go to `device`, step counts to the CPU."""
    devices = {name: value.device for name, value in initial.items()}
    return {name: value.to(devices.get(name, device if value.dim() else "cpu")) for name, value in saved.items()}


def copy_module(source: nn.Module, target: nn.Module) -> None:
    """Copies the parameters and buffers of one network into another."""
    copy_tensors([*target.parameters(), *target.buffers()], [*source.parameters(), *source.buffers()])
    refresh(target, always=True)  # PyTorch does not count copies of several tensors at once
