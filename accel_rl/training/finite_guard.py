"""Ends a run whose loss, gradient or parameters are no longer finite, before they reach a checkpoint."""

import contextlib
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from accel_rl.errors import RunError, UsageError
from accel_rl.run_folder import checkpoint
from accel_rl.run_folder.directory import NOT_FINITE
from accel_rl.settings.resolve import Config
from accel_rl.training.log import command
from accel_rl.training.metrics import UpdateStatistics


class FiniteGuard:
    """A check of statistics, parameters and the optimizer's state for values that are not finite."""

    def __init__(self, folder: Path, config: Config, statistics: UpdateStatistics, policy: nn.Module, update: Any):
        self.folder, self.config = folder, config
        self.statistics, self.policy, self.update = statistics, policy, update

    def check_statistics(self) -> None:
        """Raises RunError if any statistic so far is not finite. Waits for a GPU."""
        if flaw := self._flaw_of_statistics():
            raise RunError(self._explain(flaw))

    def check(self, steps: int) -> None:
        """Raises RunError if a statistic, a parameter or the update's state is not finite. Waits for a GPU.

        steps: agent steps of the run so far."""
        if flaw := self._flaw_of_statistics() or self._flaw_of_parameters(steps):
            raise RunError(self._explain(flaw))

    def explain_error(self, error: Exception, steps: int) -> None:
        """Raises RunError if values that are not finite, such as NaN actions, may have caused the error."""
        try:
            flaw = self._flaw_of_statistics() or self._flaw_of_parameters(steps)
        except RuntimeError:  # a GPU that has failed refuses all further calls
            return
        if flaw:
            raise RunError(self._explain(flaw)) from error

    def saved(self) -> None:
        """Removes NOT_FINITE, since a checkpoint has been written after `check`."""
        (self.folder / NOT_FINITE).unlink(missing_ok=True)

    def _flaw_of_statistics(self) -> str | None:
        flaw = self.statistics.fetch()
        return flaw and f"update {flaw.update} (agent step {flaw.steps}): {flaw.name} is {flaw.value}"

    def _flaw_of_parameters(self, steps: int) -> str | None:
        learned = [(f"parameter {name}", value) for name, value in self.policy.named_parameters()]
        remembered = [(f"update.{name}", value) for name, value in _tensors(self.update.state_dict())]
        for name, value in [*learned, *remembered]:
            if not value.isfinite().all():
                flaw = value[~value.isfinite()][0].item()
                return f"after update {self.statistics.num_updates} (agent step {steps}): {name} is {flaw}"
        return None

    def _explain(self, flaw: str) -> str:
        """Returns a message with the flaw and how to continue; writes it to NOT_FINITE."""
        rate, clip = self.config.algo.learning_rate, self.config.algo.clip_grad_norm
        remedies = f"--learning-rate ({rate:g}) or --clip-grad-norm ({clip or 'none'})"
        again = f"{command()} train --resume {shlex.quote(str(self.folder))} --learning-rate {rate / 2:g}"
        try:
            steps = checkpoint.load(self.folder / checkpoint.CHECKPOINT, True, self.config.trust)["steps"]
            message = f"{flaw}; the last good checkpoint is at step {steps}: lower {remedies}, as in {again}"
        except UsageError:
            message = f"{flaw}; there is no checkpoint yet: start again with a lower {remedies}"
        with contextlib.suppress(OSError):
            (self.folder / NOT_FINITE).write_text(message + "\n")
        return message


def _tensors(state: dict[str, Any], prefix: str = "") -> Iterable[tuple[str, Tensor]]:
    """Yields all tensors of a state_dict, at any depth, with their names joined by dots."""
    for name, value in state.items():
        if isinstance(value, dict):
            yield from _tensors(value, f"{prefix}{name}.")
        elif isinstance(value, Tensor):
            yield f"{prefix}{name}", value
