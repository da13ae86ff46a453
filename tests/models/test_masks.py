"""Tests of action masks in networks: a forbidden action has probability 0 and is never chosen."""

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from accel_rl.envs.spaces.masks import pack
from accel_rl.envs.spec import EnvSpec
from accel_rl.models.actor_critic import ActorCritic
from accel_rl.models.distributions import Categorical, MultiCategorical
from accel_rl.models.masks import DISALLOWED, disallow
from accel_rl.models.q_network import QNetwork
from accel_rl.rollout import RecurrentInputs

VECTOR = spaces.Box(-1, 1, (3,), np.float32)
CHOICES: dict[str, tuple[Any, list[int]]] = {
    "discrete": (spaces.Discrete(11), [11]),
    "multi_discrete": (spaces.MultiDiscrete([4, 2, 5]), [4, 2, 5]),
}


def random_masks(nums: list[int], count: int, seed: int = 0) -> np.ndarray:
    """Returns masks [count, A] bool: about half of the actions, rarely a choice's last, at least one per choice."""
    rng = np.random.default_rng(seed)
    parts = [rng.random((count, num)) < 0.5 for num in nums]
    for part in parts:
        part[:, -1] &= rng.random(count) < 0.2
        part[np.arange(count), rng.integers(part.shape[1], size=count)] = True
    return np.concatenate(parts, 1)


def rows_of(masks: np.ndarray, seed: int = 0) -> Tensor:
    seen = np.random.default_rng(seed).uniform(-1, 1, (len(masks), 3))
    return torch.from_numpy(np.concatenate([seen, pack(masks)], 1).astype(np.float32))


def make_policy(case: str, **options: Any) -> ActorCritic:
    """Returns a policy of large random logits, so that the best action is often not allowed."""
    torch.manual_seed(0)
    policy = ActorCritic(EnvSpec(VECTOR, CHOICES[case][0], mask_sources=("info",)), **options)
    torch.nn.init.normal_(policy.policy_head.weight, std=3)
    return policy


def reference(logits: np.ndarray, mask: np.ndarray, action: np.ndarray, nums: list[int]) -> tuple[float, float]:
    """Returns log pi(action) and the entropy of one step in float64, over the allowed actions alone."""
    log_probability = entropy = 0.0
    starts = np.cumsum([0, *nums])
    for start, stop, chosen in zip(starts[:-1], starts[1:], np.atleast_1d(action), strict=True):
        allowed = np.flatnonzero(mask[start:stop])
        own = logits[start:stop][allowed]
        log_p = own - own.max() - np.log(np.exp(own - own.max()).sum())
        log_probability += log_p[allowed.tolist().index(chosen)]
        entropy -= (np.exp(log_p) * log_p).sum()
    return log_probability, entropy


@pytest.mark.parametrize("case", CHOICES)
def test_numbers_and_gradients_are_those_of_the_allowed_actions(case: str) -> None:
    """Log-probabilities, entropies and gradients are those of the allowed actions alone."""
    _, nums = CHOICES[case]
    distribution = Categorical(nums[0], is_masked=True) if len(nums) == 1 else MultiCategorical(nums, is_masked=True)
    masks = random_masks(nums, 30)
    logits = np.random.default_rng(1).normal(size=masks.shape) * 4
    output = torch.tensor(logits, dtype=torch.float32, requires_grad=True)
    parameters = disallow(output, torch.from_numpy(masks))
    action = distribution.sample(parameters.detach(), torch.rand(30, *distribution.noise_shape))
    log_probability, entropy = distribution.log_probability(parameters, action), distribution.entropy(parameters)
    (2 * log_probability + 3 * entropy).sum().backward()  # type: ignore[no-untyped-call]
    assert output.grad is not None and (output.grad.numpy()[~masks] == 0).all()
    for k in range(30):
        expected = reference(logits[k], masks[k], action[k].numpy(), nums)
        assert log_probability[k].item() == pytest.approx(expected[0], rel=1e-5, abs=1e-5)
        assert entropy[k].item() == pytest.approx(expected[1], rel=1e-5, abs=1e-5)

        differences = np.eye(len(logits[k])) * 1e-5
        gradient = [
            np.dot([2e5 / 2, 3e5 / 2], np.subtract(*(reference(x, masks[k], action[k].numpy(), nums) for x in pair)))
            for pair in zip(logits[k] + differences, logits[k] - differences, strict=True)
        ]
        np.testing.assert_allclose(output.grad[k].numpy(), gradient, atol=1e-4, rtol=1e-4)


def choices_of(action: Tensor, nums: list[int]) -> Tensor:
    """Returns the index of each choice's logit for actions [..., D]."""
    return action + torch.tensor([0, *np.cumsum(nums)[:-1]])


