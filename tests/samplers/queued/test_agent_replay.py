"""Tests of an agent's replay against lists of steps and the learner's replay and targets, over every episode edge."""

import pickle
from collections import Counter
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

pytest.importorskip("hypothesis")

from hypothesis import given, settings
from hypothesis import strategies as st

from accel_rl.algos.auxiliary_tasks import pixel_change, replayed_return, reward_class
from accel_rl.envs.spec import Array, EnvSpec
from accel_rl.replay import SequenceReplay
from accel_rl.rollout import TerminalFrames
from accel_rl.samplers.queued.agent_replay import AgentReplay, AgentReplayConfig, last_observations
from accel_rl.samplers.queued.agent_replay import pixel_change as agent_pixel_change
from tests.helpers.agent_replays import AgentEnv, append, make_slots
from tests.helpers.eventful import ListReplay
from tests.helpers.streams import make_spec, rollout_of

CELL = 4
TASKS = ("pixel_control", "value_replay", "reward_prediction")
STACKS = EnvSpec(gymnasium.spaces.Box(0, 255, (18, 21), np.uint8), gymnasium.spaces.Discrete(5), 3)
SINGLE = replace(STACKS, frame_stack=1)
COLOUR = EnvSpec(gymnasium.spaces.Box(0, 255, (3, 16, 17), np.uint8), gymnasium.spaces.Discrete(5))
VECTORS = make_spec(0)
CONTINUOUS = replace(VECTORS, action_space=gymnasium.spaces.Box(-1, 1, (2,)))
SPECS = {"stacks": STACKS, "single": SINGLE, "colour": COLOUR, "vectors": VECTORS, "continuous": CONTINUOUS}


def config_of(spec: EnvSpec, size: int, length: int, **changes: Any) -> AgentReplayConfig:
    tasks = TASKS if spec.is_pixels else TASKS[1:]
    return replace(AgentReplayConfig(size, length, tasks, CELL, pixel_control_discount=0.8, discount=0.9), **changes)


def make_replay(config: AgentReplayConfig, spec: EnvSpec, seed: int = 0) -> AgentReplay:
    return AgentReplay(spec, config, np.random.default_rng(seed))


class Drawer:
    """Draws into one slot, and predicts a value that depends on the observation."""

    def __init__(self, replay: AgentReplay):
        self.replay, self.spec = replay, replay.spec
        self.slots = make_slots(replay.spec, replay.config)
        self.slot = {name: array[0, ...] for name, array in self.slots.items()}
        self.asked: list[str] = []

    def draw(self) -> dict[str, Array]:
        self.asked.clear()
        self.replay.draw(self.slot, self.predict)
        return self.slot

    def predict(self, task: str) -> None:
        self.asked.append(task)
        (seen,) = last_observations(self.spec, self.slots, task, [0])
        assert seen.shape == self.spec.observation_shape
        self.slot[f"{task}/bootstrap"][...] = value_of(seen, self.slot[f"{task}/bootstrap"].shape)


def value_of(seen: Array, cells: tuple[int, ...]) -> Array:
    """Returns a value of an observation, different in each cell."""
    return seen.astype(np.float32).ravel()[:: 1 + seen.size // 50].mean() / 100 + np.arange(
        np.prod(cells, dtype=int), dtype=np.float32
    ).reshape(cells)


def row_of(shown: Array, rows: list[Any]) -> int:
    """Returns the number of a row that occurs once."""
    (found,) = [t for t, row in enumerate(rows) if np.array_equal(np.asarray(row, shown.dtype), shown)]
    return found


