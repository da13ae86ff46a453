"""Trains while faults come at random times, and records the reports, their delays, and lost steps.

    python benchmarks/stress/chaos.py [--minutes 60] [--seed N] [--json FILE]

Runs follow each other until the time is over, each with two learners, workers and a replay, and with faults for at most
a quarter of the time. Every second run is exact: all its faults end it, it is resumed each time, and its final policy
must equal that of a run without faults, bit for bit. In the other runs, environments and workers also fail and are
replaced (--on-env-error restart). After each fault that ends a run, none of its processes may remain, the error must be
one line, and the last checkpoint must load. If it is damaged, the command that the error names must repair it."""

import contextlib
import itertools
import os
import random
import re
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import psutil
import torch

from accel_rl.bench.options import option
from accel_rl.bench.output import write_json
from accel_rl.errors import RunError
from accel_rl.hardware.description import describe_machine, format_machine
from accel_rl.processes.child import stop_with_parent
from accel_rl.run_folder import checkpoint
from run_processes import name_processes, processes_of

sys.path.insert(0, str(Path(__file__).parents[1]))  # the folder of the programs of benchmarks/
from command_line import json_option, parse, run_program

LIMIT_S, LEARNER_LIMIT_S = 5, 20  # the run's own time limits for environments and learners
WITHIN_S = 30.0  # a run must end or report within this time, also on a busy machine
BETWEEN_S = (2.0, 12.0)  # from one fault to the next
STEPS = 12_000
FAULT = "ACCEL_RL_CHAOS_FAULT"  # names the file with the fault for an environment


class Unruly(gymnasium.Wrapper[Any, Any, Any, Any]):
    """CartPole until the file that FAULT names holds a fault; the first environment that sees it commits it."""

    def __init__(self) -> None:
        super().__init__(gymnasium.make("CartPole-v1").unwrapped)

    def step(self, action: Any) -> Any:
        with contextlib.suppress(OSError):
            order = Path(os.environ[FAULT])
            what = order.read_text()
            order.unlink()
            if what == "raises":
                raise ValueError("on purpose")
            if what == "exits":
                os._exit(7)
            if what == "hangs":
                time.sleep(3600)
            return self.env.observation_space.sample() * float("nan"), 0.0, False, False, {}
        return self.env.step(action)


@dataclass(frozen=True)
class Options:
    minutes: float = option(60.0, "minutes during which faults occur (60)", type=float)
    seed: int | None = option(None, "seed of the faults and their times (a random one, which is printed)", type=int)
    json: Path | None = json_option()


@dataclass
class Report:
    """The results of a kind of fault. seconds: until the run had ended or its log had the loss. steps: those that had
    to be repeated. says: the last message."""

    times: int = 0
    seconds: list[float] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    says: str = ""
    lost: list[str] = field(default_factory=list)


class Run:
    """A run that is started, struck, and resumed until its steps are done. folder: for the run's folder and output."""

    def __init__(self, folder: Path, exact: bool):
        folder.mkdir(exist_ok=True)
        self.folder, self.exact, self.order = folder / "run", exact, folder / "order"
        self.process: subprocess.Popen[bytes] | None = None
        self.log = folder / "output"
        self.is_complete = False
        self.first_steps = 0  # last step in the table when the run was started or resumed

    def begin(self) -> None:
        """Starts the run, or resumes it from its last checkpoint."""
        self.first_steps = self.steps_done()
        words = ["--resume", self.folder] if (self.folder / checkpoint.CHECKPOINT).exists() else self.words()
        environment = {**os.environ, FAULT: str(self.order), "OMP_NUM_THREADS": "1"}
        environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
        command = [sys.executable, "-m", "accel_rl", "train", *map(str, words)]
        self.order.unlink(missing_ok=True)
        with self.log.open("w") as log:
            stop = partial(stop_with_parent, os.getpid())
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, env=environment, process_group=0, preexec_fn=stop
            )

    def words(self) -> list[Any]:
        settings = "--algo dqn --env chaos:Unruly --devices cpu,cpu --sampler alternating --envs 8 --workers 2"
        settings += f" --horizon 8 --steps {STEPS} --seed 1 --warmup-steps 256 --replay-size 8192 --batch-size 16"
        settings += " --training-intensity 1 --log-interval-steps 256 --checkpoint-interval-steps 512"
        settings += " --eval-interval-steps 4000 --eval-episodes 4 --sampling-threads 1 --learning-threads 1"
        settings += f" --no-tensorboard --no-report --env-timeout-s {LIMIT_S} --learner-timeout-s {LEARNER_LIMIT_S}"
        how = "fail" if self.exact else "restart"
        overwrite = ["--overwrite"] if self.folder.exists() else []
        return [*settings.split(), "--on-env-error", how, "--out", self.folder, *overwrite]

    @property
    def is_alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def pick(self, kind: str, draw: random.Random) -> int | None:
        """Returns the id of one of the run's processes of a kind; None if there is none."""
        assert self.process
        names = name_processes(self.process.pid, processes_of(self.process.pid))
        pids = [pid for pid, name in names.items() if re.search(kind, name)]
        return draw.choice(pids) if pids else None

    def steps_done(self) -> int:
        """Returns the steps of the last row of progress.csv."""
        with contextlib.suppress(OSError, IndexError, ValueError):
            lines = (self.folder / "progress.csv").read_text().splitlines()
            return int(lines[-1].split(",")[lines[0].split(",").index("time/total_timesteps")])
        return 0

    def replaced(self) -> int:
        """Returns the number of lost environments and workers in the log."""
        with contextlib.suppress(OSError):
            text = (self.folder / "log.txt").read_text()
            return len(re.findall("a new process takes over|new environment takes its place", text))
        return 0

    def said(self) -> str:
        lines = [line for line in self.log.read_text().splitlines() if line.startswith("accel-rl: ")]
        return lines[-1].removeprefix("accel-rl: ").replace(str(self.folder), "RUN") if lines else ""


