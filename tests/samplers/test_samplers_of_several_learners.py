"""Tests of samplers that are one learner's part of a run with several learners."""

import pickle
import re
from dataclasses import replace
from typing import Any

import pytest
import torch

from accel_rl.envs import EnvConfig
from accel_rl.envs.batches.env_batch import BatchConfig
from accel_rl.errors import RunError
from accel_rl.samplers import AlternatingSampler, SerialSampler
from accel_rl.samplers.base import GamesToPlay, SamplerConfig, StepHook, noise_generator
from tests.helpers.samplers import COUNTING, TOYS, Greedy, assert_equal, closing, columns_of, copy, make

pytestmark = pytest.mark.multiprocess

SAMPLERS = [SerialSampler, AlternatingSampler]


@pytest.mark.parametrize(
    ("sampler_class", "env", "reset_mode"),
    [
        (SerialSampler, COUNTING, "wait"),
        (AlternatingSampler, COUNTING, "immediate"),
    ],
)
def test_two_learners_have_the_environments_of_one(sampler_class: Any, env: EnvConfig, reset_mode: str) -> None:
    """Two learners sample the same episodes, and play the same games, as one learner with all environments."""
    batch = {"reset_mode": reset_mode, "decorrelation_steps": 10}
    whole = make(sampler_class, env, SamplerConfig(8, 5, 2), Greedy(6), **batch)
    parts = [make(sampler_class, env, SamplerConfig(4, 5, 1), Greedy(6), **batch, first_env=k) for k in (0, 4)]
    with closing(whole, *parts):
        for index in range(5):
            rollout = copy(whole.collect())
            for part, envs in zip(parts, (slice(0, 4), slice(4, 8)), strict=True):
                mine = replace(part.collect(), first_step=rollout.first_step)
                assert_equal(mine, columns_of(rollout, envs), f"rollout {index} of environments {envs}")
        if env is COUNTING:
            games = [
                sampler.evaluate(GamesToPlay(num_steps=16 * sampler.config.num_envs), 0, True)
                for sampler in (whole, *parts)
            ]
            assert sorted(games[0]) == sorted([*games[1], *(game._replace(env=game.env + 4) for game in games[2])])
            assert len(games[0]) >= 16


def test_each_learner_has_its_own_noise() -> None:
    generators = [
        noise_generator(BatchConfig(COUNTING, seed=3, first_env=first_env), torch.device("cpu"), role)
        for first_env in (0, 4, 8)
        for role in (0, 1, 4)
    ]
    drawn = [torch.rand(4, generator=generator) for generator in generators]
    assert len({tuple(noise.tolist()) for noise in drawn}) == len(drawn)


@pytest.mark.parametrize("sampler_class", SAMPLERS)
def test_steps_are_those_of_the_run(sampler_class: Any) -> None:
    """Rollouts and windows count the steps of all learners, and a state keeps the count."""
    config = SamplerConfig(4, 3, 2, window=4, num_learners=3)
    samplers = [make(sampler_class, COUNTING, config) for _ in range(2)]

    def collect(sampler: Any, first_step: int | None = None) -> list[int]:
        """Returns the first steps of the rollout, and of the two steps before each of its steps."""
        seen: list[int] = []
        rollout = sampler.collect(
            StepHook(lambda t: seen.append(sampler.recent(t, 2, slice(0, 2)).first_step)), first_step
        )
        return [rollout.first_step, *seen]

    with closing(*samplers):
        assert collect(samplers[0]) == [0, -24, -12, 0]
        assert collect(samplers[0]) == [36, 12, 24, 36]
        assert collect(samplers[0], 1000) == [1000, 976, 988, 1000]
        samplers[0].evaluate(GamesToPlay(4), 0, True)
        assert collect(samplers[0]) == [1036, 1012, 1024, 1036]
        assert samplers[1].set_state(pickle.loads(pickle.dumps(samplers[0].get_state()))) == []
        assert collect(samplers[1]) == [1072, 1048, 1060, 1072]


@pytest.mark.parametrize("sampler_class", SAMPLERS)
def test_an_environment_without_a_state_is_named(sampler_class: Any) -> None:
    """Environments without a state are named by their numbers in the run, and their windows end."""
    env = EnvConfig(f"{TOYS}:Unpicklable", options={"lengths": [6]})
    samplers = [make(sampler_class, env, SamplerConfig(4, 4, 2, window=3), first_env=8) for _ in range(2)]
    with closing(*samplers):
        samplers[0].collect()
        assert samplers[1].set_state(samplers[0].get_state()) == [8, 9, 10, 11]
        seen: list[torch.Tensor] = []
        samplers[1].collect(StepHook(lambda t: seen.append(samplers[1].recent(t, 1, slice(0, 4)).truncated.clone())))
        assert seen[0].all() and not seen[1].any()


@pytest.mark.parametrize("how", ["raise", "kill"])
def test_a_failure_names_the_environment_of_the_run(how: str, caplog: Any) -> None:
    """A failure names the environment by its number in the run, and its action."""
    env = EnvConfig(f"{TOYS}:Broken", options={"how": how, "at_step": 3, "lengths": [5]})
    named = r"environment 1[2-5] \(run seed 3, [a-z_.]+:Broken\)( failed)? at action [01]"
    config = SamplerConfig(4, 4, 2)
    sampler = make(AlternatingSampler, env, config, first_env=12)
    with closing(sampler), pytest.raises(RunError, match=named):
        sampler.collect()
    if how == "raise":
        serial = make(SerialSampler, env, config, first_env=12, restart_on_error=True)
        assert not serial.collect().valid[2].any()
        assert [int(found) for found in re.findall(r"environment (\d+) \(run", caplog.text)] == [12, 13, 14, 15]
