"""The losses of A2C, PPO and V-trace, and their gradients, against loops over single samples."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from accel_rl.algos.a2c import A2CSettings, A2CTargets, a2c_loss
from accel_rl.algos.actor_critic import Outputs
from accel_rl.algos.ppo import PPOSettings, PPOTargets, ppo_loss
from accel_rl.algos.vtrace import VTraceSettings, VTraceTargets, vtrace_loss
from accel_rl.models.distributions import Categorical, DiagonalGaussian, MultiCategorical, SphericalGaussian

# tests/models/test_distributions.py tests the numbers of the distributions.
DISTRIBUTIONS: dict[str, Callable[[], Any]] = {
    "categorical": lambda: Categorical(3),
    "multi_categorical": lambda: MultiCategorical([2, 3]),
    "diagonal": lambda: DiagonalGaussian(2, log_std_init=-0.3),
    "spherical": lambda: SphericalGaussian(2),
}
DOUBLE = torch.float64
T, B, DISCOUNT, RHO_BAR, C_BAR, CLIP, ENTROPY_WEIGHT = 6, 3, 0.9, 1.2, 0.8, 0.2, 0.03


class Samples:
    """Random float64 samples [T, B]; those after the end of an episode are invalid and hold garbage."""

    def __init__(self, kind: str):
        generator = torch.Generator().manual_seed(2)

        def randn(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator, dtype=DOUBLE)

        self.distribution = DISTRIBUTIONS[kind]().double()
        acting, now = (self.distribution.to_parameters(randn(T, B, self.distribution.num_outputs)) for _ in range(2))
        self.action = self.distribution.sample(acting, self.distribution.draw_noise((T, B), generator))
        self.parameters, self.value = now.detach().requires_grad_(), randn(T, B).requires_grad_()
        self.behaviour = self.log_p(...).detach() + 0.3 * randn(T, B)
        self.advantage, self.return_, self.old_value, self.reward = randn(4, T, B)
        self.bootstrap_value, self.done = randn(B), torch.rand(T, B, generator=generator) < 0.2
        self.valid = torch.ones(T, B, dtype=torch.bool)
        self.done[T // 2, 0], self.valid[T // 2 + 1 :, 0] = True, False
        self.advantage[~self.valid], self.return_[~self.valid], self.reward[~self.valid] = 1e6, -1e6, 1e3

    def log_p(self, i: Any) -> Tensor:
        return self.distribution.log_probability(self.parameters[i], self.action[i])  # type: ignore[no-any-return]

    def outputs(self) -> Outputs:
        return Outputs(self.log_p(...), self.distribution.entropy(self.parameters), self.value)


def a2c(s: Samples) -> tuple[Tensor, dict[str, Tensor]]:
    return a2c_loss(
        s.outputs(), A2CTargets(s.advantage, s.return_), s.valid, A2CSettings(value_weight=0.7), ENTROPY_WEIGHT
    )


def a2c_terms(s: Samples, i: Any) -> dict[str, Tensor]:
    return {"policy_loss": -s.log_p(i) * s.advantage[i], "value_loss": (s.value[i] - s.return_[i]) ** 2}


def ppo(s: Samples, value_clip: float | None) -> tuple[Tensor, dict[str, Tensor]]:
    targets = PPOTargets(s.advantage, s.return_, s.old_value, s.behaviour)
    settings = PPOSettings(value_clip=value_clip, value_weight=0.7)
    return ppo_loss(s.outputs(), targets, s.valid, settings, torch.tensor(CLIP, dtype=DOUBLE), ENTROPY_WEIGHT)


def ppo_terms(s: Samples, i: Any, value_clip: float | None) -> dict[str, Tensor]:
    ratio, advantage = (s.log_p(i) - s.behaviour[i]).exp(), s.advantage[i]
    # A sample's loss is constant once its ratio has left the clip range in the direction of its advantage.
    bounded = ratio.clamp(max=1 + CLIP) if advantage > 0 else ratio.clamp(min=1 - CLIP)
    error = (s.value[i] - s.return_[i]) ** 2
    if value_clip is not None:
        near = s.old_value[i] + (s.value[i] - s.old_value[i]).clamp(-value_clip, value_clip)
        error = max(error, (near - s.return_[i]) ** 2)
    is_clipped = torch.tensor(not 1 - CLIP <= ratio <= 1 + CLIP)
    kl = ratio.detach() - 1 - ratio.detach().log()
    return {"policy_loss": -bounded * advantage, "value_loss": error, "approx_kl": kl, "clip_fraction": is_clipped}


def vtrace(s: Samples) -> tuple[Tensor, dict[str, Tensor]]:
    settings = VTraceSettings(discount=DISCOUNT, rho_bar=RHO_BAR, c_bar=C_BAR, value_weight=0.7)
    targets = VTraceTargets(s.reward, s.done, s.bootstrap_value, s.behaviour)
    return vtrace_loss(s.outputs(), targets, s.valid, settings, ENTROPY_WEIGHT)


def vtrace_terms(s: Samples, i: Any) -> dict[str, Tensor]:
    t, b = i
    ratio = (s.log_p((slice(None), b)) - s.behaviour[:, b]).exp().tolist()
    V = [*s.value[:, b].tolist(), s.bootstrap_value[b].item()]

    def td_error(t: int, following: float) -> float:
        return float(s.reward[t, b]) + DISCOUNT * following * (not s.done[t, b]) - V[t]

    def v(start: int) -> float:
        """Returns the sum in the paper's definition of v."""
        total, weight = V[start], 1.0  # weight: discount^(t - start) times the product of c before t
        for t in range(start, T):
            total += weight * min(RHO_BAR, ratio[t]) * td_error(t, V[t + 1])
            weight *= DISCOUNT * min(C_BAR, ratio[t])
            if s.done[t, b]:
                break
        return total

    advantage = min(RHO_BAR, ratio[t]) * td_error(t, v(t + 1))
    terms = {"policy_loss": -s.log_p(i) * advantage, "value_loss": (s.value[i] - v(t)) ** 2}
    return terms | {"ratio": torch.tensor(ratio[t], dtype=DOUBLE)}


