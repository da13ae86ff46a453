"""Tests of bfloat16 copies of weights on a GPU: acting and learning use them, and they are always current."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from accel_rl.algos.base import frozen_copy
from accel_rl.models.actor_critic import ActorCritic
from accel_rl.models.bf16_weights import keep_copies, refresh
from accel_rl.models.q_network import QNetwork
from accel_rl.models.trunks import NETWORKS
from accel_rl.updates import Update
from accel_rl.updates.exchange import copy_module
from accel_rl.updates.optimizers import Adam, RMSProp
from tests.fake_cuda import counting
from tests.helpers.plain import images, pixels

pytestmark = pytest.mark.gpu(fake=True, like_cpu=True)

SPEC, SHAPE = pixels(2, 36, 36), (2, 36, 36)
CAST = "aten.copy_.default"


def make_policy(device: str = "cuda:0") -> ActorCritic:
    torch.manual_seed(3)
    policy = ActorCritic(SPEC, NETWORKS["nature"]).to(device)
    policy.bf16 = True
    return policy


def assert_current(network: nn.Module) -> None:
    """Asserts that each copy is its parameter, or its layer's scaled weight, rounded."""
    for name, parameter in network.named_parameters():
        scale = 1 / 255 if name.endswith("convolutions.0.weight") else 1.0
        assert torch.equal(parameter.bf16.cpu(), (parameter.detach() * scale).to(torch.bfloat16).cpu()), name


def minimizer(policy: Any, update: Update, size: int = 6) -> Callable[[], Any]:
    """Returns a function that makes an update from images and returns the terms of the loss."""
    image = images(SHAPE, size).to(update.device)

    def loss(image: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        parameters, value = policy(image)
        loss_sum = parameters.square().sum() + (value - 1).square().sum()
        return loss_sum, {"loss": loss_sum.detach()}

    return lambda: update.minimize(loss, (image,), torch.tensor(size), 1e-2)


def test_a_gpu_computes_what_a_cpu_computes_in_bfloat16() -> None:
    """A GPU's bfloat16 outputs and gradients differ from a CPU's float32 ones, but only by bfloat16's rounding."""
    found = []
    for device, bf16 in (("cpu", False), ("cuda:0", True)):
        policy = make_policy(device)
        policy.bf16 = bf16
        update = Update(policy, RMSProp(), cuda_graphs=False)
        image = images(SHAPE, 6).to(update.device)
        acted = policy.act(image, None)[1]["distribution"]
        parameters, value = policy(image)
        torch.testing.assert_close(acted, parameters.detach(), rtol=1e-2, atol=1e-3)
        (parameters.square().sum() + value.square().sum()).backward()
        found.append(
            [
                *(
                    each.detach().cpu()
                    for each in (parameters, value, *update.parameters.views(update.parameters.gradient))
                )
            ]
        )
    for exact, rounded in zip(*found, strict=True):
        difference = (exact - rounded).norm() / exact.norm()
        assert 1e-5 < difference < 1e-1


@pytest.mark.parametrize("optimizer", [RMSProp(), Adam()])
def test_copies_follow_every_update(optimizer: Any) -> None:
    """Copies are current after updates by single operations, by a new graph, and by a replayed one."""
    policy = make_policy()
    update = Update(policy, optimizer)
    minimize = minimizer(policy, update)
    before = update.parameters.values.cpu()
    for _ in range(5):
        minimize()
        assert_current(policy)
    assert not torch.equal(before, update.parameters.values.cpu())


def test_one_kernel_casts_all_weights() -> None:
    """Acting casts no weights. After a change, one cast covers the flat vector, and another the scaled weights."""
    policy = make_policy()
    update = Update(policy, RMSProp(), cuda_graphs=False)
    minimize = minimizer(policy, update)
    minimize()
    image = images(SHAPE, 6).to(update.device)
    with counting() as counts:
        policy.act(image, None)
    assert counts.kernels["aten._to_copy.default"] <= 3, counts.kernels  # the pictures, and results to float32
    with counting() as counts:
        refresh(policy)
    assert not counts.launches
    with torch.no_grad(), counting() as counts:
        update.parameters.values.mul_(1.5)
        refresh(policy)
    assert counts.kernels[CAST] == 2
    assert_current(policy)


def test_a_graph_acts_by_new_weights_whatever_has_changed_them() -> None:
    """Loaded states and changes in place reach functions that run as graphs."""
    policy, other = make_policy(), make_policy()
    update = Update(policy, RMSProp())
    image = images(SHAPE, 3).to(update.device)

    def value(image: Tensor) -> Tensor:
        return policy(image)[1].clone()

    changes: list[Callable[[], Any]] = [lambda: None] * 4
    changes.append(lambda: update.parameters.values.mul_(2))
    changes.append(lambda: policy.load_state_dict(other.state_dict()))
    changes.append(lambda: policy.encoder.trunk.hidden.weight.mul_(0.5))
    for change in changes:
        with torch.no_grad():
            change()
        found = update.graphed(value, image)
        assert_current(policy)
        with torch.no_grad():
            torch.testing.assert_close(found.cpu(), deepcopy(policy)(image)[1].cpu(), rtol=1e-2, atol=1e-2)


def test_target_networks_have_copies_of_their_own() -> None:
    """A target keeps its own weights while the policy learns, and gets new ones by a sync or a load."""
    torch.manual_seed(0)
    policy = QNetwork(SPEC, NETWORKS["nature"]).to("cuda:0")
    policy.bf16 = True
    update = Update(policy, RMSProp())
    target = frozen_copy(policy)
    assert_current(target)
    assert next(target.parameters()).bf16 is not next(policy.parameters()).bf16  # type: ignore[attr-defined]
    with torch.no_grad():
        update.parameters.values.mul_(2)
    assert_current(target)
    update.sync_target(target, 1)
    assert_current(target)
    assert torch.equal(next(target.parameters()).cpu(), next(policy.parameters()).cpu())
    copy_module(frozen_copy(policy), target)
    assert_current(target)


@pytest.mark.parametrize(("device", "bf16"), [("cpu", True), ("cuda:0", False)])
def test_no_copies_elsewhere(device: str, bf16: bool) -> None:
    """There are no copies on a CPU, which prepares weights in another way, or in float32, which needs none."""
    policy = make_policy(device)
    policy.bf16 = bf16
    keep_copies(policy)
    assert not any(hasattr(parameter, "bf16") for parameter in policy.parameters())
    refresh(policy)
