"""A trained agent, as its user has it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import accel_rl
from accel_rl.analysis.agent import Agent
from accel_rl.distributed.launch import train
from accel_rl.envs import EnvConfig, make_env
from accel_rl.errors import UsageError
from accel_rl.training.build import build_sampler
from accel_rl.training.resolve import resolve

TINY = {"envs": 2, "workers": 2, "steps": 8, "horizon": 2, "eval_interval_steps": 0, "tensorboard": False}


def test_images_are_accepted_as_the_environment_returns_them(tmp_path: Path) -> None:
    """Would catch an agent that cannot act in its own environment, whose images have their channels last."""
    env_id = "tests.helpers.toy_envs:Picture"
    folder = train("a2c", env_id, out=tmp_path / "run", network="tests.helpers.samplers:Flat", **TINY)
    agent = accel_rl.load(folder)
    env = make_env(env_id)
    observation, _ = env.reset(seed=0)
    assert observation.shape[-1] == 3
    action = agent.predict(observation)
    assert env.action_space.contains(action)
    assert agent.predict(observation[None]).shape == (1,)
    assert agent.predict(np.moveaxis(observation, -1, 0), greedy=True) == agent.predict(observation, greedy=True)
    with pytest.raises(ValueError, match="shape"):
        agent.predict(observation[:1])


@pytest.fixture(scope="module")
def recurrent(tmp_path_factory: pytest.TempPathFactory) -> Agent:
    """An agent for CartPole with an LSTM and large random weights, so that its state shows in its actions."""
    core = {"core": "lstm", "core_size": 8, "previous_inputs": True, "sampler": "serial", "device": "cpu"}
    folder = train("a2c", "CartPole-v1", out=tmp_path_factory.mktemp("agent") / "run", **{**TINY, **core, "envs": 4})
    agent = accel_rl.load(folder)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in (*agent.policy.encoder.core.parameters(), *agent.policy.policy_head.parameters()):
            if parameter.dim() > 1:
                parameter.copy_(2 * torch.randn(parameter.shape, generator=generator))
    return agent


def test_a_recurrent_agent_acts_like_the_sampler(recurrent: Agent) -> None:
    """Would catch a state that is not passed on from step to step, or a reward or action that is not the last one."""
    sampler: Any = build_sampler(recurrent.config, recurrent.policy, horizon=60)
    sampler._envs.start()
    rollout = sampler._collect(sampler._server, sampler._envs, recurrent.policy, greedy=True)
    seen, games, differ = rollout.observation_rows.numpy(), 0, 0
    for env in range(4):
        for t in range(60):
            if rollout.reset[t, env]:
                recurrent.reset()
                games += 1
            reward = rollout.reward[t - 1, env] if t else 0.0
            action = recurrent.predict(seen[t, env], greedy=True, reward=reward)
            assert action == rollout.action[t, env].item()
            differ += action != rollout.action[0, 0].item()
    assert games > 4 and differ > 0
    sampler.close()
    # All environments at once, until the first game is over.
    recurrent.reset()
    for t in range(int(rollout.reset[1:].any(1).nonzero()[0])):
        reward = rollout.reward[t - 1].numpy() if t else 0.0
        assert recurrent.predict(seen[t], greedy=True, reward=reward).tolist() == rollout.action[t].tolist()


def test_reset_makes_a_recurrent_agent_forget(recurrent: Agent) -> None:
    """Would catch a game that begins with the recurrent inputs of the last one, or batches of games mixed up."""
    observations = np.random.default_rng(0).normal(size=(30, 3, 4)).astype(np.float32)
    play = lambda: [recurrent.predict(rows, greedy=True).tolist() for rows in observations]  # noqa: E731
    recurrent.reset()
    first, state = play(), recurrent._recurrent_inputs
    again, other = play(), recurrent._recurrent_inputs
    recurrent.reset()
    assert play() == first and state is not None and other is not None
    assert recurrent._recurrent_inputs is not None and recurrent._recurrent_inputs.state.equal(state.state)
    assert not other.state.equal(state.state) or again != first
    with pytest.raises(ValueError, match=r"2 observations after 3.*call reset\(\)"):
        recurrent.predict(observations[0][:2])
    with pytest.raises(ValueError, match="1 observations after 3"):
        recurrent.predict(observations[0][0])
    recurrent.reset()
    recurrent.predict(observations[0][0])


def test_reset_starts_a_new_game_in_the_middle_of_one() -> None:
    """Would catch a reset that continues the old game, as time limits and other wrappers would notice."""
    env = make_env("breakout", noop_max=0)
    first, _ = env.reset(seed=1)
    for _ in range(30):
        moved, *_ = env.step(2)
    assert not np.array_equal(first[-1], moved[-1])
    assert np.array_equal(env.reset()[0], first)


def test_numbers_with_exponents_are_numbers() -> None:
    """Would catch 1e-6 read as text, as YAML does."""
    config = resolve({"optimizer_options": "{decay: 0.9, epsilon: 1e-6}", "steps": "1e6", "learning_rate": "1E-3"})
    assert config.algo.optimizer_options == {"decay": 0.9, "epsilon": 1e-6}
    assert (config.run.steps, config.algo.learning_rate) == (1_000_000, 1e-3)


@pytest.mark.parametrize("options", [{"decay": 1.5}, {"epsilon": -1}, {"decay": [1]}, {"decai": 0.9}])
def test_impossible_hyperparameters_are_refused(options: dict[str, object], tmp_path: Path) -> None:
    """Would catch an optimizer that fails only at the first update."""
    with pytest.raises(UsageError, match=r"deca|epsilon"):
        train("a2c", "CartPole-v1", out=tmp_path / "run", **{**TINY, "optimizer_options": options})


def test_a_users_algorithm_has_its_own_defaults() -> None:
    """Would catch defaults of a user's class that do not reach the run."""
    config = resolve({"algo": "docs.reinforce:Reinforce", "env": "CartPole-v1"})
    assert config.run.horizon == 256
    assert resolve({"algo": "docs.reinforce:Reinforce", "env": "CartPole-v1", "horizon": 8}).run.horizon == 8


def test_a_preset_may_set_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch a preset whose env_preset is written to config.yaml while training uses another one."""
    import accel_rl.config.presets as presets
    import accel_rl.training.resolve as resolving

    preset = {**presets.load_preset("a2c"), "env_preset": "v5", "frame_skip": 2}
    for module in (presets, resolving):
        monkeypatch.setattr(module, "load_preset", lambda name, kind="preset": preset)
    env: EnvConfig = resolve({"env": "pong"}).env
    assert (env.options["frame_skip"], env.options["repeat_action_probability"]) == (2, 0.25)


def test_images_too_small_for_the_network_are_refused() -> None:
    """Would catch a traceback from inside a convolution."""
    with pytest.raises(UsageError, match="does not fit observations"):
        train("a2c", "pong", frame_shape=(16, 16), **TINY)
