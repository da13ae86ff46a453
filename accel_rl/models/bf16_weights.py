"""Keeps bfloat16 weights on a GPU, cast once per change of the parameters, for both acting and learning.

A CUDA graph reads the memory that it was captured with. So the copies stay in place, and each graph that changes
parameters ends with `refresh`. Call `refresh` before replaying a graph, too, since other code may have changed them.
"""

import torch
from torch import Tensor, nn

from accel_rl.models.layers import Conv2d


class Bf16Weights:
    """The bfloat16 copies of a network's parameters; a parameter's copy is its attribute `bf16`.

    Copies of flat parameters (updates/flat.py) are one vector, cast by one kernel. If a layer scales its weight, the
    copy is of the scaled weight."""

    def __init__(self, network: nn.Module):
        self._parameters = list(network.parameters())
        vector: Tensor | None = getattr(self._parameters[0], "flat_vector", None)
        self._sources = [each.detach() for each in self._parameters] if vector is None else [vector]
        self._copies = [torch.empty_like(source, dtype=torch.bfloat16) for source in self._sources]
        layers = [each for each in network.modules() if isinstance(each, Conv2d) and each.scale != 1]
        self._scaled = [(layer.weight, layer.scale) for layer in layers]
        for index, parameter in enumerate(self._parameters):
            copy = self._copies[0 if vector is not None else index]
            if vector is not None:
                copy = copy.as_strided(parameter.shape, parameter.stride(), parameter.storage_offset())
            parameter.bf16, parameter.bf16_weights = copy, self  # type: ignore[attr-defined]
        self._version: list[int] = []
        self.refresh()

    @torch.no_grad()
    def refresh(self, always: bool = False) -> None:
        """Casts the parameters if PyTorch has counted in-place changes; always: even if not, since it misses some."""
        version = [tensor._version for tensor in (*self._sources, *self._parameters)]
        if version == self._version and not always:
            return
        self._version = version
        for copy, source in zip(self._copies, self._sources, strict=True):
            copy.copy_(source)
        for weight, scale in self._scaled:
            weight.bf16.copy_(weight * scale)  # type: ignore[attr-defined]


def keep_copies(network: nn.Module) -> Bf16Weights | None:
    """Gives a network that computes in bfloat16 on a GPU copies of its weights; returns None for any other network."""
    if getattr(network, "bf16", False) and next(network.parameters()).is_cuda:
        return Bf16Weights(network)
    return None


def refresh(network: object, always: bool = False) -> None:
    """Casts a network's parameters again if it has copies of them, see `Bf16Weights.refresh`."""
    parameter = next(network.parameters(), None) if isinstance(network, nn.Module) else None
    if copies := getattr(parameter, "bf16_weights", None):
        copies.refresh(always)
