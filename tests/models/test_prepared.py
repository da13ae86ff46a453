"""Prepared weights are never stale: parameters change in every way that the framework has, and the next act shows it.

The layers' own copies show in three modes: acting (packed weights), without gradients, and with them (cast weights)."""

import io
import pickle
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from accel_rl.algos.base import frozen_copy
from accel_rl.models import onednn, prepared
from accel_rl.models.actor_critic import ActorCritic
from accel_rl.models.layers import Conv2d, Linear
from accel_rl.models.prepared import PreparedTensors
from accel_rl.updates import CentralStore, StoreExchange, Update, shared_state
from accel_rl.updates import all_reduce as all_reduce_module
from accel_rl.updates.all_reduce import AllReduce
from accel_rl.updates.exchange import copy_module
from accel_rl.updates.flat import FlatParameters
from accel_rl.updates.foreach import copy_tensors
from accel_rl.updates.optimizers import OPTIMIZERS, SGD, Adam, Optimizer, TorchOptimizer, _torch_names, make_optimizer
from tests.helpers.plain import images, plain
from tests.models.test_acting import disturbed, error, outputs, pixels

SPEC = pixels(2, 20, 20)
IMAGE = images((2, 20, 20), 4)


def make_policy(seed: int = 0) -> ActorCritic:
    torch.manual_seed(seed)
    return disturbed(ActorCritic(SPEC), seed)  # type: ignore[no-any-return]


def evaluate(policy: Any) -> list[Tensor]:
    """Returns what the policy computes in both precisions and all three modes: this prepares all that it can."""
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
    """Asserts that all results have changed, and that they are those of the parameters as they are."""
    found = evaluate(policy)
    for index, (now, then) in enumerate(zip(found, before, strict=True)):
        assert error(now, then) > 0.02, f"result {index} has not changed"
    return assert_current(policy, found)


def assert_current(policy: Any, found: list[Tensor]) -> list[Tensor]:
    """Asserts that results are those of a copy that has nothing prepared, and close to plain PyTorch's."""
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


# ---- local updates ----


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_after_updates(name: str) -> None:
    """Would catch a change through the flat vector that the parameters' own counters do not show."""
    learn(Update(make_policy(), make_optimizer(name), slice_elements=2 * IMAGE[0].numel()))


def torch_optimizers() -> Iterator[Any]:
    """Yields every optimizer of torch.optim that Update can use, also with its faster implementations."""
    for name in _torch_names():
        for options in ({}, {"foreach": True}, {"fused": True}):
            try:
                optimizer = TorchOptimizer(name, **options)
            except ValueError:
                continue
            is_fast = name == "Adam" or "fused" in options
            yield pytest.param(optimizer, id=f"{name} {' '.join(options)}", marks=[] if is_fast else [pytest.mark.slow])


@pytest.mark.parametrize("optimizer", list(torch_optimizers()))
def test_after_updates_of_torch_optimizers(optimizer: Optimizer) -> None:
    """Would catch an implementation that changes the vector without being counted, as PyTorch's fused ones."""
    policy = make_policy()
    update = Update(policy, optimizer)
    before = evaluate(policy)
    for parameter in policy.parameters():
        parameter.grad.normal_()
    update.exchange.apply({}, torch.tensor(1), 1.0 if optimizer.name != "Adadelta" else 1000.0)  # type: ignore[attr-defined]
    assert_fresh(policy, before)


def test_after_loading() -> None:
    """Would catch the weights from before a resume."""
    policy, other = make_policy(0), make_policy(1)
    before = evaluate(policy)
    policy.load_state_dict(other.state_dict())
    before = assert_fresh(policy, before)
    update = Update(policy, Adam())
    assert_current(policy, evaluate(policy))
    update.load_state_dict(Update(make_policy(2), Adam()).state_dict())
    before = assert_fresh(policy, before)
    policy.load_state_dict(other.state_dict())  # now into views of the flat vector
    assert_fresh(policy, before)


# ---- several learners ----


@pytest.fixture
def process_group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    yield
    dist.destroy_process_group()


def test_after_all_reduce(process_group: None) -> None:
    """Would catch sums of gradients that are applied behind the layers' back."""
    learn(Update(make_policy(), Adam(), exchange=AllReduce()), rate=0.1)


