"""Probes GPUs and bfloat16. Each probe imports PyTorch itself, since PyTorch may be broken."""

import os
from pathlib import Path

from accel_rl.doctor.finding import Finding, Problem
from accel_rl.errors import UsageError, first_line
from accel_rl.hardware.instructions import LIMITS, read_instructions

GB = 1 << 30
WHEEL = "pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/cu126"
WHICH_WHEEL = f"{WHEEL} (docs/hardware.md: which one fits a GPU)"


def gpus(root: Path = Path("/")) -> Finding:
    """Describes the GPUs that PyTorch sees, and their driver; if it sees none, says why."""
    import torch
    import torch.distributed as dist

    from accel_rl.hardware.devices import find_device, gpu_has_bf16, num_gpus
    from accel_rl.hardware.gpu_driver import find_driver, has_nvidia_gpu, why_no_gpu

    if not num_gpus():
        if not has_nvidia_gpu(root):
            return Finding(f"none: {why_no_gpu()}")
        return Finding(f"none, although there is one: {why_no_gpu()}", (Problem("warning", *_way_to_gpu()),))
    texts, problems = [], []
    for index in range(num_gpus()):
        gpu = torch.cuda.get_device_properties(index)
        bf16 = "" if gpu_has_bf16(f"cuda:{index}") else ", no bfloat16"
        texts.append(f"{gpu.name}, {gpu.total_memory / GB:.0f} GB, capability {gpu.major}.{gpu.minor}{bf16}")
        try:
            find_device(f"cuda:{index}")
        except UsageError as error:
            problems.append(Problem("warning", str(error), WHICH_WHEEL))
    if len(texts) > 1 and not (dist.is_available() and dist.is_nccl_available()):
        what = "this build of PyTorch has no NCCL, which several GPUs need"
        problems.append(Problem("warning", what, WHICH_WHEEL))
    software = f"driver {find_driver(root) or 'unknown'}, PyTorch for CUDA {torch.version.cuda}"
    return Finding(f"{len(texts)}: {'; '.join([*texts, software])}", tuple(problems))


def _way_to_gpu() -> tuple[str, str]:
    """Returns why PyTorch does not see a GPU that exists, and the command that fixes it."""
    import torch

    if torch.version.cuda is None:
        return f"PyTorch {torch.__version__} is built for the CPU, and leaves the GPU idle", WHICH_WHEEL
    if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return f"CUDA_VISIBLE_DEVICES={visible!r} hides the GPU", "unset CUDA_VISIBLE_DEVICES"
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
        reason = "PyTorch does not see the GPU"
    except RuntimeError as error:
        reason = first_line(error).split(". ")[0]
    return reason, "nvidia-smi (it must list the GPU; in a container: docker run --gpus all)"


def bfloat16() -> Finding:
    """Names the CPU's bfloat16 instructions that PyTorch uses, and a variable that hides them."""
    instructions = read_instructions()
    hidden_by = [variable for variable in LIMITS if variable in instructions.why_no_bf16]
    problems = (Problem("warning", instructions.why_no_bf16, f"unset {variable}") for variable in hidden_by)
    return Finding(f"CPU: {instructions.bf16 or f'none ({instructions.why_no_bf16})'}", tuple(problems))
