"""Several learners with the same parameters: each update descends the gradient of all their samples together."""

from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from accel_rl.hardware.timers import GpuClock
from accel_rl.updates.optimizers import Rule
from accel_rl.updates.shared_sum import SharedSum
from accel_rl.updates.update import LocalUpdate


class AllReduceUpdate(LocalUpdate):
    """Gradient of a sum of losses, all-reduce, division by the number of samples of all learners, clip, rule
    (Stooke & Abbeel 2018, section 4.2).

    Every learner of torch.distributed's default group makes the same calls in the same order. The network begins as
    that of rank 0; since sums are the same everywhere, parameters and the rule's state stay the same. One all-reduce
    an update: the terms of the loss and the number of samples ride behind the gradient. On the CPUs of one machine it
    goes through shared memory (through_memory=False: by Gloo, as between machines).
    """

    one_graph: ClassVar[bool] = False
    mean_first: ClassVar[bool] = False

    def __init__(
        self,
        module: nn.Module,
        rule: Rule,
        clip_grad_norm: float | None = None,
        *,
        through_memory: bool = True,
        **options: Any,
    ):
        super().__init__(module, rule, clip_grad_norm, **options)
        self._clock = GpuClock(self.parameters.values.device)
        can_share = through_memory and self._on_cpu and dist.get_world_size() > 1
        self._sum = (SharedSum.open(self.parameters.shared) if can_share else None) or dist.all_reduce
        for tensor in (self.parameters.values, *module.buffers()):
            dist.broadcast(tensor, 0)

    def _finish(self, sums: dict[str, Tensor], weight: Tensor, learning_rate: float | Tensor) -> dict[str, Tensor]:
        parameters = self.parameters
        numbers = {name: value for name, value in sums.items() if not value.dim()}
        tail = parameters.tail(len(numbers) + 1)
        torch.stack([value.to(tail) for value in (*numbers.values(), weight)], out=tail)
        with self._clock:
            self._sum(parameters.shared[: len(parameters.gradient) + len(tail)])
        *totals, weight = tail.clone().unbind()
        weight = weight.clamp(min=1)
        parameters.gradient.div_(weight)
        norm = self._clip()
        self.rule.apply(parameters.values, parameters.gradient, learning_rate, self.rule_state)
        means = {name: total / weight for name, total in zip(numbers, totals, strict=True)}
        return sums | means | {"grad_norm": norm}

    def sum(self, value: Tensor) -> Tensor:
        return self._reduced(value, dist.ReduceOp.SUM)

    def max(self, value: Tensor) -> Tensor:
        return self._reduced(value, dist.ReduceOp.MAX)

    def _reduced(self, value: Tensor, operation: Any) -> Tensor:
        result = value.clone()
        with self._clock:
            dist.all_reduce(result, operation)
        return result

    def read_seconds(self) -> dict[str, float]:
        return {"exchange": self._clock.read()}
