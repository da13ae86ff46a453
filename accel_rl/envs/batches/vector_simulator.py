"""Simulates gymnasium's vector environments and EnvPool's, in whichever autoreset mode they have."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import batch_space

from accel_rl.envs.batches.device_env import final_observation
from accel_rl.envs.batches.one_of_vector import autoreset_mode, is_envpool, last_observation, overwrites_last
from accel_rl.envs.gym import RESET, STEP, call
from accel_rl.envs.make import make_vector_env
from accel_rl.envs.spaces.conversion import find_mismatch, to_env_action, to_row_batch
from accel_rl.envs.spaces.masks import KEY, allows_choice, flat_masks, last_mask, pack, read_mask
from accel_rl.envs.spaces.observations import LARGEST, Observed, not_finite
from accel_rl.envs.spec import Array, EnvConfig
from accel_rl.errors import RunError

_AT_THE_END = {
    AutoresetMode.NEXT_STEP: "the step after a game only resets, and is not a sample",
    AutoresetMode.SAME_STEP: "resets within a game's last step",
    AutoresetMode.DISABLED: "reset one by one after their games",
}


class VectorOutcome(NamedTuple):
    """The results of one step of k environments.

    reward: float64 [k], raw, 0 if is_step is False. terminated, truncated: bool [k], as in gymnasium. is_step: bool
    [k], False if an environment only reset. is_start: bool [k], True if the row shows a game's first observation."""

    reward: Array
    terminated: Array
    truncated: Array
    is_step: Array
    is_start: Array


