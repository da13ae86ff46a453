"""The benchmark of auxiliary tasks: its prediction, its contests and their JSON, from tiny real runs."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import auxiliary_cost
from accel_rl.bench.timing import Turns
from accel_rl.errors import RunError, UsageError
from auxiliary_cost import CostOptions, describe
from ga3c_contestants import AuxiliaryMeter, TrainingProcess
from network_passes import BatchSizes, Predictions, collect_drawn, drawn_share, predictions_of

TINY = {
    "sampler": "serial",
    "sampling_threads": 1,
    "learning_threads": 1,
    "decorrelation_steps": 0,
    "auxiliary_replay_steps": 30,
}
TINY_GUNREAL = {
    "envs": 2,
    "horizon": 4,
    "min_training_batch": 8,
    "predictors": 1,
    "trainers": 1,
    "dynamic_adjustment": False,
    "auxiliary_replay_steps": 8,
    "learning_threads": 1,
}


def test_prediction() -> None:
    """Would catch ratios the wrong way round, and a cost that is a share of the network instead of time added."""
    # A step takes 2 ms of simulation and 8 ms of the network; tasks add 10 ms there, but 15 ms in training.
    base, tasks = (Turns([100.0]), Turns([125.0])), (Turns([40.0]), Turns([1000 / 18]))
    found = describe(base, tasks)
    assert found["share predicted"]["median"] == pytest.approx(0.5)
    assert found["share kept"]["median"] == pytest.approx(0.4)
    assert found["measured / predicted"]["median"] == pytest.approx(0.8)
    assert describe(base, base)["measured / predicted"]["median"] == pytest.approx(1)


def test_batch_sizes_have_the_mean() -> None:
    """Would catch sizes that are rounded, so that a mean of 1.4 makes batches of 1, and predictions that get lost."""
    sizes = BatchSizes(1.4)
    taken = [size for _ in range(100) for size in sizes.take(2.1)]
    assert {*taken} == {1, 2} and len(taken) == pytest.approx(150, abs=1) and sum(taken) == pytest.approx(210, abs=2)
    assert BatchSizes(3.0).take(10.0) == [3, 3, 3]


def test_what_a_training_predicts() -> None:
    """Would catch tasks without predictions that are made to predict, and a turn without actions that ends the run."""
    plain = {"prediction_batch": 4.5, "steps_per_second": 100.0}
    assert predictions_of([plain, {"steps_per_second": 9.0}]) == {"policy": Predictions(1.0, 4.5)}
    control = {"pixel_control/prediction_batch": 1.5, "pixel_control/predictions_per_step": 0.05}
    found = predictions_of([plain, {**plain, **control}])
    assert found == {"policy": Predictions(1.0, 4.5), "pixel_control": Predictions(0.05, 1.5)}


def rollout(**num_steps: list[int]) -> Any:
    """Returns a merged batch of two segments and a column of padding, with which so many steps have been drawn."""
    return SimpleNamespace(auxiliary={name: {"num_steps": n} for name, n in num_steps.items()}, num_segments=2)


def test_batches_whose_replays_were_full() -> None:
    """Would catch batches with which nothing was drawn, padding that counts, and copies that the next batch changes."""
    assert drawn_share(rollout()) == 1.0
    assert drawn_share(rollout(pixel_control=[20, 0, 20], value_replay=[3, 20, 0])) == 0.75
    shown = rollout(value_replay=[20, 0, 0])
    seen = iter([[20, 0, 0], [20, 1, 0], [0, 0, 0], [20, 2, 0], [20, 3, 0]])

    def collect() -> Any:
        shown.auxiliary["value_replay"]["num_steps"][:] = next(seen)
        return shown

    found: list[Any] = collect_drawn(SimpleNamespace(collect=collect), 2)  # type: ignore[arg-type]
    assert [each.auxiliary["value_replay"]["num_steps"] for each in found] == [[20, 1, 0], [20, 2, 0]]


def test_predictions_of_tasks_are_counted() -> None:
    """Would catch requests that are counted but not served, and rates for each batch instead of each step."""
    served: list[tuple[str, list[int]]] = []
    server = SimpleNamespace(serve_auxiliary=lambda task, agents: served.append((task, agents)))
    meter = AuxiliaryMeter(SimpleNamespace(_server=server))
    server.serve_auxiliary("pixel_control", [0, 1, 2])
    meter.clear()
    for agents in ([0, 1], [2], [3, 4, 5]):
        server.serve_auxiliary("pixel_control", agents)
    meter.drawn += [1.0, 0.5]
    expected = {"drawn": 0.75, "pixel_control/prediction_batch": 2.0, "pixel_control/predictions_per_step": 0.06}
    assert meter.read(100) == pytest.approx(expected)
    assert [len(agents) for _, agents in served] == [3, 2, 1, 3]


def test_replays_are_filled_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch turns that count before all agents draw, and a wait without an end."""
    training = TrainingProcess.__new__(TrainingProcess)
    training.rows = []
    shares = iter([0.0, 0.6, 1.0, 1.0])
    row = {"prediction_batch": 2.0}
    monkeypatch.setattr(training, "run", lambda seconds: training.rows.append({**row, "drawn": next(shares)}))
    training.fill_replays(0.1)
    assert len(training.rows) == 3
    monkeypatch.setattr(training, "run", lambda seconds: training.rows.append({**row, "drawn": 0.9}))
    with pytest.raises(RunError, match="replays are not full after 60 turns; make --seconds longer"):
        training.fill_replays(0.1)


