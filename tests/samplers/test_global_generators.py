"""Environments that draw from np.random and random, whose numbers depend only on the run's seed."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from accel_rl.envs import global_generators
from accel_rl.envs.global_generators import GlobalGenerators
from accel_rl.envs.spec import EnvConfig
from accel_rl.samplers import AlternatingSampler, SerialSampler
from accel_rl.samplers.base import SamplerConfig
from accel_rl.samplers.device import DeviceSampler
from tests.helpers.runs import TINY_RUN, TINY_SERIAL_RUN, assert_resumes_exactly
from tests.helpers.samplers import TOYS, closing, make

CHANCE = EnvConfig(f"{TOYS}:GlobalChance", options={"lengths": [3, 7]})


def draw(size: int = 3) -> list[Any]:
    """Returns numbers from this process's generators."""
    return [np.random.random(size).tolist(), [random.random() for _ in range(size)]]


def rollouts(sampler_class: Any, num_workers: int, seed: int = 3, count: int = 3) -> torch.Tensor:
    config = SamplerConfig(8, 5, num_workers)
    sampler = make(sampler_class, CHANCE, config, seed=seed)
    with closing(sampler):
        return torch.stack([sampler.collect().observation_rows.clone() for _ in range(count)])


@pytest.mark.parametrize(("sampler", "num_workers"), [(SerialSampler, 0), (AlternatingSampler, 2)])
def test_the_seed_decides_what_environments_draw(sampler: Any, num_workers: int) -> None:
    """Two samplers with one seed give the same numbers, whichever group is served first; another seed gives others,
    and no two environments draw the same."""
    first, second, other = (rollouts(sampler, num_workers, seed) for seed in (3, 3, 4))
    assert torch.equal(first, second)
    assert len(first[:, :-1].unique()) == first[:, :-1].numel()
    assert not (first == other).any()


@pytest.mark.parametrize("knows_memory", [True, False])
def test_nobody_else_changes_what_is_drawn(knows_memory: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Generators give the same numbers in any order of turns, even if the layout of Python's state in memory is
    unknown, and go on where a saved state ends."""
    assert global_generators._knows_memory
    monkeypatch.setattr(global_generators, "_knows_memory", knows_memory)

    def played(turns: str) -> dict[str, list[Any]]:
        each = {name: GlobalGenerators(np.random.SeedSequence(ord(name))) for name in "ab"}
        drawn: dict[str, list[Any]] = {"a": [], "b": []}
        with GlobalGenerators(np.random.SeedSequence(0)):  # puts this process's own back at the end
            for name in turns:
                if name == " ":
                    each["a"].set_state(each["a"].get_state())
                else:
                    each[name].use()
                    drawn[name].append([np.random.normal(), random.gauss(), *draw()])
        return drawn

    expected = played("aaabbb")
    assert played("ababab") == played("bbbaaa") == played("aabbab") == played("a abab b") == expected
    assert expected["a"] != expected["b"]


def test_the_learner_draws_what_it_would_draw_without_environments() -> None:
    """Steps, resets and evaluations in the learner's process leave its generators where they are."""
    np.random.seed(5)
    random.seed(5)
    expected = [draw() for _ in range(4)]
    np.random.seed(5)
    random.seed(5)
    found = [draw()]
    sampler = make(SerialSampler, CHANCE, SamplerConfig(4, 5, 0))
    with closing(sampler):
        found += [draw()]
        sampler.collect()
        found += [draw()]
        sampler.get_state()
        sampler.collect()
    assert [*found, draw()] == expected


def test_a_batch_on_a_device_draws_by_the_seed() -> None:
    """The device sampler keeps generators for its environments, too, and a checkpoint holds them."""
    env = EnvConfig("tests.samplers.device_envs:Chances")
    first, second = (make(DeviceSampler, env, SamplerConfig(4, 5, 0)) for _ in range(2))
    with closing(first, second):
        np.random.seed(5)
        expected, _ = draw(), np.random.seed(5)
        drawn = first.collect().observation_rows.clone()
        assert draw()[0] == expected[0]
        second.collect()
        first.collect()
        state = first.get_state()
        after = first.collect().observation_rows.clone()
        second.set_state(state)
        assert torch.equal(second.collect().observation_rows[1:], after[1:])
        assert len(drawn[1:].unique()) == drawn[1:].numel()


@pytest.mark.parametrize("settings", [TINY_SERIAL_RUN, pytest.param(TINY_RUN, marks=pytest.mark.slow)])
def test_a_resumed_run_draws_what_the_whole_one_draws(settings: dict[str, Any], tmp_path: Path) -> None:
    """A checkpoint holds the generators that environments draw from."""
    settings = {**settings, "algo": "a2c", "env": CHANCE.env_id, "env_options": CHANCE.options}
    assert_resumes_exactly(tmp_path, {**settings, "log_interval_steps": 20}, 120, stop=60)
