"""What a subclass of Algo must know: a page of methods, of which it needs one."""

import inspect
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from accel_rl.algos import Algo, AlgoSettings
from accel_rl.algos.base import RunInfo, Stats, masked_sum, stack_stats
from accel_rl.algos.schedules import schedule_setting
from accel_rl.config.fields import setting
from accel_rl.envs.spec import EnvSpec
from accel_rl.rollout import Rollout
from accel_rl.updates import Update
from tests.helpers.updates import RecordingUpdate

SPEC = EnvSpec(gymnasium.spaces.Box(-1, 1, (2,), np.float32), gymnasium.spaces.Discrete(2))
MOST_METHODS = 9


class Minimal(Algo):
    """Learns nothing."""

    def learn(self, rollout: Rollout, update: Update) -> Stats:
        return {}


def overridable() -> list[str]:
    """The public methods that Algo defines above its helpers."""
    source = inspect.getsource(Algo)
    above = source[source.index("# ---- what a subclass overrides") : source.index("# ---- what it offers")]
    public = [name for name in vars(Algo) if not name.startswith("_") and callable(getattr(Algo, name))]
    return [name for name in public if f"def {name}(" in above]


def test_the_surface_is_a_page() -> None:
    """Would catch one more hook for what a single algorithm needs."""
    methods = overridable()
    assert len(methods) <= MOST_METHODS
    assert {"build_policy", "learn", "on_step", "state_dict", "load_state_dict"} <= set(methods)
    assert Algo.__abstractmethods__ == {"learn"}


def test_learn_is_enough() -> None:
    """Would catch a subclass that cannot be built, set up, saved or run with `learn` alone."""
    algo = Minimal(SPEC, AlgoSettings(), 1000, num_envs=4, horizon=5)
    update = RecordingUpdate(algo.policy)
    algo.validate(RunInfo(1000, 4, ("cpu",)))
    algo.setup(0, RecordingUpdate)
    algo.before_rollout(0)
    algo.load_state_dict(algo.state_dict())
    assert (algo.local_envs, algo.window_steps, algo.learns_on_step) == (4, 0, False)
    assert (algo.statistics, algo.replay, algo.saves_replay, algo.extra_eval_policies) == (None, None, False, {})
    assert algo.device == torch.device("cpu") and algo.envs_to_update(3) is None
    assert algo.on_step(0, None, update) == {} and not update.calls
    with pytest.raises(TypeError, match="abstract"):
        Algo(SPEC, AlgoSettings(), 1000, 4, 5)  # type: ignore[abstract]


def test_a_subclass_with_an_on_step_learns_on_step() -> None:
    """Would catch an on_step that is never called."""

    class OnStep(Minimal):
        def on_step(self, t: int, recent: Rollout | None, update: Update) -> Stats:
            return {}

    assert OnStep(SPEC, AlgoSettings(), 1000, 4, 5).learns_on_step


@dataclass(frozen=True)
class Scheduled(AlgoSettings):
    entropy_weight: float = setting(0.5, "weight of the entropy")
    entropy_schedule: str = schedule_setting("linear", "its course")


def test_settings_with_a_schedule() -> None:
    """Would catch a schedule of another setting, or one over the steps of another run."""
    algo = Minimal(SPEC, Scheduled(learning_rate=2.0, learning_rate_schedule="linear:0.5"), 100, 4, 5)
    assert [algo.learning_rate(step) for step in (0, 50, 100)] == [2.0, 1.5, 1.0]
    assert algo.scheduled("entropy_weight", 25) == 0.375


def test_statistics_of_several_updates() -> None:
    """Would catch a statistic that only some updates have, and that is lost or padded."""
    stats: list[dict[str, Any]] = [{"loss": torch.tensor(1.0)}, {"loss": torch.tensor(2.0), "more": torch.tensor(3.0)}]
    stacked = stack_stats(stats)
    assert {name: value.tolist() for name, value in stacked.items()} == {"loss": [1.0, 2.0], "more": [3.0]}
    assert stack_stats([]) == {}
    valid = torch.tensor([True, False])
    assert masked_sum(torch.tensor([2.0, torch.nan]), valid).item() == 2.0
