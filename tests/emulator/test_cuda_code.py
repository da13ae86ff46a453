"""The kernels' machine code for GPUs, as far as it can be checked without a GPU."""

import re
import subprocess

import pytest

from accel_rl.emulator.cuda import agent_kernels, compilation, kernels
from accel_rl.emulator.cuda.compilation import PTX_VERSIONS, find_ptxas, kernel_images, ptx_path
from accel_rl.emulator.cuda.driver import newest_arch
from accel_rl.errors import UsageError

ALL = (*kernels.KERNELS, *agent_kernels.AGENT_KERNELS)
LARGE = (kernels.play_frames, kernels.step_consoles, agent_kernels.play_agents)  # 20 s each to compile
SMALL = tuple(kernel for kernel in ALL if kernel not in LARGE)
# Functions with several callers, which LLVM does not inline
CALLED = {"_act", "draw_until", "read_bus", "run", "run_frame", "tia_write"}
MAX_REGISTERS = 128  # so 16 warps share the 65,536 of a multiprocessor
MAX_LOCAL, MAX_SPILLED = 640, 1400  # bytes, in large kernels: a thread's stack; its spill loads


def ptx_of(kernel, arch):
    return kernel_images(kernel, arch)[-1].decode()


def test_code_on_the_disk_is_whole(tmp_path, monkeypatch, capfd):
    """What the assembler could not finish is not kept, and a folder that cannot be written costs a message only."""
    assembler = tmp_path / "ptxas"
    assembler.write_text('#!/bin/sh\ncp "$2" "$4"; exit $(cat "$0.status")\n')
    assembler.chmod(0o755)
    monkeypatch.setattr(compilation, "find_ptxas", lambda: str(assembler))
    monkeypatch.setattr(compilation, "_compile", lambda *_: b"code")
    monkeypatch.setattr(compilation, "cache_folder", lambda: tmp_path / "cache")
    for status, images in ((1, [b"code"]), (0, [b"code"] * 2), (1, [b"code"] * 2)):
        (tmp_path / "ptxas.status").write_text(str(status))
        assert kernel_images(SMALL[0], "sm_90") == images
        assert len([*(tmp_path / "cache").iterdir()]) == 1 + len(images)  # and the lock
    monkeypatch.setattr(compilation, "cache_folder", lambda: assembler / "cache")
    assert kernel_images(SMALL[0], "sm_90") == [b"code"]
    assert "cache cannot be written (Not a directory): the next start" in capfd.readouterr().err


def test_each_gpu_gets_code_that_it_runs():
    """GPUs between and after the known architectures get the newest code that they can run; older ones are refused."""
    found = [newest_arch(*capability) for capability in [(7, 0), (7, 5), (8, 9), (9, 0), (12, 0)]]
    assert found == ["sm_70", "sm_70", "sm_80", "sm_90", "sm_100"]
    with pytest.raises(UsageError, match=r"7\.0 or newer; this one has 6\.1"):
        newest_arch(6, 1)


@pytest.mark.parametrize(
    ("kernel", "arch"),
    [(kernel, arch) for kernel in SMALL for arch in PTX_VERSIONS if kernel is SMALL[0] or arch in ("sm_70", "sm_100")],
    ids=lambda each: each if isinstance(each, str) else each.__name__,
)
def test_small_kernels_are_one_function_of_integers(kernel, arch):
    """Small kernels have no calls, no float64 and no local memory."""
    ptx = ptx_of(kernel, arch)
    assert f".target {arch}" in ptx
    assert f".visible .entry {kernel.__name__}(" in ptx
    assert not re.search(r"\bcall\b|\.f64|\.local", ptx)


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm_70", "sm_90"])
@pytest.mark.parametrize("kernel", LARGE, ids=lambda kernel: kernel.__name__)
def test_the_lanes_of_a_warp_meet_at_each_instruction_and_line(kernel, arch):
    """The interpreter has no float64 and calls only the expected functions. Its two votes, at the ends of instructions
    and lines, are neither copied nor removed by optimizations."""
    ptx = ptx_of(kernel, arch)
    called = re.findall(r"^\.func.*?\d(_?[a-z][a-z_]*)B\d*v", ptx, re.MULTILINE)
    assert {*called} <= CALLED
    assert ".f64" not in ptx
    assert len(re.findall(r"vote\.sync\.ballot", ptx)) == 2
    assert "bar.warp.sync" in ptx


@pytest.mark.slow
@pytest.mark.skipif(not find_ptxas(), reason="needs NVIDIA's assembler: pip install nvidia-cuda-nvcc")
@pytest.mark.parametrize("kernel", ALL, ids=lambda kernel: kernel.__name__)
def test_registers_are_enough(kernel, tmp_path):
    """The assembler accepts the code for sm_90, with a bounded number of registers and little or no other memory."""
    ptx_of(kernel, "sm_90")
    command = [find_ptxas(), "-v", "-arch=sm_90", ptx_path(kernel, "sm_90"), "-o", tmp_path / "cubin"]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    registers = int(re.search(r"Used (\d+) registers", said)[1])
    assert 0 < registers <= MAX_REGISTERS, said
    local, spilled = (sum(map(int, re.findall(rf"(\d+) bytes {name}", said))) for name in ("stack", "spill loads"))
    is_large = kernel in LARGE
    assert local <= MAX_LOCAL * is_large and spilled <= MAX_SPILLED * is_large, said
