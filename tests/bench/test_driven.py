"""Contestants in processes of their own: the line protocol, and that nothing of them works, or lives, out of turn."""

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

import accel_rl.bench.driven
from accel_rl.bench.driven import Driven, driver_command
from accel_rl.errors import RunError

DRIVERS = Path(accel_rl.bench.driven.__file__).parent / "drivers"

# Iterations of 10 steps and 2 updates take 20 ms. Its child holds the pipes, too, and goes on by itself: a file grows.
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
def driven(command: list[str]) -> Iterator[Driven]:
    contestant = Driven("peer", command)
    yield contestant
    contestant.close()


def ends(processes: list[psutil.Process], within_s: float = 5.0) -> bool:
    def left() -> bool:
        return any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in processes)

    return wait_until(lambda: not left(), within_s)


def wait_until(fact: Callable[[], bool], within_s: float = 5.0) -> bool:
    deadline = time.monotonic() + within_s
    while not fact():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def test_turns_are_whole_iterations(driven: Driven) -> None:
    """Would catch a rate over the time asked for, updates that are counted twice, and prints that look like answers."""
    assert driven.facts == {"parameters": 3}
    rates = [driven.run(0.05) for _ in range(3)]
    assert all(0 < rate <= 10 / 0.02 for rate in rates)
    assert driven.steps % 10 == 0 and driven.steps >= 3 * 10
    assert driven.steps / driven.updates == 5


def test_nothing_goes_on_between_turns(driven: Driven) -> None:
    """Would catch an asynchronous peer that works in the others' turns, for which its rate would then be too good."""
    grows = Path(driven._scratch.name) / "grows"
    driven.run(0.1)
    before = grows.stat().st_size
    time.sleep(0.2)
    assert grows.stat().st_size == before
    driven.run(0.1)
    assert grows.stat().st_size > before


def test_time_out_of_turn_does_not_count(driven: Driven) -> None:
    """Would catch a clock that goes on while the process is stopped."""
    driven.run(0.05)
    time.sleep(0.5)
    start = time.perf_counter()
    rate = driven.run(0.05)
    took = time.perf_counter() - start
    assert rate >= 10 / took, "one iteration at least, in less than the turn took"


def test_close_leaves_nothing(command: list[str]) -> None:
    """Would catch stopped processes that stay for ever, and folders of theirs."""
    contestant = Driven("peer", command)
    processes, scratch = contestant._processes(), Path(contestant._scratch.name)
    assert len(processes) == 2
    contestant.close()
    assert ends(processes, 0.1) and not scratch.exists()


@pytest.mark.skipif(sys.platform != "linux", reason="relies on the kernel hanging up orphaned groups that are stopped")
@pytest.mark.parametrize("in_turn", [False, True])
def test_nothing_outlives_a_killed_benchmark(command: list[str], tmp_path: Path, in_turn: bool) -> None:
    """Would catch stopped or working processes that stay after kill -9."""
    code = f"""
from accel_rl.bench.driven import Driven
contestant = Driven("peer", {command!r})
print(*[process.pid for process in contestant._processes()], flush=True)
contestant.run({1.0 if in_turn else 0.05})
print("its turn is over", flush=True)
input()
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(tmp_path)}
    benchmark = subprocess.Popen(
        [sys.executable, "-c", code], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert benchmark.stdin and benchmark.stdout
    processes = [psutil.Process(int(pid)) for pid in benchmark.stdout.readline().split()]
    assert len(processes) == 2
    if not in_turn:
        assert benchmark.stdout.readline()
    benchmark.send_signal(signal.SIGKILL)
    benchmark.wait()
    benchmark.stdin.close()
    benchmark.stdout.close()
    assert ends(processes)


@pytest.mark.parametrize("while_building", [True, False])
def test_a_driver_that_fails_says_why(tmp_path: Path, while_building: bool) -> None:
    """Would catch a benchmark that hangs, or reports only that something went wrong in another process."""
    code = f"import sys\nsys.path.insert(0, {str(DRIVERS)!r})\nfrom turns import Turns\n"
    code += "raise ValueError('no game')" if while_building else "Turns(int).ready()\nraise ValueError('no game')"
    (tmp_path / "driver.py").write_text(code)

    def play() -> None:
        contestant = Driven("peer", [sys.executable, str(tmp_path / "driver.py")])
        try:
            contestant.run(0.05)
        finally:
            contestant.close()

    with pytest.raises(RunError, match=r"the driver of peer has ended(.|\n)*ValueError: no game"):
        play()


def test_a_driver_that_is_killed_is_noticed(driven: Driven) -> None:
    """Would catch waiting for ever on a pipe that the driver's children hold open."""
    os.kill(driven._driver.pid, signal.SIGKILL)
    driven._driver.wait()
    with pytest.raises(RunError, match="has ended"):
        driven.run(0.05)


def test_drivers_stand_alone() -> None:
    """Would catch a driver that needs this package, or anything of ours that a peer's environment lacks."""
    for path in DRIVERS.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any(name.split(".")[0] == "accel_rl" for name in names), path
    command = driver_command("/some/python", "sb3", {"game": "Pong", "envs": 16})
    assert command[0] == "/some/python" and Path(command[1]).exists() and command[2:] == ["--game=Pong", "--envs=16"]
