"""Updates several learners with the same parameters, by the gradient over the samples of all of them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor

from accel_rl.hardware.devices import device_id
from accel_rl.hardware.timers import DeviceTimer
from accel_rl.updates.exchange import Exchange
from accel_rl.updates.flat import FlatParameters
from accel_rl.updates.optimizers import Optimizer
from accel_rl.updates.shared_sum import SharedSum
from accel_rl.updates.terms import Terms


@dataclass
class CollectiveCount:
    """The number of collectives that this process has reached since its start. All learners reach the same ones."""

    value: int = 0


COLLECTIVES = CollectiveCount()


class AllReduce(Exchange):
    """Sums gradients over all learners, divides by the number of their samples, then clips and applies the optimizer
    (Stooke & Abbeel 2018, section 4.2).

    Every learner of torch.distributed's default group makes the same calls in the same order. All networks start equal
    to rank 0's. Since sums are equal everywhere, parameters and optimizer states stay equal. Each update has one
    all-reduce, which also carries the terms of the loss and the number of samples. Between GPUs it uses NCCL. On the
    CPUs of one machine, and for learners that share a GPU, which NCCL refuses, it uses shared memory; between machines
    without NCCL, Gloo.

    No CUDA graph contains a collective: captured NCCL collectives can deadlock next to others or in another order.
    """

    is_capturable: ClassVar[bool] = False
    sums_gradients: ClassVar[bool] = True

    def bind(self, parameters: FlatParameters, optimizer: Optimizer, clip_grad_norm: float | None) -> None:
        super().bind(parameters, optimizer, clip_grad_norm)
        device = parameters.values.device
        self._clock = DeviceTimer(device)
        uses_nccl = device.type == "cuda" and _can_use_nccl(device)
        self._by_copies = device.type == "cuda" and not uses_nccl  # not all builds of Gloo take GPU tensors
        can_share = not uses_nccl and dist.get_world_size() > 1
        self._shared_sum = SharedSum.open(parameters.shared) if can_share else None
        for tensor in (parameters.values, *parameters.module.buffers()):
            self._call(dist.broadcast, tensor, 0)

    def apply(self, sums: Terms, num_samples: Tensor, learning_rate: float | Tensor) -> Terms:
        parameters = self.parameters
        scalars = {name: value for name, value in sums.items() if not value.dim()}
        tail = parameters.tail(len(scalars) + 1)
        torch.stack([value.to(tail) for value in (*scalars.values(), num_samples)], out=tail)
        self._sum_up(parameters.shared[: len(parameters.gradient) + len(tail)])
        *totals, count = tail.clone().unbind()
        count = count.clamp(min=1)
        parameters.gradient.div_(count)
        grad_norm = self._clip()
        self.optimizer.apply(parameters.values, parameters.gradient, learning_rate, self.optimizer_state)
        means = {name: total / count for name, total in zip(scalars, totals, strict=True)}
        return sums | means | {"grad_norm": grad_norm}

    def _sum_up(self, vector: Tensor) -> None:
        """Replaces a part of `parameters.shared` with its sum over all learners."""
        with self._clock:
            if self._shared_sum:
                COLLECTIVES.value += 1
                self._shared_sum(vector)
            else:
                self._call(dist.all_reduce, vector)

    def sum(self, value: Tensor) -> Tensor:
        return self._reduce(value, dist.ReduceOp.SUM)

    def max(self, value: Tensor) -> Tensor:
        return self._reduce(value, dist.ReduceOp.MAX)

    def _reduce(self, value: Tensor, operation: Any) -> Tensor:
        result = value.clone()
        with self._clock:
            self._call(dist.all_reduce, result, operation)
        return result

    def _call(self, collective: Callable[..., Any], tensor: Tensor, *arguments: Any) -> None:
        """Calls a collective of torch.distributed that replaces the tensor's values."""
        COLLECTIVES.value += 1
        if not self._by_copies:
            collective(tensor, *arguments)
            return
        values = tensor.cpu()
        collective(values, *arguments)
        tensor.copy_(values)

    def read_seconds(self) -> dict[str, float]:
        return {"exchange": self._clock.read()}

    def close(self) -> None:
        if self._shared_sum:
            self._shared_sum.close()


def _can_use_nccl(device: torch.device) -> bool:
    """Returns whether all learners have NCCL and a GPU of their own. All of them call it together."""
    learners: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(learners, ("nccl" in dist.get_backend_config(), device_id(str(device)).hardware))
    return all(has_nccl for has_nccl, _ in learners) and len({gpu for _, gpu in learners}) == len(learners)