# ---- faults ----

Fault = Callable[[Run, random.Random], bool]  # strikes; returns False if its target does not exist


def signals(kind: str, number: signal.Signals) -> Fault:
    def strike(run: Run, draw: random.Random) -> bool:
        pid = run.pick(kind, draw)
        with contextlib.suppress(ProcessLookupError):
            if pid is not None:
                os.kill(pid, number)
                return True
        return False

    return strike


def orders(what: str) -> Fault:
    def strike(run: Run, _: random.Random) -> bool:
        run.order.write_text(what)
        return True

    return strike


def full_disk(run: Run, draw: random.Random) -> bool:
    """Limits a learner's files to a few bytes: its next checkpoint or replay fails as on a full disk."""
    pid = run.pick("^learner 0$", draw)
    if pid is None or not (run.folder / checkpoint.CHECKPOINT).exists():
        return False
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(pid).rlimit(psutil.RLIMIT_FSIZE, (4096, 4096))
        return True
    return False


def damage(run: Run, draw: random.Random) -> bool:
    """Kills the run, and flips a bit of its checkpoint."""
    path = run.folder / checkpoint.CHECKPOINT
    if not path.with_name(checkpoint.PREVIOUS).exists() or not signals("^command$", signal.SIGKILL)(run, draw):
        return False
    assert run.process
    run.process.wait()
    wait_for_the_end_of(run)
    content = bytearray(path.read_bytes())
    content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    path.write_bytes(content)
    return True


ENDING: dict[str, Fault] = {
    "the command gets SIGTERM": signals("^command$", signal.SIGTERM),
    "the command gets SIGINT": signals("^command$", signal.SIGINT),
    "the command is killed": signals("^command$", signal.SIGKILL),
    "a learner is killed": signals(r"^learner \d+$", signal.SIGKILL),
    "a learner is stopped": signals(r"^learner \d+$", signal.SIGSTOP),
    "the learners' fork server is killed": signals("learners' fork server", signal.SIGKILL),
    "the workers' fork server is killed": signals("workers' fork server", signal.SIGKILL),
    "the disk is full": full_disk,
    "a bit of the checkpoint flips": damage,
}
IN_EXACT = ENDING | {"a worker is killed": signals(r"worker \d+$", signal.SIGKILL)}
GOING_ON: dict[str, Fault] = {  # faults of a run that has begun; before that, environments are not replaced
    "a worker is killed (replaced)": signals(r"worker \d+$", signal.SIGKILL),
    "a worker is stopped (replaced)": signals(r"worker \d+$", signal.SIGSTOP),
    "an environment raises (replaced)": orders("raises"),
    "an environment ends its process (replaced)": orders("exits"),
    "an environment hangs (replaced)": orders("hangs"),
    "an environment observes nan (replaced)": orders("observes nan"),
}


# ---- effects on the run ----


def wait_for_the_end_of(run: Run) -> None:
    """Waits until none of the run's processes is left. Raises RunError if one remains."""
    deadline = time.monotonic() + WITHIN_S
    while left := [*filter(partial(is_of, run), psutil.process_iter())]:
        if time.monotonic() > deadline:
            raise RunError(f"left behind: {left}")
        time.sleep(0.05)


