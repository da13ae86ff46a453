"""Slow, obvious arithmetic on plain numbers, as a reference for distributions and losses."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from accel_rl.algos.actor_critic import Outputs
from accel_rl.models.distributions import Categorical, DiagonalGaussian, MultiCategorical, SphericalGaussian

CHOICES = [2, 3]
DISTRIBUTIONS: dict[str, Callable[[], Any]] = {
    "categorical": lambda: Categorical(3),
    "multi_categorical": lambda: MultiCategorical(CHOICES),
    "diagonal": lambda: DiagonalGaussian(2, initial_log_std=-0.3),
    "spherical": lambda: SphericalGaussian(2),
}


def draw(kind: str, *shape: int, seed: int = 0) -> tuple[Any, Tensor, Tensor]:
    """Returns a distribution, random parameters [*shape, P] float64, and actions sampled from other parameters."""
    generator = torch.Generator().manual_seed(seed)
    distribution = DISTRIBUTIONS[kind]().double()
    outputs = torch.randn((2, *shape, distribution.num_outputs), generator=generator, dtype=torch.float64)
    parameters, acting = distribution.to_parameters(outputs).detach()
    noise = distribution.draw_noise(shape, generator)
    return distribution, parameters, distribution.sample(acting, noise)


def log_probability(kind: str, parameters: list[float], action: Any) -> float:
    """Returns one action's log-probability, by the textbook formula."""
    if kind in ("categorical", "multi_categorical"):
        choices = _choices(kind, parameters)
        actions = [action] if kind == "categorical" else action
        return sum(math.log(p[a]) for p, a in zip(choices, actions, strict=True))
    log_p = 0.0
    for mean, std, a in zip(*_normals(kind, parameters), action, strict=True):
        log_p += math.log(math.exp(-((a - mean) ** 2) / (2 * std**2)) / math.sqrt(2 * math.pi * std**2))
    return log_p


def entropy(kind: str, parameters: list[float]) -> float:
    """Returns the entropy, by the textbook formula."""
    if kind in ("categorical", "multi_categorical"):
        return -sum(q * math.log(q) for p in _choices(kind, parameters) for q in p)
    return sum(0.5 * math.log(2 * math.pi * math.e * std**2) for std in _normals(kind, parameters)[1])


def _choices(kind: str, logits: list[float]) -> list[list[float]]:
    """Returns the probabilities of each choice's actions."""
    sizes, start, found = [len(logits)] if kind == "categorical" else CHOICES, 0, []
    for size in sizes:
        weights = [math.exp(x) for x in logits[start : start + size]]
        found.append([weight / sum(weights) for weight in weights])
        start += size
    return found


def _normals(kind: str, parameters: list[float]) -> tuple[list[float], list[float]]:
    """Returns means and stds."""
    if kind == "diagonal":
        size = len(parameters) // 2
        return parameters[:size], [math.exp(x) for x in parameters[size:]]
    return parameters[:-1], [math.sqrt(parameters[-1])] * (len(parameters) - 1)


def outputs_of(distribution: Any, parameters: Tensor, value: Tensor, action: Tensor) -> Outputs:
    return Outputs(distribution.log_probability(parameters, action), distribution.entropy(parameters), value)


def indices(shape: Any) -> Iterator[tuple[int, ...]]:
    """Yields every index of a tensor of this shape."""
    for flat in range(math.prod(shape)):
        index, rest = [], flat
        for size in reversed(shape):
            index.append(rest % size)
            rest //= size
        yield tuple(reversed(index))


def slope(function: Callable[[], float], at: Tensor, step: float = 1e-6) -> Tensor:
    """Returns the gradient of a function with respect to the tensor `at`, which it reads, by central differences."""
    gradient = torch.zeros_like(at)
    with torch.no_grad():
        for index in indices(at.shape):
            here = at[index].item()
            at[index] = here + step
            above = function()
            at[index] = here - step
            gradient[index] = (above - function()) / (2 * step)
            at[index] = here
    return gradient
