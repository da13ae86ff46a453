"""Defines the settings of algorithms that learn from a replay, checks them, and makes that replay."""

import logging
import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from accel_rl.algos.base import RunInfo
from accel_rl.algos.q_base import QSettings
from accel_rl.config.fields import basic_setting, setting
from accel_rl.envs.spec import EnvSpec
from accel_rl.errors import UsageError
from accel_rl.hardware.devices import find_device
from accel_rl.hardware.host_memory import check_all_fit, check_fits
from accel_rl.replay import Replay
from accel_rl.replay.replay import replay_bytes, saves
from accel_rl.replay.ring import MAX_STEPS

logger = logging.getLogger("accel_rl")

priority_setting = partial(setting, only_with="prioritized")
CPU_INSTEAD = "--replay-device cpu, or "


@dataclass(frozen=True)
class ReplaySettings(QSettings):
    batch_size: int = basic_setting(32, "samples per update (central store: per update of each learner)", least=1)
    training_intensity: float = basic_setting(8.0, "how often a sample is learned from, on average", above=0)
    replay_size: int = basic_setting(
        1_000_000, "steps kept, over all environments (central store: of each learner)", least=1
    )
    replay_device: str = setting("auto", "device that keeps the replay: cpu or cuda:0; auto: where the network learns")
    warmup_steps: int = basic_setting(
        50_000, "random agent steps before the first update (central store: of each learner)", least=1
    )
    n_step: int = basic_setting(
        1, "rewards in a return before the target network's value completes it", least=1, most=MAX_STEPS
    )
    prioritized: bool = basic_setting(False, "draw samples by the size of their last error")
    priority_alpha: float = priority_setting(0.6, "exponent of the priority; 0: uniform", least=0)
    priority_beta: float = priority_setting(0.4, "initial exponent of the importance weights", least=0, most=1)
    priority_beta_steps: int = priority_setting(50_000_000, "agent steps until priority_beta is 1, linearly", least=1)
    new_priority: float | None = priority_setting(None, "priority of a new sample; null: the largest so far", above=0)
    checkpoint_replay: bool | None = setting(None, "save the replay in checkpoints; null: if it has at most 2 GB")

    def importance_exponent(self, step: int) -> float:
        """Returns beta at this agent step of the run (Schaul et al. 2016, section 3.4)."""
        progress = min(1.0, step / self.priority_beta_steps)
        return self.priority_beta + progress * (1 - self.priority_beta)


