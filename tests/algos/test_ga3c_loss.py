"""GA3C's loss against the paper's formulas in float64 (Babaeizadeh et al. 2017, equation 5)."""

import math

import gymnasium
import numpy as np
import pytest
import torch
from torch import Tensor

from accel_rl.algos.a2c import A2CSettings, A2CTargets, a2c_loss
from accel_rl.algos.actor_critic import Outputs
from accel_rl.algos.base import RunInfo
from accel_rl.algos.ga3c import GA3C, GA3CSettings
from accel_rl.algos.returns import discounted_return
from accel_rl.envs.spec import EnvSpec
from accel_rl.errors import UsageError
from accel_rl.models.distributions import Categorical
from accel_rl.updates import Update
from accel_rl.updates.optimizers import SGD
from tests.helpers.random_rollouts import VECTORS
from tests.helpers.segments import HORIZON, merged

EPSILON = 1e-6


def reference(logits: Tensor, value: Tensor, action: Tensor, return_: Tensor, constant_value: Tensor) -> Tensor:
    """Returns  sum  - log(pi(a) + e) (R - V') - 0.01 H(pi + e) + 1/2 (R - V)^2  with V' constant; all [N]."""
    p = logits.exp() / logits.exp().sum(-1, keepdim=True)
    chosen = p[torch.arange(len(action)), action]
    entropy = -(p * (p + EPSILON).log()).sum(-1)
    return (
        -(chosen + EPSILON).log() * (return_ - constant_value) - 0.01 * entropy + 0.5 * (return_ - value).square()
    ).sum()


def test_an_update_descends_the_papers_sum() -> None:
    """An update's gradient is that of the paper's loss summed over the valid samples; the logged loss is the mean."""
    torch.manual_seed(0)
    algo = GA3C(VECTORS, GA3CSettings(value_weight=0.5, discount=0.9), 1000, 3, HORIZON, learns_from_segments=True)
    with torch.no_grad():  # some probabilities near 0, where epsilon matters
        algo.policy.policy_head.weight.mul_(4000)
    rollout = merged(VECTORS, algo.policy, 12)
    valid = rollout.valid
    done = rollout.done | (valid & ~torch.cat([valid[1:], valid[:1] & False]))
    is_end = done & valid & ~rollout.terminated
    reward = rollout.reward + 0.9 * torch.where(is_end, rollout.bootstrap_value, 0.0)
    return_ = discounted_return(reward, done, torch.zeros(12), 0.9)[valid].double()
    logits, value = (x.double() for x in algo.policy(rollout.observations(0, HORIZON)[valid]))
    assert (logits.log_softmax(-1) < math.log(EPSILON)).any(), "epsilon would not count"
    expected = reference(logits, value, rollout.action[valid], return_, value.detach())
    gradient = torch.cat([g.flatten() for g in torch.autograd.grad(expected, list(algo.policy.parameters()))])
    update = Update(algo.policy, SGD())
    stats = algo.learn(rollout, update)
    torch.testing.assert_close(
        update.parameters.gradient, gradient, rtol=1e-3, atol=1e-3 * float(gradient.abs().mean())
    )
    assert stats["loss"].item() == pytest.approx(expected.item() / int(valid.sum()), rel=1e-4)
    assert stats["grad_norm"].item() == pytest.approx(gradient.norm().item(), rel=1e-4)
    rollout.valid.zero_()
    assert all(value.item() == 0 for value in algo.learn(rollout, update).values())


def test_logarithms_with_epsilon() -> None:
    """Both the log-probability and the entropy include the epsilon, in the loss and in its gradient."""
    generator = torch.Generator().manual_seed(0)
    logits = 8 * torch.randn(7, 3, generator=generator, dtype=torch.float64)  # probabilities from 1e-9 to 1
    value, advantage, return_ = torch.randn(3, 7, generator=generator, dtype=torch.float64)
    action, valid = torch.arange(7) % 3, torch.ones(7, dtype=torch.bool)
    logits.requires_grad_()
    value.requires_grad_()
    expected = reference(logits, value, action, return_, return_.detach() - advantage)

    def loss_with(epsilon: float) -> Tensor:
        distribution = Categorical(3, epsilon)
        outputs = Outputs(distribution.log_probability(logits, action), distribution.entropy(logits), value)
        return a2c_loss(outputs, A2CTargets(advantage, return_), valid, A2CSettings(value_weight=0.5), 0.01)[0]

    loss_sum = loss_with(EPSILON)
    assert loss_sum.item() == pytest.approx(expected.item(), rel=1e-12)
    gradients = (torch.autograd.grad(each, (logits, value)) for each in (loss_sum, expected))
    for gradient, wanted in zip(*gradients, strict=True):
        torch.testing.assert_close(gradient, wanted, rtol=1e-9, atol=1e-12)
    assert abs(loss_with(0.0).item() - loss_sum.item()) > 0.1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("logit", [20.0, 200.0, 1e4, math.inf])
def test_certainty(logit: float, dtype: torch.dtype) -> None:
    """Log-probabilities, entropies and their gradients are exact and finite at probabilities of 0 and 1."""
    logits = torch.tensor([[0.0, -logit, -logit]], dtype=dtype, requires_grad=True)
    distribution = Categorical(3, EPSILON)
    certain, impossible = (distribution.log_probability(logits, torch.tensor([a])) for a in (0, 1))
    p = math.exp(-logit)
    assert certain.item() == pytest.approx(math.log1p(EPSILON - 2 * p), abs=1e-8)
    assert impossible.item() == pytest.approx(math.log(p + EPSILON), rel=1e-6)
    # d log(p_a + e) / d z_b = p_a / (p_a + e) (1[a = b] - p_b)
    gradient = torch.autograd.grad(impossible.sum(), logits)[0][0]
    share = p / (p + EPSILON)
    assert gradient.tolist() == pytest.approx([-share, share, 0.0], rel=1e-4, abs=1e-8)
    assert torch.autograd.grad(certain.sum(), logits)[0].abs().max() < 1e-8
    entropy = distribution.entropy(logits)
    assert entropy.item() == pytest.approx(-math.log1p(EPSILON) - 2 * p * math.log(p + EPSILON), abs=1e-7)
    assert torch.autograd.grad(entropy.sum(), logits)[0].isfinite().all()


def test_settings_that_do_not_fit() -> None:
    """GA3C refuses an epsilon for Box actions, and a gae_lambda other than 1."""
    box = EnvSpec(VECTORS.observation_space, gymnasium.spaces.Box(-1, 1, (2,), np.float32))
    with pytest.raises(UsageError, match="log_epsilon=1e-06 is for Discrete actions"):
        GA3C(box, GA3CSettings(), 100, 2, 5)
    algo = GA3C(VECTORS, GA3CSettings(gae_lambda=0.95), 100, 2, 5)
    with pytest.raises(UsageError, match="takes gae_lambda=1, but it is"):
        algo.validate(RunInfo(100, 4, ("cpu",)))
