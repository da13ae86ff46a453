"""Tests that policies act by the newest parameters after each kind of update, load, pull and sync."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from accel_rl.algos.base import frozen_copy
from accel_rl.updates import Update
from accel_rl.updates import all_reduce as all_reduce_module
from accel_rl.updates.all_reduce import AllReduce
from accel_rl.updates.compiled_calls import CompiledCalls
from accel_rl.updates.exchange import copy_module
from accel_rl.updates.flat import FlatParameters
from accel_rl.updates.foreach import copy_tensors
from accel_rl.updates.optimizers import OPTIMIZERS, Adam, Optimizer, for_one_learner, make_optimizer
from accel_rl.updates.parameter_store import CentralStore
from accel_rl.updates.recording import replay
from accel_rl.updates.store_exchange import StoreExchange, shared_state
from tests.helpers.freshness import IMAGE, assert_current, assert_fresh, evaluate, learn, make_policy
from tests.helpers.plain import error

# ---- local updates ----


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_after_updates(name: str) -> None:
    """A policy acts by its new parameters after each of the optimizers' updates."""
    for optimizer in (make_optimizer(name), for_one_learner(make_optimizer(name))):
        learn(Update(make_policy(), optimizer, slice_elements=2 * IMAGE[0].numel()))


def test_after_compiled_updates() -> None:
    """A policy acts by its new parameters after updates by machine code, whose changes PyTorch does not count."""
    policy = make_policy()
    compiled = CompiledCalls("always", lambda recording: partial(replay, recording.program))
    update = Update(policy, Adam(), compiled=compiled)

    def loss(goal: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        return torch.stack([(each - goal).square().sum() for each in policy.parameters()]).sum(), {}

    for _ in range(3):  # the first two are recorded, too, operation by operation
        before = evaluate(policy)
        update.minimize(loss, (torch.ones(1),), torch.tensor(1), 0.3)
        assert_fresh(policy, before)
    assert update.read_compiled_share() == 1


def test_after_loading() -> None:
    """A policy acts by the loaded parameters."""
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
    """A policy acts by its new parameters after summed gradients were applied."""
    learn(Update(make_policy(), Adam(), exchange=AllReduce()), rate=0.1)


def test_after_the_first_ranks_parameters_have_arrived(process_group: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second rank acts by the first rank's parameters from the start."""
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
    "own adam": (Adam(), {"own_state": True}),
    "multi-step adam": (Adam(), {"updates_per_exchange": 2}),
}


@pytest.mark.parametrize("name", STORES)
def test_after_exchanges_with_the_store(name: str) -> None:
    """A policy acts by the store's parameters after its start, a pull, an exchange and a load."""
    optimizer, options = STORES[name]
    first, second = make_policy(0), make_policy(1)
    values = FlatParameters(make_policy(2)).values
    store = CentralStore(values, shared_state(optimizer, values, **options))
    before = evaluate(first)
    updates = [Update(p, optimizer, exchange=StoreExchange(store, **options)) for p in (first, second)]
    before = assert_fresh(first, before)  # reads the store's parameters
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


# ---- target networks ----


def test_after_a_target_is_synced() -> None:
    """A target network changes only when it is synced, and then acts by its new parameters."""
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
