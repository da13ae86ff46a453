"""The benchmark of sampling: its rows, shares and options, and the schema of its JSON, from a tiny real run."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib")

from accel_rl.bench import sampling
from accel_rl.bench.figure import draw_sampling
from accel_rl.bench.limit import SimulationLimit, bare_steps
from accel_rl.bench.timing import Turns
from accel_rl.cli import main
from accel_rl.envs import EnvConfig
from accel_rl.hardware.topology import available_cpus

ANY = "*"  # any key
RATIO = {"median": float, "low": float, "high": float}
SCHEMA = {
    "benchmark": str,
    "version": int,
    "machine": {
        "cpu": str,
        "instructions": str,
        "cores": int,
        "logical_cpus": int,
        "gpus": [str],
        "python": str,
        "packages": {ANY: str},
    },
    "options": {
        "env": str,
        "env_preset": str,
        "simulator": str,
        "cores": int | None,
        "envs_per_core": int,
        "envs": int,
        "workers": int,
        "horizon": int,
        "seconds": float,
        "rounds": int | None,
        "device": str,
        "table": bool,
        "full": bool,
        "json": str | None,
        "figure": str | None,
    },
    "contestants": {ANY: {"steps_per_second": float, "rates": [float], "shares": {ANY: float}}},
    "ratios": {ANY: RATIO},
    "table_1": [{"simulators": int, "per_core": int, "sync": float, "async": float, "sync_over_async": RATIO}],
    "figure_2": [{"kind": str, "cores": int, "per_core": int | None, "steps_per_second_per_core": float}],
}


def check(value: Any, schema: Any, where: str = "result") -> None:
    """Raises AssertionError where value does not obey schema."""
    if isinstance(schema, dict):
        assert isinstance(value, dict), where
        if ANY not in schema:
            assert value.keys() == schema.keys(), where
        for name, item in value.items():
            check(item, schema.get(name, schema.get(ANY)), f"{where}.{name}")
    elif isinstance(schema, list):
        assert isinstance(value, list), where
        for item in value:
            check(item, schema[0], f"{where}[]")
    else:
        assert isinstance(value, schema), where


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Returns the JSON that the command line writes for one core and two simulators. The game has no prepared
    starts, which would take each sampler half a second."""
    folder = tmp_path_factory.mktemp("bench")
    options = "--env kung_fu_master --cores 1 --envs-per-core 2 --horizon 8 --seconds 0.01 --rounds 1 --device cpu"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampling, "SIMS_PER_CORE", (2,))
        files = ["--json", str(folder / "b.json"), "--figure", str(folder / "b.png")]
        assert main(["bench", "sampling", *options.split(), *files]) == 0
    assert (folder / "b.png").read_bytes().startswith(b"\x89PNG")
    return json.loads((folder / "b.json").read_text())


def test_json_obeys_its_schema(result: Any) -> None:
    """The result has all fields of the schema, with their types."""
    check(result, SCHEMA)
    assert result["benchmark"] == "sampling"
    assert {"limit", "random", "random-barrier", "inference-cpu", "network-cpu"} <= result["contestants"].keys()
    assert {"random / limit", "inference-cpu / bound"} <= result["ratios"].keys()
    for contestant in result["contestants"].values():
        assert contestant["steps_per_second"] > 0
        assert all(-0.01 <= share <= 1.01 for share in contestant["shares"].values())
    assert result["contestants"]["random"]["shares"].keys() == {"inference", "env_wait", "action_wait"}
    assert {point["kind"] for point in result["figure_2"]} >= {"sampler", "process"}


def test_table_rows_and_figure_points() -> None:
    """Speeds are per core, in the right columns."""
    turns = {"sync": Turns([90.0, 100.0, 80.0]), "async": Turns([100.0, 200.0, 160.0])}
    row = sampling.table_row(4, 8, turns)
    assert (row["simulators"], row["per_core"], row["sync"], row["async"]) == (32, 8, 90.0, 160.0)
    assert row["sync_over_async"]["median"] == 0.5
    point = sampling.figure_point("sampler", 4, 8, 160.0)
    assert point == {"kind": "sampler", "cores": 4, "per_core": 8, "steps_per_second_per_core": 40.0}


def test_a_curve_for_powers_of_two_and_for_all_cores() -> None:
    assert sampling.core_counts(6, full=True) == [1, 2, 4, 6]
    assert sampling.core_counts(8, full=True) == [1, 2, 4, 8]
    assert sampling.core_counts(1, full=True) == [1]
    assert sampling.core_counts(6, full=False) == [6]


def test_figure_has_a_curve_for_each_number_of_cores(result: Any, tmp_path: Path) -> None:
    """The figure can also be drawn for a machine with hyperthreads."""
    point = sampling.figure_point
    points = [point("sampler", c, k, 100.0 * c * k) for c in (1, 2, 4) for k in (2, 4, 8, 16)]
    points += [point("process", 1, None, 2000.0), point("hyperthreads", 1, None, 2500.0)]
    draw_sampling({**result, "figure_2": points}, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 10_000


@pytest.mark.parametrize("simulator", ["native", "ale"])
def test_bare_work(simulator: str) -> None:
    """Both simulators step without a sampler, and games that end are reset."""
    env = EnvConfig("qbert", options={"max_episode_steps": 3, "noop_max": 0}, simulator=simulator)
    step = bare_steps(env, 2)
    assert [step() for _ in range(8)] == [2] * 8


def test_a_core_without_environments_has_no_process() -> None:
    """The limit can be measured with more cores than environments."""
    limit = SimulationLimit(EnvConfig("CartPole-v1"), 1, available_cpus()[:1] * 2, "limit")
    try:
        assert limit.run(0.01) > 0
    finally:
        limit.close()
