"""Tests of what a run says about its network's precision and threads, with and without bfloat16 instructions."""

import logging
from typing import Any

import pytest
import torch
from torch import nn

from accel_rl.algos.a2c import A2C
from accel_rl.hardware.instructions import Instructions
from accel_rl.models.trunks import Scale
from accel_rl.settings.resolve import resolve
from accel_rl.training import description
from accel_rl.training.build import build_algo, check
from accel_rl.training.description import log_description, precision_and_threads
from tests.fake_cuda.machine import machine

WITH, WITHOUT = Instructions("AVX512", "AMX"), Instructions("AVX2", "", "this CPU has none")
UNKNOWN = Instructions("DEFAULT", "unknown")
TINY = {"device": "cpu", "envs": 4, "workers": 2, "sampling_threads": 3, "learning_threads": 5}
ADVICE = "--precision bf16 would make the network faster: this CPU has instructions for it (AMX)"


@pytest.mark.parametrize(
    ("env", "bf16", "instructions", "network", "advice"),
    [
        ("pong", False, WITH, "float32; PyTorch's CPU kernels: AVX512; bfloat16 instructions: AMX", ADVICE),
        ("pong", True, WITH, "bfloat16; PyTorch's CPU kernels: AVX512; bfloat16 instructions: AMX", None),
        ("pong", False, WITHOUT, "float32; PyTorch's CPU kernels: AVX2; bfloat16 instructions: none", None),
        (
            "pong",
            True,
            WITHOUT,
            "bfloat16; PyTorch's CPU kernels: AVX2; bfloat16 instructions: none",
            "precision=bf16 is slower than float32 here: this CPU has none",
        ),
        ("pong", False, UNKNOWN, "float32; PyTorch's CPU kernels: DEFAULT; bfloat16 instructions: unknown", None),
        ("CartPole-v1", False, WITH, "float32; PyTorch's CPU kernels: AVX512; bfloat16 instructions: AMX", None),
    ],
)
def test_a_run_names_its_precision(
    env: str, bf16: bool, instructions: Instructions, network: str, advice: str | None, monkeypatch: Any, caplog: Any
) -> None:
    """A run logs its precision and threads, and advises on bfloat16 only where that pays."""
    config = resolve({**TINY, "env": env, "precision": "bf16" if bf16 else "float32"})
    monkeypatch.setattr(description, "read_instructions", lambda: instructions)
    with caplog.at_level(logging.INFO, "accel_rl"):
        log_description(config, build_algo(config).policy)
    said = [record.getMessage() for record in caplog.records]
    assert f"network     {network}" in said
    simulators = [line for line in said if line.startswith("simulator ")]
    assert simulators == (["simulator   native: pong is exact by emulator/exactness.csv"] if env == "pong" else [])
    assert sum("torch threads: 3 sampling, 5 learning" in line for line in said) == 1
    assert [line for line in said if "bf16" in line] == ([advice] if advice else [])
    levels = {record.levelno for record in caplog.records if "bf16" in record.getMessage()}
    assert levels <= {logging.WARNING if bf16 else logging.INFO}
    assert precision_and_threads(config) == {
        "time/network_bits": 16 if bf16 else 32,
        "time/sampling_threads": 3,
        "time/learning_threads": 5,
    }


@pytest.mark.parametrize(
    ("settings", "warning"),
    [
        (
            {"sampler": "serial"},
            "--workers is not used: the serial sampler steps all environments in the learner",
        ),
        ({"algo": "a3c"}, "one learner is not asynchronous: --devices cpu,cpu starts two, --devices all one per GPU"),
    ],
)
def test_what_has_no_effect_is_said(settings: dict[str, Any], warning: str, caplog: Any) -> None:
    """Settings of workers without workers, and of asynchronous learners with one learner, are warned of."""
    for more in ({}, settings):
        config = resolve({**TINY, "env": "CartPole-v1", **more})
        log_description(config, build_algo(config).policy)
    assert sum(text.startswith(warning) for text in caplog.messages) == 1


