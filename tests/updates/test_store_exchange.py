"""Tests of learners on a central store: one learns as without it, two follow their equations written in NumPy."""

import contextlib
import json
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from accel_rl.errors import UsageError
from accel_rl.updates import Update
from accel_rl.updates.cuda_graphs import CudaGraphs
from accel_rl.updates.optimizers import SGD, Adam, MomentumSGD, Optimizer, RMSProp
from accel_rl.updates.parameter_store import CentralStore, LockedTensors
from accel_rl.updates.store_exchange import StoreExchange, shared_state
from tests.updates.store_process import Process, Weights, learn, update_store

RULES: list[Optimizer] = [RMSProp(momentum=0.5, initial_square=1.0), Adam(), MomentumSGD()]
DEVICES = ["cpu", pytest.param("cuda:0", marks=pytest.mark.gpu)]
RATES = [1e-2, 5e-3, 2e-2, 1e-2, 1e-3, 3e-2, 1e-2, 7e-3, 1e-2, 2e-2]


def make_network(device: str = "cpu") -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(64, 3), nn.BatchNorm1d(3)).to(device)


def make_store(
    network: nn.Module, rule: Optimizer, *, options: dict[str, Any] | None = None, **more: Any
) -> CentralStore:
    """Returns a store for the network. options: the update's options that decide what is shared."""
    values = Update(deepcopy(network).cpu(), rule).parameters.values
    return CentralStore(values, shared_state(rule, values, **(options or {})), **more)


def on_store(
    network: nn.Module,
    rule: Optimizer,
    store: CentralStore,
    clip: float | None = None,
    *,
    cuda_graphs: bool = False,
    **options: Any,
) -> Update:
    """Returns an update on the store. options: for the exchange."""
    return Update(network, rule, clip, StoreExchange(store, **options), cuda_graphs=cuda_graphs)


