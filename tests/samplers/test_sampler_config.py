"""Which numbers of environments and workers a sampler takes, and what it says of others."""

import pytest

from accel_rl.errors import UsageError
from accel_rl.hardware.placement import default_workers
from accel_rl.samplers.base import SamplerConfig


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"num_envs": 15, "num_workers": 4}, "envs=15 does not split .* an even number, or --sampler serial"),
        ({"num_envs": 16, "num_workers": 3}, "envs=16 .* workers=3 in 2 groups"),
        ({"num_envs": 10, "num_workers": 4}, "use 2 or 5 workers, or 8 or 12 envs"),
        ({"num_envs": 8, "num_workers": 3}, "envs=8 .* workers=3 in 2 groups; use 2 or 4 workers, or 6 or 12 envs"),
        ({"num_envs": 6, "num_workers": 8}, "use 6 workers, or 8 envs"),
        ({"num_envs": 8, "num_workers": 4, "num_evaluation_envs": 6}, "use 3 or 6 workers, or 4 or 8 evaluation_envs"),
        ({"num_envs": 2, "num_workers": 2, "num_evaluation_envs": 1}, "evaluation_envs=1 does not split into 2 groups"),
        ({"num_envs": 16, "num_workers": 4, "horizon": 0}, "horizon=0 must be at least 1"),
        ({"num_envs": 0, "num_workers": 2}, "envs=0"),
        ({"num_envs": 4, "num_workers": 2, "num_learners": 0}, "learners=0 must be at least 1"),
    ],
)
def test_errors_name_numbers_that_divide(numbers: dict[str, int], message: str) -> None:
    """Would catch settings that silently drop environments, and an error that leaves it to the user what would fit."""
    with pytest.raises(UsageError, match=message):
        SamplerConfig(**{"horizon": 5, **numbers})


def test_default_numbers_of_workers_are_accepted() -> None:
    """Would catch a default that the sampler refuses."""
    for num_envs in range(2, 40, 2):
        for num_cpus in range(1, 20):
            SamplerConfig(num_envs, 5, default_workers(num_envs, num_cpus))
