"""DQN on a few environments, without a training loop."""

from typing import Any

import torch

from accel_rl.algos.dqn import DQN
from accel_rl.envs import EnvConfig
from accel_rl.samplers import SerialSampler
from accel_rl.samplers.base import SamplerConfig
from tests.helpers.samplers import TOYS, make, spec_of
from tests.helpers.updates import RecordingUpdate

SMALL: dict[str, Any] = {"warmup_steps": 24, "batch_size": 4, "replay_size": 400, "training_intensity": 2.0}
COUNTING = EnvConfig(f"{TOYS}:Counting", options={"lengths": [3, -4, 2, 7], "seeded": True})


def make_run(
    algo_class: Any = DQN, horizon: int = 3, num_envs: int = 4, **changes: Any
) -> tuple[Any, SerialSampler, RecordingUpdate]:
    """Returns DQN on 4 of num_envs environments, its sampler and its update; it learns so slowly that nothing grows."""
    torch.manual_seed(0)
    settings = algo_class.Settings(**{**SMALL, "learning_rate": 1e-4, **changes})
    algo = algo_class(spec_of(COUNTING), settings, 1000, num_envs, horizon, local_envs=4)
    update = RecordingUpdate(algo.policy)
    algo.setup(1, RecordingUpdate)
    return algo, make(SerialSampler, COUNTING, SamplerConfig(4, horizon), algo.policy), update
