"""What a run says of its network's precision and threads, on processors with bfloat16 instructions and without."""

import logging
from typing import Any

import pytest
from torch import nn

from accel_rl.hardware.instructions import Instructions
from accel_rl.training import description
from accel_rl.training.build import build_algo
from accel_rl.training.description import log_description, precision_and_threads
from accel_rl.training.resolve import resolve

WITH, WITHOUT = Instructions("AVX512", "AMX"), Instructions("AVX2", "", "this CPU has none")
UNKNOWN = Instructions("DEFAULT", "unknown")
TINY = {"device": "cpu", "envs": 4, "workers": 2, "sampling_threads": 3, "learning_threads": 5}
ADVICE = "--bf16 would make the network faster: this CPU has instructions for it (AMX)"


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
            "bf16 is slower than float32 here: this CPU has none",
        ),
        ("pong", False, UNKNOWN, "float32; PyTorch's CPU kernels: DEFAULT; bfloat16 instructions: unknown", None),
        ("CartPole-v1", False, WITH, "float32; PyTorch's CPU kernels: AVX512; bfloat16 instructions: AMX", None),
    ],
)
def test_a_run_names_its_precision(
    env: str, bf16: bool, instructions: Instructions, network: str, advice: str | None, monkeypatch: Any, caplog: Any
) -> None:
    """Would catch advice for a network that gains nothing, none where bfloat16 pays, and threads that are not said."""
    config = resolve({**TINY, "env": env, "bf16": bf16})
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


@pytest.mark.parametrize("has_bf16", [True, False])
def test_a_precision_of_null_follows_the_cpu(has_bf16: bool, monkeypatch: Any) -> None:
    """Would catch a setting that stays null, so that a resumed run could change its precision with the machine."""
    monkeypatch.setattr("accel_rl.training.resolve.has_bf16", lambda: has_bf16)
    config = resolve({**TINY, "env": "pong", "bf16": None})
    assert config.run.bf16 is has_bf16 and config.as_dict()["bf16"] is has_bf16
    assert build_algo(config).policy.bf16 is has_bf16


def test_no_advice_for_a_policy_without_bf16(monkeypatch: Any, caplog: Any) -> None:
    """Would catch advice that ends in an error: a user's own policy may have no bfloat16."""
    monkeypatch.setattr(description, "read_instructions", lambda: WITH)
    with caplog.at_level(logging.INFO, "accel_rl"):
        log_description(resolve({**TINY, "env": "CartPole-v1"}), nn.Sequential(nn.Conv2d(1, 1, 1)))
    assert not any("bf16" in record.getMessage() for record in caplog.records)
