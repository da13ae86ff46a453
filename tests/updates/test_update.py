"""Tests of `minimize` against `step`, in slices, with masks, and through the buffers of a CUDA graph."""

import logging
import platform
import subprocess
import sys
from collections.abc import Callable
from copy import deepcopy
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from accel_rl.rollout import Batch
from accel_rl.updates import LossPart, Update
from accel_rl.updates.cuda_graphs import MAX_GRAPHED_CALLS, CudaGraphs
from accel_rl.updates.optimizers import SGD, Adam, MomentumSGD, Optimizer, RMSProp


class OutsideAdam(Adam):
    """An optimizer that no CUDA graph can hold, like those of torch.optim."""

    capturable: ClassVar[bool] = False


OPTIMIZERS: list[Optimizer] = [
    RMSProp(),
    RMSProp(momentum=0.5, initial_square=1.0, epsilon=0.1),
    Adam(),
    MomentumSGD(),
    SGD(),
    OutsideAdam(),
]


class Learner:
    """A small network, its loss and its update; all learners start with the same parameters."""

    def __init__(self, device: torch.device | str = "cpu", rule: Optimizer | None = None, **options: Any):
        torch.manual_seed(0)
        conv, head = nn.Conv2d(2, 4, 3), nn.Linear(64, 1)
        self.network = nn.Sequential(conv, nn.ReLU(), nn.Flatten(), head).to(device)
        self.update = Update(self.network, rule or RMSProp(), clip_grad_norm=0.5, **options)

    def loss(self, x: Tensor, target: Tensor, valid: Tensor, scale: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        error = self.network(x).squeeze(-1) - target
        squared, absolute = (valid * error.square()).sum(), (valid * error.abs()).sum()
        return scale * squared + absolute, {"squared": squared.detach(), "absolute": absolute.detach()}

    def replay(self) -> "Learner":
        """Makes updates go through the buffers that a graph would read, on any device."""
        self.update._graphs = CudaGraphs(self.update.device)
        return self

    def minimize(self, index: int, num_samples: int = 30, scale: float = 1.0, rate: float = 1e-2) -> dict[str, Tensor]:
        batch = make_batch(index, num_samples, scale, self.update.parameters.values.device)
        return self.update.minimize(self.loss, batch, batch.valid.sum(), rate)

    @property
    def values(self) -> Tensor:
        return self.update.parameters.values


class Arguments(NamedTuple):
    """The arguments of `Learner.loss`, in its order."""

    x: Tensor
    target: Tensor
    valid: Tensor
    scale: Tensor


def make_batch(index: int, num_samples: int = 30, scale: float = 1.0, device: torch.device | str = "cpu") -> Arguments:
    generator = torch.Generator().manual_seed(index)
    batch = (
        torch.randn(num_samples, 2, 6, 6, generator=generator),
        torch.randn(num_samples, generator=generator),
        torch.rand(num_samples, generator=generator) < 0.7,
        torch.tensor(scale),
    )
    return Arguments(*(value.to(device) for value in batch))


def by_step(learner: Learner, index: int) -> dict[str, Tensor]:
    """Does with `step` what `minimize` should do."""
    batch = make_batch(index)
    num_samples = batch.valid.sum()
    loss_sum, terms = learner.loss(*batch)
    norm = learner.update.step(loss_sum, num_samples, 1e-2)
    return {name: term / num_samples for name, term in terms.items()} | {"grad_norm": norm}


def assert_close(first: dict[str, Tensor], second: dict[str, Tensor]) -> None:
    assert list(first) == list(second)
    for name in first:
        torch.testing.assert_close(first[name], second[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("rule", OPTIMIZERS, ids=repr)
@pytest.mark.parametrize(
    "make",
    [lambda rule: Learner(rule=rule, slice_elements=500), lambda rule: Learner(rule=rule).replay()],
    ids=["slices", "buffers"],
)
def test_minimize_is_step(make: Callable[[Optimizer], Learner], rule: Optimizer) -> None:
    """`minimize` equals `step`, in slices and graphs, and later updates do not change returned statistics."""
    expected, actual = Learner(rule=rule), make(rule)
    stats = [(by_step(expected, index), actual.minimize(index)) for index in range(6)]
    for first, second in stats:
        assert_close(first, second)
    # Adam's first steps follow the sign of even a tiny gradient, so rounding is larger there than elsewhere.
    torch.testing.assert_close(actual.values, expected.values, rtol=1e-3, atol=1e-4)


def test_the_whole_gradient_is_clipped() -> None:
    """Clipping applies to the norm of the whole gradient, before the update."""
    layer = nn.Linear(3, 2)
    update = Update(layer, RMSProp(), clip_grad_norm=0.5)
    norm = update.step((layer(torch.ones(1, 3)) * 100).sum(), torch.tensor(4), 1e-3)
    assert norm.item() == pytest.approx(25 * 8**0.5, rel=1e-5)
    assert update.parameters.gradient.norm().item() == pytest.approx(0.5, rel=1e-5)


def test_what_is_not_sliceable_stays_whole() -> None:
    """A recurrent batch [T, B] reaches the loss whole."""
    learner = Learner(slice_elements=1)
    seen = []

    def loss(batch: Batch, start: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        seen.append((batch.observation.shape, start.shape))
        return learner.network(batch.observation.flatten(0, 1)).sum(), {}

    sequences = Batch(torch.zeros(3, 4, 2, 6, 6), torch.zeros(3, 4), torch.ones(3, 4, dtype=torch.bool))
    stats = learner.update.minimize(loss, (sequences, torch.zeros(4)), torch.tensor(12), 1e-2)
    assert seen == [((3, 4, 2, 6, 6), (4,))]
    assert list(stats) == ["grad_norm"]


@pytest.mark.parametrize("how", ["slices", "buffers", pytest.param("graph", marks=pytest.mark.gpu(fake=True))])
def test_further_losses_and_sums(how: str) -> None:
    """Further losses add to the gradient with their weights of this update. All sums are divided by the number of
    samples of the first loss, unless it is 0."""
    expected, actual = Learner(rule=SGD()), Learner("cuda:0" if how == "graph" else "cpu", SGD(), slice_elements=500)
    expected.update.exchange.clip_grad_norm = actual.update.exchange.clip_grad_norm = None
    if how == "buffers":
        actual.replay()

    def other(x: Tensor, weight: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        loss_sum = weight * actual.network(x).square().sum()
        return loss_sum, {"other": loss_sum.detach()}

    for index in range(8):  # in turn, so both have graphs
        batch, x = make_batch(index), make_batch(100 + index, num_samples=7).x
        num_samples = batch.valid.sum()
        loss_sum, terms = expected.loss(*batch)
        weight = 0.3 + index / 10
        other_sum = weight * expected.network(x).square().sum()
        count = num_samples * (index % 2)  # 0: nothing is divided
        norm = expected.update.step(loss_sum + other_sum, count.clamp(min=1), 1e-3)
        there, x = make_batch(index, device=actual.update.device), x.to(actual.update.device)
        extra = [LossPart(other, (x, weight))]
        actual.update.tasks = SimpleNamespace(draw=lambda _, extra=extra: extra)
        stats = actual.update.minimize(actual.loss, there, count.to(actual.update.device), 1e-3)
        count = count.to(actual.update.device)
        means = {name: term / max(1, int(count)) for name, term in {**terms, "other": other_sum.detach()}.items()}
        assert_close({name: value.cpu() for name, value in stats.items()}, means | {"grad_norm": norm})
    torch.testing.assert_close(actual.values.cpu(), expected.values, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("how", ["slices", "buffers", "outside"])
def test_norms_of_layers_by_hand(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logged norms equal each layer's parameter, clipped gradient and step, computed by hand."""
    monkeypatch.setattr(SGD, "capturable", how != "outside")
    learner = Learner(rule=SGD(), slice_elements=500, log_norms=True)
    if how != "slices":
        learner.replay()
    for index in range(4):
        before = {name: parameter.detach().clone() for name, parameter in learner.network.named_parameters()}
        stats = learner.minimize(index)
        parameters = dict(learner.network.named_parameters())
        assert list(parameters) == ["0.weight", "0.bias", "3.weight", "3.bias"]
        for name, parameter in parameters.items():
            tensors = {"parameter": parameter, "gradient": parameter.grad, "step": parameter - before[name]}
            for kind, tensor in tensors.items():
                expected = tensor.detach().square().sum().sqrt().item()
                assert expected > 0
                assert stats[f"norm/{kind}/{name}"].item() == pytest.approx(expected, rel=1e-5), (kind, name)
        gradients = [stats[f"norm/gradient/{name}"].item() for name in parameters]
        assert sum(g * g for g in gradients) ** 0.5 == pytest.approx(min(0.5, stats["grad_norm"].item()), rel=1e-4)
        assert stats["norm/step/3.weight"].item() == pytest.approx(1e-2 * gradients[2], rel=1e-3)
        assert len(stats) == 3 + 12
    assert not any(name.startswith("norm/") for name in Learner().minimize(0))


def test_nothing_valid() -> None:
    """A batch without valid samples changes nothing, and all its statistics are 0."""
    learner = Learner()
    before = learner.values.clone()
    batch = make_batch(0)._replace(valid=torch.zeros(30, dtype=torch.bool))
    stats = learner.update.minimize(learner.loss, batch, batch.valid.sum(), 1e-2)
    assert all(value.item() == 0 for value in stats.values())
    assert torch.equal(learner.values, before)


@pytest.mark.parametrize(
    ("rule", "device"),
    [
        (RMSProp(), "cpu"),
        (OutsideAdam(), "cpu"),
        pytest.param(Adam(), "cuda:0", marks=pytest.mark.gpu),
        pytest.param(OutsideAdam(), "cuda:0", marks=[pytest.mark.gpu, pytest.mark.slow]),
    ],
    ids=repr,
)
def test_buffers_are_the_direct_path(rule: Optimizer, device: str) -> None:
    """Updates through buffers or graphs equal direct ones, for changing sizes, rates and settings."""
    direct, replayed = Learner(device, rule, cuda_graphs=False), Learner(device, rule).replay()
    for index in range(12):
        changing = {"num_samples": (30, 20)[index % 2], "scale": 1 + index / 3, "rate": 1e-2 / (1 + index)}
        assert_close(direct.minimize(index, **changing), replayed.minimize(index, **changing))
    torch.testing.assert_close(direct.values, replayed.values, rtol=1e-3, atol=1e-4)
    assert replayed.update._graphs and replayed.update._graphs.is_enabled


@pytest.mark.parametrize("buffers", [False, True])
def test_a_state_resumes(buffers: bool) -> None:
    """A restored update continues like the saved one, even through buffers."""
    through, other = Learner(rule=Adam()), Learner(rule=Adam())
    if buffers:
        through.replay(), other.replay()
    for index in range(4):
        through.minimize(index)
        other.minimize(100 + index)
    state = deepcopy(through.update.state_dict())
    other.update.load_state_dict(state)
    for index in range(4):
        assert_close(through.minimize(index), other.minimize(index))
    assert torch.equal(through.values, other.values)
    assert other.update.exchange.optimizer_state["step"].item() == 8


def test_ever_new_losses_are_noticed(caplog: pytest.LogCaptureFixture) -> None:
    """A new loss at each update gives one warning, and the updates stay right."""
    learner, expected = Learner().replay(), Learner()
    with caplog.at_level(logging.WARNING, "accel_rl"):
        for index in range(MAX_GRAPHED_CALLS + 3):
            batch = make_batch(index)
            loss = lambda *batch: learner.loss(*batch)  # noqa: E731
            learner.update.minimize(loss, batch, batch.valid.sum(), 1e-2)
            expected.minimize(index)
    assert len(caplog.records) == 1 and "different losses" in caplog.text
    torch.testing.assert_close(learner.values, expected.values, rtol=1e-3, atol=1e-4)


@pytest.mark.gpu
def test_a_graph_is_what_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """After two warm-up calls and a capture, updates do not call the loss."""
    learner = Learner("cuda:0")
    calls = []
    loss = learner.loss
    monkeypatch.setattr(learner, "loss", lambda *batch: (calls.append(1), loss(*batch))[1])
    for index in range(6):
        learner.minimize(index)
    assert len(calls) == 3  # two to warm up, one to capture


UPDATES = """
import resource, torch
from accel_rl.hardware.allocator import keep_freed_memory
keep_freed_memory()
def update():
    layers = [torch.ones(2**22) for _ in range(4)]  # 64 MiB: 16384 pages
for _ in range(4): update()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5): update()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="does nothing without glibc")
def test_freed_memory_is_kept() -> None:
    """The C library keeps freed memory, so updates cause few page faults."""
    result = subprocess.run([sys.executable, "-c", UPDATES], capture_output=True, text=True, check=True)
    assert int(result.stdout) < 1000
