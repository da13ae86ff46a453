"""Row writers give the general conversion's numbers for observations as declared, and refuse all others."""

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from accel_rl.envs.spaces.conversion import find_mismatch, make_spec, to_row
from accel_rl.envs.spaces.observations import Observed
from accel_rl.envs.spaces.row_writers import row_writer

NESTED = spaces.Dict(
    {
        "arm": spaces.Dict({"angles": spaces.Box(-9, 9, (3,), np.float64), "grip": spaces.Discrete(3, start=-1)}),
        "camera": spaces.Box(0, 255, (4, 5, 3), np.uint8),
        "pair": spaces.Tuple([spaces.Box(-1, 1, (), np.float32), spaces.MultiBinary((2, 2))]),
        "switches": spaces.MultiDiscrete([2, 3], start=[4, 5]),
    }
)
SPACES = {
    "numbers": spaces.Box(-9, 9, (4,), np.float32),
    "float64": spaces.Box(-9, 9, (4,), np.float64),
    "integers": spaces.Box(-9, 9, (2, 3), np.int64),
    "channels last": spaces.Box(0, 255, (24, 32, 3), np.uint8),
    "grey": spaces.Box(0, 255, (24, 32), np.uint8),
    "choice": spaces.Discrete(5, start=2),
    "choices": spaces.MultiDiscrete([2, 3]),
    "bits": spaces.MultiBinary(5),
    "nested": NESTED,
}


def written(space: spaces.Space[Any], observation: Any) -> np.ndarray | None:
    """Returns the row that the writer writes, or None if it refuses the observation."""
    spec = make_spec(space, spaces.Discrete(2))
    row = np.full(spec.row_shape, 99, spec.row_dtype)
    return row if row_writer(space)(observation, row) else None


@pytest.mark.parametrize("name", SPACES)
def test_rows_are_those_of_the_general_conversion(name: str) -> None:
    space = SPACES[name]
    space.seed(1)
    for _ in range(20):
        observation = space.sample()
        row = written(space, observation)
        assert row is not None and row.tobytes() == to_row(observation, space).astype(row.dtype).tobytes()


@pytest.mark.parametrize("dtype", [np.int64, np.float32])
def test_large_integers_are_rounded_alike(dtype: Any) -> None:
    """Integers beyond float64's precision are rounded as by the general conversion, which joins all parts first."""
    limits = np.iinfo(np.int64)
    parts = {"count": spaces.Box(limits.min, limits.max, (2,), np.int64), "other": spaces.Box(0, 1, (1,), dtype)}
    space = spaces.Dict(parts)
    whole = 2**60 + 2**36 + 1  # rounds up to float32 in one step, but not by way of float64
    observation = {"count": np.array([whole, -whole]), "other": np.ones(1, dtype)}
    row = written(space, observation)
    assert row is not None and row.tobytes() == to_row(observation, space).astype(np.float32).tobytes()
    assert (row[0] == np.float32(2**60)) == (dtype == np.float32)


def nested(**parts: Any) -> Any:
    NESTED.seed(2)
    return NESTED.sample() | parts


@pytest.mark.parametrize(
    ("name", "observation"),
    [
        ("numbers", np.zeros(3, np.float32)),
        ("numbers", np.zeros((1, 4), np.float32)),
        ("numbers", np.zeros(4, np.float64)),
        ("numbers", [0.0] * 4),
        ("numbers", np.ma.zeros(4, np.float32)),
        ("numbers", None),
        ("integers", np.zeros((2, 3), np.int32)),
        ("channels last", np.zeros((3, 24, 32), np.uint8)),
        ("choice", 1),
        ("choice", 7),
        ("choice", 2.0),
        ("choices", np.array([0, 3])),
        ("bits", np.array([0, 1, 2, 0, 0], np.int8)),
        ("nested", nested(more=1)),
        ("nested", {key: part for key, part in nested().items() if key != "arm"}),
        ("nested", nested(arm={"angles": np.zeros(3), "grip": 2})),
        ("nested", nested(arm={"angles": np.zeros(3), "grip": -2})),
        ("nested", nested(arm={"angles": np.zeros(2), "grip": 0})),
        ("nested", nested(arm={"angles": np.zeros(3, np.float32), "grip": 0})),
        ("nested", nested(pair=(np.zeros((), np.float32),))),
        ("nested", nested(switches=np.array([4, 8]))),
        ("nested", [*nested().values()]),
    ],
)
def test_anything_else_is_refused(name: str, observation: Any) -> None:
    """An observation of another structure, shape or type, or out of a choice's range, is left to the general rules."""
    assert written(SPACES[name], observation) is None


def test_accepted_observations_have_no_mismatch() -> None:
    """The writer accepts nothing that the general rules refuse."""
    for observation in (nested(), nested(arm={"angles": np.zeros(3), "grip": True})):
        assert written(NESTED, observation) is not None and find_mismatch(observation, NESTED) is None


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("in_dict", [False, True])
def test_float64_beyond_float32_is_described(in_dict: bool) -> None:
    """A float64 number that float32 cannot hold is described in words, without a NumPy warning."""
    numbers = spaces.Box(-np.inf, np.inf, (2,), np.float64)
    observed = Observed(spaces.Dict({"arm": numbers}) if in_dict else numbers, spaces.Discrete(2), (), "toy")
    row, huge = np.zeros(2, np.float32), np.array([1, 1e300])
    problem = observed.convert({"arm": huge} if in_dict else huge, row)
    assert problem is not None and "1e+300" in problem and "float32" in problem
    assert ("part 'arm'" in problem) == in_dict
