"""Backpropagation on the fake GPU.

Autograd's engine asks CUDA for a context, which does not exist, so the nodes of its graph are called one by one."""

from collections import defaultdict
from typing import Any

import torch
from torch import Tensor


def backward(
    root: Tensor,
    gradient: Tensor | None = None,
    retain_graph: Any = None,
    create_graph: bool = False,
    inputs: Any = None,
) -> None:
    """Replaces torch.Tensor.backward, without hooks, second derivatives or chosen inputs."""
    if create_graph or inputs is not None:
        raise NotImplementedError("create_graph and inputs on the fake GPU")
    if root.grad_fn is None:
        raise RuntimeError("element 0 of tensors does not require grad and does not have a grad_fn")
    if gradient is None and root.numel() != 1:
        raise RuntimeError("grad can be implicitly created only for scalar outputs")
    num_uses = _count_uses(root.grad_fn)
    gradients: dict[Any, dict[int, Tensor]] = defaultdict(dict)
    with torch.no_grad():
        gradients[root.grad_fn][root.output_nr] = torch.ones_like(root) if gradient is None else gradient
        ready = [root.grad_fn]
        while ready:
            node = ready.pop()
            results = _call(node, gradients.pop(node, {}))
            for (after, number), result in zip(node.next_functions, results, strict=True):
                if after is None:
                    continue
                if result is not None:
                    _add(gradients[after], number, _fit(result, after._input_metadata[number]))
                num_uses[after] -= 1
                if not num_uses[after]:
                    ready.append(after)


def _count_uses(root: Any) -> dict[Any, int]:
    """Returns the number of gradients that each node gets."""
    uses: dict[Any, int] = defaultdict(int)
    seen, stack = {root}, [root]
    while stack:
        for after, _ in stack.pop().next_functions:
            if after is not None:
                uses[after] += 1
                if after not in seen:
                    seen.add(after)
                    stack.append(after)
    return uses


def _call(node: Any, gradients: dict[int, Tensor]) -> list[Any]:
    """Calls a node; returns the gradients that it passes on, one entry for each of its next_functions."""
    count = len(node.next_functions)
    if not gradients:
        return [None] * count
    inputs: list[Any] = [gradients.get(number) for number in range(len(node._input_metadata))]
    is_custom = hasattr(node, "apply")  # a torch.autograd.Function
    if is_custom:
        inputs = [
            torch.zeros(meta.shape, dtype=meta.dtype, device=meta.device) if given is None else given
            for given, meta in zip(inputs, node._input_metadata, strict=True)
        ]
    results = node.apply(*inputs) if is_custom else node(*inputs)
    results = list(results) if isinstance(results, tuple) else [results]
    return (results + [None] * count)[:count]


def _fit(gradient: Tensor, meta: Any) -> Tensor:
    """Sums a gradient over broadcast dimensions and converts it, as the engine does."""
    gradient = gradient.sum_to_size(meta.shape) if gradient.shape != meta.shape else gradient
    return gradient.to(meta.dtype) if gradient.dtype != meta.dtype else gradient


def _add(gradients: dict[int, Tensor], number: int, gradient: Tensor) -> None:
    gradients[number] = gradients[number] + gradient if number in gradients else gradient