LOSSES: dict[str, tuple[Callable[..., Any], Callable[..., dict[str, Tensor]], tuple[Any, ...]]] = {
    "a2c": (a2c, a2c_terms, ()),
    "ppo": (ppo, ppo_terms, (None,)),
    "ppo, clipped value": (ppo, ppo_terms, (0.5,)),
    "vtrace": (vtrace, vtrace_terms, ()),
}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("kind", DISTRIBUTIONS)
def test_loss_and_gradient(kind: str, name: str) -> None:
    """A loss, its terms and its gradient equal its equation summed over the valid samples."""
    loss, terms_of, options = LOSSES[name]
    samples = Samples(kind)
    each = []
    for i in map(tuple, samples.valid.nonzero().tolist()):
        each.append(terms_of(samples, i, *options))
        each[-1]["entropy"] = samples.distribution.entropy(samples.parameters[i])
    expected = {key: sum(terms[key] for terms in each) for key in each[0]}
    expected["loss"] = expected["policy_loss"] + 0.7 * expected["value_loss"] - ENTROPY_WEIGHT * expected["entropy"]
    loss_sum, terms = loss(samples, *options)
    numbers = {key: float(torch.as_tensor(value).detach()) for key, value in expected.items()}
    assert {key: value.item() for key, value in terms.items()} == pytest.approx(numbers, rel=1e-9)
    inputs = (samples.parameters, samples.value)
    for gradient, wanted in zip(
        torch.autograd.grad(loss_sum, inputs), torch.autograd.grad(expected["loss"], inputs), strict=True
    ):
        torch.testing.assert_close(gradient, wanted, rtol=1e-9, atol=1e-12)
        assert gradient[samples.valid].any() and not gradient[~samples.valid].any()
    assert loss_sum.item() == terms["loss"].item() and samples.done.any() and not samples.valid.all()
    if "ppo" in name:
        assert 0 < terms["clip_fraction"] < samples.valid.sum()
