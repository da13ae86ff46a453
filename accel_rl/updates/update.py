"""The verbs by which an algorithm changes its parameters. With one learner, `sum`, `max` and `pull` are identities."""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from accel_rl.updates.flat import FlatParameters
from accel_rl.updates.rules import Rule

Loss = Callable[..., tuple[Tensor, dict[str, Tensor]]]
"""loss(**batch): its sum over the valid samples, and terms to log as such sums, detached (`minimize` divides them)."""

CLIP_EPSILON = 1e-7  # keeps a gradient of zeros finite, as in the original code


class Update(Protocol):
    """What an algorithm may do; it never asks how many learners there are."""

    def step(self, loss_sum: Tensor, weight: Tensor, learning_rate: float) -> Tensor:
        """Descends the gradient of loss_sum / weight, where both are summed over all learners.

        loss_sum: scalar, the sum of the loss over the valid samples of this learner; weight: how many these are.
        Returns the norm of the gradient before clipping."""

    def minimize(
        self, loss: Loss, batch: dict[str, Tensor], weight: Tensor, learning_rate: float, *, sliceable: bool = True
    ) -> dict[str, Tensor]:
        """One update: descends the gradient of loss(**batch)[0] / weight, where both are summed over all learners.

        batch: samples first [N, ...]; with sliceable=False in any order ([T, B, ...]), then the loss sees all of it at
        once. 0-d tensors are settings that change (clip range, entropy weight). loss: the same function at each update.
        Returns the terms divided by weight, then "grad_norm", the norm of the gradient before clipping."""

    def sum(self, value: Tensor) -> Tensor:
        """The sum over all learners."""

    def max(self, value: Tensor) -> Tensor:
        """The maximum over all learners."""

    def pull(self) -> None:
        """Takes over the newest parameters, where they are kept centrally."""


class LocalUpdate:
    """One learner: gradient, clip, rule.

    clip_grad_norm: the gradient's largest norm over all parameters together; None does not clip.
    """

    def __init__(self, module: nn.Module, rule: Rule, clip_grad_norm: float | None = None):
        self.parameters = FlatParameters(module)
        self.rule, self.clip_grad_norm = rule, clip_grad_norm
        self.rule_state = rule.init(self.parameters.values)

    def step(self, loss_sum: Tensor, weight: Tensor, learning_rate: float) -> Tensor:
        self.parameters.zero_gradient()
        (loss_sum / weight.clamp(min=1)).backward()  # type: ignore[no-untyped-call]
        return self._descend(learning_rate)

    def minimize(
        self, loss: Loss, batch: dict[str, Tensor], weight: Tensor, learning_rate: float, *, sliceable: bool = True
    ) -> dict[str, Tensor]:
        weight = weight.clamp(min=1)
        loss_sum, terms = loss(**batch)
        grad_norm = self.step(loss_sum, weight, learning_rate)
        return {name: term / weight for name, term in terms.items()} | {"grad_norm": grad_norm}

    def _descend(self, learning_rate: float) -> Tensor:
        """Clip and rule; returns the norm before clipping."""
        gradient = self.parameters.gradient
        norm: Tensor = torch.linalg.vector_norm(gradient)
        if self.clip_grad_norm is not None:
            gradient.mul_(norm.clamp(max=self.clip_grad_norm) / (norm + CLIP_EPSILON))
        self.rule.apply(self.parameters.values, gradient, learning_rate, self.rule_state)
        return norm

    def sum(self, value: Tensor) -> Tensor:
        return value

    def max(self, value: Tensor) -> Tensor:
        return value

    def pull(self) -> None:
        pass

    def state_dict(self) -> dict[str, Any]:
        """Parameters and the update rule's state, exactly."""
        return {"parameters": self.parameters.values, "rule": self.rule_state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        device = self.parameters.values.device
        self.parameters.values.copy_(state["parameters"])
        # Vectors go where the parameters are; a step count stays on the CPU, so that reading it never waits for a GPU.
        self.rule_state = {name: value.to(device) if value.dim() else value for name, value in state["rule"].items()}
