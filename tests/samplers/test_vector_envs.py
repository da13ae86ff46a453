"""Tests of samplers of vector environments against the same environments one by one, and of whole runs of them."""

import importlib.util
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import accel_rl
from accel_rl.envs.batches.batch_simulator import BatchConfig
from accel_rl.envs.batches.vector_simulator import VectorSimulator
from accel_rl.envs.gym import GymSimulator
from accel_rl.envs.spec import EnvConfig, EnvSpec
from accel_rl.rollout import Rollout
from accel_rl.run_folder.trust import foreign_code
from accel_rl.samplers import AlternatingSampler, SerialSampler
from accel_rl.samplers.base import GamesToPlay, SamplerConfig
from accel_rl.settings.resolve import resolve
from tests.envs.test_vector_batch import Driver
from tests.helpers.runs import TINY_RUN, rows
from tests.helpers.samplers import TOYS, Greedy, assert_equal, closing, copy

pytestmark = pytest.mark.multiprocess
VECTORS = "tests.helpers.vector_envs"
MODES = ["NextStep", "SameStep", "Disabled"]
NUM_ENVS = 8
SINGLE = EnvConfig(f"{TOYS}:Drawn", options={"lengths": [3, -4, 2, -1, 7]})
needs_envpool = pytest.mark.skipif(importlib.util.find_spec("envpool") is None, reason="EnvPool is not installed")


def vector(mode: str) -> EnvConfig:
    return EnvConfig(f"{VECTORS}:make", options={"mode": mode, "toy": "Drawn", **SINGLE.options})


def collect(kind: Any, spec: EnvSpec, env: EnvConfig, count: int = 6) -> tuple[list[Rollout], Any]:
    """Returns rollouts of an environment, and the games of an evaluation."""
    sampler = kind(spec, BatchConfig(env, seed=3), Greedy(2), SamplerConfig(NUM_ENVS, 5, 2))
    with closing(sampler):
        return [copy(sampler.collect()) for _ in range(count)], sampler.evaluate(GamesToPlay(20), 0, False)


def samples(rollouts: Sequence[Rollout]) -> list[list[Any]]:
    """Returns the valid steps of each environment, with what is seen before and after them, and its games."""
    found: list[list[Any]] = [[] for _ in range(NUM_ENVS)]
    for rollout in rollouts:
        pairs = zip(rollout.final_step.tolist(), rollout.final_env.tolist(), strict=True)
        finals = dict(zip(pairs, rollout.final_observation.tolist(), strict=True))
        for t, env in rollout.valid.nonzero().tolist():
            names = ("action", "reward", "terminated", "truncated", "reset", "age")
            step = [getattr(rollout, name)[t, env].item() for name in names]
            seen = [rollout.observation_rows[t + k, env].tolist() for k in range(1 if rollout.done[t, env] else 2)]
            found[env].append((step, seen, finals.get((t, env))))
        for game in rollout.games:
            found[game.env].append((game.score, game.length))
    return found


@pytest.mark.parametrize("mode", MODES)
def test_rollouts_are_those_of_single_environments(mode: str) -> None:
    """Steps, scores and games equal those of single environments; where a reset costs no step, whole rollouts are equal
    bit for bit."""
    expected, expected_games = collect(SerialSampler, GymSimulator(SINGLE, np.random.SeedSequence(0)).spec, SINGLE)
    spec = VectorSimulator(vector(mode), [np.random.SeedSequence(0)]).spec
    serial, games = collect(SerialSampler, spec, vector(mode))
    alternating, games_in_workers = collect(AlternatingSampler, spec, vector(mode))
    for one, other in zip(serial, alternating, strict=True):
        assert_equal(one, other)
    assert games == games_in_workers
    if mode != "NextStep":
        for one, other in zip(serial, expected, strict=True):
            assert_equal(one, other)
        assert games == expected_games
        return
    num_invalid = sum(int((~rollout.valid).sum()) for rollout in serial)
    num_ended = sum(int(rollout.done.sum()) for rollout in serial)
    assert num_ended - NUM_ENVS <= num_invalid <= num_ended and num_invalid > 20
    for found, single in zip(samples(serial), samples(expected), strict=True):
        for size, least in ((3, 18), (2, 3)):  # steps, games
            of_vector, of_single = ([each for each in all_ if len(each) == size] for all_ in (found, single))
            assert len(of_vector) > least and of_vector == of_single[: len(of_vector)]
    assert {(game.score, game.length) for game in games} >= {(game.score, game.length) for game in expected_games}


def test_a_run_of_a_vector_environment(tmp_path: Path) -> None:
    """A run of a vector environment trains, evaluates, resumes and loads, and its log names the limits of batches."""
    run = {**TINY_RUN, "env": "vector:CartPole-v1", "algo": "ppo", "epochs": 1, "minibatches": 1}
    run |= {"eval_interval_steps": 100, "eval_episodes": 2}
    folder = accel_rl.train(**run, steps=200, out=tmp_path / "run")
    accel_rl.train(resume=folder, steps=240)
    log = (folder / "log.txt").read_text()
    assert log.count("vector      CartPoleVectorEnv: after a game, a step that only resets is no sample") == 2
    assert "these environments have no state to save and start a new episode: [0, 1, 2, 3]" in log
    assert rows(folder)[-1]["time/total_timesteps"] == "240"
    agent = accel_rl.load(folder)
    assert agent.predict(agent.make_env().reset(seed=0)[0])[0] in (0, 1)
    assert agent.evaluate(4).episodes == 4


def test_names_that_are_trusted() -> None:
    """EnvPool's and gymnasium's names need no trust; any other name behind vector: does."""
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
