"""VectorBatch against BatchSimulator with the same environments, for each autoreset mode; refusals and errors."""

import builtins
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest

from accel_rl.envs import make_env
from accel_rl.envs.batches.batch_simulator import BatchSimulator
from accel_rl.envs.batches.env_batch import BatchConfig, EnvBatch, rollout_layout
from accel_rl.envs.batches.vector_batch import VectorBatch, make_batch
from accel_rl.envs.batches.vector_simulator import VectorSimulator
from accel_rl.envs.gym import GymSimulator
from accel_rl.envs.spaces.conversion import random_action
from accel_rl.envs.spec import Array, EnvConfig, EnvSpec
from accel_rl.errors import RunError, UsageError
from tests.helpers.samplers import TOYS

VECTORS, MASKED = "tests.helpers.vector_envs", "tests.helpers.masked_envs"
MODES = ["NextStep", "SameStep", "Disabled"]
ALLOWS_NOTHING = r"the action mask of environment 0 of 3 at step \d+ allows nothing, though the game goes on"
SEED = np.random.SeedSequence(0)


def of(make: str = "make", **options: Any) -> EnvConfig:
    return EnvConfig(f"{VECTORS}:{make}", options=options)


def with_masks(env: EnvConfig) -> EnvConfig:
    """Returns env with the sources of its masks, as a run finds them."""
    simulator = GymSimulator(replace(env, mask_sources=None), SEED)
    return replace(env, mask_sources=simulator.spec.mask_sources)


class Driver:
    """A batch of environments with its own arrays, which plays random actions."""

    def __init__(self, spec: EnvSpec, env: EnvConfig, num_envs: int = 3, horizon: int = 7, **config: Any):
        layout = rollout_layout(spec, horizon, num_envs)
        self.arrays = {name: np.full(shape, 77).astype(dtype) for name, (shape, dtype) in layout.items()}
        self.arrays["restarts"][:] = 0
        self.spec, self.horizon, self._rng = spec, horizon, np.random.default_rng(5)
        spec.action_space.seed(5)
        self.batch: EnvBatch = make_batch(BatchConfig(env, 3, terminal_frames=True, **config), self.arrays, first_env=2)
        self.batch.start()

    def rollout(self) -> dict[str, Array]:
        arrays = self.arrays
        for name in ("observation", "reset", "age"):
            arrays[name][0] = arrays[name][self.horizon]
        self.batch.begin()
        space: Any = self.spec.action_space
        if isinstance(space, gymnasium.spaces.Box):
            arrays["action"][:] = self._rng.normal(size=arrays["action"].shape)
        else:
            arrays["action"][:] = self._rng.integers(getattr(space, "nvec", 2), size=arrays["action"].shape)
        for t in range(self.horizon):
            if self.spec.mask_size:
                arrays["action"][t] = [random_action(row, self.spec) for row in arrays["observation"][t]]
            self.batch.step(t)
        found = {name: array.copy() for name, array in arrays.items()}
        self.batch.pause()
        ended = found["terminated"] | found["truncated"]
        found["final_observation"][~ended] = 0
        found["game_score"][found["game_length"] == 0] = 0
        return found


@pytest.mark.parametrize("mode", MODES[1:])
@pytest.mark.parametrize(
    ("toy", "options"),
    [
        ("Drawn", {"lengths": [3, -4, 2, -1, 7]}),
        ("EndsTwice", {"lengths": [3, -4]}),
        ("Nested", {"lengths": [2, -3]}),
        ("Worded", {"lengths": [2, -3]}),
        ("Picture", {"lengths": [2, -3]}),
        ("DiscreteObservation", {"start": 4, "action_start": 2, "lengths": [2, -3]}),
        ("BoxAction", {"lengths": [2, -3]}),
        ("Float64", {"lengths": [2, -3]}),
        ("Machine", {"lengths": [2, -3]}),
        ("Masked", {"says_last": True}),
        ("Masked", {"sources": ["observation", "info"], "seen": "picture"}),
        ("Masked", {"sources": ["observation"], "seen": "flags", "says_last": True}),
        ("Masked", {"sources": ["method"], "start": 5, "seen": "number"}),
        ("Masked", {"nvec": [2, 8, 3], "as_parts": True}),
    ],
)
def test_rows_are_those_of_single_environments(toy: str, options: dict[str, Any], mode: str) -> None:
    """A vector environment fills every array exactly as single environments do, for every kind of space."""
    single, vector = (
        EnvConfig(f"{MASKED if toy == 'Masked' else TOYS}:{toy}", options=options),
        of(toy=toy, mode=mode, **options),
    )
    single, vector, spec = with_masks(single), with_masks(vector), GymSimulator(with_masks(single), SEED).spec
    one_by_one, batch = Driver(spec, single), Driver(VectorSimulator(vector, [SEED]).spec, vector)
    assert isinstance(one_by_one.batch, BatchSimulator) and isinstance(batch.batch, VectorBatch)
    for _ in range(3):
        expected, found = one_by_one.rollout(), batch.rollout()
        assert expected["game_length"].any()
        for name in expected:
            assert np.array_equal(found[name], expected[name]), name


