"""Tests of runs that begin with a trained policy: what they take, what begins anew, and how they resume."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

import accel_rl
from accel_rl.errors import UsageError
from accel_rl.run_folder import checkpoint, policy_file
from accel_rl.run_folder.initial_policy import needs_first_rollout
from accel_rl.run_folder.policy_file import BEST, DESCRIPTION, LAST
from accel_rl.settings.resolve import Config, resolve
from accel_rl.training.build import build_algo, build_algo_and_update, build_store, with_initial_policy
from tests.helpers.runs import TINY_LEARNERS_RUN, TINY_SERIAL_RUN, assert_same, assert_same_run
from tests.helpers.samplers import TOYS

PPO = {"algo": "ppo", "epochs": 1, "minibatches": 1, "normalize_observations": True, "normalize_returns": True}
RUN: dict[str, Any] = {**TINY_SERIAL_RUN, **PPO, "decorrelation_steps": 0, "log_interval_steps": 20}
REPLAY = {"warmup_steps": 24, "batch_size": 4, "replay_size": 400, "training_intensity": 2.0}
COUNTING: dict[str, Any] = {"env": f"{TOYS}:Counting"}
PONG: dict[str, Any] = {"env": "pong", "frame_shape": (42, 42), "max_episode_steps": 7, "noop_max": 3}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return accel_rl.train(**RUN, seed=3, steps=60, out=tmp_path_factory.mktemp("trained") / "run")


def write_policy(folder: Path, **settings: Any) -> Path:
    """Writes the policy of a run that has not begun; returns its folder."""
    config = resolve({**TINY_SERIAL_RUN, **settings})
    folder.mkdir()
    policy_file.write_description(folder, policy_file.describe(config.as_dict(), config.spec))
    policy_file.save(folder / LAST, build_algo(config).policy.state_dict())
    return folder


def begin(source: Path | str, **settings: Any) -> Config:
    return with_initial_policy(resolve({**TINY_SERIAL_RUN, **settings, "init_from": str(source)}))


# ---- what a run begins with ----


def test_a_run_begins_with_all_of_a_policy(trained: Path) -> None:
    """A run takes all parameters and statistics of a policy and learns from its first rollout."""
    state = checkpoint.load(trained / "checkpoint.pt")
    config = begin(trained, **RUN | {"envs": 6, "horizon": 2, "learning_rate": 1e-5, "seed": 8})
    assert config.initial and config.initial.summary.endswith("statistics of returns; new: nothing")
    algo, update = build_algo_and_update(config)
    assert_same(dict(algo.policy.state_dict()), dict(state["policy"]))
    assert torch.equal(update.parameters.values, state["update"]["parameters"])
    assert algo.statistics and not needs_first_rollout(algo, config.initial)
    assert_same(algo.statistics.shared_buffers(), state["shared_buffers"])
    assert state["shared_buffers"]["return.count"] == 60


def test_the_target_network_begins_as_a_copy_of_the_policy(tmp_path: Path) -> None:
    """With --init-from, the target network holds the trained parameters, too."""
    settings = {"algo": "dqn", **REPLAY}
    source = write_policy(tmp_path / "policy", **settings, seed=7)
    algo: Any = build_algo_and_update(begin(source, **settings))[0]
    expected = load_file(source / LAST)
    for network in (algo.policy, algo.target):
        assert_same(dict(network.state_dict()), expected)


def test_the_parameters_that_learners_share_begin_with_it(trained: Path) -> None:
    """The central store begins with the initial policy's parameters and statistics."""
    settings = {**TINY_LEARNERS_RUN, **PPO, "update": "central_store", "init_from": str(trained)}
    store = build_store(with_initial_policy(resolve(settings)))
    try:
        state = checkpoint.load(trained / "checkpoint.pt")
        values = torch.cat([chunk.current["parameters"] for chunk in store.chunks])
        assert torch.equal(values, state["update"]["parameters"])
        assert_same({**store.statistics.current}, state["shared_buffers"])
    finally:
        store.close()


@pytest.mark.slow
@pytest.mark.multiprocess
def test_all_learners_begin_with_it(trained: Path, tmp_path: Path) -> None:
    settings = {**TINY_LEARNERS_RUN, **PPO, "learning_rate": 1e-30}
    run = accel_rl.train(**settings, init_from=trained, steps=40, out=tmp_path / "run")
    before, after = (load_file(folder / LAST) for folder in (trained, run))
    for name, value in before.items():
        assert torch.equal(after[name], value) != name.startswith("norm."), name
    steps = checkpoint.load(run / "checkpoint.pt")["steps"]
    assert after["norm.moments.count"] == before["norm.moments.count"] + steps


@pytest.mark.slow
def test_the_background_of_a_policy_stays(tmp_path: Path) -> None:
    """The first rollout does not change the background of an initial policy."""
    settings = {**PONG, "algo": "a2c", "normalize_observations": True}
    source = write_policy(tmp_path / "policy", **settings)
    policy_file.save(source / LAST, load_file(source / LAST) | {"norm.moments.value": torch.tensor(5.0)})
    for returns in (False, True):  # True: the first rollout makes statistics of returns.
        run = {**TINY_SERIAL_RUN, **settings, "normalize_returns": returns, "init_from": source, "steps": 40}
        out = accel_rl.train(**run, out=tmp_path / str(returns))
        assert load_file(out / LAST)["norm.moments.value"] == 5


# ---- what fits ----

