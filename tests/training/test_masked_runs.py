"""Tests of whole runs in environments with action masks, which raise an error for a forbidden action."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import accel_rl
from accel_rl.envs import EnvConfig
from accel_rl.errors import UsageError
from accel_rl.models.actor_critic import ActorCritic
from accel_rl.models.q_network import QNetwork
from accel_rl.run_folder import policy_file
from accel_rl.samplers import AlternatingSampler, SerialSampler
from accel_rl.samplers.base import SamplerConfig
from tests.helpers.masked_envs import Masked
from tests.helpers.runs import TINY_SERIAL_RUN, assert_resumes_exactly, rows, rows_without_time
from tests.helpers.samplers import assert_equal, closing, make, spec_of

slow = pytest.mark.slow
ENV = "tests.helpers.masked_envs:Masked"
COMMON: dict[str, Any] = {**TINY_SERIAL_RUN, "env": ENV, "seed": 2, "steps": 200, "log_interval_steps": 40}
LSTM: dict[str, Any] = {"core": "lstm", "core_size": 8, "previous_inputs": True}
SEVERAL: dict[str, Any] = {"env_options": {"nvec": [3, 4, 2], "as_parts": True}}
REPLAY: dict[str, Any] = {"replay_size": 200, "warmup_steps": 40, "batch_size": 10, "training_intensity": 1}
PICTURES: dict[str, Any] = {"env_options": {"seen": "picture", "sources": ["observation"]}}
TASKS: dict[str, Any] = {"auxiliary": "pixel_control,value_replay,reward_prediction", "auxiliary_replay_steps": 30}

RUNS: dict[str, dict[str, Any]] = {
    "ppo lstm": {"algo": "ppo", **LSTM, **SEVERAL, "epochs": 2, "minibatches": 2},
    "dqn": {"algo": "dqn", **REPLAY, "n_step": 3, "double": True, "dueling": True},
    "ppo": {
        "algo": "ppo",
        "env_options": {"sources": ["method", "info"]},
        "minibatches": 2,
        "normalize_observations": True,
    },
    "a2c": {"algo": "a2c", **SEVERAL, "reset_mode": "wait"},
    "a2c with tasks": {"algo": "a2c", **PICTURES, **TASKS},
    "vtrace": {"algo": "vtrace", "batches": 2, "batch_steps": 10},
    "gunreal": {"algo": "a2c", **PICTURES, **TASKS, "sampler": "queued", "deterministic": True},
    "sarsa": {"algo": "one_step_sarsa"},
    "pqn gru": {"algo": "pqn", **LSTM, "core": "gru", "minibatches": 2},
}
FAST = ("ppo lstm", "dqn")


@pytest.mark.parametrize("case", [name if name in FAST else pytest.param(name, marks=slow) for name in RUNS])
def test_no_other_action_is_taken(case: str, tmp_path: Path) -> None:
    """Acting, random starts, evaluation and loaded policies never take an action that the mask forbids."""
    run = accel_rl.train(**COMMON | RUNS[case], out=tmp_path / "run")
    used = "its method action_masks(); ignored" if case == "ppo" else "action_mask"
    (line,) = [line for line in (run / "log.txt").read_text().splitlines() if "only those allowed by" in line]
    assert used in line
    losses = [float(row[name]) for row in rows(run) for name in row if name.endswith("loss") and row[name]]
    assert losses and np.isfinite(losses).all()
    agent = accel_rl.load(run, trust=True)
    assert agent.evaluate(4).episodes == 4
    env = agent.make_env()
    for greedy in (False, True):
        agent.config = replace(agent.config, run=replace(agent.config.run, eval_greedy=greedy))
        act, (observation, info), reward, over = agent.player(env), env.reset(seed=1), 0.0, False
        while not over:
            observation, reward, terminated, truncated, info = env.step(act(observation, reward, info))
            over = terminated or truncated


@pytest.mark.multiprocess
@pytest.mark.parametrize("policy_class", [ActorCritic, QNetwork])
def test_alternating_equals_serial(policy_class: Any) -> None:
    """With masks, the alternating sampler's rollouts equal the serial one's."""
    found = spec_of(EnvConfig(ENV, options={"start": 2}, mask_sources=None))
    env = EnvConfig(ENV, options={"start": 2}, mask_sources=found.mask_sources)
    torch.manual_seed(0)
    policy, config = policy_class(found), SamplerConfig(num_envs=4, horizon=5, num_workers=2)
    serial, alternating = (
        make(each, env, config, policy, decorrelation_steps=10) for each in (SerialSampler, AlternatingSampler)
    )
    with closing(alternating, serial):
        for index in range(4):
            assert_equal(serial.collect(), alternating.collect(), f"rollout {index}")


def test_a_mask_that_allows_everything_changes_nothing(tmp_path: Path) -> None:
    """A mask that allows every action changes no number of a run."""
    settings = {**TINY_SERIAL_RUN, "algo": "ppo", "minibatches": 2, "steps": 100, "decorrelation_steps": 0}
    wrappers: list[tuple[str, ...]] = [(), ("tests.helpers.masked_envs:AllowAll",)]
    first, second = (
        accel_rl.train(**settings, wrappers=each, out=tmp_path / str(len(each)), log_interval_steps=20)
        for each in wrappers
    )
    assert "only those allowed" in (second / "log.txt").read_text()
    assert rows_without_time(first) == rows_without_time(second)


@slow
def test_two_halves_equal_a_whole_run(tmp_path: Path) -> None:
    """A resumed run with masks equals an uninterrupted one."""
    assert_resumes_exactly(tmp_path, COMMON | RUNS["dqn"], 200, stop=120)


# ---- policies ----


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings = {**COMMON, "steps": 40, "algo": "a2c", "env_options": {"sources": ["observation"], "start": 1}}
    return accel_rl.train(**settings, out=tmp_path_factory.mktemp("masked") / "run")


def test_predict_takes_masks(run: Path) -> None:
    """`predict` takes masks from observations or arguments and refuses missing or wrong ones."""
    agent, env = accel_rl.load(run, trust=True), Masked(["observation"], start=1)
    seen = [env.reset(seed=seed)[0] for seed in range(200)]
    batch = {name: np.stack([each[name] for each in seen]) for name in seen[0]}
    masks = batch["action_mask"]
    for actions in (
        agent.predict(batch)[0],
        agent.predict(batch, deterministic=True)[0],
        agent.predict(batch["observation"], action_masks=masks)[0],
        np.array([agent.predict(each)[0] for each in seen]),
        np.array([agent.predict(each["observation"], action_masks=each["action_mask"].tolist())[0] for each in seen]),
    ):
        assert masks[np.arange(200), actions - 1].all() and len(set(actions)) > 1
    for given, words in (
        (None, "pass action_masks, which the environment has as observation"),
        (masks[0], "200 observations with 9 action masks"),
        (masks[:, :4], r"an action mask has shape \(4,\)"),
        (masks * 0, "an action mask allows nothing"),
    ):
        with pytest.raises(ValueError, match=words):
            agent.predict(batch["observation"], action_masks=given)


def change(run: Path, folder: Path, name: str, value: Any) -> Path:
    """Copies a policy with one changed entry in policy.json's description of the environment."""
    folder.mkdir()
    document = json.loads((run / policy_file.DESCRIPTION).read_text())
    del document["crc32"]
    document["spec"][name] = value
    if value is None:
        del document["spec"][name], document["settings"]["action_masks"]
    policy_file.write_description(folder, policy_file.seal(document))
    (folder / policy_file.LAST).write_bytes((run / policy_file.LAST).read_bytes())
    return folder


