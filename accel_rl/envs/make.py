"""Makes an environment, or a batch of environments, from an id or the user's function, and wraps it."""

import functools
import importlib
import inspect
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np

from accel_rl.envs.batches.device_env import OneOfBatch, is_device_env
from accel_rl.envs.batches.one_of_vector import OneOfVector, VectorEnv
from accel_rl.envs.closing import close_all
from accel_rl.envs.function_transfer import FUNCTION, missing_function, unpickle_function
from accel_rl.envs.spec import EnvConfig
from accel_rl.errors import UsageError, unknown
from accel_rl.processes.spawning import search_current_folder

Env = gymnasium.Env[Any, Any]

VECTOR, ENVPOOL = "vector:", "envpool:"  # prefixes of ids for batches

# Packages that register environments when they are imported, and the prefixes of their ids.
PACKAGES = {
    "minigrid": ("MiniGrid-", "BabyAI-"),
    "highway_env": ("highway-", "merge-", "roundabout-", "parking-", "intersection-", "racetrack-", "exit-", "u-turn-"),
    "vizdoom.gymnasium_wrapper": ("Vizdoom",),
    "miniworld": ("MiniWorld-",),
    "shimmy": ("dm_control/", "bsuite/"),
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
    """Returns the object called `package.module:name`. Raises UsageError if the module does not exist or lacks it."""
    module, attribute = _import_module(name, kind)
    if not hasattr(module, attribute):
        raise _unknown_name(kind, attribute, module)
    return getattr(module, attribute)


def _import_module(name: str, kind: str) -> tuple[ModuleType, str]:
    """Returns the module of `package.module:name`, and the name in it."""
    module_name, _, attribute = name.partition(":")
    if not module_name or module_name.startswith(".") or module_name.endswith(".py") or not attribute:
        raise UsageError(f"{kind} {name!r} must be named as package.module:name, as in my_module:MyClass")
    search_current_folder()
    try:
        return importlib.import_module(module_name), attribute
    except ModuleNotFoundError as error:
        if error.name and f"{module_name}.".startswith(f"{error.name}."):
            raise UsageError(
                f"{kind} {name!r}: there is no module {error.name!r} (the current directory is searched, too)"
            ) from None
        raise
    except SyntaxError as error:
        raise UsageError(f"{kind} {name!r}: {error.filename}, line {error.lineno}: {error.msg}") from None


def _unknown_name(kind: str, name: str, module: ModuleType) -> UsageError:
    """Returns the error for a name that a module lacks, or for an id that is not registered after its import."""
    known = gymnasium.registry if "-" in name else [each for each, value in vars(module).items() if callable(value)]
    path, where = os.path.abspath(f"{module.__name__}.py"), module.__name__
    if os.path.exists(path) and (at := getattr(module, "__file__", path)) != path:
        where += f" at {at}, which hides your {path}: rename yours"
    return unknown(kind, name, known, f"(in {where})")


def make_gym_env(config: EnvConfig, seed: int | None = None, render_mode: str | None = None) -> Env:
    """Makes a registered environment, or calls the user's factory with the arguments that it takes; then wraps it.

    An id of batches gives a batch of one, but `vector:id` gives gymnasium's single environment if there is one. Raises
    UsageError for an unknown id or option, or if a factory or wrapper does not return a gymnasium.Env."""
    if config.env_id.startswith(ENVPOOL):
        return _one_of_vector(config, seed, render_mode)
    make, env_id = _factory(config), config.env_id.rpartition(":")[2]
    if config.env_id.startswith(VECTOR) and (make or gymnasium.registry[env_id].entry_point is None):
        return _one_of_vector(config, seed, render_mode)
    if make is None:
        env: Env = _make_registered(env_id, config.options, render_mode)
    else:
        returned = _call_factory(make, config, seed, render_mode)
        if is_vector(config) and isinstance(returned, gymnasium.vector.VectorEnv) and not is_device_env(returned):
            close_all([returned])
            return _one_of_vector(config, seed, render_mode)
        env = _check_env(returned, config.env_id, "a factory")
    try:
        wrapped = functools.reduce(_wrap, config.wrappers, env)
        _check_reset(wrapped, config.env_id)
    except BaseException:
        close_all([env])
        raise
    return wrapped


def _one_of_vector(config: EnvConfig, seed: int | None, render_mode: str | None) -> Env:
    seed = int(np.random.SeedSequence().generate_state(1)[0] >> 1) if seed is None else seed
    return OneOfVector(lambda seed: make_vector_env(config, [seed], render_mode=render_mode), seed)


def make_device_env(config: EnvConfig, num_envs: int, seed: int, device: str) -> Any:
    """Makes a batch of environments on a device (see batches/device_env.py) with the user's factory.

    Raises UsageError for anything else, or for a different number of environments."""
    env = _call_factory(_factory(config), config, seed, num_envs=num_envs, device=device)
    if not is_device_env(env):
        raise UsageError(f"{config.env_id} returned {_describe(env)}, not a batch of environments on a device")
    if env.num_envs != num_envs:
        raise UsageError(f"{config.env_id} was asked for num_envs={num_envs}, but returned {env.num_envs}")
    return env


def _check_reset(env: Env, env_id: str) -> None:
    """Raises UsageError if an environment, or one of its wrappers, cannot be reset with a seed."""
    try:
        parameters = inspect.signature(env.reset).parameters.values()
    except ValueError:  # a compiled method has no signature, but may take a seed
        return
    if not any(parameter.name == "seed" or parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        raise UsageError(
            f"{env_id}: reset() of {type(env).__name__} takes no seed; declare reset(self, *, seed=None, "
            "options=None) and return (observation, info), as gymnasium.Env does since 0.26"
        )
    if isinstance(env, gymnasium.Wrapper):
        _check_reset(env.env, env_id)


def _factory(config: EnvConfig) -> Callable[..., Any] | None:
    """Returns the function that makes an environment; None for gymnasium's ids. Raises UsageError for unknown ids."""
    return unpickle_function(config.function) if config.function else _find(config.env_id.removeprefix(VECTOR))


def _find(env_id: str) -> Callable[..., Any] | None:
    """Returns the factory that an id names; None for gymnasium's ids, which may begin with a module to import.

    Raises UsageError for an unknown id."""
    from accel_rl.envs.foreign_ids import advise

    if env_id.startswith(FUNCTION):
        raise missing_function(env_id)
    if env_id not in gymnasium.registry and (advice := advise(env_id)):
        raise UsageError(f"unknown environment {env_id!r}: {advice}")
    if ":" in env_id:
        module, name = _import_module(env_id, "environment")
        if hasattr(module, name):
            return getattr(module, name)  # type: ignore[no-any-return]
        if name in gymnasium.registry:
            return None
        raise _unknown_name("environment", name, module)
    if env_id in gymnasium.registry:
        return None
    for package, beginnings in PACKAGES.items():
        if env_id.startswith(beginnings):
            raise UsageError(
                f"unknown environment {env_id!r}: {package} registers it when imported; name it {package}:{env_id}"
            )
    from accel_rl.envs.games.atari import games

    way_out = "(`accel-rl list envs`; one that a package registers when imported: package:id)"
    raise unknown("environment", env_id, [*games(), *gymnasium.registry], way_out)


def _make_registered(env_id: str, options: dict[str, Any], render_mode: str | None, **batch: Any) -> Any:
    """Makes a registered environment, or a batch. batch: further arguments of gymnasium.make_vec for a batch."""
    if render_mode and sys.platform == "linux" and not os.environ.get("DISPLAY"):
        os.environ.setdefault("MUJOCO_GL", "egl")  # otherwise MuJoCo would look for a display
    rendering = {"render_mode": render_mode} if render_mode else {}  # not all environments have this parameter
    try:
        with warnings.catch_warnings():  # the log says it once (foreign_ids.py)
            warnings.filterwarnings("ignore", ".*is out of date", DeprecationWarning)
            return (gymnasium.make_vec if batch else gymnasium.make)(env_id, **{**rendering, **options, **batch})
    except gymnasium.error.DependencyNotInstalled as error:
        way_out = 'install it with: pip install "accel-rl[mujoco]"' if "mujoco" in str(error).lower() else str(error)
        raise UsageError(f"{env_id} needs a package that is not installed; {way_out}") from error
    except TypeError as error:
        if "unexpected keyword argument" not in str(error) and "gymnasium.Env" not in str(error):
            raise
        raise UsageError(f"{env_id}: {error}") from error


# ---- batches ----


def is_vector(config: EnvConfig) -> bool:
    """Returns whether an id names a batch of environments: by its prefix, or because its factory takes num_envs."""
    if config.env_id.startswith((VECTOR, ENVPOOL)):
        return True
    make = _factory(config) if ":" in config.env_id else None
    return (
        make is not None
        and "num_envs" in _signature(make, config.env_id).parameters
        and "num_envs" not in config.options
    )


def make_vector_env(
    config: EnvConfig, seeds: Sequence[int], num_threads: int = 1, render_mode: str | None = None
) -> VectorEnv:
    """Makes a batch with one environment per seed. num_threads: for libraries that start threads themselves.

    Raises UsageError for an unknown id or option, for wrappers, or if there is no such batch."""
    env_id, num_envs = config.env_id, len(seeds)
    if config.wrappers:
        raise UsageError(
            f"{env_id} takes no wrappers of single environments (--wrappers), since it comes in batches; put a "
            "gymnasium.vector.VectorWrapper around it in a factory (--env package.module:factory)"
        )
    if env_id.startswith(ENVPOOL):
        env = _make_envpool(env_id, config.options, seeds, num_threads, render_mode)
    elif env_id.startswith(VECTOR):
        env = _make_vector_entry_point(env_id.removeprefix(VECTOR), config.options, num_envs, render_mode)
    else:
        env = _call_factory(_factory(config), config, seeds[0], render_mode, num_envs, num_threads=num_threads)
    if not isinstance(env, gymnasium.vector.VectorEnv):
        raise UsageError(
            f"{env_id} takes num_envs, but returned {_describe(env)}; return a gymnasium.vector.VectorEnv, or rename "
            "that parameter if it makes a single environment"
        )
    if env.num_envs != num_envs:
        raise UsageError(f"{env_id} returned {env.num_envs} environments for num_envs={num_envs}; return that many")
    return env


def _make_vector_entry_point(name: str, options: dict[str, Any], num_envs: int, render_mode: str | None) -> Any:
    env_id = name.rpartition(":")[2]
    if _find(name) is not None or gymnasium.registry[env_id].vector_entry_point is None:
        raise UsageError(
            f"{VECTOR}{name}: gymnasium has no vector entry point for {name}; --env {name} steps its environments one "
            "by one, and a factory (--env package.module:factory) may return any gymnasium.vector.VectorEnv"
        )
    return _make_registered(env_id, options, render_mode, num_envs=num_envs, vectorization_mode="vector_entry_point")


def _make_envpool(
    env_id: str, options: dict[str, Any], seeds: Sequence[int], num_threads: int, render_mode: str | None
) -> Any:
    try:
        import envpool
    except ImportError as error:
        raise UsageError(
            f"{env_id} needs EnvPool, which cannot be imported ({error}); "
            'install it with: pip install "accel-rl[envpool]"'
        ) from None
    name, known = env_id.removeprefix(ENVPOOL), envpool.list_all_envs()
    if name not in known:
        raise unknown("environment", name, known, "(in EnvPool)")
    rendering = {"render_mode": render_mode} if render_mode else {}
    given = {"num_threads": num_threads, **rendering, **options, "num_envs": len(seeds), "seed": [*seeds]}
    try:
        with warnings.catch_warnings(action="ignore"):
            # gymnasium warns that bounds lose digits in float32 when spaces are first read.
            env = envpool.make_gymnasium(name, **given)
            _ = env.observation_space, env.action_space
        return env
    except (TypeError, ValueError, AssertionError) as error:
        raise UsageError(f"{env_id}: {error}") from error


# ---- factories and wrappers ----


def _call_factory(
    factory: Any,
    config: EnvConfig,
    seed: int | None,
    render_mode: str | None = None,
    num_envs: int = 1,
    device: str = "cpu",
    num_threads: int = 1,
) -> Any:
    """Calls a factory and returns its result. The factory gets seed and render_mode if it has such parameters, and also
    num_envs, device and num_threads if it takes num_envs. **kwargs gets render_mode, if there is one."""
    signature = _signature(factory, config.env_id)
    offered = {"seed": seed, "render_mode": render_mode}
    if "num_envs" in signature.parameters:
        offered |= {"num_envs": num_envs, "device": device, "num_threads": num_threads}
    arguments = {name: value for name, value in offered.items() if name in signature.parameters}
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in signature.parameters.values())
    if takes_any and render_mode:
        arguments["render_mode"] = render_mode
    arguments.update(config.options)
    try:
        signature.bind(**arguments)
    except TypeError as error:
        raise UsageError(f"{config.env_id}: {error}") from None
    return factory(**arguments)


def _signature(factory: Any, name: str) -> inspect.Signature:
    """Returns a factory's signature; raises UsageError if it cannot be called."""
    if isinstance(factory, ModuleType) and factory.__name__.startswith("pettingzoo."):
        raise UsageError(f"{name} {_SEVERAL_AGENTS}")
    if not callable(factory):
        raise UsageError(f"{name} is {_describe(factory)}; name a function or class that makes a gymnasium.Env")
    try:
        return inspect.signature(factory)
    except ValueError:
        raise UsageError(f"{name} is not a function or class written in Python") from None


def _wrap(env: Env, name: str) -> Env:
    """Returns env in the wrapper package.module:Wrapper, which is called with env only."""
    wrapper = import_name(name, "wrapper")
    if isinstance(wrapper, type) and not issubclass(wrapper, gymnasium.Env):
        raise UsageError(
            f"wrapper {name} is not a gymnasium.Wrapper; name one, or a function that takes and returns an env"
        )
    signature = _signature(wrapper, f"wrapper {name}")
    try:
        signature.bind(env)
    except TypeError as error:
        raise UsageError(
            f"wrapper {name} cannot be called with an environment alone ({error}); name your own function instead: "
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
    """Returns env as a gymnasium.Env; raises UsageError, with the reason, if it is not one."""
    if isinstance(env, gymnasium.Env):
        return env
    packages = {base.__module__.partition(".")[0] for base in type(env).__mro__}
    if "pettingzoo" in packages or (isinstance(env, ModuleType) and env.__name__.startswith("pettingzoo.")):
        raise UsageError(f"{name} {_SEVERAL_AGENTS}")
    if is_device_env(env):
        return OneOfBatch(env, name)
    if isinstance(env, gymnasium.vector.VectorEnv) or hasattr(env, "num_envs"):
        raise UsageError(
            f"{name} returned {_describe(env)}, which is several environments in one; return a single "
            "gymnasium.Env, or let the factory take their number as num_envs (from --envs and --workers) and return a "
            "gymnasium.vector.VectorEnv"
        )
    if "gym" in packages:
        raise UsageError(
            f"{name} returned {_describe(env)} of the old package gym; derive its class from gymnasium.Env, or "
            "convert it with shimmy.GymV26CompatibilityV0(env=env)"
        )
    raise UsageError(f"{name} returned {_describe(env)}; {kind} must return a gymnasium.Env")


def _describe(value: Any) -> str:
    return "None" if value is None else f"an object of type {type(value).__name__}"
