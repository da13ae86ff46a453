"""Defines what all batches of environments share: settings, arrays, seeds, scores and error messages."""

import logging
import sys
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from accel_rl.envs.global_generators import GlobalGenerators, with_own_generators
from accel_rl.envs.spec import Array, EnvConfig, EnvSpec
from accel_rl.errors import RunError, UsageError
from accel_rl.hardware.shared_memory import Layout
from accel_rl.hardware.signals import Stopped

logger = logging.getLogger("accel_rl")


def rollout_layout(spec: EnvSpec, horizon: int, num_envs: int, window: int = 0) -> Layout:
    """Returns the arrays that environments and learner share, for T = horizon steps of B = num_envs environments.

    Row h + t of observation precedes step t; h = max(frame_stack - 1, 0) rows of history come first. window: additional
    first rows, for the last steps of earlier rollouts.
    """
    T, B = window + horizon, num_envs
    history = spec.history
    row, dtype = spec.row_shape, spec.row_dtype.str
    return {
        "observation": ((history + T + 1, B, *row), dtype),
        "action": ((T, B, *spec.action_shape), spec.action_dtype.str),
        "reward": ((T, B), "<f4"),
        "terminated": ((T, B), "|b1"),
        "truncated": ((T, B), "|b1"),
        "valid": ((T, B), "|b1"),
        "reset": ((T + 1, B), "|b1"),
        "age": ((T + 1, B), "<i8"),  # rows since the first row of the learner's episode
        # The true last row of truncated episodes. Nothing else is written: untouched pages cost no memory.
        "final_observation": ((T, B, *row), dtype),
        "game_score": ((T, B), "<f8"),
        "game_length": ((T, B), "<i8"),  # steps; 0: no game was finished here
        "restarts": ((B,), "<i8"),
    }


def select_envs(arrays: dict[str, Array], columns: slice, window: int = 0) -> dict[str, Array]:
    """Returns views of these environments' columns, without the window of earlier steps."""
    return {name: a[columns] if name == "restarts" else a[window:, columns] for name, a in arrays.items()}


def stand_still(arrays: dict[str, Array], t: int) -> None:
    """Marks steps t ... T - 1 of environments that have stopped as not valid, and repeats observation t in them."""
    horizon = len(arrays["reward"])
    history = len(arrays["observation"]) - len(arrays["reset"])
    arrays["observation"][history + t + 1 :] = arrays["observation"][history + t]
    arrays["age"][t + 1 :] = arrays["age"][t] + np.arange(1, horizon - t + 1)[:, None]
    arrays["reset"][t + 1 :] = False
    for name in ("reward", "terminated", "truncated", "valid", "game_length"):
        arrays[name][t:] = 0


@dataclass(frozen=True)
class BatchConfig:
    """Settings for all environments of a learner.

    reset_mode: "immediate" starts the next game at once; "wait" leaves the environment idle until the pause between
        two rollouts (its samples are not valid until then); "reserve" starts it from a prepared state (Atari only).
    decorrelation_steps: each environment starts with a random number of random actions, at most this many.
    restart_on_error: if an environment raises, its samples are not valid for the rest of the rollout, and a new one
        replaces it in the pause; otherwise the run ends.
    role: 0 for training, 1 + k for evaluation k, which has its own generators.
    first_env: index in the run of this learner's first environment, for seeds and messages.
    terminal_frames: final_observation holds the true last rows of terminated episodes, too.
    env_threads: number of threads per batch, for environment libraries that start threads themselves."""

    env: EnvConfig
    seed: int
    reset_mode: str = "immediate"
    decorrelation_steps: int = 0
    restart_on_error: bool = False
    role: int = 0
    first_env: int = 0
    terminal_frames: bool = False
    env_threads: int = 1

    def seed_of(self, env: int, restarts: int = 0, purpose: int = 0) -> np.random.SeedSequence:
        """Returns a seed for the learner's environment `env`: for its simulator (purpose=0), or for another purpose.

        It depends on the environment's index in the run, not on the numbers of workers and learners. restarts: how
        often the environment has been replaced."""
        return np.random.SeedSequence(self.seed, spawn_key=(self.role, self.first_env + env, restarts, purpose))

    def for_evaluation(self, role: int) -> "BatchConfig":
        """Returns the settings for an evaluation in the same environments."""
        reset_mode = "immediate" if self.reset_mode == "wait" else self.reset_mode
        return replace(self, role=role, decorrelation_steps=0, reset_mode=reset_mode, terminal_frames=False)


