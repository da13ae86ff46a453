"""Ranks that update together. `run(together, 2)` runs all cases in two processes, `alone(name)` one of them here.

A case is a series of updates of a small float64 network. The samples are always the same, and each rank has its part.
"""

import pickle
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from accel_rl.algos.ppo import standardized
from accel_rl.models.normalize import RunningMoments
from accel_rl.updates import Update
from accel_rl.updates.all_reduce import AllReduce
from accel_rl.updates.compiled_calls import CompiledCalls
from accel_rl.updates.optimizers import make_optimizer
from accel_rl.updates.shared_sum import SharedSum
from tests.helpers.recorded import replayed

MODULE = "tests.updates.reduce_process"
NUM_UPDATES, NUM_SAMPLES = 40, 24


@dataclass(frozen=True)
class Case:
    rule: str = "sgd"
    clip: float | None = None
    masked: bool = False  # numbers of valid samples differ; sometimes one rank or both have none
    is_standardized: bool = False
    prioritised: bool = False
    normalised: bool = False
    by_step: bool = False
    slice_elements: int = 10**6
    through_memory: bool = True
    is_sum: bool = False
    is_recorded: bool = False  # updates run as recorded programs, in place of machine code


CASES = {
    "mean": Case(),
    "clipped": Case(clip=0.05),
    "masked": Case(masked=True),
    "advantages": Case(masked=True, is_standardized=True),
    "priorities": Case(prioritised=True),
    "running statistics": Case(masked=True, normalised=True),
    "by step": Case(clip=0.05, masked=True, by_step=True),
    "slices": Case(masked=True, slice_elements=20),
    "sum": Case(clip=2.0, masked=True, slice_elements=20, is_sum=True),
    "recorded": Case("adam", clip=0.05, masked=True, is_recorded=True),
    "by Gloo": Case("adam", clip=0.05, masked=True, through_memory=False),
    **{
        f"all of it, {rule}": Case(rule, 0.5, True, True, True, True, slice_elements=20)
        for rule in ("rmsprop", "adam", "momentum_sgd", "torch.Adam")
    },
}


