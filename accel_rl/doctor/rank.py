"""One of several learners that sum their gradients. `python -m accel_rl.doctor.rank` is its process."""

import sys
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.distributed import is_initialized

from accel_rl.distributed.sync_coordinator import process_group
from accel_rl.doctor.float32 import exact_float32
from accel_rl.hardware.signals import leave_signals_to_parent
from accel_rl.updates import Update
from accel_rl.updates.all_reduce import AllReduce
from accel_rl.updates.optimizers import RMSProp

NUM_UPDATES, NUM_SAMPLES = 6, 24


def learn_part(rank: int, size: int, device: torch.device) -> Tensor:
    """Makes updates from this learner's part of the samples of all; returns the parameters, the number of samples of
    all learners and the largest of their ranks' values [P + 2], on the CPU.

    In a group of torch.distributed gradients are summed over its learners."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4)).to(device)
    update = Update(network, RMSProp(), 0.5, AllReduce() if is_initialized() else None)

    def loss(x: Tensor, target: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        loss_sum = (network(x) - target).square().sum()
        return loss_sum, {"loss": loss_sum.detach()}

    generator = torch.Generator().manual_seed(1)
    rows = slice(rank * NUM_SAMPLES // size, (rank + 1) * NUM_SAMPLES // size)
    for _ in range(NUM_UPDATES):
        x, target = (torch.randn(NUM_SAMPLES, width, generator=generator) for width in (16, 4))
        own = (x[rows].to(device), target[rows].to(device))
        update.minimize(loss, own, torch.tensor(len(own[0]), device=device), 1e-2)
    num_samples = update.sum(torch.tensor([float(rows.stop - rows.start)], device=device))
    largest = update.max(torch.tensor([float(rows.stop)], device=device))
    found = torch.cat([update.parameters.values.detach().flatten(), num_samples, largest]).cpu()
    update.close()
    return found


def main() -> None:
    leave_signals_to_parent()
    rank, size, device, port, out = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), Path(sys.argv[5])
    torch.cuda.set_device(device)
    with exact_float32(), process_group(rank, size, port, offers_nccl=True):
        found = learn_part(rank, size, torch.device(device))
    torch.save(found, out)


if __name__ == "__main__":
    main()