def test_a_step_that_only_resets_is_no_sample() -> None:
    """A reset step of NEXT_STEP is not a valid sample, and counts for no game, reward or end. The rows are worked out
    by hand."""
    env = of("faulty", how="ends_at_resets", lengths=[2, -1])
    driver = Driver(GymSimulator(EnvConfig(f"{TOYS}:Counting"), SEED).spec, env, num_envs=1, horizon=5)
    rows = [
        # game and step of each row; which steps are valid, terminated, truncated; rows that begin a game; ages
        ("00 01 02 10 11 20", "xx.x.", ".T...", "...t.", "x..x.x", [0, 1, 0, 0, 0, 0]),
        ("20 21 22 30 31 40", "xx.x.", ".T...", "...t.", "x..x.x", [0, 1, 0, 0, 0, 0]),
    ]
    for observed, valid, terminated, truncated, reset, age in rows:
        found = driver.rollout()
        assert found["observation"][:, 0].tolist() == [[int(game), int(step)] for game, step in observed.split()]
        for name, marks in [("valid", valid), ("terminated", terminated), ("truncated", truncated), ("reset", reset)]:
            assert found[name][:, 0].tolist() == [mark != "." for mark in marks], name
        assert found["age"][:, 0].tolist() == age
        assert found["game_length"][:, 0].tolist() == [0, 2, 0, 1, 0]
        actions = found["action"][:, 0]
        assert found["reward"][:, 0].tolist() == [10 * actions[0] + 1, 10 * actions[1] + 2, 0, 10 * actions[3] + 1, 0]
        assert found["game_score"][[1, 3], 0].tolist() == [10 * actions[:2].sum() + 3, 10 * actions[3] + 1]
        assert np.array_equal(found["final_observation"][[1, 3], 0], found["observation"][[2, 4], 0])


@pytest.mark.parametrize("mode", MODES)
def test_only_allowed_actions_are_taken(mode: str) -> None:
    """Each action is allowed by its own environment's mask, even after a reset step; otherwise the toy would raise."""
    env = with_masks(of(toy="Masked", nvec=[3, 2, 17], mode=mode))
    driver = Driver(VectorSimulator(env, [SEED]).spec, env, decorrelation_steps=30)
    games = sum(int((driver.rollout()["game_length"] > 0).sum()) for _ in range(5))
    assert games > 9


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"wrong": [0] * 9}, ALLOWS_NOTHING),
        *(({"wrong": [0] * 9, "wrong_start": True, "mode": mode}, ALLOWS_NOTHING) for mode in MODES),
        ({"wrong": [1] * 8}, r"an action mask of 3 .* has shape \(8,\), but Discrete\(9\) takes shape \(9,\)"),
    ],
)
def test_wrong_masks_are_one_line(options: dict[str, Any], words: str) -> None:
    """A wrong mask, even at the start of a game, ends the run in one line."""
    env = with_masks(of(toy="Masked", sources=["method"], **options))
    driver = Driver(VectorSimulator(env, [SEED]).spec, env)
    with pytest.raises(RunError, match=f"environments 2 to 4 .* failed .*: {words}$"):
        driver.rollout()


