"""Simulators: `make_env` returns any of them as a gymnasium.Env; workers build them with `make_simulator`."""

from typing import Any

import gymnasium

from accel_rl.envs.atari import AtariEnv, game_name, make_options
from accel_rl.envs.batch_simulator import BatchSimulator, make_simulator
from accel_rl.envs.gym import make_gym_env
from accel_rl.envs.spec import EnvConfig, EnvSpec, Simulator

__all__ = ["BatchSimulator", "EnvConfig", "EnvSpec", "Simulator", "make_env", "make_simulator"]


def make_env(
    env_id: str, preset: str = "stooke", render_mode: str | None = None, **options: Any
) -> gymnasium.Env[Any, Any]:
    """Returns one environment: an Atari game ("pong" or "ALE/Pong-v5"), any gymnasium id, or "package.module:factory".

    For Atari games, preset is stooke | dqn84 | v5, options are fields of AtariOptions, and observations are stacks
    [S, H, W] uint8, oldest frame first (with color=True and frame_stack=1 single frames [3, H, W]). Raises UsageError
    for an unknown name or option.
    """
    game = game_name(env_id)
    if game is not None:
        return AtariEnv(game, make_options(preset, options), render_mode)
    return make_gym_env(EnvConfig(env_id, preset, options), render_mode=render_mode)