class VectorSimulator:
    """A simulator of k environments that one call steps.

    seeds: one per environment; a batch that takes a single seed gets the first. num_threads: for libraries that start
    threads themselves. Observations, actions, masks and checks are as in GymSimulator, but the sources of masks must be
    known. Methods raise RunError for values that do not fit the declared spaces or autoreset mode. The constructor
    raises UsageError for unsupported environments."""

    def __init__(self, config: EnvConfig, seeds: Sequence[np.random.SeedSequence], num_threads: int = 1):
        self.num_envs = len(seeds)
        self._seeds = [int(seed.generate_state(1)[0] >> 1) for seed in seeds]
        self._envs = make_vector_env(config, self._seeds, num_threads)
        self._is_envpool = is_envpool(self._envs)
        self._mode = autoreset_mode(self._envs, config.env_id)
        self._takes_seeds = isinstance(self._envs.unwrapped, SyncVectorEnv | AsyncVectorEnv)
        self._whole_space, self._action_space = self._envs.single_observation_space, self._envs.single_action_space
        self._observed = Observed(self._whole_space, self._action_space, config.mask_sources or (), config.env_id)
        self._batch_space = batch_space(self._observed.space, self.num_envs)
        self.spec = replace(self._observed.spec, vector=self._describe())
        self.overwrites_last = False  # last observations were lost (see `overwrites_last`)
        self._steps = 0  # steps since all games were started together
        self._resets_next = np.zeros(self.num_envs, np.bool_)  # the next step only resets these
        # The last step's rows, its info, and the last rows of the games that it ended
        self._rows, self._info, self._last_rows = np.zeros(0), {}, {}  # type: Array, dict[str, Any], dict[int, Array]

    def reset(self, rows: Array) -> None:
        """Starts all games, with their seeds; writes the first observations [k, *row_shape]."""
        seeds = {} if self._is_envpool else {"seed": self._seeds if self._takes_seeds else self._seeds[0]}
        observation, info = call(self._envs, "reset", RESET, **seeds)
        self._resets_next[:], self._steps = False, 0
        self._write(observation, rows)
        self._write_masks(observation, info, rows)
        space, seen = self.spec.observation_space, self.spec.observation_in(rows)
        if isinstance(space, gymnasium.spaces.Box) and (wrong := (seen < space.low) | (seen > space.high)).any():
            raise RunError(f"the first observation of an episode {self._where(wrong)} is out of the declared bounds")

    def step(self, actions: Array, rows: Array) -> VectorOutcome:
        """Takes one step in each environment, and writes the observations after it."""
        self._steps += 1
        returned = call(self._envs, "step", STEP, to_env_action(actions, self._action_space))
        observation, reward, terminated, truncated, self._info = returned
        is_step, self._resets_next = ~self._resets_next, np.zeros(self.num_envs, np.bool_)
        is_start = ~is_step
        reward = self._numbers("reward", reward).astype(np.float64)
        if (wrong := is_step & ~(np.abs(reward) <= LARGEST)).any():
            raise RunError(f"the reward {self._where(wrong)} {not_finite(reward[wrong][0])}")
        reward[is_start] = 0.0
        terminated, truncated = (
            self._numbers(name, flags).astype(np.bool_) & is_step
            for name, flags in (("terminated", terminated), ("truncated", truncated))
        )
        self._write(observation, rows)
        ended = terminated | truncated
        self._write_masks(observation, self._info, rows, is_over=ended & (self._mode != AutoresetMode.SAME_STEP))
        self._rows = rows
        if ended.any():
            is_start |= self._start_next_games(ended, rows)
        return VectorOutcome(reward, terminated, truncated, is_step, is_start)

    def last_row(self, env: int) -> Array:
        """Returns the true last observation, as a row, of a game that the last step ended."""
        if self._mode == AutoresetMode.NEXT_STEP:
            return np.asarray(self._rows[env])
        if self._mode == AutoresetMode.DISABLED:
            return self._last_rows[env]
        info = self._info if isinstance(self._info, dict) else {}
        whole, row = last_observation(info, self._whole_space, env), np.zeros(self.spec.row_shape, self.spec.row_dtype)
        self.overwrites_last |= overwrites_last(self._envs, whole, env)
        if problem := self._observed.convert(whole, self.spec.observation_in(row)):
            raise RunError(f"the last observation of environment {env} of {self.num_envs}, in its info,{problem}")
        if self._observed.mask_source:
            self.spec.mask_in(row)[...] = pack(self._last_mask(whole, info.get("final_info"), env))
        return row

    def close(self) -> None:
        self._envs.close()

    def _start_next_games(self, ended: Array, rows: Array) -> Array:
        """Starts the next games if that needs a separate call; returns which rows show a first observation."""
        if self._mode == AutoresetMode.SAME_STEP:
            return ended
        if final_observation(self._info) is not None:
            raise RunError(
                f"it resets in the step that ends a game, although it says AutoresetMode.{self._mode.name}; declare "
                "metadata['autoreset_mode']=AutoresetMode.SAME_STEP"
            )
        if self._mode == AutoresetMode.NEXT_STEP:
            self._resets_next = ended
            return np.zeros_like(ended)
        self._last_rows = {env: rows[env].copy() for env in ended.nonzero()[0].tolist()}
        observation, info = call(self._envs, "reset", RESET, options={"reset_mask": ended.copy()})
        if self._is_envpool:  # EnvPool returns only those that were reset
            rows[ended] = to_row_batch(self._observed.part_of(observation), self._observed.space)
            return ended
        others = rows[~ended].copy()
        self._write(observation, rows)
        if not np.array_equal(rows[~ended], others):
            raise RunError(
                'reset(options={"reset_mask": ...}) has reset other environments, too; AutoresetMode.DISABLED resets '
                "those of the mask alone"
            )
        self._write_masks(observation, info, rows, which=ended)
        return ended

    def _write(self, observation: Any, rows: Array) -> None:
        """Writes observations. Raises RunError if they do not fit the declared space or are not finite."""
        observation = self._observed.part_of(observation)
        if problem := find_mismatch(observation, self._batch_space):
            raise RunError(f"the observation of {self.num_envs} environments{problem}")
        found = to_row_batch(observation, self._observed.space)
        if (wrong := self._observed.write(found, self.spec.observation_in(rows))) is not None:
            raise RunError(f"the observation {self._where(wrong)} {not_finite(found[wrong][0])}")

    def _write_masks(self, observation: Any, info: Any, rows: Array, is_over: Any = False, which: Any = True) -> None:
        """Writes the masks of the environments `which`; if a game is over, its mask may allow nothing.

        Raises RunError for masks that are missing, have a wrong shape, or allow nothing while a game goes on."""
        if not self._observed.mask_source:
            return
        masks = read_mask(self._observed.mask_source, self._envs, observation, info)
        try:
            found = np.zeros((self.num_envs, self.spec.mask_size), bool)
            found[...] = False if masks is None else flat_masks(masks, self._action_space)
        except ValueError as error:
            raise RunError(f"an action mask of {self.num_envs} environments {error}") from None
        has_choice = allows_choice(found, self._action_space)
        if (wrong := which & ~(has_choice | is_over)).any():
            problem = "is missing" if masks is None else "allows nothing, though the game goes on"
            raise RunError(f"the action mask {self._where(wrong)} {problem}")
        found[~has_choice] = True
        np.copyto(self.spec.mask_in(rows), pack(found), where=np.broadcast_to(which, self.num_envs)[:, None])

    def _last_mask(self, observation: Any, infos: Any, env: int) -> Array:
        """Returns the mask [A] of a game's last observation. infos: the infos of all environments' last steps."""
        mask, source = None, self._observed.mask_source
        if source == "observation":
            mask = observation[KEY]
        elif source == "info" and isinstance(infos, dict) and KEY in infos:
            mask = infos[KEY][env]
        return last_mask(mask, self._action_space)

    def _where(self, wrong: Array) -> str:
        """Describes where the first number marked as wrong is: environment, step since the batch was started, part."""
        env = int(wrong.reshape(self.num_envs, -1).any(1).argmax())
        part = self._observed.wrong_part(wrong[env]) if wrong.ndim > 1 else ""
        return f"of environment {env} of {self.num_envs} at step {self._steps}{part}"

    def _numbers(self, name: str, values: Any) -> Array:
        array = np.asarray(values)
        if array.shape != (self.num_envs,) or array.dtype.kind not in "biuf":
            raise RunError(
                f"{name} is of shape {array.shape} and type {array.dtype}, but must be numbers of shape "
                f"({self.num_envs},), one for each environment"
            )
        return array

    def _describe(self) -> str:
        seeds = "a seed for each" if self._takes_seeds or self._is_envpool else "one seed for all of a worker's"
        return (
            f"{type(self._envs.unwrapped).__name__}: {_AT_THE_END[self._mode]}; {seeds}; all take decorrelation_steps "
            "random actions at the start; states cannot be saved, so a resumed run starts new games"
        )