def check_sequence(task: str, drawer: Drawer, env: AgentEnv, oracle: SequenceReplay) -> int:
    """Compares a drawn sequence with the learner's from the same start, targets included; returns the start."""
    slot, spec, config = drawer.slot, drawer.spec, drawer.replay.config
    history, n = spec.history, int(slot[f"{task}/num_steps"])
    rows = slot[f"{task}/rows"]
    start = row_of(rows[history], env.rows)
    index = (start + oracle.ring.history) % oracle.ring.num_rows
    batch = oracle.gather_sequences(torch.tensor([index]), torch.tensor([True]))
    assert batch.valid.sum() == n
    assert np.array_equal(rows[: history + n + 1], batch.frames[: history + n + 1, 0].numpy())
    is_terminated = bool(batch.terminated)
    assert drawer.asked.count(task) == (not is_terminated)
    cells = slot[f"{task}/bootstrap"].shape
    if is_terminated:
        assert not slot[f"{task}/bootstrap"].any()
    last_value = torch.from_numpy(np.asarray(value_of(batch.observations()[n, 0].numpy(), cells))).unsqueeze(0)
    if task == "pixel_control":
        assert np.array_equal(slot[f"{task}/action"][:n], batch.action[:n, 0].numpy())
        reward, discount = pixel_change(batch.rows, CELL), config.pixel_control_discount
    else:
        reward, discount = batch.reward, config.discount
    expected = replayed_return(reward, batch, last_value, discount)[:n, 0]
    np.testing.assert_allclose(slot[f"{task}/target"][:n], expected.numpy(), rtol=1e-5, atol=1e-6)
    return start


def check_window(slot: dict[str, Array], env: AgentEnv) -> int:
    """Compares a window with three states of the list; returns the row of the third."""
    spec, rows = env.spec, slot["reward_prediction/rows"]
    history = spec.history
    last = row_of(rows[-1], env.rows)
    for k in range(3):
        seen = rows[k : k + history + 1] if spec.frame_stack else rows[k]
        assert np.array_equal(seen, np.asarray(env.seen(last - 2 + k), seen.dtype))
    reward = torch.tensor(env.steps[last]["reward"])
    assert slot["reward_prediction/reward_class"] == reward_class(reward)
    return last


def make_oracle(env: AgentEnv, size: int, length: int) -> SequenceReplay:
    """Returns the learner's replay of the same steps."""
    oracle = SequenceReplay(env.spec, 1, size, length)
    for first in range(0, len(env.steps), size):
        oracle.append(rollout_with_finals(env, first, min(size, len(env.steps) - first)))
    return oracle


def rollout_with_finals(env: AgentEnv, first: int, horizon: int) -> Any:
    rollout = rollout_of([env], first, horizon, env.spec)
    steps = rollout.terminated[:, 0].nonzero().squeeze(1)
    frames = [env.steps[first + int(t)]["final"] for t in steps]
    frame = torch.from_numpy(np.array(frames, env.spec.row_dtype).reshape(-1, *env.spec.row_shape))
    rows = rollout.observation_rows.to(frame.dtype)
    finals = rollout.final_observation.to(frame.dtype)
    return replace(
        rollout,
        observation_rows=rows,
        final_observation=finals,
        terminal_frames=TerminalFrames(steps, torch.zeros_like(steps), frame),
    )


@settings(max_examples=40, deadline=None)
@given(
    kind=st.sampled_from([*SPECS]),
    size=st.integers(8, 20),
    length=st.integers(1, 8),
    num_steps=st.integers(2, 60),
    longest=st.integers(2, 12),
    largest_reward=st.integers(0, 2),
    seed=st.integers(0, 2**20),
)
def test_draws_are_those_of_the_learners_replay(
    kind: str, size: int, length: int, num_steps: int, longest: int, largest_reward: int, seed: int
) -> None:
    """Sequences, windows and targets of an agent's replay equal those of a list of steps and the learner's replay."""
    env = AgentEnv(np.random.default_rng(seed), SPECS[kind], longest, largest_reward=largest_reward)
    env.play(num_steps)
    config = config_of(env.spec, size, length, waits=False)
    replay = make_replay(config, env.spec, seed)
    append(replay, env, 0, num_steps)
    past = env.without_last_step()
    reference, oracle = ListReplay(past, size, length), make_oracle(past, size, length)
    starts, windows = reference.starts(), [reference.windows(False), reference.windows(True)]
    assert replay.is_full == (num_steps > size)
    drawer = Drawer(replay)
    for _ in range(8):
        slot = drawer.draw()
        for task in [task for task in config.tasks if task != "reward_prediction"]:
            assert (slot[f"{task}/num_steps"] > 0) == bool(starts)
            if starts:
                assert check_sequence(task, drawer, past, oracle) in starts
        assert slot["reward_prediction/num_steps"] == bool(windows[0] or windows[1])
        if windows[0] or windows[1]:
            assert check_window(slot, past) in windows[0] + windows[1]