@pytest.mark.parametrize("has_bf16", [True, False])
def test_fast_precision_follows_the_cpu(has_bf16: bool, monkeypatch: Any) -> None:
    """The precision "fast" resolves to the CPU's fastest and is saved as such, so a resumed run keeps it."""
    monkeypatch.setattr("accel_rl.settings.resolve.has_bf16", lambda: has_bf16)
    config = resolve({**TINY, "env": "pong", "precision": "fast"})
    assert config.run.precision == config.as_dict()["precision"] == ("bf16" if has_bf16 else "float32")
    assert build_algo(config).policy.bf16 is has_bf16
    assert resolve({**TINY, "env": "pong"}).run.precision == "float32"


@pytest.mark.gpu(fake=True)
@pytest.mark.parametrize(
    ("settings", "capability", "expected"),
    [
        ({"env": "pong"}, (9, 0), "bf16"),
        ({"env": "pong", "precision": "fast"}, (8, 0), "bf16"),
        ({"env": "pong"}, (7, 5), "tf32"),  # the GPU ignores TF32
        ({"env": "CartPole-v1"}, (9, 0), "tf32"),
        ({"env": "pong", "network": "tests.training.test_description:small"}, (9, 0), "tf32"),
        ({"env": "pong", "deterministic": True}, (9, 0), "float32"),
        ({"env": "pong", "precision": "float32"}, (9, 0), "float32"),
        ({"env": "CartPole-v1", "precision": "bf16", "deterministic": True}, (9, 0), "bf16"),
    ],
)
def test_precision_on_a_gpu(
    settings: dict[str, Any], capability: tuple[int, int], expected: str, caplog: Any, monkeypatch: Any
) -> None:
    """Pictures use bfloat16 where the GPU has it, everything else TF32; --deterministic makes float32 the default."""
    machine().capability = capability
    monkeypatch.setattr(torch.cuda, "get_arch_list", list)
    config = resolve({**TINY, **settings, "device": "cuda:0"})
    assert config.run.precision == expected
    policy = build_algo(config).policy
    assert policy.bf16 is (expected == "bf16")
    assert torch.backends.cudnn.allow_tf32 is (expected != "float32")
    assert torch.get_float32_matmul_precision() == ("highest" if expected == "float32" else "high")
    with caplog.at_level(logging.INFO, "accel_rl"):
        log_description(config, policy)
    said = {"bf16": "bfloat16, the rest in TF32", "tf32": "TF32", "float32": "float32"}[expected]
    assert f"network     {said}" in [record.getMessage() for record in caplog.records]


def small(spec: Any) -> nn.Module:
    """A user's own network."""
    return nn.Sequential(Scale(0, 255), nn.Conv2d(spec.observation_shape[0], 2, 8, 8), nn.Flatten())


class WithoutBf16(A2C):
    """An algorithm whose policy computes in float32 only."""

    def build_policy(self, network: Any) -> Any:
        policy = super().build_policy(network)
        del policy.bf16
        return policy


@pytest.mark.gpu(fake=True)
def test_a_policy_without_bf16_trains_without_it(caplog: Any) -> None:
    """A user's policy without bfloat16 trains on a GPU in another precision, and the run says which."""
    config = check(resolve({**TINY, "algo": f"{__name__}:WithoutBf16", "env": "pong", "device": "cuda:0"}))
    assert config.run.precision == "tf32"
    assert "has no attribute bf16, so it computes in tf32" in caplog.text


def test_no_advice_for_a_policy_without_bf16(monkeypatch: Any, caplog: Any) -> None:
    """A policy without bfloat16 gets no advice to use it."""
    monkeypatch.setattr(description, "read_instructions", lambda: WITH)
    with caplog.at_level(logging.INFO, "accel_rl"):
        log_description(resolve({**TINY, "env": "CartPole-v1"}), nn.Sequential(nn.Conv2d(1, 1, 1)))
    assert not any("bf16" in record.getMessage() for record in caplog.records)
