"""Mistakes of other frameworks in the seeds of environments."""

import pytest
import torch
from torch import Tensor

from accel_rl.envs.spec import EnvConfig
from accel_rl.samplers import SerialSampler
from accel_rl.samplers.base import SamplerConfig
from tests.helpers.samplers import TOYS, Greedy, closing, make, spec_of

OPTIONS = {"lengths": [3], "seeded": True}
NUM_ENVS, T = 4, 7
ENVS = {
    "single": EnvConfig(f"{TOYS}:Counting", options=OPTIONS),
    "batches": EnvConfig("tests.helpers.vector_envs:make", options={"mode": "SameStep", **OPTIONS}),
    "atari": EnvConfig("breakout", options={"noop_max": 30, "repeat_action_probability": 0.5, "frame_shape": (84, 84)}),
}


def seen(env: EnvConfig, seed: int) -> Tensor:
    """Returns the rows of each environment [NUM_ENVS, ...] over T steps of a run with this seed. Environments that show
    the same get the same actions."""
    policy = Greedy(int(spec_of(env).action_space.n))  # type: ignore[attr-defined]
    sampler = make(SerialSampler, env, SamplerConfig(NUM_ENVS, T, 0), policy, seed=seed)
    with closing(sampler):
        rows: Tensor = sampler.collect().observation_rows.transpose(0, 1).clone()
    return rows


@pytest.mark.parametrize("kind", ENVS)
def test_environments_differ_and_seed_0_is_one(kind: str) -> None:
    """TorchRL pull request 4208 and EnvPool issue 324: all environments of a batch began alike. ale-py pull request
    603: with seed 0, games differed from run to run."""
    first, again, other = seen(ENVS[kind], 0), seen(ENVS[kind], 0), seen(ENVS[kind], 1)
    assert torch.equal(first, again)
    assert len(torch.cat([first, other]).flatten(1).unique(dim=0)) == 2 * NUM_ENVS
