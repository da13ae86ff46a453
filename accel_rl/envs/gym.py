"""Makes a simulator of any gymnasium environment; envs/spaces/conversion.py lists the supported spaces."""

import pickle
import traceback
from dataclasses import replace
from typing import Any, ClassVar

import gymnasium
import numpy as np

from accel_rl.envs.batches.device_env import OneOfBatch
from accel_rl.envs.closing import close_all
from accel_rl.envs.global_generators import GlobalGenerators
from accel_rl.envs.make import make_gym_env
from accel_rl.envs.saved_states import capture, has_hook, is_exact, restore
from accel_rl.envs.spaces.conversion import layout, to_env_action
from accel_rl.envs.spaces.masks import (
    allows_choice,
    find_sources,
    flat_mask,
    last_mask,
    pack,
    random_allowed,
    read_mask,
)
from accel_rl.envs.spaces.observations import LARGEST, Observed, not_finite
from accel_rl.envs.spec import Array, EnvConfig, Outcome
from accel_rl.errors import RunError, UsageError
from accel_rl.hardware.signals import Stopped

RESET = ("observation", "info")
STEP = ("observation", "reward", "terminated", "truncated", "info")
_NUMBERS = frozenset([bool, np.bool_, np.float32, np.float64])  # not int, which may be too large for any of these
_SEQUENCES = (tuple, list)


