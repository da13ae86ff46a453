"""PQN's targets against loops over single environments, and which steps its minibatches hold."""

from typing import Any

import pytest
import torch

from accel_rl.algos.online_q import OnlineQ, OnlineQSettings
from accel_rl.algos.pqn import PQN, PQNSettings
from accel_rl.rollout import Batch
from tests.algos.q_tables import table_trunk
from tests.helpers.streams import DISCOUNT, Env, make_spec, rollout_of, streams
from tests.helpers.updates import RecordingUpdate

NUM_ENVS = 4
SPEC = make_spec(frame_stack=0)


def make(horizon: int, **changes: Any) -> tuple[PQN, RecordingUpdate]:
    torch.manual_seed(0)
    settings = PQNSettings(**{"discount": DISCOUNT, "learning_rate": 1e-3, "minibatches": 2, "epochs": 3, **changes})
    algo = PQN(SPEC, settings, 1000, NUM_ENVS, horizon, table_trunk)
    algo.setup(0, RecordingUpdate)
    with torch.no_grad():
        for parameter in algo.policy.parameters():
            parameter.normal_()
    return algo, RecordingUpdate(algo.policy)


def rollouts(envs: list[Env], horizon: int, count: int) -> Any:
    """Yields rollouts with random values, as if they came from another network than the learner's."""
    generator = torch.Generator().manual_seed(3)
    for k in range(count):
        rollout = rollout_of(envs, k * horizon, horizon, SPEC)
        rollout.policy_outputs = {"value": torch.randn(horizon, NUM_ENVS, generator=generator)}
        yield k * horizon, rollout


@torch.no_grad()
def best(algo: PQN, seen: Any) -> float:
    return algo.policy(torch.as_tensor(seen)[None]).max().item()


def returns_of(algo: PQN, env: Env, first: int, value: list[float]) -> list[float]:
    """Returns the targets of one environment's steps, computed backwards; value: the estimates made while acting."""
    mix, last = algo.settings.return_lambda, first + len(value)
    return_tp1 = value_tp1 = best(algo, env.rows[last])
    found = []
    for t in reversed(range(first, last)):
        step = env.steps[t]
        if step["terminated"]:
            following = 0.0
        elif step["truncated"]:
            following = best(algo, step["final"])
        else:
            following = (1 - mix) * value_tp1 + mix * return_tp1
        return_tp1, value_tp1 = step["reward"] + DISCOUNT * following, value[t - first]
        found.append(return_tp1)
    return found[::-1]


@pytest.mark.parametrize("horizon", [1, 5])
@pytest.mark.parametrize("return_lambda", [0.0, 0.65, 1.0])
def test_targets_are_those_of_plain_loops(return_lambda: float, horizon: int) -> None:
    """Targets equal those of plain loops over the acting values, and each epoch learns every sample once."""
    envs = streams(SPEC, NUM_ENVS, 41, 7, seed=1)
    kinds = [(step["terminated"], step["truncated"], step["valid"]) for env in envs for step in env.steps]
    assert {(True, False, True), (False, True, True), (False, False, False)} <= set(kinds)
    algo, update = make(horizon, return_lambda=return_lambda)
    for first, rollout in rollouts(envs, horizon, 40 // horizon):
        values = rollout.policy_outputs["value"].T.tolist()
        expected = [returns_of(algo, env, first, value) for env, value in zip(envs, values, strict=True)]
        samples = {
            tuple(env.rows[first + t].tolist()): (env.steps[first + t], expected[index][t])
            for index, env in enumerate(envs)
            for t in range(horizon)
        }
        update.calls.clear()
        stats = algo.learn(rollout, update)
        assert stats["loss"].shape == (6,) and len(update.calls) == 6
        for epoch in range(3):
            calls = update.calls[2 * epoch : 2 * epoch + 2]
            seen = [tuple(row.tolist()) for call in calls for row in call.batch[0].observation]
            assert sorted(seen) == sorted(samples)
            for call in calls:
                batch, td_target = call.batch
                assert call.num_samples == batch.valid.sum()
                for index, row in enumerate(batch.observation):
                    step, return_ = samples[tuple(row.tolist())]
                    assert (batch.action[index], batch.valid[index]) == (step["action"], step["valid"])
                    assert td_target[index].item() == pytest.approx(return_, rel=1e-4, abs=1e-5)


def test_the_loss_is_of_the_action_taken() -> None:
    """The learned value is that of the action taken, not of the best one."""
    algo, update = make(2, epochs=1, minibatches=1)
    (_, rollout), *_ = rollouts(streams(SPEC, NUM_ENVS, 3, 7, seed=1), 2, 1)
    with torch.no_grad():
        q_values = algo.policy(rollout.observations(0, 2).flatten(0, 1)).view(2, NUM_ENVS, -1).tolist()
    taken = [q_values[t][b][rollout.action[t, b]] for t in range(2) for b in range(NUM_ENVS) if rollout.valid[t, b]]
    assert algo.learn(rollout, update)["value"].item() == pytest.approx(sum(taken) / len(taken), rel=1e-5)


@pytest.mark.parametrize(
    ("algo_class", "settings", "factor"), [(PQN, PQNSettings(), 0.5), (OnlineQ, OnlineQSettings(), 1.0)]
)
def test_only_pqn_halves_the_square(algo_class: Any, settings: Any, factor: float) -> None:
    """PQN's loss is half the squared error (Gallici et al. 2025), that of n-step Q the whole one (Mnih et al. 2016)."""
    algo = algo_class(SPEC, settings, 1000, NUM_ENVS, 2, table_trunk)
    batch = Batch(torch.zeros(3, *SPEC.observation_shape), torch.zeros(3, dtype=torch.int64), torch.ones(3) > 0)
    with torch.no_grad():
        value = algo.policy(batch.observation)[0, 0]
        loss_sum, _ = algo.loss(batch, value + torch.tensor([1.0, 2.0, 3.0]))
    assert loss_sum.item() == pytest.approx(factor * 14)
