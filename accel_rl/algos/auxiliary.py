"""Auxiliary tasks as a part of any actor-critic: their settings, the replay that they share, and when they learn."""

import logging
import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from accel_rl.algos.auxiliary_tasks import TASKS, AuxiliaryTask
from accel_rl.algos.base import RunInfo
from accel_rl.algos.replay_settings import check_replays_fit
from accel_rl.config.fields import basic_setting, setting
from accel_rl.envs.spec import EnvSpec
from accel_rl.errors import UsageError, unknown
from accel_rl.models.actor_critic import ActorCritic
from accel_rl.replay.replay import saves
from accel_rl.replay.sequences import SequenceBatch, SequenceReplay, WindowBatch, sequence_bytes
from accel_rl.replay.transitions import DrawnRows
from accel_rl.rollout import Rollout
from accel_rl.updates import LossPart, Update

logger = logging.getLogger("accel_rl")

MAX_STEPS = 20  # of a sequence by default: UNREAL's t_max


def _check_weight(value: float) -> None:
    if not (math.isfinite(value) and value >= 0):
        raise ValueError("must be a finite number, at least 0")


@dataclass(frozen=True)
class AuxiliarySettings:
    """What an actor-critic that takes auxiliary tasks has besides its own settings."""

    auxiliary: tuple[str, ...] = basic_setting(
        ("none",), "auxiliary tasks: pixel_control, value_replay and reward_prediction (Jaderberg et al. 2017, UNREAL)"
    )
    auxiliary_replay_steps: int = setting(2000, "steps of each environment that their replay keeps (UNREAL)", least=4)
    auxiliary_sequence_steps: int | None = setting(
        None,
        "steps of a replayed sequence; null: those of each environment in an update, at most 20 (UNREAL's t_max)",
        least=1,
    )
    auxiliary_start: str = setting(
        "at_once",
        "when they start to learn: at_once; when_full: once the replay is (GUNREAL); all_when_full: policy and value, "
        "too, wait for that (UNREAL)",
        choices=("at_once", "when_full", "all_when_full"),
    )
    pixel_control_weight: float = setting(
        0.05,
        "weight of half the squared error (UNREAL: 0.01 to 0.1 in 3-D, 0.0001 to 0.01 on Atari)",
        check=_check_weight,
    )
    pixel_control_discount: float = setting(0.9, "discount of pixel changes, per step (UNREAL)", least=0, most=1)
    pixel_control_cell: int = setting(4, "height and width of a cell, in pixels (UNREAL)", least=1)
    value_replay_weight: float = setting(1.0, "weight of half the squared error (UNREAL)", check=_check_weight)
    reward_prediction_weight: float = setting(1.0, "weight of the cross-entropy (UNREAL)", check=_check_weight)
    reward_prediction_units: int = setting(128, "units of its hidden layer (UNREAL)", least=1)
    checkpoint_replay: bool | None = setting(None, "save the replay in checkpoints; null: if it has 2 GB at most")

    @property
    def auxiliary_tasks(self) -> dict[str, type[AuxiliaryTask]]:
        """The tasks that take part, by name; those of weight 0 do not. Raises UsageError for an unknown name."""
        names = [] if self.auxiliary == ("none",) else self.auxiliary
        for name in names:
            if name not in TASKS:
                raise unknown("auxiliary task", str(name), TASKS, f"(choose from {', '.join(TASKS)})")
        return {name: task for name, task in TASKS.items() if name in names and getattr(self, f"{name}_weight") > 0}


def add_heads(policy: ActorCritic, settings: AuxiliarySettings) -> None:
    """Gives the policy the heads of the tasks that take part.

    What is drawn at random afterwards, and the policy itself, are as they would be without. Raises UsageError for a
    task that the environment does not allow."""
    with torch.random.fork_rng(devices=[]):
        for name, task in settings.auxiliary_tasks.items():
            if head := task.make_head(policy, settings):
                policy.auxiliary_heads[name] = head


