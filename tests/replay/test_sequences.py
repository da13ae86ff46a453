"""Tests of the sequence replay against lists of steps, over streams with every kind of episode edge."""

import random
from collections import Counter
from copy import deepcopy
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from accel_rl.envs.spec import EnvSpec
from accel_rl.errors import UsageError
from accel_rl.replay import SequenceBatch, SequenceReplay, WindowBatch, sequence_bytes
from accel_rl.replay.transitions import DrawnRows
from accel_rl.updates import Update
from accel_rl.updates.optimizers import SGD
from accel_rl.updates.trees import leaves, map_leaves
from tests.helpers.eventful import ListReplay, make_envs, play
from tests.helpers.streams import make_spec

CPU = torch.device("cpu")


def assert_sequences_equal(batch: SequenceBatch, references: list[tuple[ListReplay, int]]) -> None:
    """Compares each sequence of a batch with a list's sequence from a row, up to the row after its last step."""
    batch_and_stacks = {**batch._asdict(), "frames": batch.rows, "observation": batch.observations()}
    found = {name: value.numpy() for name, value in batch_and_stacks.items() if value is not None}
    for column, (reference, start) in enumerate(references):
        for name, value in reference.sequence(start).items():
            expected = np.asarray(value, found[name].dtype)
            column_of = found[name][..., column] if name == "terminated" else found[name][: len(expected), column]
            assert np.array_equal(column_of, expected), f"{name} from row {start}"


def assert_windows_equal(batch: WindowBatch, references: list[tuple[ListReplay, int]]) -> None:
    for column, (reference, row) in enumerate(references):
        env = reference.env
        seen = np.stack([env.seen(each) for each in range(row - 2, row + 1)])
        assert np.array_equal(batch.observation[:, column].numpy(), seen), f"window of row {row}"
        assert batch.reward[column] == env.steps[row]["reward"]


def drawn(choose: Any, replay: SequenceReplay, counts: list[int], which: float) -> list[Counter]:
    """Draws with a grid of noise that should give each candidate of an environment once; returns the drawn rows."""
    ring = replay.ring
    rows: list[Counter] = [Counter() for _ in counts]
    for k in range(max(1, max(counts))):
        total = np.maximum(1, np.array(counts))
        noise = torch.from_numpy(np.stack([np.full(len(counts), which), (k % total + 0.5) / total], 1))
        index, found = choose(noise, ring.rows)
        assert found.tolist() == [count > 0 for count in counts]
        for env, count in enumerate(counts):
            assert index[env] // ring.num_rows == env, "an index within the environment, whether found or not"
            if k < count:
                slot = int(index[env]) % ring.num_rows
                rows[env][ring.first_row + (slot - ring.first_row) % ring.num_rows - ring.history] += 1
    return rows


def assert_draws_equal(replay: SequenceReplay, references: list[ListReplay]) -> None:
    """Compares the drawn rows and their counts with lists."""

    def check(choose: Any, candidates: list[list[int]], which: float) -> None:
        rows = drawn(choose, replay, [len(each) for each in candidates], which)
        assert rows == [Counter(each) for each in candidates]

    check(replay.choose_sequences, [reference.starts() for reference in references], 0.5)
    kinds = [(each.windows(has_reward=False), each.windows(has_reward=True)) for each in references]
    for below_half in (0.0, 0.49999):
        check(replay.choose_windows, [zero or non_zero for zero, non_zero in kinds], below_half)
    for other in (0.5, 0.99999):
        check(replay.choose_windows, [non_zero or zero for zero, non_zero in kinds], other)


def assert_all_equal(replay: SequenceReplay, references: list[ListReplay]) -> None:
    """Compares every sequence and every window that can be drawn."""
    ring = replay.ring

    def indices(rows: list[list[int]]) -> Tensor:
        flat = [env * ring.num_rows + (row + ring.history) % ring.num_rows for env, of in enumerate(rows) for row in of]
        return torch.tensor(flat, dtype=torch.int64)

    starts = [reference.starts() for reference in references]
    windows = [each.windows(False) + each.windows(True) for each in references]
    if any(starts):
        pairs = [(reference, row) for reference, rows in zip(references, starts, strict=True) for row in rows]
        index = indices(starts)
        assert_sequences_equal(replay.gather_sequences(index, torch.ones_like(index, dtype=torch.bool)), pairs)
    if any(windows):
        pairs = [(reference, row) for reference, rows in zip(references, windows, strict=True) for row in rows]
        index = indices(windows)
        assert_windows_equal(replay.gather_windows(index, torch.ones_like(index, dtype=torch.bool)), pairs)