A2C = {"algo": "a2c"}
WIDE = {"network": "wide"}
SHARED = {**WIDE, "separate_value": False, "normalize_observations": False, "normalize_returns": False}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "another algorithm with the same heads": (
        {**A2C, **SHARED},
        {"algo": "vtrace", **SHARED},
        "encoder.trunk, policy_head, value_head; new: nothing",
    ),
    "other actions": (
        {**A2C, **SHARED, **COUNTING},
        {**A2C, **SHARED, **COUNTING, "env_options": {"num_actions": 3}},
        "encoder.trunk; new: policy_head, value_head",
    ),
    "outputs of another meaning": (
        {**WIDE, "algo": "qr_dqn", "quantiles": 51, "normalize_returns": False},
        {**WIDE, "algo": "categorical_dqn", "normalize_returns": False},
        "encoder.trunk; new: head.output",
    ),
    "a core that is left out": (
        {**A2C, **SHARED, "core": "lstm", "core_size": 64},
        {**A2C, **SHARED},
        "encoder.trunk; new: policy_head, value_head; not used: encoder.core",
    ),
    "a value of its own that is left out": (
        {**A2C, **SHARED, "separate_value": True},
        {**A2C, **SHARED},
        "encoder.trunk, policy_head; new: value_head; not used: value_encoder.trunk",
    ),
    "statistics that there were not": (
        {**A2C, **SHARED},
        {**A2C, **SHARED, "normalize_observations": True, "normalize_returns": True},
        "encoder.trunk, policy_head, value_head; new: norm.moments, statistics of returns",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_fits_is_taken_and_the_rest_begins_anew(tmp_path: Path, case: str) -> None:
    """Parts that fit are taken, other parts begin anew, and the log names both."""
    before, now, summary = CASES[case]
    source = write_policy(tmp_path / "policy", **before, seed=5)
    config = begin(source, **now)
    assert config.initial and config.initial.summary == f"from {source}: {summary}"
    algo, fresh = build_algo(config), build_algo(resolve({**TINY_SERIAL_RUN, **now}))
    taken, expected = load_file(source / LAST), fresh.policy.state_dict()
    for name, value in algo.policy.state_dict().items():
        is_taken = name in config.initial.tensors
        assert torch.equal(value, (taken if is_taken else expected)[name]), name
    assert needs_first_rollout(algo, config.initial) == ("statistics" in case)


# ---- resume ----


def test_a_resumed_run_does_not_need_the_policy(trained: Path, tmp_path: Path) -> None:
    source = shutil.copytree(trained, tmp_path / "source")
    settings = {**RUN, "init_from": source, "schedule_steps": 120}
    whole = accel_rl.train(**settings, steps=120, out=tmp_path / "whole")
    half = accel_rl.train(**settings, steps=60, out=tmp_path / "half")
    assert f"policy      from {source}: encoder.trunk" in (half / "log.txt").read_text()
    shutil.rmtree(source)
    accel_rl.train(resume=half, steps=120)
    assert_same_run(half, whole)
    accel_rl.load(half).predict([0.0] * 4)
    with pytest.raises(UsageError, match="--init-from would change the run"):
        accel_rl.train(resume=half, steps=140, init_from=trained)


# ---- names, and bad input ----


def test_all_names_of_a_policy_are_taken(trained: Path, tmp_path: Path) -> None:
    """A policy may be named by its folder or any of its files; best.safetensors gives the best one."""
    run = shutil.copytree(trained, tmp_path / "run")
    tensors = load_file(run / LAST)
    policy_file.save(run / BEST, tensors | {"value_head.bias": tensors["value_head.bias"] + 1}, 40)
    sums = {name: begin(run / name, **RUN).initial for name in ("", DESCRIPTION, LAST, BEST)}
    values = {name: each.tensors["value_head.bias"] - tensors["value_head.bias"] for name, each in sums.items() if each}
    assert [round(float(value), 3) for value in values.values()] == [0, 0, 0, 1]


def with_other_statistics(run: Path) -> None:
    with safe_open(run / LAST, framework="pt") as file:
        text = file.metadata()["statistics"]
    count = json.loads(text)["return.count"]
    content = (run / LAST).read_bytes()
    before, after = (f'return.count\\": {value}'.encode() for value in (count, count + 1))
    assert content.count(before) == 1
    (run / LAST).write_bytes(content.replace(before, after))


BAD: list[tuple[Any, str, dict[str, Any], str]] = [
    (None, "nowhere", {}, "there is no such file or folder"),
    (None, "config.yaml", {}, r"name a run's folder, its policy\.json, or a \.safetensors file in it"),
    (lambda run: (run / DESCRIPTION).unlink(), "", {}, r"holds no run \(no policy\.json\)"),
    (lambda run: (run / LAST).unlink(), "", {}, r"there is no .*policy\.safetensors yet"),
    (lambda run: (run / LAST).write_text("text"), "", {}, "is damaged or not a safetensors file"),
    (with_other_statistics, "", {}, "its statistics do not match their checksum"),
    (None, "", COUNTING, r"trained on observations Box\(.*\(4,\).*, but here they are Box\(.*\(2,\)"),
    (
        None,
        "",
        {"network": "wide"},
        r"does not fit this run's network: .*trunk.*; add --network null, as it was trained",
    ),
]


@pytest.mark.parametrize(("spoil", "name", "settings", "message"), BAD, ids=[message[:30] for *_, message in BAD])
def test_what_cannot_be_begun_with_is_one_line(
    trained: Path, tmp_path: Path, spoil: Any, name: str, settings: dict[str, Any], message: str
) -> None:
    """An initial policy that does not fit or is broken is refused in one line, before anything is written."""
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    if spoil:
        spoil(run)
    with pytest.raises(UsageError, match=message) as caught:
        accel_rl.train(**{**RUN, **settings}, init_from=run / name, steps=20, out=tmp_path / "new")
    assert "\n" not in str(caught.value) and str(caught.value).startswith("init_from=")
    assert not (tmp_path / "new").exists()
