"""Tests of samplers of vector environments, and of whole runs of them."""

import importlib.util
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import accel_rl
from accel_rl.envs.batches.env_batch import BatchConfig
from accel_rl.envs.batches.vector_simulator import VectorSimulator
from accel_rl.envs.spec import EnvConfig
from accel_rl.run_folder.trust import foreign_code
from accel_rl.samplers import AlternatingSampler, SerialSampler
from accel_rl.samplers.base import GamesToPlay, SamplerConfig
from accel_rl.settings.resolve import resolve
from tests.envs.test_vector_batch import Driver
from tests.helpers.runs import TINY_SERIAL_RUN, rows
from tests.helpers.samplers import Greedy, assert_equal, closing

pytestmark = pytest.mark.multiprocess
VECTORS = "tests.helpers.vector_envs"
MODES = ["NextStep", "SameStep", "Disabled"]
needs_envpool = pytest.mark.skipif(importlib.util.find_spec("envpool") is None, reason="EnvPool is not installed")


def vector(mode: str) -> EnvConfig:
    return EnvConfig(f"{VECTORS}:make", options={"mode": mode, "toy": "Drawn", "lengths": [3, -4, 2, -1, 7]})


@pytest.mark.parametrize("mode", MODES)
def test_samplers_are_equal(mode: str) -> None:
    """Serial and alternating samplers give equal rollouts and games of a vector environment."""
    env = vector(mode)
    spec = VectorSimulator(env, [np.random.SeedSequence(0)]).spec
    samplers = [
        kind(spec, BatchConfig(env, seed=3), Greedy(2), SamplerConfig(8, 5, 2))
        for kind in (SerialSampler, AlternatingSampler)
    ]
    with closing(*samplers):
        for index in range(4):
            assert_equal(*(sampler.collect() for sampler in samplers), f"rollout {index}")
        games = [sampler.evaluate(GamesToPlay(20), 0, False) for sampler in samplers]
        assert games[0] == games[1] and len(games[0]) == 20


def test_a_run_of_a_vector_environment(tmp_path: Path) -> None:
    """A run of a vector environment trains, evaluates, resumes and loads, and its log names the limits of batches."""
    run = {**TINY_SERIAL_RUN, "env": "vector:CartPole-v1", "algo": "ppo", "epochs": 1, "minibatches": 1}
    run |= {"eval_interval_steps": 100, "eval_episodes": 2}
    folder = accel_rl.train(**run, steps=200, out=tmp_path / "run")
    accel_rl.train(resume=folder, steps=240)
    log = (folder / "log.txt").read_text()
    assert log.count("vector      CartPoleVectorEnv: the step after a game only resets, and is not a sample") == 2
    assert "these environments have no state to save and start a new episode: [0, 1, 2, 3]" in log
    assert rows(folder)[-1]["time/total_timesteps"] == "240"
    agent = accel_rl.load(folder)
    assert agent.predict(agent.make_env().reset(seed=0)[0])[0] in (0, 1)
    assert agent.evaluate(4).episodes == 4


def test_names_that_are_trusted() -> None:
    """EnvPool's and gymnasium's names need no trust; any other name after vector: does."""
    assert not foreign_code({"env": "envpool:Ant-v5"}) and not foreign_code({"env": "vector:CartPole-v1"})
    assert foreign_code({"env": "vector:os:system"})


def test_envpool_has_one_worker_and_all_logical_cpus() -> None:
    """EnvPool has one worker by default, which is not pinned."""
    spec = VectorSimulator(vector("Disabled"), [np.random.SeedSequence(0)]).spec
    run = {"env": "envpool:CartPole-v1", "algo": "ppo", "envs": 64, "device": "cpu"}
    plan = resolve(run, spec=spec).plan
    assert plan.worker_cpus == (None,) and not replace(plan, server_cpus=(0,)).server_is_reserved
    assert resolve({**run, "workers": 2}, spec=spec).plan.worker_cpus == (None, None)
    assert resolve({**run, "sampler": "serial"}, spec=spec).plan.worker_cpus == ()


@needs_envpool
@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pong-v5", pytest.param("Ant-v4", marks=pytest.mark.slow)])
def test_envpool_is_like_its_environments_one_by_one(env_id: str) -> None:
    """EnvPool's environments play the same games one by one and in a batch."""
    options = {"max_episode_steps": 5}
    env = EnvConfig(f"envpool:{env_id}", options=options)
    single = EnvConfig(f"{VECTORS}:single_envpool", options={"name": env_id, **options})
    spec = VectorSimulator(env, [np.random.SeedSequence(0)]).spec
    one_by_one, batch = (Driver(spec, each, horizon=16) for each in (single, env))
    for _ in range(2):
        expected, found = one_by_one.rollout(), batch.rollout()
        assert expected["game_length"].any() and expected["truncated"].any()
        for name in expected:
            assert np.array_equal(found[name], expected[name]), name
