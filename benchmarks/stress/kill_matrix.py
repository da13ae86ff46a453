"""Strikes every process of a run in every phase, and checks how the run ends or goes on.

    python benchmarks/stress/kill_matrix.py [WORD ...] [--jobs 2] [--again]

A cell is a run, a phase, a process and a strike: a signal, SIGSTOP for longer than the time limits, or an exception
that is raised there. With words, only cells whose names contain them all are run. Without --again, cells that have
passed in benchmarks/results/kills.json are not run again. Phases announce themselves (kill_hook/sitecustomize.py). A
cell has passed if

* the run ends, or goes on to its end, as `expected` says, within 10 s plus the environments' time limit (three times
  that, for busy machines),
* one line of its error output names the cause,
* no process, shared memory, temporary file or half-written file is left,
* the last checkpoint loads, and a run resumed from it ends; without a checkpoint, a run started anew ends. Where
  docs/resume.md promises it, the policy equals that of an undisturbed run."""

import argparse
import contextlib
import itertools
import json
import multiprocessing
import os
import re
import signal
import socket
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import accel_rl
from accel_rl.hardware.description import describe_machine
from accel_rl.run_folder import checkpoint
from kill_hook.sitecustomize import GO_ON, PHASE, RAISE, SOCKET
from run_processes import name_processes, processes_of

sys.path.insert(0, str(Path(__file__).parents[2]))  # the folder of tests/
from tests.helpers.processes import Command, Result

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "kills.json"
LIMIT_S, LEARNER_LIMIT_S = 3.0, 9.0  # for environments and learners, which exceed them only if struck
WITHIN_S = 10.0
SLOWNESS = 3.0  # factor for busy machines, on which a run starts more slowly
STEPS = {"replay": 96, "all-reduce": 96, "store": 400, "store-no-lock": 400}  # more if learners are asynchronous
STOPPED_S = 12.0  # longer than both time limits

# ---- the cells ----

COMMON = f"""--env tests.helpers.toy_envs:Counting --env-options {{lengths:[7]}} --envs 4 --workers 2 --seed 5
    --sampler alternating --horizon 4 --decorrelation-steps 0 --log-interval-steps 16
    --eval-interval-steps 48 --eval-episodes 4 --checkpoint-interval-steps 32 --no-tensorboard --no-report
    --sampling-threads 1 --learning-threads 1
    --env-timeout-s {LIMIT_S} --env-build-timeout-s {LIMIT_S} --learner-timeout-s {LEARNER_LIMIT_S}"""
RUNS = {
    "replay": "--algo dqn --replay-size 256 --warmup-steps 32 --batch-size 8 --training-intensity 1",
    "all-reduce": "--algo a2c --devices cpu,cpu",
    "store": "--algo a3c --devices cpu,cpu",
    "store-no-lock": "--algo a3c --devices cpu,cpu --locks none",
}
EXACT = ("replay", "all-reduce")  # with a store, results depend on timing

