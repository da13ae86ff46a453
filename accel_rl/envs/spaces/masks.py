"""Reads action masks from environments, and packs them into the rows that policies see.

A mask has a number for each logit or action value: for the n actions of a Discrete space, or for those of all choices
of a MultiDiscrete space, one choice after the other. It is stored as bits, 8 per number, after the observation's
numbers in the same row.
"""

import contextlib
import math
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from accel_rl.errors import UsageError

Mask = NDArray[np.bool_]

KEY = "action_mask"  # in an info, and in a Dict observation
SOURCES = {
    "method": "its method action_masks()",
    "info": 'info["action_mask"]',
    "observation": 'observation["action_mask"]',
}
"""Possible sources of masks; the first one that an environment has is used."""


def nums_choices(space: gymnasium.Space[Any]) -> list[int]:
    """Returns the number of actions of each choice of a finite action space."""
    if isinstance(space, spaces.Discrete):
        return [int(space.n)]
    if isinstance(space, spaces.MultiDiscrete):
        return space.nvec.flatten().tolist()
    return [2] * math.prod(space.shape or ())


def find_sources(env: gymnasium.Env[Any, Any], seed: int | None, env_id: str) -> tuple[str, ...]:
    """Returns the sources of an environment's masks, the one in use first; () without masks.

    Resets the environment. Raises UsageError for masks of actions that are not finite choices."""
    space, info = env.observation_space, None
    with contextlib.suppress(Exception):  # the environment's code may raise anything, which a run's first reset reports
        _, info = env.reset(seed=seed)
    found = {
        "method": env.has_wrapper_attr("action_masks"),
        "info": isinstance(info, Mapping) and KEY in info,
        "observation": isinstance(space, spaces.Dict) and KEY in space.spaces,
    }
    sources = tuple(name for name in SOURCES if found[name])
    if sources and not isinstance(env.action_space, spaces.Discrete | spaces.MultiDiscrete):
        raise UsageError(
            f"{env_id}: action masks ({SOURCES[sources[0]]}) are for Discrete and MultiDiscrete actions, but these are "
            f"{env.action_space}; --action-masks none ignores them"
        )
    return sources


def read_mask(source: str, env: Any, observation: Any, info: Any) -> Any:
    """Returns an environment's newest mask, or a batch's masks, in its own format; None without masks."""
    if source == "method":
        return (env.get_wrapper_attr("action_masks") if isinstance(env, gymnasium.Env) else env.action_masks)()
    where = info if source == "info" else observation
    return where.get(KEY) if isinstance(where, Mapping) else None


def space_without_mask(space: gymnasium.Space[Any]) -> gymnasium.Space[Any]:
    """Returns a Dict space without its mask; if a single part remains, that part."""
    rest = {key: part for key, part in space.spaces.items() if key != KEY}  # type: ignore[attr-defined]
    return next(iter(rest.values())) if len(rest) == 1 else spaces.Dict(rest)


def without_mask(observation: Any) -> Any:
    """Returns an observation, or a batch of them, without its mask, as in `space_without_mask`."""
    if not isinstance(observation, Mapping) or KEY not in observation:
        return observation
    rest = {key: part for key, part in observation.items() if key != KEY}
    return next(iter(rest.values())) if len(rest) == 1 else rest


def flat_mask(mask: Any, space: gymnasium.Space[Any]) -> Mask:
    """Returns a mask of this action space as [A] bool; masks of several choices may be one array per choice.

    Raises ValueError, with the reason, for a wrong shape or type."""
    nums, parts = nums_choices(space), _parts(mask)
    if parts[0] is not mask:
        if [np.size(part) for part in parts] != nums:
            raise ValueError(f"has arrays of {[np.size(part) for part in parts]} numbers, but {space} takes {nums}")
        mask = np.concatenate([np.ravel(part) for part in parts])
    array = np.asarray(mask)
    if array.dtype.kind not in "biuf":
        raise ValueError(f"is {mask!r}, but must be an array of 0 and 1")
    if array.shape != (sum(nums),):
        raise ValueError(f"has shape {array.shape}, but {space} takes shape ({sum(nums)},)")
    return array.astype(np.bool_)


def flat_masks(masks: Any, space: gymnasium.Space[Any]) -> Mask:
    """Returns the N masks of a batch as [N, A] bool; takes and raises the same as `flat_mask`."""
    if isinstance(masks, np.ndarray) and masks.ndim == 2 and len(masks):
        flat_mask(masks[0], space)
        return masks.astype(np.bool_)
    return np.stack([flat_mask(mask, space) for mask in masks])


def _parts(mask: Any) -> list[Any]:
    """Returns the arrays of a tuple, which may be nested; anything else as the only part."""
    if not (isinstance(mask, tuple | list) and mask and isinstance(mask[0], tuple | list | np.ndarray)):
        return [mask]
    return [leaf for part in mask for leaf in _parts(part)]


def last_mask(mask: Any, space: gymnasium.Space[Any]) -> Mask:
    """Returns the mask [A] of a game's last observation. If it is missing or allows nothing, the result allows all."""
    try:
        found = flat_mask(mask, space)
    except ValueError:
        found = np.zeros(sum(nums_choices(space)), np.bool_)
    return found if allows_choice(found, space) else np.ones_like(found)


def allows_choice(masks: Mask, space: gymnasium.Space[Any]) -> Any:
    """Returns whether masks [..., A] allow an action in every choice: bool [...]."""
    return np.logical_and.reduce([part.any(-1) for part in _split(masks, space)])


def pack(mask: Mask) -> NDArray[np.uint8]:
    """Packs a mask [..., A] into the numbers [..., ceil(A / 8)] of a row."""
    return np.packbits(mask, axis=-1, bitorder="little")


def random_allowed(mask: Any, space: gymnasium.Space[Any]) -> Any:
    """Draws an action that a mask [A] allows, with the space's generator; actions are counted from 0."""
    chosen = [space.np_random.choice(np.flatnonzero(part)) for part in _split(mask, space)]
    return np.reshape(chosen, space.shape) if isinstance(space, spaces.MultiDiscrete) else chosen[0]


def _split(mask: Any, space: gymnasium.Space[Any]) -> list[Any]:
    return np.split(mask, np.cumsum(nums_choices(space))[:-1], axis=-1)


def describe_sources(sources: tuple[str, ...]) -> str:
    """Describes which source is used and which are ignored."""
    used, *ignored = (SOURCES[name] for name in sources)
    return used + (f"; ignored: {', '.join(ignored)}" if ignored else "")
