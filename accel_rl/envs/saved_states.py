"""Saves and restores states of gymnasium environments, so a resumed run continues exactly.

In order of preference, a state comes from: the environment's own `get_state` and `set_state`; MuJoCo's simulation data
with the environment's other attributes (a pickled MuJoCo environment starts over); a pickle of the whole environment; a
pickle of all attributes except functions, which wrappers may hold. The last three are tested before they are trusted.
"""

import pickle
import sys
import zlib
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any

import gymnasium
import numpy as np
from gymnasium.utils.env_checker import data_equivalence

from accel_rl.envs.closing import close_all
from accel_rl.envs.global_generators import GlobalGenerators

Env = gymnasium.Env[Any, Any]
State = dict[str, Any]
NUM_COMPARED_STEPS = 5
Choose = Callable[[Env, Any, Any], Any]
"""Chooses a random action with an environment's generator, given its newest observation and info."""


def has_hook(env: Env) -> bool:
    """Returns whether the environment saves and restores its state itself."""
    return hasattr(env.unwrapped, "get_state") and hasattr(env.unwrapped, "set_state")


def capture(env: Env) -> State:
    """Returns everything that decides env's future; raises pickling's error if it cannot be pickled."""
    inner: Any = env.unwrapped
    if has_hook(env):
        state = inner.get_state()
        pickle.dumps(state)  # raises here, where the caller expects it
        return {"hook": state, "wrappers": pickle.dumps(_wrapper_states(env))}
    if _is_mujoco(inner):
        data = zlib.compress(pickle.dumps(inner.data), 1)  # from 700 KB to 35 KB
        attributes = {name: value for name, value in vars(inner).items() if name not in _MUJOCO_OBJECTS}
        return {"mujoco": data, "attributes": pickle.dumps(attributes), "wrappers": pickle.dumps(_wrapper_states(env))}
    try:
        return {"pickle": pickle.dumps(env)}
    except Exception:  # pickling may raise anything; many of gymnasium's wrappers hold a lambda
        if env is inner:
            raise
        return {"wrapped": pickle.dumps((vars(inner), _wrapper_states(env, with_functions=False)))}


def restore(state: State, get_env: Callable[[], Env]) -> Env:
    """Returns an environment in this state. It is unpickled, or get_env() returns it and its state is then set."""
    if "pickle" in state:
        unpickled: Env = pickle.loads(state["pickle"])
        return unpickled
    env = get_env()
    inner: Any = env.unwrapped
    env.reset(seed=0)  # some wrappers require a reset before anything else
    if "wrapped" in state:
        attributes, wrapper_states = pickle.loads(state["wrapped"])
        vars(inner).update(attributes)
    else:
        wrapper_states = pickle.loads(state["wrappers"])
    if "hook" in state:
        inner.set_state(state["hook"])
    if "mujoco" in state:
        import mujoco

        mujoco.mj_copyData(inner.data, inner.model, pickle.loads(zlib.decompress(state["mujoco"])))
        vars(inner).update(pickle.loads(state["attributes"]))
    for wrapper, attributes in zip(_wrappers(env), wrapper_states, strict=True):
        vars(wrapper).update(attributes)
    return env


def is_exact(build: Callable[[], Env], choose: Choose) -> bool:
    """Returns whether an environment and its copy, restored from a state, continue identically."""
    original = build()
    try:
        seen: Any = original.reset(seed=0)
        original.action_space.seed(0)
        seen = original.step(choose(original, *seen))
        copy = restore(capture(original), build)
        try:
            return _continue_equally(original, copy, seen, choose)
        finally:
            close_all([copy])
    except Exception:  # an environment that cannot be pickled may raise anything
        return False
    finally:
        close_all([original])


def _continue_equally(first: Env, second: Env, seen: Any, choose: Choose) -> bool:
    """Returns whether two environments agree in a few steps and after the next reset; seen: results of the last step.

    Both draw the same numbers from `np.random` and `random`, whose states a checkpoint holds, too."""
    first_generators, second_generators = (GlobalGenerators(np.random.SeedSequence(1)) for _ in range(2))
    for _ in range(NUM_COMPARED_STEPS):
        action = choose(first, seen[0], seen[-1])
        with first_generators:
            seen = first.step(action)
        with second_generators:
            other = second.step(action)
        if not data_equivalence(seen[:4], other[:4], exact=True):
            return False
        if seen[2] or seen[3]:
            break
    with first_generators:
        observation, _ = first.reset()
    with second_generators:
        return data_equivalence(observation, second.reset()[0], exact=True)


_MUJOCO_OBJECTS = ("model", "data", "mujoco_renderer")  # all environments of a kind have the same model


def _is_mujoco(env: Any) -> bool:
    module = sys.modules.get("gymnasium.envs.mujoco.mujoco_env")  # not imported here: it is slow
    return module is not None and isinstance(env, module.MujocoEnv)


def _wrappers(env: Env) -> list[gymnasium.Wrapper[Any, Any, Any, Any]]:
    """Returns env's wrappers, outermost first: they have state, too, such as a time limit's step counter."""
    wrappers = []
    while isinstance(env, gymnasium.Wrapper):
        wrappers.append(env)
        env = env.env
    return wrappers


def _wrapper_states(env: Env, with_functions: bool = True) -> list[State]:
    ignored = () if with_functions else (FunctionType, MethodType)
    return [
        {name: value for name, value in vars(wrapper).items() if name != "env" and not isinstance(value, ignored)}
        for wrapper in _wrappers(env)
    ]
