"""Stable-Baselines3's and gymnasium's tools accept our policies like their own models."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import pytest
import torch

import accel_rl
from accel_rl.analysis.trained_policy import TrainedPolicy
from accel_rl.envs import make_env
from tests.helpers.runs import TINY_SERIAL_RUN
from tests.helpers.samplers import TOYS


@pytest.fixture
def sb3() -> Any:
    """Stable-Baselines3's functions and classes, whose import takes half a second."""
    pytest.importorskip("stable_baselines3")
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.vec_env import DummyVecEnv, VecTransposeImage

    return SimpleNamespace(evaluate=evaluate_policy, VecEnv=DummyVecEnv, Transpose=VecTransposeImage)


def untrained(folder: Path, env: str, weights: int = 1, **settings: Any) -> TrainedPolicy:
    """Returns an agent with large random weights from a seed, so that its actions depend on its inputs."""
    settings = {**TINY_SERIAL_RUN, **settings, "env": env, "steps": 20}
    agent = accel_rl.load(accel_rl.train("a2c", **settings, out=folder), trust=True)
    generator = torch.Generator().manual_seed(weights)
    with torch.no_grad():
        for parameter in agent.policy.parameters():
            if parameter.dim() > 1:
                parameter.copy_(2 * torch.randn(parameter.shape, generator=generator))
    return agent


def play(agent: TrainedPolicy, env: gymnasium.Env[Any, Any], seed: int, games: int) -> list[float]:
    """Returns the scores of some games one after the other, played without Stable-Baselines3."""
    observation, _ = env.reset(seed=seed)
    scores, state = [0.0], None
    while len(scores) <= games:
        action, state = agent.predict(observation, state, deterministic=True)
        observation, reward, terminated, truncated, _ = env.step(action)
        scores[-1] += float(reward)
        if terminated or truncated:
            scores.append(0.0)
            observation, state = env.reset()[0], None
    return scores[:games]


@pytest.mark.filterwarnings("ignore:Evaluation environment is not wrapped")
@pytest.mark.parametrize(("core", "seed"), [pytest.param("none", 4, marks=pytest.mark.slow), ("lstm", 2)])
def test_evaluate_policy_plays_the_games_that_we_play(tmp_path: Path, sb3: Any, core: str, seed: int) -> None:
    """Stable-Baselines3's evaluate_policy scores the same games as playing the agent by hand."""
    agent = untrained(
        tmp_path / "run", "CartPole-v1", weights=seed, core=core, core_size=8
    )  # more units would amplify rounding
    make = lambda: make_env("CartPole-v1")  # noqa: E731
    vec_env = sb3.VecEnv([make] * 3)
    vec_env.seed(5)
    scores, _ = sb3.evaluate(agent, vec_env, 9, return_episode_rewards=True)
    expected = [score for env in range(3) for score in play(agent, make(), 5 + env, 3)]
    assert sorted(scores) == sorted(expected) and len(set(expected)) > 3
    mean, _ = sb3.evaluate(agent, make(), 2)  # a plain environment
    assert 1 <= mean <= 500


@pytest.mark.filterwarnings("ignore:Evaluation environment is not wrapped")
@pytest.mark.parametrize(
    ("env", "options"),
    [
        ("tests.analysis.rooms:Rooms", {}),
        pytest.param(f"{TOYS}:Picture", {}, marks=pytest.mark.slow),
        pytest.param("pong", {"max_episode_steps": 9}, marks=pytest.mark.slow),
    ],
)
def test_observations_of_a_vec_env_are_those_of_the_environment(
    tmp_path: Path, sb3: Any, env: str, options: dict[str, Any]
) -> None:
    """An agent acts the same on a VecEnv's batches and on its environments' own observations."""
    settings = {"network": "tests.helpers.samplers:Flat"} if "Picture" in env else {}
    atari = {"decorrelation_steps": 0, "max_episode_steps": 9} if env == "pong" else {}
    agent = untrained(tmp_path / "run", env, **settings, **atari)
    vec_env = sb3.VecEnv([lambda: make_env(env, **options)] * 2)
    vec_env.seed(3)
    seen = vec_env.reset()
    actions, _ = agent.predict(seen, deterministic=True)
    assert all(vec_env.action_space.contains(action) for action in actions)
    single = [make_env(env, **options).reset(seed=3 + index)[0] for index in range(2)]
    assert actions.tolist() == [agent.predict(one, deterministic=True)[0] for one in single]
    if env != "pong":
        transposed = sb3.Transpose(vec_env)
        channels_first = transposed.transpose_observations(seen)
        if "Rooms" in env:
            assert channels_first["picture"].shape == (2, 3, 24, 20)
        else:
            assert agent.predict(channels_first, deterministic=True)[0].tolist() == actions.tolist()
    sb3.evaluate(agent, vec_env, 2)
