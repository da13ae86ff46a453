"""Contestants in separate processes, which take turns by a line protocol.

benchmarks/drivers/turns.py describes the protocol and has its other end."""

import json
import os
import select
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from accel_rl.bench.timing import Shares
from process_tree import ProcessTree

DRIVERS = Path(__file__).parent / "drivers"
BUILD_TIMEOUT_S = 300.0
TURN_TIMEOUT_S = 120.0  # beyond the turn's seconds, to finish the current iteration
POLL_S = 0.5  # between two checks that the driver is alive


class PeerProcess:
    """A driver program that runs in turns; between them all its processes are stopped.

    facts: the driver's report on its set-up. steps, updates: totals of all turns. Raises RunError, with the end of the
    driver's output, if it ends or takes too long."""

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None):
        self.name = name
        self.shares: Shares = {}
        self.steps = self.updates = 0
        if environment is None:
            environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        self.tree = ProcessTree(f"the driver of {name}", command, environment, subprocess.PIPE, subprocess.PIPE)
        self._unread = b""
        try:
            self.facts: dict[str, Any] = self._receive(BUILD_TIMEOUT_S)["ready"]
            self.tree.pause()
        except BaseException:
            self.close()
            raise

    def run(self, seconds: float) -> float:
        """Takes a turn; returns steps/s by the driver's own clock, over the finished iterations."""
        answer = self.ask(f"run {seconds}", seconds + TURN_TIMEOUT_S)
        self.steps += answer["steps"]
        self.updates += answer["updates"]
        return float(answer["steps"] / answer["seconds"])

    def ask(self, request: str, timeout_s: float) -> dict[str, Any]:
        """Sends a request (a line of text), lets all processes run until the driver answers, and returns the answer."""
        assert self.tree.process.stdin
        self.tree.resume()
        try:
            self.tree.process.stdin.write(f"{request}\n".encode())
        except BrokenPipeError:
            raise self.tree.error("has ended") from None
        answer = self._receive(timeout_s)
        self.tree.pause()
        return answer

    def _receive(self, timeout_s: float) -> dict[str, Any]:
        """Returns the object of the next line."""
        assert self.tree.process.stdout
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._unread:
            if select.select([self.tree.process.stdout], [], [], POLL_S)[0]:
                received = os.read(self.tree.process.stdout.fileno(), 65536)
                if not received:
                    raise self.tree.error("has ended")
                self._unread += received
            elif self.tree.process.poll() is not None:  # its children may still hold the pipe open
                raise self.tree.error("has ended")
            elif time.monotonic() > deadline:
                raise self.tree.error(f"has not answered for {timeout_s:.0f} s")
        line, self._unread = self._unread.split(b"\n", 1)
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """Ends all processes of the driver; returns once they are gone."""
        self.tree.close()


def driver_command(python: Path | str, driver: str, settings: dict[str, Any]) -> list[str]:
    """Returns the command that runs a driver by its name with these options."""
    return [str(python), str(DRIVERS / f"{driver}.py"), *(f"--{name}={value}" for name, value in settings.items())]
