"""What the programs of benchmarks/ refuse before any work."""

import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib")

import commands
import defaults
import environments
import same_results
import soak
import vector_presets
from accel_rl.errors import UsageError
from compare_commits import CompareOptions
from scaling import ScalingOptions
from training_throughput import TrainingOptions

ROOT = Path(__file__).parents[2]
NO_FILE = ROOT / "no_file.json"
BAD = [
    (lambda: CompareOptions(old=ROOT, new=ROOT, contests=("a2cc",)), "unknown contest 'a2cc'; did you mean a2c"),
    (lambda: CompareOptions(old=ROOT / "tests", new=ROOT), "tests must be a checkout of accel_rl, but importing"),
    (lambda: same_results.compare(ROOT, ROOT, ["a2cc"]), "unknown run 'a2cc'; did you mean a2c"),
    (lambda: ScalingOptions(device="cuda:0"), "device=cuda:0 must be auto, cpu or cuda"),
    (
        lambda: ScalingOptions(learners=(0,), device="cpu"),
        "learners=0 must be from 1 to .*, the number of logical CPUs",
    ),
    (lambda: TrainingOptions(env="CartPole-v1"), "env=CartPole-v1 is not an Atari game"),
    (lambda: TrainingOptions(contests=("a2cc",)), "unknown contest 'a2cc'; did you mean a2c"),
    (lambda: TrainingOptions(seconds=0.0), "seconds=0.0 must be greater than 0"),
    (lambda: TrainingOptions(rounds=0), "rounds=0 must be at least 1"),
    (lambda: commands.run(0, NO_FILE), "rounds=0 must be at least 1"),
    (lambda: defaults.run(["dqm"], [1], NO_FILE), "unknown algorithm 'dqm'; did you mean dqn"),
    (lambda: environments.run(["taxi", "taxy"], NO_FILE), "unknown case 'taxy'; did you mean taxi"),
    (lambda: soak.train_and_watch("a2c", 1, [], 0.0), "minutes=0 must be greater than 0"),
    (lambda: vector_presets.run(["pqo"], [1], NO_FILE), "unknown preset 'pqo'"),
]


@pytest.mark.parametrize(("call", "message"), BAD, ids=[message for _, message in BAD])
def test_bad_input(call: Callable[[], object], message: str) -> None:
    """Would catch an error that comes only after minutes of work, and a comparison of an installed package."""
    with pytest.raises(UsageError, match=message):
        call()


@pytest.mark.parametrize("name", ["learning.py", "startup.py"])
def test_an_unknown_environment_is_one_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Would catch a program that ends in a traceback."""
    out = ["--out", str(tmp_path / "out")] if name == "learning.py" else []
    monkeypatch.setattr(sys, "argv", [name, "--env", "nosuch", *out])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(ROOT / "benchmarks" / name), run_name="__main__")
    error = capsys.readouterr().err
    assert end.value.code == 2 and error.startswith("error: unknown environment 'nosuch'") and error.count("\n") == 1
