"""Any gymnasium environment as a simulator: Box and Discrete observations, Discrete and Box actions."""

import importlib
import inspect
import math
import pickle
from typing import Any

import gymnasium
import numpy as np

from accel_rl.envs.spec import Array, EnvConfig, EnvSpec, Outcome
from accel_rl.errors import RunError, UsageError, unknown


def import_name(name: str, kind: str) -> Any:
    """What `package.module:name` names.

    Raises UsageError if there is no such module or name in it."""
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise UsageError(f"{kind} {name!r} must be named as package.module:name")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and module_name.startswith(error.name):
            raise UsageError(
                f"{kind} {name!r}: there is no module {error.name!r} (the current directory counts)"
            ) from None
        raise
    if not hasattr(module, attribute):
        callables = [name for name, value in vars(module).items() if callable(value)]
        raise unknown(kind, attribute, callables, f"(in {module_name})")
    return getattr(module, attribute)


def make_gym_env(config: EnvConfig, seed: int | None = None, render_mode: str | None = None) -> gymnasium.Env[Any, Any]:
    """Builds a registered environment, or calls the user's factory with those of seed and options that it takes.

    Raises UsageError for an unknown id or option, or if the factory returns something else than a gymnasium.Env."""
    if ":" not in config.env_id:
        if config.env_id not in gymnasium.registry:
            from accel_rl.envs.atari import games

            raise unknown("environment", config.env_id, [*games(), *gymnasium.registry], "(`accel-rl list envs`)")
        try:
            return gymnasium.make(config.env_id, **{"render_mode": render_mode, **config.options})
        except TypeError as error:
            if "unexpected keyword argument" not in str(error):
                raise
            raise UsageError(str(error)) from error
    factory = import_name(config.env_id, "environment")
    signature = inspect.signature(factory)
    takes_any = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
    offered = {"seed": seed, "render_mode": render_mode}
    arguments = {name: value for name, value in offered.items() if takes_any or name in signature.parameters}
    arguments.update(config.options)
    try:
        signature.bind(**arguments)
    except TypeError as error:
        raise UsageError(f"{config.env_id}: {error}") from None
    env = factory(**arguments)
    if not isinstance(env, gymnasium.Env):
        raise UsageError(f"{config.env_id} returned {type(env).__name__}; a factory must return a gymnasium.Env")
    return env


def _is_channels_last(space: gymnasium.Space[Any]) -> bool:
    """Pictures [H, W, C] have their shortest axis last; in doubt they are taken for such."""
    shape = tuple(space.shape or ())
    return len(shape) == 3 and space.dtype == np.uint8 and not shape[0] < min(shape[1:])


def to_row(observation: Any, space: gymnasium.Space[Any]) -> Any:
    """An environment's observation as networks see it: pictures with their channels first, no double precision."""
    array = np.asarray(observation)
    if _is_channels_last(space):
        return np.moveaxis(array, -1, -3)
    return array.astype(np.float32) if array.dtype == np.float64 else array


