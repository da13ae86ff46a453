"""The ring against a replay that keeps a list of whole transitions, over streams of random episodes."""

from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from accel_rl.envs.spec import EnvSpec
from accel_rl.replay import Replay
from accel_rl.samplers.rollout import Rollout

DISCOUNT = 0.9


def make_spec(frame_stack: int) -> EnvSpec:
    box = gymnasium.spaces.Box(0, 255, (2, 3), np.uint8) if frame_stack else gymnasium.spaces.Box(-1, 1, (3,))
    return EnvSpec(box, gymnasium.spaces.Discrete(5), frame_stack)


@dataclass
class Env:
    """One environment's whole stream: a row for everything that was seen, a step for everything that was done."""

    rng: np.random.Generator
    spec: EnvSpec
    longest: int
    rows: list[Any] = field(default_factory=list)
    ages: list[int] = field(default_factory=list)
    resets: list[bool] = field(default_factory=list)
    steps: list[dict[str, Any]] = field(default_factory=list)

    def frame(self) -> Any:
        if self.spec.frame_stack:
            return self.rng.integers(1, 256, self.spec.row_shape, np.uint8)
        return self.rng.random(self.spec.row_shape, np.float32)

    def start(self) -> None:
        self.rows.append(self.frame())
        self.ages.append(0)
        self.resets.append(True)
        self.left = int(self.rng.integers(1, self.longest + 1))

    def step(self) -> None:
        self.left -= 1
        ends = self.left == 0
        is_cut = ends and self.rng.random() < 0.5
        step = {
            "action": int(self.rng.integers(5)),
            "reward": float(self.rng.integers(-2, 3)),
            "terminated": ends and not is_cut,
            "truncated": is_cut,
            "valid": bool(self.rng.random() < 0.9),
            "final": self.frame(),
        }
        self.steps.append(step)
        if ends:
            self.start()
        else:
            self.rows.append(self.frame())
            self.ages.append(self.ages[-1] + 1)
            self.resets.append(False)

    def seen(self, row: int, newest: Any = None, age: int | None = None) -> Any:
        """What the network sees at a row."""
        newest, age = self.rows[row] if newest is None else newest, self.ages[row] if age is None else age
        if not self.spec.frame_stack:
            return newest
        zeros = np.zeros_like(newest)
        return np.stack(
            [*(self.rows[row - k] if k <= age else zeros for k in range(self.spec.frame_stack - 1, 0, -1)), newest]
        )


class ListReplay:
    """Transitions as they are, found by going through the steps one by one."""

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


def rollout_of(envs: list[Env], first: int, horizon: int, spec: EnvSpec) -> Rollout:
    """Rows first ... first + horizon of these streams, as a sampler gives them."""
    history = max(spec.frame_stack - 1, 0)

    def rows(name: str, start: int, stop: int) -> torch.Tensor:
        padding = [getattr(envs[0], name)[0]] * max(0, -start)
        columns = [[*padding, *getattr(env, name)[max(start, 0) : stop]] for env in envs]
        return torch.from_numpy(np.stack([np.stack(column) for column in columns], 1))

    def steps(name: str) -> torch.Tensor:
        return torch.tensor([[env.steps[first + t][name] for env in envs] for t in range(horizon)])

    cut = steps("truncated")
    final_step, final_env = cut.nonzero(as_tuple=True)
    finals = [
        envs[e].seen(first + t + 1, envs[e].steps[first + t]["final"], envs[e].ages[first + t] + 1)
        for t, e in zip(final_step.tolist(), final_env.tolist(), strict=True)
    ]
    empty = np.empty((0, *spec.observation_shape), spec.row_dtype)
    return Rollout(
        observation_rows=rows("rows", first - history, first + horizon + 1),
        age=rows("ages", first, first + horizon + 1),
        frame_stack=spec.frame_stack,
        action=steps("action"),
        reward=steps("reward"),
        terminated=steps("terminated"),
        truncated=cut,
        valid=steps("valid"),
        reset=rows("resets", first, first + horizon + 1),
        recorded={},
        final_step=final_step,
        final_env=final_env,
        final_observation=torch.from_numpy(np.stack(finals) if finals else empty),
        games=[],
        first_step=first * len(envs),
    )


def streams(spec: EnvSpec, num_envs: int, num_steps: int, longest: int, seed: int) -> list[Env]:
    envs = [Env(np.random.default_rng([seed, env]), spec, longest) for env in range(num_envs)]
    for env in envs:
        env.start()
        for _ in range(num_steps):
            env.step()
    return envs


