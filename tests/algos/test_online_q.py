"""The targets of n-step Q, one-step Q and Sarsa against loops over single environments, and how rollouts are joined."""

from typing import Any

import pytest
import torch

from accel_rl.algos.online_q import OnlineQ, OnlineQSettings
from tests.algos.q_tables import table_trunk
from tests.helpers.runs import assert_same
from tests.helpers.streams import DISCOUNT, Env, make_spec, rollout_of, streams
from tests.helpers.updates import Call, RecordingUpdate

NUM_ENVS = 4
SPEC = make_spec(frame_stack=0)
TARGETS = ("n_step_q", "one_step_q", "one_step_sarsa")


def make(target: str, horizon: int, **changes: Any) -> tuple[OnlineQ, RecordingUpdate]:
    torch.manual_seed(0)
    settings = OnlineQSettings(**{"target": target, "discount": DISCOUNT, "learning_rate": 1e-3, **changes})
    algo = OnlineQ(SPEC, settings, 1000, NUM_ENVS, horizon, table_trunk)
    algo.setup(0, RecordingUpdate)
    with torch.no_grad():
        for parameter in (*algo.policy.parameters(), *algo.target.parameters()):
            parameter.normal_()
    return algo, RecordingUpdate(algo.policy)


def best(algo: OnlineQ, seen: Any) -> float:
    return max(values(algo, seen))


@torch.no_grad()
def values(algo: OnlineQ, seen: Any) -> list[float]:
    return algo.target(torch.as_tensor(seen)[None])[0].tolist()  # type: ignore[no-any-return]


def td_target_of(algo: OnlineQ, env: Env, t: int, end: int) -> float:
    """Returns the target of step t of a stream; end: the first row after its rollout."""
    kind, td_target, factor = algo.settings.target, 0.0, 1.0
    while True:
        step = env.steps[t]
        td_target, factor, t = td_target + factor * step["reward"], factor * DISCOUNT, t + 1
        if step["terminated"]:
            return td_target
        if step["truncated"]:
            return td_target + factor * best(algo, step["final"])
        if kind == "one_step_sarsa":
            return td_target + factor * values(algo, env.rows[t])[env.steps[t]["action"]]
        if kind == "one_step_q" or t == end:
            return td_target + factor * best(algo, env.rows[t])


