"""Tests that oneDNN's private operations are used where they work, and plain PyTorch where they do not."""

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from accel_rl.models import onednn
from accel_rl.models.actor_critic import ActorCritic
from accel_rl.models.layers import Linear
from accel_rl.updates import Update
from accel_rl.updates.optimizers import SGD
from tests.helpers.plain import assert_acts_as_plain, disturbed, gradients, images, pixels, plain

pytestmark = pytest.mark.usefixtures("small_products")

SHAPE = (3, 22, 24)
CONVOLUTIONS = ["_convolution_pointwise", "_reorder_convolution_weight"]
PRODUCTS = ["_linear_pointwise", "_reorder_linear_weight"]
HAS_ONEDNN = torch.backends.mkldnn.is_available() and all(
    hasattr(torch.ops.mkldnn, name) for name in CONVOLUTIONS + PRODUCTS
)


def forget() -> None:
    for probe in (onednn.convolves, onednn.multiplies, onednn.prefers_products):
        probe.cache_clear()


@pytest.fixture(autouse=True)
def try_anew() -> Iterator[None]:
    """Makes each test, and the next one, try the operations again."""
    forget()
    yield
    forget()


def make_policy() -> Any:
    torch.manual_seed(0)
    return disturbed(ActorCritic(pixels(*SHAPE)))


@pytest.mark.skipif(not HAS_ONEDNN, reason="this PyTorch has no oneDNN")
def test_the_operations_of_this_pytorch_work() -> None:
    """The installed PyTorch's oneDNN operations pass their trial."""
    assert onednn.convolves(torch.float32) and onednn.multiplies(torch.float32)
    has_bf16 = torch.ops.mkldnn._is_mkldnn_bf16_supported()
    assert onednn.convolves(torch.bfloat16) == onednn.multiplies(torch.bfloat16) == has_bf16


# ---- what may be wrong with an operation ----


def refuse(*_: Any) -> Any:
    raise RuntimeError("not for this processor\nat some line")


# Functions that turn an operation into a replacement that fails or has wrong results.
FAILS: dict[str, Callable[[Any], Any]] = {
    "refuses": lambda real: refuse,
    "has another signature": lambda real: lambda x: x,
    "returns nothing": lambda real: lambda *_: None,
    "returns a tuple": lambda real: lambda x, *_: (x, x),
    "returns its first argument": lambda real: lambda x, *_: x,
    "returns nan": lambda real: lambda *_: torch.full((4,), torch.nan),
}
SPOILT: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "no ReLU": ("_convolution_pointwise", lambda real: lambda *given: real(*given) - 1),
    "too many dimensions": ("_convolution_pointwise", lambda real: lambda *given: real(*given)[None]),
    "another layout of weights": ("_reorder_convolution_weight", lambda real: lambda weight, *_: weight.flip(0)),
    "wrong by a tenth": ("_linear_pointwise", lambda real: lambda *given: real(*given) * 1.1),
    "only some samples": ("_linear_pointwise", lambda real: lambda *given: real(*given)[:1]),
    "transposed weights": ("_reorder_linear_weight", lambda real: lambda weight, *_: weight.flip(1)),
}
OPERATIONS = {how: (name, make) for how, (name, make) in SPOILT.items() if HAS_ONEDNN}
for name in ("_convolution_pointwise", "_linear_pointwise"):
    OPERATIONS |= {f"{name} {how}": (name, make) for how, make in FAILS.items()}
OPERATIONS |= {f"{name} refuses": (name, FAILS["refuses"]) for name in CONVOLUTIONS + PRODUCTS}


def assert_computes_as_pytorch(policy: Any) -> None:
    """Asserts that results and gradients are PyTorch's, in both precisions."""
    image = images(SHAPE, 6)
    assert_acts_as_plain(policy, image)
    for bf16 in (False, True):
        found = []
        for network in (policy, plain(policy)):
            network.bf16 = bf16
            network.zero_grad()
            parameters, value = network(image)
            (parameters.square().sum() + value.sum()).backward()
            found.append(gradients(network))
        tolerance = 0.2 if bf16 else 1e-4
        for ours, theirs in zip(*found, strict=True):
            assert (ours - theirs).norm() <= tolerance * theirs.norm()


