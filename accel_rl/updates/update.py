"""The verbs by which an algorithm changes its parameters. With one learner, `sum`, `max` and `pull` are identities."""

from typing import Any, Protocol

import torch
from torch import Tensor, nn

from accel_rl.updates.flat import FlatParameters
from accel_rl.updates.rules import Rule

CLIP_EPSILON = 1e-7  # keeps a gradient of zeros finite, as in the original code


class Update(Protocol):
    """What an algorithm may do; it never asks how many learners there are."""

    def step(self, loss_sum: Tensor, weight: Tensor, learning_rate: float) -> Tensor:
        """Descends the gradient of loss_sum / weight, where both are summed over all learners.

        loss_sum: scalar, the sum of the loss over the valid samples of this learner; weight: how many these are.
        Returns the norm of the gradient before clipping."""

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
        gradient = self.parameters.gradient
        self.parameters.zero_gradient()
        (loss_sum / weight.clamp(min=1)).backward()  # type: ignore[no-untyped-call]
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