class AuxiliaryTasks:
    """Keeps what the environments have shown, and draws what each task learns from.

    settings: of the algorithm. num_envs: of this learner. segment: steps of each environment that an update of the
    algorithm learns from. is_recurrent: whether the policy is."""

    def __init__(self, spec: EnvSpec, settings: Any, num_envs: int, segment: int, is_recurrent: bool):
        self.spec, self.settings, self.num_envs, self.is_recurrent = spec, settings, num_envs, is_recurrent
        steps = settings.auxiliary_sequence_steps
        self.sequence_steps: int = min(segment, MAX_STEPS) if steps is None else steps
        self.num_bytes = sequence_bytes(spec, num_envs, settings.auxiliary_replay_steps, is_recurrent)
        self.tasks: list[AuxiliaryTask] = []  # made by `setup`

    @property
    def saves_replay(self) -> bool:
        return saves(self.settings.checkpoint_replay, self.num_bytes)

    def validate(self, run: RunInfo, horizon: int, device: torch.device) -> None:
        """Raises UsageError for settings that do not fit together, or a replay that does not fit into memory.

        horizon: of a rollout; device: where the policy is now."""
        self.check_sizes(run, horizon=horizon, auxiliary_sequence_steps=self.sequence_steps)
        size, untouched = self.settings.auxiliary_replay_steps, run.leaves_gpus_alone(device)
        check_replays_fit(self.num_bytes, size, "auxiliary_replay_steps", run.devices, untouched)

    def check_sizes(self, run: RunInfo, **lengths: int) -> None:
        """Raises UsageError if any length, by the name of its setting, is more than the replay keeps, or if tasks that
        wait for a full replay would wait for the whole run."""
        start, size = self.settings.auxiliary_start, self.settings.auxiliary_replay_steps
        for name, steps in lengths.items():
            if steps > size:
                raise UsageError(f"{name}={steps} is more than auxiliary_replay_steps={size} keeps; change one of them")
        if start != "at_once" and size * run.num_envs >= run.steps:
            raise UsageError(
                f"auxiliary_start={start} waits for {size} steps of each of {run.num_envs} environments, but the run "
                f"has {run.steps} steps: make it longer or auxiliary_replay_steps smaller"
            )

    def setup(self, policy: ActorCritic, seed: int, device: torch.device) -> SequenceReplay | None:
        """Makes the tasks, and allocates and returns the replay that they draw from, if the learner keeps it."""
        generator = torch.Generator(device).manual_seed(seed)
        size = self.settings.auxiliary_replay_steps
        self.replay = SequenceReplay(
            self.spec, self.num_envs, size, self.sequence_steps, generator, device, self.is_recurrent
        )
        self.tasks = [task(policy, self.replay, self.settings) for task in self.settings.auxiliary_tasks.values()]
        self._envs = torch.arange(self.num_envs, device=device)
        logger.info(
            "auxiliary tasks: their replay needs %.1f MB on %s, and last frames of episodes",
            self.num_bytes / 1e6,
            device,
        )
        return self.replay

    @property
    def is_filling(self) -> bool:
        """Whether nothing is to be learned yet, by auxiliary_start."""
        return self.settings.auxiliary_start == "all_when_full" and not self.replay.is_full

    def draw(self, update: Update, envs: slice = slice(None)) -> list[LossPart]:
        """Draws a sequence or window for each task and each of some environments; returns the tasks' parts of a loss.

        They are valid until the next call."""
        if self.settings.auxiliary_start != "at_once" and not self.replay.is_full:
            return []
        replay, parts = self.replay, []
        noise = [replay.draw_noise() for _ in self.tasks]
        for some_envs in self._split(self._envs[envs], update):
            batches = update.graphed(self._draw, noise, some_envs, replay.ring.rows, uses=replay.replaceable)
            parts += [LossPart(task.loss, (batch,)) for task, batch in zip(self.tasks, batches, strict=True)]
        return parts

    def _draw(self, noise: list[Tensor], envs: Tensor, rows: DrawnRows) -> list[SequenceBatch | WindowBatch]:
        """Draws what each task learns from, all of them in one CUDA graph on a GPU; arguments as `AuxiliaryTask.draw`
        takes them, with noise for each task."""
        return [task.draw(each, envs, rows) for task, each in zip(self.tasks, noise, strict=True)]

    def _split(self, envs: Tensor, update: Update) -> tuple[Tensor, ...]:
        """Splits environments so that, on a CPU, no observations of a part are larger than `update` allows."""
        if envs.device.type != "cpu":
            return (envs,)
        elements = (self.sequence_steps + 1) * math.prod(self.spec.observation_shape)
        return torch.split(envs, max(1, update.slice_elements // elements))

    def store(self, rollout: Rollout) -> Rollout:
        """Takes in the rollout that follows the last one; returns what the algorithm learns from. That lacks
        terminal frames: their number differs from rollout to rollout, which CUDA graphs do not allow."""
        self.replay.append(rollout)
        return replace(rollout, terminal_frames=None)
