"""Actions that are a Dict with a Tuple inside, from the environment to the trained policy and back."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import data_equivalence

import accel_rl
from accel_rl.cli import main
from accel_rl.distributed.launch import train
from accel_rl.envs import make_env
from accel_rl.envs.spaces.conversion import from_env_action, one_of, to_env_action
from accel_rl.envs.spec import stored_action
from accel_rl.errors import UsageError
from tests.helpers.runs import TINY, TINY_LEARNERS_RUN, TINY_RUN, TINY_SERIAL_RUN, assert_resumes_exactly, rows
from tests.helpers.samplers import TOYS
from tests.helpers.toy_envs import Machine

MACHINE = f"{TOYS}:Machine"
SPACE = Machine().action_space
PPO: dict[str, Any] = {
    **TINY_RUN,
    "algo": "ppo",
    "env": MACHINE,
    "envs": 8,
    "horizon": 16,
    "epochs": 4,
    "minibatches": 2,
    "learning_rate": 1e-2,
    "discount": 0.0,
    "normalize_observations": False,
    "normalize_returns": False,
    "schedule_steps": 4096,
    "decorrelation_steps": 9,
    "log_interval_steps": 128,
    "seed": 5,
}


# ---- the environment's actions and the stored rows ----


def test_rows_hold_the_numbers_of_all_parts() -> None:
    """A row holds the numbers of all parts in order, and turns into an action with starts, bounds and types."""
    assert stored_action(SPACE) == ((7,), np.float32)
    row = np.array([-7, 7, 0, 1, 1, 2, 2], np.float32)
    action = to_env_action(row, SPACE)
    expected = {"arm": (np.array([-1, 0.5]), np.array([[0, 1]], np.int8)), "dials": np.array([1, 1]), "gear": 3}
    assert data_equivalence(action, expected | {"gear": np.int64(3)}, exact=True) and SPACE.contains(action)
    assert from_env_action(action, SPACE).tolist() == [-1, 0.5, 0, 1, 1, 2, 2] and row[0] == -7
    finite = spaces.Tuple([spaces.Discrete(3, start=2), SPACE["dials"]])
    assert stored_action(finite) == ((3,), np.int64)
    assert stored_action(spaces.Dict(a=spaces.Discrete(2), b=spaces.Box(-1, 1, ()))) == ((2,), np.float32)
    assert from_env_action((4, np.array([1, 0])), finite).tolist() == [2, 1, 1]


def test_samples_and_batches_survive_the_way_through_rows() -> None:
    """Actions come back from rows unchanged, and a stack of rows becomes a batch of actions."""
    SPACE.seed(1)
    samples = [SPACE.sample() for _ in range(5)]
    stored = np.stack([from_env_action(action, SPACE) for action in samples])
    assert stored.shape == (5, 7) and stored.dtype == np.float32
    batch = to_env_action(stored, SPACE)
    for index, before in enumerate(samples):
        after = one_of(batch, SPACE, index)
        assert SPACE.contains(after)
        assert all(np.allclose(one, other) for one, other in zip(_numbers(before), _numbers(after), strict=True))


def _numbers(action: Any) -> list[Any]:
    return [*action["arm"], action["dials"], action["gear"]]


# ---- runs ----


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(**PPO, sampler="serial", steps=2048, out=tmp_path_factory.mktemp("machine") / "run")


def test_ppo_learns_it(run: Path) -> None:
    """PPO learns all parts of the action. The best score is 5 a step; a blind policy gets about 3 choices right, and
    its numbers are off by 1/3."""
    found = accel_rl.load(run, trust=True).evaluate(episodes=20, seed=9, greedy=True)
    assert found.mean_reward / found.mean_length > 4.5


@pytest.mark.slow
def test_two_halves_are_a_whole(tmp_path: Path) -> None:
    """A run with structured actions resumes exactly."""
    settings = {**PPO, "core": "gru", "core_size": 8, "previous_inputs": True, "sampler": "serial"}
    half, _ = assert_resumes_exactly(tmp_path, settings, 256, stop=128)
    assert "start a new episode" not in (half / "log.txt").read_text()


def test_predict(run: Path) -> None:
    """A policy returns structured actions in the environment's numbers, alone or in batches."""
    player, env = accel_rl.load(run, trust=True), make_env(MACHINE)
    batch, _ = player.predict(np.eye(3, dtype=np.float32), deterministic=True)
    for goal in range(3):
        action = one_of(batch, env.action_space, goal)
        single, _ = player.predict(np.eye(3, dtype=np.float32)[goal], deterministic=True)
        assert env.action_space.contains(single) and env.action_space.contains(player.predict(np.eye(3)[goal])[0])
        assert all(np.allclose(one, other) for one, other in zip(_numbers(single), _numbers(action), strict=True))
        assert single["gear"] == 1 + goal and isinstance(hash(single["gear"]), int)
        assert single["dials"].tolist() == [goal % 2, goal - 1]
        assert single["arm"][1].tolist() == [[goal > 0, goal > 1]]
        np.testing.assert_allclose(single["arm"][0], [goal / 2 - 1, 0], atol=0.3)


REPLAY = {"auxiliary": ["value_replay", "reward_prediction"], "auxiliary_replay_steps": 20}
MEMORY = {"core": "lstm", "core_size": 8, "previous_inputs": True}
QUEUED = {**TINY, "device": "cpu", "min_training_batch": 20}
ALGORITHMS: dict[str, dict[str, Any]] = {
    "a2c": {**TINY_SERIAL_RUN, **REPLAY},
    "vtrace": {**TINY_SERIAL_RUN, **MEMORY, "gaussian": "spherical"},
    "unreal": {**TINY_LEARNERS_RUN, **REPLAY},
    "ga3c": QUEUED,
    "gunreal": {**QUEUED, **REPLAY},
}


@pytest.mark.parametrize("algo", ["a2c", *(pytest.param(name, marks=pytest.mark.slow) for name in [*ALGORITHMS][1:])])
def test_every_actor_critic(algo: str, tmp_path: Path) -> None:
    """Every actor-critic trains with structured actions."""
    settings = ALGORITHMS[algo] | {"algo": algo, "env": MACHINE, "log_interval_steps": 100}
    folder = train(**settings, steps=400, out=tmp_path / "run")
    assert any(row["train/entropy"] for row in rows(folder))


# ---- what is refused ----


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"algo": "dqn"}, "actions of type Dict have no table of action values; .* use a policy-gradient method"),
        ({"algo": "pqn"}, "actions of type Dict have no table of action values; .* use a policy-gradient method"),
        ({"algo": "a2c", "auxiliary": ["pixel_control"]}, "pixel_control"),
        ({"algo": "ga3c", "log_epsilon": 1e-6}, "log_epsilon=1e-06 is for Discrete actions, .*use --log-epsilon 0"),
    ],
)
def test_what_needs_discrete_actions_refuses_them(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    """Features for discrete actions refuse structured ones in one line, before a folder is made."""
    with pytest.raises(UsageError, match=message) as raised:
        train(**TINY_SERIAL_RUN | settings | {"env": MACHINE}, steps=40, out=tmp_path / "run")
    assert "\n" not in str(raised.value) and not (tmp_path / "run").exists()


def test_the_commands_play_it(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The commands eval and record play a policy with structured actions."""
    assert main(["eval", str(run), "--episodes", "2", "--trust"]) == 0
    assert main(["record", str(run), "--out", str(tmp_path / "game.mp4"), "--trust"]) == 0
    assert "mean_reward" in capsys.readouterr().out
