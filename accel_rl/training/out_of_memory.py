"""The message when a GPU is out of memory: how much was requested, and which settings to lower."""

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import torch

from accel_rl.errors import RunError
from accel_rl.hardware.capture import is_out_of_memory


@contextlib.contextmanager
def advice_on_memory(config: Any) -> Iterator[None]:
    """Turns a GPU's out-of-memory error into a RunError with advice. config: the run's Config."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, RunError) or not is_out_of_memory(error):
            raise
        raise RunError(_advice(error, config)) from None


def _advice(error: RuntimeError, config: Any) -> str:
    """Describes the memory requested, the GPU's memory, and the settings to lower."""
    requested = re.search(r"Tried to allocate ([0-9.]+ [KMGT]?i?B)", str(error))
    settings = f"--envs ({config.run.envs}) or --horizon ({config.run.horizon})"
    if (size := getattr(config.algo, "replay_size", None)) is not None:
        settings = f"--replay-size ({size}) or --batch-size ({config.algo.batch_size}), or use --replay-device cpu"
    memory = ""
    with contextlib.suppress(RuntimeError, ValueError):  # even this query may run out of memory
        left, total = torch.cuda.mem_get_info(config.device)
        memory = f"; {left / 2**30:.1f} of its {total / 2**30:.1f} GiB are free"
    amount = requested[1] if requested else "an unknown amount"
    return f"{config.device} is out of memory ({amount} was requested{memory}): lower {settings}"
