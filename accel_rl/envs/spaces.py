"""Translates between gymnasium's spaces and arrays: observations become rows, actions what the environment expects.

Supported observations: Box and Discrete as they are, pictures with their channels first; MultiDiscrete, MultiBinary,
and Dict and Tuple of all these as one flat float32 row, by gymnasium's own rules (`gymnasium.spaces.flatten`: parts in
the space's order, finite choices one-hot). Supported actions: Discrete, MultiDiscrete, MultiBinary, Box.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, iterate
from numpy.typing import NDArray

from accel_rl.errors import UsageError

Space = gymnasium.Space[Any]

_LEAVES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
_NESTED = (spaces.Dict, spaces.Tuple)


class Part(NamedTuple):
    """A space without parts of its own, and the numbers of the flat row that belong to it.

    name: "camera", "arm/joints", or a number for a Tuple's parts; "" for a space that has no parts."""

    name: str
    space: Space
    columns: slice


def parts_of(space: Space) -> list[Part]:
    """Returns the parts of a space, in the order in which they stand in the flat row."""
    parts, start = [], 0
    for name, leaf in _leaves(space):
        width = spaces.flatdim(leaf)
        parts.append(Part(name, leaf, slice(start, start + width)))
        start += width
    return parts


def _leaves(space: Space, name: str = "") -> list[tuple[str, Space]]:
    if not isinstance(space, _NESTED) or not space.spaces:
        return [(name, space)]
    return [leaf for key, child in _children(space) for leaf in _leaves(child, _join(name, key))]


def _children(space: Space) -> Iterable[tuple[Any, Space]]:
    return space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)  # type: ignore[attr-defined]


def _join(name: str, key: Any) -> str:
    return f"{name}/{key}" if name else str(key)


def is_picture(space: Space) -> bool:
    """Returns whether observations are uint8 arrays with three axes."""
    return isinstance(space, spaces.Box) and len(space.shape) == 3 and space.dtype == np.uint8


def is_channels_last(space: Space) -> bool:
    """Returns whether observations are pictures [H, W, C]; assumed unless the first axis is the shortest one."""
    shape = tuple(space.shape or ())
    return is_picture(space) and not shape[0] < min(shape[1:])


def check_observation_space(space: Space, env_id: str) -> None:
    """Raises UsageError for a space that is not supported or holds no number."""
    leaves = _leaves(space)
    for name, leaf in leaves:
        where = f" (part {name!r})" if name else ""
        if isinstance(leaf, _NESTED):
            raise UsageError(f"{env_id}: there is nothing to observe in an empty {type(leaf).__name__}{where}")
        if not isinstance(leaf, _LEAVES):
            raise UsageError(
                f"{env_id}: observations of type {type(leaf).__name__}{where} are not supported; "
                "use Box, Discrete, MultiDiscrete, MultiBinary, or a Dict or Tuple of these"
                + (" (gymnasium.wrappers.FilterObservation leaves parts out)" if name else "")
            )
    if not sum(spaces.flatdim(leaf) for _, leaf in leaves):
        raise UsageError(f"{env_id}: there is nothing to observe in {space}; the observation needs at least one number")


def check_action_space(space: Space, env_id: str) -> None:
    """Raises UsageError for a space that is not supported or leaves nothing to choose."""
    if not isinstance(space, _LEAVES):
        raise UsageError(
            f"{env_id}: actions of type {type(space).__name__} are not supported; "
            "use Discrete, MultiDiscrete, MultiBinary or Box"
        )
    if isinstance(space, spaces.Box) and not np.issubdtype(space.dtype, np.floating):
        raise UsageError(
            f"{env_id}: actions in a Box of type {space.dtype} are not supported; "
            "use MultiDiscrete for integers, or a Box of floating-point numbers"
        )
    if not spaces.flatdim(space):
        raise UsageError(f"{env_id}: there is nothing to choose in {space}; an action needs at least one dimension")


def is_flattened(space: Space) -> bool:
    """Returns whether such observations become one flat float32 row."""
    return not isinstance(space, spaces.Box | spaces.Discrete)


def row_space(space: Space) -> Space:
    """Returns the space of the rows that observations become (see `to_row`)."""
    if is_channels_last(space):
        assert isinstance(space, spaces.Box)
        return spaces.Box(np.moveaxis(space.low, 2, 0), np.moveaxis(space.high, 2, 0), dtype=np.uint8)
    flat = spaces.flatten_space(space) if is_flattened(space) else space
    if isinstance(flat, spaces.Box) and (flat is not space or np.issubdtype(flat.dtype, np.floating)):
        with np.errstate(over="ignore"):  # beyond float32's range there is no bound
            low, high = flat.low.astype(np.float32), flat.high.astype(np.float32)
        return spaces.Box(low, high, dtype=np.float32)
    return flat