@pytest.mark.parametrize("case", CHOICES)
def test_many_draws(case: str) -> None:
    """Draws never take a forbidden action, even with noise at 0 and 1."""
    nums, policy = CHOICES[case][1], make_policy(case)
    masks = random_masks(nums, 200)
    allowed = torch.from_numpy(masks)
    parameters = policy.act(rows_of(masks), None)[1]["distribution"]
    assert (parameters[~allowed] == DISALLOWED).all() and policy.distribution.is_masked
    noise = policy.draw_noise(1000, 200, torch.Generator().manual_seed(0))
    noise[0], noise[1], noise[2:300] = 0.0, 1.0, 1 - 2**-24
    for action in (
        policy.distribution.sample(parameters.expand(1000, -1, -1), noise),
        policy.act(rows_of(masks), None)[0],
    ):
        chosen = choices_of(action.reshape(-1, 200, len(nums)), nums)
        assert allowed.expand(len(chosen), -1, -1).gather(2, chosen).all()


def test_draws_follow_the_distribution() -> None:
    """Masked draws have the probabilities of the allowed actions."""
    logits = disallow(torch.tensor([0.3, 1.0, -0.5, 2.0, 0.1]), torch.tensor([True, False, True, True, False]))
    noise = (torch.arange(100_000) + 0.5) / 100_000
    found = torch.bincount(Categorical(5, is_masked=True).sample(logits.expand(100_000, 5), noise), minlength=5)
    np.testing.assert_allclose(found / 1e5, logits.softmax(-1), atol=2e-5)
    plain = Categorical(5).sample(logits.expand(100_000, 5), noise)
    assert torch.equal(Categorical(5, is_masked=True).sample(logits.expand(100_000, 5), noise), plain)


QS: dict[str, dict[str, Any]] = {
    "plain": {},
    "categorical": {"support": torch.linspace(-1, 1, 5)},
    "quantiles": {"num_quantiles": 3, "dueling": True},
    "recurrent": {"core": "gru", "core_size": 8, "previous_inputs": True, "records_value": True},
}


@pytest.mark.parametrize("case", QS)
def test_q_networks_choose_what_is_allowed(case: str) -> None:
    """Greedy actions, random actions and maxima of Q-networks respect the mask."""
    count, nums = 5000, [11]
    torch.manual_seed(0)
    policy = QNetwork(EnvSpec(VECTOR, spaces.Discrete(11), mask_sources=("info",)), **QS[case])
    policy.epsilon = 0.5
    masks, generator = random_masks(nums, count), torch.Generator().manual_seed(0)
    inputs = None
    if policy.state_size:
        zeros = torch.zeros(count)
        inputs = RecurrentInputs(torch.randn(count, policy.state_size), zeros.long(), zeros, zeros.bool())
    rows, allowed = rows_of(masks), torch.from_numpy(masks)
    noise = policy.draw_noise(1, count, generator)[0]
    action, outputs, _ = policy.act(rows, noise, inputs)
    q, best, _ = policy.step(rows, inputs)
    assert allowed.gather(1, action.unsqueeze(1)).all()
    assert torch.equal(best, q.masked_fill(~allowed, -torch.inf).amax(-1)) and (best > DISALLOWED).all()
    assert torch.equal(policy.act(rows, None, inputs)[0], q.masked_fill(~allowed, -torch.inf).argmax(-1))
    assert torch.equal(action[noise < 0], q.argmax(-1)[noise < 0])
    if outputs:
        assert torch.equal(outputs["value"], best)


def test_random_actions_are_uniform_among_the_allowed() -> None:
    policy = QNetwork(EnvSpec(VECTOR, spaces.Discrete(5), mask_sources=("info",)))
    masks = np.tile([True, False, True, True, False], (90_000, 1))
    noise = policy.draw_noise(1, 90_000, torch.Generator().manual_seed(0))[0]  # epsilon is 1
    found = torch.bincount(policy.act(rows_of(masks), noise)[0], minlength=5).numpy()
    assert np.all(np.abs(found - [30_000, 0, 30_000, 30_000, 0]) < 700) and found[1] == found[4] == 0


@pytest.mark.parametrize("options", [{}, {"separate_value": True, "normalize": True}])
def test_trunks_do_not_see_the_mask(options: dict[str, Any]) -> None:
    """Networks and observation moments ignore the mask."""
    policy = make_policy("discrete", **options)
    masks = random_masks([11], 50)
    rows, others = rows_of(masks), rows_of(~masks)
    if policy.norm:
        policy.norm.update(rows, lambda sums: sums)
        assert policy.norm.moments.mean.shape == (3,)
    assert torch.equal(policy.evaluate(rows)[1], policy.evaluate(others)[1])
    parameters, seen = policy.evaluate(rows)[0], policy.policy_head(policy.encode(rows)[0])
    assert torch.equal(parameters, seen.masked_fill(~torch.from_numpy(masks), DISALLOWED))
    plain = ActorCritic(EnvSpec(VECTOR, spaces.Discrete(11)), **options)
    plain.load_state_dict(policy.state_dict())  # the same network
    assert torch.equal(plain.evaluate(rows[:, :3])[0], seen)


def test_the_best_of_an_auxiliary_task() -> None:
    """Pixel control's best value is the largest among the allowed actions."""
    policy, masks = make_policy("discrete"), random_masks([11], 20)
    q = torch.randn(20, 11, 2, 3)
    expected = np.where(masks[:, :, None, None], q.numpy(), -np.inf).max(1)
    assert np.array_equal(policy.best_value(q, rows_of(masks)).numpy(), expected)
