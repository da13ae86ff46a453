"""Auxiliary tasks within an algorithm: when they learn, what they leave unchanged, and which settings are refused."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

import accel_rl
from accel_rl.algos.a2c import A2C
from accel_rl.algos.auxiliary_tasks import TASKS
from accel_rl.envs import EnvConfig
from accel_rl.errors import UsageError
from accel_rl.settings.resolve import resolve
from accel_rl.training.build import build_algo, build_algo_and_update, build_training_sampler, check, make_tasks
from tests.helpers.runs import TINY_SERIAL_RUN, rows
from tests.helpers.samplers import spec_of

ALL = "pixel_control,value_replay,reward_prediction"
CARTPOLE: dict[str, Any] = {
    **TINY_SERIAL_RUN,
    "horizon": 4,
    "steps": 96,
    "decorrelation_steps": 2,
    "log_interval_steps": 16,
    "auxiliary_replay_steps": 12,
}
SMALL: dict[str, Any] = {**CARTPOLE, "env": "pong", "frame_shape": (36, 36), "frame_stack": 2}


def build(**settings: Any) -> A2C:
    algo = build_algo(resolve({**SMALL, **settings}))
    assert isinstance(algo, A2C)
    return algo


def test_heads_change_nothing_else() -> None:
    """Auxiliary heads change neither the policy's initial parameters nor the state of the random generator."""
    base = build(auxiliary="none")
    after_base = torch.rand(3)
    algo = build(auxiliary=ALL)
    torch.testing.assert_close(torch.rand(3), after_base, rtol=0, atol=0)
    for name, value in base.policy.state_dict().items():
        assert torch.equal(algo.policy.state_dict()[name], value), name
    assert {*algo.policy.auxiliary_heads} == {"pixel_control", "reward_prediction"}


def checkpoint_of(run: Path) -> Any:
    return torch.load(run / "checkpoint.pt", weights_only=False)


@pytest.mark.parametrize("algo", ["a2c", *(pytest.param(name, marks=pytest.mark.slow) for name in ("ppo", "vtrace"))])
def test_tasks_of_weight_0_change_nothing(tmp_path: Path, algo: str) -> None:
    """A run whose tasks have weight 0 learns the same policy, bit for bit, as a run without tasks."""
    numbers = {"ppo": {"epochs": 2, "minibatches": 2}, "vtrace": {"batches": 2, "batch_steps": 4}}.get(algo, {})
    settings = {**SMALL, **numbers, "algo": algo}
    base = accel_rl.train(**settings, auxiliary="none", out=tmp_path / "base")
    weights = {f"{name}_weight": 0.0 for name in TASKS}
    other = accel_rl.train(**settings, auxiliary=ALL, **weights, out=tmp_path / "other")
    first, second = (checkpoint_of(run)["policy"] for run in (base, other))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("start", ["at_once", pytest.param("when_full", marks=pytest.mark.slow), "all_when_full"])
def test_when_tasks_start(tmp_path: Path, start: str) -> None:
    """Tasks start with each environment's first sequence or full replay; `all_when_full` delays the policy, too."""
    run = accel_rl.train(**SMALL, auxiliary=ALL, auxiliary_start=start, out=tmp_path / "run")
    # Each rollout of 16 steps is a row. The third one fills the replay of 12 steps per environment. `at_once` needs
    # one sequence of 4 steps and the observation after it.
    table = rows(run)
    learns = [bool(row.get("train/policy_loss")) for row in table]
    helps = [bool(row.get("train/pixel_control_loss")) for row in table]
    first = {"at_once": (0, 0), "when_full": (0, 2), "all_when_full": (2, 2)}[start]
    assert (learns.index(True), helps.index(True)) == first
    assert all(learns[first[0] :]) and all(helps[first[1] :])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"auxiliary": "pixel_contol"}, "unknown auxiliary task 'pixel_contol'.*pixel_control"),
        ({"auxiliary": ALL, "auxiliary_sequence_steps": 13}, "auxiliary_sequence_steps=13 .*auxiliary_replay_steps=12"),
        ({"auxiliary": ALL, "horizon": 16}, "horizon=16 is more than auxiliary_replay_steps=12"),
        ({"auxiliary": ALL, "pixel_control_weight": float("nan")}, "pixel_control_weight=nan must be a finite number"),
        ({"auxiliary": ALL, "value_replay_weight": float("inf")}, "value_replay_weight=inf must be a finite number"),
        ({"auxiliary": ALL, "reward_prediction_weight": -1}, "reward_prediction_weight=-1.0 must be at least 0"),
        ({"auxiliary": ALL, "frame_shape": (24, 12), "network": "accel_rl.models.trunks:MLP"}, "at least 16x16 pixels"),
        ({"auxiliary": ALL, "auxiliary_start": "when_full", "steps": 40}, "waits for 12 steps of each of 4"),
        ({"auxiliary": ALL, "auxiliary_replay_steps": 10**12}, "auxiliary_replay_steps=10+ needs .* GB"),
        ({"auxiliary": "pixel_control", "env": "CartPole-v1"}, "pixel_control needs pictures"),
        # Its learners update independently, each with two environments, but their steps are counted together.
        (
            {"algo": "unreal", "devices": "cpu,cpu", "device": "auto", "frame_stack": 1, "steps": 40},
            "auxiliary_start=all_when_full waits for 12 steps of each of 4 environments",
        ),
    ],
)
def test_what_is_refused(settings: dict[str, Any], message: str) -> None:
    """Auxiliary settings that could not work are refused at the start, in one line."""
    base = CARTPOLE if settings.get("env") == "CartPole-v1" else SMALL
    spec = spec_of(EnvConfig("CartPole-v1")) if base is CARTPOLE else None
    with pytest.raises(UsageError, match=message) as error:
        check(resolve({**base, **settings}, spec=spec))
    assert "\n" not in str(error.value)


def test_sequences_are_as_long_as_what_an_update_learns_from() -> None:
    """By default, a replayed sequence has as many steps as an update learns from."""
    assert make_tasks(build(auxiliary="none")) is None
    for settings, expected in (({}, 4), ({"horizon": 5}, 5), ({"algo": "vtrace", "batches": 2, "batch_steps": 7}, 7)):
        tasks = make_tasks(build_algo(resolve({**SMALL, **settings, "auxiliary": ALL})))
        assert tasks and tasks.sequence_steps == expected


def test_a_core_replays_the_rewards_that_it_was_given() -> None:
    """A replayed core sees the environment's rewards, as it did when acting, while the task learns normalized ones."""
    settings = {"auxiliary": "value_replay", "core": "lstm", "previous_inputs": True, "normalize_returns": True}
    config = resolve({**CARTPOLE, **settings, "separate_value": False}, spec=spec_of(EnvConfig("CartPole-v1")))
    algo, update = build_algo_and_update(config)
    tasks = update.tasks
    assert tasks and algo.statistics
    with closing(build_training_sampler(config, algo)) as sampler:
        for index in range(6):
            rollout = sampler.collect()
            normalized = algo.statistics.normalize(rollout)
            if index > 1:
                tasks.store(normalized)
                assert not torch.equal(normalized.reward, rollout.reward)
            algo.statistics.update(rollout, update)
        (part,) = tasks.draw(update)
    (batch,) = part.batch
    given = batch.previous_reward[~batch.is_first]
    assert len(given) and bool((given == 1).all())  # CartPole's reward of every step
    assert bool((batch.reward[batch.valid] < 1).all())