class EnvBatch(ABC):
    """The base class of batches of k environments: the learner's first_env ... first_env + k - 1.

    arrays: the arrays of rollout_layout, reduced to these k columns, without a window. heartbeat: called with an
    environment's index before each of its steps. The order of calls is `start`, then for each rollout `begin`,
    `step(0)` ... `step(T - 1)`, `pause`. If an environment fails, methods raise RunError with its index in the run and
    the run's seed (unless restart_on_error)."""

    def __init__(
        self,
        config: BatchConfig,
        arrays: dict[str, Array],
        first_env: int,
        heartbeat: Callable[[int], None] = lambda env: None,
    ):
        self.config, self.arrays, self.first_env, self._heartbeat = config, arrays, first_env, heartbeat
        self.horizon, self.num_envs = arrays["reward"].shape
        self._history = arrays["observation"].shape[0] - arrays["reset"].shape[0]
        observation = arrays["observation"]
        self._pending = np.zeros((self.num_envs, *observation.shape[2:]), observation.dtype)
        self._action, self._reward, self._ages = arrays["action"], arrays["reward"], arrays["age"]
        self._random_action: Any = None  # the last random action of the environment that is starting
        # Lists; batches that are stepped in one call replace them by arrays.
        self._counts: Any = [True] * self.num_envs  # False if the game began with random actions: no score
        self._failed: Any = [False] * self.num_envs  # it raised; the pause builds a new environment
        self._waiting: Any = [True] * self.num_envs  # it does not step; _pending gets the first row of its next game
        self._score: Any = [0.0] * self.num_envs
        self._length: Any = [0] * self.num_envs
        self._age: Any = [0] * self.num_envs  # ages in the newest row
        self.generators = GlobalGenerators(self._seed(0, 2))

    @abstractmethod
    def start(self) -> None:
        """Starts every game and plays its random number of random actions."""

    def begin(self) -> None:
        """Starts a rollout. Environments that waited for the pause show the first row of their next game in row 0.

        All later rows get the most frequent values, so a step only writes what differs."""
        arrays = self.arrays
        for name in ("reward", "terminated", "truncated", "game_length"):
            arrays[name][:] = 0
        arrays["reset"][1:] = False
        arrays["valid"][:] = True
        for column in range(self.num_envs):
            if self._waiting[column]:
                arrays["observation"][self._history, column] = self._pending[column]
                arrays["reset"][0, column] = True
                arrays["age"][0, column] = 0
                self._waiting[column] = False
        self._age[:] = arrays["age"][0].tolist()

    @abstractmethod
    def step(self, t: int) -> None:
        """Steps every environment with its action of step t; writes row t and the observation after it."""

    @abstractmethod
    def pause(self) -> None:
        """Resets or rebuilds the environments that waited, while the learner works."""

    @abstractmethod
    def get_state(self) -> list[dict[str, Any]]:
        """Returns, in a pause, a picklable entry per environment; "simulator" is None where it cannot be saved."""

    @abstractmethod
    def set_state(self, state: list[dict[str, Any]]) -> list[int]:
        """Continues from get_state's result, instead of `start`.

        Returns the environments that had to be restarted, by the learner's index."""

    @abstractmethod
    def close(self) -> None: ...

    def _seed(self, column: int, purpose: int) -> np.random.SeedSequence:
        return self.config.seed_of(self.first_env + column, int(self.arrays["restarts"][column]), purpose)

    def _index_in_run(self, column: int) -> int:
        return self.config.first_env + self.first_env + column

    def _name(self, column: int) -> str:
        return f"environment {self._index_in_run(column)}"

    def _finish_game(self, t: int, column: int) -> None:
        if self._counts[column]:
            self.arrays["game_score"][t, column] = self._score[column]
            self.arrays["game_length"][t, column] = self._length[column]
        self._score[column], self._length[column], self._counts[column] = 0.0, 0, True

    def _note_failure(self, columns: int | slice, failure: RunError) -> None:
        """Counts and logs an environment, or a batch, that has raised; raises `failure` unless restart_on_error."""
        if not self.config.restart_on_error:
            raise failure
        logger.warning("%s\nA new environment takes its place.", str(failure).rstrip())
        self.arrays["restarts"][columns] += 1
        self._failed[columns] = True

    @with_own_generators
    def _guarded(self, column: int, call: Callable[[int], Any], what: str = "while it was built or reset") -> Any:
        """Returns call(column). Raises RunError, which says `what` failed, for errors and for `sys.exit()`."""
        self._heartbeat(self.first_env + column)
        try:
            return call(column)
        except (UsageError, Stopped):
            raise
        except (Exception, SystemExit) as error:
            raise self._failure(column, None, what) from error

    def _failure(self, column: int, action: Any, what: str = "while it was built or reset") -> RunError:
        """Returns a RunError that locates the current exception, and frees what that exception's frames hold."""
        action = self._random_action if action is None else action
        self._random_action = None
        what = what if action is None else f"at action {action}"
        error = sys.exception()  # a RunError's own message is enough
        if error is not None:
            traceback.clear_frames(error.__traceback__)  # after a MemoryError, the message needs memory
        reason = f" {error}" if isinstance(error, RunError) else f"\n{traceback.format_exc()}"
        return RunError(
            f"{self._name(column)} (run seed {self.config.seed}, {self.config.env.env_id}) failed {what}:{reason}"
        )
