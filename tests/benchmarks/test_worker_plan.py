"""The benchmark of plans measures the run's own pick and all others, and keeps earlier results in its file."""

import json
from pathlib import Path
from typing import Any

import worker_plan
from worker_plan import PlanOptions


def test_a_run_is_measured_with_all_plans(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    """Every plan has a rate, the pick is one of them, and earlier runs stay in the file."""
    monkeypatch.setattr(worker_plan, "WARM_UP", 0)
    file = tmp_path / "plans.json"
    file.write_text(json.dumps({"runs": {"before": 1}}))
    run = "CartPole-v1:a2c"
    worker_plan.run(PlanOptions(seconds=0.01, rounds=1, json=file, runs=[run], learning_threads=[1]))
    written = json.loads(file.read_text())["runs"]
    assert written["before"] == 1
    rates = written[f"{run} never"]["steps_per_second"]
    assert {"serial, learning threads 1", "1 workers, learning threads 1"} <= rates.keys()
    assert written[f"{run} never"]["pick"] in rates and min(rates.values()) > 0
    assert "the pick" in capsys.readouterr().out
