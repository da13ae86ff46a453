"""A trained policy in the hands of its user."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import accel_rl
from accel_rl.analysis.agent import Player
from accel_rl.distributed.launch import train
from accel_rl.envs import EnvConfig, make_env
from accel_rl.errors import UsageError
from accel_rl.training.build import build_sampler
from accel_rl.training.resolve import resolve

TINY = {"envs": 2, "workers": 2, "steps": 8, "horizon": 2, "eval_interval_steps": 0, "tensorboard": False}


def test_pictures_are_taken_as_the_environment_shows_them(tmp_path: Path) -> None:
    """Would catch a policy that can't act in its own environment, whose pictures have their channels last."""
    env_id = "tests.helpers.toy_envs:Picture"
    folder = train("a2c", env_id, out=tmp_path / "run", network="tests.helpers.samplers:Flat", **TINY)
    player = accel_rl.load(folder)
    env = make_env(env_id)
    observation, _ = env.reset(seed=0)
    assert observation.shape[-1] == 3
    action = player.predict(observation)
    assert env.action_space.contains(action)
    assert player.predict(observation[None]).shape == (1,)
    assert player.predict(np.moveaxis(observation, -1, 0), greedy=True) == player.predict(observation, greedy=True)
    with pytest.raises(ValueError, match="shape"):
        player.predict(observation[:1])


@pytest.fixture(scope="module")
def remembers(tmp_path_factory: pytest.TempPathFactory) -> Player:
    """Of CartPole with an LSTM, with large random weights, so that what it remembers shows in what it does."""
    core = {"core": "lstm", "core_size": 8, "previous_inputs": True, "sampler": "serial", "device": "cpu"}
    folder = train("a2c", "CartPole-v1", out=tmp_path_factory.mktemp("player") / "run", **{**TINY, **core, "envs": 4})
    player = accel_rl.load(folder)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in (*player.policy.encoder.core.parameters(), *player.policy.policy_head.parameters()):
            if parameter.dim() > 1:
                parameter.copy_(2 * torch.randn(parameter.shape, generator=generator))
    return player


def test_a_recurrent_player_acts_like_the_sampler(remembers: Player) -> None:
    """Would catch a state that is not passed on from step to step, or another reward or action than the last one's."""
    sampler: Any = build_sampler(remembers.config, remembers.policy, horizon=60)
    sampler._envs.start()
    rollout = sampler._collect(sampler._server, sampler._envs, greedy=True)
    seen, games, differ = rollout.observation_rows.numpy(), 0, 0
    for env in range(4):
        for t in range(60):
            if rollout.reset[t, env]:
                remembers.reset()
                games += 1
            reward = rollout.reward[t - 1, env] if t else 0.0
            action = remembers.predict(seen[t, env], greedy=True, reward=reward)
            assert action == rollout.action[t, env].item()
            differ += action != rollout.action[0, 0].item()
    assert games > 4 and differ > 0
    sampler.close()
    # All at once, until the first game is over.
    remembers.reset()
    for t in range(int(rollout.reset[1:].any(1).nonzero()[0])):
        reward = rollout.reward[t - 1].numpy() if t else 0.0
        assert remembers.predict(seen[t], greedy=True, reward=reward).tolist() == rollout.action[t].tolist()


def test_a_recurrent_player_forgets(remembers: Player) -> None:
    """Would catch a game that begins with the recurrent inputs of the last one, or games of another batch mixed up."""
    observations = np.random.default_rng(0).normal(size=(30, 3, 4)).astype(np.float32)
    play = lambda: [remembers.predict(rows, greedy=True).tolist() for rows in observations]  # noqa: E731
    remembers.reset()
    first, state = play(), remembers._recurrent_inputs
    again, other = play(), remembers._recurrent_inputs
    remembers.reset()
    assert play() == first and state is not None and other is not None
    assert remembers._recurrent_inputs is not None and remembers._recurrent_inputs.state.equal(state.state)
    assert not other.state.equal(state.state) or again != first
    with pytest.raises(ValueError, match=r"2 observations after 3.*call reset\(\)"):
        remembers.predict(observations[0][:2])
    with pytest.raises(ValueError, match="1 observations after 3"):
        remembers.predict(observations[0][0])
    remembers.reset()
    remembers.predict(observations[0][0])


def test_a_new_game_can_begin_in_mid_game() -> None:
    """Would catch a reset that goes on with the old game, as time limits and other wrappers would notice."""
    env = make_env("breakout", noop_max=0)
    first, _ = env.reset(seed=1)
    for _ in range(30):
        moved, *_ = env.step(2)
    assert not np.array_equal(first[-1], moved[-1])
    assert np.array_equal(env.reset()[0], first)


def test_numbers_with_exponents() -> None:
    """Would catch 1e-6 taken for text, as YAML has it, and rules with impossible hyperparameters."""
    config = resolve({"optimizer_options": "{decay: 0.9, epsilon: 1e-6}", "steps": "1e6", "learning_rate": "1E-3"})
    assert config.algo.optimizer_options == {"decay": 0.9, "epsilon": 1e-6}
    assert (config.run.steps, config.algo.learning_rate) == (1_000_000, 1e-3)


@pytest.mark.parametrize("options", [{"decay": 1.5}, {"epsilon": -1}, {"decay": [1]}, {"decai": 0.9}])
def test_impossible_hyperparameters(options: dict[str, object], tmp_path: Path) -> None:
    """Would catch a rule that fails only at the first update."""
    with pytest.raises(UsageError, match=r"deca|epsilon"):
        train("a2c", "CartPole-v1", out=tmp_path / "run", **{**TINY, "optimizer_options": options})


def test_a_class_brings_its_own_defaults() -> None:
    """Would catch defaults of a user's class that do not reach the run."""
    config = resolve({"algo": "docs.reinforce:Reinforce", "env": "CartPole-v1"})
    assert config.run.horizon == 256
    assert resolve({"algo": "docs.reinforce:Reinforce", "env": "CartPole-v1", "horizon": 8}).run.horizon == 8


def test_a_preset_may_name_the_environments_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch a preset whose env_preset is written to config.yaml while another one is trained in."""
    import accel_rl.config.presets as presets
    import accel_rl.training.resolve as resolving

    preset = {**presets.load_preset("a2c"), "env_preset": "v5", "frame_skip": 2}
    for module in (presets, resolving):
        monkeypatch.setattr(module, "load_preset", lambda name, kind="preset": preset)
    env: EnvConfig = resolve({"env": "pong"}).env
    assert (env.options["frame_skip"], env.options["repeat_action_probability"]) == (2, 0.25)


def test_small_pictures_need_another_network() -> None:
    """Would catch a traceback from the depths of a convolution."""
    with pytest.raises(UsageError, match="does not fit observations"):
        train("a2c", "pong", frame_shape=(16, 16), **TINY)
