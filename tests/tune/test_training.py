"""Tests of a training run as a contestant, on the fake GPU."""

from contextlib import closing

import pytest
import torch

from accel_rl.settings.resolve import resolve
from accel_rl.training.build import check
from accel_rl.tune.training import Training


@pytest.mark.gpu(fake=True)
def test_a_turn_on_a_gpu_ends_with_its_work() -> None:
    """A turn leaves no work on the GPU that would run in the next contestant's turn."""
    sizes = {"envs": 4, "horizon": 3, "sampler": "serial", "steps": 10**6}
    config = check(resolve({"algo": "a2c", "env": "CartPole-v1", "device": "cuda:0", **sizes}))
    with closing(Training("training", config)) as training:
        training.iterate()
        assert not torch.cuda.current_stream().query(), "an iteration does not wait"
        training.run(0.001)
        assert torch.cuda.current_stream().query()
