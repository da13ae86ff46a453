"""Translates between gymnasium's spaces and arrays: observations become rows, actions what the environment expects.

Box and Discrete observations stay as they are, but pictures get their channels first (see pictures.py). MultiDiscrete,
MultiBinary, Dict and Tuple become one flat float32 row (`gymnasium.spaces.flatten`), without parts that cannot be
learned from, such as texts. Actions have the same types; for policies, Dict and Tuple actions are one flat row (see
spec.py: stored_action).
"""

import functools
import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from accel_rl.envs.spaces.masks import KEY, SOURCES, allows_choice, flat_masks, pack, random_allowed, without_mask
from accel_rl.envs.spaces.pictures import channels_first, is_picture
from accel_rl.envs.spec import EnvSpec, stored_action
from accel_rl.errors import UsageError

Space = gymnasium.Space[Any]

_LEAVES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
_NESTED = (spaces.Dict, spaces.Tuple)


class LeftOut(Space):
    """A placeholder for a part of observations that cannot be learned from. kind: its type's name, such as "Text"."""

    def __init__(self, kind: str):
        super().__init__()
        self.kind = kind

    def __repr__(self) -> str:
        return f"LeftOut({self.kind})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LeftOut) and other.kind == self.kind


class Part(NamedTuple):
    """A space without parts of its own, and its columns in the flat row.

    name: such as "camera", "arm/joints", or a number for a Tuple's parts; "" if it is the whole space."""

    name: str
    space: Space
    columns: slice


def parts_of(space: Space) -> list[Part]:
    """Returns the parts of a space in the order of the flat row, without those left out."""
    parts, start = [], 0
    for name, leaf in _leaves(space):
        if not isinstance(leaf, LeftOut):
            width = spaces.flatdim(leaf)
            parts.append(Part(name, leaf, slice(start, start + width)))
            start += width
    return parts


def picture_shapes(spec: EnvSpec) -> list[tuple[int, ...]]:
    """Returns the shapes [C, H, W] of the pictures that policies see: the observations, or parts of nested ones."""
    if spec.is_picture:
        return [spec.observation_shape]
    parts = parts_of(spec.nested_space) if spec.nested_space is not None else []
    return [tuple(row_space(part.space).shape or ()) for part in parts if is_picture(part.space)]


def left_out(space: Space) -> dict[str, str]:
    """Returns the parts that are left out: name -> kind."""
    return {name: leaf.kind for name, leaf in _leaves(space) if isinstance(leaf, LeftOut)}


def _leaves(space: Space, name: str = "") -> list[tuple[str, Space]]:
    if not isinstance(space, _NESTED):
        return [(name, space)]
    return [leaf for key, child in _children(space) for leaf in _leaves(child, _join(name, key))]


def _children(space: Space) -> Iterable[tuple[Any, Space]]:
    return space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)  # type: ignore[attr-defined]


def _join(name: str, key: Any) -> str:
    return f"{name}/{key}" if name else str(key)


def learnable(space: Space, env_id: str) -> Space:
    """Returns the same space with a `LeftOut` for each part that cannot be learned from.

    Raises UsageError if nothing remains."""
    found = _with_left_out(space)
    parts = parts_of(found)
    if isinstance(found, LeftOut) or not parts:
        names = [f"part {name!r}: {kind}" if name else kind for name, kind in left_out(found).items()]
        raise UsageError(
            f"{env_id}: there is nothing to observe that can be learned from ({', '.join(names) or space}); "
            "use Box, Discrete, MultiDiscrete, MultiBinary, or a Dict or Tuple with such parts"
        )
    if not sum(spaces.flatdim(part.space) for part in parts):
        raise UsageError(f"{env_id}: there is nothing to observe in {space}; the observation needs at least one number")
    return found


def _with_left_out(space: Space) -> Space:
    if isinstance(space, spaces.Dict):
        return spaces.Dict({key: _with_left_out(child) for key, child in _children(space)})
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple([_with_left_out(child) for _, child in _children(space)])
    return space if isinstance(space, _LEAVES) else LeftOut(type(space).__name__)


def remaining_space(space: Space) -> Space:
    """Returns a space without the parts that are left out."""
    if not isinstance(space, _NESTED) or not left_out(space):
        return space
    children = {key: remaining_space(child) for key, child in _children(space) if parts_of(child)}
    return spaces.Dict(children) if isinstance(space, spaces.Dict) else spaces.Tuple([*children.values()])


