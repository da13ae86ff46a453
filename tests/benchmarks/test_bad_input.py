"""Bad input that the programs of benchmarks/ refuse before any work."""

import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib")

import environments
import same_results
import soak
from accel_rl.errors import UsageError
from compare_commits import CompareOptions
from emulator import EmulatorOptions
from scaling import ScalingOptions
from training_throughput import TrainingOptions

ROOT = Path(__file__).parents[2]
NO_FILE = ROOT / "no_file.json"
BAD = [
    (lambda: CompareOptions(old=ROOT, new=ROOT, contests=("a2cc",)), "unknown contest 'a2cc'; did you mean a2c"),
    (lambda: CompareOptions(old=ROOT / "tests", new=ROOT), "tests must be a checkout of accel_rl, but importing"),
    (lambda: same_results.compare(ROOT, ROOT, ["a2cc"]), "unknown run 'a2cc'; did you mean a2c"),
    (lambda: EmulatorOptions(games=("pongg",)), "unknown game 'pongg'; did you mean pong"),
    (lambda: EmulatorOptions(parts=("raww",)), "unknown part 'raww'; did you mean raw"),
    (lambda: ScalingOptions(learners=(0,)), "learners=0 must be from 1 to .*, the number of logical CPUs"),
    (lambda: TrainingOptions(env="CartPole-v1"), "env=CartPole-v1 is not an Atari game"),
    (lambda: TrainingOptions(contests=("a2cc",)), "unknown contest 'a2cc'; did you mean a2c"),
    (lambda: TrainingOptions(seconds=0.0), "seconds=0.0 must be greater than 0"),
    (lambda: TrainingOptions(rounds=0), "rounds=0 must be at least 1"),
    (lambda: environments.run(["taxi", "taxy"], NO_FILE), "unknown case 'taxy'; did you mean taxi"),
    (lambda: soak.train_and_watch("a2c", 1, [], 0.0), "minutes=0 must be greater than 0"),
]


@pytest.mark.parametrize(("call", "message"), BAD, ids=[message for _, message in BAD])
def test_bad_input(call: Callable[[], object], message: str) -> None:
    """Bad options and folders that are not checkouts raise at once, before any work."""
    with pytest.raises(UsageError, match=message):
        call()


def test_an_unknown_environment_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """A program ends a usage error with one message, not with a traceback."""
    monkeypatch.setattr(sys, "argv", ["sampling_peers.py", "--env", "nosuch"])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(ROOT / "benchmarks" / "sampling_peers.py"), run_name="__main__")
    error = capsys.readouterr().err
    assert end.value.code == 2 and error.startswith("error: env=nosuch is not an Atari game") and error.count("\n") == 1