# The function that announces a phase, and the call at which the strike comes, mostly after a first checkpoint.
Place = tuple[str, int]
SIMULATOR = "accel_rl.envs.batches.batch_simulator:BatchSimulator"
PHASES: dict[str, Place] = {
    "building": (f"{SIMULATOR}._build", 1),
    "reset": (f"{SIMULATOR}.start", 1),
    "sampling": (f"{SIMULATOR}.step", 42),
    "inference": ("accel_rl.samplers.action_server:ActionServer.act", 36),
    "learning": ("accel_rl.updates.update:Update.minimize", 5),
    "all-reduce": ("accel_rl.updates.all_reduce:AllReduce.apply", 5),
    "exchange": ("accel_rl.updates.store_exchange:StoreExchange._publish", 14),
    "evaluation": ("accel_rl.samplers.worker_pool:WorkerPool.open_evaluation:after", 1),
    "writing": ("accel_rl.run_folder.checkpoint:_write:after", 2),
    "rotating": ("accel_rl.run_folder.atomic:_link:after", 1),
    "closing": ("accel_rl.samplers.alternating:AlternatingSampler.close", 1),
}
STARTS: dict[str, Place] = {
    "command": ("accel_rl.distributed.launch:_train_here", 1),
    "learners' fork server": ("accel_rl.distributed.learner_process", 1),
    "learner 0": ("accel_rl.distributed.learner_process:main", 1),
    "learner 1": ("accel_rl.distributed.learner_process:main", 1),
    "workers' fork server": ("accel_rl.envs.batches.batch_simulator:prepare", 1),
    "worker": ("accel_rl.samplers.worker:Worker.__init__", 1),
    "probe": ("accel_rl.envs.batches.batch_simulator:make_simulator", 1),
}
# With a replay, each checkpoint consists of two files.
OF_REPLAY = PHASES | {"writing replay": (PHASES["writing"][0], 3), "writing": (PHASES["writing"][0], 4)}
PHASES_OF_RUN = {
    "replay": [phase for phase in OF_REPLAY if phase not in ("all-reduce", "exchange")],
    "all-reduce": [phase for phase in PHASES if phase != "exchange"],
    "store": [phase for phase in PHASES if phase != "all-reduce"],
    "store-no-lock": ["exchange"],
}
ALONE = ["command", "workers' fork server", "worker"]
SEVERAL = ["command", "learners' fork server", "learner 0", "learner 1", "workers' fork server", "worker"]
SIGNALS = ["SIGTERM", "SIGINT", "SIGKILL", "SIGSTOP"]


def words(run: str) -> list[str]:
    """Returns the settings of a run as words of the command line."""
    return f"{RUNS[run]} {COMMON} --steps {STEPS[run]}".split()


@dataclass(frozen=True)
class Cell:
    """A strike at a process in a phase of a run."""

    run: str
    phase: str
    process: str
    strike: str

    def __str__(self) -> str:
        return f"{self.run}, {self.phase}, {self.process}, {self.strike}"

    @property
    def place(self) -> Place:
        if self.phase == "start":
            return STARTS[self.process]
        return OF_REPLAY[self.phase] if self.run == "replay" else PHASES[self.phase]

    @property
    def announcers(self) -> list[str]:
        """Returns the processes that reach the phase."""
        if self.phase == "start":
            return [self.process]
        if self.phase in ("building", "reset", "sampling"):
            return ["worker"]
        if self.run == "replay":
            return ["command"]
        return ["learner 0"] if self.phase.startswith(("writing", "rotating")) else ["learner 0", "learner 1"]


def cells() -> list[Cell]:
    """Returns all possible cells: a process can raise an exception only in a phase that it reaches."""
    found = []
    for run, phases in PHASES_OF_RUN.items():
        processes = ALONE if run == "replay" else SEVERAL
        places = list(itertools.product(["start", *phases] if run != "store-no-lock" else phases, processes))
        if run == "replay":
            places.append(("start", "probe"))
        for phase, process in places:
            found += [Cell(run, phase, process, strike) for strike in SIGNALS]
            if process in Cell(run, phase, process, "").announcers:
                found.append(Cell(run, phase, process, "exception"))
    return found


# ---- what is expected ----


@dataclass(frozen=True)
class Expected:
    """The right exit statuses, and a pattern that a line of the error output must match."""

    statuses: tuple[int, ...]
    says: str = ""


def expected(cell: Cell) -> Expected:
    """Returns how the run must end (docs/resume.md)."""
    is_over = cell.phase == "closing"  # the run's result is there, whatever happens now
    starts = cell.phase in ("start", "building", "reset")
    if cell.strike == "exception":
        return Expected((1,), "struck on purpose")
    if cell.strike in ("SIGTERM", "SIGINT"):
        if cell.process != "command":  # other processes ignore them
            return Expected((0,))
        return Expected((143,) if cell.strike == "SIGTERM" else (130,))
    if cell.process == "probe":
        return Expected((0,))  # the probe is started once more
    if cell.strike == "SIGKILL":
        if cell.process == "command":
            return Expected((-signal.SIGKILL,))
        return Expected((0, 1) if is_over else (1,), "" if is_over else r"accel-rl: .*(SIGKILL|status -9)")
    is_learner, is_fork_server = cell.process.startswith("learner "), cell.process.endswith("fork server")
    if cell.process == "command" or (is_fork_server and not starts):
        return Expected((0,))
    if is_learner and cell.run.startswith("store") and not starts:
        return Expected((0,))  # no other process waits for a late learner
    is_maybe_over = is_over or (starts and (is_learner or is_fork_server))  # if the process continues before its limit
    return Expected((0, 1) if is_maybe_over else (1,), "" if is_maybe_over else "accel-rl: .*answered|built within")