def remaining(observation: Any, space: Space) -> Any:
    """Returns an observation, or a batch of them, without the parts that are left out of its space."""
    if isinstance(observation, Mapping) and isinstance(space, spaces.Dict):
        ignored = {key for key, child in _children(space) if not parts_of(child)}
        return {
            key: remaining(part, space[key]) if key in space.spaces else part
            for key, part in observation.items()
            if key not in ignored
        }
    if isinstance(observation, tuple | list) and isinstance(space, spaces.Tuple) and len(observation) == len(space):
        pairs = zip(observation, space, strict=True)
        return tuple(remaining(part, child) for part, child in pairs if parts_of(child))
    return observation


def layout(space: Space) -> str:
    """Describes what must stay the same in a space: parts, shapes, types and choices. Bounds may change."""
    if isinstance(space, _NESTED):
        return f"{type(space).__name__}({', '.join(f'{key}: {layout(child)}' for key, child in _children(space))})"
    if isinstance(space, spaces.Box):
        return f"Box({space.shape}, {_name(space.dtype)})"
    return str(space) if isinstance(space, _LEAVES) else type(space).__name__


@functools.cache  # numpy takes microseconds for it, and each reset asks
def _name(dtype: np.dtype[Any]) -> str:
    return str(dtype)


def check_action_space(space: Space, env_id: str, name: str = "") -> None:
    """Raises UsageError for a space that is unsupported or leaves no choice. name: the action's part."""
    if isinstance(space, _NESTED) and len(space.spaces):
        for key, child in _children(space):
            check_action_space(child, env_id, _join(name, key))
        return
    if not isinstance(space, _LEAVES + _NESTED):
        raise UsageError(
            f"{env_id}: actions{_part(name)} of type {type(space).__name__} are not supported; "
            "use Discrete, MultiDiscrete, MultiBinary, Box, or a Dict or Tuple of these"
        )
    if isinstance(space, spaces.Box) and not np.issubdtype(space.dtype, np.floating):
        raise UsageError(
            f"{env_id}: actions{_part(name)} in a Box of type {space.dtype} are not supported; "
            "use MultiDiscrete for integers, or a Box of floating-point numbers"
        )
    if not spaces.flatdim(space):
        raise UsageError(
            f"{env_id}: there is nothing to choose in {space}{_part(name).rstrip(',')}; "
            "an action needs at least one dimension"
        )


def is_flattened(space: Space) -> bool:
    """Returns whether such observations become one flat float32 row."""
    return not isinstance(space, spaces.Box | spaces.Discrete)


def row_space(space: Space) -> Space:
    """Returns the space of the rows that observations become (see `to_row`)."""
    flat = spaces.flatten_space(space) if is_flattened(space) else space
    if not isinstance(flat, spaces.Box):
        return flat
    low, high = (channels_first(bound) if is_picture(space) else bound for bound in (flat.low, flat.high))
    if flat is space and not np.issubdtype(flat.dtype, np.floating):
        return spaces.Box(low, high, dtype=flat.dtype)  # type: ignore[arg-type]
    with np.errstate(over="ignore"):  # bounds beyond float32's range become infinite
        return spaces.Box(low.astype(np.float32), high.astype(np.float32), dtype=np.float32)


def make_spec(space: Space, action_space: Space, mask_sources: tuple[str, ...] = ()) -> EnvSpec:
    """Returns the spec of an environment with this `learnable` space (without its mask) and this action space."""
    rows = row_space(remaining_space(space))
    if mask_sources and rows.dtype == np.bool_:  # a mask's numbers do not fit into booleans
        rows = spaces.Box(0, 1, rows.shape, np.uint8)
    if is_flattened(space):
        return EnvSpec(rows, action_space, nested_space=space, mask_sources=mask_sources)
    picture_shape = space.shape if space.shape != rows.shape else None
    return EnvSpec(rows, action_space, picture_shape=picture_shape, mask_sources=mask_sources)


def to_row(observation: Any, space: Space) -> NDArray[Any]:
    """Converts an environment's observation to a network's input: flat, or a picture with channels first."""
    if is_flattened(space):
        return np.asarray(spaces.flatten(space, observation))
    array = np.asarray(observation)
    return channels_first(array) if is_picture(space) else array


