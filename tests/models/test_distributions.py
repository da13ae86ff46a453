"""Tests of action distributions against torch's own, and for extreme numbers."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor
from torch.distributions import Categorical as TorchCategorical
from torch.distributions import Independent, Normal

from accel_rl.errors import UsageError
from accel_rl.models.distributions import (
    MIN_VARIANCE,
    Categorical,
    Composite,
    DiagonalGaussian,
    MultiCategorical,
    SphericalGaussian,
    make_distribution,
)

KINDS: dict[str, Any] = {
    "categorical": lambda: Categorical(4),
    "multi_categorical": lambda: MultiCategorical([2, 5, 1, 3]),
    "diagonal": lambda: DiagonalGaussian(3, log_std_init=-0.3),
    "spherical": lambda: SphericalGaussian(3),
    "composite": lambda: make_distribution(PARTS),
}
PARTS = spaces.Dict(
    {"arm": spaces.Tuple([spaces.Box(-1, 1, (2,)), spaces.MultiDiscrete([2, 4])]), "gear": spaces.Discrete(3)}
)


def reference(distribution: Any, parameters: Tensor) -> list[Any]:
    """Returns torch's distribution of each choice; the caller sums their log-probabilities and entropies."""
    if isinstance(distribution, Categorical):
        return [TorchCategorical(logits=parameters)]
    if isinstance(distribution, MultiCategorical):
        return [TorchCategorical(logits=logits) for logits in parameters.split([2, 5, 1, 3], -1)]
    if isinstance(distribution, DiagonalGaussian):
        mean, log_std = parameters.chunk(2, -1)
        return [Independent(Normal(mean, log_std.exp()), 1)]
    mean, variance = parameters[..., :-1], parameters[..., -1:]
    return [Independent(Normal(mean, variance.sqrt().expand_as(mean)), 1)]


def make(kind: str, shape: tuple[int, ...] = (50,), scale: float = 2.0) -> tuple[Any, Tensor, Tensor]:
    """Returns a distribution, random parameters of it, and actions sampled from them."""
    generator = torch.Generator().manual_seed(4)
    distribution = KINDS[kind]()
    output = scale * torch.randn((*shape, distribution.num_outputs), generator=generator)
    parameters = distribution.to_parameters(output)
    return distribution, parameters, distribution.sample(parameters, distribution.draw_noise(shape, generator))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "composite"])
@pytest.mark.parametrize("shape", [(50,), (3, 7)])
def test_log_probabilities_and_entropies_are_those_of_torch(kind: str, shape: tuple[int, ...]) -> None:
    distribution, parameters, action = make(kind, shape)
    references = reference(distribution, parameters)
    actions = action.unbind(-1) if isinstance(distribution, MultiCategorical) else [action]
    log_p = sum(ref.log_prob(a) for ref, a in zip(references, actions, strict=True))
    torch.testing.assert_close(distribution.log_probability(parameters, action), log_p, rtol=1e-4, atol=1e-5)
    entropy = sum(ref.entropy() for ref in references)
    torch.testing.assert_close(distribution.entropy(parameters), entropy, rtol=1e-4, atol=1e-5)


