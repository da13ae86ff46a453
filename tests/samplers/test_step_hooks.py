"""Tests of updates between the steps of a rollout: which policy acts, and what the learner sees."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from accel_rl.rollout import PolicyStep, RecurrentInputs
from accel_rl.samplers import AlternatingSampler
from accel_rl.samplers.base import SamplerConfig, StepHook
from tests.helpers.samplers import COUNTING, KINDS, Echo, assert_equal, closing, make, make_kind

pytestmark = pytest.mark.multiprocess

GROUPS = [slice(0, 2), slice(2, 4)]
GROUP_0, GROUP_1, BOTH = slice(1, 2), slice(2, 4), slice(1, 3)
LIMIT_S = 60.0


class Versioned(Echo):
    """Acts by its version, which the learner increments, and records it."""

    version = 0

    def act(
        self, observation: Tensor, noise: Tensor | None, recurrent_inputs: RecurrentInputs | None = None
    ) -> PolicyStep:
        action, outputs, state = super().act(observation, noise, recurrent_inputs)
        outputs["version"] = torch.full((len(action),), float(self.version), device=action.device)
        return (action + self.version) % self.num_actions, outputs, state


def expected_versions(horizon: int, every: int, named: list[slice | None], first: int) -> Tensor:
    """Returns [T, 4]: updates made before each action, `first` of them before the rollout."""
    versions, made = torch.zeros(horizon, 4), first
    for t in range(horizon):
        updates = t % every == 0
        envs = named[t % len(named)] if updates else None
        for group in GROUPS:
            held = envs is not None and any(env in range(4)[group] for env in range(4)[envs])
            versions[t, group] = made + held
        made += updates
    return versions


@pytest.fixture(scope="module")
def in_step() -> Iterator[dict[str, Any]]:
    """Samplers of every kind with the same environments and `Versioned` policies, which all collect the same
    rollouts."""
    samplers = {kind: make_kind(kind, COUNTING, SamplerConfig(4, 7, 2), Versioned(4)) for kind in KINDS}
    yield samplers
    for sampler in samplers.values():
        sampler.close()


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize(
    "named",
    [[GROUP_0], [GROUP_1], [BOTH], [None], [GROUP_0, GROUP_1], [None, BOTH, GROUP_1, GROUP_0, None]],
    ids=["group 0", "group 1", "both groups", "none", "in turn", "mixed"],
)
def test_the_step_alone_decides_which_policy_chose_an_action(
    named: list[slice | None], every: int, in_step: dict[str, Any]
) -> None:
    """An update changes a group's policy at the same step in all samplers."""
    horizon = 7
    for sampler in in_step.values():
        sampler.policy.version = 0
    for index in range(3):
        rollouts = []
        for sampler in in_step.values():
            called, asked = list[int](), list[int]()

            def on_step(t: int, policy: Any = sampler.policy, called: list[int] = called) -> None:
                called.append(t)
                policy.version += 1

            def envs_to_update(t: int, asked: list[int] = asked) -> slice | None:
                asked.append(t)
                return named[t % len(named)]

            rollouts.append(sampler.collect(StepHook(on_step, every, envs_to_update)))
            assert called == asked == [*range(0, horizon, every)]
        expected = expected_versions(horizon, every, named, index * len(called))
        for kind, rollout in zip(KINDS, rollouts, strict=True):
            assert torch.equal(rollout.policy_outputs["version"], expected), kind
            assert_equal(rollouts[0], rollout, f"rollout {index}, {kind}")


@pytest.mark.parametrize(("envs", "free"), [(GROUP_0, 1), (GROUP_1, 0)])
def test_a_group_that_is_not_learned_from_simulates_during_the_update(envs: slice, free: int) -> None:
    """During an update of one group, the other group's environments go on."""
    sampler = make(AlternatingSampler, COUNTING, SamplerConfig(4, 4, 2))
    rows: list[tuple[int, int]] = []  # rows announced by the free and the other group when each update ends

    def on_step(t: int) -> None:
        def announced(group: int) -> int:
            return min(sampler.pool._rows_announced(worker, group) for worker in range(2))

        deadline = time.monotonic() + LIMIT_S
        while announced(free) < t + 2 and time.monotonic() < deadline:
            time.sleep(0.001)
        rows.append((announced(free), announced(1 - free)))

    with closing(sampler):
        sampler.collect(StepHook(on_step, envs_to_update=lambda t: envs))
        assert rows == [(t + 2, t + 1) for t in range(4)]