def to_row_batch(observations: Any, space: Space) -> NDArray[Any]:
    """Converts a batch of N observations (each part of a Dict or Tuple is a batch) as `to_row` does: [N, *row]."""
    if is_flattened(space):
        return np.concatenate([_flat_batch(values, leaf) for values, leaf in _leaf_values(observations, space)], axis=1)
    array = np.asarray(observations)
    return channels_first(array, batch_axes=1) if is_picture(space) else array


def _leaf_values(observation: Any, space: Space) -> list[tuple[NDArray[Any], Space]]:
    if not isinstance(space, _NESTED):
        return [(np.asarray(observation), space)]
    return [pair for key, child in _children(space) for pair in _leaf_values(observation[key], child)]


def _flat_batch(values: NDArray[Any], leaf: Space) -> NDArray[Any]:
    """Returns a batch of a space without parts as flat rows [N, flatdim], finite choices one-hot."""
    if isinstance(leaf, spaces.Discrete):
        return np.asarray(values[:, None] == leaf.start + np.arange(leaf.n))
    flat = values.reshape(len(values), -1)
    if isinstance(leaf, spaces.MultiDiscrete):
        choices = zip(flat.T, leaf.start.flat, leaf.nvec.flat, strict=True)
        return np.concatenate([each[:, None] == start + np.arange(n) for each, start, n in choices], axis=1)
    return flat


def one_of(observations: Any, space: Space, index: int) -> Any:
    """Returns one observation of a batch, which may also be an array of objects."""
    if isinstance(observations, np.ndarray) or not isinstance(space, _NESTED):
        return observations[index]
    parts = {key: one_of(observations[key], child, index) for key, child in _children(space)}
    return parts if isinstance(space, spaces.Dict) else tuple(parts.values())


def to_rows(observation: Any, spec: EnvSpec) -> tuple[NDArray[Any], bool]:
    """Returns a network's input for an observation [N, ...], and whether the observation is a batch of N.

    observation: as the environment returns it, with or without the parts that are left out; pictures may have their
    channels first or last. A batch has one more axis in front; in a Dict or Tuple, each part has it. Raises ValueError
    if the observation does not fit spec."""
    if spec.nested_space is not None:
        space = remaining_space(spec.nested_space)
        observation = remaining(observation, spec.nested_space)
        if not find_mismatch(observation, space):
            return to_row(observation, space)[None].astype(spec.row_dtype), False
        if problem := _batch_mismatch(observation, space):
            raise ValueError(f"the observation{problem} (or a batch of such observations)")
        return to_row_batch(observation, space).astype(spec.row_dtype), True
    array, shape = np.asarray(observation), spec.observation_shape
    own = spec.picture_shape or ((*shape[1:], shape[0]) if spec.is_picture else shape)
    for accepted in (own, shape):
        is_batch = array.shape[1:] == accepted and array.ndim == len(accepted) + 1
        if is_batch or array.shape == accepted:
            rows = array if is_batch else array[None]
            if accepted == own != shape:
                rows = channels_first(rows, batch_axes=1)
            return np.ascontiguousarray(rows, spec.row_dtype), is_batch
    raise ValueError(f"observation of shape {array.shape}: the policy takes shape {own}, or a batch of it")


def to_policy_rows(observation: Any, masks: Any, spec: EnvSpec) -> tuple[NDArray[Any], bool]:
    """Returns a policy's rows [N, *row], and whether the observation is a batch; see `to_rows`.

    masks: the observation's mask, or the masks of a batch; None: the observation contains them. Raises ValueError for
    an observation or masks that do not fit spec."""
    if not spec.mask_sources:
        if masks is not None:
            raise ValueError("the policy was trained without action masks; omit action_masks")
        return to_rows(observation, spec)
    if masks is None and isinstance(observation, Mapping):
        masks = observation.get(KEY)
    if masks is None:
        source = SOURCES[spec.mask_sources[0]]
        raise ValueError(
            f"the policy was trained with action masks; pass action_masks, which the environment has as {source}"
        )
    rows, is_batch = to_rows(without_mask(observation), spec)
    each = masks if is_batch else [masks]
    if len(each) != len(rows):
        raise ValueError(f"{len(rows)} observations with {len(each)} action masks")
    try:
        allowed = flat_masks(each, spec.action_space)
    except ValueError as error:
        raise ValueError(f"an action mask {error}") from None
    if not allows_choice(allowed, spec.action_space).all():
        raise ValueError("an action mask allows nothing")
    return np.concatenate([rows.reshape(len(rows), -1), pack(allowed).astype(rows.dtype)], 1), is_batch