def spec_of(frame_stack: int) -> EnvSpec:
    """Returns the spec of frames with discrete actions or, for 0, of vectors with continuous ones."""
    spec = make_spec(frame_stack)
    return spec if frame_stack else replace(spec, action_space=gymnasium.spaces.Box(-1, 1, (2,)))


@pytest.mark.parametrize("seed", range(20))
def test_every_sequence_and_window_is_that_of_a_list(seed: int) -> None:
    """Sequences and windows hold all frames of their episode's steps and no others. No step that is invalid or
    overwritten is drawn. The settings are random."""
    chance = random.Random(seed)
    frame_stack, num_envs = chance.choice([0, 1, 2, 4]), chance.randint(1, 3)
    size, length, longest = chance.randint(8, 16), chance.randint(1, 8), chance.randint(1, 12)
    waits, largest_reward = chance.random() < 0.5, chance.randint(0, 2)
    spec, rng = spec_of(frame_stack), np.random.default_rng(seed)
    envs = make_envs(spec, num_envs, longest, seed, waits=waits, largest_reward=largest_reward)
    replay = SequenceReplay(spec, num_envs, size, length)
    while len(envs[0].steps) < 3 * size:  # several times around
        replay.append(play(envs, int(rng.integers(1, 8)), spec))
        references = [ListReplay(env, size, length) for env in envs]
        num_steps = len(envs[0].steps)
        assert replay.is_full == (num_steps >= size)
        assert_all_equal(replay, references)
        if num_steps < 4 or num_steps >= 3 * size:
            assert_draws_equal(replay, references)


def test_noise_is_each_environments_own() -> None:
    """Each environment and choice has its own random number in [0, 1)."""
    replay = SequenceReplay(make_spec(2), 3, 60, 10)
    noise = torch.stack([replay.draw_noise() for _ in range(400)])
    assert noise.shape == (400, 3, 2) and noise.dtype == torch.float64
    assert noise.min() >= 0 and noise.max() < 1
    assert len(noise.unique()) == noise.numel()


def test_what_was_done_before_the_first_step_is_unknown() -> None:
    """A sequence from the replay's first step begins without previous action and reward."""
    spec = make_spec(0)
    envs = make_envs(spec, 3, 10**9, seed=1)
    lost, replay = play(envs, 5, spec), SequenceReplay(spec, 3, 20, 4)
    rollout = play(envs, 10, spec)
    assert lost.reset[0].all() and not rollout.reset[0].any()
    replay.append(rollout)
    batch = replay.gather_sequences(torch.arange(3) * replay.ring.num_rows, torch.ones(3, dtype=torch.bool))
    assert batch.is_first.tolist() == [[True] * 3, *[[False] * 3] * 4]
    assert not batch.previous_action[0].any() and not batch.previous_reward[0].any()
    assert torch.equal(batch.previous_action[1:], rollout.action[:4]) and batch.previous_action[1:].any()


def test_what_is_not_found_is_not_valid() -> None:
    """A sequence or window is invalid if its environment has none to draw."""
    spec = make_spec(4)
    envs = make_envs(spec, 3, 10**9, seed=1)
    replay = SequenceReplay(spec, 3, 20, 4)
    replay.append(play(envs, 20, spec))
    index, found = replay.choose_sequences(replay.draw_noise(), replay.ring.rows)
    assert found.all() and replay.gather_sequences(index, found).valid[0].all()
    some = torch.tensor([True, False, True])
    batch = replay.gather_sequences(index, some)
    assert batch.valid.any(0).tolist() == batch.is_last.any(0).tolist() == some.tolist()
    assert replay.gather_windows(index, some).valid.tolist() == some.tolist()


@pytest.mark.parametrize(("shape", "frame_stack"), [((84, 84), 4), ((3, 84, 84), 0)])
def test_memory(shape: tuple[int, ...], frame_stack: int) -> None:
    """The replay stores each frame once, and sequence_bytes counts its memory exactly."""
    box = gymnasium.spaces.Box(0, 255, shape, np.uint8)
    spec = EnvSpec(box, gymnasium.spaces.Discrete(6), frame_stack)
    replay = SequenceReplay(spec, 2, 2000, 20)
    tensors = {**vars(replay), **vars(replay.ring)}
    allocated = {name: value.nbytes for name, value in tensors.items() if isinstance(value, Tensor)}
    assert sum(allocated.values()) <= 1.05 * 2 * 2000 * np.prod(shape)
    final_frames, offsets = allocated.pop("final_frames"), allocated.pop("_offsets")
    assert sum(allocated.values()) == sequence_bytes(spec, 2, 2000)
    assert final_frames == np.prod(shape) and offsets == 16


