"""Action masks on their way from an environment to the rows that samplers store."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from accel_rl.envs.batches.batch_simulator import BatchSimulator
from accel_rl.envs.batches.env_batch import BatchConfig, rollout_layout
from accel_rl.envs.gym import GymSimulator
from accel_rl.envs.spaces.conversion import row_space, to_row
from accel_rl.envs.spaces.masks import flat_mask, pack, random_allowed
from accel_rl.envs.spec import EnvConfig, EnvSpec
from accel_rl.errors import RunError, UsageError
from accel_rl.models.masks import allowed_actions, to_rows
from tests.helpers.masked_envs import OBSERVATIONS

ENVS = "tests.helpers.masked_envs"
CASES: dict[str, dict[str, Any]] = {
    "info": {},
    "method": {"sources": ["method"], "start": 5, "seen": "number"},
    "observation": {"sources": ["observation"], "seen": "picture"},
    "all": {"sources": ["info", "observation", "method"], "nvec": [3, 2, 17], "seen": "small"},
    "info before observation": {"sources": ["observation", "info"], "seen": "flags"},
    "a mask for each choice": {"nvec": [2, 8, 3], "as_parts": True},
}


def make(options: dict[str, Any], name: str = "Masked", ignores: bool = False) -> GymSimulator:
    config = EnvConfig(f"{ENVS}:{name}", options=options, mask_sources=() if ignores else None)
    return GymSimulator(config, np.random.SeedSequence(1))


@pytest.mark.parametrize("case", CASES)
def test_rows_hold_the_observation_and_the_mask(case: str) -> None:
    """Rows hold the whole observation and the mask of the best source that has one."""
    options = CASES[case]
    simulator = make(options)
    spec, env = simulator.spec, simulator._env.unwrapped
    first = [name for name in ("method", "info", "observation") if name in options.get("sources", ["info"])]
    assert list(spec.mask_sources) == first and spec.mask_size == sum(options.get("nvec", [9]))
    inner = row_space(OBSERVATIONS[options.get("seen", "vector")])
    assert spec.nested_space is None and spec.observation_shape == inner.shape
    again = GymSimulator(replace(simulator._config, mask_sources=spec.mask_sources), np.random.SeedSequence(1))
    assert again.spec == spec  # a worker makes its spec from the sources
    row = np.zeros(spec.row_shape, spec.row_dtype)
    simulator.reset(row)
    for _ in range(40):
        allowed = allowed_actions(torch.from_numpy(row), spec).numpy()
        assert np.array_equal(spec.observation_in(row), to_row(env.seen, env._space))
        assert np.array_equal(allowed, env.mask)
        if simulator.step(random_allowed(allowed, spec.action_space), row).game_over:
            assert allowed_actions(torch.from_numpy(row), spec).all() and not env.mask.any()
            simulator.reset(row)


@pytest.mark.parametrize("dtype", [np.float32, np.uint8, np.int8, np.int64])
def test_masks_survive_every_type_of_row(dtype: Any) -> None:
    """Masks of any size come back unchanged from rows of any type of numbers."""
    rng = np.random.default_rng(0)
    for size in (1, 7, 8, 9, 300):
        spec = EnvSpec(spaces.Box(0, 1, (2, 3), dtype), spaces.Discrete(size), mask_sources=("info",))
        mask, seen = rng.random((50, size)) < 0.5, rng.integers(0, 2, (50, 2, 3)).astype(dtype)
        rows = np.zeros((50, *spec.row_shape), dtype)
        rows[:, :6], rows[:, 6:] = seen.reshape(50, 6), pack(mask)
        assert np.array_equal(allowed_actions(torch.from_numpy(rows), spec).numpy(), mask)
        assert np.array_equal(spec.observation_in(torch.from_numpy(rows)).numpy(), seen)
        assert torch.equal(to_rows(torch.from_numpy(seen), torch.from_numpy(mask)), torch.from_numpy(rows))


def test_environments_without_masks_are_not_reset_for_them() -> None:
    """An environment without masks is not reset in a search for them, so its first game stays the first."""
    simulator = GymSimulator(EnvConfig("tests.helpers.toy_envs:Counting"), np.random.SeedSequence(0))
    row = np.zeros(simulator.spec.row_shape, np.float32)
    simulator.reset(row)
    assert row.tolist() == [0, 0] and simulator.spec.mask_size == 0


def test_masks_can_be_ignored() -> None:
    """An ignored mask stays a part of the observation."""
    spec = make({"sources": ["observation"]}, ignores=True).spec
    assert spec.row_shape == (2 + 9,) and spec.nested_space is not None


@pytest.mark.parametrize(
    ("nvec", "wrong", "words"),
    [
        ([4], [0, 0, 0, 0], "at step 3 of the episode allows nothing, though the game goes on"),
        ([2, 2], [1, 1, 0, 0], "at step 3 of the episode allows nothing"),
        ([4], [1, 1], r"at step 3 of the episode has shape \(2,\), but Discrete\(4\) takes shape \(4,\)"),
        ([2, 3], ([1, 1], [1, 1]), r"has arrays of \[2, 2\] numbers, but MultiDiscrete\(\[2 3\]\) takes \[2, 3\]"),
        ([4], None, "is None, but must be an array of 0 and 1"),
    ],
)
def test_wrong_masks_are_one_line(nvec: list[int], wrong: Any, words: str) -> None:
    """A mask of a wrong shape, or one that allows nothing, ends the run in one line."""
    config = EnvConfig(f"{ENVS}:Masked", options={"nvec": nvec, "wrong": wrong}, mask_sources=("info",))
    with pytest.raises(RunError, match=words) as raised:
        play_at_random(config, 3)
    assert str(raised.value).startswith(f"environment 2 (run seed 3, {ENVS}:Masked) failed at action ")
    assert "\n" not in str(raised.value)


def play_at_random(config: EnvConfig, count: int) -> None:
    """Starts environments with up to 200 random actions each."""
    spec = GymSimulator(config, np.random.SeedSequence(0)).spec
    arrays = {name: np.zeros(shape, dtype) for name, (shape, dtype) in rollout_layout(spec, 1, count).items()}
    BatchSimulator(BatchConfig(config, seed=3, decorrelation_steps=200), arrays, first_env=2).start()


@pytest.mark.parametrize("options", [{"start": 3}, {"nvec": [3, 5, 2]}])
def test_random_starts_are_allowed(options: dict[str, Any]) -> None:
    play_at_random(EnvConfig(f"{ENVS}:Masked", options=options, mask_sources=("info",)), 5)


def test_random_actions_are_uniform() -> None:
    """Random actions are uniform over the allowed ones."""
    space = spaces.MultiDiscrete([4, 3])
    space.seed(0)
    drawn = np.array([random_allowed(np.array([1, 0, 1, 1, 0, 1, 1]), space) for _ in range(6000)])
    for column, expected in ((0, [2000, 0, 2000, 2000]), (1, [0, 3000, 3000])):
        found = np.bincount(drawn[:, column], minlength=len(expected))
        assert np.all(np.abs(found - expected) < 200) and found[np.array(expected) == 0].sum() == 0


def test_gymnasiums_own_masks_are_taken() -> None:
    """A tuple with an array for each choice is a mask, even if there is one choice."""
    for nvec in ([3], [3, 2]):
        space = spaces.MultiDiscrete(nvec)
        own = tuple(np.eye(1, n, dtype=np.int8)[0] for n in nvec)
        space.sample(own)
        assert flat_mask(own, space).tolist() == [allowed == 1 for part in own for allowed in part]


def test_states_of_strict_environments_are_exact() -> None:
    """A state is found exact even in an environment that raises at disallowed actions."""
    simulator = make({"nvec": [3, 4]})
    simulator.reset(np.zeros(simulator.spec.row_shape, simulator.spec.row_dtype))
    assert simulator.get_state() is not None


def test_box_actions_have_no_masks() -> None:
    """Masks are refused for Box actions, unless they are ignored."""
    with pytest.raises(UsageError, match=r"action masks \(info\[\"action_mask\"\]\) are for .*--action-masks none"):
        make({}, "MaskedBox")
    assert make({}, "MaskedBox", ignores=True).spec.mask_size == 0


def test_masks_of_nested_choices() -> None:
    """Masks in gymnasium's form for nested choices, tuples of tuples, are flattened in order."""
    space = spaces.MultiDiscrete([[2, 3], [1, 2]])
    mask = ((np.array([1, 0]), np.array([0, 1, 1])), (np.array([1]), np.array([0, 1])))
    assert flat_mask(mask, space).astype(int).tolist() == [1, 0, 0, 1, 1, 1, 0, 1]