def test_draws_are_uniform_and_windows_are_balanced() -> None:
    """Starts are drawn uniformly; windows are drawn half and half by zero and nonzero reward."""
    env = AgentEnv(np.random.default_rng(5), STACKS, 15)
    env.play(70)
    replay = make_replay(config_of(STACKS, 30, 6, tasks=TASKS[1:]), STACKS)
    append(replay, env, 0, 70)
    reference = ListReplay(env.without_last_step(), 30, 6)
    drawer, starts, windows = Drawer(replay), Counter[int](), Counter[int]()
    row_numbers = {np.asarray(row, np.uint8).tobytes(): t for t, row in enumerate(env.rows)}
    num_draws = 6000
    for _ in range(num_draws):
        slot = drawer.draw()
        starts[row_numbers[slot["value_replay/rows"][2].tobytes()]] += 1
        windows[row_numbers[slot["reward_prediction/rows"][-1].tobytes()]] += 1
    zero, non_zero = reference.windows(False), reference.windows(True)
    assert len(zero) >= 3 and len(non_zero) >= 3 and len(zero) != len(non_zero)
    for counts, expected in (
        (starts, dict.fromkeys(reference.starts(), 1 / len(reference.starts()))),
        (windows, dict.fromkeys(zero, 0.5 / len(zero)) | dict.fromkeys(non_zero, 0.5 / len(non_zero))),
    ):
        assert counts.keys() == expected.keys()
        for row, share in expected.items():
            deviation = (num_draws * share * (1 - share)) ** 0.5
            assert abs(counts[row] - num_draws * share) < 5 * deviation


def test_a_replay_that_is_not_part_of_a_checkpoint_begins_in_the_middle_of_an_episode() -> None:
    """A replay that begins in mid-episode draws only rows whose whole stack it holds."""
    env = AgentEnv(np.random.default_rng(1), STACKS, 10**9)
    env.play(30)
    replay = make_replay(config_of(STACKS, 8, 3, waits=False), STACKS)
    append(replay, env, 10, 16)
    drawer = Drawer(replay)
    for _ in range(30):
        slot = drawer.draw()
        assert row_of(slot["value_replay/rows"][2], env.rows) == 12  # the first with its stack, and three rows after it
        assert row_of(slot["reward_prediction/rows"][-1], env.rows) == 14


@pytest.mark.parametrize("num_steps", [0, 5, 21, 60])
def test_a_state_continues_the_same_draws(num_steps: int) -> None:
    """A restored replay draws the same samples, and later steps do not change a saved state."""
    env = AgentEnv(np.random.default_rng(2), STACKS, 6)
    env.play(num_steps + 12)
    config = config_of(STACKS, 20, 4, waits=False)
    replays = [make_replay(config, STACKS, seed) for seed in (0, 1)]
    append(replays[0], env, 0, num_steps)
    state = replays[0].get_state()
    saved = pickle.dumps(state)
    append(replays[0], env, num_steps, num_steps + 12)
    assert pickle.dumps(state) == saved
    replays[0].set_state(pickle.loads(saved))
    replays[1].set_state(pickle.loads(saved))
    for replay in replays:
        append(replay, env, num_steps, num_steps + 12)
    first, second = (Drawer(replay) for replay in replays)
    for _ in range(20):
        slots = first.draw(), second.draw()
        for name in slots[0]:
            assert np.array_equal(slots[0][name], slots[1][name]), name


@pytest.mark.parametrize("cell", [2, 4, 20])
@pytest.mark.parametrize("shape", [(84, 84), (104, 80), (3, 85, 90)])
def test_pixel_change_is_the_learners(shape: tuple[int, ...], cell: int) -> None:
    """The agent's pixel change equals the learner's."""
    rows = np.random.default_rng(0).integers(256, size=(4, *shape), dtype=np.uint8)
    expected = pixel_change(torch.from_numpy(rows).unsqueeze(1), cell)[:, 0].numpy()
    found = agent_pixel_change(rows, cell)
    assert found.dtype == np.float32 and found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    black_and_white = np.stack([np.zeros(shape, np.uint8), np.full(shape, 255, np.uint8)])
    assert (agent_pixel_change(black_and_white, cell) == 1).all()
