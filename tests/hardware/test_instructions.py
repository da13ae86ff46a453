"""Tests of the instructions that bfloat16 is computed with, on processors of every kind."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from accel_rl.hardware import instructions
from accel_rl.hardware.instructions import LIMITS, Instructions, has_bf16, read_instructions
from tests.helpers.machines import write

SAPPHIRE_RAPIDS = "avx2 avx512f avx512_bf16 amx_bf16 amx_tile"
ZEN_4 = "avx2 avx512f avx512_bf16"
SKYLAKE = "avx2 avx512f"
GRAVITON_3 = "asimd bf16 sve"


@pytest.fixture
def read(tmp_path: Path, monkeypatch: Any) -> Any:
    """Returns a reader of the instructions of a processor with given flags; limits: environment variables of oneDNN."""

    def read(flags: str | None, takes_bf16: bool = True, **limits: str) -> Instructions:
        for name in LIMITS:
            monkeypatch.delenv(name, raising=False)
        for name, value in limits.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(instructions, "_onednn_takes_bf16", lambda: takes_bf16)
        if flags is not None:
            write(tmp_path, {"proc/cpuinfo": f"model name : a CPU\nflags : fpu {flags} sse"})
        return read_instructions(tmp_path)

    return read


@pytest.mark.parametrize(
    ("flags", "limits", "bf16"),
    [
        (SAPPHIRE_RAPIDS, {}, "AMX"),
        (SAPPHIRE_RAPIDS, {"ONEDNN_MAX_CPU_ISA": "ALL"}, "AMX"),
        (SAPPHIRE_RAPIDS, {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_AMX"}, "AMX"),
        (SAPPHIRE_RAPIDS, {"ONEDNN_MAX_CPU_ISA": "no such name"}, "AMX"),
        (SAPPHIRE_RAPIDS, {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}, "AVX512_BF16"),
        (SAPPHIRE_RAPIDS, {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_FP16", "DNNL_MAX_CPU_ISA": "AVX2"}, "AVX512_BF16"),
        (SAPPHIRE_RAPIDS, {"ATEN_CPU_CAPABILITY": "avx2"}, "AMX"),
        (ZEN_4, {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}, "AVX512_BF16"),
        (GRAVITON_3, {"ONEDNN_MAX_CPU_ISA": "AVX2"}, "BF16"),
        (None, {}, "unknown"),
    ],
)
def test_instructions_for_bfloat16(flags: str | None, limits: dict[str, str], bf16: str, read: Any) -> None:
    """The named bfloat16 instructions are those that oneDNN uses on this processor."""
    found = read(flags, **limits)
    assert (found.bf16, found.why_no_bf16) == (bf16, "")
    assert str(found).endswith(f"; bfloat16 instructions: {bf16}")


@pytest.mark.parametrize(
    ("flags", "takes_bf16", "limits", "reason"),
    [
        (SKYLAKE, True, {}, "this CPU has no bfloat16 instructions (AVX512_BF16 or AMX)"),
        (SKYLAKE, True, {"ONEDNN_MAX_CPU_ISA": "AVX2"}, "this CPU has no bfloat16 instructions (AVX512_BF16 or AMX)"),
        (
            SAPPHIRE_RAPIDS,
            False,
            {"ONEDNN_MAX_CPU_ISA": "AVX2"},
            "ONEDNN_MAX_CPU_ISA=AVX2 hides this CPU's bfloat16 instructions (AMX)",
        ),
        (  # here oneDNN takes bfloat16, and emulates it
            ZEN_4,
            True,
            {"ONEDNN_MAX_CPU_ISA": "", "DNNL_MAX_CPU_ISA": "avx512_core"},
            "DNNL_MAX_CPU_ISA=avx512_core hides this CPU's bfloat16 instructions (AVX512_BF16)",
        ),
        (ZEN_4, False, {}, "this build of PyTorch does not use this CPU's bfloat16 instructions (AVX512_BF16)"),
    ],
)
def test_why_there_are_none(flags: str, takes_bf16: bool, limits: dict[str, str], reason: str, read: Any) -> None:
    """The reason for missing bfloat16 instructions names the processor or the environment variable."""
    found = read(flags, takes_bf16, **limits)
    assert (found.bf16, found.why_no_bf16) == ("", reason)
    assert str(found).endswith("; bfloat16 instructions: none")


def test_what_pytorch_says(monkeypatch: Any) -> None:
    """PyTorch releases without the private query, or without oneDNN, are handled."""

    def missing() -> bool:
        raise AttributeError

    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    for answer, expected in ((lambda: False, False), (lambda: True, True), (missing, True)):
        monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", answer, raising=False)
        assert instructions._onednn_takes_bf16() is expected
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert instructions._onednn_takes_bf16() is False


def test_this_machine() -> None:
    """The answers about this machine agree with each other."""
    found = read_instructions()
    assert found.kernels == torch.backends.cpu.get_cpu_capability()
    assert bool(found.bf16) == has_bf16() != bool(found.why_no_bf16)
    assert re.fullmatch(r"PyTorch's CPU kernels: .+; bfloat16 instructions: \w+", str(found))