class Network(nn.Module):
    """An actor-critic with running statistics of its observations."""

    def __init__(self, seed: int):
        super().__init__()
        torch.manual_seed(seed)
        self.body = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4)).double()
        self.moments = RunningMoments((4,))
        self.moments.mean += seed

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Returns log-probabilities [N, 3] and values [N]."""
        scaled = (x - self.moments.mean) / (self.moments.variance + 1).sqrt()
        logits, value = self.body(scaled).split([3, 1], dim=1)
        return logits.log_softmax(1), value.squeeze(1)


def samples(index: int, case: Case) -> dict[str, Tensor]:
    """Returns the index-th batch of all ranks together."""
    generator = torch.Generator().manual_seed(index)
    batch = {
        "x": 3 + 2 * torch.randn(NUM_SAMPLES, 4, generator=generator, dtype=torch.float64),
        "action": torch.randint(3, (NUM_SAMPLES,), generator=generator),
        "advantage": 5 + 3 * torch.randn(NUM_SAMPLES, generator=generator, dtype=torch.float64),
        "importance": 1 + torch.rand(NUM_SAMPLES, generator=generator, dtype=torch.float64),
        "valid": torch.rand(NUM_SAMPLES, generator=generator) < 0.6,
    }
    if not case.masked:
        batch["valid"][:] = True
    elif index % 4 == 3:
        half = NUM_SAMPLES // 2
        none = [slice(half), slice(half, NUM_SAMPLES), slice(NUM_SAMPLES)][index // 4 % 3]
        batch["valid"][none] = False
    return batch


def learn(update: Update, network: Network, case: Case, rank: int, size: int) -> list[dict[str, Tensor]]:
    """Returns the results of each update, then the parameters and statistics at the end."""
    device = update.parameters.values.device
    found = []

    def loss(
        x: Tensor, action: Tensor, advantage: Tensor, importance: Tensor, valid: Tensor, scale: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        log_p, value = network(x)
        errors = (value - advantage).square() - advantage * log_p.gather(1, action[:, None]).squeeze(1)
        loss_sum = (scale * errors * importance * valid).sum()
        return loss_sum, {"value": (value * valid).sum().detach(), "errors": errors.detach(), "loss": loss_sum.detach()}

    for index in range(NUM_UPDATES):
        rows = slice(rank * NUM_SAMPLES // size, (rank + 1) * NUM_SAMPLES // size)
        batch = {name: value[rows].to(device) for name, value in samples(index, case).items()}
        if case.normalised:
            network.moments.update(batch["x"], update.sum, batch["valid"])
        if case.is_standardized:
            batch["advantage"] = standardized(batch["advantage"], batch["valid"], update)
        if case.prioritised:
            batch["importance"] = batch["importance"] / update.max(batch["importance"].max())
        scale = torch.tensor(1 + index / 10, dtype=torch.float64, device=device)
        arguments = (*batch.values(), scale)
        num_samples, rate = batch["valid"].sum() * (not case.is_sum), 0.02 / (1 + index / 10)
        if case.by_step:
            found.append({"grad_norm": update.step(loss(*arguments)[0], num_samples, rate)})
        else:
            found.append(update.minimize(loss, arguments, num_samples, rate))
    state = {"parameters": update.parameters.values, **dict(network.named_buffers())}
    return [{name: value.cpu() for name, value in each.items()} for each in (*found, state)]


def alone(name: str) -> list[dict[str, Tensor]]:
    """Returns the results of one rank with all samples."""
    case, network = CASES[name], Network(0)
    update = Update(network, make_optimizer(case.rule), case.clip)
    return learn(update, network, case, 0, 1)


def together(rank: int, size: int, device: str) -> dict[str, list[dict[str, Tensor]]]:
    """Returns this rank's results of all cases. Ranks begin with different networks."""
    found = {}
    for name, case in CASES.items():
        network = Network(rank).to(device)
        exchange = AllReduce()
        compiled = CompiledCalls("always", replayed) if case.is_recorded and device == "cpu" else None
        slices = case.slice_elements
        with nullcontext() if case.through_memory else patch.object(SharedSum, "open", lambda _: None):
            update = Update(
                network, make_optimizer(case.rule), case.clip, exchange, slice_elements=slices, compiled=compiled
            )
        if device == "cpu" and sys.platform == "linux":
            assert isinstance(exchange._shared_sum, SharedSum) == case.through_memory
        found[name] = learn(update, network, case, rank, size)
        assert update.exchange.read_seconds()["exchange"] > 0
        assert update.read_compiled_share() == bool(compiled)
    return found


def too_many_terms(rank: int, size: int, device: str) -> str:
    """Returns the error of an update whose loss has 64 terms."""
    network = Network(rank)
    update = Update(network, make_optimizer("sgd"), exchange=AllReduce())

    def loss(x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        loss_sum = network(x)[1].sum()
        return loss_sum, {f"term_{index}": loss_sum.detach() for index in range(64)}

    try:
        update.minimize(loss, (torch.zeros(2, 4, dtype=torch.float64),), torch.tensor(2), 0.1)
    except ValueError as error:
        return str(error)
    return ""


def run(role: Callable[..., Any], size: int, device: str = "cpu") -> list[Any]:
    """Runs `role` in a process for each rank; returns their results."""
    meeting = TCPStore("127.0.0.1", 0, size, is_master=True, wait_for_workers=False)
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", MODULE, role.__name__, str(rank), str(size), device, str(meeting.port)],
            stdout=subprocess.PIPE,
        )
        for rank in range(size)
    ]
    try:
        answers = [process.communicate(timeout=60)[0] for process in ranks]
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    assert [process.returncode for process in ranks] == [0] * size
    return [pickle.loads(answer) for answer in answers]


def main() -> None:
    torch.set_num_threads(1)
    role, device = sys.argv[1], sys.argv[4]
    rank, size, port = (int(sys.argv[index]) for index in (2, 3, 5))
    store = TCPStore("127.0.0.1", port, size, is_master=False, wait_for_workers=False)
    backend = "cpu:gloo,cuda:nccl" if device.startswith("cuda") else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=size)
    answer = globals()[role](rank, size, device)
    dist.destroy_process_group()
    sys.stdout.buffer.write(pickle.dumps(answer))


if __name__ == "__main__":
    main()
