"""Finds the instruction sets that PyTorch uses on this CPU, including those for bfloat16."""

import os
from dataclasses import dataclass
from pathlib import Path

from accel_rl.hardware.topology import read_file

BF16_FLAGS = {"amx_bf16": "AMX", "avx512_bf16": "AVX512_BF16", "bf16": "BF16"}  # as in /proc/cpuinfo; bf16: Arm
# oneDNN reads the first of these that is set, in either case, and ignores names that it does not know ("CPU Dispatcher
# Control" in its manual). The names below exclude bfloat16 instructions; those without "amx" exclude AMX.
LIMITS = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
WITHOUT_BF16 = ("sse41", "avx", "avx2", "avx2_vnni", "avx2_vnni_2", "avx512_core", "avx512_core_vnni")
WITHOUT_AMX = ("avx512_core_bf16", "avx512_core_fp16", "avx10_1_512")


@dataclass(frozen=True)
class Instructions:
    """The instruction sets that PyTorch uses on this CPU.

    kernels: used by PyTorch's own kernels, such as AVX512. bf16: used by oneDNN to multiply bfloat16 numbers: AMX,
    AVX512_BF16, BF16 (Arm), unknown (a system without /proc), or "", for the reason why_no_bf16."""

    kernels: str
    bf16: str
    why_no_bf16: str = ""

    def __str__(self) -> str:
        return f"PyTorch's CPU kernels: {self.kernels}; bfloat16 instructions: {self.bf16 or 'none'}"


def read_instructions(root: Path = Path("/")) -> Instructions:
    """Returns the instruction sets in use. root: the folder of /proc."""
    import torch  # here, since simulator processes import this package

    kernels = torch.backends.cpu.get_cpu_capability()
    return Instructions(kernels, *_bf16(root))


def has_bf16() -> bool:
    """Returns whether PyTorch computes bfloat16 with special instructions, rather than emulating it with float32."""
    return bool(read_instructions().bf16)


def _bf16(root: Path) -> tuple[str, str]:
    """Returns Instructions' bf16 and why_no_bf16."""
    flags = set(read_file(root / "proc/cpuinfo").split())
    found = [name for flag, name in BF16_FLAGS.items() if flag in flags] if flags else ["unknown"]
    if not found:
        return "", "this CPU has no bfloat16 instructions (AVX512_BF16 or AMX)"
    variable = next((name for name in LIMITS if os.environ.get(name)), "")
    limit = os.environ.get(variable, "").lower()
    if limit in WITHOUT_BF16 and found != ["BF16"]:
        return "", f"{variable}={os.environ[variable]} hides this CPU's bfloat16 instructions ({found[0]})"
    if not _onednn_takes_bf16():
        return "", f"this build of PyTorch does not use this CPU's bfloat16 instructions ({found[0]})"
    if limit in WITHOUT_AMX and len(found) > 1:
        found.remove("AMX")
    return found[0], ""


def _onednn_takes_bf16() -> bool:
    """Returns whether PyTorch passes bfloat16 to oneDNN, which may still emulate it; True if that is unknown."""
    import torch

    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    try:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    except (AttributeError, RuntimeError):
        return True
