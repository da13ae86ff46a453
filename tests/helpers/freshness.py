"""A policy whose layers have prepared all weights they can, and checks that it acts by its current parameters."""

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor

from accel_rl.models.actor_critic import ActorCritic
from accel_rl.updates import Update
from tests.helpers.plain import disturbed, error, images, outputs, pixels, plain

IMAGE = images((2, 20, 20), 4)


def make_policy(seed: int = 0) -> ActorCritic:
    torch.manual_seed(seed)
    return disturbed(ActorCritic(pixels(2, 20, 20)), seed)  # type: ignore[no-any-return]


def evaluate(policy: Any) -> list[Tensor]:
    """Returns the policy's results in both precisions and all three modes, which prepares all weights that it can."""
    found = []
    for policy.bf16 in (False, True):
        found += outputs(policy, IMAGE)
        with torch.no_grad():
            found += policy(IMAGE)
        with torch.enable_grad():
            found += [value.detach() for value in policy(IMAGE)]
    policy.bf16 = False
    return found


def assert_fresh(policy: Any, before: list[Tensor]) -> list[Tensor]:
    """Asserts that all results have changed, and that they are those of the current parameters."""
    found = evaluate(policy)
    for index, (now, then) in enumerate(zip(found, before, strict=True)):
        assert error(now, then) > 0.02, f"result {index} has not changed"
    return assert_current(policy, found)


def assert_current(policy: Any, found: list[Tensor]) -> list[Tensor]:
    """Asserts that results equal those of a copy without prepared weights, and are close to plain PyTorch's."""
    for index, (now, fresh) in enumerate(zip(found, evaluate(deepcopy(policy)), strict=True)):
        torch.testing.assert_close(now, fresh, rtol=1e-5, atol=1e-5, msg=f"result {index} is stale")
    for now, expected in zip(found[:2], outputs(plain(policy), IMAGE), strict=True):
        assert error(now, expected) < 1e-4
    return found


def learn(update: Update, seed: int = 0, rate: float = 0.3) -> None:
    """Makes two updates by `minimize`, in slices, and one by `step`; acts in between."""
    policy, count = update.module, torch.tensor(len(IMAGE))
    slopes = torch.randn(7, generator=torch.Generator().manual_seed(seed))

    def loss(image: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        parameters, value = policy(image)
        return (torch.cat([parameters, value[:, None]], 1) * slopes).sum(), {}

    for _ in range(2):
        before = evaluate(policy)
        update.minimize(loss, (IMAGE,), count, rate)
        assert_fresh(policy, before)
    before = evaluate(policy)
    update.step(loss(IMAGE)[0], count, rate)
    assert_fresh(policy, before)
