"""Several learners: sums over learners by NCCL and through shared memory, and the central parameter store."""

import subprocess
import sys
import time
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from accel_rl.distributed.sync_coordinator import process_group
from accel_rl.doctor.playback import A2C, PONG, learn, make_config
from accel_rl.doctor.probe import UPDATE_TOLERANCE, Probe, SkippedError, check
from accel_rl.doctor.rank import learn_part
from accel_rl.hardware.devices import num_gpus
from accel_rl.training.build import build_store

RANK_MODULE = "accel_rl.doctor.rank"
TIMEOUT_S = 120.0


@check("all-reduce: NCCL, one learner", "updates whose gradient and values go through NCCL with the CPU's")
def _one_learner(probe: Probe) -> None:
    if not dist.is_nccl_available():
        raise SkippedError("this build of PyTorch has no NCCL")
    meeting = TCPStore("127.0.0.1", 0, 1, is_master=True, wait_for_workers=False)
    torch.cuda.set_device(probe.device)
    try:
        with process_group(0, 1, meeting.port, offers_nccl=True):
            probe.true("the group has NCCL", "nccl" in dist.get_backend_config())
            found = learn_part(0, 1, probe.device)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
    _compare(probe, [found])


@check("all-reduce: two learners on one GPU", "updates of two learners, through shared memory, with the CPU's of one")
def _one_gpu(probe: Probe) -> None:
    _compare(probe, _learn_together(probe, [str(probe.device)] * 2))


@check("all-reduce: a learner on each GPU", "updates of as many learners as there are GPUs, by NCCL, with the CPU's")
def _each_gpu(probe: Probe) -> None:
    if num_gpus() < 2:
        raise SkippedError("there is one GPU")
    _compare(probe, _learn_together(probe, [f"cuda:{gpu}" for gpu in range(num_gpus())]))


def _compare(probe: Probe, found: Sequence[Tensor]) -> None:
    expected = learn_part(0, 1, torch.device("cpu"))
    for rank, values in enumerate(found):
        probe.close(f"learner {rank}", values, expected, UPDATE_TOLERANCE)
        probe.equal(f"learner {rank} and learner 0", values, found[0])


def _learn_together(probe: Probe, devices: Sequence[str]) -> list[Tensor]:
    """Returns what each learner has, after learning in a process of its own."""
    size = len(devices)
    meeting = TCPStore("127.0.0.1", 0, size, is_master=True, wait_for_workers=False)
    files = [probe.folder / f"{rank}.pt" for rank in range(size)]
    words = [map(str, (rank, size, device, meeting.port, files[rank])) for rank, device in enumerate(devices)]
    said = probe.folder / "said.txt"
    with said.open("w") as output:
        processes = [
            subprocess.Popen([sys.executable, "-m", RANK_MODULE, *own], stdout=output, stderr=output) for own in words
        ]
        try:
            ends = _wait(processes)
        finally:
            for process in processes:
                process.kill()
                process.wait()
    if any(
        end != 0 for end in ends
    ):  # a status other than 0, or None: killed, since it waited for too long or for one that had failed
        raise RuntimeError(f"the learners on {', '.join(devices)} exited with {ends}:\n{said.read_text()}")
    return [torch.load(file, map_location="cpu") for file in files]


def _wait(processes: "Sequence[subprocess.Popen[bytes]]") -> list[int | None]:
    """Waits until all have ended, one has failed, or time is up; returns their exit statuses."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        ends = [process.poll() for process in processes]
        if None not in ends or any(ends) or time.monotonic() > deadline:
            return ends
        time.sleep(0.05)


@check("central store", "what a learner on the GPU changes in the store with one on the CPU; the memory is pinned")
def _central_store(probe: Probe) -> None:
    settings = {**PONG, **A2C, "update": "central_store"}
    found, central = [], []
    for device in ("cpu", probe.device):
        store = build_store(make_config(settings))
        before = store.read()["parameters"]
        found.append(learn(settings, device, store=store))
        central.append(store.read()["parameters"] - before)
        store.close()
    probe.close("the learner's parameters", found[1], found[0], UPDATE_TOLERANCE)
    probe.close("the store's parameters", central[1], central[0], UPDATE_TOLERANCE)