def is_of(run: Run, process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return process.environ().get(FAULT) == str(run.order) and process.status() != psutil.STATUS_ZOMBIE
    return False


def wait_until_it_ends(run: Run) -> None:
    assert run.process
    try:
        run.process.wait(LEARNER_LIMIT_S + WITHIN_S)
    except subprocess.TimeoutExpired:
        raise RunError("the run has not ended") from None
    wait_for_the_end_of(run)


def wait_until_it_is_told(run: Run, before: int) -> None:
    """Waits until the run's log names one more loss, or until the run completes without it."""
    deadline = time.monotonic() + LIMIT_S + WITHIN_S
    while run.replaced() == before and not (run.process and run.process.poll() == 0):
        if not run.is_alive or time.monotonic() > deadline:
            raise RunError(f"no loss was reported: {run.said()}")
        time.sleep(0.05)


def resume(run: Run) -> int:
    """Resumes the ended run; returns its first step. Replaces a damaged checkpoint as the error says."""
    path = run.folder / checkpoint.CHECKPOINT
    if not path.exists():
        run.begin()
        return 0
    try:
        steps = int(checkpoint.load(path)["steps"])
    except checkpoint.DamagedError as error:
        command = shlex.split(str(error).partition("to continue from there, ")[2])
        if not command:
            raise RunError(f"no way out is named: {error}") from None
        subprocess.run(command, check=True)
        steps = int(checkpoint.load(path)["steps"])
    run.is_complete = steps >= STEPS  # the fault came after its last checkpoint
    if not run.is_complete:
        run.begin()
    return steps


def strike(run: Run, name: str, fault: Fault, goes_on: bool, draw: random.Random, report: Report) -> None:
    """Strikes, waits for the effect, and resumes the run if it has ended."""
    before, steps, start = run.replaced(), run.steps_done(), time.monotonic()
    if not run.is_alive or (goes_on and steps <= run.first_steps) or not fault(run, draw):
        return
    report.times += 1
    try:
        if goes_on:
            wait_until_it_is_told(run, before)
        else:
            wait_until_it_ends(run)
        report.seconds.append(round(time.monotonic() - start, 2))
        if not run.is_alive:
            text = run.log.read_text()
            if text.count("Traceback") > text.count("ValueError: on purpose"):
                raise RunError(f"a traceback: {text[text.index('Traceback') :][-4000:]}")
            report.says = run.said() or report.says
            report.steps.append(max(0, max(steps, run.steps_done()) - resume(run)))
    except (RunError, subprocess.CalledProcessError) as error:
        report.lost.append(f"{name}: {error}")
        if run.process:
            run.process.kill()
        for process in filter(partial(is_of, run), psutil.process_iter()):
            with contextlib.suppress(psutil.Error):
                process.kill()
        wait_for_the_end_of(run)
        resume(run)


def policy_of(run: Run) -> dict[str, Any]:
    return dict(checkpoint.load(run.folder / checkpoint.CHECKPOINT)["policy"])


def train(exact: bool, draw: random.Random, reports: dict[str, Report], until: float, folder: Path) -> Run:
    """Trains a run to its end. Faults occur until a given time, at least one in all runs together; until=0: none."""
    run = Run(folder, exact)
    run.begin()
    faults = IN_EXACT if exact else ENDING | GOING_ON
    while not run.is_complete:
        pause = draw.uniform(*BETWEEN_S)
        with contextlib.suppress(subprocess.TimeoutExpired):
            assert run.process
            if (status := run.process.wait(pause)) == 0:
                return run
            raise RunError(f"the run has ended by itself with status {status}: {run.log.read_text()[-2000:]}")
        if time.monotonic() < until or (until and not any(report.times for report in reports.values())):
            name = draw.choice(sorted(faults))
            strike(run, name, faults[name], name in GOING_ON, draw, reports.setdefault(name, Report()))
    return run


def main() -> None:
    options = parse(__doc__, Options)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # else runs ignore it, like a shell's background programs
    seed = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    draw, reports, runs, wrong = random.Random(seed), dict[str, Report](), [0, 0], list[str]()
    print(format_machine(describe_machine()))
    print(f"seed {seed}", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        reference = train(True, draw, {}, 0.0, Path(scratch) / "reference")
        until = time.monotonic() + 60 * options.minutes
        for number in itertools.takewhile(lambda _: time.monotonic() < until, itertools.count(1)):
            exact = number % 2 == 1
            quarter = time.monotonic() + 60 * options.minutes / 4  # so that faults strike runs of both kinds
            try:
                run = train(exact, draw, reports, min(until, quarter), Path(scratch) / f"run{number}")
            except RunError as error:
                wrong.append(f"run {number}: {error}")
                continue
            runs[exact] += 1
            same = all(torch.equal(value, policy_of(run)[name]) for name, value in policy_of(reference).items())
            if exact and not same:
                wrong.append(f"run {number} has a different policy than a run without faults")
            print(f"run {number} is complete" + (f", the same policy: {same}" if exact else ""), flush=True)
    wrong += [text for report in reports.values() for text in report.lost]
    print("\n".join(itertools.starmap(describe, sorted(reports.items()))))
    print("\n".join(wrong) or f"nothing was lost: {runs[1]} runs are bit for bit as without faults, {runs[0]} complete")
    found = {name: vars(report) for name, report in sorted(reports.items())}
    about = {"seed": seed, "minutes": options.minutes, "machine": describe_machine()}
    write_json(options.json, {**about, "exact_runs": runs[1], "other_runs": runs[0], "wrong": wrong, "faults": found})
    if wrong:
        raise RunError(f"{len(wrong)} faults were not survived")


def describe(name: str, report: Report) -> str:
    """Returns a fault's line."""
    seconds, steps = sorted(report.seconds), max(report.steps, default=0)
    told = f"seen after {statistics.median(seconds):.1f} s, at most {seconds[-1]:.1f}" if seconds else "never seen"
    return f"{name}: {report.times} times, {told}; at most {steps:,} steps repeated; lost: {len(report.lost)}"


if __name__ == "__main__":
    sys.exit(run_program(main))