def _batch_mismatch(observations: Any, space: Space) -> str | None:
    """Describes why this is not a batch of observations: arrays with one more axis, in each part of a Dict or Tuple."""
    first, leaf = observations, space
    while isinstance(leaf, _NESTED):
        key, leaf = next(iter(_children(leaf)))
        try:
            first = first[key]
        except (IndexError, KeyError, TypeError):
            return find_mismatch(observations, space)
    if np.ndim(first) != len(leaf.shape or ()) + 1 or not len(first):
        return find_mismatch(observations, space) or " is empty"
    return find_mismatch(observations, batch_space(space, len(first)))


def find_mismatch(observation: Any, space: Space, name: str = "") -> str | None:
    """Describes what is wrong with an observation's structure, shapes and types; returns None if nothing is.

    Does not check a Box's bounds, nor whether its numbers are finite: it is faster to check the row."""
    if not isinstance(space, _NESTED):
        return _leaf_misfit(observation, space, name)
    names = space.spaces.keys() if isinstance(space, spaces.Dict) else range(len(space.spaces))
    if not isinstance(observation, Mapping if isinstance(space, spaces.Dict) else tuple | list):
        return f"{_part(name)} is a {type(observation).__name__}, but the declared space is a {type(space).__name__}"
    found = observation.keys() if isinstance(observation, Mapping) else range(len(observation))
    if found != names:
        return f"{_part(name)} has the parts {[*found]}, but the declared space says {[*names]}"
    problems = (find_mismatch(observation[key], child, _join(name, key)) for key, child in _children(space))
    return next(filter(None, problems), None)


def _leaf_misfit(observation: Any, space: Space, name: str) -> str | None:
    if isinstance(observation, list | tuple):
        return f"{_part(name)} is a {type(observation).__name__}, but has to be an array of shape {space.shape}"
    value = np.asarray(observation)
    if value.shape == space.shape and value.dtype == space.dtype and isinstance(space, spaces.Box):
        return None
    if value.shape != space.shape:
        batch = "; return one observation, not a batch" if value.ndim and value.shape[1:] == space.shape else ""
        return f"{_part(name)} has shape {value.shape}, but the declared space says {space.shape}{batch}"
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
    """Describes the first part of an observation with numbers marked as wrong in its row."""
    if not is_flattened(space):
        return ""
    return next(_part(part.name) for part in parts_of(space) if wrong[part.columns].any())


def to_env_action(action: Any, space: Space) -> Any:
    """Converts a policy's action, or a batch of them, to the environment's numbering, type and bounds.

    A Dict or Tuple gets its parts back; in a batch, each part is an array with the batch axis first. Only the sent
    action is clipped; log-probabilities are those of the chosen one."""
    if isinstance(space, _NESTED):
        parts, stop = {}, 0
        for key, child in _children(space):
            shape, dtype = stored_action(child)
            start, stop = stop, stop + math.prod(shape)
            part = action[..., start:stop].reshape((*action.shape[:-1], *shape)).astype(dtype)
            parts[key] = to_env_action(part, child)
        return parts if isinstance(space, spaces.Dict) else tuple(parts.values())
    if isinstance(space, spaces.Discrete):
        return action + space.start
    if isinstance(space, spaces.Box):
        return np.asarray(action.clip(space.low, space.high), space.dtype)
    return np.asarray(action + getattr(space, "start", 0), space.dtype)


def random_action(row: NDArray[Any], spec: EnvSpec) -> Any:
    """Draws an action that the row's mask allows, in a policy's format, with the space's generator."""
    space = spec.action_space
    if not spec.mask_sources:
        return from_env_action(space.sample(), space)
    bits = spec.mask_in(row).astype(np.uint8)
    return random_allowed(np.unpackbits(bits, count=spec.mask_size, bitorder="little"), space)


def from_env_action(action: Any, space: Space) -> Any:
    """Converts an element of the action space to a policy's format."""
    if isinstance(space, _NESTED):
        parts = [np.ravel(from_env_action(action[key], child)) for key, child in _children(space)]
        return np.concatenate(parts).astype(stored_action(space)[1])
    return action - getattr(space, "start", 0)
