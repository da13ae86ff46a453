"""How long the calls of a torch.distributed group wait: PyTorch has only a private function to change it."""

from datetime import timedelta
from typing import Any

from torch.distributed import distributed_c10d

from accel_rl.training.log import logger


def set_group_timeout(timeout_s: float, group: Any = None) -> None:
    """Changes the timeout of a group, None: the default group. Where PyTorch can't, warns that the old one stays."""
    try:
        distributed_c10d._set_pg_timeout(timedelta(seconds=timeout_s), group)
    except (AttributeError, TypeError):
        logger.warning(
            "learner_timeout_s=%g has no effect: this version of PyTorch cannot change the time-out of a process group",
            timeout_s,
        )
