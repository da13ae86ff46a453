"""Makes the environment that an id names: a registered one, or what the user's factory returns, in its wrappers."""

import functools
import importlib
import inspect
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import gymnasium

from accel_rl.envs.device_env import OneOfBatch, is_device_env
from accel_rl.envs.spec import EnvConfig
from accel_rl.errors import UsageError, unknown

Env = gymnasium.Env[Any, Any]

# Packages that register environments when they are imported, and how the ids of these begin.
PACKAGES = {
    "minigrid": ("MiniGrid-", "BabyAI-"),
    "highway_env": ("highway-", "merge-", "roundabout-", "parking-", "intersection-", "racetrack-", "exit-", "u-turn-"),
    "vizdoom.gymnasium_wrapper": ("Vizdoom",),
    "miniworld": ("MiniWorld-",),
    "gymnasium_robotics": (
        "Fetch",
        "HandReach",
        "HandManipulate",
        "AdroitHand",
        "AntMaze",
        "PointMaze",
        "FrankaKitchen",
    ),
}


def import_name(name: str, kind: str) -> Any:
    """Returns what `package.module:name` names.

    Raises UsageError if there is no such module, or no such name in it."""
    module, attribute = _import_module(name, kind)
    if not hasattr(module, attribute):
        callables = [name for name, value in vars(module).items() if callable(value)]
        raise unknown(kind, attribute, callables, f"(in {module.__name__})")
    return getattr(module, attribute)


def _import_module(name: str, kind: str) -> tuple[ModuleType, str]:
    """Returns the module of `package.module:name`, and the name in it."""
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise UsageError(f"{kind} {name!r} must be named as package.module:name")
    try:
        return importlib.import_module(module_name), attribute
    except ModuleNotFoundError as error:
        if error.name and module_name.startswith(error.name):
            raise UsageError(
                f"{kind} {name!r}: there is no module {error.name!r} (the current directory is searched, too)"
            ) from None
        raise


def make_gym_env(config: EnvConfig, seed: int | None = None, render_mode: str | None = None) -> Env:
    """Makes a registered environment, or calls the user's factory with the arguments that it takes; wraps it.

    Raises UsageError for an unknown id or option, or if a factory or wrapper does not return a gymnasium.Env."""
    make = _find(config.env_id)
    if make is None:
        env = _make_registered(config.env_id.rpartition(":")[2], config.options, render_mode)
    else:
        returned = _call_factory(make, config, {"seed": seed, "render_mode": render_mode, **_batch(make, config)})
        env = _check_env(returned, config.env_id, "a factory")
    env = functools.reduce(_wrap, config.wrappers, env)
    _check_reset(env, config.env_id)
    return env


def make_device_env(config: EnvConfig, num_envs: int, seed: int, device: str) -> Any:
    """Makes a batch of environments whose arrays lie on a device (see envs/device_env.py), by the user's factory.

    Raises UsageError for anything else, or if they are not as many."""
    make = _find(config.env_id)
    offered = {"seed": seed, "render_mode": None, **_batch(make, config, num_envs, device)}
    env = _call_factory(make, config, offered)
    if not is_device_env(env):
        raise UsageError(f"{config.env_id} returned {_describe(env)}, and not a batch of environments on a device")
    if env.num_envs != num_envs:
        raise UsageError(f"{config.env_id} was asked for num_envs={num_envs}, but returned {env.num_envs}")
    return env


def _batch(factory: Any, config: EnvConfig, num_envs: int = 1, device: str = "cpu") -> dict[str, Any]:
    """Returns what is offered to factories of batches besides, which are those that name num_envs."""
    is_batch = "num_envs" in _signature(factory, config.env_id).parameters
    return {"num_envs": num_envs, "device": device} if is_batch else {}


