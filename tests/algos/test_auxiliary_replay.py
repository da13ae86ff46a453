"""Auxiliary tasks draw from rollouts of real samplers: whole episodes, true last frames, no lost steps."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import accel_rl
from accel_rl.algos.a2c import A2C, A2CSettings
from accel_rl.algos.auxiliary import AuxiliaryTasks, add_heads
from accel_rl.algos.auxiliary_tasks import TASKS
from accel_rl.envs import EnvConfig
from accel_rl.samplers.base import SamplerConfig
from accel_rl.updates import Update
from tests.helpers.runs import TINY_SERIAL_RUN
from tests.helpers.samplers import TOYS, Flat, make_kind

T, B, SIZE, LENGTH = 6, 4, 15, 5  # rollouts [T, B]; the replay overwrites old steps


def make_tasks(sampler: Any) -> AuxiliaryTasks:
    settings = A2CSettings(auxiliary=tuple(TASKS), auxiliary_replay_steps=SIZE, auxiliary_sequence_steps=LENGTH)
    algo = A2C(sampler.spec, settings, 1000, sampler.config.num_envs, T, Flat)
    add_heads(algo.policy, settings)
    tasks = AuxiliaryTasks(algo)
    assert tasks.needs_terminal_frames
    tasks.setup(0)
    return tasks


def drawn_sequences(tasks: AuxiliaryTasks, num_draws: int) -> Iterator[tuple[int, int, Any]]:
    """Yields each sequence's environment, number of steps and fields, alternating pixel control and value replay."""
    replay = tasks.replay
    assert replay
    for draw in range(num_draws):
        task = tasks.tasks[draw % 2]
        batch = task.draw(replay.draw_noise(), torch.arange(B), replay.ring.rows)
        for env, num_steps in enumerate(batch.valid.sum(0).tolist()):
            assert batch.valid[:num_steps, env].all()
            of_env = {name: rows[..., env] if rows.dim() < 3 else rows[:, env] for name, rows in with_rows(batch)}
            yield env, num_steps, of_env


def with_rows(batch: Any) -> Iterator[tuple[str, Tensor]]:
    yield from ((name, value) for name, value in batch._asdict().items() if value is not None and name != "frames")
    yield "rows", batch.rows


def check_clock(tasks: AuxiliaryTasks, lengths: list[int], num_draws: int = 20) -> tuple[int, int]:
    """Checks draws against the rules of Clock; returns their numbers of terminated and truncated steps."""
    ends = [0, 0]
    for _, num_steps, drawn in drawn_sequences(tasks, num_draws):
        shown = drawn["rows"][: num_steps + 1, :2, 0, 0].long()  # [game, step] of each row
        game, step = shown[:, 0], shown[:, 1]
        assert (game == game[0]).all(), "one episode"
        assert torch.equal(step, step[0] + torch.arange(num_steps + 1)), "no step missing, and the true last frame"
        action, reward = drawn["action"][:num_steps], drawn["reward"][:num_steps]
        assert torch.equal(reward, (action + step[1:]).remainder(3).float() - 1)
        assert not drawn["is_first"][1:].any() and drawn["is_first"][0] == (step[0] == 0)
        if not num_steps:
            continue
        length = lengths[int(game[0]) % len(lengths)]
        is_over = bool(step[-1] == abs(length))
        assert (step[:-1] < abs(length)).all()
        assert drawn["terminated"] == (is_over and length > 0)
        ends[length < 0] += is_over
    task, replay = tasks.tasks[2], tasks.replay
    assert replay
    for _ in range(num_draws // 2):
        windows = task.draw(replay.draw_noise(), torch.arange(B), replay.ring.rows)
        shown = windows.observation[:, windows.valid, :2, 0, 0].long()  # [3, b, 2]
        assert (shown[..., 0] == shown[0, :, 0]).all(), "one episode"
        assert torch.equal(shown[..., 1], shown[0, :, 1] + torch.arange(3).unsqueeze(1))
    return ends[0], ends[1]


@pytest.mark.parametrize("reset_mode", ["immediate", "wait"])
def test_lost_steps_are_never_drawn(tmp_path: Path, reset_mode: str) -> None:
    """Drawn sequences stay in one episode, miss no step, end in its true last frame and hold no lost steps."""
    lengths = [7, -5, 4, 3]
    options = {"lengths": lengths, "at_step": 5, "once": str(tmp_path / "once")}
    config = SamplerConfig(num_envs=B, horizon=T, num_workers=2, env_timeout_s=60, terminal_frames=True)
    env = EnvConfig(f"{TOYS}:Clock", options=options)
    sampler = make_kind("serial", env, config, restart_on_error=True, reset_mode=reset_mode)
    try:
        tasks, ends = make_tasks(sampler), []
        for _ in range(6):
            assert tasks.store(sampler.collect()).terminal_frames is None
            ends.append(check_clock(tasks, lengths))
        assert sampler.num_restarts == 1
        assert np.sum(ends, 0).min() >= 12, "of both kinds"
    finally:
        sampler.close()


@pytest.mark.parametrize("name", [pytest.param("a2c", marks=pytest.mark.slow), "ppo", "vtrace"])
def test_each_update_learns_from_a_sequence_of_each_of_its_environments(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For every task, each update draws a new sequence from each environment that it learns from."""
    settings: dict[str, Any] = {
        "a2c": {"normalize_returns": False},
        "ppo": {"epochs": 2, "minibatches": 2, "normalize_returns": False},
        "vtrace": {"batches": 2, "batch_steps": 4, "steps_per_update": 1},
    }[name]
    settings |= {**TINY_SERIAL_RUN, "algo": name, "env": f"{TOYS}:Clock", "env_options": {"lengths": [7, -4]}}
    seen: list[list[tuple[str, Any, float]]] = []
    drawn_from: list[slice] = []
    draw = AuxiliaryTasks.draw

    def record(tasks: AuxiliaryTasks, update: Update) -> Any:
        drawn_from.append(tasks.envs)
        parts = draw(tasks, update)
        seen.append([(part.loss.__self__.name, part.batch[0], part.loss(*part.batch)[0].item()) for part in parts])
        return parts

    monkeypatch.setattr(AuxiliaryTasks, "draw", record)
    auxiliary = {"auxiliary": ",".join(TASKS), "auxiliary_replay_steps": 30, "auxiliary_sequence_steps": 7}
    network = "tests.helpers.samplers:Flat"
    accel_rl.train(
        **settings, **auxiliary, network=network, steps=120, out=tmp_path / "run"
    )  # six rollouts of five steps
    assert len(seen) == {"a2c": 6, "ppo": 24, "vtrace": 26}[name]
    for parts in seen:
        assert [task for task, *_ in parts] == [*TASKS]
        assert {batch.valid.shape[-1] for _, batch, _ in parts} == {2 if name == "vtrace" else 4}
    num_before = {"a2c": 1, "ppo": 4, "vtrace": 6}[name]  # a sequence has seven steps
    for number, (pixel_control, value_replay, _) in enumerate(seen):
        for _, batch, loss in (pixel_control, value_replay):
            assert batch.valid.any() == (loss > 0) == (number >= num_before), number
    later = [[batch.rows.numpy().tobytes() for _, batch, _ in parts[:2]] for parts in seen[num_before:]]
    assert any(first != second for first, second in later)
    assert len({first for first, _ in later}) >= 0.8 * len(later), "drawn anew for each update"
    batches = [slice(0, 2), slice(2, 4)] if name == "vtrace" else [slice(None)]
    assert [drawn_from.count(envs) for envs in batches] == [len(seen) // len(batches)] * len(batches)
