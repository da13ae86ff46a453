"""Ids of other frameworks: a different meaning is logged once, and an unknown id is answered with its name here."""

import warnings
from pathlib import Path

import gymnasium
import pytest

import accel_rl
from accel_rl.envs.foreign_ids import advise, describe_difference
from accel_rl.envs.make import _find, make_gym_env
from accel_rl.envs.spec import EnvConfig
from accel_rl.errors import UsageError
from tests.helpers.runs import TINY_SERIAL_RUN

PAGE = (Path(__file__).parents[2] / "docs" / "coming_from.md").read_text()


@pytest.mark.parametrize("env_id", ["PongNoFrameskip-v4", "Pong-v0", "ale_py:ALE/Pong-v5"])
def test_a_plain_atari_game_is_named_as_such(env_id: str) -> None:
    """An id that gymnasium registers without any processing is described as the plain game."""
    said = describe_difference(EnvConfig(env_id))
    assert said and said.startswith(f"{env_id} is the plain game") and "--env pong, or ALE/Pong-v5," in said
    assert "104x80 in stacks of 4, 4 frames a step" in said
    assert make_gym_env(EnvConfig(env_id)).observation_space.shape == (210, 160, 3)
    wrapped = EnvConfig(env_id, wrappers=("gymnasium.wrappers:AtariPreprocessing",))
    assert "plain" not in str(describe_difference(wrapped))


def test_an_older_version_is_named_once() -> None:
    """gymnasium's warnings, one from each process, are replaced by one that says what the newer version changes."""
    assert describe_difference(EnvConfig("CartPole-v0")) == (
        "CartPole-v0 is out of date: there is CartPole-v1, with at most 500 steps per episode instead of 200"
    )
    assert describe_difference(EnvConfig("HalfCheetah-v4")) == "HalfCheetah-v4 is out of date: there is HalfCheetah-v5"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make_gym_env(EnvConfig("CartPole-v0")).close()


@pytest.mark.parametrize("env_id", ["pong", "ALE/Pong-v5", "CartPole-v1", "vector:CartPole-v1", "a.module:make"])
def test_what_means_the_same_is_not_mentioned(env_id: str) -> None:
    assert describe_difference(EnvConfig(env_id)) is None and advise("Registered-v0") is None


@pytest.mark.parametrize(
    ("env_id", "advice"),
    [
        ("atari_pong", "this Atari game is pong here"),
        ("Pong", "this Atari game is pong here"),
        ("PongDeterministic-v4", "this Atari game is pong here"),
        ("ALE/MsPacman-ram-v5", "this Atari game is ms_pacman here"),
        ("procgen:procgen-coinrun-v0", "old package gym: EnvPool has its games"),
        ("procgen-coinrun-v0", "old package gym: EnvPool has its games"),
        ("dm_control/cartpole-swingup-v0", "name it shimmy:dm_control/cartpole-swingup-v0"),
    ],
)
def test_an_unknown_id_is_answered_with_its_name_here(env_id: str, advice: str) -> None:
    """An unknown id that has a name here is answered with that name, and not with a similar id."""
    with pytest.raises(UsageError, match=rf"^unknown environment '{env_id}': .*{advice}"):
        _find(env_id)


def test_an_id_of_envpool_is_answered_with_its_prefix() -> None:
    pytest.importorskip("envpool")
    with pytest.raises(UsageError, match=r"use envpool:WalkerWalk-v1$"):
        _find("WalkerWalk-v1")


def test_every_atari_id_of_gymnasium_names_its_game() -> None:
    """Every Atari id of gymnasium is answered with its own game."""
    for env_id, spec in gymnasium.registry.items():
        if spec.entry_point == "ale_py.env:AtariEnv":
            for name in (env_id, env_id.replace("-v", "-ram-v"), env_id.partition("-")[0]):
                assert f"this Atari game is {spec.kwargs['game']} here" in str(advise(name)), name


def test_a_run_says_it_once_and_the_page_too(tmp_path: Path) -> None:
    accel_rl.train(**TINY_SERIAL_RUN | {"env": "CartPole-v0"}, steps=40, out=tmp_path / "run")
    assert (tmp_path / "run" / "log.txt").read_text().count("out of date") == 1
    for env_id in ("PongNoFrameskip-v4", "Pong-v0", "Pong-v4", "CartPole-v0", "procgen:", "dm_control/", "EnvPool"):
        assert env_id in PAGE, env_id
