"""Nested observations and actions of several choices, from the environment to the trained policy and back."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import accel_rl
from accel_rl.distributed.launch import train
from accel_rl.envs import make_env
from accel_rl.run_folder import checkpoint
from tests.helpers.runs import TINY_RUN
from tests.helpers.samplers import TOYS

NESTED: dict[str, Any] = {
    **TINY_RUN,
    "algo": "a2c",
    "env": f"{TOYS}:Nested",
    "env_options": {"lengths": [5, -4]},
    "envs": 8,
    "seed": 5,
    "schedule_steps": 1200,
    "learning_rate": 3e-3,
    "discount": 0.0,
    "eval_greedy": True,
    "decorrelation_steps": 9,
    "log_interval_steps": 200,
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(**NESTED, sampler="serial", steps=1200, out=tmp_path_factory.mktemp("nested") / "run")


def test_it_learns(run: Path) -> None:
    """Training learns the third choice, which follows the observed goal. Random choices score 1/2 + 1/3 + 1/4 a
    step, the best blind ones 2 1/2."""
    found = accel_rl.load(run, trust=True).evaluate(episodes=20, seed=9)
    assert found.mean_reward / found.mean_length > 2.9


def test_predict(run: Path) -> None:
    """A policy acts on its environment's own nested observations, alone or in batches, with the environment's
    numbers."""
    player, env = accel_rl.load(run, trust=True), make_env(f"{TOYS}:Nested")
    seen = [env.reset(seed=seed)[0] for seed in range(4)]
    single = [player.predict(one, deterministic=True)[0] for one in seen]
    for one, action in zip(seen, single, strict=True):
        assert env.action_space.contains(action)
        assert action.tolist() == [0, -1, 5 + (one["arm"]["angles"][1] > 0)]
    assert env.action_space.contains(player.predict(seen[0])[0])
    arms = [one["arm"] for one in seen]
    batch = {
        "camera": np.stack([one["camera"] for one in seen]),
        "arm": {name: np.stack([arm[name] for arm in arms]) for name in ("angles", "grip")},
        "switches": np.stack([one["switches"] for one in seen]),
    }
    assert np.array_equal(player.predict(batch, deterministic=True)[0], single)
    with pytest.raises(ValueError, match="the observation has the parts"):
        player.predict({"camera": seen[0]["camera"]})
    with pytest.raises(ValueError, match=r"part 'camera', has shape \(23, 32, 3\)"):
        player.predict({**seen[0], "camera": seen[0]["camera"][1:]})


@pytest.mark.slow
def test_parts_are_left_out_with_one_warning(tmp_path: Path) -> None:
    """Parts that cannot be learned from are left out with one warning, and the policy acts on whole observations."""
    settings = {**NESTED, "env": f"{TOYS}:Worded", "env_options": {}, "schedule_steps": None}
    folder = train(**settings, steps=100, out=tmp_path / "run")
    log = (folder / "log.txt").read_text()
    assert log.count("are left out: 1/words (Wish), 2 (Graph)") == 1 and log.count("Wish") == 1
    player, env = accel_rl.load(folder, trust=True), make_env(f"{TOYS}:Worded")
    assert env.action_space.contains(player.predict(env.reset(seed=0)[0])[0])
    assert player.evaluate(episodes=2).mean_length == 3


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["a2c", "dqn"])
@pytest.mark.parametrize("size", [(16, 21), (24, 24)], ids=str)  # test_build.py has others
def test_pictures_of_every_size_are_trained_on(algo: str, size: tuple[int, int], tmp_path: Path) -> None:
    """Pictures of every size, as bytes, floats or grey, are trained on."""
    height, width = size
    settings = {"algo": algo, "device": "cpu", "eval_interval_steps": 0, "tensorboard": False, "sampler": "serial"}
    for kind, wrappers in [("bytes", []), ("floats", [f"{TOYS}:AsFloats"]), ("grey", [f"{TOYS}:as_grey"])]:
        sizes = {"env_options": {"height": height, "width": width}, "envs": 4, "horizon": 8, "wrappers": wrappers}
        sizes |= {"replay_size": 400, "warmup_steps": 100, "batch_size": 16} if algo == "dqn" else {}
        folder = train(
            **settings, **sizes, env=f"{TOYS}:Picture", steps=200, out=tmp_path / kind, decorrelation_steps=0
        )
        assert checkpoint.load(folder / "checkpoint.pt")["steps"] >= 200


@pytest.mark.parametrize("name", ["Switches", "Unbounded"])
def test_other_spaces(name: str, tmp_path: Path) -> None:
    """Actions of other shapes are trained, played and evaluated."""
    settings = {**NESTED, "env": f"{TOYS}:{name}", "env_options": {}, "schedule_steps": None, "sampler": "serial"}
    folder = train(**settings, steps=80, out=tmp_path / "run")
    player, env = accel_rl.load(folder, trust=True), make_env(f"{TOYS}:{name}")
    observation, _ = env.reset(seed=0)
    for _ in range(5):
        observation, *_ = env.step(player.predict(observation)[0])
    assert player.evaluate(episodes=2).mean_length == 7
