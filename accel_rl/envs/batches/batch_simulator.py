"""Steps several environments one after the other, and writes their results into columns of time-major arrays.

This file has all rules of episodes: resets, decorrelated starts, and the handling of an environment that raises. A
process that steps environments holds a BatchSimulator or a VectorBatch (vector_batch.py). env_batch.py has their base.
"""

import contextlib
from typing import Any

import numpy as np

from accel_rl.envs.batches.env_batch import BatchConfig, EnvBatch, select_envs, stand_still
from accel_rl.envs.closing import close_all
from accel_rl.envs.games.atari import game_name, make_options
from accel_rl.envs.games.emulator_choice import is_native, make_atari
from accel_rl.envs.games.native import NativeBatch
from accel_rl.envs.global_generators import with_own_generators
from accel_rl.envs.gym import GymSimulator
from accel_rl.envs.spaces.conversion import random_action
from accel_rl.envs.spec import Array, EnvConfig, Outcome, Simulator
from accel_rl.errors import RunError


def make_simulator(config: EnvConfig, seed: np.random.SeedSequence, reserve: bool = False) -> Simulator:
    """Returns the simulator that a worker steps. Raises UsageError for an unknown name or option.

    reserve: Atari games start from prepared states."""
    return make_atari(config, seed, reserve) if game_name(config.env_id) else GymSimulator(config, seed)


def prepare(config: BatchConfig) -> None:
    """Prepares what forked processes share: start states, and the native simulator's machine code."""
    reserve = config.reset_mode == "reserve"
    if game_name(config.env.env_id) and (reserve or is_native(config.env)):
        make_atari(config.env, np.random.SeedSequence(0), reserve).close()


