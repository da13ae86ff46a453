"""Tests of the ring against a replay that assembles transitions step by step, over streams of random episodes."""

from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("hypothesis")

from hypothesis import given, settings
from hypothesis import strategies as st

from accel_rl.errors import UsageError
from accel_rl.replay import Replay
from accel_rl.replay.transitions import DrawnRows
from tests.helpers.streams import DISCOUNT, Env, make_spec, rollout_of, streams


class ListReplay:
    """Assembles transitions by going through the steps one by one."""

    def __init__(self, envs: list[Env], n_step: int):
        self.envs, self.n_step = envs, n_step

    def sample(self, env: int, row: int) -> dict[str, Any]:
        stream, return_, valid = self.envs[env], 0.0, True
        for k in range(self.n_step):
            step = stream.steps[row + k]
            return_ += DISCOUNT**k * step["reward"]
            valid &= step["valid"]
            after = stream.seen(row + k + 1)
            bootstrap = DISCOUNT ** (k + 1)
            if step["terminated"]:
                bootstrap = 0.0
                break
            if step["truncated"]:
                after = stream.seen(row + k + 1, step["final"], stream.ages[row + k] + 1)
                break
        return {
            "observation": stream.seen(row),
            "action": stream.steps[row]["action"],
            "return_": return_,
            "next_observation": after,
            "bootstrap": bootstrap,
            "valid": valid,
        }


def assert_all_equal(replay: Replay, reference: ListReplay, shift: int) -> None:
    """Compares every step that can be drawn; shift: the ring's number of the streams' first row."""
    ring = replay.ring
    for env in range(ring.num_envs):
        rows = range(ring.first_row, ring.first_row + ring.num_steps)
        index = env * ring.num_rows + torch.tensor([row % ring.num_rows for row in rows], dtype=torch.int64)
        batch = replay.batch(index, torch.device("cpu"))
        samples = [reference.sample(env, row - shift) for row in rows]
        for name in samples[0] if samples else ():
            # Where nothing is bootstrapped, the next observation has no effect.
            compared = batch.bootstrap.numpy() != 0 if name == "next_observation" else slice(None)
            found, expected = (
                getattr(batch, name).numpy()[compared],
                np.stack([sample[name] for sample in samples])[compared],
            )
            np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6, err_msg=f"{name} of environment {env}")


@settings(max_examples=20, deadline=None)
@given(
    frame_stack=st.sampled_from([0, 1, 2, 4]),
    n_step=st.integers(1, 5),
    num_envs=st.integers(1, 3),
    horizon=st.integers(1, 7),
    steps_kept=st.integers(8, 16),
    longest=st.integers(1, 12),
    prioritized=st.booleans(),
    seed=st.integers(0, 2**20),
)
def test_every_transition_is_that_of_a_list(
    frame_stack: int,
    n_step: int,
    num_envs: int,
    horizon: int,
    steps_kept: int,
    longest: int,
    prioritized: bool,
    seed: int,
) -> None:
    """Every drawable transition equals that of a list of steps, several times around the ring."""
    spec = make_spec(frame_stack)
    num_rollouts = 4 * steps_kept // horizon  # several times around
    envs = streams(spec, num_envs, num_rollouts * horizon, longest, seed)
    replay = Replay(
        spec, num_envs, steps_kept * num_envs, n_step, DISCOUNT, alpha=1.0 if prioritized else None, new_priority=2.0
    )
    reference, shift = ListReplay(envs, n_step), max(frame_stack - 1, 0)
    for k in range(num_rollouts):
        replay.append(rollout_of(envs, k * horizon, horizon, spec))
        assert replay.num_appended == (k + 1) * horizon * num_envs
        assert_all_equal(replay, reference, shift)
        if replay.priorities:
            ring = replay.ring
            drawable = ring.index_of(ring.first_row, ring.first_row + ring.num_steps)
            expected = torch.zeros(num_envs * ring.num_rows, dtype=torch.float64)
            expected[drawable] = 2.0 * ring.return_valid.flatten()[drawable].double()
            assert torch.equal(replay.priorities.tree[:], expected)
    assert replay.num_samples == steps_kept * num_envs


def test_long_episodes_keep_their_frames() -> None:
    """The last frames of episodes longer than 255 steps have their whole stack."""
    spec = make_spec(4)
    envs = streams(spec, 4, 0, 1, seed=2)
    for env, length in zip(envs, (254, 255, 256, 257), strict=True):
        env.left = length
        for _ in range(270):
            env.step()
        env.steps[length - 1] |= {"terminated": False, "truncated": True}
    replay = Replay(spec, 4, 4 * 300, 1, DISCOUNT)
    for k in range(27):
        replay.append(rollout_of(envs, k * 10, 10, spec))
    assert_all_equal(replay, ListReplay(envs, 1), shift=3)


