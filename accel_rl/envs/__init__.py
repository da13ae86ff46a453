"""Simulators: `make_env` returns any of them as a gymnasium.Env; workers build them with `make_simulator`."""

from collections.abc import Sequence
from typing import Any

import gymnasium

from accel_rl.envs.batches.batch_simulator import BatchSimulator, make_simulator
from accel_rl.envs.games.atari import game_name
from accel_rl.envs.games.atari_env import AtariEnv
from accel_rl.envs.games.emulator_choice import check_simulator, check_wrappers
from accel_rl.envs.make import make_gym_env
from accel_rl.envs.spec import EnvConfig, EnvSpec, Simulator

__all__ = ["BatchSimulator", "EnvConfig", "EnvSpec", "Simulator", "make_env", "make_simulator"]


def make_env(
    env_id: str,
    preset: str = "stooke",
    render_mode: str | None = None,
    simulator: str = "auto",
    wrappers: Sequence[str] = (),
    **options: Any,
) -> gymnasium.Env[Any, Any]:
    """Returns one environment: an Atari game ("pong" or "ALE/Pong-v5"), any gymnasium id, or "package.module:factory".

    For Atari games, preset is stooke | dqn84 | v5, simulator auto | native | ale (docs/configuration.md); options are
    fields of AtariOptions. Their observations are stacks [S, H, W] uint8, oldest frame first (with color=True and
    frame_stack=1, single frames [3, H, W]). wrappers, for other environments only: names such as
    "package.module:Wrapper", innermost first. Raises UsageError for an unknown name or option."""
    config = EnvConfig(env_id, preset, options, simulator, tuple(wrappers))
    check_wrappers(config)
    if game_name(env_id) is not None:
        return AtariEnv(config, render_mode)
    check_simulator(config)
    return make_gym_env(config, render_mode=render_mode)
