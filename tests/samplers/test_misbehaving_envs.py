"""Tests of environments that misbehave: the run goes on or ends with one message, and leaves nothing."""

import re
import sys
from pathlib import Path

import pytest

from tests.helpers.misbehaving_envs import AT_CLOSE
from tests.helpers.processes import TINY, Command
from tests.helpers.runs import rows

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="watches processes in the way of Linux"),
    pytest.mark.multiprocess,
    pytest.mark.slow,
]

WORKER = r"worker [01] \(process \d+\), in environment [0-3] \(.+\) at action [01],"
RAISED = r"worker [01]: environment [0-3] \(.+\) failed at action [01]:\nTraceback (.|\n)*"
DEEDS = {
    "alias": None,
    "threads": None,
    "flood": None,
    "closed streams": None,
    "moves out": None,
    "signals": None,
    "forks": None,
    "one CPU": None,
    "never closes": None,
    "input": RAISED + "EOFError: ",
    "addresses": RAISED + "MemoryError",
    "words": RAISED + r"broken on purpose: \\udcff",
    "close exits": r"worker [01] \(process \d+\), in environment [0-3] \([^)]+\), exited with status 7",
    "exit": r"worker [01]: environment [0-3] \(.+\) failed at action [01]: step\(\) called sys\.exit\(7\)",
    "interrupt": f"{WORKER} was killed by SIGINT",
    "all closed": f"{WORKER} exited with status 1",
    "stop": rf"{WORKER} has not answered for 3 s \(--env-timeout-s\)",
    "the group": "the process that starts the workers was killed by SIGKILL",
    "forks, and goes on": r"out of step|has not answered|exited|killed|failed|middle of a rollout",
}


@pytest.mark.parametrize(("deed", "message"), DEEDS.items(), ids=DEEDS)
def test_what_an_environment_should_not_do(deed: str, message: str | None, tmp_path: Path) -> None:
    """An environment that misbehaves either does no harm or ends the run with one message and its cause."""
    words = ["train", "--env", "tests.helpers.misbehaving_envs:Misbehaving", "--env-options", f"{{deed: {deed!r}}}"]
    words += [*TINY, "--steps", 400, "--decorrelation-steps", 0, "--env-timeout-s", 3, "--out", tmp_path / "run"]
    if deed in AT_CLOSE:
        words += ["--eval-interval-steps", 100, "--eval-steps", 24]
    result = Command(*words).finish()
    if message is None:
        assert result.status == 0 and rows(tmp_path / "run")[-1]["time/total_timesteps"] == "400", result.err
        return
    assert result.status == 1, result.err
    assert len(re.findall(f"^accel-rl: .*(?:{message})", result.err, re.MULTILINE)) == 1, result.err
    assert re.search(message, (tmp_path / "run" / "log.txt").read_text())