def _check_reset(env: Env, env_id: str) -> None:
    """Raises UsageError if an environment, or one of its wrappers, cannot be reset with a seed."""
    while True:
        try:
            parameters = inspect.signature(env.reset).parameters.values()
        except ValueError:  # of a compiled method, which may take one
            return
        if not any(parameter.name == "seed" or parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            raise UsageError(
                f"{env_id}: reset() of {type(env).__name__} takes no seed; declare reset(self, *, seed=None, "
                "options=None) and return (observation, info), as gymnasium.Env does since 0.26"
            )
        if not isinstance(env, gymnasium.Wrapper):
            return
        env = env.env


def _find(env_id: str) -> Callable[..., Any] | None:
    """Returns the factory that an id names; None if it is one of gymnasium's, which may begin with a module to import.

    Raises UsageError if there is neither."""
    if ":" in env_id:
        module, name = _import_module(env_id, "environment")
        if hasattr(module, name):
            return getattr(module, name)  # type: ignore[no-any-return]
        if name in gymnasium.registry:
            return None
        callables = [name for name, value in vars(module).items() if callable(value)]
        known = gymnasium.registry if "-" in name else callables
        raise unknown("environment", name, known, f"(in {module.__name__})")
    if env_id in gymnasium.registry:
        return None
    for package, beginnings in PACKAGES.items():
        if env_id.startswith(beginnings):
            raise UsageError(
                f"unknown environment {env_id!r}: {package} registers it when imported; name it {package}:{env_id}"
            )
    from accel_rl.envs.atari import games

    way_out = "(`accel-rl list envs`; one that a package registers when imported: package:id)"
    raise unknown("environment", env_id, [*games(), *gymnasium.registry], way_out)


def _make_registered(env_id: str, options: dict[str, Any], render_mode: str | None) -> Env:
    if render_mode and sys.platform == "linux" and not os.environ.get("DISPLAY"):
        os.environ.setdefault("MUJOCO_GL", "egl")  # or MuJoCo would look for a display
    rendering = {"render_mode": render_mode} if render_mode else {}  # not all environments have this parameter
    try:
        return gymnasium.make(env_id, **{**rendering, **options})
    except gymnasium.error.DependencyNotInstalled as error:
        extra = "mujoco" if "mujoco" in str(error).lower() else None
        way_out = f'install it with: pip install "accel-rl[{extra}]"' if extra else str(error)
        raise UsageError(f"{env_id} needs a package that is not installed; {way_out}") from error
    except TypeError as error:
        if "unexpected keyword argument" not in str(error) and "gymnasium.Env" not in str(error):
            raise
        raise UsageError(f"{env_id}: {error}") from error


# ---- factories and wrappers ----


def _call_factory(factory: Any, config: EnvConfig, offered: dict[str, Any]) -> Any:
    """Returns what a factory returns: offered values are given to parameters of these names, render_mode to **kwargs,
    too, if anything is rendered."""
    signature = _signature(factory, config.env_id)
    arguments = {name: value for name, value in offered.items() if name in signature.parameters}
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in signature.parameters.values())
    if takes_any and offered["render_mode"]:
        arguments["render_mode"] = offered["render_mode"]
    arguments.update(config.options)
    try:
        signature.bind(**arguments)
    except TypeError as error:
        raise UsageError(f"{config.env_id}: {error}") from None
    return factory(**arguments)


def _signature(factory: Any, name: str) -> inspect.Signature:
    """Raises UsageError if this cannot be called."""
    if isinstance(factory, ModuleType) and factory.__name__.startswith("pettingzoo."):
        raise UsageError(f"{name} {_SEVERAL_AGENTS}")
    if not callable(factory):
        raise UsageError(f"{name} is {_describe(factory)}; name a function or class that makes a gymnasium.Env")
    try:
        return inspect.signature(factory)
    except ValueError:
        raise UsageError(f"{name} is no function or class written in Python") from None


def _wrap(env: Env, name: str) -> Env:
    """Returns env in a wrapper, named as package.module:Wrapper, that is called with env only."""
    wrapper = import_name(name, "wrapper")
    if isinstance(wrapper, type) and not issubclass(wrapper, gymnasium.Env):
        raise UsageError(
            f"wrapper {name} is no gymnasium.Wrapper; name one, or a function that takes and returns an env"
        )
    signature = _signature(wrapper, f"wrapper {name}")
    try:
        signature.bind(env)
    except TypeError as error:
        raise UsageError(
            f"wrapper {name} cannot be called with an environment alone ({error}); name a function of yours instead: "
            f"def wrap(env): return {name.rpartition(':')[2]}(env, ...)"
        ) from None
    try:
        wrapped = wrapper(env)
    except Exception as error:
        raise UsageError(f"wrapper {name} failed around {env}: {type(error).__name__}: {error}") from error
    return _check_env(wrapped, f"wrapper {name}", "a wrapper")


_SEVERAL_AGENTS = (
    "is a PettingZoo environment, in which several agents act, while a policy here plays one agent; return a "
    "gymnasium.Env of one of them, whose step lets the others act"
)


def _check_env(env: Any, name: str, kind: str) -> Env:
    """Raises UsageError, which says why, if this is no gymnasium.Env."""
    if isinstance(env, gymnasium.Env):
        return env
    packages = {base.__module__.partition(".")[0] for base in type(env).__mro__}
    if "pettingzoo" in packages or (isinstance(env, ModuleType) and env.__name__.startswith("pettingzoo.")):
        raise UsageError(f"{name} {_SEVERAL_AGENTS}")
    if is_device_env(env):
        return OneOfBatch(env, name)
    if isinstance(env, gymnasium.vector.VectorEnv) or hasattr(env, "num_envs"):
        raise UsageError(
            f"{name} returned {_describe(env)}, which is several environments in one; return a single gymnasium.Env, "
            "and --envs says how many of them run"
        )
    if "gym" in packages:
        raise UsageError(
            f"{name} returned {_describe(env)} of the old package gym; its class must derive from gymnasium.Env, or "
            "convert it with shimmy.GymV26CompatibilityV0(env=env)"
        )
    raise UsageError(f"{name} returned {_describe(env)}; {kind} must return a gymnasium.Env")


def _describe(value: Any) -> str:
    return "None" if value is None else f"an object of type {type(value).__name__}"
