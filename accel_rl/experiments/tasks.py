"""Trains runs to their ends, each in a separate process that an executor starts."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from accel_rl.config.fields import flag_of
from accel_rl.config.sources import dump_yaml, read_settings
from accel_rl.errors import UsageError
from accel_rl.hardware.signals import StopSignal
from accel_rl.processes.child import stop_with_parent
from accel_rl.processes.spawning import spawn
from accel_rl.run_folder.checkpoint import CHECKPOINT
from accel_rl.run_folder.directory import CHANGEABLE_AFTER_FAILURE, SEEN_WITHIN_S, changed_settings, summarized_steps
from accel_rl.run_folder.lock import is_being_written
from accel_rl.settings.resolve import Config
from accel_rl.settings.sampler_kinds import SAMPLER_KINDS

TAIL_LINES = 10  # lines shown of a failed run's console output
LAST_WRITER_S = 60.0  # the longest wait for an earlier process to write its checkpoint
NO_RESULT = 255  # the status of a run whose result the cluster does not know
LEFT_TO_THE_MACHINE = ("precision", *(name for kind in SAMPLER_KINDS.values() for name in kind.left_to_the_machine))
"""Settings that the machine decides unless they are given."""
UNDECIDED = (None, "auto", "fast")


@dataclass(frozen=True)
class Task:
    """A run in its folder, to be trained up to a number of steps.

    settings: those of a new run, without its devices; resume_settings: those to continue from a checkpoint."""

    name: str
    folder: Path
    settings: dict[str, Any]
    resume_settings: dict[str, Any]
    steps: int
    learners: int = 1

    @property
    def finished(self) -> bool:
        return summarized_steps(self.folder) >= self.steps

    @property
    def console(self) -> Path:
        """The file to which the run's output is added."""
        return self.folder.with_name(f"{self.folder.name}.txt")

    def summary(self) -> dict[str, Any]:
        return dict(json.loads((self.folder / "summary.json").read_text()))

    def score(self) -> float | None:
        """Returns the mean score of the last 100 games when the run reached its steps; None if no game had ended.

        The run may have gone on since then."""
        with (self.folder / "progress.csv").open() as file:
            rows = (row for row in csv.DictReader(file) if float(row["time/total_timesteps"]) >= self.steps)
            score = next(rows, {}).get("rollout/ep_rew_mean")  # no column before the first game has ended
        return float(score) if score else None

    def start(
        self, placement: dict[str, Any], trust: bool = False, cwd: str | None = None
    ) -> "subprocess.Popen[bytes]":
        """Starts or resumes the run in a process that ends with this one.

        placement: its settings for this machine. cwd: the folder of its relative paths (None: this process's). Waits
        while an earlier process, whose starter was killed, writes a checkpoint."""
        deadline = time.monotonic() + LAST_WRITER_S
        while is_being_written(self.folder) and time.monotonic() < deadline:
            time.sleep(0.05)
        if (self.folder / CHECKPOINT).exists():
            arguments = ["--resume", str(self.folder), *(["--trust"] if trust else [])]
            settings = self.resume_settings
        else:
            file = self.folder.with_name(f"{self.folder.name}.yaml")
            file.write_text(dump_yaml(self.settings))
            arguments = ["--config", str(file), "--out", str(self.folder), "--overwrite"]
            settings = {"steps": self.steps}  # a sweep's file has the steps of its last rung
        for name, value in {**settings, **placement}.items():
            arguments += [flag_of(name), "null" if value is None else str(value)]
        with self.console.open("ab") as console:
            begin = partial(_begin, os.getpid())
            return spawn(
                "accel_rl", "train", *arguments, stdout=console, stderr=subprocess.STDOUT, preexec_fn=begin, cwd=cwd
            )


def _begin(parent: int) -> None:
    stop_with_parent(parent)
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # Slurm warns all processes of a job; submitit reacts


