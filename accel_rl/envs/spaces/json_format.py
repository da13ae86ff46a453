"""Writes spaces as plain JSON, so that a policy can be shared without a pickle.

A space is an object with its type: Box (shape, dtype, low, high), Discrete (n, start), MultiDiscrete (nvec, start),
MultiBinary (shape), Dict (parts: [name, space] in their order), Tuple (parts). Bounds are one number if they are all
equal, else a flat list; infinite ones are "inf" and "-inf". A part that cannot be learned from is LeftOut (kind: the
name of its type, such as Text).
"""

import math
import reprlib
from collections import OrderedDict
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from accel_rl.envs.spaces.conversion import LeftOut
from accel_rl.errors import UsageError

Space = gymnasium.Space[Any]

MAX_NUMBERS = 2**25  # in an observation: five pictures of 1080 x 1920 in color
MAX_LEVELS = 32  # nesting depth of Dict and Tuple spaces


def to_json(space: Space) -> dict[str, Any]:
    """Returns the space as an object of plain numbers, texts and lists."""
    match space:
        case spaces.Box():
            bounds = {"low": _bounds(space.low), "high": _bounds(space.high)}
            return {"type": "Box", "shape": list(space.shape), "dtype": str(space.dtype), **bounds}
        case spaces.Discrete():
            return {"type": "Discrete", "n": int(space.n), "start": int(space.start), "dtype": str(space.dtype)}
        case spaces.MultiDiscrete():
            values = {"nvec": space.nvec.tolist(), "start": space.start.tolist()}
            return {"type": "MultiDiscrete", **values, "dtype": str(space.dtype)}
        case spaces.MultiBinary():
            return {"type": "MultiBinary", "shape": list(space.shape)}
        case spaces.Dict():
            return {"type": "Dict", "parts": [[name, to_json(part)] for name, part in space.spaces.items()]}
        case spaces.Tuple():
            return {"type": "Tuple", "parts": [to_json(part) for part in space.spaces]}
        case _:
            return {"type": "LeftOut", "kind": space.kind if isinstance(space, LeftOut) else type(space).__name__}


def _bounds(values: Any) -> Any:
    if values.size and (values == values.flat[0]).all():
        return _bound(values.flat[0].item())
    return [_bound(value) for value in values.flatten().tolist()]


def _bound(value: Any) -> Any:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def from_json(value: Any) -> Space:
    """Returns the space that `to_json` described.

    Raises UsageError, before it takes memory, for a value that describes no space or too large a space."""
    try:
        if (size := _size(value)) > MAX_NUMBERS:
            raise UsageError(f"a space of {size:,} numbers is too large; {MAX_NUMBERS:,} is the most")
        return _from_json(value)
    except UsageError:
        raise
    except Exception as error:  # gymnasium checks its arguments with errors and assertions of all kinds
        raise UsageError(f"{_short(value)} describes no space: {_short(error)}") from None


def _size(value: Any, level: int = 0) -> int:
    """Returns how many numbers a described space holds, as one row. Raises UsageError if it is no description."""
    if level > MAX_LEVELS:
        raise UsageError(f"spaces are nested more than {MAX_LEVELS} levels deep")
    match value:
        case {"type": "Box" | "MultiBinary", "shape": [*lengths]} if all(map(_is_natural, lengths)):
            return math.prod(lengths)
        case {"type": "Discrete", "n": n} if _is_natural(n):
            return int(n)
        case {"type": "MultiDiscrete", "nvec": nvec}:
            counts = np.array(nvec, object).ravel().tolist()
            if all(map(_is_natural, counts)):
                return len(counts) * max(counts, default=0)  # numbers in a padded table of the choices
        case {"type": "Dict", "parts": [*parts]}:
            return sum(_size(part, level + 1) for _, part in parts)
        case {"type": "Tuple", "parts": [*parts]}:
            return sum(_size(part, level + 1) for part in parts)
        case {"type": "LeftOut"}:
            return 0
    raise UsageError(f"{_short(value)} describes no space")


def _is_natural(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _from_json(value: Any) -> Space:
    match value["type"]:
        case "Box":
            shape, dtype = tuple(value["shape"]), _dtype(value["dtype"], "biuf")
            low, high = (_array(value[name], shape, dtype) for name in ("low", "high"))
            return spaces.Box(low, high, shape, dtype.type)
        case "Discrete":
            n, start, dtype = value["n"], value["start"], _dtype(value["dtype"], "iu")
            if dtype == np.int64:  # the only dtype in older versions of gymnasium, which have no such parameter
                return spaces.Discrete(n, start=start)
            return spaces.Discrete(n, start=start, dtype=dtype.type)
        case "MultiDiscrete":
            dtype = _dtype(value["dtype"], "iu")
            start = np.array(value["start"], dtype)
            return spaces.MultiDiscrete(np.array(value["nvec"], dtype), dtype.type, start=start)
        case "MultiBinary":
            shape = value["shape"]
            return spaces.MultiBinary(shape if len(shape) != 1 else shape[0])
        case "Dict":
            return spaces.Dict(OrderedDict((name, _from_json(part)) for name, part in value["parts"]))
        case "Tuple":
            return spaces.Tuple([_from_json(part) for part in value["parts"]])
    return LeftOut(str(value["kind"]))


def _dtype(name: Any, kinds: str) -> np.dtype[Any]:
    dtype = np.dtype(str(name))
    if dtype.kind not in kinds:
        raise UsageError(f"dtype {name!r} is not a type of numbers that this space can hold")
    return dtype


def _array(bounds: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    """Returns bounds [*shape] from one number for all, or from a flat list."""
    numbers = np.array(bounds, dtype)  # reads "inf", too
    return numbers.reshape(shape) if isinstance(bounds, list) else np.full(shape, numbers)


def _short(value: Any) -> str:
    """Returns a value as text of one line and at most 100 characters, however large it is."""
    text = " ".join((str(value) if isinstance(value, Exception) else reprlib.repr(value)).split())
    return text if len(text) <= 100 else f"{text[:97]}..."
