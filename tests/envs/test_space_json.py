"""Spaces as JSON are read as they were written; anything else costs neither time nor memory."""

import inspect
import json
from collections import OrderedDict
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from accel_rl.envs.spaces.conversion import LeftOut
from accel_rl.envs.spaces.json_format import MAX_LEVELS, from_json, to_json
from accel_rl.errors import UsageError

INFINITE = np.array([1.5, np.inf], np.float32)
SPACES = [
    spaces.Box(0, 255, (2, 3, 4), np.uint8),
    spaces.Box(-INFINITE, INFINITE),
    spaces.Box(-np.inf, np.inf, (), np.float64),
    spaces.Box(np.array([[0.1], [-3.3]]), 4.0, (2, 1), np.float64),
    spaces.Box(-(2**62), 2**62, (2,), np.int64),
    spaces.Box(0, 1, (0,), np.float32),
    spaces.Discrete(5, start=-2),
    spaces.MultiDiscrete([[2, 3], [4, 5]], start=[[0, 1], [-2, 3]]),
    spaces.MultiBinary(4),
    spaces.MultiBinary([2, 3]),
    spaces.Dict(OrderedDict(z=spaces.Discrete(2), a=spaces.Tuple([spaces.Box(0, 1, (1,)), LeftOut("Text")]))),
]
if "dtype" in inspect.signature(spaces.Discrete).parameters:  # not in older versions of gymnasium
    SPACES.append(spaces.Discrete(3, dtype=np.int32))


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_what_is_written_is_read(space: gymnasium.Space[Any]) -> None:
    """A space is read as it was written, with its parts' order, shapes, bounds and types."""
    text = json.dumps(to_json(space), allow_nan=False)
    again = from_json(json.loads(text))
    assert again == space and again.dtype == space.dtype and again.shape == space.shape
    if isinstance(space, spaces.Dict):
        assert isinstance(again, spaces.Dict) and [*again.spaces] == [*space.spaces]


def test_equal_bounds_are_one_number_and_other_spaces_their_names() -> None:
    """Equal bounds are written as one number, and a space that JSON cannot hold as its name."""
    assert to_json(spaces.Box(0, 255, (84, 84), np.uint8))["high"] == 255
    assert to_json(spaces.Text(5)) == {"type": "LeftOut", "kind": "Text"}


GOOD = to_json(spaces.Box(0, 1, (2,)))


def nested(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = GOOD
    for _ in range(levels):
        value = {"type": "Tuple", "parts": [value]}
    return value


BAD = [
    (None, "None describes no space"),
    ([GOOD], "describes no space"),
    ({**GOOD, "type": "os:system"}, "describes no space"),
    ({**GOOD, "shape": [-1]}, "describes no space"),
    ({**GOOD, "shape": [1.5]}, "describes no space"),
    ({**GOOD, "shape": 2}, "describes no space"),
    ({**GOOD, "shape": [10**6, 10**6]}, "1,000,000,000,000 numbers is too large"),
    ({**GOOD, "low": [0.0] * 3}, "describes no space"),
    ({**GOOD, "low": 2}, "describes no space"),
    ({**GOOD, "dtype": "O"}, "dtype 'O'"),
    ({**GOOD, "dtype": "(9999999999,)f4"}, "describes no space|dtype"),
    ({"type": "Discrete", "n": 10**12, "start": 0, "dtype": "int64"}, "too large"),
    ({"type": "Discrete", "n": 0, "start": 0, "dtype": "int64"}, "describes no space"),
    ({"type": "Discrete", "n": True, "start": 0, "dtype": "int64"}, "describes no space"),
    ({"type": "MultiDiscrete", "nvec": [2] * 10000 + [10**4], "start": 0, "dtype": "int64"}, "too large"),
    ({"type": "MultiBinary", "shape": [10**12]}, "too large"),
    ({"type": "Dict", "parts": {"a": GOOD}}, "describes no space"),
    ({"type": "Dict", "parts": [[["a"], GOOD]]}, "describes no space"),
    (nested(MAX_LEVELS + 1), f"more than {MAX_LEVELS} levels deep"),
    (nested(500), f"more than {MAX_LEVELS} levels deep"),
]


@pytest.mark.parametrize(("value", "message"), BAD, ids=range(len(BAD)))
def test_what_is_no_space_is_one_short_line(value: Any, message: str) -> None:
    """A value that describes no space, or one that is too large, is refused in one short line."""
    with pytest.raises(UsageError, match=message) as caught:
        from_json(value)
    assert len(str(caught.value)) < 300 and "\n" not in str(caught.value)