def inspect_run(
    name: str, folder: Path, settings: dict[str, Any], config: Config, steps: int, learners: int = 1
) -> Task:
    """Returns the task of training a run up to this many steps. config: the run's resolved settings.

    Raises UsageError if its folder holds a run with other settings, or from another version."""
    resume_settings: dict[str, Any] = {"steps": steps}
    if (folder / "config.yaml").exists():
        saved, values = read_settings(folder), config.as_dict()
        if saved.get("algo") == values["algo"] and (others := saved.keys() ^ values.keys()):
            ways_out = f"finish it with that, use another --out or remove {folder}"
            raise UsageError(f"{name} is from another version of accel_rl ({', '.join(sorted(others))}); {ways_out}")
        # The machine's decisions were made where the run began.
        undecided = [each for each in LEFT_TO_THE_MACHINE if settings.get(each) in UNDECIDED]
        values |= {each: saved[each] for each in undecided if each in saved}
        if changed := changed_settings(folder, saved, values):
            differences = ", ".join(f"{each}={saved.get(each)!r} (now {values[each]!r})" for each in changed)
            hint = "to change the steps, set schedule_steps to its old value; " if "schedule_steps" in changed else ""
            way_out = f"to start over, use another --out or remove {folder}"
            raise UsageError(f"{name} was started with {differences}; {hint}{way_out}")
        resume_settings |= {each: values[each] for each in CHANGEABLE_AFTER_FAILURE if values[each] != saved.get(each)}
    return Task(name, folder, settings, resume_settings, steps, learners)


class Job(Protocol):
    """A task that an executor has started."""

    def poll(self) -> int | None:
        """Returns the exit status; None before the end, NO_RESULT if it is unknown."""

    def stop(self) -> None:
        """Asks the run to write a checkpoint and to end."""

    def kill(self) -> None:
        """Ends the run at once, if this process can."""


class Executor(Protocol):
    """A place where runs are trained. description: for messages; poll_s: seconds between polls of its jobs."""

    description: str
    poll_s: float

    def check_settings(self, learners: int) -> dict[str, Any]:
        """Returns the settings that check a run with this many learners before anything starts.

        Raises UsageError if there is no place for such a run."""

    def start(self, task: Task) -> Job | None:
        """Starts or resumes a task; returns None as long as there is no room for it."""


class Failure(NamedTuple):
    """A task that has failed, and its exit status."""

    task: Task
    status: int


def run_tasks(tasks: Sequence[Task], executor: Executor) -> list[Failure]:
    """Trains the unfinished tasks in order; returns the failed ones.

    A task that waits for room holds back all behind it; otherwise a run on all devices would never find them free.
    Raises KeyboardInterrupt or SystemExit after a signal, once all runs have written their checkpoints."""
    waiting = [task for task in tasks if not task.finished]
    active: list[tuple[Task, Job]] = []
    failed: list[Failure] = []
    asked = False
    _print(f"runs: {len(tasks)}, already finished: {len(tasks) - len(waiting)}; on {executor.description}")
    with StopSignal() as stop:
        stop.ready()
        try:
            while active or (waiting and not stop):
                while waiting and not stop and (job := executor.start(waiting[0])):
                    active.append((waiting.pop(0), job))
                if stop and not asked:
                    asked = True
                    for _, job in active:
                        job.stop()
                for task, job in [*active]:
                    if (status := job.poll()) is not None:
                        active.remove((task, job))
                        if not _succeeded(task, status, bool(stop)):
                            failed.append(Failure(task, status))
                time.sleep(executor.poll_s)
        finally:
            for _, job in active:
                job.kill()
    if stop:
        _print("stopped; the same command continues from here")
        stop.leave()
    return failed


def _succeeded(task: Task, status: int, stopped: bool) -> bool:
    """Prints how a run has ended; returns True for success. A run that was asked to stop counts as a success."""
    deadline = time.monotonic() + SEEN_WITHIN_S
    while status == 0 and not task.finished and time.monotonic() < deadline:
        time.sleep(0.05)
    if status == 0 and task.finished:
        summary = task.summary()
        score = "no game finished" if summary["ep_rew_mean"] is None else f"score {summary['ep_rew_mean']:.1f}"
        _print(f"{task.name} has finished: {score}, {summary['fps']:,.0f} steps/s")
        return True
    _print(f"{task.name} {'has stopped' if stopped else f'has failed with status {status}'}")
    return stopped


def print_failures(failed: Sequence[Failure]) -> None:
    """Prints the last lines of each failed run's output."""
    for task, _ in failed:
        print(f"\n{task.name} has failed; {task.console} ends with:", file=sys.stderr)
        lines = task.console.read_text(errors="replace").splitlines() if task.console.exists() else []
        print("".join(f"    {line}\n" for line in lines[-TAIL_LINES:]), end="", file=sys.stderr)


def print_start(task: Task, where: str) -> None:
    """Prints that a run starts or resumes, and where."""
    _print(f"{task.name} {'resumes' if (task.folder / CHECKPOINT).exists() else 'starts'} on {where}")


def _print(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {text}", flush=True)
