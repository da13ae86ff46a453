"""Contestants in their own processes follow the line protocol, run only in their turns, and leave nothing behind."""

import ast
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from accel_rl.errors import RunError
from peer_process import DRIVERS, PeerProcess, driver_command
from process_tree import is_alive

LIMIT_S = 60.0  # for events that are immediate on an idle machine

# Iterations of 10 steps and 2 updates take 20 ms. A child inherits the pipes and lets a file grow in the background.
DRIVER = """
import os, subprocess, sys, time
sys.path.insert(0, sys.argv[1])
from turns import Turns

subprocess.Popen([sys.executable, "-c", '''
import time
while True:
    with open("grows", "a") as file:
        file.write(".")
    time.sleep(0.005)
'''], close_fds=False)
while not os.path.exists("grows"):
    time.sleep(0.005)
updates = 0
turns = Turns(lambda: updates)
print("printed by a library")
turns.ready(parameters=3)
while True:
    time.sleep(0.02)
    updates += 2
    turns.iterated(10)
"""


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    (tmp_path / "driver.py").write_text(DRIVER)
    return [sys.executable, str(tmp_path / "driver.py"), str(DRIVERS)]


@pytest.fixture
def peer(command: list[str]) -> Iterator[PeerProcess]:
    contestant = PeerProcess("peer", command)
    yield contestant
    contestant.close()


def have_ended(processes: list[psutil.Process]) -> bool:
    return not any(process.is_running() and is_alive(process) for process in processes)


def wait_until(is_true: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + LIMIT_S
    while not is_true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def test_turns_are_whole_iterations(peer: PeerProcess) -> None:
    """Rates count whole iterations over their own time, updates count once, and prints are not answers."""
    assert peer.facts == {"parameters": 3}
    rates = [peer.run(0.05) for _ in range(3)]
    assert all(0 < rate <= 10 / 0.02 for rate in rates)
    assert peer.steps % 10 == 0 and peer.steps >= 3 * 10
    assert peer.steps / peer.updates == 5


def test_nothing_runs_between_turns(peer: PeerProcess) -> None:
    """A peer does nothing between its turns, not even in background processes."""
    grows = peer.tree.folder / "grows"
    peer.run(0.1)
    before = grows.stat().st_size
    time.sleep(0.2)
    assert grows.stat().st_size == before
    assert wait_until(lambda: peer.run(0.05) > 0 and grows.stat().st_size > before)


def test_time_between_turns_does_not_count(peer: PeerProcess) -> None:
    """A peer's clock excludes the time in which it is stopped."""
    peer.run(0.05)
    time.sleep(0.5)
    start = time.perf_counter()
    rate = peer.run(0.05)
    took = time.perf_counter() - start
    assert rate >= 10 / took, "at least one iteration, in no more time than the turn took"


def test_close_leaves_nothing(command: list[str]) -> None:
    """Closing a contestant ends its stopped processes and removes their folder."""
    contestant = PeerProcess("peer", command)
    processes, folder = contestant.tree.processes(), contestant.tree.folder
    assert len(processes) == 2
    contestant.close()
    assert have_ended(processes) and not folder.exists()


@pytest.mark.skipif(sys.platform != "linux", reason="relies on the kernel to hang up orphaned groups")
def test_nothing_outlives_a_killed_benchmark(command: list[str], tmp_path: Path) -> None:
    """Stopped processes do not outlive a benchmark that is ended by kill -9."""
    code = f"""
from peer_process import PeerProcess
contestant = PeerProcess("peer", {command!r})
print(*[process.pid for process in contestant.tree.processes()], flush=True)
contestant.run(0.05)
print("its turn is over", flush=True)
input()
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(tmp_path)}
    benchmark = subprocess.Popen(
        [sys.executable, "-c", code], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert benchmark.stdin and benchmark.stdout
    processes = [psutil.Process(int(pid)) for pid in benchmark.stdout.readline().split()]
    assert len(processes) == 2 and benchmark.stdout.readline()
    benchmark.send_signal(signal.SIGKILL)
    benchmark.wait()
    benchmark.stdin.close()
    benchmark.stdout.close()
    assert wait_until(lambda: have_ended(processes))


@pytest.mark.parametrize("while_building", [True, False])
def test_a_driver_that_fails_says_why(tmp_path: Path, while_building: bool) -> None:
    """A driver that fails ends the benchmark with the driver's own traceback."""
    code = f"import sys\nsys.path.insert(0, {str(DRIVERS)!r})\nfrom turns import Turns\n"
    code += "raise ValueError('no game')" if while_building else "Turns(int).ready()\nraise ValueError('no game')"
    (tmp_path / "driver.py").write_text(code)

    def play() -> None:
        contestant = PeerProcess("peer", [sys.executable, str(tmp_path / "driver.py")])
        try:
            contestant.run(0.05)
        finally:
            contestant.close()

    with pytest.raises(RunError, match=r"the driver of peer has ended(.|\n)*ValueError: no game"):
        play()


def test_a_driver_that_is_killed_is_noticed(peer: PeerProcess) -> None:
    """A killed driver is noticed even if its children hold the pipe open."""
    os.kill(peer.tree.process.pid, signal.SIGKILL)
    peer.tree.process.wait()
    with pytest.raises(RunError, match="has ended"):
        peer.run(0.05)


def test_drivers_stand_alone() -> None:
    """Drivers import nothing of this package, which a peer's environment lacks."""
    for path in (DRIVERS / name for name in ("appo.py", "sb3.py", "sb3_envpool.py", "turns.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any(name.split(".")[0] == "accel_rl" for name in names), path
    command = driver_command("/some/python", "sb3", {"game": "Pong", "envs": 16})
    assert command[0] == "/some/python" and Path(command[1]).exists() and command[2:] == ["--game=Pong", "--envs=16"]
