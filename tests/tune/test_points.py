"""Tests of what the tuner searches, by sampler, machine, and the settings that the user has fixed."""

from dataclasses import replace
from typing import Any

import pytest

from accel_rl.errors import UsageError
from accel_rl.hardware.placement import divides_evenly, make_plan
from accel_rl.hardware.topology import CpuTopology
from accel_rl.settings.resolve import Config, resolve
from accel_rl.settings.sampler_kinds import SAMPLER_KINDS
from accel_rl.tune.points import Axis, Point, Space, make_space

ONE = CpuTopology(((0,),), (0,), 1)
TWO = CpuTopology(((0,), (1,)), (0, 0), 2)
MANY = CpuTopology(tuple((cpu, cpu + 32) for cpu in range(32)), (0,) * 32, 64)


def on(topology: CpuTopology, sampler: str = "alternating", device: str = "cpu", **settings: Any) -> Config:
    """Returns a run as it would be on this topology."""
    config = resolve({"env": "CartPole-v1", "device": "cpu", "horizon": 5, "sampler": sampler, **settings})
    run = replace(config.run, device=device)
    workers = 0 if sampler != "alternating" else settings.get("workers")
    plan = make_plan(topology, run.envs, workers, on_gpu=device != "cpu")
    return replace(config, run=run, devices=(device,), plans=(plan,))


def coarse(space: Space) -> dict[str, tuple[int, ...]]:
    return {name: axis.coarse for name, axis in space.axes.items()}


def test_two_logical_cpus() -> None:
    """The search starts at the settings that a run would pick, and has values for each of them."""
    config = on(TWO)
    space = make_space(config, ())
    assert coarse(space) == {"workers": (1, 2, 4), "learning_threads": (1, 2), "sampling_threads": (1, 2)}
    assert space.start.settings == {
        "workers": len(config.plan.worker_cpus),
        "learning_threads": config.plan.learning_threads,
        "sampling_threads": config.plan.sampling_threads,
    }


def test_many_logical_cpus() -> None:
    """Coarse values are about powers of two, and the environments divide over the workers."""
    space = make_space(on(MANY, envs=96), ())
    assert coarse(space)["workers"] == (1, 2, 4, 8, 16, 32, 48, 96)
    assert coarse(space)["learning_threads"] == (1, 2, 4, 8, 16, 32, 64)
    assert all(divides_evenly(96, workers) for workers in space.axes["workers"].allowed)
    own = space.start.settings["workers"]
    line = space.around(space.start, "workers", is_coarse=True)
    assert {point.settings["workers"] for point in line} | {own} == {*coarse(space)["workers"]}
    assert all(point != space.start and point.replace("workers", own) == space.start for point in line)


def test_values_between_the_coarse_ones() -> None:
    """The refinement stays within the allowed values, and does not try coarse ones again."""
    axis = Axis((1, 2, 4, 8, 16, 24), (1, 2, 3, 4, 6, 8, 12, 16, 24))
    assert axis.between(8) == [6, 12]
    assert axis.between(1) == [] and axis.between(2) == [3] and axis.between(24) == []
    assert Axis((1, 8), tuple(range(1, 9))).between(5) == [3, 7]  # between two coarse ones
    space = Space(Point((("a", 8), ("b", 1))), {"a": axis, "b": axis})
    assert [point.settings for point in space.around(space.start, "a", is_coarse=False)] == [
        {"a": 6, "b": 1},
        {"a": 12, "b": 1},
    ]


def test_what_the_user_has_fixed_is_not_searched() -> None:
    """Settings that the user has fixed are the same in all points."""
    config = on(MANY, workers=4)
    assert coarse(make_space(config, {"workers"})).keys() == {"learning_threads", "sampling_threads"}
    assert coarse(make_space(config, {"envs_per_worker"})).keys() == {"learning_threads", "sampling_threads"}
    assert [*coarse(make_space(config, {"sampling_threads", "env"}))] == ["workers", "learning_threads"]
    fixed = {"workers", "learning_threads", "sampling_threads"}
    with pytest.raises(UsageError, match=r"nothing is left to search: workers=4, .* are set; omit some"):
        make_space(config, fixed)


def test_other_samplers_and_devices() -> None:
    """A serial sampler has no workers to search, a run on a GPU no threads."""
    assert [*make_space(on(TWO, "serial"), ()).axes] == ["learning_threads", "sampling_threads"]
    assert [*make_space(on(MANY, device="cuda:0"), ()).axes] == ["workers"]
    assert coarse(make_space(on(ONE), ())) == {"workers": (1, 2)}
    with pytest.raises(UsageError, match="this machine leaves sampler=serial on cpu no choice"):
        make_space(on(ONE, "serial"), ())


def test_the_queued_sampler() -> None:
    """The number of agents does not change the batch, and no count changes during a measurement."""
    config = on(TWO, "queued", envs=8, dynamic_adjustment=True)
    space = make_space(config, ())
    assert [*space.axes] == ["envs", "predictors", "trainers"]
    assert space.start.settings == {"envs": 8, "predictors": 2, "trainers": 2}
    assert coarse(space) == {"envs": (1, 2, 4, 8, 16, 32), "predictors": (1, 2, 4, 8), "trainers": (1, 2, 4, 8)}
    assert SAMPLER_KINDS["queued"].fixed_for_tuning(config) == {"min_training_batch": 40, "dynamic_adjustment": False}
    assert (
        SAMPLER_KINDS["queued"].fixed_for_tuning(on(TWO, "queued", min_training_batch=17))["min_training_batch"] == 17
    )
    assert SAMPLER_KINDS["alternating"].fixed_for_tuning(on(TWO)) == {}


def test_other_numbers_of_environments_only_where_asked_for() -> None:
    """Without --tune-envs, the number of environments is kept."""
    assert "envs" not in make_space(on(TWO, envs=12), ()).axes
    space = make_space(on(TWO, envs=12), (), tune_envs=True)
    assert coarse(space)["envs"] == (6, 12, 24, 48)
    with pytest.raises(UsageError, match="envs=12 is set; omit one"):
        make_space(on(TWO, envs=12), {"envs"}, tune_envs=True)
