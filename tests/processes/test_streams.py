"""Standard streams that are closed, full or gone stop neither runs nor environments that print."""

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.processes import Command
from tests.helpers.runs import rows

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="gives processes streams in the way of Linux")


def _close(*fds: int) -> Callable[[], None]:
    def close() -> None:
        for fd in fds:
            os.close(fd)

    return close


def _lose_reader() -> None:
    read, write = os.pipe()
    _replace_outputs(write)
    os.close(read)


def _lose_terminal() -> None:
    ours, theirs = os.openpty()
    os.dup2(theirs, 0)
    _replace_outputs(theirs)
    os.close(ours)


def _fill_disk() -> None:
    _replace_outputs(os.open("/dev/full", os.O_WRONLY))


def _fill_pipe() -> None:
    """Leaves a full pipe whose writes do not block; its other end stays open as stdin."""
    read, write = os.pipe()
    os.dup2(read, 0)
    os.set_blocking(write, False)
    os.write(write, bytes(fcntl.fcntl(write, fcntl.F_GETPIPE_SZ)))
    _replace_outputs(write)


def _replace_outputs(fd: int) -> None:
    os.dup2(fd, 1)
    os.dup2(fd, 2)


STREAMS: dict[str, Callable[[], None]] = {
    "no stdout": _close(1),
    "none": _close(0, 1, 2),
    "no reader": _lose_reader,
    "no terminal": _lose_terminal,
    "full disk": _fill_disk,
    "full pipe": _fill_pipe,
}
TINY = ["--envs", 4, "--steps", 200, "--eval-interval-steps", 0, "--sampling-threads", 1, "--learning-threads", 1]
WORKERS = ["--device", "cpu", "--workers", 2, "--eval-interval-steps", 100]
LEARNERS = ["--devices", "cpu,cpu", "--workers", 2]

# If a program's own file has taken the descriptor of a closed stream, its children have no such stream.
PROGRAM = """
import os, sys
from accel_rl.processes.fork_server import ForkServer
from accel_rl.processes.streams import open_closed_streams
if {has_file}:
    file = open({path!r}, "w")
open_closed_streams()
server = ForkServer("tests.processes.light_child:talk", [], "{{how}}")
child = server.launch(None)
kind, content = child.receive()
server.close([child])
sys.exit(content if kind == "written" else 1)
"""


@pytest.mark.parametrize(("streams", "has_file"), [("none", False), ("none", True), ("full pipe", False)])
def test_a_child_can_print(streams: str, has_file: bool, tmp_path: Path) -> None:
    """A forked child writes to stdout and stderr without an error whatever has become of them, and to no other file."""
    program = PROGRAM.format(has_file=has_file, path=str(tmp_path / "file"))
    command, environment = [sys.executable, "-c", program], {**os.environ, "PYTHONUNBUFFERED": ""}
    assert subprocess.run(command, preexec_fn=STREAMS[streams], env=environment, timeout=60).returncode == 7
    assert not has_file or (tmp_path / "file").read_text() == ""


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("streams", "kind"),
    [
        *((name, WORKERS) for name in STREAMS if name != "no stdout"),
        *((name, LEARNERS) for name in ("none", "no reader", "full pipe")),
    ],
    ids=lambda value: value if isinstance(value, str) else str(value[1]),
)
def test_a_run_needs_no_standard_streams(streams: str, kind: list[Any], tmp_path: Path) -> None:
    """A run and an environment that prints go on to the end whatever has become of stdin, stdout and stderr."""
    words = ["train", "--env", "tests.helpers.misbehaving_envs:Talking", *TINY, *kind, "--out", tmp_path / "run"]
    buffered = {"PYTHONUNBUFFERED": ""}  # else print itself drops what a full pipe does not take
    result = Command(*words, environment=buffered, preexec_fn=STREAMS[streams]).finish()
    assert result.status == 0, (tmp_path / "run" / "log.txt").read_text() + result.err
    assert rows(tmp_path / "run")[-1]["time/total_timesteps"] == "200"
    assert "Traceback" not in result.err and "Exception ignored" not in result.err, result.err


@pytest.mark.slow
@pytest.mark.parametrize(("streams", "status"), [("no stdout", 0), ("no reader", 141), ("full pipe", 1)])
def test_an_answer_that_cannot_be_written(streams: str, status: int) -> None:
    """A command whose output nobody can read ends with status 0, SIGPIPE's status or an error, without a traceback."""

    def replace() -> None:  # stdout only
        stderr = os.dup(2)
        STREAMS[streams]()
        os.dup2(stderr, 2)

    result = Command("list", "algos", environment={"PYTHONUNBUFFERED": ""}, preexec_fn=replace).finish()
    if status == 1:
        result.assert_one_line(1)
    else:
        assert (result.status, result.err) == (status, "")


@pytest.mark.slow
@pytest.mark.multiprocess
def test_a_run_waits_for_its_reader(tmp_path: Path) -> None:
    """A run whose console is a full pipe goes on when somebody reads it, however long that took: no worker hangs."""
    read, write = os.pipe()
    os.write(write, bytes(fcntl.fcntl(write, fcntl.F_GETPIPE_SZ)))
    words = ["train", "--env", "tests.helpers.toy_envs:Counting", *TINY, *WORKERS, "--env-timeout-s", 1]
    command = Command(*words, "--out", tmp_path / "run", preexec_fn=lambda: _replace_outputs(write))
    os.close(write)
    log = tmp_path / "run" / "log.txt"
    command.wait_for(lambda: log.exists() and log.read_text())  # the first message waits for a reader, too
    time.sleep(1.5)
    assert command.process.poll() is None and not (tmp_path / "run" / "summary.json").exists()
    with open(read, "rb") as reader:
        said = reader.read()
    assert command.finish().status == 0 and b"run folder" in said
