"""Every preset can be built with its own numbers, and trains."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import accel_rl
from accel_rl.algos import Algo
from accel_rl.build import check
from accel_rl.config import load_preset, preset_names, read_run, resolve
from accel_rl.envs import make_env
from accel_rl.envs.atari import PRESETS
from accel_rl.errors import UsageError
from tests.helpers.runs import rows

ENVS = ("pong", "CartPole-v1")
SMALL: dict[str, Any] = {
    "device": "cpu",
    "envs": 4,
    "workers": 2,
    "horizon": 4,
    "steps": 48,
    "decorrelation_steps": 2,
    "eval_interval_steps": 0,
    "tensorboard": False,
    "sampling_threads": 1,
    "learning_threads": 1,
}


def named(preset: str) -> dict[str, str]:
    """A preset as users name it: an algorithm's own, or a variant of that."""
    base = load_preset(preset).get("base")
    return {"algo": base, "preset": preset} if base else {"algo": preset}


@pytest.mark.parametrize("env", ENVS)
@pytest.mark.parametrize("preset", preset_names())
def test_a_preset_is_whole(preset: str, env: str) -> None:
    """Would catch a misspelt setting, numbers that do not divide, or a class that can't be constructed from them."""
    config = resolve({**named(preset), "env": env, "device": "cpu"})
    assert issubclass(config.algo_class, Algo)
    check(config)
    kind = "pixels" if env == "pong" else "vectors"
    content = load_preset(preset)
    resolved = config.as_dict()
    for name, value in content.get(kind, {}).items():
        assert resolved[name] == value, name
    about = {"description", "algo", "base", "pixels", "vectors"}
    assert content.keys() - about <= resolved.keys()


@pytest.mark.parametrize("env", ENVS)
@pytest.mark.parametrize("preset", preset_names())
def test_a_preset_trains(tmp_path: Path, preset: str, env: str) -> None:
    """Would catch an algorithm that fails, learns nothing, or learns nonsense, on pixels or on vectors."""
    run = accel_rl.train(**{**SMALL, **named(preset)}, env=env, out=tmp_path / "run")
    last = rows(run)[-1]
    assert int(last["time/total_timesteps"]) == 48
    learned = {name: float(value) for name, value in last.items() if name.startswith("train/")}
    assert learned and all(map(math.isfinite, learned.values())), learned
    player = accel_rl.load(run)
    assert all(bool(torch.isfinite(p).all()) for p in player.policy.parameters())
    observation, _ = player.make_env().reset(seed=0) if env == "pong" else make_env(env).reset(seed=0)
    assert player.config.spec.action_space.contains(player.predict(observation))


@pytest.mark.parametrize("env_preset", PRESETS)
def test_an_env_preset_trains(tmp_path: Path, env_preset: str) -> None:
    """Would catch frames that the networks cannot take, or an environment to watch that is not the one trained in."""
    run = accel_rl.train(**SMALL, env="pong", env_preset=env_preset, out=tmp_path / "run")
    player = accel_rl.load(run)
    height, width = PRESETS[env_preset].frame_shape
    assert player.config.spec.observation_shape == (4, height, width)
    observation, _ = make_env("pong", env_preset).reset(seed=0)
    assert observation.shape == (4, height, width)
    assert 0 <= player.predict(observation) < 6
    assert player.predict(np.stack([observation] * 3)).shape == (3,)


def test_a_variant_belongs_to_its_algorithm() -> None:
    """Would catch a variant that names an algorithm which is none."""
    for preset in preset_names():
        content = load_preset(preset)
        if "base" in content:
            assert load_preset(content["base"])["algo"] == content["algo"], preset


def test_a_variant_is_no_algorithm() -> None:
    """Would catch a variant that runs without the settings it builds on."""
    with pytest.raises(UsageError, match="use --algo a2c --preset a2c_continuous"):
        resolve({"algo": "a2c_continuous", "env": "Pendulum-v1", "device": "cpu"})


@pytest.mark.parametrize(("env", "normalized"), [("CartPole-v1", True), ("FrozenLake-v1", False)])
def test_ppo_normalizes_what_it_can(tmp_path: Path, env: str, normalized: bool) -> None:
    """Would catch a default that refuses environments whose observations are no numbers."""
    run = accel_rl.train(**SMALL, algo="ppo", env=env, out=tmp_path / "run")
    assert read_run(run)["normalize_observations"] is normalized
    assert (accel_rl.load(run).policy.norm is not None) is normalized


def test_normalization_that_is_asked_for_is_not_dropped() -> None:
    """Would catch a wish that is ignored in silence."""
    config = resolve({"algo": "ppo", "env": "FrozenLake-v1", "normalize_observations": True, "device": "cpu"})
    with pytest.raises(UsageError, match="only vectors of numbers"):
        check(config)
