"""Tests of the numbers of environments and workers that a sampler takes, and of its errors."""

import pytest

from accel_rl.errors import UsageError
from accel_rl.hardware.placement import default_workers
from accel_rl.samplers.base import SamplerConfig
from accel_rl.training.build import evaluation_envs


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"num_envs": 15, "num_workers": 4}, "envs=15 does not split .* an even number, or --sampler serial"),
        ({"num_envs": 6, "num_workers": 8}, "workers=8 are more than envs=6; use 6 or fewer"),
        ({"num_envs": 8, "num_workers": 4, "num_evaluation_envs": 2}, "workers=4 are more than evaluation_envs=2"),
        ({"num_envs": 2, "num_workers": 2, "num_evaluation_envs": 1}, "evaluation_envs=1 does not split into 2 groups"),
        ({"num_envs": 16, "num_workers": 4, "horizon": 0}, "horizon=0 must be at least 1"),
        ({"num_envs": 0, "num_workers": 2}, "envs=0"),
        ({"num_envs": 4, "num_workers": 2, "num_learners": 0}, "learners=0 must be at least 1"),
    ],
)
def test_errors_name_numbers_that_fit(numbers: dict[str, int], message: str) -> None:
    """Settings that would leave a worker or a group without environments are refused, and the error says what fits."""
    with pytest.raises(UsageError, match=message):
        SamplerConfig(**{"horizon": 5, **numbers})


def test_default_numbers_of_workers_are_accepted() -> None:
    for num_envs in range(2, 40, 2):
        for num_cpus in range(1, 20):
            SamplerConfig(num_envs, 5, default_workers(num_envs, num_cpus))


def test_evaluations_divide_as_training_does() -> None:
    """An evaluation's environments divide over the workers if training's do, and are never fewer than the workers."""
    assert [evaluation_envs(steps, 16, 4) for steps in (10**4, 10**6)] == [4, 16]
    assert [evaluation_envs(steps, 64, 15) for steps in (10**4, 10**6)] == [16, 36]
