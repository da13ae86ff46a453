"""The bootstrap values of the Q-learning methods when some actions are not allowed."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from accel_rl.algos.dqn import DQN
from accel_rl.algos.online_q import OnlineQ
from accel_rl.envs.spaces.masks import pack
from accel_rl.envs.spec import EnvSpec
from accel_rl.models.q_network import of_action
from accel_rl.replay.transitions import TransitionBatch
from accel_rl.settings.resolve import resolve
from accel_rl.training.build import build_algo_and_update
from tests.helpers.random_rollouts import random_rollout

SPEC = EnvSpec(spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(6), mask_sources=("info",))


def random_rows(*shape: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Returns rows [*shape, R] and the actions that they allow [*shape, A]."""
    rng = np.random.default_rng(seed)
    allowed = rng.random((*shape, 6)) < 0.4
    allowed[..., 2] |= ~allowed.any(-1)
    rows = np.concatenate([rng.uniform(-1, 1, (*shape, 4)), pack(allowed)], -1)
    return torch.from_numpy(rows.astype(np.float32)), torch.from_numpy(allowed)


def make(algo: str, **settings: Any) -> Any:
    """Returns an algorithm whose target differs from its network, with values that vary widely between actions."""
    config = resolve({"algo": algo, "env": "CartPole-v1", "device": "cpu", "envs": 8, **settings}, spec=SPEC)
    made, _ = build_algo_and_update(config)
    for network, seed in ((made.policy, 1), (made.target, 2)):
        torch.manual_seed(seed)
        for parameter in network.parameters():
            torch.nn.init.normal_(parameter, std=0.5)
    return made


@pytest.mark.parametrize("algo", ["dqn", "categorical_dqn", "qr_dqn"])
@pytest.mark.parametrize("double", [False, True])
def test_the_best_next_action_is_allowed(algo: str, double: bool) -> None:
    """The best next action is chosen among the allowed ones, even in double Q-learning."""
    made = make(algo, double=double)
    assert isinstance(made, DQN)
    (rows, _), (after, allowed) = random_rows(64), random_rows(64, seed=1)
    numbers = [torch.randn(64), torch.full((64,), 0.9)]
    batch = TransitionBatch(rows, torch.randint(6, (64,)), numbers[0], after, numbers[1], torch.ones(64).bool())
    with torch.no_grad():
        output, chooser = made.target(after), (made.policy if double else made.target)(after)
        if algo == "dqn":
            q = chooser
        else:
            q = chooser.mean(-1) if algo == "qr_dqn" else chooser.softmax(-1) @ made.policy.support
        best = q.masked_fill(~allowed, -torch.inf).argmax(-1)
        assert (best != q.argmax(-1)).float().mean() > 0.3
        value, following = of_action(made.policy(rows), batch.action), output[torch.arange(64), best]
        expected, _ = made.td_loss(value, following, batch)
        found, _ = made.loss(batch)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("algo", ["n_step_q", "one_step_q"])
def test_online_targets(algo: str) -> None:
    """n-step and one-step Q-learning bootstrap from the best allowed action."""
    made = make(algo)
    assert isinstance(made, OnlineQ)
    rows, allowed = random_rows(made.horizon + 1, 8)
    rollout = replace(random_rollout(SPEC, made.policy, made.horizon, 8, seed=0), observation_rows=rows)
    with torch.no_grad():
        found = made._q(rollout)[1].view(made.horizon, 8)
        best = made.target(rows.flatten(0, 1)).view(-1, 8, 6).masked_fill(~allowed, -torch.inf).amax(-1)
    following = best[-1] if algo == "n_step_q" else None
    expected = torch.empty_like(found)
    for t in reversed(range(made.horizon)):
        following = best[t + 1] if algo == "one_step_q" else following
        following = expected[t] = rollout.reward[t] + made.settings.discount * following * ~rollout.done[t]
    torch.testing.assert_close(found, expected)
