"""Steps vector environments in a worker's columns of a rollout; chooses the kind of batch for an id."""

import contextlib
import logging
from copy import deepcopy
from typing import Any

import numpy as np

from accel_rl.envs.batches.batch_simulator import BatchSimulator
from accel_rl.envs.batches.env_batch import BatchConfig, EnvBatch, stand_still
from accel_rl.envs.batches.vector_simulator import VectorSimulator
from accel_rl.envs.closing import close_all
from accel_rl.envs.global_generators import GlobalGenerators, with_own_generators
from accel_rl.envs.make import is_vector
from accel_rl.envs.spaces.conversion import random_action
from accel_rl.errors import RunError, UsageError

logger = logging.getLogger("accel_rl")

OVERWRITES_LAST = (
    "%s: the last observations of games are lost, since the environment writes each observation into the same array, "
    "and AutoresetMode.SAME_STEP keeps the array: truncated episodes are bootstrapped from the next game's first "
    "observation. Return a copy, or use NEXT_STEP or DISABLED"
)


def make_batch(config: BatchConfig, *arguments: Any, **options: Any) -> EnvBatch:
    """Builds the kind of batch that config.env needs; takes and raises the same as EnvBatch."""
    return (VectorBatch if is_vector(config.env) else BatchSimulator)(config, *arguments, **options)


def check_reset_mode(name: str, env_id: str) -> None:
    """Raises UsageError for a reset mode that vector environments do not support."""
    if name == "wait":
        raise UsageError(
            f"reset_mode=wait pauses single environments, but {env_id} steps a whole batch at once; use immediate"
        )


class VectorBatch(EnvBatch):
    """A batch that is stepped in one call, so no environment can wait for another, and all fail together.

    A step that only resets an environment is not valid; the row after it shows the new game. All environments begin
    with decorrelation_steps random actions."""

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        check_reset_mode(self.config.reset_mode, self.config.env.env_id)
        self._rows = self.arrays["observation"][self._history :]
        self._may_warn = self.config.role == 0 and self._index_in_run(0) == 0  # once in a run
        self._counts, self._failed, self._waiting = (np.zeros(self.num_envs, np.bool_) for _ in range(3))
        self._score, self._length, self._age = (np.zeros(self.num_envs, dtype) for dtype in (float, np.int64, np.int64))
        self._envs: VectorSimulator = self._guarded(0, self._build)

    def start(self) -> None:
        try:
            self._guarded(0, self._start)
        except RunError as error:
            self._note_failure(slice(None), error)
            self._replace()

    @with_own_generators
    def step(self, t: int) -> None:
        self._heartbeat(self.first_env)
        if self._failed.any():
            return
        try:
            self._step(t)
        except Exception:
            self._note_failure(slice(None), self._failure(0, self._action[t]))
            stand_still(self.arrays, t)

    def pause(self) -> None:
        if self._failed.any():
            self._replace()

    def get_state(self) -> list[dict[str, Any]]:
        return [{"simulator": None}] * self.num_envs

    def set_state(self, state: list[dict[str, Any]]) -> list[int]:
        self.arrays["restarts"] += 1  # other games than when the run was new
        self.generators = GlobalGenerators(self._seed(0, 2))
        self._replace()
        return [*range(self.first_env, self.first_env + self.num_envs)]

    @with_own_generators
    def close(self) -> None:
        close_all([self._envs])

    def _build(self, _: int) -> VectorSimulator:
        seeds = [self._seed(column, 0) for column in range(self.num_envs)]
        envs, arrays = VectorSimulator(self.config.env, seeds, self.config.env_threads), self.arrays
        found = (envs.spec.row_shape, envs.spec.row_dtype, envs.spec.action_shape, envs.spec.action_dtype)
        observation, action = arrays["observation"], arrays["action"]
        expected = (observation.shape[2:], observation.dtype, action.shape[2:], action.dtype)
        if found != expected:
            raise RunError(
                "observation and action of a step have (shape, type, shape, type) "
                f"{found}, but {expected} when the environment was tried out: spaces must be the same in each process"
            )
        return envs

    def _start(self, _: int) -> None:
        """Starts all games, and plays random actions from each environment's own generator."""
        self._envs.reset(self._pending)
        specs = [deepcopy(self._envs.spec) for _ in range(self.num_envs)]
        for column, spec in enumerate(specs):
            spec.action_space.seed(int(np.random.default_rng(self._seed(column, 1)).integers(2**31 - 1)))
        for _ in range(self.config.decorrelation_steps):
            self._heartbeat(self.first_env)
            rows = zip(self._pending, specs, strict=True)
            self._random_action = np.array([random_action(row, spec) for row, spec in rows])
            self._envs.step(self._random_action, self._pending)
        self._random_action = None
        self._counts[:], self._waiting[:] = self.config.decorrelation_steps == 0, True
        self._score[:], self._length[:] = 0.0, 0

    def _step(self, t: int) -> None:
        arrays, row = self.arrays, t + 1
        outcome = self._envs.step(self._action[t], self._rows[row])
        ended = outcome.terminated | outcome.truncated
        arrays["valid"][t], arrays["reset"][row] = outcome.is_step, outcome.is_start
        arrays["terminated"][t], arrays["truncated"][t] = outcome.terminated, outcome.truncated
        self._reward[t] = outcome.reward
        self._score += outcome.reward
        self._length += outcome.is_step
        self._age += 1
        self._age[ended | outcome.is_start] = 0
        self._ages[row] = self._age
        for column in ended.nonzero()[0].tolist():
            if outcome.truncated[column] or self.config.terminal_frames:
                arrays["final_observation"][t, column] = self._envs.last_row(column)
            self._finish_game(t, column)
        if self._envs.overwrites_last and self._may_warn:
            self._may_warn = False
            logger.warning(OVERWRITES_LAST, self.config.env.env_id)

    def _replace(self) -> None:
        """Builds and starts new environments. Raises RunError if these fail, too."""
        with contextlib.suppress(Exception):
            self._envs.close()
        self._envs = self._guarded(0, self._build)
        self._guarded(0, self._start)
        self._failed[:] = False

    def _name(self, column: int) -> str:
        return f"environments {self._index_in_run(0)} to {self._index_in_run(self.num_envs - 1)}"
