"""Tests of the serial sampler with odd numbers of environments: one, as each learner of A3C has, and others."""

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import accel_rl
from accel_rl.envs import EnvConfig
from accel_rl.errors import UsageError
from accel_rl.models.actor_critic import ActorCritic
from accel_rl.samplers import AlternatingSampler, SerialSampler
from accel_rl.samplers.base import GamesToPlay, SamplerConfig, StepHook
from accel_rl.training.build import evaluation_envs
from tests.helpers.samplers import COUNTING, PONG, Greedy, assert_equal, columns_of, copy, make, spec_of, use_gpu_server


class Recurrent(ActorCritic):
    """Acts greedily, so the shape of the noise does not matter."""

    def act(self, observation: Any, noise: Any, recurrent_inputs: Any = None) -> Any:
        return super().act(observation, None, recurrent_inputs)


def policy_of(env: EnvConfig) -> Any:
    if env is PONG:
        return Greedy(6)
    torch.manual_seed(0)
    return Recurrent(spec_of(env), core="lstm", core_size=4, previous_inputs=True)


def serial(num_envs: int, env: EnvConfig, server: str = "cpu", window: int = 0, **batch: Any) -> Any:
    """Returns a serial sampler. server: "device" for a GPU's server that works on the CPU."""
    config = SamplerConfig(num_envs, 5, 0, window=window)
    sampler = make(SerialSampler, env, config, policy_of(env), **{"decorrelation_steps": 5, **batch})
    return use_gpu_server(sampler) if server == "device" else sampler


@pytest.mark.parametrize(
    ("env", "reset_mode", "num_envs", "server"),
    [
        (COUNTING, "immediate", 1, "cpu"),
        (COUNTING, "immediate", 3, "device"),
        (COUNTING, "wait", 1, "device"),
        (COUNTING, "wait", 3, "cpu"),
        (PONG, "reserve", 1, "cpu"),
        (PONG, "reserve", 3, "device"),
    ],
)
def test_they_are_the_first_ones_of_more(env: EnvConfig, reset_mode: str, num_envs: int, server: str) -> None:
    """An odd number of environments gives the same columns as the next even number."""
    few = serial(num_envs, env, server, reset_mode=reset_mode)
    more = serial(num_envs + 1, env, reset_mode=reset_mode)  # its last group may be larger
    assert [len(range(4)[group]) for group in few._server.groups] == ([1] if num_envs == 1 else [2, 1])
    for index in range(8):
        expected = columns_of(more.collect(), slice(0, num_envs))
        found = copy(few.collect())
        if num_envs == 3 and env is COUNTING:  # the network sees batches of one and two: rounding may differ
            for name in ("value", "distribution"):
                torch.testing.assert_close(found.policy_outputs.pop(name), expected.policy_outputs.pop(name))
            torch.testing.assert_close(found.recurrent_inputs.state, expected.recurrent_inputs.state)
            found.recurrent_inputs = found.recurrent_inputs._replace(state=expected.recurrent_inputs.state)
        assert_equal(replace(found, first_step=expected.first_step), expected, f"rollout {index}")
        assert found.first_step == index * 5 * num_envs


@pytest.mark.parametrize("reset_mode", ["immediate", "wait"])
def test_one_environment_continues_exactly(reset_mode: str) -> None:
    """A sampler of one environment continues exactly from its state: rollouts and windows."""
    samplers = [serial(1, COUNTING, window=7, reset_mode=reset_mode) for _ in range(2)]
    for _ in range(3):
        samplers[0].collect()
    assert samplers[1].set_state(pickle.loads(pickle.dumps(samplers[0].get_state()))) == []
    for index in range(3):
        seen: list[list[Any]] = [[], []]
        rollouts = [
            sampler.collect(StepHook(lambda t, s=sampler, into=into: into.append(copy(s.recent(t, 7, slice(0, 1))))))
            for sampler, into in zip(samplers, seen, strict=True)
        ]
        assert_equal(*rollouts, f"rollout {index}")
        for one, other in zip(*seen, strict=True):
            assert_equal(one, other, f"recent in rollout {index}")


def test_one_environment_plays_game_after_game() -> None:
    """An evaluation with one environment plays its games one after another, as many as asked."""
    sampler = serial(1, COUNTING)
    for num_games in (1, 16):
        games = sampler.evaluate(GamesToPlay(num_games), 0, True)
        assert [game.length for game in games] == [3, 4, 2, 1, 7, *(3 * [3, 4, 2, 1, 7]), 3][:num_games]
        assert {game.env for game in games} == {0}
    assert [game.length for game in sampler.evaluate(GamesToPlay(num_steps=11), 0, True)] == [3, 4, 2, 1]
    assert [evaluation_envs(125_000, num_envs, 1) for num_envs in (1, 2, 3, 16)] == [1, 2, 2, 4]


def test_a_run_of_one_environment(tmp_path: Path) -> None:
    """Runs and saved policies evaluate with an odd number of environments."""
    settings: dict[str, Any] = {"sampler": "serial", "horizon": 5, "device": "cpu", "tensorboard": False}
    settings |= {"eval_episodes": 3, "out": tmp_path / "run", "overwrite": True}
    for num_envs, eval_steps in ((1, None), (3, 100)):
        run = accel_rl.train("a2c", "CartPole-v1", 60, envs=num_envs, eval_steps=eval_steps, **settings)
        assert accel_rl.load(run).evaluate(3).episodes == 3


def test_simulator_processes_want_a_worker() -> None:
    """An alternating sampler without workers is refused with an error that names the serial one."""
    with pytest.raises(UsageError, match="workers=0 must be at least 1; use SerialSampler"):
        make(AlternatingSampler, COUNTING, SamplerConfig(5, 5, 0))