def test_a_composite_is_the_product_of_its_parts() -> None:
    """A composite's actions, log-probabilities, entropies and gradients equal its parts' in NumPy."""
    distribution = make_distribution(PARTS)
    assert isinstance(distribution, Composite) and (distribution.num_outputs, distribution.encoded_size) == (11, 11)
    rng = np.random.default_rng(0)
    output, log_std = rng.normal(0, 2, (50, 11)), np.array([-0.3, 0.4])
    noise = distribution.draw_noise((50,), torch.Generator().manual_seed(0))
    distribution.parts[0].log_std.data = torch.from_numpy(log_std).float()
    given = torch.from_numpy(output).float().requires_grad_()
    parameters = distribution.to_parameters(given)
    action = distribution.sample(parameters, noise).detach()
    assert action.shape == noise.shape == (50, 5) and action.dtype == torch.float32
    log_p, entropy = distribution.log_probability(parameters, action), distribution.entropy(parameters)
    (2 * log_p + entropy).sum().backward()

    numbers, choices, u = action.numpy(), action[:, 2:].numpy().astype(int), noise.numpy()
    np.testing.assert_allclose(numbers[:, :2], output[:, :2] + np.exp(log_std) * u[:, :2], rtol=1e-4, atol=1e-5)
    z = (numbers[:, :2] - output[:, :2]) / np.exp(log_std)
    expected_log_p = (-(z**2) / 2 - log_std - np.log(2 * np.pi) / 2).sum(1)
    expected_entropy = np.full(50, (log_std + np.log(2 * np.pi * np.e) / 2).sum())
    gradient = [2 * z / np.exp(log_std)]
    for d, columns in enumerate((slice(2, 4), slice(4, 8), slice(8, 11))):
        p = np.exp(output[:, columns])
        p /= p.sum(1, keepdims=True)
        below, above = np.tril(np.ones((p.shape[1], p.shape[1])), -1) @ p.T, np.tril(np.ones((p.shape[1],) * 2)) @ p.T
        chosen, row = choices[:, d], np.arange(50)
        assert (below[chosen, row] <= u[:, 2 + d] + 1e-6).all() and (u[:, 2 + d] < above[chosen, row] + 1e-6).all()
        H = -(p * np.log(p)).sum(1)
        expected_log_p, expected_entropy = expected_log_p + np.log(p[row, chosen]), expected_entropy + H
        gradient.append(2 * (np.eye(p.shape[1])[chosen] - p) - p * (np.log(p) + H[:, None]))
    np.testing.assert_allclose(log_p.detach(), expected_log_p, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(entropy.detach(), expected_entropy, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(given.grad, np.concatenate(gradient, 1), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(distribution.parts[0].log_std.grad, (2 * (z**2 - 1) + 1).sum(0), rtol=1e-4)
    mode = distribution.mode(parameters).detach().numpy()
    best = [output[:, columns].argmax(1) for columns in (slice(2, 4), slice(4, 8), slice(8, 11))]
    np.testing.assert_allclose(mode, np.column_stack([output[:, :2], *best]), rtol=1e-5)


def test_categorical_sampling_follows_the_probabilities() -> None:
    """Categorical samples have the given probabilities, and the largest noise gives the last action."""
    logits = torch.tensor([0.1, 0.0, 0.6, 0.3]).log().expand(100_001, 4)
    action = Categorical(4).sample(logits, torch.linspace(0, 1, 100_001))
    frequency = torch.bincount(action, minlength=4) / len(action)
    torch.testing.assert_close(frequency, torch.tensor([0.1, 0.0, 0.6, 0.3]), atol=1e-4, rtol=0)
    assert Categorical(3).sample(torch.zeros(1, 3), torch.ones(1)).item() == 2


def test_moments_of_the_spherical_gaussian() -> None:
    """Samples of the spherical Gaussian have its mean and its one variance."""
    distribution = SphericalGaussian(3)
    parameters = distribution.to_parameters(torch.tensor([[1.0, -2.0, 0.0, 3.0]]))
    variance = math.log1p(math.exp(3.0)) + MIN_VARIANCE
    num = 200_000
    noise = distribution.draw_noise((num,), torch.Generator().manual_seed(3))
    action = distribution.sample(parameters.expand(num, -1), noise)
    torch.testing.assert_close(action.mean(0), torch.tensor([1.0, -2.0, 0.0]), rtol=0, atol=0.03)
    torch.testing.assert_close(action.var(0), torch.full((3,), variance), rtol=0.02, atol=0)
    assert distribution.mode(parameters).tolist() == [[1, -2, 0]]
    assert distribution.to_parameters(torch.tensor([0.0, 0.0, 0.0, -200.0]))[-1].item() == pytest.approx(MIN_VARIANCE)
    assert distribution.entropy(parameters).item() == pytest.approx(1.5 * (math.log(2 * math.pi * variance) + 1))


def test_extreme_noise_gives_existing_actions() -> None:
    """Noise of 0 or just below 1 gives the first or the last action, never one beyond it."""
    distribution = MultiCategorical([2, 5, 1, 3])
    logits = torch.randn(1000, distribution.num_outputs, generator=torch.Generator().manual_seed(0))
    last = distribution.sample(logits, torch.full((1000, 4), 1 - 2**-24))
    assert (last == torch.tensor([1, 4, 0, 2])).all()
    assert not distribution.sample(logits, torch.zeros(1000, 4)).any()
    certain = torch.zeros(1, 11)
    certain[0, [0, 6, 7, 9]] = 50.0
    assert distribution.sample(certain, torch.full((1, 4), 0.5)).tolist() == [[0, 4, 0, 1]]
    assert distribution.mode(certain).tolist() == [[0, 4, 0, 1]]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("extreme", [1e4, -1e4, 1e6])
def test_extreme_outputs_stay_finite(kind: str, extreme: float) -> None:
    """Extreme outputs give finite actions, log-probabilities, entropies and gradients."""
    distribution = KINDS[kind]()
    output = torch.zeros(2, distribution.num_outputs)
    output[0, -1] = output[1, 0] = extreme
    output[1, -1] = -extreme
    output.requires_grad_()
    parameters = distribution.to_parameters(output)
    noise = distribution.draw_noise((2,), torch.Generator().manual_seed(0))
    action = distribution.sample(parameters, noise).detach()
    log_p, entropy = distribution.log_probability(parameters, action), distribution.entropy(parameters)
    (log_p.sum() + entropy.sum()).backward()
    assert log_p.isfinite().all() and entropy.isfinite().all() and action.isfinite().all()
    assert output.grad is not None and output.grad.isfinite().all()


def test_encoded_actions() -> None:
    """Encoded actions are one-hot for choices and plain numbers for boxes, in the order of the space."""
    assert Categorical(3).encode(torch.tensor([2, 0])).tolist() == [[0, 0, 1], [1, 0, 0]]
    multi = MultiCategorical([2, 3])
    assert multi.encode(torch.tensor([[1, 0], [0, 2]])).tolist() == [[0, 1, 1, 0, 0], [1, 0, 0, 0, 1]]
    matrix = make_distribution(spaces.MultiBinary([2, 1])).encode(torch.tensor([[[1], [0]]]))
    assert matrix.tolist() == [[0, 1, 1, 0]]
    for kind in ("diagonal", "spherical"):
        assert KINDS[kind]().encode(torch.tensor([[0.5, -7.0, 2.0]])).tolist() == [[0.5, -7, 2]]
    parts = make_distribution(PARTS).encode(torch.tensor([[0.5, -7, 1, 2, 1]]))
    assert parts.tolist() == [[0.5, -7, 0, 1, 0, 0, 1, 0, 0, 1, 0]]
    for kind in KINDS:
        distribution, _, action = make(kind)
        code = distribution.encode(action)
        assert code.shape == (50, distribution.encoded_size) and code.dtype == torch.float32


def test_every_space_has_its_distribution() -> None:
    """Each action space has a distribution of the right size; other spaces and Gaussians are usage errors."""
    box = spaces.Box(-1, 1, (2, 3))
    assert make_distribution(spaces.Discrete(5, start=3)).num_outputs == 5
    assert make_distribution(spaces.MultiDiscrete([[2, 3], [4, 5]])).num_outputs == 14
    assert make_distribution(spaces.MultiBinary([2, 3])).num_outputs == 12
    assert make_distribution(box).num_outputs == 6
    assert make_distribution(box, "spherical").num_outputs == 7
    assert make_distribution(spaces.Box(-np.inf, 1, ())).num_outputs == 1
    assert make_distribution(spaces.Tuple([box, spaces.Dict(a=spaces.Discrete(4))]), "spherical").num_outputs == 11
    with pytest.raises(UsageError, match="unknown gaussian 'sperical'; did you mean spherical"):
        make_distribution(box, "sperical")
    with pytest.raises(
        UsageError, match="Text are not supported; use Discrete, MultiDiscrete, MultiBinary, Box, or a Dict"
    ):
        make_distribution(spaces.Text(3))


@pytest.mark.parametrize(
    "space", [spaces.MultiDiscrete([[2, 3], [4, 5]]), spaces.Box(-1, 1, (2, 2)), spaces.Box(0, 1, ())]
)
@pytest.mark.parametrize("gaussian", ["diagonal", "spherical"])
def test_actions_in_the_shape_of_their_space(space: Any, gaussian: str) -> None:
    """Actions in the shape of their space have the log-probability of flat ones."""
    distribution = make_distribution(space, gaussian)
    parameters = distribution.to_parameters(torch.randn(6, distribution.num_outputs))
    action = distribution.sample(parameters, distribution.draw_noise((6,), torch.Generator()))
    shaped = distribution.log_probability(parameters, action.reshape(6, *space.shape))
    assert shaped.shape == (6,) and torch.equal(shaped, distribution.log_probability(parameters, action))
