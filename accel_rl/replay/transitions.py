"""Defines the transitions that a replay draws, and the rows from which it draws them."""

from typing import Any, NamedTuple

import torch
from torch import Tensor


class TransitionBatch(NamedTuple):
    """A minibatch of K transitions over n steps each.

    observation, next_observation [K, *O]: before the first step, and after the last one, which is the n-th or the one
        that ends the episode.
    action [K, ...]: that of the first step.
    return_ [K]: sum of discount^k r_k over the steps.
    bootstrap [K]: the factor of next_observation's value in the TD target: discount^n, discount^(number of steps) if
        the episode was truncated earlier, 0 if it terminated.
    valid [K] bool: do not learn from invalid samples.
    importance [K]: weight of each sample's loss; None: all 1.
    """

    observation: Tensor
    action: Tensor
    return_: Tensor
    next_observation: Tensor
    bootstrap: Tensor
    valid: Tensor
    importance: Tensor | None = None

    def to(self, device: torch.device) -> "TransitionBatch":
        """Returns the batch on another device. A copy to a GPU is asynchronous."""
        if device == self.valid.device:
            return self
        # A GPU copies from pinned memory by itself, and the memory is reused only once the copy is over. A copy to the
        # host must wait, or it could be read before it has arrived.
        is_upload = device.type == "cuda" and self.valid.device.type == "cpu"
        present: dict[str, Any] = {name: value for name, value in self._asdict().items() if value is not None}
        if is_upload:
            present = {name: value.pin_memory() for name, value in present.items()}
        return TransitionBatch(**{name: value.to(device, non_blocking=is_upload) for name, value in present.items()})


class DrawnRows(NamedTuple):
    """The rows of each environment from which samples are drawn: num_steps rows from first_row on."""

    first_row: Any  # int, or a 0-d tensor in a graphed function
    num_steps: Any
