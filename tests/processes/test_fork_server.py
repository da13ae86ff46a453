"""Tests of the process that forks others: what a child inherits, how it ends, and when the server is killed."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from accel_rl.errors import RunError, UsageError
from accel_rl.processes.fork_server import Child, ForkServer, assert_safe_to_fork
from accel_rl.processes.pool import ProcessPool
from accel_rl.processes.spawning import describe_exit

FORKED = "tests.processes.forked_child:main"
LIGHT = "tests.processes.light_child:main"
LOST = "the process that starts the learners {how}"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in the way of Linux")


class Family:
    """A server with two children, each with its own memory file."""

    def __init__(self, program: str) -> None:
        self.files = [os.memfd_create(f"child{index}") for index in range(2)]
        self.server = ForkServer(program, self.files, LOST)
        self.children: list[Child] = [self.server.launch(None, [file]) for file in self.files]
        self.server.release_fds()
        self.process = psutil.Process(self.children[0].pid).parent()

    def close(self) -> None:
        self.server.close(self.children)
        for file in self.files:
            os.close(file)


@pytest.fixture
def family(request: pytest.FixtureRequest) -> Iterator[Family]:
    family = Family(getattr(request, "param", LIGHT))
    yield family
    family.close()


@pytest.mark.parametrize("family", [FORKED], indirect=True)
def test_a_forked_child_is_like_a_process_of_its_own(family: Family) -> None:
    """A forked child has only its own descriptors, one thread, working OpenMP and its own random numbers."""
    assert family.process.num_threads() == 1
    assert not {str(file) for file in family.files} & {*os.listdir(f"/proc/{family.process.pid}/fd")}
    found = [child.control.recv() for child in family.children]
    for index, findings in enumerate(found):
        assert findings.fds.keys() == {family.files[index], findings.connection}
        assert findings.fds[family.files[index]] == f"/memfd:child{index} (deleted)"
        assert findings.num_threads == 1
        assert findings.oom_score == min(1000, int(Path("/proc/self/oom_score_adj").read_text()) + 500)
        assert findings.openblas_threads == os.environ.get("OPENBLAS_NUM_THREADS")
        assert findings.sum_with_two_threads == 10**6
    assert found[0].noise != found[1].noise


def test_the_parent_is_told_how_a_child_ended(family: Family) -> None:
    """The parent learns a child's exit status or signal."""
    first, second = family.children
    assert first.poll() is None and second.poll() is None
    first.send(3)
    os.kill(second.pid, signal.SIGKILL)
    assert first.receive(60.0) == ("died", "exited with status 3")
    assert second.receive(60.0) == ("died", describe_exit(-signal.SIGKILL))
    assert (first.poll(), second.poll()) == (3, -signal.SIGKILL)
    assert describe_exit(3) == "exited with status 3" and describe_exit(-15) == "was killed by SIGTERM"
    assert describe_exit(-9).startswith("was killed by SIGKILL (by the system, if memory ran out")


def test_a_child_that_only_hangs_up_is_told_from_one_that_has_ended() -> None:
    """A child that closes its connection but does not end is not said to have exited."""
    server = ForkServer("tests.processes.light_child:hang_up", [], LOST)
    child = server.launch(None)
    try:
        assert child.receive(0.0) == ("died", "has closed its connection but still runs")
    finally:
        server.close([child])


def test_children_end_with_a_killed_server(family: Family) -> None:
    processes = [psutil.Process(child.pid) for child in family.children]
    family.process.kill()
    with pytest.raises(RunError, match="the process that starts the learners was killed by SIGKILL"):
        family.children[0].poll()
    psutil.wait_procs(processes, timeout=60)
    assert not any(process.is_running() for process in processes)


def test_what_children_leave_behind_ends() -> None:
    """Processes that a child leaves behind end with it, and other children's stay until they end."""
    server = ForkServer("tests.processes.light_child:leave_behind", [], LOST)
    first, second = server.launch(None), server.launch(None)
    left = {child: [*map(psutil.Process, child.control.recv())] for child in (first, second)}
    first.send(0)
    assert first.wait() == 0
    server.launch(None)  # replaces the first one
    assert not any(process.is_running() for process in left[first])
    assert second.poll() is None and all(process.is_running() for process in left[second])
    server.close([second])
    assert not any(process.is_running() for process in left[second])


def test_a_process_with_threads_or_cuda_refuses_to_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "listdir", lambda _: ["1", "2"])
    with pytest.raises(RuntimeError, match="importing what they need has started 1 threads"):
        assert_safe_to_fork()
    monkeypatch.setattr(os, "listdir", lambda _: ["1"])
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: True)
    with pytest.raises(RuntimeError, match="has initialized CUDA"):
        assert_safe_to_fork()


def test_a_program_that_cannot_be_imported_is_reported(capfd: Any) -> None:
    """A program that cannot be imported ends the server, and the parent gets an error."""
    server = ForkServer("tests.helpers.no_such_module:main", [], LOST)
    with pytest.raises(RunError, match="the process that starts the learners exited with status 1"):
        server.launch(None)
    server.close()
    assert "no_such_module" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("argument", "error", "message"),
    [
        ("disk", RunError, "the process that starts the learners exited with status 1"),
        ("path", UsageError, "imports from .*/a:b$"),
    ],
)
def test_what_prepares_may_fail(
    argument: str, error: type[Exception], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    """A failure of the preparation reaches the parent as its own error, even for paths with colons."""
    monkeypatch.syspath_prepend(tmp_path / "a:b")
    server = ForkServer(LIGHT, [], LOST, "tests.processes.light_child:fail", argument)
    with pytest.raises(error, match=message):
        server.launch(None)
    server.close()
    assert argument == "path" or "no space is left" in capfd.readouterr().err


def test_a_child_that_is_removed_is_not_waited_for() -> None:
    """A child that is removed while the pool collects answers is not waited for."""
    pool = ProcessPool("agent", ForkServer(LIGHT, [], LOST), str)
    watched = list[str]()
    for index, status in enumerate((1, 0)):
        pool.launch(index, None)
        pool.children[index].send(status)

    def receive(index: int) -> tuple[str, Any]:
        pool.remove(index)
        return "retired", None

    assert pool.collect("done", [0, 1], receive, lambda late: watched.extend(map(pool.describe, late)), 1) == {}
    pool.close(0.0)
    assert not pool.children
