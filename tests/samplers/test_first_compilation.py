"""Tests of the native simulator's first use, which compiles it once, before workers are timed, and leaves nothing
behind."""

import subprocess
import time
from pathlib import Path

import psutil
import pytest

from accel_rl.envs.batches.env_batch import BatchConfig
from accel_rl.envs.spec import EnvConfig
from accel_rl.processes import spawning
from accel_rl.processes.fork_server import ForkServer
from accel_rl.samplers.worker_pool import simulator_server
from tests.helpers.processes import run

PONG = BatchConfig(EnvConfig("pong", simulator="native"), seed=0, reset_mode="reserve")


def launcher(numba: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> ForkServer:
    """Returns a launcher with an empty cache whose Numba is this program."""
    monkeypatch.setattr(spawning, "subprocess", subprocess)  # a new process, which has imported no Numba yet
    (path / "numba.py").write_text(numba)
    monkeypatch.syspath_prepend(path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(path))
    return simulator_server("accel_rl.samplers.worker:main", PONG, [])


@pytest.mark.multiprocess
def test_interrupted_while_it_is_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing the launcher during compilation ends the compiling processes."""
    marker, others = tmp_path / "compiles", {*psutil.Process().children()}
    started = launcher(f"import time\nopen({str(marker)!r}, 'w')\ntime.sleep(1000)", tmp_path, monkeypatch)
    while not marker.exists():
        time.sleep(0.01)
    (server,) = {*psutil.Process().children()} - others
    processes = server.children()
    assert len(processes) == 1
    started.close()
    assert psutil.wait_procs(processes, timeout=60)[1] == []


@pytest.mark.multiprocess
@pytest.mark.slow
def test_it_is_compiled_once_and_not_against_the_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two learners compile once, and the compilation does not count as build time."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    flags = ["--steps", 200, "--envs", 4, "--decorrelation-steps", 0, "--eval-interval-steps", 0]
    flags += ["--devices", "cpu,cpu", "--env-build-timeout-s", 6, "--out", tmp_path / "run"]
    result = run("train", "--simulator", "native", *flags, within_s=240)  # a busy machine compiles for a minute
    assert result.status == 0, result.err
    assert result.err.count("compiling the Atari emulator") == result.err.count("compiled command") == 1