@pytest.mark.parametrize("mode", MODES)
def test_random_starts(mode: str) -> None:
    """Random starts are equal in batches of any size, and count for no game's score."""
    env = of(lengths=[4, -3], seeded=True, mode=mode)
    spec = VectorSimulator(env, [SEED]).spec
    whole, part = (Driver(spec, env, num_envs=num_envs, horizon=4, decorrelation_steps=9) for num_envs in (3, 2))
    before = [driver.rollout() for driver in (whole, part)]
    # The nine steps hold games of 4 and 3 steps and, in NextStep, a reset step after each.
    assert before[0]["observation"][0, :, :2].tolist() == [[2, 0 if mode == "NextStep" else 2]] * 3
    assert len(np.unique(before[0]["observation"][0, :, 2])) == 3
    for name in ("observation", "reset", "valid", "age"):
        found, expected = (rollout[name][0] for rollout in reversed(before))
        assert np.array_equal(found, expected[:2]), name
    lengths = [length for _ in range(3) for length in whole.rollout()["game_length"][:, 0] if length]
    assert not before[0]["game_length"].any() and lengths[:2] == [3, 4]


@pytest.mark.parametrize("name", ["final_obs", "final_observation"])
def test_one_seed_and_last_observations_without_a_mask(name: str) -> None:
    """An environment may take one seed for all, and give last observations under either name without a mask."""
    env = of("OneSeed", name=name)
    spec = VectorSimulator(env, [SEED]).spec
    assert "one seed for all of a worker's" in spec.vector
    found = Driver(spec, env, num_envs=2, horizon=4).rollout()
    assert found["observation"][:, 0, 0].tolist() == [0, 1, 2, 0, 1] and found["truncated"][2].all()
    assert found["final_observation"][2].tolist() == [[3], [3]]
    single = make_env(env.env_id, name=name)
    first = single.reset()[0]
    assert [first[0], *(single.step(0)[0][0] for _ in range(3)), single.reset()[0][0]] == [0, 1, 2, 3, 0]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("how", "mode", "words"),
    [
        ("fewer", "NextStep", ["observation of 3 environments has shape (2, 2)", "(3, 2)"]),
        ("flat", "NextStep", ["has shape (3,)", "(3, 2)"]),
        ("text", "NextStep", ["is of type <U32", "float32"]),
        ("nan", "NextStep", ["environment 0 of 3 at step 2 is not finite"]),
        ("reward_nan", "NextStep", ["reward of environment 0 of 3 at step 2 is not finite"]),
        ("huge", "NextStep", ["observation of environment 0 of 3", "step 2", "is 1e+300", "float32", "3.403e+38"]),
        ("reward_huge", "NextStep", ["reward of environment 0 of 3", "step 2", "is -1e+39", "float32", "3.403e+38"]),
        ("one_reward", "NextStep", ["reward is of shape ()", "(3,)"]),
        ("few_flags", "NextStep", ["terminated is of shape (1,)", "(3,)"]),
        ("no_final", "SameStep", ["final_obs", "SAME_STEP"]),
        ("resets_itself", "Disabled", ["resets in the step that ends a game", "DISABLED"]),
        ("resets_itself", "NextStep", ["resets in the step that ends a game", "NEXT_STEP"]),
        ("ignores_mask", "Disabled", ["reset_mask", "other environments"]),
    ],
)
def test_broken_rules(how: str, mode: str, words: list[str]) -> None:
    """A batch that does not fit its declaration ends the run in one line that names its environments."""
    env = of("faulty", how=how, mode=mode)
    driver = Driver(VectorSimulator(env, [SEED]).spec, env)
    if how == "ignores_mask":
        driver.batch._envs._envs.unwrapped.envs[1].steps = 1  # type: ignore[attr-defined]  # else all end at once
    with pytest.raises(RunError) as raised:
        driver.rollout()
    message = str(raised.value)
    assert all(word in message for word in ["environments 2 to 4 (run seed 3", *words]), message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("env", "words"),
    [
        (of("faulty", how="one_more"), ["4 environments for num_envs=3"]),
        (of("faulty", how="no_vector"), ["takes num_envs, but returned an object of type Counting"]),
        (of("faulty", how="no_mode"), ["autoreset_mode", "None", "NEXT_STEP, SAME_STEP, DISABLED"]),
        (EnvConfig(f"{VECTORS}:make", wrappers=("gymnasium.wrappers:FlattenObservation",)), ["--wrappers", "factory"]),
        (EnvConfig("vector:Pendulum-v1"), ["no vector entry point for Pendulum-v1", "--env Pendulum-v1"]),
        (EnvConfig("vector:CartPol-v1"), ["mean CartPole-v1"]),
        (EnvConfig("vector:CartPole-v1", options={"gravty": 3}), ["CartPole-v1", "gravty"]),
        (EnvConfig("envpool:CartPole-v1"), ["needs EnvPool", 'pip install "accel-rl[envpool]"']),
    ],
)
def test_refused(env: EnvConfig, words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that cannot be stepped is refused in one line that says why."""
    importing = builtins.__import__

    def without_envpool(name: str, *arguments: Any, **options: Any) -> Any:
        if name == "envpool":
            raise ImportError("no module named envpool")
        return importing(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without_envpool)
    with pytest.raises(UsageError) as raised:
        VectorSimulator(env, [SEED] * 3)
    assert all(word in str(raised.value) for word in words) and "\n" not in str(raised.value), raised.value


def test_wait_and_other_spaces_are_refused() -> None:
    """Batches refuse reset_mode=wait, and observations of another shape than the run's."""
    spec = VectorSimulator(of(), [SEED]).spec
    with pytest.raises(UsageError, match=r"reset_mode=wait .* use immediate"):
        Driver(spec, of(), reset_mode="wait")
    with pytest.raises(RunError, match=r"environments 2 to 4 .*\(\(3,\), .* but \(\(2,\), "):
        Driver(spec, of(seeded=True))


def test_an_error_replaces_all_environments_of_the_batch() -> None:
    """An error replaces all environments of the batch, counts as a restart of each, and invalidates the lost
    samples."""
    env = of("faulty", how="raises")
    driver = Driver(VectorSimulator(env, [SEED]).spec, env, horizon=4, restart_on_error=True)
    for count in (1, 2):
        found = driver.rollout()
        assert found["valid"].all(1).tolist() == [True, False, False, False] == found["valid"].any(1).tolist()
        assert found["restarts"].tolist() == [count] * 3
        assert found["observation"][:, 0].tolist() == [[0, 0]] + [[0, 1]] * 4 and found["reset"][0].all()


def test_a_resumed_batch_plays_other_games() -> None:
    """A batch, whose state cannot be saved, starts other games after a resume than at first."""
    env = of(seeded=True)  # [game, step, noise]
    drivers = [Driver(VectorSimulator(env, [SEED]).spec, env) for _ in range(2)]
    assert drivers[1].batch.set_state(drivers[1].batch.get_state()) == [2, 3, 4]
    first, resumed = (driver.rollout() for driver in drivers)
    assert resumed["reset"][0].all() and not (first["observation"][0, :, 2] == resumed["observation"][0, :, 2]).any()


@pytest.mark.parametrize("mode", MODES)
def test_one_of_a_batch_is_like_a_single_environment(mode: str) -> None:
    """A batch of one shows the same observations, rewards and ends as a single environment."""
    options: dict[str, Any] = {"lengths": [2, -3], "seeded": True}
    single = make_env(f"{TOYS}:Counting", **options)
    env = make_env(f"{VECTORS}:make", mode=mode, render_mode=None, **options)
    assert str(env) == "SyncVectorEnv(num_envs=1)"  # messages show this
    for seed in (7, None, None):
        assert env.reset(seed=seed)[0].tolist() == single.reset(seed=seed)[0].tolist()
        is_over = False
        while not is_over:
            found, expected = env.step(1), single.step(1)
            assert found[0].tolist() == expected[0].tolist() and found[1:4] == expected[1:4]
            is_over = found[2] or found[3]
    env.close()


def test_a_single_environment_of_a_vector_id_is_gymnasiums() -> None:
    env = make_env("vector:CartPole-v1", render_mode="rgb_array")
    assert isinstance(env.unwrapped, type(gymnasium.make("CartPole-v1").unwrapped))


def test_a_batch_that_a_module_registers() -> None:
    """`vector:module:id` imports the module, and gives batches as well as a single environment."""
    name = "vector:tests.helpers.registered:RegisteredBatch-v0"
    assert VectorSimulator(EnvConfig(name), [SEED] * 3).spec.row_shape == make_env(name).observation_space.shape
