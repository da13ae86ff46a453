"""Runs the self-test: `accel-rl train` for a few seconds, in a separate process and a temporary folder."""

import contextlib
import csv
import os
import re
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

from accel_rl.doctor.finding import Problem
from accel_rl.errors import describe_error
from accel_rl.processes.spawning import describe_exit, spawn

STEPS = {"CartPole-v1": 10_000, "pong": 4_000}
TIMEOUT_S = 180.0  # includes the process's start and the first loading of kernels
FLAGS = ["--eval-interval-steps", "0", "--decorrelation-steps", "0", "--no-tensorboard", "--no-report"]


class Trial(NamedTuple):
    """The result of a training. rate: steps/s of its second half; 0 if it failed. failure: the reason; else empty.

    settings: the lines in which the run describes itself, text by name."""

    env: str
    rate: float = 0.0
    failure: str = ""
    settings: tuple[tuple[str, str], ...] = ()

    @property
    def text(self) -> str:
        return f"failed: {self.failure}" if self.failure else f"{self.rate:,.0f} steps/s"

    @property
    def problems(self) -> tuple[Problem, ...]:
        if not self.failure:
            return ()
        command = f"accel-rl train --env {self.env} --steps 20000 (shows the whole error)"
        return (Problem("error", f"train {self.env}: {self.failure}", command, self.failure),)


def train(env: str) -> Trial:
    """Trains A2C with its default settings in an environment."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as said:
        steps, out = STEPS[env], Path(folder) / "run"
        words = [f"--env={env}", f"--steps={steps}", f"--log-interval-steps={steps // 2}", f"--out={out}", *FLAGS]
        try:
            failure = _run(words, said.fileno())
        except OSError as error:
            return Trial(env, failure=describe_error(error))
        said.seek(0)
        lines = said.read().splitlines()
        if failure:
            return Trial(env, failure=f"{failure}: {_reason(lines)}")
        rows = list(csv.DictReader((out / "progress.csv").read_text().splitlines()))
        # "workers     2, of 8 environments each" is a name and a setting; "--precision bf16 ..." is advice.
        matches = filter(None, (re.match(r"(?:(\w+) {2,}|(?=--))(.+)", line) for line in lines[1:]))
        settings = [("run", lines[0]), *((match[1] or "advice", match[2]) for match in matches)]
        return Trial(env, float(rows[-1]["time/fps"]), settings=tuple(settings))


def _run(words: list[str], said: int) -> str:
    """Runs `accel-rl train`; returns how it failed, or "". said: the descriptor of a file for its messages."""
    process = spawn("accel_rl", "train", *words, stdout=subprocess.DEVNULL, stderr=said)
    try:
        status = process.wait(TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return f"its process hung for {TIMEOUT_S:g} s"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return f"its process {describe_exit(status)}" if status else ""


def _reason(lines: list[str]) -> str:
    """Returns the last line that names an error, or else the last line."""
    errors = [line for line in lines if re.match(r"accel-rl: |[\w.]*(Error|Exception)\b", line)]
    return (errors or lines or ["it printed nothing"])[-1].removeprefix("accel-rl: ")