class GymSimulator:
    """A simulator of one gymnasium environment.

    envs/spaces has the formats of rows and masks. Box actions are clipped to the bounds when sent. Every step checks
    the returned values against the declared spaces, every reset also the bounds; methods raise RunError for a mismatch.
    The constructor raises UsageError for unsupported spaces."""

    _tested: ClassVar[tuple[EnvConfig | None, bool]] = None, False  # the last config whose states were tried out

    def __init__(self, config: EnvConfig, seed: np.random.SeedSequence):
        self._config = config
        self._reset_seed: int | None = int(seed.generate_state(1)[0] >> 1)
        self._env = make_gym_env(config, self._reset_seed)
        for name in ("observation_space", "action_space"):
            if getattr(self._env, name, None) is None:
                raise UsageError(f"{config.env_id} has no {name}: set it in the class, or in its __init__")
        self._action_space = self._env.action_space
        self._first_action = (
            int(self._action_space.start) if isinstance(self._action_space, gymnasium.spaces.Discrete) else None
        )
        self._layouts = layout(self._env.observation_space), layout(self._action_space)
        sources = config.mask_sources
        if sources is None:
            sources = find_sources(self._env, self._reset_seed, config.env_id)
        self._observed = Observed(self._env.observation_space, self._action_space, sources, config.env_id)
        self.spec = replace(self._observed.spec, on_device=isinstance(self._env.unwrapped, OneOfBatch))
        self._steps = 0

    def reset(self, row: Array) -> None:
        observation, info = call(self._env, "reset", RESET, seed=self._reset_seed)
        self._reset_seed = None  # later games use the environment's own generator
        self._steps = 0
        self._check_spaces()
        self._write(observation, info, row)
        space, seen = self.spec.observation_space, self.spec.observation_in(row)
        if isinstance(space, gymnasium.spaces.Box) and (wrong := (seen < space.low) | (seen > space.high)).any():
            part = self._observed.wrong_part(wrong)
            raise RunError(f"the first observation of an episode{part} is out of the declared bounds: {observation}")

    def step(self, action: Any, row: Array) -> Outcome:
        observation, reward, terminated, truncated, info = call(self._env, "step", STEP, self._to_env(action))
        self._steps += 1
        if type(reward) is not float:
            reward = float(self._number("reward", reward))
        if type(terminated) is not bool or type(truncated) is not bool:
            terminated = bool(self._number("terminated", terminated))
            truncated = bool(self._number("truncated", truncated))
        if not -LARGEST <= reward <= LARGEST:
            raise RunError(f"the reward at step {self._steps} of the episode {not_finite(reward)}")
        self._write(observation, info, row, terminated, truncated)
        return Outcome(reward, reward, terminated, truncated, terminated or truncated)

    def _number(self, name: str, value: Any) -> Any:
        """Returns a number that a step returned, perhaps as an array of one. Raises RunError for anything else."""
        if type(value) in _NUMBERS:
            return value
        array = np.asarray(value)
        if array.size != 1 and array.ndim:
            raise RunError(
                f"{name} at step {self._steps} of the episode has shape {array.shape}, like a batch of "
                "environments; return a single environment's value, and set the number of environments with --envs"
            )
        if array.dtype.kind not in "biuf":
            raise RunError(f"{name} at step {self._steps} of the episode is {value!r}, but must be a number")
        return array.item()

    def _check_spaces(self) -> None:
        """Raises RunError if the environment's spaces have changed since it was built."""
        found = layout(self._env.observation_space), layout(self._env.action_space)
        for kind, before, now in zip(("observation", "action"), self._layouts, found, strict=True):
            if before != now:
                raise RunError(
                    f"its {kind} space was {before} and is now {now}, but has to stay the same: networks have a fixed "
                    "size, so pad or resize to the largest"
                )

    def _to_env(self, action: Any) -> Any:
        if self._first_action is not None:
            return int(action) + self._first_action
        return to_env_action(action, self._action_space)

    def _write(
        self, observation: Any, info: Any, row: Array, terminated: bool = False, truncated: bool = False
    ) -> None:
        """Writes an observation and its mask. Raises RunError if either does not fit, or numbers are not finite."""
        observed = self._observed
        if observed.mask_source:
            has_none = terminated and observed.mask_source == "method"  # the method may fail by then
            mask = None if has_none else read_mask(observed.mask_source, self._env, observation, info)
            self._write_mask(mask, row, terminated or truncated)
            row = self.spec.observation_in(row)
        if problem := observed.convert(observation, row):
            raise RunError(f"the observation at step {self._steps} of the episode{problem}")

    def _write_mask(self, mask: Any, row: Array, is_over: bool) -> None:
        """Writes a mask. Raises RunError for a wrong shape, or if it allows nothing while the game goes on."""
        try:
            allowed = (last_mask if is_over else flat_mask)(mask, self._action_space)
            if not allows_choice(allowed, self._action_space):
                raise ValueError(f"allows nothing, though the game goes on: {mask}")
        except ValueError as error:
            raise RunError(f"the action mask at step {self._steps} of the episode {error}") from None
        self.spec.mask_in(row)[...] = pack(allowed)

    def get_state(self) -> Any:
        """Returns the state, or None if it cannot be saved (see envs/saved_states.py)."""
        is_hook = has_hook(self._env)
        try:
            # First, since the test of exactness builds a second environment, and some can't be pickled at all.
            state = {"steps": self._steps, "reset_seed": self._reset_seed, **capture(self._env)}
        except Exception as error:  # errors of pickling are expected, those of a hook are not
            if is_hook and not isinstance(error, pickle.PicklingError | AttributeError | TypeError):
                raise
            return None
        return state if is_hook or self._state_is_exact() else None

    def set_state(self, state: Any) -> None:
        self._steps, self._reset_seed = state["steps"], state["reset_seed"]
        before = self._env
        self._env = restore(state, lambda: before)
        if self._env is not before:
            close_all([before])

    def _state_is_exact(self) -> bool:
        """Returns whether environments of this config continue exactly from a saved state; tries it out once."""
        if GymSimulator._tested[0] is not self._config:
            with GlobalGenerators(np.random.SeedSequence(0)):  # a checkpoint must not change later draws
                exact = is_exact(lambda: make_gym_env(self._config, seed=0), self._choose_allowed)
            GymSimulator._tested = self._config, exact
        return GymSimulator._tested[1]

    def _choose_allowed(self, env: gymnasium.Env[Any, Any], observation: Any, info: Any) -> Any:
        """Returns a random action that is allowed after this observation and info of env."""
        source = self._observed.mask_source
        if not source:
            return env.action_space.sample()
        mask = flat_mask(read_mask(source, env, observation, info), env.action_space)
        return self._to_env(random_allowed(mask, env.action_space))

    def close(self) -> None:
        self._env.close()


def call(env: Any, method: str, parts: tuple[str, ...], *arguments: Any, **options: Any) -> Any:
    """Calls a method of an environment and returns its result. Raises RunError unless the result has these parts."""
    returned = None
    try:
        returned = getattr(env, method)(*arguments, **options)
    except ValueError as error:
        *_, (frame, _) = traceback.walk_tb(error.__traceback__)
        could_not_unpack = f"(expected {len(parts)}" in str(error)
        if not (could_not_unpack and frame.f_globals["__name__"].startswith("gymnasium.")):  # a wrapper of gymnasium's
            raise
    except SystemExit as error:
        if isinstance(error, Stopped):
            raise
        raise RunError(f"{method}() called sys.exit({error.code})") from None
    if not isinstance(returned, _SEQUENCES) or len(returned) != len(parts):
        raise RunError(
            f"{method}() did not return ({', '.join(parts)}), as in gymnasium's API since 0.26; return exactly these"
        )
    return returned