def assert_learned(algo: OnlineQ, call: Call, envs: list[Env], steps: list[int], end: int) -> None:
    """Asserts that an update's batch holds these steps of all environments, in this order, with their targets."""
    batch, td_target = call.batch
    assert len(batch.action) == len(steps) * NUM_ENVS
    rows = iter(range(len(batch.action)))
    for t in steps:
        for env in envs:
            row = next(rows)
            assert batch.action[row] == env.steps[t]["action"]
            assert batch.valid[row] == env.steps[t]["valid"]
            assert torch.equal(batch.observation[row], torch.as_tensor(env.rows[t]))
            if env.steps[t]["valid"]:
                assert td_target[row].item() == pytest.approx(td_target_of(algo, env, t, end), rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("horizon", [1, 2, 5])
@pytest.mark.parametrize("target", TARGETS)
def test_targets_are_those_of_plain_loops(target: str, horizon: int) -> None:
    """Targets equal those of plain loops, and every step is learned exactly once, in order, across rollouts."""
    envs = streams(SPEC, NUM_ENVS, 60, 7, seed=1)
    kinds = [(step["terminated"], step["truncated"], step["valid"]) for env in envs for step in env.steps]
    assert {(True, False, True), (False, True, True), (False, False, False)} <= set(kinds)
    algo, update = make(target, horizon)
    learned: list[int] = []
    for k in range(60 // horizon - 1):
        first, end = k * horizon, (k + 1) * horizon
        num_calls = len(update.calls)
        stats = algo.learn(rollout_of(envs, first, horizon, SPEC), update)
        steps = list(range(first, end))
        if target == "one_step_sarsa":  # the last one waits for its next action
            steps = [t - 1 for t in steps if t > 0]
        assert bool(stats) == bool(steps) and len(update.calls) == num_calls + bool(steps)
        if steps:
            assert_learned(algo, update.calls[-1], envs, steps, end)
            assert update.calls[-1].num_samples == sum(env.steps[t]["valid"] for env in envs for t in steps)
        learned += steps
    assert learned == list(range(len(learned))) and len(learned) >= 50


def test_sarsas_last_step_is_kept_in_a_checkpoint() -> None:
    """A resumed Sarsa run learns bit for bit the same, including the step that waits for its next action."""
    envs = streams(SPEC, NUM_ENVS, 30, 7, seed=2)
    algo, update = make("one_step_sarsa", 5)
    algo.learn(rollout_of(envs, 0, 5, SPEC), update)
    other, other_update = make("one_step_sarsa", 5)
    other.load_state_dict(algo.state_dict())
    other_update.load_state_dict(update.state_dict())
    for first in (5, 10):
        stats = [each.learn(rollout_of(envs, first, 5, SPEC), u) for each, u in ((algo, update), (other, other_update))]
        assert stats[0] == stats[1]
        assert_same(update.calls[-1].batch, other_update.calls[-1].batch)
    assert torch.equal(update.parameters.values, other_update.parameters.values)
    is_first, _ = make("one_step_sarsa", 5)
    assert is_first.state_dict()["local"]["last"] is None
    is_first.load_state_dict(make("one_step_sarsa", 5)[0].state_dict())  # before its first rollout


def test_a_state_without_local_parts_is_loaded() -> None:
    """A state without local parts restores the target network and leaves exploration rates and last step alone."""
    algo, update = make("one_step_sarsa", 5, epsilon_final=(0.1, 0.5))
    algo.learn(rollout_of(streams(SPEC, NUM_ENVS, 6, 7, seed=2), 0, 5, SPEC), update)
    state = algo.state_dict()
    assert state.pop("local")["last"] is not None
    other, _ = make("one_step_sarsa", 5, epsilon_final=(0.1, 0.5))
    with torch.no_grad():
        for parameter in other.target.parameters():
            parameter.zero_()
    final = other.exploration.final.clone()
    other.load_state_dict(state)
    assert_same(other.target.state_dict(), algo.target.state_dict())
    assert torch.equal(other.exploration.final, final) and other.state_dict()["local"]["last"] is None


def test_sarsa_does_not_join_what_does_not_follow() -> None:
    """A last step whose environment was replaced before the next rollout is invalid, unless its episode has ended."""
    envs = streams(SPEC, NUM_ENVS, 12, 100, seed=5)
    for env in envs:
        for step in env.steps:
            step |= {"valid": True, "terminated": False, "truncated": False}
    envs[2].steps[4]["terminated"] = True
    for index, env in enumerate(envs):
        env.resets[5] = index in (1, 2)
    algo, update = make("one_step_sarsa", 5)
    for first in (0, 5):
        algo.learn(rollout_of(envs, first, 5, SPEC), update)
    assert update.calls[-1].batch[0].valid.view(5, NUM_ENVS).tolist() == [
        [True, False, True, True],
        *[[True] * 4] * 4,
    ]


@pytest.mark.parametrize("target", TARGETS)
def test_the_target_is_synced_when_a_multiple_is_crossed(target: str) -> None:
    """The target network is synced after each rollout that crosses a multiple of the interval."""
    envs = streams(SPEC, NUM_ENVS, 36, 7, seed=3)
    algo, update = make(target, 3, target_interval_steps=30)
    synced = []
    for k in range(10):  # 12 steps each
        algo.learn(rollout_of(envs, 3 * k, 3, SPEC), update)
        pairs = zip(algo.policy.parameters(), algo.target.parameters(), strict=True)
        synced.append(all(torch.equal(mine, frozen) for mine, frozen in pairs))
    assert [12 * (k + 1) for k in range(10) if synced[k]] == [36, 60, 96, 120]
