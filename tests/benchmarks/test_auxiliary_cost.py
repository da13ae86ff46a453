"""The benchmark of auxiliary tasks: its prediction, its contests and their JSON, from tiny real runs."""

import json
from pathlib import Path

import pytest

import auxiliary_cost
from accel_rl.bench.timing import Turns
from accel_rl.errors import UsageError
from auxiliary_cost import CostOptions, describe

TINY = {
    "sampler": "serial",
    "sampling_threads": 1,
    "learning_threads": 1,
    "decorrelation_steps": 0,
    "auxiliary_replay_steps": 30,
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
    """Would catch contests that together take longer than 4 minutes."""
    assert auxiliary_cost.BUDGETS_S.keys() == auxiliary_cost.ALGOS.keys()
    assert sum(auxiliary_cost.BUDGETS_S.values()) <= 210  # filling replays takes about 15 s
