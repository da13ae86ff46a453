"""A trained agent, as its user gets it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import accel_rl
from accel_rl.analysis.trained_policy import TrainedPolicy
from accel_rl.distributed.launch import train
from accel_rl.envs import make_env
from accel_rl.errors import UsageError
from accel_rl.settings.resolve import resolve
from accel_rl.training.build import build_sampler

TINY = {"envs": 2, "workers": 2, "steps": 8, "horizon": 2, "eval_interval_steps": 0, "tensorboard": False}


def test_images_are_accepted_as_the_environment_returns_them(tmp_path: Path) -> None:
    """An agent accepts its environment's images with channels last or first, alone or in batches."""
    env_id = "tests.helpers.toy_envs:Picture"
    folder = train("a2c", env_id, out=tmp_path / "run", network="tests.helpers.samplers:Flat", **TINY, sampler="serial")
    agent = accel_rl.load(folder, trust=True)
    env = make_env(env_id)
    observation, _ = env.reset(seed=0)
    assert observation.shape[-1] == 3
    action, _ = agent.predict(observation)
    assert env.action_space.contains(action)
    assert agent.predict(observation[None])[0].shape == (1,)
    channels_first = np.moveaxis(observation, -1, 0)
    for batch in (observation, channels_first, observation[None], channels_first[None]):
        assert agent.predict(batch, deterministic=True)[0] == agent.predict(observation, deterministic=True)[0]
    with pytest.raises(ValueError, match="shape"):
        agent.predict(observation[:1])


@pytest.fixture(scope="module")
def recurrent(tmp_path_factory: pytest.TempPathFactory) -> TrainedPolicy:
    """An agent for CartPole with an LSTM and large random weights, so its state affects its actions."""
    core = {"core": "lstm", "core_size": 8, "previous_inputs": True, "sampler": "serial", "device": "cpu"}
    folder = train("a2c", "CartPole-v1", out=tmp_path_factory.mktemp("agent") / "run", **{**TINY, **core, "envs": 4})
    agent = accel_rl.load(folder)
    policy: Any = agent.policy
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in (*policy.encoder.core.parameters(), *policy.policy_head.parameters()):
            if parameter.dim() > 1:
                parameter.copy_(2 * torch.randn(parameter.shape, generator=generator))
    return agent


def test_a_recurrent_agent_acts_like_the_sampler(recurrent: TrainedPolicy) -> None:
    """A recurrent agent chooses the sampler's actions, for single games and for batches of them."""
    sampler: Any = build_sampler(recurrent.config, recurrent.policy, horizon=60)
    sampler._envs.start()
    rollout = sampler._play(sampler._server, sampler._envs, recurrent.policy, greedy=True)
    seen, reset = rollout.observation_rows.numpy(), rollout.reset.numpy()
    states: list[Any] = [None] * 4
    state, differ = None, 0
    for t in range(60):
        rewards = rollout.reward[t - 1].numpy() if t else None
        together, state = recurrent.predict(seen[t], state, reset[t], deterministic=True, reward=rewards)
        assert together.tolist() == rollout.action[t].tolist()
        for env in range(4):  # one game at a time; no state means a new game
            before = None if reset[t, env] else states[env]
            reward = 0.0 if rewards is None else rewards[env]
            action, states[env] = recurrent.predict(seen[t, env], before, deterministic=True, reward=reward)
            assert action == together[env]
        differ += len(set(together.tolist())) > 1
    assert reset[1:].sum() > 0 and differ > 0
    sampler.close()


def test_what_episode_start_marks_begins_anew(recurrent: TrainedPolicy) -> None:
    """Only the games that episode_start marks begin from a fresh state; wrong numbers of games are refused."""
    observations = np.random.default_rng(0).normal(size=(30, 3, 4)).astype(np.float32)

    def play(state: Any, starts: Any) -> tuple[list[Any], Any]:
        actions = []
        for rows in observations:
            action, state = recurrent.predict(rows, state, starts, deterministic=True)
            actions.append(action.tolist())
            starts = None
        return actions, state

    first, end = play(None, None)
    again, other = play(end, None)
    assert not np.array_equal(other[0], end[0]) or again != first
    forgotten, same = play(end, np.ones(3, bool))
    assert forgotten == first and np.array_equal(same[0], end[0]) and np.array_equal(same[1], end[1])
    one, _ = play(end, np.array([True, False, True]))
    assert [row[0] for row in one] == [row[0] for row in first] and [row[1] for row in one] == [row[1] for row in again]
    with pytest.raises(ValueError, match="2 observations with the state of 3 games"):
        recurrent.predict(observations[0][:2], end)
    with pytest.raises(ValueError, match="state must be None or the second result of predict"):
        recurrent.predict(observations[0], 5)
    for arguments in ({"episode_start": [True, False]}, {"reward": np.zeros(2)}):
        with pytest.raises(ValueError, match="must have a value for each of 3 games"):
            recurrent.predict(observations[0], end, **arguments)


def test_reset_starts_a_new_game_in_the_middle_of_one() -> None:
    env = make_env("breakout", noop_max=0)
    first, _ = env.reset(seed=1)
    for _ in range(30):
        moved, *_ = env.step(2)
    assert not np.array_equal(first[-1], moved[-1])
    assert np.array_equal(env.reset()[0], first)


def test_numbers_with_exponents_are_numbers() -> None:
    """Settings read 1e-6 and 1E-3 as numbers, unlike YAML."""
    config = resolve({"optimizer_options": "{decay: 0.9, epsilon: 1e-6}", "steps": "1e6", "learning_rate": "1E-3"})
    assert config.algo.optimizer_options == {"decay": 0.9, "epsilon": 1e-6}
    assert (config.run.steps, config.algo.learning_rate) == (1_000_000, 1e-3)


@pytest.mark.parametrize("options", [{"decay": 1.5}, {"epsilon": -1}, {"decay": [1]}, {"decai": 0.9}])
def test_impossible_hyperparameters_are_refused(options: dict[str, object], tmp_path: Path) -> None:
    """Impossible options of an optimizer are refused before the run starts."""
    with pytest.raises(UsageError, match=r"deca|epsilon"):
        train("a2c", "CartPole-v1", out=tmp_path / "run", **{**TINY, "optimizer_options": options})