class GymSimulator:
    """One gymnasium environment.

    Pictures come out as [C, H, W]. Box actions are clipped to the bounds when sent. What the environment returns is
    checked against its declared spaces at every step (RunError), the bounds of observations at every reset.
    """

    def __init__(self, config: EnvConfig, seed: np.random.SeedSequence):
        self._config, self._seed_sequence = config, seed
        self._reset_seed: int | None = int(seed.generate_state(1)[0] >> 1)
        self._env = make_gym_env(config, self._reset_seed)
        space, self._action_space = self._env.observation_space, self._env.action_space
        supported = (gymnasium.spaces.Box, gymnasium.spaces.Discrete)
        for what, its_space in (("observations", space), ("actions", self._action_space)):
            if not isinstance(its_space, supported):
                kind = type(its_space).__name__
                raise UsageError(f"{config.env_id}: {what} of type {kind} are not supported; use Box or Discrete")
        self._observation_space = space
        if _is_channels_last(space) and isinstance(space, gymnasium.spaces.Box):
            space = gymnasium.spaces.Box(np.moveaxis(space.low, 2, 0), np.moveaxis(space.high, 2, 0), dtype=np.uint8)
        elif isinstance(space, gymnasium.spaces.Box) and space.dtype == np.float64:
            with np.errstate(over="ignore"):  # beyond float32's range there is no bound
                low, high = space.low.astype(np.float32), space.high.astype(np.float32)
            space = gymnasium.spaces.Box(low, high, dtype=np.float32)
        self.spec = EnvSpec(space, self._action_space)
        self._steps = 0
        self._is_float = np.issubdtype(self._observation_space.dtype or np.float32, np.floating)

    def reset(self, row: Array) -> None:
        observation, _ = self._env.reset(seed=self._reset_seed)
        self._reset_seed = None  # later games go on with the environment's own generator
        self._steps = 0
        if not self._observation_space.contains(np.asarray(observation, self._observation_space.dtype)):
            self._check(observation)
            raise RunError(f"the first observation of an episode is out of the declared bounds: {observation}")
        self._write(observation, row)

    def step(self, action: Any, row: Array) -> Outcome:
        observation, reward, terminated, truncated, _ = self._env.step(self._to_env(action))
        self._steps += 1
        reward = float(reward)
        if not math.isfinite(reward):
            raise RunError(f"the reward at step {self._steps} of the episode is {reward}")
        self._write(observation, row)
        return Outcome(reward, reward, bool(terminated), bool(truncated), bool(terminated or truncated))

    def _to_env(self, action: Any) -> Any:
        space = self._action_space
        if isinstance(space, gymnasium.spaces.Discrete):
            return int(action + space.start)
        assert isinstance(space, gymnasium.spaces.Box)
        return np.clip(action, space.low, space.high).astype(space.dtype, copy=False)

    def _write(self, observation: Any, row: Array) -> None:
        self._check(observation)
        row[...] = to_row(observation, self._observation_space)

    def _check(self, observation: Any) -> None:
        where = f"the observation at step {self._steps} of the episode"
        value, space = np.asarray(observation), self._observation_space
        if value.shape != space.shape:
            raise RunError(f"{where} has shape {value.shape}, but the declared space says {space.shape}")
        if self._is_float:
            if not np.isfinite(value).all():
                raise RunError(f"{where} is not finite: {observation}")
        elif value.dtype.kind not in "iub":
            raise RunError(f"{where} is of type {value.dtype}, but the declared space says {space.dtype}")
        elif isinstance(space, gymnasium.spaces.Discrete) and not space.contains(observation):
            raise RunError(f"{where} is {observation}, which is not in {space}")
        elif value.dtype != space.dtype and (value.astype(space.dtype) != value).any():
            raise RunError(f"{where} does not fit the declared type {space.dtype}: {observation}")

    def get_state(self) -> Any:
        """A hook of the environment's own (get_state and set_state), or else its pickle, which is checked once."""
        env: Any = self._env.unwrapped
        base = {"steps": self._steps, "reset_seed": self._reset_seed}
        try:
            if hasattr(env, "get_state") and hasattr(env, "set_state"):
                return {**base, "hook": env.get_state(), "wrappers": pickle.dumps(self._wrapper_states())}
            return {**base, "pickle": pickle.dumps(self._env)} if self._pickles() else None
        except (pickle.PicklingError, AttributeError, TypeError):  # what can't be pickled now, though it could be once
            return None

    def set_state(self, state: Any) -> None:
        self._steps, self._reset_seed = state["steps"], state["reset_seed"]
        if "hook" in state:
            env: Any = self._env
            env.reset(seed=0)  # wrappers want to have seen a reset
            env.unwrapped.set_state(state["hook"])
            for wrapper, wrapper_state in zip(self._wrappers(), pickle.loads(state["wrappers"]), strict=True):
                vars(wrapper).update(wrapper_state)
        else:
            self._env.close()
            self._env = pickle.loads(state["pickle"])

    def _wrappers(self) -> list[gymnasium.Wrapper[Any, Any, Any, Any]]:
        """From the outermost one inwards; a time limit counts its steps in there."""
        env, wrappers = self._env, []
        while isinstance(env, gymnasium.Wrapper):
            wrappers.append(env)
            env = env.env
        return wrappers

    def _wrapper_states(self) -> list[dict[str, Any]]:
        return [{name: value for name, value in vars(w).items() if name != "env"} for w in self._wrappers()]

    def _pickles(self) -> bool:
        """True if a second environment of this kind and its unpickled copy take the same course."""
        if not hasattr(self, "_pickles_checked"):
            original = make_gym_env(self._config, seed=0)
            try:
                original.reset(seed=0)
                original.action_space.seed(0)
                original.step(original.action_space.sample())
                copy = pickle.loads(pickle.dumps(original))
                self._pickles_checked = _same_course(original, copy)
                copy.close()
            except Exception:  # whatever keeps it from being pickled: then it has no state to offer
                self._pickles_checked = False
            finally:
                original.close()
        return self._pickles_checked

    def close(self) -> None:
        self._env.close()


def _same_course(first: gymnasium.Env[Any, Any], second: gymnasium.Env[Any, Any], num_steps: int = 5) -> bool:
    """Whether two environments show the same in some steps and in the episode after."""
    for _ in range(num_steps):
        action = first.action_space.sample()
        outcomes = [env.step(action)[:4] for env in (first, second)]
        if not all(np.array_equal(a, b) for a, b in zip(*outcomes, strict=True)):
            return False
        if outcomes[0][2] or outcomes[0][3]:
            break
    return np.array_equal(first.reset()[0], second.reset()[0])
