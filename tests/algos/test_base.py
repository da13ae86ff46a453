"""A subclass of Algo needs only one method."""

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from accel_rl.algos import Algo, AlgoSettings
from accel_rl.algos.base import RunInfo, Stats, masked_sum, stack_stats
from accel_rl.envs.spec import EnvSpec
from accel_rl.rollout import Rollout
from accel_rl.updates import Update
from tests.helpers.updates import RecordingUpdate

SPEC = EnvSpec(gymnasium.spaces.Box(-1, 1, (2,), np.float32), gymnasium.spaces.Discrete(2))


class Minimal(Algo):
    """Learns nothing."""

    def learn(self, rollout: Rollout, update: Update) -> Stats:
        return {}


def test_learn_is_enough() -> None:
    """A subclass with `learn` alone can be built, validated, set up, saved and loaded."""
    algo = Minimal(SPEC, AlgoSettings(), 1000, num_envs=4, horizon=5)
    update = RecordingUpdate(algo.policy)
    algo.validate(RunInfo(1000, 4, ("cpu",)))
    algo.setup(0, RecordingUpdate)
    algo.before_rollout(0)
    algo.load_state_dict(algo.state_dict())
    assert (algo.local_envs, algo.window, algo.learns_on_step) == (4, None, False)
    assert (algo.statistics, algo.replay, algo.learns_from_segments) == (None, None, False)
    assert algo.device == torch.device("cpu")
    assert algo.on_step(0, None, update) == {} and not update.calls
    with pytest.raises(TypeError, match="abstract"):
        Algo(SPEC, AlgoSettings(), 1000, 4, 5)  # type: ignore[abstract]


def test_statistics_of_several_updates() -> None:
    """Stacking keeps statistics that only some updates have, without padding."""
    stats: list[dict[str, Any]] = [{"loss": torch.tensor(1.0)}, {"loss": torch.tensor(2.0), "more": torch.tensor(3.0)}]
    stacked = stack_stats(stats)
    assert {name: value.tolist() for name, value in stacked.items()} == {"loss": [1.0, 2.0], "more": [3.0]}
    assert stack_stats([]) == {}
    valid = torch.tensor([True, False])
    assert masked_sum(torch.tensor([2.0, torch.nan]), valid).item() == 2.0