def minimize(update: Update, index: int) -> dict[str, Tensor]:
    """Makes the index-th update, which is the same for every learner."""
    network, device = update.module, update.parameters.values.device
    x = torch.randn(6, 2, 6, 6, generator=torch.Generator().manual_seed(index)).to(device)

    def loss(x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        squares = (network(x) - x[:, 0, 0, :3]).square().sum()
        return squares, {"squares": squares.detach()}

    if index % 3 == 2:
        return {"grad_norm": update.step(loss(x)[0], torch.tensor(6, device=device), RATES[index])}
    return update.minimize(loss, (x,), torch.tensor(6, device=device), RATES[index])


def assert_equal(value: Tensor, expected: Tensor) -> None:
    """Asserts equality: bit for bit on the CPU, up to rounding on a GPU."""
    if expected.device.type == "cpu":
        assert torch.equal(value, expected)
    else:
        torch.testing.assert_close(value.to(expected.device), expected, rtol=1e-3, atol=1e-4)


def assert_same_state(update: Update, local: Update) -> None:
    update.exchange.flush()
    state, expected = update.state_dict(), local.state_dict()
    assert state.keys() == {*expected, "target"}
    assert_equal(state["parameters"], expected["parameters"])
    assert state["optimizer"].keys() == expected["optimizer"].keys()
    for name, value in expected["optimizer"].items():
        assert_equal(state["optimizer"][name], value)


def same_parameters(module: nn.Module, other: nn.Module) -> bool:
    return all(torch.equal(*pair) for pair in zip(module.parameters(), other.parameters(), strict=True))


def same(module: nn.Module, other: nn.Module) -> bool:
    buffers = zip(module.buffers(), other.buffers(), strict=True)
    return same_parameters(module, other) and all(torch.equal(*pair) for pair in buffers)


# ---- alone ----


ALONE = [(rule, own_state, "cpu") for rule in RULES for own_state in (False, True)]
ON_A_GPU = [(Adam(), False, "cuda:0"), (RMSProp(momentum=0.5), True, "cuda:0")]


@pytest.mark.parametrize(
    ("rule", "own_state", "device"),
    [*ALONE, *(pytest.param(*each, marks=pytest.mark.gpu) for each in ON_A_GPU)],
)
def test_a_single_learner_learns_as_without_a_store(rule: Optimizer, own_state: bool, device: str) -> None:
    """A single learner on a store learns as without one, in any number of chunks."""
    for num_chunks, locks in ((1, True), (3, False)):
        options = {"own_state": own_state}
        local = Update(make_network(device), rule, 0.5, cuda_graphs=False)
        store = make_store(local.module, rule, options=options, num_chunks=num_chunks, locks=locks)
        update = on_store(make_network(device), rule, store, 0.5, own_state=own_state)
        for index in range(6):
            expected, stats = minimize(local, index), minimize(update, index)
            for name, value in expected.items():
                assert_equal(stats[name], value)
            assert stats.get("staleness", 0) == 0
            assert torch.equal(update.parameters.values.cpu(), store.read()["parameters"])
            assert_equal(update.parameters.values, local.parameters.values)
            assert_same_state(update, local)
        assert [part.version for part in store.chunks] == [6] * num_chunks
        update.exchange.close()


@pytest.mark.parametrize("device", DEVICES)
def test_a_graph_ends_with_the_gradient(device: str) -> None:
    """With CUDA graphs, a learner on a store learns as without it."""
    local = Update(make_network(device), Adam(), 0.5, cuda_graphs=False)
    update = on_store(make_network(device), Adam(), make_store(local.module, Adam()), 0.5, cuda_graphs=True)
    if device == "cpu":
        update._graphs = CudaGraphs(torch.device(device))
    x = torch.randn(6, 2, 6, 6, device=device)

    def minimize(update: Update) -> dict[str, Tensor]:
        loss = update.__dict__.setdefault("loss_of_test", lambda x: (update.module(x).square().sum(), {}))
        return update.minimize(loss, (x,), torch.tensor(6, device=device), 1e-2)

    for _ in range(5):
        assert_equal(minimize(update)["grad_norm"], minimize(local)["grad_norm"])
        assert_same_state(update, local)
    update.exchange.close()


@pytest.mark.parametrize("n", [1, 2, 3, 4, 7])
def test_multi_step_adam_alone_is_adam(n: int) -> None:
    """A single learner with multi-step Adam learns as with Adam, and exchanges every n updates."""
    local = Update(make_network(), Adam(), 0.5)
    store = make_store(local.module, Adam(), options={"updates_per_exchange": n})
    update = on_store(make_network(), Adam(), store, 0.5, updates_per_exchange=n)
    for index in range(10):
        minimize(local, index)
        minimize(update, index)
        assert torch.equal(update.parameters.values, local.parameters.values)
        update.state_dict()  # reading the state is not an exchange
        assert [part.version for part in store.chunks] == [(index + 1) // n] * 3
    assert_same_state(update, local)
    assert torch.equal(store.read()["square"], local.exchange.optimizer_state["square"])
    assert [part.version for part in store.chunks] == [-(-10 // n)] * 3
    update.exchange.flush()
    assert store.chunks[0].version == -(-10 // n), "nothing was pending"


def test_rounding_makes_no_square_negative() -> None:
    """The store's squares never become negative by rounding."""
    network, options = nn.Linear(100, 10, bias=False), {"updates_per_exchange": 3}
    store = make_store(network, Adam(), options=options)
    store.write(store.read() | {"square": torch.rand(1000, generator=torch.Generator().manual_seed(0))})
    update = on_store(network, Adam(), store, **options)
    store.write(store.read() | {"square": torch.zeros(1000)})  # as after many updates of others without gradients
    for _ in range(3):
        update.step(network(torch.zeros(1, 100)).sum(), torch.tensor(1), 1e-3)
    squares = store.read()["square"]
    assert (squares >= 0).all() and 0 < squares.max() < 1e-6
    update.exchange.close()


# ---- two, in a scripted order ----


class Numbers:
    """Two learners of a vector w with the loss |w - c|^2 / 2, computed by hand: `update` has the rule."""

    def __init__(self, start: np.ndarray[Any, Any], own_state: bool):
        self.central, self.local = start.copy(), {name: start.copy() for name in "ab"}
        self.states: dict[str, dict[str, Any]] = {}
        self.own_state = own_state

    def state(self, learner: str) -> dict[str, Any]:
        return self.states.setdefault(learner if self.own_state else "central", {"m": 0.0, "v": 0.0, "t": 0})

    def gradient(self, learner: str, goal: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        gradient = self.local[learner] - goal
        norm = np.linalg.norm(gradient)
        return gradient * min(norm, 0.5) / (norm + 1e-7)

    def update(self, learner: str, goal: np.ndarray[Any, Any], rate: float, rule: Optimizer) -> None:
        g, state = self.gradient(learner, goal), self.state(learner)
        if isinstance(rule, RMSProp):
            state["v"] = rule.decay * state["v"] + (1 - rule.decay) * g**2
            self.central = self.central - rate * g / np.sqrt(state["v"] + rule.epsilon)
        elif isinstance(rule, MomentumSGD):
            state["m"] = rule.momentum * state["m"] + (1 - rule.momentum) * g
            self.central = self.central - rate * state["m"]
        elif isinstance(rule, Adam):
            self.central = self.central - adam_step(state, g, rate, rule)
        self.local[learner] = self.central.copy()

    def pull(self, learner: str) -> None:
        self.local[learner] = self.central.copy()


def adam_step(state: dict[str, Any], g: Any, rate: float, rule: Adam) -> Any:
    state["t"] += 1
    a = rate * np.sqrt(1 - rule.beta2 ** state["t"]) / (1 - rule.beta1 ** state["t"])
    state["m"] = rule.beta1 * state["m"] + (1 - rule.beta1) * g
    state["v"] = rule.beta2 * state["v"] + (1 - rule.beta2) * g**2
    return a * state["m"] / (np.sqrt(state["v"]) + rule.epsilon)


class MultiStepNumbers(Numbers):
    """The algorithm of Appendix A as it is printed, with its accumulators."""

    def __init__(self, start: np.ndarray[Any, Any], n: int):
        super().__init__(start, own_state=True)
        self.n, self.shared = n, {"m": np.zeros_like(start), "v": np.zeros_like(start)}
        self.sums = {name: {"count": 0, "g": 0.0, "g2": 0.0, "s": 0.0} for name in "ab"}

    def update(self, learner: str, goal: np.ndarray[Any, Any], rate: float, rule: Optimizer) -> None:
        assert isinstance(rule, Adam)
        g, sums = self.gradient(learner, goal), self.sums[learner]
        s = adam_step(self.state(learner), g, rate, rule)
        self.local[learner] = self.local[learner] - s
        sums["count"] += 1
        sums["g"] = rule.beta1 * sums["g"] + g
        sums["g2"] = rule.beta2 * sums["g2"] + g**2
        sums["s"] = sums["s"] + s
        if sums["count"] == self.n:
            self.exchange(learner, rule)

    def exchange(self, learner: str, rule: Adam) -> None:
        sums, shared = self.sums[learner], self.shared
        self.central = self.central - sums["s"]
        shared["m"] = rule.beta1 ** sums["count"] * shared["m"] + (1 - rule.beta1) * sums["g"]
        shared["v"] = rule.beta2 ** sums["count"] * shared["v"] + (1 - rule.beta2) * sums["g2"]
        self.local[learner] = self.central.copy()
        self.state(learner).update({name: value.copy() for name, value in shared.items()})
        self.sums[learner] = {"count": 0, "g": 0.0, "g2": 0.0, "s": 0.0}

    def pull(self, learner: str) -> None:
        self.exchange(learner, ADAM)  # a plain copy, since no updates are pending


ADAM = Adam(beta1=0.8, beta2=0.9, epsilon=1e-2)
SCRIPT = ["a", "b", "b", "a", "pull b", "a", "a", "b", "pull a", "b", "a", "b", "b", "b", "a", "a", "a"]
SCRIPT += ["b", "b", "b", "pull a", "b", "a"]  # pulls with updates pending, after exchanges of others
CASES: dict[str, tuple[Optimizer, dict[str, Any], Callable[[np.ndarray[Any, Any]], Numbers]]] = {
    "shared rmsprop": (RMSProp(0.9, 1e-2), {}, lambda start: Numbers(start, own_state=False)),
    "own rmsprop": (RMSProp(0.9, 1e-2), {"own_state": True}, lambda start: Numbers(start, own_state=True)),
    "own momentum": (MomentumSGD(0.7), {"own_state": True}, lambda start: Numbers(start, own_state=True)),
    "shared adam": (ADAM, {}, lambda start: Numbers(start, own_state=False)),
    "own adam": (ADAM, {"own_state": True}, lambda start: Numbers(start, own_state=True)),
    **{
        f"multi-step adam {n}": (ADAM, {"updates_per_exchange": n}, lambda start, n=n: MultiStepNumbers(start, n))
        for n in (1, 2, 3)
    },
}


BY_HAND = [(name, "cpu") for name in CASES]
FAST_ON_A_GPU = ("own adam", "multi-step adam 2")
BY_HAND += [
    pytest.param(name, "cuda:0", marks=[pytest.mark.gpu, *([] if name in FAST_ON_A_GPU else [pytest.mark.slow])])
    for name in CASES
]


@pytest.mark.parametrize("locks", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("name", "device"), BY_HAND)
def test_two_learners_by_hand(name: str, device: str, locks: bool) -> None:
    """Two learners' parameters equal their equations computed by hand, through pulls and exchanges."""
    rule, options, by_hand = CASES[name]
    random = np.random.default_rng(0)
    goals, start = random.normal(size=(len(SCRIPT), 11)), random.normal(size=11)
    hand = by_hand(start)
    networks = {learner: Weights(11, torch.float64) for learner in "ab"}
    networks["a"].weight.data.copy_(torch.from_numpy(start))
    store = make_store(networks["a"], rule, options=options, locks=locks)
    updates = {
        learner: on_store(network.to(device), rule, store, 0.5, **options) for learner, network in networks.items()
    }
    for action, goal in zip(SCRIPT, goals, strict=True):
        learner = action[-1]
        if action.startswith("pull"):
            updates[learner].pull()
            hand.pull(learner)
        else:
            c = torch.from_numpy(goal).to(device)
            loss_sum = (networks[learner].weight - c).square().sum() / 2
            updates[learner].step(loss_sum, torch.tensor(1, device=device), 0.1)
            hand.update(learner, goal, 0.1, rule)
        np.testing.assert_allclose(store.read()["parameters"], hand.central, rtol=1e-11, atol=1e-13)
        for each, update in updates.items():
            np.testing.assert_allclose(update.parameters.values.cpu(), hand.local[each], rtol=1e-11, atol=1e-13)
    for update in updates.values():
        update.exchange.close()


@pytest.mark.gpu
def test_what_a_gpu_takes_over_is_there_before_others_may_write() -> None:
    """A GPU has read a store's parameters before others may overwrite their buffer."""
    network = make_network("cuda:0")
    store = make_store(network, SGD())
    update = on_store(network, SGD(), store)
    values = store.read()["parameters"]
    store.write({"parameters": values + 1})
    update.pull()
    for more in (2, 3):
        store.write({"parameters": values + more})
    assert torch.equal(update.parameters.values.cpu(), values + 1)
    update.exchange.close()


@pytest.mark.parametrize(
    ("rule", "options", "script", "expected"),
    [
        (RMSProp(), {}, "a a b a pull-c c c a b", [0, 0, 2, 1, 0, 0, 2, 4]),
        (Adam(), {"updates_per_exchange": 2}, "a a b b b a a", [0, 0, 0, 1, 1, 0, 1]),  # that of the newest exchange
    ],
)
def test_staleness(rule: Optimizer, options: dict[str, Any], script: str, expected: list[float]) -> None:
    """Staleness counts the other learners' updates since the last look at the store."""
    store = make_store(make_network(), rule, options=options)
    updates = {name: on_store(make_network(), rule, store, **options) for name in "abc"}
    found = []
    for action in script.split():
        if action.startswith("pull"):
            updates[action[-1]].pull()
        else:
            found.append(float(minimize(updates[action], 0)["staleness"]))
    assert found == expected


def test_staleness_is_a_mean_over_chunks() -> None:
    """Staleness is the mean over chunks."""
    store = make_store(make_network(), SGD())
    update = on_store(make_network(), SGD(), store)
    for part in store.chunks[1:]:
        part.copy_to_staging()
        part.publish()
    assert float(minimize(update, 0)["staleness"]) == pytest.approx(2 / 3)


@pytest.mark.multiprocess
def test_what_two_processes_do_adds_up() -> None:
    """Updates and statistics of two processes add up, and targets of the same count are equal."""
    store = make_store(Weights(1000), SGD(), statistics={"count": torch.zeros((), dtype=torch.float64)})
    process = Process(store, learn, 1000, 300)
    process.hear()
    process.say()
    first = update_store(store, 1000, 300)
    second = json.loads(process.finish())
    assert store.read()["parameters"].unique().tolist() == [-600]
    assert [part.version for part in store.chunks] == [600] * 3
    assert store.statistics.current["count"] == 600
    both = first.keys() & second.keys()
    assert {count: first[count] for count in both} == {count: second[count] for count in both}
    assert both


# ---- statistics and target ----


@pytest.mark.parametrize("device", DEVICES)
def test_locked_statistics(device: str) -> None:
    """Locked statistics start from the newest values, and a failure leaves them unchanged."""
    start = {"count": torch.tensor(1.0, dtype=torch.float64), "mean": torch.ones(4, dtype=torch.float64)}
    store = make_store(make_network(), SGD(), statistics=start)
    a, b = (on_store(make_network(device), SGD(), store) for _ in range(2))
    mine, other = ({name: torch.zeros_like(value, device=device) for name, value in start.items()} for _ in range(2))
    for update, buffers, expected in ((a, mine, 1), (b, other, 2), (b, other, 3), (a, mine, 4)):
        with update.exchange.locked_buffers(buffers):
            assert all((value == expected).all() for value in buffers.values())
            for value in buffers.values():
                value += 1
        assert all((value == expected + 1).all() for value in store.statistics.current.values())
    with contextlib.suppress(KeyError), b.exchange.locked_buffers(other):
        other["mean"] += 10
        raise KeyError
    with a.exchange.locked_buffers(mine):
        assert mine["mean"].tolist() == [5] * 4
    with pytest.raises(ValueError, match=r"holds the statistics \['count', 'mean'\], not \['count'\]"):
        a.exchange.locked_buffers({"count": mine["count"]}).__enter__()


@pytest.mark.parametrize("device", DEVICES)
def test_one_target_for_all(device: str) -> None:
    """All learners get the same target for a count, and it is synced once."""
    store = make_store(make_network(), Adam())
    a, b = (on_store(make_network(device), Adam(), store) for _ in range(2))
    targets = [deepcopy(a.module), deepcopy(b.module)]

    initial = deepcopy(a.module)
    minimize(a, 0)
    a.sync_target(targets[0], 0)
    assert same(targets[0], initial)
    minimize(b, 1)
    a.sync_target(targets[0], 1)  # b's parameters, which a has not seen yet
    a.pull()
    assert [torch.equal(*pair) for pair in zip(targets[0].parameters(), b.module.parameters(), strict=True)] == [
        True
    ] * 6
    assert same(targets[0], a.module), "buffers"
    first = deepcopy(targets[0])
    minimize(a, 2)
    a.sync_target(targets[0], 1)
    b.sync_target(targets[1], 1)
    assert same_parameters(targets[0], first) and same_parameters(targets[1], first)
    b.sync_target(targets[1], 3)
    a.sync_target(targets[0], 2)  # late: the newer one is there
    assert same_parameters(targets[0], a.module) and same_parameters(targets[1], a.module)


def test_a_target_includes_what_is_pending() -> None:
    """A single learner's target includes its pending updates."""
    local = Update(make_network(), Adam())
    options = {"updates_per_exchange": 4}
    update = on_store(make_network(), Adam(), make_store(local.module, Adam(), options=options), **options)
    targets = [deepcopy(local.module), deepcopy(local.module)]
    for index in range(3):
        for each, target in zip((local, update), targets, strict=True):
            minimize(each, index)
            each.sync_target(target, index // 2)
    assert same_parameters(*targets)


# ---- checkpoints and refusals ----


@pytest.mark.parametrize(
    ("rule", "options"),
    [
        (RMSProp(), {}),
        (Adam(), {}),
        (Adam(), {"own_state": True}),
        (Adam(), {"updates_per_exchange": 3}),
    ],
    ids=repr,
)
def test_resumes_bit_for_bit(rule: Optimizer, options: dict[str, Any]) -> None:
    """A learner and store restored from a state continue bit for bit, even with another number of chunks."""

    def make(num_chunks: int) -> Update:
        store = make_store(make_network(), rule, options=options, num_chunks=num_chunks)
        return on_store(make_network(), rule, store, 0.5, **options)

    local, update, again = Update(make_network(), rule, 0.5), make(3), make(2)
    for index in range(4):
        minimize(local, index)
        minimize(update, index)
    minimize(again, 9)
    target = deepcopy(update.module)
    update.sync_target(target, 5)
    update.exchange.flush()
    again.load_state_dict(deepcopy(update.state_dict()))
    again.module.load_state_dict({**again.module.state_dict(), **dict(update.module.named_buffers())})
    assert_parameters(again, update.parameters.values)
    local.sync_target(deepcopy(local.module), 5)
    for index in range(4, 8):
        for each in (local, update, again):
            minimize(each, index)
    for each in (update, again):
        assert_same_state(each, local)
        assert_parameters(each, local.parameters.values)
    before = deepcopy(target)
    again.sync_target(target, 5)
    assert same_parameters(target, before), "synced once more"
    another, its_target = on_store(make_network(), rule, again.exchange.store, **options), make_network()
    another.sync_target(its_target, 5)
    assert same_parameters(its_target, before), "a learner that was not there before"
    third = on_store(make_network(), rule, again.exchange.store, **options)
    third.load_local_state_dict(update.local_state_dict())
    with torch.no_grad():
        its_target[3].weight.zero_()
    third.sync_target(its_target, 5)
    assert not its_target[3].weight.any(), "one that has that target already"
    again.sync_target(target, 6)
    assert same_parameters(target, again.module)


def assert_parameters(update: Update, expected: Tensor) -> None:
    assert torch.equal(update.parameters.values, expected)
    assert torch.equal(update.exchange.store.read()["parameters"], expected)


@pytest.mark.parametrize(
    ("rule", "options", "message"),
    [
        (RMSProp(), {"updates_per_exchange": 2}, "updates_per_exchange=2 is for Adam, not for RMSProp"),
        (Adam(), {"updates_per_exchange": 0}, "updates_per_exchange=0 must be at least 1"),
        (Adam(), {"updates_per_exchange": 2, "own_state": True}, "omit one of them"),
    ],
)
def test_rules_that_cannot_be_shared(rule: Optimizer, options: dict[str, Any], message: str) -> None:
    """Optimizers and options that a store cannot share are usage errors."""
    store = make_store(make_network(), SGD())
    with pytest.raises(UsageError, match=message):
        on_store(make_network(), rule, store, **options)
    with pytest.raises(UsageError, match=message):
        shared_state(rule, torch.zeros(3), **options)


@pytest.mark.parametrize(
    ("network", "rule", "message"),
    [
        (Weights(3), SGD(), "holds 277 parameters of torch.float32, but the network has 3 of torch.float32"),
        (make_network().double(), SGD(), "the network has 277 of torch.float64"),
        (make_network(), Adam(), r"holds an optimizer's \[\], but Adam\(.* shares \['mean', 'square', 'step'\] here"),
    ],
)
def test_a_store_for_something_else(network: nn.Module, rule: Optimizer, message: str) -> None:
    """A learner whose network or optimizer differs from the store's is refused."""
    store = make_store(make_network(), SGD())
    with pytest.raises(ValueError, match=message):
        on_store(network, rule, store)


# ---- a GPU ----


@pytest.mark.gpu(fake=True)
@pytest.mark.parametrize("options", [{}, {"updates_per_exchange": 2}])
def test_no_lock_is_held_while_the_gradient_is_still_computed(options: dict[str, Any], monkeypatch: Any) -> None:
    """A learner waits for its GPU before it takes a lock."""
    store = make_store(make_network(), Adam(), options=options)
    update = on_store(make_network("cuda:0"), Adam(), store, **options)
    target = deepcopy(update.module)
    held: list[LockedTensors] = []
    events: list[str] = []
    acquire, release = LockedTensors.acquire, LockedTensors.release

    def acquire_and_note(tensors: LockedTensors, blocking: bool = True) -> bool:
        events.append("lock" if not held else "lock another")
        held.append(tensors)
        return acquire(tensors, blocking)

    def release_and_note(tensors: LockedTensors) -> None:
        held.remove(tensors)
        release(tensors)

    class Stream:
        def synchronize(self) -> None:
            events.append("wait in a lock" if held else "wait")

    monkeypatch.setattr(LockedTensors, "acquire", acquire_and_note)
    monkeypatch.setattr(LockedTensors, "release", release_and_note)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream())
    calls: dict[str, Callable[[], Any]] = {
        "apply": lambda: [minimize(update, index) for index in range(2)],
        "pull": update.pull,
        "sync the target": lambda: update.sync_target(target, 1),
        "take over the target": lambda: update.sync_target(target, 2),
        "statistics": lambda: update.exchange.locked_buffers({}).__enter__(),
    }
    for name, call in calls.items():
        events.clear()
        call()
        assert events[:2] == ["wait", "lock"], name