def test_policies_of_before_masks_load(run: Path, tmp_path: Path) -> None:
    """A policy.json without an entry on masks loads as a policy without masks."""
    agent = accel_rl.load(change(run, tmp_path / "old", "mask_sources", None), trust=True)
    assert agent.config.spec.mask_size == 0 and agent.config.env.mask_sources == ()
    agent.predict(np.zeros(2, np.float32))
    with pytest.raises(ValueError, match="trained without action masks"):
        agent.predict(np.zeros(2, np.float32), action_masks=[1] * 9)
    for value in ("info", ["nowhere"], [["info"]]):
        with pytest.raises(UsageError, match=r"mask_sources=.* must be a list of method, info, observation"):
            accel_rl.load(change(run, tmp_path / str(value), "mask_sources", value), trust=True)


def test_masks_can_be_switched_off(tmp_path: Path) -> None:
    """With --action-masks none, forbidden actions reach the environment."""
    settings = {**COMMON, "algo": "a2c", "action_masks": "none"}
    with pytest.raises(Exception, match="is not allowed by"):
        accel_rl.train(**settings, out=tmp_path / "run")


@slow
def test_taxi(tmp_path: Path) -> None:
    """Gymnasium's Taxi trains with its own masks and takes allowed actions only."""
    strict = {"env": "Taxi-v4", "wrappers": ["tests.helpers.masked_envs:Strict"], "algo": "ppo", "steps": 2_000}
    run = accel_rl.train(**{**TINY_SERIAL_RUN, "horizon": 32, **strict}, out=tmp_path / "run")
    assert 'only those allowed by info["action_mask"]' in (run / "log.txt").read_text()
