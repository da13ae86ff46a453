"""A2C's loss and learning step against plain arithmetic."""

import gymnasium
import numpy as np
import pytest
import torch

from accel_rl.algos.a2c import A2C, A2CSettings, A2CTargets, a2c_loss
from accel_rl.envs import EnvConfig
from accel_rl.envs.spec import EnvSpec
from accel_rl.samplers import SerialSampler
from accel_rl.samplers.base import SamplerConfig
from tests.helpers.losses import DISTRIBUTIONS, draw, entropy, indices, log_probability, outputs_of, slope
from tests.helpers.samplers import TOYS, make, spec_of
from tests.helpers.updates import RecordingUpdate


@pytest.mark.parametrize("kind", DISTRIBUTIONS)
def test_loss_and_gradient_of_all_distributions(kind: str) -> None:
    """A2C's loss and gradient equal plain arithmetic over the valid samples, for every kind of action."""
    distribution, parameters, action = draw(kind, 4, 3)
    generator = torch.Generator().manual_seed(1)
    value, advantage, return_ = torch.randn(3, 4, 3, generator=generator, dtype=torch.float64)
    valid = torch.rand(4, 3, generator=generator) > 0.3
    advantage[~valid], return_[~valid] = 1e6, -1e6

    def expected() -> float:
        total = 0.0
        for i in indices(valid.shape):
            if valid[i]:
                numbers = parameters[i].tolist()
                total -= log_probability(kind, numbers, action[i].tolist()) * advantage[i].item()
                total += 0.7 * (value[i].item() - return_[i].item()) ** 2 - 0.03 * entropy(kind, numbers)
        return total

    slopes = [slope(expected, x) for x in (parameters, value)]
    parameters.requires_grad_()
    value.requires_grad_()
    outputs = outputs_of(distribution, parameters, value, action)
    loss_sum, terms = a2c_loss(outputs, A2CTargets(advantage, return_), valid, A2CSettings(value_weight=0.7), 0.03)
    loss_sum.backward()
    assert 0 < valid.sum() < 12 and loss_sum.item() == terms["loss"].item() == pytest.approx(expected(), rel=1e-9)
    for x, gradient in zip((parameters, value), slopes, strict=True):
        torch.testing.assert_close(x.grad, gradient, rtol=1e-6, atol=1e-6)
        assert not x.grad[~valid].any()


@pytest.mark.parametrize("gae_lambda", [1.0, 0.9])
@pytest.mark.parametrize("reset_mode", ["immediate", "wait"])
def test_learn_agrees_with_plain_loops(gae_lambda: float, reset_mode: str) -> None:
    """`learn` minimizes the loss of plain loops, which cut at terminations and bootstrap at truncations."""
    env = EnvConfig(f"{TOYS}:Counting", options={"lengths": [3, -4, -2], "seeded": True})
    settings = A2CSettings(gae_lambda=gae_lambda, discount=0.9)
    torch.manual_seed(0)
    algo = A2C(spec_of(env), settings, schedule_steps=100, num_envs=4, horizon=7)
    sampler = make(SerialSampler, env, SamplerConfig(4, 7, 2), algo.policy, reset_mode=reset_mode)
    update = RecordingUpdate(algo.policy, learns=False)
    truncations = 0
    for _ in range(4):
        rollout = sampler.collect()
        truncations += len(rollout.final_step)
        T, B = rollout.reward.shape
        with torch.no_grad():
            values = torch.stack([algo.policy(rollout.observation_rows[t])[1] for t in range(T + 1)]).double()
            logits = torch.stack([algo.policy(rollout.observation_rows[t])[0] for t in range(T)]).double()
            final = {
                (int(t), int(b)): algo.policy(observation[None])[1].item()
                for t, b, observation in zip(
                    rollout.final_step, rollout.final_env, rollout.final_observation, strict=True
                )
            }
        expected = 0.0
        for b in range(B):
            advantage_tp1 = 0.0
            for t in reversed(range(T)):
                if rollout.terminated[t, b]:
                    next_value = 0.0
                elif rollout.truncated[t, b]:
                    next_value = final[t, b]
                else:
                    next_value = values[t + 1, b].item()
                delta = rollout.reward[t, b].item() + 0.9 * next_value - values[t, b].item()
                cut = bool(rollout.done[t, b])
                advantage = delta + (0.0 if cut else 0.9 * gae_lambda * advantage_tp1)
                advantage_tp1 = advantage
                if rollout.valid[t, b]:
                    log_p = logits[t, b].log_softmax(-1)
                    entropy = -(log_p.exp() * log_p).sum().item()
                    action = int(rollout.action[t, b])
                    expected += -log_p[action].item() * advantage + 0.25 * advantage**2 - 0.01 * entropy
        stats = algo.learn(rollout, update)
        call = update.calls[-1]
        assert call.loss(*call.batch)[0].item() == pytest.approx(expected, rel=1e-4)
        assert stats["loss"].item() == pytest.approx(expected / rollout.valid.sum().item(), rel=1e-4)
        assert call.num_samples.item() == rollout.valid.sum().item()
        assert call.learning_rate == 7e-4 and not call.batch[0].is_sequences
    assert len(update.calls) == 4
    assert truncations > 0


def test_learning_rate_scales_with_the_root_of_the_batch() -> None:
    """The learning rate scales with the square root of the batch, relative to the paper's 80 samples."""
    spec = EnvSpec(gymnasium.spaces.Box(-1, 1, (2,), np.float32), gymnasium.spaces.Discrete(2))
    for num_envs, expected in ((16, 7e-4), (64, 1.4e-3), (512, 3.96e-3)):
        algo = A2C(spec, A2CSettings(learning_rate_scaling="sqrt"), 100, num_envs, horizon=5)
        assert algo.learning_rate(0) == pytest.approx(expected, rel=1e-3)
    assert A2C(spec, A2CSettings(), 100, 512, 5).learning_rate(0) == 7e-4


def test_a_state_without_local_parts_is_loaded() -> None:
    """A state without local parts leaves the running returns at zero; a whole state restores them."""
    spec = EnvSpec(gymnasium.spaces.Box(-1, 1, (2,), np.float32), gymnasium.spaces.Discrete(2))
    algo, other, plain = (A2C(spec, A2CSettings(normalize_returns=on), 100, 3, 5) for on in (True, True, False))
    assert algo.statistics and algo.statistics.return_scale and other.statistics and other.statistics.return_scale
    algo.statistics.return_scale.running.copy_(torch.arange(3.0))
    state = algo.state_dict()
    other.load_state_dict({name: value for name, value in state.items() if name != "local"})
    assert not other.statistics.return_scale.running.any()
    other.load_state_dict(state)
    assert other.statistics.return_scale.running.tolist() == [0, 1, 2]
    plain.load_state_dict(plain.state_dict())
    assert plain.statistics is None
