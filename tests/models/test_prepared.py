"""Tests that prepared weights are never stale. Changes by updates are tested in tests/updates/test_freshness.py."""

import io
import pickle
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from accel_rl.algos.base import frozen_copy
from accel_rl.models import onednn, prepared
from accel_rl.models.actor_critic import ActorCritic
from accel_rl.models.layers import Conv2d, Linear
from accel_rl.updates import Update
from accel_rl.updates.flat import FlatParameters
from accel_rl.updates.optimizers import SGD
from tests.helpers.freshness import assert_current, assert_fresh, evaluate, learn, make_policy
from tests.helpers.plain import error

pytestmark = pytest.mark.usefixtures("small_products")


@torch.no_grad()
def add(policy: nn.Module, number: float) -> None:
    for parameter in policy.parameters():
        parameter.add_(number)


def by_pickle(policy: ActorCritic) -> Any:
    return pickle.loads(pickle.dumps(policy))


def by_file(policy: ActorCritic) -> Any:
    buffer = io.BytesIO()
    torch.save(policy, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


@pytest.mark.parametrize(
    ("copy", "is_flat"), [(deepcopy, True), (frozen_copy, True), (by_pickle, True), (by_file, False)]
)
def test_copies_go_their_own_way(copy: Callable[[Any], Any], is_flat: bool) -> None:
    """Changes of a policy do not affect its copy, nor the reverse."""
    policy = make_policy()
    if is_flat:
        Update(policy, SGD())
    start = evaluate(policy)
    other = copy(policy)
    assert all(error(now, then) < 1e-5 for now, then in zip(evaluate(other), start, strict=True))
    add(policy, 0.1)
    changed = assert_fresh(policy, start)
    assert all(error(now, then) < 1e-5 for now, then in zip(evaluate(other), start, strict=True))
    add(other, -0.05)
    assert_fresh(other, start)
    assert all(map(torch.equal, evaluate(policy), changed))
    for parameter in other.parameters():
        parameter.requires_grad_()
    learn(Update(other, SGD()))
    assert all(map(torch.equal, evaluate(policy), changed))


# ---- by hand ----


def change_by_views(parameter: Tensor) -> None:
    for row in parameter.detach():
        row += 0.1


def move(parameter: Tensor) -> None:
    """Gives a parameter a new tensor, perhaps at the old one's address."""
    values = (parameter + 0.1).numpy().copy()
    parameter.data = torch.empty(0)
    parameter.data = torch.empty(values.shape)
    parameter.copy_(torch.from_numpy(values))


def replace_all(policy: nn.Module) -> None:
    for module in policy.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            setattr(module, name, nn.Parameter(parameter.detach() + 0.1))


IN_PLACE: dict[str, Callable[[Tensor], Any]] = {
    "add": lambda parameter: parameter.add_(0.1),
    "add in inference mode": lambda parameter: parameter.add_(0.1),
    "copy": lambda parameter: parameter.copy_(parameter * 1.5 + 0.1),
    "foreach": lambda parameter: torch._foreach_add_([parameter], 0.1),
    "views": change_by_views,
}
BY_HAND = [(how, change, is_flat) for how, change in IN_PLACE.items() for is_flat in (False, True)]


@pytest.mark.parametrize(("how", "change", "is_flat"), [*BY_HAND, ("move", move, False), ("replace", None, False)])
def test_after_changes_by_hand(how: str, change: Callable[[Tensor], Any] | None, is_flat: bool) -> None:
    """A policy acts by its new parameters after any change in place or replacement."""
    policy = make_policy()
    if is_flat:  # FlatParameters says that parameters must not be replaced
        FlatParameters(policy)
    before = evaluate(policy)
    with torch.inference_mode() if "inference" in how else torch.no_grad():
        for parameter in policy.parameters() if change else ():
            change(parameter)  # type: ignore[misc]
    if not change:
        replace_all(policy)
    assert_fresh(policy, before)


def test_each_tensor_is_watched() -> None:
    """A change of any single tensor of the encoder changes the outputs."""
    policy = make_policy()
    for name, parameter in policy.encoder.named_parameters():
        before = evaluate(policy)
        with torch.no_grad():
            parameter.mul_(1.5).add_(0.2)
        after = evaluate(policy)
        assert all(not torch.equal(now, then) for now, then in zip(after, before, strict=True)), name
        assert_current(policy, after)


def test_another_tensor_with_the_same_counters() -> None:
    tensors, parameters = prepared.PreparedTensors(), [nn.Parameter(torch.full((2,), value)) for value in (1.0, 2.0)]
    assert parameters[0]._version == parameters[1]._version
    found = [
        tensors.get("name", lambda each=each: (each.detach().clone(), None), each, None)[0].tolist()  # type: ignore[misc]
        for each in (*parameters, parameters[0])
    ]
    assert found == [[1, 1], [2, 2], [1, 1]]


@pytest.mark.parametrize("copy", [deepcopy, by_pickle])
def test_copies_do_not_disturb_each_other(copy: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Using a copy keeps the original's prepared weights."""
    policy = make_policy()
    other = copy(policy)
    evaluate(policy), evaluate(other)
    monkeypatch.setattr(prepared, "_Made", lambda *_: pytest.fail("prepared again"))
    evaluate(policy), evaluate(other)


def test_layers_keep_no_more_than_one_version() -> None:
    """The number of prepared tensors does not grow with updates."""
    policy = make_policy()
    layers = [module for module in policy.modules() if isinstance(module, Conv2d | Linear)]
    evaluate(policy)
    counts = [len(layer.prepared._made) for layer in layers]
    for _ in range(3):
        add(policy, 0.01)
        evaluate(policy)
    assert counts == [len(layer.prepared._made) for layer in layers]
    if onednn.convolves(torch.float32):
        assert all(counts)


def test_layers_do_not_keep_weights_for_every_size_of_batch() -> None:
    """A layer keeps prepared weights for a bounded number of batch sizes."""
    parameter, tensors = torch.zeros(3), prepared.PreparedTensors()
    for name in range(5 * prepared.MAX_KEPT):
        assert tensors.get(name, lambda: (parameter + 1, None), parameter, None)[0].tolist() == [1, 1, 1]
        assert len(tensors._made) <= prepared.MAX_KEPT
