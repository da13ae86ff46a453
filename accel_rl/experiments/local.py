"""Trains runs in turn on the devices of this machine."""

import contextlib
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from accel_rl.errors import UsageError
from accel_rl.experiments.tasks import Task, print_start
from accel_rl.hardware.devices import gpu_node
from accel_rl.hardware.division import divide
from accel_rl.hardware.topology import Cpus, CpuTopology, show_cpus


@dataclass(frozen=True)
class Slot:
    """A device on which runs take turns, and its logical CPUs."""

    device: str
    cpus: Cpus | None  # None: the operating system chooses


@dataclass(frozen=True)
class LocalJob:
    """A run's process on this machine, and its slots."""

    process: "subprocess.Popen[bytes]"
    slots: tuple[int, ...]

    def poll(self) -> int | None:
        return self.process.poll()

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


class LocalExecutor:
    """Starts each run on as many of this machine's slots as its learners fill.

    trust: continues even from another user's checkpoints."""

    poll_s = 0.05

    def __init__(self, slots: Sequence[Slot], learners_per_gpu: int = 1, trust: bool = False):
        self.slots = slots
        self.learners_per_gpu = learners_per_gpu
        self.trust = trust
        self.description = describe_slots(slots)
        self._jobs: list[LocalJob] = []

    def check_settings(self, learners: int) -> dict[str, Any]:
        # Checks run on CPUs, since networks checked on a GPU would stay in its memory.
        taken = self.slots[: num_slots(learners, self.learners_per_gpu)]
        if learners > len(taken) * self.learners_per_gpu:
            devices = ",".join(slot.device for slot in self.slots)
            raise UsageError(
                f"{learners} learners do not fit on {devices}; name more devices with --gpus or --devices, or remove "
                "the run"
            )
        cpus = sorted({cpu for slot in taken for cpu in slot.cpus or ()})
        return placement([Slot("cpu", tuple(cpus) or None), *[Slot("cpu", None)] * (learners - 1)], learners)

    def start(self, task: Task) -> LocalJob | None:
        self._jobs = [job for job in self._jobs if job.poll() is None]
        free = sorted(set(range(len(self.slots))) - {slot for job in self._jobs for slot in job.slots})
        wanted = num_slots(task.learners, self.learners_per_gpu)
        if wanted > len(free):
            return None
        taken = tuple(free[:wanted])
        slots = [self.slots[slot] for slot in taken]
        print_start(task, describe_slots(slots))
        job = LocalJob(task.start(placement(slots, task.learners), self.trust), taken)
        self._jobs.append(job)
        return job


def make_slots(devices: Sequence[str], machine: CpuTopology, share: bool = False) -> list[Slot]:
    """Divides the machine among the devices as among the learners of one run on all of them (see divide).

    cpus is None if nothing can be pinned, and for a single device with the whole machine."""
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
    """Returns the number of slots that a run takes. Raises UsageError if its learners leave a GPU partly filled."""
    if learners > learners_per_gpu and learners % learners_per_gpu:
        raise UsageError(
            f"{learners} learners do not fill GPUs with learners_per_gpu={learners_per_gpu} each; use a multiple of it"
        )
    return max(1, learners // learners_per_gpu)


def describe_slots(slots: Sequence[Slot]) -> str:
    devices = ", ".join(f"{name} x {n}" if n > 1 else name for name, n in Counter(s.device for s in slots).items())
    cpus = {cpu for slot in slots for cpu in slot.cpus or ()}
    return f"{devices}, logical CPUs {show_cpus(cpus)}" if cpus else devices