def test_uniform_draws_are_uniform() -> None:
    """Uniform draws take each drawable step equally often, and only from the given rows."""
    spec = make_spec(2)
    envs = streams(spec, 3, 60, 9, seed=1)
    replay = Replay(spec, 3, 36, 2, DISCOUNT)
    for k in range(12):
        replay.append(rollout_of(envs, k * 5, 5, spec))
    index, probability = replay.draw(36_000)
    assert probability is None
    drawable = replay.ring.index_of(replay.ring.first_row, replay.ring.first_row + replay.ring.num_steps)
    counts = torch.bincount(index, minlength=3 * replay.ring.num_rows)
    assert counts[drawable].sum() == 36_000 and len(drawable) == 36
    chi_square = ((counts[drawable] - 1000) ** 2 / 1000).sum()
    assert chi_square < 73  # 35 degrees of freedom: exceeded once in 5,000 seeds
    # Only the given rows are drawn: a CUDA graph captured while the replay was filling gets other rows later.
    rows = DrawnRows(replay.ring.first_row, 7)
    index, _ = replay.choose(replay.draw_noise(1000), rows)
    assert set(index.tolist()) == set(replay.ring.index_of(rows.first_row, rows.first_row + 7).tolist())


@pytest.mark.parametrize("steps_before", [5, 7, 41])  # 5: both episodes continue at the newest row
def test_a_restored_replay_continues_identically(steps_before: int) -> None:
    """A restored replay continues identically, before it is full and after."""
    spec = make_spec(4)
    envs = streams(spec, 2, 100, 9, seed=3)

    def make() -> Replay:
        return Replay(spec, 2, 40, 3, DISCOUNT, alpha=0.6)

    replay = make()
    for k in range(steps_before):
        replay.append(rollout_of(envs, k, 1, spec))
    replay.update_priorities(*(torch.tensor([3, 5]), torch.tensor([0.3, 4.0])))
    other = make()
    other.load_state_dict(replay.state_dict())
    for k in range(steps_before, steps_before + 30):
        assert (other.ring.rows, other.num_appended) == (replay.ring.rows, replay.num_appended)
        drawn, again = replay.draw(16), other.draw(16)
        assert torch.equal(drawn[0], again[0])
        every = replay.ring.index_of(replay.ring.first_row, replay.ring.first_row + replay.ring.num_steps)
        batches = [each.batch(every, torch.device("cpu")) for each in (replay, other)]
        for name in batches[0]._fields[:-1]:  # without importance weights
            assert torch.equal(getattr(batches[0], name), getattr(batches[1], name)), name
        for each in (replay, other):
            each.append(rollout_of(envs, k, 1, spec))


def test_the_last_steps_of_a_replaced_environment_are_invalid() -> None:
    """The last n steps of a replaced environment are invalid."""
    spec = make_spec(0)
    envs = streams(spec, 2, 12, longest=100, seed=5)
    for env in envs:
        for step in env.steps:
            step["valid"] = True
    replay = Replay(spec, 2, 20, 3, DISCOUNT, alpha=1.0, new_priority=1.0)
    replay.append(rollout_of(envs, 0, 6, spec))
    envs[1].resets[6] = True
    replay.append(rollout_of(envs, 6, 6, spec))
    batch = replay.batch(replay.ring.index_of(0, 9), torch.device("cpu"))
    valid = batch.valid.view(2, 9)
    assert valid[0].all()
    assert valid[1].tolist() == [True, True, True, False, False, False, True, True, True]
    assert replay.priorities is not None
    assert replay.priorities.tree[replay.ring.index_of(0, 9)].tolist() == batch.valid.double().tolist()


def test_rollouts_longer_than_the_ring_are_refused() -> None:
    """A rollout longer than the ring is refused."""
    spec = make_spec(0)
    envs = streams(spec, 1, 30, 9, seed=0)
    with pytest.raises(ValueError, match="rollouts of 12 steps do not fit"):
        Replay(spec, 1, 10, 1, DISCOUNT).append(rollout_of(envs, 0, 12, spec))


@pytest.mark.parametrize(("num_envs", "size"), [(2, 30), (2, 50), (4, 40)])
def test_a_replay_of_another_size_is_refused(num_envs: int, size: int) -> None:
    """The state of a replay of another size is refused."""
    spec = make_spec(0)
    saved, other = Replay(spec, 2, 40), Replay(spec, num_envs, size)
    saved.append(rollout_of(streams(spec, 2, 6, 9, seed=0), 0, 5, spec))
    message = f"has 21 rows of each of 2 environments, but this one has {size // num_envs + 1} of each of {num_envs}"
    with pytest.raises(UsageError, match=message):
        other.load_state_dict(saved.state_dict())