def assert_falls_back(name: str, caplog: pytest.LogCaptureFixture) -> list[str]:
    """Asserts that the operation's kind is not used; returns the log's messages about it."""
    works, other = (
        (onednn.convolves, onednn.multiplies) if name in CONVOLUTIONS else (onednn.multiplies, onednn.convolves)
    )
    with caplog.at_level(logging.INFO, "accel_rl"):
        assert not works(torch.float32) and not works(torch.bfloat16)
        assert other(torch.float32) or not HAS_ONEDNN
        caplog.clear()
        forget()
        policy = make_policy()
        assert_computes_as_pytorch(policy)
        assert_computes_as_pytorch(policy)
    said = [record.getMessage() for record in caplog.records if "PyTorch's own" in record.getMessage()]
    about = "convolutions" if name in CONVOLUTIONS else "matrix products"
    kind = [message for message in said if message.startswith(about)]
    assert [message.split(" are ")[0] for message in kind] == [f"{about} in float32", f"{about} in bfloat16"]
    assert not any("\n" in message for message in kind)
    return kind


@pytest.mark.parametrize("case", OPERATIONS)
def test_an_operation_that_does_not_work_is_not_used(
    case: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An operation that fails, or has wrong results, is not used, and its reason is logged once."""
    name, make = OPERATIONS[case]
    monkeypatch.setattr(torch.ops.mkldnn, name, make(getattr(torch.ops.mkldnn, name, None)), raising=False)
    in_float32, _ = assert_falls_back(name, caplog)
    assert case not in SPOILT or "its results differ" in in_float32
    assert "refuses" not in case or in_float32.endswith("oneDNN's cannot be used here (not for this processor)")


@pytest.mark.parametrize("name", [*CONVOLUTIONS, *PRODUCTS, "all"])
def test_an_operation_that_is_missing_is_not_used(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A PyTorch without an operation computes with its own layers."""

    class Without:
        def __getattr__(self, wanted: str) -> Any:
            if name in (wanted, "all"):
                raise AttributeError(f"'_OpNamespace' 'mkldnn' object has no attribute '{wanted}'")
            return getattr(operations, wanted)

    operations = torch.ops.mkldnn
    monkeypatch.setattr(torch.ops, "mkldnn", Without())
    if name == "all":
        assert_computes_as_pytorch(make_policy())
        assert not onednn.convolves(torch.float32) and not onednn.multiplies(torch.float32)
    else:
        assert any("has no attribute" in message for message in assert_falls_back(name, caplog))


# ---- precisions ----


def test_without_bfloat16_autocast_still_works(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without bfloat16 operations, a policy in bfloat16 acts and learns through autocast."""
    for name in ("convolves", "multiplies"):
        monkeypatch.setattr(onednn, name, lambda dtype: dtype == torch.float32 and HAS_ONEDNN)
    policy = make_policy()
    assert_computes_as_pytorch(policy)
    with torch.autocast("cpu", torch.bfloat16):
        assert policy.encoder.trunk(images(SHAPE, 2)).dtype == torch.bfloat16
    image = images(SHAPE, 4)
    policy.bf16 = True
    update = Update(policy, SGD())
    before = policy.act(image, None)[1]["value"].clone()
    update.minimize(lambda part: (policy(part)[1].sum(), {}), (image,), torch.tensor(4), 0.01)
    assert (policy.act(image, None)[1]["value"] - before).abs().max() > 0.01
    assert all(parameter.dtype == torch.float32 for parameter in policy.parameters())


@pytest.mark.parametrize("kind", ["linear", "trunk"])
def test_other_dtypes_use_pytorchs_layers(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Float64 and float16 use PyTorch's own layers."""
    module: Any = Linear(96, 40) if kind == "linear" else make_policy().encoder.trunk
    x = torch.rand(2, 96) if kind == "linear" else torch.rand(2, *SHAPE)
    for name in ("convolve", "multiply"):
        monkeypatch.setattr(onednn, name, lambda *_, **__: pytest.fail("called for other dtypes"))
    for mode in (torch.inference_mode, torch.enable_grad):
        with mode():
            assert module.double()(x.double()).dtype == torch.float64
            module.float()
            with torch.autocast("cpu", torch.float16):
                assert module(x).dtype == torch.float16
