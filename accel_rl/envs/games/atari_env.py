"""Presents an Atari game to gymnasium, with the same frames and rules as in the framework's workers."""

from typing import Any

import gymnasium
import numpy as np

from accel_rl.envs.games.emulator_choice import make_atari, warn_if_inexact
from accel_rl.envs.spec import Array, EnvConfig
from accel_rl.errors import UsageError


class AtariEnv(gymnasium.Env[Array, int]):
    """A gymnasium environment around one simulator. With the native simulator, it can be copied and pickled.

    Observations are stacks [S, H, W] uint8, oldest frame first; in color, single frames [3, H, W]. `reset` begins the
    next life if the loss of a life ended the episode, otherwise a new game. info: "score" (raw reward of the step),
    "lives", "game_over"."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 15}

    def __init__(self, config: EnvConfig, render_mode: str | None):
        self._config, self.render_mode = config, render_mode
        warn_if_inexact(config)
        self._simulator = make_atari(config, np.random.SeedSequence())
        spec = self._simulator.spec
        self.observation_space = gymnasium.spaces.Box(0, 255, spec.observation_shape, np.uint8)
        self.action_space = spec.action_space
        self._observation = np.zeros(spec.observation_shape, np.uint8)
        self._frame = np.zeros(spec.row_shape, np.uint8)
        self._was_reset = self._life_lost = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        if options:
            raise UsageError(f"reset takes no options, but {', '.join(map(repr, options))}; make_env takes them")
        super().reset(seed=seed)
        if seed is not None:
            self._simulator = make_atari(self._config, np.random.SeedSequence(seed))
            self._life_lost = False
        if not self._life_lost:
            self._simulator.reset(self._frame)
        self._was_reset, self._life_lost = True, False
        self._observation[:] = 0
        self._show(self._frame)
        return self._observation.copy(), {"lives": self._simulator.lives}

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        if not self._was_reset:
            raise UsageError("call reset() before step()")
        if not self.action_space.contains(action):
            count = self._simulator.spec.action_space.n  # type: ignore[attr-defined]
            raise UsageError(f"there is no action {action}: {self._config.env_id} has actions 0 to {count - 1}")
        outcome = self._simulator.step(action, self._frame)
        self._show(self._frame if outcome.last_frame is None else outcome.last_frame)
        self._life_lost = outcome.terminated and not outcome.game_over
        info = {"score": outcome.score, "lives": self._simulator.lives, "game_over": outcome.game_over}
        return self._observation.copy(), outcome.reward, outcome.terminated, outcome.truncated, info

    def _show(self, frame: Array) -> None:
        """Adds the newest frame to the observation."""
        if self._simulator.spec.frame_stack:
            self._observation[:-1] = self._observation[1:]
            self._observation[-1] = frame
        else:
            np.copyto(self._observation, frame)

    def render(self) -> Any:
        return self._simulator.render()
