"""An update that records what algorithms ask of it."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from accel_rl.updates import Loss, Update
from accel_rl.updates.exchange import means
from accel_rl.updates.optimizers import SGD, Optimizer
from accel_rl.updates.trees import map_leaves, to_device


class Call(NamedTuple):
    """The arguments of one call of `minimize`; the batch is a copy."""

    loss: Loss
    batch: tuple[Any, ...]
    num_samples: Tensor
    learning_rate: float


class RecordingUpdate(Update):
    """Records every call of `minimize`, then makes the update; learns=False: computes the loss, but changes nothing.

    It is also a `MakeUpdate`: given only a module, it uses plain SGD. maxima: the values given to `max`.
    """

    def __init__(self, module: nn.Module, optimizer: Optimizer | None = None, *, learns: bool = True, **options: Any):
        super().__init__(module, optimizer or SGD(), **options)
        self.learns = learns
        self.calls: list[Call] = []
        self.maxima: list[float] = []

    def minimize(
        self,
        loss: Loss,
        batch: tuple[Any, ...],
        num_samples: Tensor,
        learning_rate: float | Tensor,
    ) -> dict[str, Tensor]:
        batch = to_device(batch, self.device)
        self.calls.append(Call(loss, map_leaves(torch.clone, batch), num_samples.clone(), float(learning_rate)))
        if self.learns:
            return super().minimize(loss, batch, num_samples, learning_rate)
        return means(loss(*batch)[1], num_samples)

    def max(self, value: Tensor) -> Tensor:
        if value.device.type == "cpu":  # reading it from a GPU would wait
            self.maxima.append(value.item())
        return super().max(value)

    @property
    def batches(self) -> list[Any]:
        """Returns the first argument of each loss, the samples."""
        return [call.batch[0] for call in self.calls]