# ---- a cell's run ----


def find_processes(command: int) -> dict[str, list[int]]:
    """Returns the ids of a run's processes by kind; a learner's own processes are listed with those of all learners."""
    found: dict[str, list[int]] = {}
    for pid, name in name_processes(command, processes_of(command)).items():
        kind = re.sub(r"^learner \d+'s |(?<!^learner) \d+$", "", name)
        found.setdefault(kind, []).append(pid)
    return found


class Striker:
    """Hears the announcements of processes, and strikes once, at the cell's place."""

    def __init__(self, cell: Cell, folder: Path):
        self.cell, self.path = cell, str(folder / "socket")
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.bind(self.path)
        self.socket.listen()
        self.socket.settimeout(0.1)
        self.calls, self.victim, self.struck_at = 0, 0, 0.0

    def serve(self, command: Command) -> None:
        """Answers until the cell's strike is done, or the command has ended."""
        while not self.victim and command.process.poll() is None:
            self.answer(command)

    def answer(self, command: Command) -> None:
        """Answers the next announcement, if there is one."""
        try:
            connection, _ = self.socket.accept()
        except TimeoutError:
            return
        with connection:
            pid = int(connection.recv(32) or b"0")
            answer = GO_ON
            if not self.victim and self.is_place(found := find_processes(command.process.pid), pid):
                of_kind = found[self.cell.process]
                self.victim, self.struck_at = pid if pid in of_kind else of_kind[-1], time.monotonic()
                if self.cell.strike == "exception":
                    answer = RAISE
                else:
                    os.kill(self.victim, signal.Signals[self.cell.strike])
            with contextlib.suppress(OSError):
                connection.sendall(answer)

    def is_place(self, found: dict[str, list[int]], announcer: int) -> bool:
        """Counts an announcement, and tells whether it is the one to strike at."""
        is_counted = any(announcer in found.get(kind, ()) for kind in self.cell.announcers)
        self.calls += is_counted
        return is_counted and self.calls >= self.cell.place[1] and self.cell.process in found


