"""The benchmark of what a run picks for this machine: its grid, the result, and a tiny real run."""

import json
from pathlib import Path
from typing import Any

import pytest

import thread_plan
from accel_rl.bench.timing import Turns
from accel_rl.errors import UsageError
from accel_rl.hardware.placement import make_plan
from accel_rl.hardware.topology import CpuTopology
from thread_plan import Point, ThreadPlanOptions, grid, point_of

TWO = CpuTopology(((0,), (1,)), (0, 0), 2)
SIBLINGS = CpuTopology(((0, 4), (1, 5), (2, 6), (3, 7)), (0, 0, 0, 0), 8)  # 4 cores of 2 threads


def test_the_grid_of_two_logical_cpus() -> None:
    """Would catch a point that is missing, or a reserved server that shares its logical CPU."""
    points = grid(TWO, 16, ThreadPlanOptions())
    everywhere = [Point(w, s, n) for w in (1, 2, 4) for s in (1, 2) for n in (1, 2)]
    assert points == [*everywhere, Point(1, 1, 1, (1,))]
    assert point_of(make_plan(TWO, 16)) in points
    for point in points:
        plan = point.plan(TWO, 16)
        assert point_of(plan) == point and plan.server_is_reserved == (point.server_cpus is not None)
    assert len({str(point) for point in points}) == len(points)


def test_the_grid_of_cores_with_two_threads() -> None:
    """Would catch siblings that count as cores, workers that the environments do not divide over, and axes that are
    not obeyed."""
    points = grid(SIBLINGS, 16, ThreadPlanOptions())
    assert {point.workers for point in points} == {1, 4, 8}
    assert {point.learning_threads for point in points} == {1, 2, 4, 8}
    assert {point.server_cpus for point in points if point.workers == 4} == {None, (4, 5, 6, 7)}
    assert Point(4, 4, 4, (4, 5, 6, 7)) in points and Point(4, 4, 8, (4, 5, 6, 7)) not in points
    assert {point.workers for point in grid(SIBLINGS, 12, ThreadPlanOptions())} == {1, 4, 6}
    options = ThreadPlanOptions(workers=(2,), sampling_threads=(3,), learning_threads=(1, 8))
    assert [point for point in grid(SIBLINGS, 16, options) if not point.server_cpus] == [Point(2, 3, 1), Point(2, 3, 8)]


def test_a_system_that_cannot_pin_reserves_nothing() -> None:
    """Would catch a point that such a system cannot be at."""
    loose = CpuTopology(((0,), (1,)), (0, 0), 2, can_pin=False)
    assert {point.server_cpus for point in grid(loose, 16, ThreadPlanOptions())} == {None}


@pytest.mark.parametrize(
    ("pick_rates", "behind", "sentence"),
    [
        ([90.0, 90.0], 10.0, "the pick is 10.0 % (10.0 to 10.0) behind 2 workers, threads 1 + 2; should be at most 5"),
        ([120.0, 120.0], -20.0, "the pick is 20.0 % (20.0 to 20.0) ahead of 2 workers, threads 1 + 2; should be"),
    ],
)
def test_the_result_is_that_of_the_final(pick_rates: list[float], behind: float, sentence: str, capsys: Any) -> None:
    """Would catch a ratio the wrong way round, and rounds of the knock-out that count."""
    points = {str(point): point for point in (Point(1, 1, 2), Point(2, 1, 2), Point(4, 1, 1))}
    pick, other, out = points
    turns = {pick: Turns([50.0, 50.0, 1.0]), other: Turns([100.0, 100.0, 100.0]), out: Turns([25.0, 25.0])}
    final = {pick: Turns(pick_rates), other: Turns([100.0, 100.0])}
    found = thread_plan.describe(points, pick, other, turns, final)
    assert found["percent behind"] == pytest.approx({"median": behind, "low": behind, "high": behind})
    assert found["points"][out]["/ pick"]["median"] == 0.5  # over the rounds that both have
    thread_plan.show("a2c, float32", found)
    printed = capsys.readouterr().out
    assert f"final, 2 rounds: {sentence}" in printed
    assert printed.index(other) < printed.index(pick) < printed.index(out)  # the fastest comes first


@pytest.mark.slow
def test_a_tiny_run_and_its_json(run_program: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Would catch a program that no longer runs, and contestants that do not have the plan of their point."""
    file = tmp_path / "out" / "plan.json"
    axes = ["--workers", 2, "--sampling-threads", 1, "--learning-threads", 1]
    options = ["--rounds", 2, "--seconds", 0.05, "--contests", "a2c", "--precisions", "bfloat16"]
    run_program("thread_plan.py", *options, *axes, "--json", file)
    result = json.loads(file.read_text())
    assert result["benchmark"] == "thread_plan" and result["grids"].keys() == {"a2c, bfloat16"}
    found = result["grids"]["a2c, bfloat16"]
    assert {found["pick"], found["fastest other"]} <= found["points"].keys()
    assert found["points"]["2 workers, threads 1 + 1"]["learning_threads"] == 1
    assert all(rate > 0 for rates in found["final"].values() for rate in rates)
    assert len(found["final"][found["pick"]]) == 2
    assert "should be at most 5 % behind" in capsys.readouterr().out


def test_a_grid_needs_another_point_than_the_pick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch a final of the pick against itself."""
    pick = point_of(make_plan(TWO, 16))
    monkeypatch.setattr(thread_plan, "grid", lambda *_: [pick])
    monkeypatch.setattr(thread_plan, "point_of", lambda _: pick)
    with pytest.raises(UsageError, match="the grid has one point, which is what a run picks: 2 workers, threads 1"):
        thread_plan.run_grid("a2c", "float32", TWO, ThreadPlanOptions())
