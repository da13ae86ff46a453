"""Writes observations that match their space into rows, several times as fast as conversion.py, which does the rest."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from accel_rl.envs.spaces.conversion import Space, find_mismatch, is_flattened
from accel_rl.envs.spaces.pictures import channels_first, is_picture

RowWriter = Callable[[Any, NDArray[Any]], bool]

_WHOLE_NUMBERS = (int, np.integer)


def row_writer(space: Space) -> RowWriter:
    """Returns a function that writes an observation into a row [*row_shape], with the numbers of `to_row`.

    Structure, shapes and types must be exactly those of the space. For any other observation the function returns
    False, and the row may hold anything. It does not check whether numbers are finite."""
    if is_flattened(space):
        return _part_writer(space, 0, _flat_dtype(space))
    return _box_writer(space) if isinstance(space, spaces.Box) else _checked_writer(space, ..., lambda choice: choice)


def _box_writer(space: spaces.Box) -> RowWriter:
    shape, dtype, is_moved = space.shape, space.dtype, is_picture(space)

    def write(observation: Any, row: NDArray[Any]) -> bool:
        if type(observation) is not np.ndarray or observation.shape != shape or observation.dtype != dtype:
            return False
        row[...] = channels_first(observation) if is_moved else observation
        return True

    return write


def _checked_writer(space: Space, columns: Any, convert: Callable[[Any], Any]) -> RowWriter:
    """Returns the writer of any space, into row[columns]. convert: returns an observation's numbers."""

    def write(observation: Any, row: NDArray[Any]) -> bool:
        if find_mismatch(observation, space):
            return False
        row[columns] = convert(observation)
        return True

    return write


def _part_writer(space: Space, start: int, dtype: np.dtype[Any]) -> RowWriter:
    """Returns the writer of a space whose first number is row[start]. dtype: the common type of all parts."""
    if isinstance(space, spaces.Dict):
        names = space.spaces.keys()
        return _nested_writer(space.spaces, start, dtype, lambda seen: isinstance(seen, dict) and seen.keys() == names)
    if isinstance(space, spaces.Tuple):
        length, children = len(space.spaces), dict(enumerate(space.spaces))
        return _nested_writer(children, start, dtype, lambda seen: isinstance(seen, tuple) and len(seen) == length)
    columns = slice(start, start + spaces.flatdim(space))
    if isinstance(space, spaces.Box):
        return _numbers_writer(space, columns, dtype)
    if isinstance(space, spaces.Discrete):
        return _one_hot_writer(space, columns)
    return _checked_writer(space, columns, partial(spaces.flatten, space))


def _nested_writer(
    children: dict[Any, Space], start: int, dtype: np.dtype[Any], has_parts: Callable[[Any], bool]
) -> RowWriter:
    writers = []
    for key, child in children.items():
        writers.append((key, _part_writer(child, start, dtype)))
        start += spaces.flatdim(child)

    def write(observation: Any, row: NDArray[Any]) -> bool:
        if not has_parts(observation):
            return False
        for key, write_part in writers:  # noqa: SIM110 (all() takes twice as long)
            if not write_part(observation[key], row):
                return False
        return True

    return write


def _numbers_writer(space: spaces.Box, columns: slice, dtype: np.dtype[Any]) -> RowWriter:
    shape, own_dtype = space.shape, space.dtype
    is_large = np.issubdtype(own_dtype, np.integer) and own_dtype.itemsize == 8  # rounded to dtype first, as in to_row

    def write(observation: Any, row: NDArray[Any]) -> bool:
        if type(observation) is not np.ndarray or observation.shape != shape or observation.dtype != own_dtype:
            return False
        numbers = observation.ravel()
        row[columns] = numbers.astype(dtype) if is_large else numbers
        return True

    return write


def _one_hot_writer(space: spaces.Discrete, columns: slice) -> RowWriter:
    first, num_choices = int(space.start), int(space.n)

    def write(observation: Any, row: NDArray[Any]) -> bool:
        if not isinstance(observation, _WHOLE_NUMBERS) or not 0 <= (index := int(observation) - first) < num_choices:
            return False
        row[columns] = 0
        row[columns.start + index] = 1
        return True

    return write


def _flat_dtype(space: Space) -> np.dtype[Any]:
    """Returns the type in which `gymnasium.spaces.flatten` joins a space's parts."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        return np.result_type(*map(_flat_dtype, space.values() if isinstance(space, spaces.Dict) else space))
    return np.dtype(space.dtype)