def assert_all_equal(replay: Replay, reference: ListReplay, shift: int) -> None:
    """Every step that can be drawn; shift: the ring's number of the streams' first row."""
    ring = replay.ring
    for env in range(ring.num_envs):
        rows = range(ring.first_row, ring.first_row + ring.num_steps)
        index = env * ring.num_rows + torch.tensor([row % ring.num_rows for row in rows], dtype=torch.int64)
        batch = replay.batch(index, torch.device("cpu"))
        for k, row in enumerate(rows):
            for name, expected in reference.sample(env, row - shift).items():
                if name == "next_observation" and not batch["bootstrap"][k]:
                    continue  # of no consequence
                np.testing.assert_allclose(
                    batch[name][k], expected, rtol=1e-6, atol=1e-6, err_msg=f"{name} {env} {row}"
                )


@settings(max_examples=60, deadline=None)
@given(
    frame_stack=st.sampled_from([0, 1, 2, 4]),
    n_step=st.integers(1, 5),
    num_envs=st.integers(1, 3),
    horizon=st.integers(1, 7),
    steps_kept=st.integers(8, 30),
    longest=st.integers(1, 12),
    prioritized=st.booleans(),
    seed=st.integers(0, 2**20),
)
def test_every_sample_is_that_of_a_list(
    frame_stack: int,
    n_step: int,
    num_envs: int,
    horizon: int,
    steps_kept: int,
    longest: int,
    prioritized: bool,
    seed: int,
) -> None:
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
            expected[drawable.flatten()] = 2.0 * ring.whole.flatten()[drawable.flatten()].double()
            assert torch.equal(replay.priorities.tree[:], expected)
    assert replay.num_samples == steps_kept * num_envs


def test_uniform_draws_are_uniform() -> None:
    spec = make_spec(2)
    envs = streams(spec, 3, 60, 9, seed=1)
    replay = Replay(spec, 3, 36, 2, DISCOUNT)
    for k in range(12):
        replay.append(rollout_of(envs, k * 5, 5, spec))
    index, probability = replay.draw(36_000)
    assert probability is None
    drawable = replay.ring.index_of(replay.ring.first_row, replay.ring.first_row + replay.ring.num_steps).flatten()
    counts = torch.bincount(index, minlength=3 * replay.ring.num_rows)
    assert counts[drawable].sum() == 36_000 and len(drawable) == 36
    chi_square = ((counts[drawable] - 1000) ** 2 / 1000).sum()
    assert chi_square < 73  # 35 degrees of freedom: exceeded once in 5,000 times


@pytest.mark.parametrize("steps_before", [7, 41])
def test_a_restored_replay_goes_on_the_same(steps_before: int) -> None:
    """Before the ring is full, and after."""
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
        for each in (replay, other):
            each.append(rollout_of(envs, k, 1, spec))
        drawn, again = replay.draw(16), other.draw(16)
        assert torch.equal(drawn[0], again[0])
        batches = [each.batch(drawn[0], torch.device("cpu")) for each in (replay, other)]
        for name, value in batches[0].items():
            assert torch.equal(value, batches[1][name]), name


def test_what_a_replaced_environment_did_last_is_not_valid() -> None:
    """A game that starts anew between two rollouts, without the last one having ended."""
    spec = make_spec(0)
    envs = streams(spec, 2, 12, longest=100, seed=5)
    for env in envs:
        for step in env.steps:
            step["valid"] = True
    replay = Replay(spec, 2, 20, 3, DISCOUNT, alpha=1.0, new_priority=1.0)
    replay.append(rollout_of(envs, 0, 6, spec))
    envs[1].resets[6] = True
    replay.append(rollout_of(envs, 6, 6, spec))
    batch = replay.batch(replay.ring.index_of(0, 9).flatten(), torch.device("cpu"))
    valid = batch["valid"].view(2, 9)
    assert valid[0].all()
    assert valid[1].tolist() == [True, True, True, False, False, False, True, True, True]
    assert replay.priorities is not None
    assert replay.priorities.tree[replay.ring.index_of(0, 9).flatten()].tolist() == batch["valid"].double().tolist()


def test_rollouts_and_returns_must_fit() -> None:
    spec = make_spec(0)
    envs = streams(spec, 1, 30, 9, seed=0)
    with pytest.raises(ValueError, match="rollouts of 12 steps do not fit"):
        Replay(spec, 1, 10, 1, DISCOUNT).append(rollout_of(envs, 0, 12, spec))