@pytest.mark.parametrize("num_before", [2, 30])
def test_a_restored_replay_continues_identically(num_before: int) -> None:
    """A restored replay continues identically, before it is full and after."""
    spec = make_spec(4)
    envs = make_envs(spec, 2, 8, seed=5)
    replay, other = (SequenceReplay(spec, 2, 40, 6) for _ in range(2))
    for _ in range(num_before):
        replay.append(play(envs, 3, spec))
        replay.draw_noise()
    other.load_state_dict(deepcopy(replay.state_dict()))
    for _ in range(20):
        rollout = play(envs, 3, spec)
        batches = []
        for each in (replay, other):
            each.append(rollout)
            start = each.choose_sequences(each.draw_noise(), each.ring.rows)
            window = each.choose_windows(each.draw_noise(), each.ring.rows)
            batches.append((start, window, each.gather_sequences(*start), each.gather_windows(*window)))
        assert all(map(torch.equal, *(leaves(batch) for batch in batches)))


@pytest.mark.parametrize(("num_envs", "size"), [(2, 30), (4, 40)])
def test_a_replay_of_another_size_is_refused(num_envs: int, size: int) -> None:
    """The state of a replay of another size is refused."""
    spec = make_spec(4)
    other = SequenceReplay(spec, num_envs, size, 5)
    message = f"rows of each of 2 environments, but this one has \\d+ of each of {num_envs}; resume"
    with pytest.raises(UsageError, match=message):
        other.load_state_dict(SequenceReplay(spec, 2, 40, 5).state_dict())


def test_sequences_longer_than_the_replay_are_refused() -> None:
    """Sequences longer than the replay are refused."""
    with pytest.raises(UsageError, match="sequences of 21 steps cannot be drawn from a replay of 20 steps"):
        SequenceReplay(make_spec(0), 2, 20, 21)


@pytest.mark.gpu
@pytest.mark.parametrize("frame_stack", [pytest.param(0, marks=pytest.mark.slow), 4])
def test_graphs_draw_what_the_cpu_does(frame_stack: int) -> None:
    """CUDA graphs draw the same batches as the CPU, without waiting for the GPU."""
    device = torch.device("cuda:0")
    spec = spec_of(frame_stack)
    envs = make_envs(spec, 3, 5, seed=7)
    on_cpu, on_gpu = (SequenceReplay(spec, 3, 30, 4, device=each) for each in (CPU, device))
    update = Update(nn.Linear(1, 1).to(device), SGD())

    def draw(replay: SequenceReplay) -> Any:
        def batches(noise: Tensor, rows: DrawnRows) -> Any:
            start, window = replay.choose_sequences(noise, rows), replay.choose_windows(noise, rows)
            of_some = replay.gather_sequences(start[0][1:], start[1][1:])
            return start, window, of_some, replay.gather_windows(*window)

        return batches

    draw_here, draw_there, rooms = draw(on_cpu), draw(on_gpu), set()
    torch.use_deterministic_algorithms(True)
    try:
        for _ in range(18):
            rollout = play(envs, 4, spec)
            there = replace(map_leaves(lambda leaf: leaf.to(device), rollout), games=[], first_step=0)
            noise = on_cpu.draw_noise()
            noise_there = noise.to(device)
            on_cpu.append(rollout)
            expected = draw_here(noise, on_cpu.ring.rows)
            torch.cuda.set_sync_debug_mode("error")
            on_gpu.append(there)
            found = update.graphed(draw_there, noise_there, on_gpu.ring.rows, uses=on_gpu.replaceable)
            torch.cuda.set_sync_debug_mode("default")
            assert all(torch.equal(a.cpu(), b) for a, b in zip(leaves(found), leaves(expected), strict=True))
            rooms.add(len(on_gpu.ring.final_frames))
        observation = found[2].observations().cpu()
    finally:
        torch.cuda.set_sync_debug_mode("default")
        torch.use_deterministic_algorithms(False)
    assert torch.equal(observation, expected[2].observations())
    assert len(rooms) > 2, "the room for final frames grows"
    assert update._graphs and update._graphs.is_enabled and not update._graphs._not_capturable
    assert on_gpu.draw_noise().device == device
