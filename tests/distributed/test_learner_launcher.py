"""The process that forks learners: what a learner inherits, how it ends, and what if the launcher is killed."""

import os
import signal
import sys
from collections.abc import Iterator
from multiprocessing.connection import Connection, Pipe
from typing import Any

import psutil
import pytest

from accel_rl.distributed.learner_launcher import LearnerLauncher, LearnerProcess, assert_safe_to_fork, describe_end
from accel_rl.errors import RunError

FORKED = "tests.helpers.forked_learner:main"
LIGHT = "tests.helpers.light_learner:main"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in the way of Linux")


class Family:
    """A launcher with two learners, each with a connection to this process and a memory file of its own."""

    def __init__(self, program: str) -> None:
        pipes = [Pipe() for _ in range(2)]
        self.files = [os.memfd_create(f"learner{rank}") for rank in range(2)]
        self.fds = [[theirs.fileno(), file] for (_, theirs), file in zip(pipes, self.files, strict=True)]
        self.connections: list[Connection[Any, Any]] = [ours for ours, _ in pipes]
        self.launcher = LearnerLauncher(program, self.fds)
        for _, theirs in pipes:
            theirs.close()
        self.learners: list[LearnerProcess] = self.launcher.launch()
        self.process = psutil.Process(self.learners[0].pid).parent()

    def close(self) -> None:
        self.launcher.close()
        for connection in self.connections:
            connection.close()
        for file in self.files:
            os.close(file)


@pytest.fixture
def family(request: pytest.FixtureRequest) -> Iterator[Family]:
    family = Family(getattr(request, "param", LIGHT))
    yield family
    family.close()


@pytest.mark.parametrize("family", [FORKED], indirect=True)
def test_a_forked_learner_is_like_a_process_of_its_own(family: Family) -> None:
    """Would catch descriptors of another learner, without which nobody notices that it is gone; threads of the launcher
    or of its imports; OpenMP that hangs after a fork; and learners that draw the same numbers."""
    assert family.process.num_threads() == 1
    found = [connection.recv() for connection in family.connections]
    for rank, findings in enumerate(found):
        assert findings.fds.keys() == {*family.fds[rank]}
        assert [target for target in findings.fds.values() if "memfd" in target] == [f"/memfd:learner{rank} (deleted)"]
        assert findings.num_threads == 1
        assert findings.openblas_threads == os.environ.get("OPENBLAS_NUM_THREADS")
        assert findings.sum_with_two_threads == 10**6
    assert found[0].noise != found[1].noise


def test_the_supervisor_is_told_how_a_learner_ended(family: Family) -> None:
    """Would catch a status that gets lost on its way, and a wait that cannot end before the learner does."""
    assert [learner.wait(0.0) for learner in family.learners] == [None, None]
    family.connections[0].send(3)
    os.kill(family.learners[1].pid, signal.SIGKILL)
    assert [learner.wait() for learner in family.learners] == [3, -signal.SIGKILL]
    assert [learner.wait() for learner in family.learners] == [3, -signal.SIGKILL]
    assert describe_end(3) == "exited with status 3" and describe_end(-9) == "was killed by SIGKILL"


def test_closing_leaves_no_learner(family: Family) -> None:
    """Would catch learners that go on after the supervisor is done with them."""
    processes = [family.process, *(psutil.Process(learner.pid) for learner in family.learners)]
    family.launcher.close()
    assert not any(process.is_running() for process in processes)


def test_learners_end_with_a_killed_launcher(family: Family) -> None:
    """Would catch learners that nobody can wait for, and a supervisor that waits for an answer for ever."""
    processes = [psutil.Process(learner.pid) for learner in family.learners]
    family.process.kill()
    with pytest.raises(RunError, match="the process that starts the learners was killed by SIGKILL"):
        family.learners[0].wait()
    psutil.wait_procs(processes, timeout=60)
    assert not any(process.is_running() for process in processes)


def test_a_process_with_threads_or_cuda_refuses_to_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch an import that starts threads or CUDA, and learners that hang for it much later."""
    monkeypatch.setattr(os, "listdir", lambda _: ["1", "2"])
    with pytest.raises(RuntimeError, match="importing what they need has started 1 threads"):
        assert_safe_to_fork()
    monkeypatch.setattr(os, "listdir", lambda _: ["1"])
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: True)
    with pytest.raises(RuntimeError, match="has initialized CUDA"):
        assert_safe_to_fork()


def test_a_program_that_cannot_be_imported_is_reported(capfd: Any) -> None:
    """Would catch a supervisor that waits for learners that are never forked."""
    launcher = LearnerLauncher("tests.helpers.no_such_module:main", [])
    with pytest.raises(RunError, match="the process that starts the learners exited with status 1"):
        launcher.launch()
    launcher.close()
    assert "no_such_module" in capfd.readouterr().err
