"""Tests of limits of a process, its user and its group: one line names the limit and the way out."""

import contextlib
import errno
import os
import re
import resource
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import accel_rl
from accel_rl.envs import EnvConfig
from accel_rl.errors import RunError, UsageError
from accel_rl.hardware.limits import check_threads, describe_exceeded_limit
from accel_rl.hardware.shared_memory import SharedArrays
from accel_rl.run_folder import checkpoint
from accel_rl.run_folder.checkpoint import CHECKPOINT
from tests.helpers.forks import probe_spec
from tests.helpers.processes import TINY, Command, Result
from tests.helpers.runs import TINY_RUN, TINY_SERIAL_RUN

USER = 54321  # a user without other processes
THREADS = [*TINY, "--learning-threads", 2]
QUEUED = ["--algo", "ga3c", "--envs", 2, "--predictors", 1, "--trainers", 1, "--eval-interval-steps", 0, "--no-report"]
LEARNERS = ["--devices", "cpu,cpu", "--sampler", "serial", "--envs", 4, "--eval-interval-steps", 0, "--no-report"]
OTHER_USER = pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can be another user")
FILES, PROCESSES = "may have {} files open; raise that limit", "no further process or thread can be started"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits and control groups in the way of Linux")


@contextlib.contextmanager
def limited(kind: int, soft: int) -> Iterator[None]:
    """Limits this process while entered."""
    before = resource.getrlimit(kind)
    resource.setrlimit(kind, (soft, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(kind, before)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that belongs to USER, who cannot read those of pytest."""
    with tempfile.TemporaryDirectory() as name:
        os.chown(name, USER, USER)
        command = [sys.executable, "-c", "import accel_rl"]
        try:
            subprocess.run(command, user=USER, cwd=name, capture_output=True, check=True)
        except (PermissionError, subprocess.CalledProcessError):
            pytest.skip("another user cannot read the package or its Python")
        yield Path(name)


def train(folder: Path, kind: int, limit: int, *flags: Any, user: int | None = USER) -> Result:
    words = ["train", "--env", "CartPole-v1", "--steps", 200, "--out", folder / "run", *flags]
    before = lambda: resource.setrlimit(kind, (limit, limit))  # noqa: E731
    return Command(*words, cwd=folder, environment={"HOME": str(folder)}, user=user, preexec_fn=before).finish()


def test_too_few_open_files(tmp_path: Path) -> None:
    """Too few open files give an error that names the limit and how to raise it, also in the log."""
    limit = len(os.listdir("/proc/self/fd")) + 6
    message = FILES.format(limit)
    with limited(resource.RLIMIT_NOFILE, limit), pytest.raises(RunError, match=message):
        accel_rl.train(**TINY_RUN, steps=40, out=tmp_path)
    assert re.search(f"ERROR .*{message}", (tmp_path / "log.txt").read_text())


def test_what_comes_from_a_limit() -> None:
    """Only errors that come from a limit on processes get advice on it, and only once."""
    refused = os.strerror(errno.EAGAIN)
    for error in (OSError(errno.EAGAIN, refused), RuntimeError("can't start new thread"), RuntimeError(refused)):
        assert PROCESSES in (advice := describe_exceeded_limit(error) or "") and "ulimit -u" in advice
        assert describe_exceeded_limit(RunError(advice)) is None
    others = [BlockingIOError(errno.EAGAIN, "write could not complete without blocking"), ValueError(), MemoryError()]
    assert not any(map(describe_exceeded_limit, [*others, OSError(errno.EPERM, "Operation not permitted")]))


@OTHER_USER
def test_threads_are_tried_before_openmp_needs_them() -> None:
    """Too few threads are reported before OpenMP fails, and the trial leaves no thread."""
    before = threading.active_count()
    check_threads(3)
    assert threading.active_count() == before
    code = (
        "import os, resource; from accel_rl.hardware.limits import check_threads;"
        f"resource.setrlimit(resource.RLIMIT_NPROC, (2, 2)); os.setuid({USER}); check_threads(2)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(accel_rl.__file__).parents[1], capture_output=True, text=True
    )
    assert ended.stderr.endswith("RuntimeError: can't start new thread\n") and ended.returncode == 1, ended.stderr


def test_memory_that_is_refused() -> None:
    """Refused shared memory is reported in one line with its size and the reason."""
    message = r"^cannot allocate 0\.4 MB of shared memory: File too large$"
    with limited(resource.RLIMIT_FSIZE, 4096), pytest.raises(RunError, match=message):
        SharedArrays({"x": ((100_000,), "float32")})


def test_an_answer_that_is_cut_off() -> None:
    """A process that cannot write its answer is reported in one line."""
    with (
        limited(resource.RLIMIT_FSIZE, 100),
        pytest.raises(RunError, match=r"^CartPole-v1: the process that built it exited with status 1$"),
    ):
        probe_spec(EnvConfig("CartPole-v1"))


@pytest.mark.slow
@pytest.mark.multiprocess
@OTHER_USER
@pytest.mark.parametrize(
    ("kind", "first", "step", "message", "flags"),
    [
        (resource.RLIMIT_NPROC, 1, 1, PROCESSES, THREADS),
        (resource.RLIMIT_NPROC, 3, 2, PROCESSES, QUEUED),
        (resource.RLIMIT_NPROC, 2, 3, PROCESSES, LEARNERS),
        (resource.RLIMIT_NOFILE, 9, 6, FILES, TINY),
    ],
)
def test_limits_up_to_the_one_that_is_enough(
    folder: Path, kind: int, first: int, step: int, message: str, flags: list[Any]
) -> None:
    """At each limit that is too low, a run ends with one line and can be started again."""
    for limit in range(first, first + 15 * step, step):
        result = train(folder, kind, limit, *flags)
        if result.status == 0:
            assert limit > first
            return
        assert result.status == 1 and "Traceback" not in result.err, (limit, result.err)
        errors = [line for line in result.err.splitlines() if line.startswith("accel-rl: ")]
        assert len(errors) == 1 and message.format(limit) in errors[0], (limit, result.err)
    raise AssertionError("no limit was enough")


@pytest.mark.slow
@pytest.mark.multiprocess
@OTHER_USER
def test_no_locked_memory_is_needed(folder: Path) -> None:
    assert train(folder, resource.RLIMIT_MEMLOCK, 0, *TINY).status == 0


@pytest.fixture
def group() -> Iterator[Path]:
    """A control group whose processes may use 900 MB together."""
    for limit, value in (("memory/{}/memory.limit_in_bytes", "900M"), ("{}/memory.max", "900M")):
        path = Path("/sys/fs/cgroup") / limit.format(f"accel_rl_test_{os.getpid()}")
        with contextlib.suppress(OSError):
            if (path.parents[1] / "cgroup.procs").exists():
                path.parent.mkdir()
                try:
                    path.write_text(value)
                    yield path.parent
                    return
                finally:
                    path.parent.rmdir()
    pytest.skip("no control group can be made here")


@pytest.mark.slow
@pytest.mark.multiprocess
def test_a_control_group_without_memory(group: Path, tmp_path: Path) -> None:
    """If a control group's memory runs out, the worker that took it is killed, and the command says so."""
    words = ["train", "--env", "tests.helpers.misbehaving_envs:Misbehaving", "--env-options", "{deed: memory leak}"]
    words += [*TINY, "--steps", 400, "--out", tmp_path / "run"]
    result = Command(*words, preexec_fn=lambda: (group / "cgroup.procs").write_text(str(os.getpid()))).finish()
    assert result.status == 1, result.err
    assert re.search(r"^accel-rl: worker [01] .* was killed by SIGKILL \(.* if memory ran out: ", result.err, re.M)


@OTHER_USER
def test_a_folder_that_may_not_be_written(tmp_path: Path) -> None:
    """A read-only folder is reported in one line at the start; one that becomes read-only keeps its last checkpoint."""
    for parent in tmp_path.parents:
        if parent.name.startswith(("pytest-", "popen-", tmp_path.name)):
            parent.chmod(0o755)
    tmp_path.chmod(0o555)
    run = tmp_path / "run"
    run.mkdir()
    os.chown(run, USER, USER)

    def forbid(row: dict[str, float]) -> None:
        run.chmod(0o555)

    settings = {**TINY_SERIAL_RUN, "log_interval_steps": 40, "checkpoint_interval_steps": 20}
    os.seteuid(USER)
    try:
        if not os.access(accel_rl.__file__, os.R_OK, effective_ids=True):
            pytest.skip("another user cannot read the package")
        with pytest.raises(UsageError, match=r"^cannot write the run's folder .*other: Permission denied$"):
            accel_rl.train(**settings, steps=60, out=tmp_path / "other")
        with pytest.raises(RunError, match=r"^could not write the checkpoint .*: Permission denied; the previous one"):
            accel_rl.train(**settings, steps=60, out=run, callbacks=[forbid])
    finally:
        os.seteuid(0)
    assert checkpoint.load(run / CHECKPOINT, trust=True)["steps"] == 20