class BatchSimulator(EnvBatch):
    """A batch that steps its environments one after the other, or native Atari games in one compiled call."""

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        config, observation = self.config, self.arrays["observation"]
        # Views are made once: making one costs as much as the rest of a step's bookkeeping.
        self._rows = [
            [observation[row, column, ...] for column in range(self.num_envs)]
            for row in range(self._history, len(observation))
        ]
        self._native = self._make_native() if is_native(config.env) else None
        self.simulators: list[Simulator] = [*self._native.simulators] if self._native is not None else []
        try:
            for column in range(len(self.simulators), self.num_envs):
                self.simulators.append(self._guarded(column, self._build))
        except BaseException:
            close_all(self.simulators)
            raise

    def start(self) -> None:
        for column in range(self.num_envs):
            try:
                self._guarded(column, self._start_env)
            except RunError as error:
                self._note_failure(column, error)
                self._replace(column)

    def step(self, t: int) -> None:
        if self._native is None:
            self._step_each(t)
        else:
            self._step_native(t, self._native)

    @with_own_generators
    def _step_each(self, t: int) -> None:
        # Local names and views of one step save time: this loop may take as long as a small environment.
        actions, rewards, ages, rows = self._action[t], self._reward[t], self._ages[t + 1], self._rows[t + 1]
        scores, lengths, age = self._score, self._length, self._age
        for column, simulator in enumerate(self.simulators):
            self._heartbeat(self.first_env + column)
            if self._waiting[column]:
                continue
            try:
                outcome = simulator.step(actions[column], rows[column])
                reward, score, terminated, truncated, game_over, _ = outcome
                if reward:
                    rewards[column] = reward
                scores[column] += score
                lengths[column] += 1
                age[column] += 1
                if terminated or truncated or game_over:
                    self._end_episode(t, column, outcome)
                ages[column] = age[column]
            except Exception:
                self._treat_failure(t, column)

    def pause(self) -> None:
        for column in range(self.num_envs):
            if self._waiting[column] and not self._failed[column]:
                self._guarded(column, lambda column: self._reset_env(column, self._pending[column, ...]))
            if self._failed[column]:
                self._replace(column)

    def _make_native(self) -> NativeBatch:
        """Returns all environments as one object that a compiled call steps."""
        env, reserve = self.config.env, self.config.reset_mode == "reserve"
        game, options = str(game_name(env.env_id)), make_options(env.preset, env.options)
        seeds = [self._seed(column, 0) for column in range(self.num_envs)]
        native: NativeBatch = self._guarded(0, lambda _: NativeBatch(game, options, seeds, reserve))
        self._waiting = np.ones(self.num_envs, np.bool_)
        self._score, self._length, self._age = native.counters
        observation = self.arrays["observation"][self._history :]
        self._native_steps = [
            native.bind_step(observation[t + 1], self._reward[t], self._ages[t + 1]) for t in range(self.horizon)
        ]
        return native

    def _build(self, column: int) -> Simulator:
        return make_simulator(self.config.env, self._seed(column, 0), self.config.reset_mode == "reserve")

    def _start_env(self, column: int) -> None:
        rng = np.random.default_rng(self._seed(column, 1))
        simulator, row = self.simulators[column], self._pending[column, ...]  # "..." gives a view even of a scalar
        simulator.reset(row)
        num_random = int(rng.integers(self.config.decorrelation_steps + 1))
        simulator.spec.action_space.seed(int(rng.integers(2**31 - 1)))
        for _ in range(num_random):
            self._heartbeat(self.first_env + column)
            self._random_action = action = random_action(row, simulator.spec)
            if simulator.step(action, row).game_over:
                simulator.reset(row)
        self._random_action = None
        self._counts[column] = num_random == 0
        self._score[column], self._length[column] = 0.0, 0

    def _reset_env(self, column: int, row: Array) -> None:
        """Starts the next game."""
        try:
            self.simulators[column].reset(row)
        except Exception:
            if not self.config.restart_on_error:
                raise
            self._note_failure(column, self._failure(column, None))

    def _step_native(self, t: int, native: NativeBatch) -> None:
        """Steps all environments in one call, then treats the episodes that have ended."""
        self._heartbeat(self.first_env)
        np.logical_not(self._waiting, out=native.stepping)
        native.set_actions(self._action[t])
        if self._native_steps[t]():
            for column in native.events.nonzero()[0].tolist():
                try:
                    self._end_episode(t, column, native.outcome(column, self._reward[t, column]))
                    self._ages[t + 1, column] = self._age[column]
                except Exception:
                    self._treat_failure(t, column)

    def _end_episode(self, t: int, column: int, outcome: Outcome) -> None:
        """Ends the learner's episode, and the game if it is over."""
        arrays, row = self.arrays, self._rows[t + 1][column]
        arrays["terminated"][t, column] = outcome.terminated
        arrays["truncated"][t, column] = outcome.truncated
        if outcome.truncated or (outcome.terminated and self.config.terminal_frames):
            arrays["final_observation"][t, column] = row if outcome.last_frame is None else outcome.last_frame
        if outcome.terminated or outcome.truncated:
            self._age[column] = 0
        if outcome.game_over:
            self._start_next_game(t, column)

    def _start_next_game(self, t: int, column: int) -> None:
        """Starts the next game in row t + 1, or leaves the environment idle until the pause."""
        self._finish_game(t, column)
        if self.config.reset_mode != "wait":
            row = self._rows[t + 1][column]
            self._reset_env(column, row)
            if not self._failed[column]:
                self.arrays["reset"][t + 1, column] = True
                self._age[column] = 0
                return
            row[...] = self._rows[t][column]  # the reset may have left anything there
        self._ages[t + 1, column] = self._age[column]
        self._wait_for_pause(t + 1, column)

    def _wait_for_pause(self, t: int, column: int) -> None:
        """Leaves the environment idle from step t on."""
        self._waiting[column] = True
        stand_still(select_envs(self.arrays, slice(column, column + 1)), t)

    def _treat_failure(self, t: int, column: int) -> None:
        """Ends the run, or invalidates the samples from step t on, after an environment has raised."""
        self._note_failure(column, self._failure(column, self._action[t, column]))
        self._wait_for_pause(t, column)

    def _replace(self, column: int) -> None:
        """Builds and starts a new environment. Raises RunError if that one fails, too."""
        with contextlib.suppress(Exception):
            self.simulators[column].close()
        if self._native is not None:
            native = self._native
            self._guarded(column, lambda column: native.rebuild(column, self._seed(column, 0)))
        else:
            self.simulators[column] = self._guarded(column, self._build)
        self._guarded(column, self._start_env)
        self._failed[column], self._waiting[column] = False, True

    @with_own_generators
    def get_state(self) -> list[dict[str, Any]]:
        return [
            {
                "simulator": self._guarded(column, lambda k: self.simulators[k].get_state(), "while it was saved"),
                "waiting": bool(self._waiting[column]),
                "pending": self._pending[column].copy(),
                "score": float(self._score[column]),
                "length": int(self._length[column]),
                "counts": self._counts[column],
                "generators": None if column else self.generators.get_state(),  # they belong to all environments
            }
            for column in range(self.num_envs)
        ]

    def set_state(self, state: list[dict[str, Any]]) -> list[int]:
        restarted = []
        for column, env_state in enumerate(state):
            if env_state["simulator"] is None:
                self.arrays["restarts"][column] += 1  # other games than when the run was new
                self._replace(column)
                restarted.append(self.first_env + column)
                continue
            saved = env_state["simulator"]
            self._guarded(column, lambda column: self.simulators[column].set_state(saved))  # noqa: B023 (called at once)
            self._waiting[column] = env_state["waiting"]
            self._pending[column] = env_state["pending"]
            self._score[column], self._length[column] = env_state["score"], env_state["length"]
            self._counts[column] = env_state["counts"]
        if state[0]["generators"]:  # last, since restoring a simulator may draw random numbers
            self.generators.set_state(state[0]["generators"])
        return restarted

    @with_own_generators
    def close(self) -> None:
        close_all(self.simulators)