@pytest.mark.slow
def test_gunreal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Would catch trainings that all have the same tasks, a network alone without predictions of tasks, and processes
    that cannot be told their settings."""
    monkeypatch.setattr(auxiliary_cost, "GUNREAL_SETTINGS", TINY_GUNREAL)
    options = CostOptions(0.2, 2, json=tmp_path / "c.json", contests=("gunreal",), counts={"envs": 3})
    auxiliary_cost.run(options)
    contest = json.loads((tmp_path / "c.json").read_text())["contests"]["gunreal"]
    tasks = contest["tasks"]
    assert tasks.keys() == {"none", "all"} and "3 agents" in contest["title"]
    assert tasks["none"]["parameters"] < tasks["all"]["parameters"]
    assert tasks["none"]["measured / predicted"]["median"] == pytest.approx(1)
    assert all(len(each[kind]["rates"]) == 2 for each in tasks.values() for kind in ("training", "network"))
    assert all(each["steps of the network's batches"] >= 8 for each in tasks.values())
    measured = tasks["all"]["measured"]
    assert measured["drawn"] == 1 and "drawn" not in tasks["none"]["measured"]
    for task in ("pixel_control", "value_replay"):  # once for each segment of 4 steps or less
        assert measured[f"{task}/prediction_batch"] >= 1 and measured[f"{task}/predictions_per_step"] > 0
    printed = capsys.readouterr().out
    assert "all tasks cost" in printed and "should be at least 0.85" in printed


@pytest.mark.slow
def test_contests_and_their_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Would catch contestants that all have the same tasks, memory that is not counted, and a path in the file."""
    monkeypatch.setattr(auxiliary_cost, "ALGOS", {"a2c": {"envs": 2, "horizon": 2}})
    some = {name: auxiliary_cost.TASK_SETS[name] for name in ("none", "value_replay", "all")}
    monkeypatch.setattr(auxiliary_cost, "TASK_SETS", some)
    monkeypatch.setattr(auxiliary_cost, "MEMORY_SETTINGS", {"envs": 2, "horizon": 5, "auxiliary_replay_steps": 30})
    options = CostOptions(0.01, 1, json=tmp_path / "out" / "c.json", contests=("a2c", "memory"), overrides=TINY)
    auxiliary_cost.run(options)
    assert options.json
    written = options.json.read_text()
    assert str(tmp_path) not in written
    contests = json.loads(written)["contests"]
    assert contests.keys() == {"a2c", "memory"}

    tasks = contests["a2c"]["tasks"]
    assert tasks.keys() == some.keys()
    assert tasks["none"]["measured / predicted"]["median"] == pytest.approx(1)
    assert all(rates[each]["steps_per_second"] > 0 for rates in tasks.values() for each in ("training", "network"))
    # Pixel control and reward prediction have heads of their own, value replay has none.
    assert tasks["none"]["parameters"] == tasks["value_replay"]["parameters"] < tasks["all"]["parameters"]

    for name, frame in (("4x84x84, grey", 84 * 84), ("3x84x84, colour", 3 * 84 * 84)):
        replay = contests["memory"]["replays"][name]
        assert replay["frame_bytes"] == 2 * 30 * frame
        # Rows before the oldest step and behind the newest one, and at most one last frame of each environment.
        assert replay["frame_bytes"] + 2 * frame <= replay["allocated_bytes"] - replay["last_frame_bytes"]
        assert replay["allocated_bytes"] < replay["frame_bytes"] + 2 * 10 * frame
    printed = capsys.readouterr().out
    assert "value replay costs" in printed and "all tasks cost" in printed and "at most 1.05" in printed


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"env": "CartPole-v1"}, "env=CartPole-v1 is not an Atari game"),
        ({"contests": ("memori",)}, "unknown contest 'memori'; did you mean memory"),
        ({"seconds": 0.0}, "seconds=0.0 must be greater than 0"),
    ],
)
def test_bad_options(bad: dict[str, object], message: str) -> None:
    """Would catch an error that comes only after minutes of work."""
    with pytest.raises(UsageError, match=message):
        CostOptions(**bad)  # type: ignore[arg-type]


def test_the_default_fits_into_its_time() -> None:
    """Would catch contests that together take longer than 5 minutes."""
    assert auxiliary_cost.BUDGETS_S.keys() == {*auxiliary_cost.CONTESTS} - {"memory"}
    assert sum(auxiliary_cost.BUDGETS_S.values()) <= 270  # filling replays takes about 15 s