@dataclass(frozen=True)
class ReplayPlan:
    """One learner's share of the replay and the batches.

    num_envs: environments of all learners that update together; local_envs: this learner's. device: its network's."""

    settings: Any  # ReplaySettings
    spec: EnvSpec
    num_envs: int
    local_envs: int
    horizon: int
    device: torch.device

    @property
    def num_learners(self) -> int:
        """The number of learners that update together."""
        return self.num_envs // self.local_envs

    @property
    def batch_size(self) -> int:
        return int(self.settings.batch_size) // self.num_learners

    @property
    def replay_size(self) -> int:
        return int(self.settings.replay_size) // self.num_learners

    def count_updates(self) -> int:
        """Returns the number of updates for each rollout. Raises UsageError unless it is whole."""
        settings = self.settings
        return updates_per_rollout(settings.training_intensity, self.num_envs * self.horizon, settings.batch_size)

    @property
    def replay_device(self) -> torch.device:
        name = self.settings.replay_device
        return self.device if name == "auto" else torch.device(find_device(name, "replay_device"))

    @property
    def num_bytes(self) -> int:
        settings = self.settings
        return replay_bytes(self.spec, self.local_envs, self.replay_size, settings.n_step, settings.prioritized)

    def make_replay(self, seed: int) -> Replay:
        """Allocates the replay. Raises UsageError if it does not fit into memory."""
        settings, device = self.settings, self.replay_device
        way_out = CPU_INSTEAD if device.type != "cpu" else ""
        free = check_fits(self.num_bytes, settings.replay_size, "replay_size", device, way_out)
        logger.info(
            "replay: %s steps need %.2f GB on %s, where %.2f GB are free",
            f"{self.replay_size:,}", self.num_bytes / 1e9, device, free / 1e9,
        )  # fmt: skip
        replay = Replay(
            self.spec,
            self.local_envs,
            self.replay_size,
            settings.n_step,
            settings.discount,
            settings.priority_alpha if settings.prioritized else None,
            settings.new_priority,
            torch.Generator(device).manual_seed(seed),
            device,
        )
        replay.in_checkpoints = saves(settings.checkpoint_replay, self.num_bytes)
        return replay

    def validate(self, run: RunInfo) -> None:
        """Raises UsageError for settings that do not fit together, or a replay that does not fit into memory."""
        settings = self.settings
        self.count_updates()
        for name, size in (("batch_size", settings.batch_size), ("replay_size", settings.replay_size)):
            if size % self.num_learners:
                raise UsageError(
                    f"{name}={size} does not split over {self.num_learners} learners that update together; make it a "
                    f"multiple of {self.num_learners}"
                )
        self._validate_warmup(run)
        steps_per_env = settings.replay_size // self.num_envs
        for name, length in (("n_step", settings.n_step), ("a rollout of horizon", self.horizon)):
            if length > steps_per_env - (name == "n_step"):
                raise UsageError(
                    f"{name}={length} does not fit into the {steps_per_env} steps that replay_size="
                    f"{settings.replay_size} keeps of each of {self.num_envs} environments"
                )
        places = run.devices
        if settings.replay_device != "auto":
            places = (str(self.replay_device),) * len(places)
        of_others = self.device.type == "cpu" and run.devices != ("cpu",)  # this process does not learn itself
        check_all_fit(self.num_bytes, settings.replay_size, "replay_size", places, of_others, CPU_INSTEAD)

    def _validate_warmup(self, run: RunInfo) -> None:
        settings = self.settings
        num_stored = settings.warmup_steps - self.num_envs * settings.n_step
        if settings.batch_size > min(num_stored, settings.replay_size):
            raise UsageError(
                f"batch_size={settings.batch_size} is more than the replay holds after warmup_steps="
                f"{settings.warmup_steps} (n_step={settings.n_step}, replay_size={settings.replay_size}): lower it, or "
                "make the warm-up or the replay larger"
            )
        rollout_steps, num_replays = self.num_envs * self.horizon, run.num_envs // self.num_envs
        # Running statistics need one rollout more. The updates for a rollout are made during the next one.
        has_statistics = settings.normalize_returns or settings.normalize_observations
        num_rollouts = math.ceil(settings.warmup_steps / rollout_steps) + has_statistics
        if num_rollouts * rollout_steps * num_replays >= run.steps:
            of_each = f" of each of {num_replays} learners" if num_replays > 1 else ""
            raise UsageError(
                f"warmup_steps={settings.warmup_steps}{of_each} leaves none of the run's {run.steps} steps to "
                "learn from; make the run longer or the warm-up shorter"
            )


def updates_per_rollout(intensity: float, num_samples: int, batch_size: int) -> int:
    """Returns the number of batches to learn from for each rollout of num_samples steps.

    Raises UsageError, with the nearest batch sizes and intensities that work, unless it is a whole number."""
    exact = intensity * num_samples / batch_size
    count = round(exact)
    if count >= 1 and math.isclose(exact, count):
        return count
    uses = intensity * num_samples
    sizes = [uses / k for k in range(1, int(uses) + 1) if (uses / k).is_integer()]
    below = [size for size in sizes if size < batch_size][:1]
    above = [size for size in sizes if size > batch_size][-1:]
    counts = sorted({max(1, math.floor(exact)), max(1, math.ceil(exact))})
    # Intensities are shown with enough digits to divide exactly.
    ways_out = {"batch_size": below + above, "training_intensity": [k * batch_size / num_samples for k in counts]}
    shown = [f"{name}={' or '.join(f'{x:.12g}' for x in values)}" for name, values in ways_out.items() if values]
    raise UsageError(
        f"training_intensity={intensity:g} x {num_samples} samples of a rollout / batch_size={batch_size} = {exact:g} "
        f"updates must be a whole number: use {', or '.join(shown)}"
    )
