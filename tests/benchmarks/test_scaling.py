"""The benchmark of several learners: its runs, and the table and JSON of tiny real ones."""

import json
from pathlib import Path
from typing import Any

import pytest

from accel_rl.hardware.topology import available_cpus


@pytest.mark.slow
@pytest.mark.skipif(len(available_cpus()) < 2, reason="two learners need a logical CPU each")
@pytest.mark.multiprocess
def test_table_and_json(run_program: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Efficiency is relative to one learner's rate; each kind of learners has the shares of time that it loses."""
    file = tmp_path / "out" / "s.json"
    run_program("scaling.py", "--learners", 2, "--seconds", 0.05, "--rounds", 1, "--json", file)
    one, synchronous, asynchronous = json.loads(file.read_text())["points"]
    assert [point["learners"] for point in (one, synchronous, asynchronous)] == [1, 2, 2]
    assert [point["update"] for point in (one, synchronous, asynchronous)] == [None, "all_reduce", "central_store"]
    for point in (synchronous, asynchronous):
        assert point["efficiency"]["median"] == pytest.approx(point["rates"][0] / one["rates"][0])
        assert point["at least"] == 0.85
    assert one["shares"].keys() & {"exchange", "straggler", "lock"} == set()
    assert synchronous["shares"]["exchange"] > 0 and "lock" not in synchronous["shares"]
    assert asynchronous["shares"]["lock"] >= 0 and "exchange" not in asynchronous["shares"]
    assert all(0 <= point["shares"]["between"] < 1 for point in (one, synchronous, asynchronous))
    printed = capsys.readouterr().out
    assert "all_reduce-2" in printed and "should be at least 0.85" in printed
