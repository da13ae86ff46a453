"""The settings of auxiliary tasks. An algorithm that supports the tasks needs only this module."""

from dataclasses import dataclass
from functools import partial

from accel_rl.config.fields import basic_setting, setting
from accel_rl.errors import unknown

task_setting = partial(setting, only_with="auxiliary")
TASK_NAMES = ("pixel_control", "value_replay", "reward_prediction")


@dataclass(frozen=True)
class AuxiliarySettings:
    """The settings of auxiliary tasks. An actor-critic supports the tasks if its settings derive from these, too."""

    auxiliary: tuple[str, ...] = basic_setting(
        ("none",), "auxiliary tasks: pixel_control, value_replay and reward_prediction (Jaderberg et al. 2017, UNREAL)"
    )
    auxiliary_replay_steps: int = task_setting(2000, "steps of each environment in the tasks' replay (UNREAL)", least=4)
    auxiliary_sequence_steps: int | None = task_setting(
        None,
        "steps of a replayed sequence; null: as many as an update takes of an environment, at most 20 (UNREAL's t_max)",
        least=1,
    )
    auxiliary_start: str = task_setting(
        "at_once",
        "when tasks start to learn: at_once; when_full: once the replay is full (GUNREAL); all_when_full: the policy "
        "and the value wait for that, too (UNREAL)",
        choices=("at_once", "when_full", "all_when_full"),
    )
    pixel_control_weight: float = task_setting(
        0.05,
        "weight of half the squared error (UNREAL: 0.01 to 0.1 in 3-D, 0.0001 to 0.01 on Atari)",
        least=0,
    )
    pixel_control_discount: float = task_setting(0.9, "discount of pixel changes, per step (UNREAL)", least=0, most=1)
    pixel_control_cell: int = task_setting(4, "height and width of a cell, in pixels (UNREAL)", least=1)
    value_replay_weight: float = task_setting(1.0, "weight of half the squared error (UNREAL)", least=0)
    reward_prediction_weight: float = task_setting(1.0, "weight of the cross-entropy (UNREAL)", least=0)
    reward_prediction_units: int = task_setting(128, "units of the hidden layer (UNREAL)", least=1)
    checkpoint_replay: bool | None = task_setting(None, "save the replay in checkpoints; null: if it has at most 2 GB")

    @property
    def task_names(self) -> tuple[str, ...]:
        """The names of the active tasks, whose weights are above 0. Raises UsageError for an unknown name."""
        names = [] if self.auxiliary == ("none",) else self.auxiliary
        for name in names:
            if name not in TASK_NAMES:
                raise unknown("auxiliary task", str(name), TASK_NAMES, f"(choose from {', '.join(TASK_NAMES)})")
        return tuple(name for name in TASK_NAMES if name in names and getattr(self, f"{name}_weight") > 0)
