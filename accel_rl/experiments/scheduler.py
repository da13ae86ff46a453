"""Runs an experiment: a queue of runs over the devices of this machine, each in a process of its own.

FOLDER/<run>/ is a run's folder, FOLDER/<run>.yaml holds its settings, FOLDER/<run>.txt its console output.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from accel_rl.config.sources import read_settings
from accel_rl.envs.spec import EnvSpec
from accel_rl.errors import RunError, UsageError
from accel_rl.experiments.grid import Experiment, ExperimentRun, read_experiment
from accel_rl.experiments.report import report
from accel_rl.hardware.description import describe_machine
from accel_rl.hardware.devices import find_devices, gpu_node
from accel_rl.hardware.placement import divide
from accel_rl.hardware.signals import StopSignal
from accel_rl.hardware.topology import Cpus, CpuTopology, read_topology, show_cpus
from accel_rl.processes.child import stop_with_parent
from accel_rl.processes.spawning import spawn
from accel_rl.training import finite_guard
from accel_rl.training.build import check
from accel_rl.training.checkpoint import CHECKPOINT
from accel_rl.training.folder_lock import locked
from accel_rl.training.resolve import Config, resolve
from accel_rl.training.run_directory import changed_settings

POLL_S = 0.05
TAIL_LINES = 10  # of a failed run's console output
MACHINE = "machine.json"


@dataclass(frozen=True)
class Slot:
    """A device that runs take turns on, and the logical CPUs that belong to it."""

    device: str
    cpus: Cpus | None  # None: the operating system chooses


@dataclass(frozen=True)
class Task:
    """A run of the experiment, and how much of it is done."""

    run: ExperimentRun
    folder: Path
    steps: int  # at its end
    steps_done: int
    can_resume: bool
    resume_settings: dict[str, Any]

    @property
    def learners(self) -> int:
        return self.run.combination.learners

    @property
    def finished(self) -> bool:
        return self.steps_done >= self.steps

    @property
    def console(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}.txt")


@dataclass(frozen=True)
class Process:
    """A run under way."""

    task: Task
    popen: "subprocess.Popen[bytes]"
    slots: tuple[int, ...]


def run_experiment(
    file: Path,
    given: dict[str, Any],
    folder: Path | None,
    devices: str = "all",
    learners_per_gpu: int = 1,
    cpus: str = "all",
    only_report: bool = False,
    trust: bool = False,
) -> None:
    """Trains the runs that are not finished, then prints and draws the summary.

    given: settings for all runs; devices: as find_devices takes them; cpus: logical CPUs to divide among them.
    only_report: trains nothing. trust: continues also from another user's checkpoints. Raises UsageError before
    anything starts, RunError if a run has failed, KeyboardInterrupt or SystemExit after a signal, once all runs have
    written their checkpoints."""
    experiment = read_experiment(file, given)
    folder = folder or Path("results/experiments") / file.stem
    failed: list[Task] = []
    if not only_report:
        share = any(combination.settings.get("share_processors") for combination in experiment.combinations)
        found = find_devices(devices, learners_per_gpu)[::learners_per_gpu]
        slots = make_slots(found, read_topology(cpus), share)
        configs = resolve_all(experiment, slots, learners_per_gpu)
        with locked(folder, "experiment"):
            tasks = [inspect_run(run, folder / run.name, config) for run, config in configs]
            (folder / MACHINE).write_text(json.dumps(describe_machine(), indent=2) + "\n")
            failed = _run(tasks, slots, learners_per_gpu, trust)
    elif not (folder / MACHINE).exists():
        raise UsageError(f"{folder} holds no experiment; omit --summary to start it there")
    report(experiment, folder, json.loads((folder / MACHINE).read_text()))
    for task in failed:
        print(f"\n{task.run.name} has failed; {task.console} ends with:", file=sys.stderr)
        print("".join(f"    {line}\n" for line in _tail(task.console)), end="", file=sys.stderr)
    if failed:
        names = ", ".join(task.run.name for task in failed)
        raise RunError(f"{len(failed)} of {len(tasks)} runs failed: {names}; the same command runs them again")


# ---- devices and logical CPUs ----


def make_slots(devices: Sequence[str], machine: CpuTopology, share: bool = False) -> list[Slot]:
    """Gives every device its part of the machine, as the learners of one run on all of them would have it (see divide).

    cpus is None where nothing can be pinned, and for a single device with the whole machine."""
    if not machine.can_pin or (len(devices) == 1 and not machine.chosen):
        return [Slot(device, None) for device in devices]
    parts = divide(machine, [gpu_node(device) for device in devices], share)
    return [Slot(device, part.cpus) for device, part in zip(devices, parts, strict=True)]


def placement(slots: Sequence[Slot], learners: int) -> dict[str, Any]:
    """Returns the settings that put this many learners of a run on these slots."""
    devices = ",".join(slot.device for slot in slots)
    settings: dict[str, Any] = {"device": devices} if learners == 1 else {"devices": devices}
    if learners > len(slots):
        settings["learners_per_gpu"] = learners // len(slots)
    cpus = [cpu for slot in slots for cpu in slot.cpus or ()]
    return settings | ({"cpus": show_cpus(cpus)} if cpus else {})


def num_slots(learners: int, learners_per_gpu: int) -> int:
    """Returns how many slots a run takes. Raises UsageError if its learners leave a GPU partly filled."""
    if learners > learners_per_gpu and learners % learners_per_gpu:
        raise UsageError(
            f"{learners} learners do not fill GPUs with learners_per_gpu={learners_per_gpu} each; use a multiple of it"
        )
    return max(1, learners // learners_per_gpu)


def assign(waiting: Iterable[int], free: Iterable[int]) -> list[tuple[int, ...]]:
    """Returns the slots of the runs that can start now, in order. waiting: how many slots each waiting run takes.

    A run that has to wait holds back all runs behind it: else one that takes all slots would never find them free."""
    left = sorted(free)
    started: list[tuple[int, ...]] = []
    for num_slots in waiting:
        if num_slots > len(left):
            break
        started.append(tuple(left[:num_slots]))
        del left[:num_slots]
    return started


# ---- runs to do ----


def resolve_all(
    experiment: Experiment, slots: list[Slot], learners_per_gpu: int = 1
) -> list[tuple[ExperimentRun, Config]]:
    """Resolves every run, on CPUs. Raises UsageError if one could not start, or two are the same."""
    resolved, seen, specs = [], dict[str, str](), dict[str, EnvSpec]()
    for run in experiment.runs:
        combination = run.combination
        try:
            taken = slots[: num_slots(combination.learners, learners_per_gpu)]
            if combination.learners > len(taken) * learners_per_gpu:
                raise UsageError(
                    f"{combination.learners} learners do not fit on {','.join(slot.device for slot in slots)}; name "
                    "more devices with --gpus or --devices, or remove the run"
                )
            # Checked on a GPU, the networks would stay in its memory.
            cpus = sorted({cpu for slot in taken for cpu in slot.cpus or ()})
            on_cpu = [Slot("cpu", tuple(cpus) or None), *[Slot("cpu", None)] * (combination.learners - 1)]
            where = placement(on_cpu, combination.learners)
            same_env = json.dumps({**combination.settings, "envs": None}, sort_keys=True, default=str)
            config = resolve({**run.settings, **where}, spec=specs.get(same_env))
            check(config)
        except UsageError as error:
            raise UsageError(f"{run.name}: {error}") from None
        specs[same_env] = config.spec
        same = json.dumps([combination.learners, config.as_dict()], sort_keys=True, default=str)
        if same in seen:
            raise UsageError(f"{seen[same]} and {run.name} are the same run; remove one of them")
        seen[same] = run.name
        resolved.append((run, config))
    return resolved


def inspect_run(run: ExperimentRun, folder: Path, config: Config) -> Task:
    """Returns how much of the run is done. Raises UsageError if it was started with other settings."""
    resume_settings: dict[str, Any] = {"steps": config.run.steps}
    steps_done = 0
    if (folder / "config.yaml").exists():
        saved, values = read_settings(folder), config.as_dict()
        if changed := changed_settings(folder, saved, values):
            differences = ", ".join(f"{name}={saved.get(name)!r} (now {values[name]!r})" for name in changed)
            hint = "to change the steps, set schedule_steps to its old value; " if "schedule_steps" in changed else ""
            way_out = f"to start it anew, use another --out or remove {folder}"
            raise UsageError(f"{run.name} was started with {differences}; {hint}{way_out}")
        resume_settings |= {name: values[name] for name in finite_guard.CHANGEABLE if values[name] != saved.get(name)}
        with contextlib.suppress(OSError, ValueError):  # not written yet
            steps_done = json.loads((folder / "summary.json").read_text())["total_timesteps"]
    return Task(run, folder, config.run.steps, steps_done, (folder / CHECKPOINT).exists(), resume_settings)


# ---- processes ----


def _run(tasks: list[Task], slots: list[Slot], learners_per_gpu: int, trust: bool) -> list[Task]:
    """Trains; returns the runs that have failed. Raises KeyboardInterrupt or SystemExit if a signal stops them."""
    waiting = [task for task in tasks if not task.finished]
    active: list[Process] = []
    failed: list[Task] = []
    forwarded = False
    _print(f"runs: {len(tasks)}, already finished: {len(tasks) - len(waiting)}; on {_describe(slots)}")
    with StopSignal() as stop:
        stop.patient = True
        try:
            while active or (waiting and not stop):
                if not stop:
                    free = set(range(len(slots))) - {slot for process in active for slot in process.slots}
                    for taken in assign([num_slots(task.learners, learners_per_gpu) for task in waiting], free):
                        active.append(_start(waiting.pop(0), taken, [slots[slot] for slot in taken], trust))
                elif not forwarded:
                    forwarded = True
                    for process in active:
                        process.popen.send_signal(stop.received or signal.SIGTERM)
                for process in [process for process in active if process.popen.poll() is not None]:
                    active.remove(process)
                    if not _succeeded(process, stop):
                        failed.append(process.task)
                time.sleep(POLL_S)
        finally:
            for process in active:
                _kill(process)
    if stop:
        _print("stopped; the same command continues from here")
        stop.leave()
    return failed


def _start(task: Task, taken: tuple[int, ...], slots: list[Slot], trust: bool) -> Process:
    if task.can_resume:
        arguments = ["--resume", str(task.folder), *(["--trust"] if trust else [])]
        settings = {**task.resume_settings, **placement(slots, task.learners)}
    else:
        file = task.folder.with_name(f"{task.folder.name}.yaml")
        file.write_text(yaml.safe_dump(task.run.settings, sort_keys=False))
        arguments = ["--config", str(file), "--out", str(task.folder), "--overwrite"]
        settings = placement(slots, task.learners)
    arguments += [word for name, value in settings.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    with task.console.open("ab") as console:
        stop = partial(stop_with_parent, os.getpid())
        popen = spawn("accel_rl", "train", *arguments, stdout=console, stderr=subprocess.STDOUT, preexec_fn=stop)
    _print(f"{task.run.name} {'resumes' if task.can_resume else 'starts'} on {_describe(slots)}")
    return Process(task, popen, taken)


def _succeeded(process: Process, stop: StopSignal) -> bool:
    """Prints how a run has ended; returns whether well. A run that was asked to stop counts as such."""
    name, status = process.task.run.name, process.popen.returncode
    if status == 0:
        summary = json.loads((process.task.folder / "summary.json").read_text())
        score = "no game finished" if summary["ep_rew_mean"] is None else f"score {summary['ep_rew_mean']:.1f}"
        _print(f"{name} has finished: {score}, {summary['fps']:,.0f} steps/s")
        return True
    _print(f"{name} {'has stopped' if stop else f'has failed with status {status}'}")
    return bool(stop)


def _kill(process: Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.popen.pid, signal.SIGKILL)
    process.popen.wait()


def _describe(slots: list[Slot]) -> str:
    devices = ", ".join(f"{name} x {n}" if n > 1 else name for name, n in Counter(s.device for s in slots).items())
    cpus = {cpu for slot in slots for cpu in slot.cpus or ()}
    return f"{devices}, logical CPUs {show_cpus(cpus)}" if cpus else devices


def _tail(path: Path) -> list[str]:
    return path.read_text(errors="replace").splitlines()[-TAIL_LINES:]


def _print(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {text}", flush=True)