def test_after_the_first_ranks_parameters_have_arrived(process_group: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch a second rank that acts by the parameters that it was built with."""
    policy, other = make_policy(0), FlatParameters(make_policy(1))
    before = evaluate(policy)

    def broadcast(tensor: Tensor, _: int) -> None:
        if tensor.shape == other.values.shape:
            tensor.numpy()[:] = other.values.numpy()  # not counted by PyTorch

    monkeypatch.setattr(all_reduce_module.dist, "broadcast", broadcast)
    Update(policy, Adam(), exchange=AllReduce())
    assert_fresh(policy, before)


STORES: dict[str, tuple[Optimizer, dict[str, Any]]] = {
    "shared adam": (Adam(), {}),
    "own torch.Adam": (TorchOptimizer("Adam"), {"own_state": True}),
    "own torch.Adam, fused": (TorchOptimizer("Adam", fused=True), {"own_state": True}),
    "multi-step adam": (Adam(), {"updates_per_exchange": 2}),
}


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("name", STORES)
def test_after_exchanges_with_the_store(name: str, in_place: bool) -> None:
    """Would catch a learner that goes on by its own parameters after it has taken over the store's: at its start, at a
    pull, in an exchange, and when another learner has changed them in between."""
    optimizer, options = STORES[name]
    first, second = make_policy(0), make_policy(1)
    values = FlatParameters(make_policy(2)).values
    store = CentralStore(values, shared_state(optimizer, values, **options))
    before = evaluate(first)
    updates = [
        Update(p, optimizer, exchange=StoreExchange(store, in_place=in_place, **options)) for p in (first, second)
    ]
    before = assert_fresh(first, before)  # the store's
    learn(updates[1], rate=0.1)
    updates[1].exchange.flush()  # type: ignore[attr-defined]
    updates[0].pull()
    before = assert_fresh(first, before)
    learn(updates[1], seed=1, rate=0.1)
    learn(updates[0], seed=2, rate=0.1)
    updates[1].exchange.flush()  # type: ignore[attr-defined]
    before = assert_current(first, evaluate(first))
    updates[0].load_state_dict(Update(make_policy(3), optimizer).state_dict() | {"target": None})
    assert_fresh(first, before)
    store.close()


# ---- target networks and copies ----


def test_after_a_target_is_synced() -> None:
    """Would catch a target network that stays what it was, by either exchange's sync."""
    policy = make_policy(0)
    target = frozen_copy(policy)
    before = evaluate(target)
    update = Update(policy, Adam())
    learn(update, rate=0.1)
    assert_current(target, evaluate(target))
    assert all(map(torch.equal, evaluate(target), before))
    update.sync_target(target, 1)
    before = assert_fresh(target, before)
    assert error(before[0], evaluate(policy)[0]) < 1e-5

    store = CentralStore(update.parameters.values, shared_state(Adam(), update.parameters.values))
    shared = Update(make_policy(1), Adam(), exchange=StoreExchange(store))
    learn(shared, seed=1, rate=0.1)
    shared.sync_target(target, 1)
    before = assert_fresh(target, before)
    copy_module(make_policy(3), target)
    before = assert_fresh(target, before)
    copy_tensors(target.parameters(), make_policy(4).parameters())
    assert_fresh(target, before)
    store.close()


def by_pickle(policy: ActorCritic) -> Any:
    return pickle.loads(pickle.dumps(policy))


def by_file(policy: ActorCritic) -> Any:
    buffer = io.BytesIO()
    torch.save(policy, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


@pytest.mark.parametrize("copy", [deepcopy, frozen_copy, by_pickle, by_file])
@pytest.mark.parametrize("is_flat", [False, True])
def test_copies_go_their_own_way(copy: Callable[[Any], Any], is_flat: bool) -> None:
    """Would catch a copy with the original's prepared weights, or one whose changes are taken for the original's."""
    policy = make_policy()
    if is_flat:
        Update(policy, SGD())
    start = evaluate(policy)
    other = copy(policy)
    assert all(error(now, then) < 1e-5 for now, then in zip(evaluate(other), start, strict=True))
    change_by_add(policy)
    changed = assert_fresh(policy, start)
    assert all(error(now, then) < 1e-5 for now, then in zip(evaluate(other), start, strict=True))
    change_by_add(other, factor=-0.5)
    assert_fresh(other, start)
    assert all(map(torch.equal, evaluate(policy), changed))
    for parameter in other.parameters():
        parameter.requires_grad_()
    learn(Update(other, SGD()))
    assert all(map(torch.equal, evaluate(policy), changed))


def test_after_parameters_have_become_flat() -> None:
    """Would catch weights of the tensors that a policy was built with, once they lie elsewhere."""
    policy = make_policy()
    before = evaluate(policy)
    parameters = FlatParameters(policy)
    found = assert_current(policy, evaluate(policy))
    assert all(error(now, then) < 1e-4 for now, then in zip(found, before, strict=True))
    parameters.values.mul_(1.5)
    assert_fresh(policy, before)


# ---- by hand ----


@torch.no_grad()
def change_by_add(policy: nn.Module, factor: float = 1.0) -> None:
    for parameter in policy.parameters():
        parameter.add_(factor * torch.ones_like(parameter) * 0.1)


@torch.no_grad()
def change_by_copy(policy: nn.Module) -> None:
    for parameter in policy.parameters():
        parameter.copy_(parameter * 1.5 + 0.1)


@torch.no_grad()
def change_by_foreach(policy: nn.Module) -> None:
    torch._foreach_add_(list(policy.parameters()), 0.1)


@torch.inference_mode()
def change_in_inference_mode(policy: nn.Module) -> None:
    for parameter in policy.parameters():
        parameter.add_(0.1)


@torch.no_grad()
def change_by_views(policy: nn.Module) -> None:
    for parameter in policy.parameters():
        for row in parameter.detach():
            row += 0.1


def change_by_moves(policy: nn.Module) -> None:
    """New tensors, perhaps where the old ones were."""
    for parameter in policy.parameters():
        values = (parameter.detach() + 0.1).numpy().copy()
        parameter.data = torch.empty(0)
        parameter.data = torch.empty(values.shape)
        with torch.no_grad():
            parameter.copy_(torch.from_numpy(values))


def change_by_new_parameters(policy: nn.Module) -> None:
    for module in policy.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            setattr(module, name, nn.Parameter(parameter.detach() + 0.1))


BY_HAND = [change_by_add, change_by_copy, change_by_foreach, change_in_inference_mode, change_by_views]
NOT_FLAT = [change_by_moves, change_by_new_parameters]  # FlatParameters says that they are not allowed


@pytest.mark.parametrize("is_flat", [False, True])
@pytest.mark.parametrize("change", BY_HAND)
def test_after_changes_by_hand(change: Callable[[nn.Module], None], is_flat: bool) -> None:
    """Would catch a change that only marks the whole vector, or only one's own tensor."""
    policy = make_policy()
    if is_flat:
        FlatParameters(policy)
    before = evaluate(policy)
    change(policy)
    assert_fresh(policy, before)


@pytest.mark.parametrize("change", NOT_FLAT)
def test_after_parameters_are_replaced(change: Callable[[nn.Module], None]) -> None:
    """Would catch a replacement with the same counters as what it replaces."""
    policy = make_policy()
    before = evaluate(policy)
    change(policy)
    assert_fresh(policy, before)


def test_each_tensor_is_watched() -> None:
    """Would catch a bias that is prepared once for all, or one weight's counter that stands for all."""
    policy = make_policy()
    for name, parameter in policy.encoder.named_parameters():
        before = evaluate(policy)
        with torch.no_grad():
            parameter.mul_(1.5).add_(0.2)
        after = evaluate(policy)
        assert all(not torch.equal(now, then) for now, then in zip(after, before, strict=True)), name
        assert_current(policy, after)


def test_the_flat_vector_is_watched() -> None:
    """Would catch PreparedTensors that ignore `flat_vector`: a parameter made a view by `.data` has its own counter, so
    an optimizer's step on the vector does not show there."""
    layer, tensors, made = nn.Linear(3, 2), PreparedTensors(), list[int]()
    parameters = FlatParameters(layer)

    def make() -> Tensor:
        made.append(len(made))
        return layer.weight.detach().clone()

    version = layer.weight._version
    for _ in range(3):
        parameters.values.add_(1)
        for _ in range(2):
            assert torch.equal(tensors.get("weight", layer.weight, make), layer.weight)
    assert len(made) == 3 and layer.weight._version == version


def test_another_tensor_with_the_same_counters() -> None:
    """Would catch counters that are compared without the tensor that they belong to."""
    tensors, parameters = PreparedTensors(), [nn.Parameter(torch.full((2,), value)) for value in (1.0, 2.0)]
    assert parameters[0]._version == parameters[1]._version
    found = [tensors.get("weight", each, each.detach().clone).tolist() for each in (*parameters, parameters[0])]
    assert found == [[1, 1], [2, 2], [1, 1]]


@pytest.mark.parametrize("copy", [deepcopy, by_pickle])
def test_copies_do_not_disturb_each_other(copy: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch a policy and its target network that throw out each other's weights at every turn."""
    policy = make_policy()
    other = copy(policy)
    evaluate(policy), evaluate(other)
    monkeypatch.setattr(prepared, "_Made", lambda *_: pytest.fail("prepared again"))
    evaluate(policy), evaluate(other)


def test_layers_keep_no_more_than_one_version() -> None:
    """Would catch memory that grows with every update."""
    policy = make_policy()
    layers = [module for module in policy.modules() if isinstance(module, Conv2d | Linear)]
    evaluate(policy)
    counts = [len(layer.prepared._made) for layer in layers]
    for _ in range(3):
        change_by_add(policy, 0.1)
        evaluate(policy)
    assert counts == [len(layer.prepared._made) for layer in layers]
    if onednn.convolves(torch.float32):
        assert all(counts)