def to_row(observation: Any, space: Space) -> NDArray[Any]:
    """Returns an environment's observation as networks see it: flat, or a picture with its channels first."""
    if is_flattened(space):
        return np.asarray(spaces.flatten(space, observation))
    array = np.asarray(observation)
    return np.moveaxis(array, -1, 0) if is_channels_last(space) else array


def unbatch(observations: Any, space: Space) -> list[Any]:
    """Returns the observations of a batch: arrays with one more axis, in a Dict or Tuple within each part.

    Raises ValueError, whose message says what is wrong, if this is no batch of such observations."""
    first, leaf = observations, space
    while isinstance(leaf, _NESTED):
        key, leaf = next(iter(_children(leaf)))
        if not isinstance(first, Mapping | tuple | list) or (isinstance(first, Mapping) and key not in first):
            raise ValueError(find_mismatch(observations, space))
        first = first[key]
    if np.ndim(first) != len(leaf.shape or ()) + 1 or not len(first):
        raise ValueError(find_mismatch(observations, space) or " is empty")
    batched = batch_space(space, len(first))
    problem = find_mismatch(observations, batched)
    if problem:
        raise ValueError(problem)
    return list(iterate(batched, observations))


def find_mismatch(observation: Any, space: Space, name: str = "") -> str | None:
    """Returns what is wrong with an observation's structure, shapes and types, or None.

    The bounds of a Box, and whether its numbers are finite, are not checked here: that is faster in the row."""
    if not isinstance(space, _NESTED):
        return _leaf_misfit(observation, space, name)
    names = space.spaces.keys() if isinstance(space, spaces.Dict) else range(len(space.spaces))
    if not isinstance(observation, Mapping if isinstance(space, spaces.Dict) else tuple | list):
        return f"{_part(name)} is a {type(observation).__name__}, but the declared space is a {type(space).__name__}"
    found = observation.keys() if isinstance(observation, Mapping) else range(len(observation))
    if found != names:
        return f"{_part(name)} has the parts {[*found]}, but the declared space says {[*names]}"
    for key, child in _children(space):
        problem = find_mismatch(observation[key], child, _join(name, key))
        if problem:
            return problem
    return None


def _leaf_misfit(observation: Any, space: Space, name: str) -> str | None:
    value = np.asarray(observation)
    if value.shape == space.shape and value.dtype == space.dtype and isinstance(space, spaces.Box):
        return None
    if value.shape != space.shape:
        return f"{_part(name)} has shape {value.shape}, but the declared space says {space.shape}"
    is_float = np.issubdtype(space.dtype or np.float32, np.floating)
    if value.dtype.kind not in ("iubf" if is_float else "iub"):
        return f"{_part(name)} is of type {value.dtype}, but the declared space says {space.dtype}"
    if is_float:
        return None
    if isinstance(space, spaces.Discrete):
        return None if space.contains(observation) else f"{_part(name)} is {observation}, which is not in {space}"
    if value.dtype != space.dtype and (value.astype(space.dtype) != value).any():
        return f"{_part(name)} does not fit the declared type {space.dtype}: {observation}"
    if not isinstance(space, spaces.Box) and not space.contains(value.astype(space.dtype)):
        return f"{_part(name)} is {observation}, which is not in {space}"
    return None


def _part(name: str) -> str:
    return f", part {name!r}," if name else ""


def wrong_part(wrong: NDArray[np.bool_], space: Space) -> str:
    """Returns, as text, the first part of an observation with numbers that are marked as wrong in its row."""
    if not is_flattened(space):
        return ""
    return next(_part(part.name) for part in parts_of(space) if wrong[part.columns].any())


def to_env_action(action: Any, space: Space) -> Any:
    """Returns a policy's action, or a batch of them, as the environment takes it: its numbering, type and bounds.

    Only what is sent is clipped; log-probabilities are those of the action that was chosen."""
    if isinstance(space, spaces.Discrete):
        return action + space.start
    if isinstance(space, spaces.Box):
        return np.asarray(np.clip(action, space.low, space.high), space.dtype)
    return np.asarray(action + getattr(space, "start", 0), space.dtype)


def from_env_action(action: Any, space: Space) -> Any:
    """Returns an element of the action space as a policy would have chosen it."""
    return action - getattr(space, "start", 0)