def run(cell: Cell, folder: Path, references: dict[str, Any]) -> dict[str, Any]:
    """Runs a cell in an empty folder; returns its result. A cell that has not passed has a `failure`."""
    found: dict[str, Any] = {}
    temporary, out = folder / "tmp", folder / "run"
    temporary.mkdir()
    striker = Striker(cell, folder)
    environment = {PHASE: cell.place[0], SOCKET: striker.path, "TMPDIR": str(temporary), "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(HERE / "kill_hook"), str(ROOT)])
    command = Command("train", *words(cell.run), "--out", out, environment=environment)
    try:
        striker.serve(command)
        if not striker.victim:
            raise AssertionError(f"the phase was not reached: {command.finish().err}")
        result = finish(cell, command, striker)
        found["seconds"] = round(time.monotonic() - striker.struck_at, 1)
        found |= {"status": result.status, "says": said(result)}
        check_end(cell, result)
        check_folder(temporary)
        found["resumed"] = check_resumed(cell, out, references)
    except Exception as error:  # this process trains the resumed run itself, so it may raise anything
        found["failure"] = str(error) or repr(error)
    finally:
        command.kill()
        striker.socket.close()
    return found


def finish(cell: Cell, command: Command, striker: Striker) -> Result:
    """Waits for the run's end; continues a stopped process after STOPPED_S."""
    limit = striker.struck_at + SLOWNESS * (WITHIN_S + LIMIT_S)
    continues_at = striker.struck_at + STOPPED_S if cell.strike == "SIGSTOP" else float("inf")
    while command.process.poll() is None and time.monotonic() < limit:
        striker.answer(command)
        if time.monotonic() > continues_at:
            with contextlib.suppress(ProcessLookupError):
                os.kill(striker.victim, signal.SIGCONT)
            continues_at = float("inf")
    return command.finish(within_s=1.0)


def said(result: Result) -> str:
    """Returns the error output's line with the error message, or else its last line."""
    lines = result.err.strip().splitlines()
    return next((line for line in lines if line.startswith("accel-rl: ")), lines[-1] if lines else "")


def check_end(cell: Cell, result: Result) -> None:
    right = expected(cell)
    assert result.status in right.statuses, f"exit status {result.status}: {result.err}"
    assert re.search(right.says, result.err), f"does not say {right.says!r}: {result.err}"
    assert result.err.count("accel-rl: ") <= 1 and "Exception ignored" not in result.err, result.err
    if cell.strike != "exception":
        assert "Traceback" not in result.err, result.err


def check_folder(temporary: Path) -> None:
    left = sorted(path.name for path in temporary.iterdir())
    assert not left, f"left behind: {left}"


def check_resumed(cell: Cell, out: Path, references: dict[str, Any]) -> str:
    """Resumes the run, or repeats its command if it has no checkpoint; says from which step."""
    step = 0
    if not (out / checkpoint.CHECKPOINT).exists():
        patient = ("--overwrite", "--env-timeout-s", 20, "--env-build-timeout-s", 60, "--learner-timeout-s", 60)
        result = Command("train", *words(cell.run), *patient, "--out", out).finish()
        assert result.status == 0, f"not begun anew: {result.err}"
    elif (step := checkpoint.load(out / checkpoint.CHECKPOINT)["steps"]) < STEPS[cell.run]:
        accel_rl.train(resume=out, env_timeout_s=20.0, env_build_timeout_s=60.0)
    left = sorted(path.name for path in out.glob("*.tmp"))
    assert not left, f"left in the run's folder: {left}"
    end = checkpoint.load(out / checkpoint.CHECKPOINT)
    assert end["steps"] >= STEPS[cell.run]
    if cell.run in EXACT:
        assert same(end["policy"], references[cell.run]), "the resumed run has another policy"
    return f"from step {step}" if step else "from the beginning"


def same(policy: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(torch.equal(value, other[name]) for name, value in policy.items())


# ---- all cells ----


def make_references(folder: Path) -> dict[str, Any]:
    """Returns the policies of undisturbed runs."""
    policies = {}
    for name in EXACT:
        result = Command("train", *words(name), "--out", folder / name).finish()
        assert result.status == 0, result.err
        policies[name] = checkpoint.load(folder / name / checkpoint.CHECKPOINT)["policy"]
    return policies


def run_in_folder(cell: Cell, references: dict[str, Any]) -> tuple[Cell, dict[str, Any]]:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        return cell, run(cell, Path(folder), references)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", metavar="WORD", help="only cells with all of these in their names")
    parser.add_argument("--jobs", type=int, default=2, help="cells at a time (2)")
    parser.add_argument("--again", action="store_true", help="run even cells that have passed")
    parser.add_argument("--list", action="store_true", help="print the cells' names")
    options = parser.parse_args()
    kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    results: dict[str, Any] = kept.get("cells", {})
    machine = describe_machine()
    machines = [each for each in kept.get("machines", []) if each != machine] + [machine]
    chosen = [cell for cell in cells() if all(word in str(cell) for word in options.words)]
    if not options.again:
        chosen = [cell for cell in chosen if "failure" in results.get(str(cell), {"failure": "not run"})]
    if options.list:
        print("\n".join(map(str, chosen)))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        references = make_references(Path(folder))
    with multiprocessing.get_context("spawn").Pool(options.jobs, maxtasksperchild=50) as pool:
        tasks = [pool.apply_async(run_in_folder, (cell, references)) for cell in chosen]
        for task in tasks:
            cell, found = task.get()
            results[str(cell)] = found
            print(f"{cell}: {found.get('failure', 'passed')}", flush=True)
            order = {str(each): results[str(each)] for each in cells() if str(each) in results}
            RESULTS.write_text(json.dumps({"machines": machines, "cells": order}, indent=1) + "\n")
    failed = [name for name, found in results.items() if "failure" in found]
    print(f"{len(results)} of {len(cells())} cells run, {len(failed)} failed")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
