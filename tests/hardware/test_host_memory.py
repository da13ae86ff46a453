"""Free memory of the host and of a control group, read from files of the kernel."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from accel_rl.errors import UsageError
from accel_rl.hardware import host_memory
from accel_rl.hardware.host_memory import check_fits, free_host_bytes, used_share

CPU = torch.device("cpu")
V2, V1 = "sys/fs/cgroup", "sys/fs/cgroup/memory"


def write(folder: Path, **texts: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / name.replace("__", ".")).write_text(text)
    return folder


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """8,000 KiB available, and a process in control groups of both versions, without files."""
    write(tmp_path / "proc", meminfo="MemTotal: 16000 kB\nMemAvailable: 8000 kB\n")
    write(tmp_path / "proc" / "self", cgroup="4:memory:/job/step\n0::/job\n")
    monkeypatch.setattr(host_memory, "ROOT", tmp_path)
    return tmp_path


def test_without_a_limit_the_available_memory_is_free(kernel: Path) -> None:
    """Would catch a limit of "max" taken for a number."""
    assert free_host_bytes() == 8000 * 1024
    write(kernel / V2, memory__max="max\n", memory__current="5\n")
    assert free_host_bytes() == 8000 * 1024


def test_a_control_group_limits_what_is_free(kernel: Path) -> None:
    """Would catch cached files counted as used, and a limit that is ignored, as that of a group within another one."""
    write(kernel / V2, memory__max="9000000\n", memory__current="700000\n")
    write(
        kernel / V2 / "job",
        memory__max="1000000\n",
        memory__current="700000\n",
        memory__stat="anon 1\ninactive_file 50000\n",
    )
    assert free_host_bytes() == 350_000


def test_a_control_group_of_version_1_limits_what_is_free(kernel: Path) -> None:
    """Would catch the other version's file names."""
    write(
        kernel / V1 / "job" / "step",
        memory__limit_in_bytes="1000000\n",
        memory__usage_in_bytes="1200000\n",
        memory__stat="total_inactive_file 1000\n",
    )
    assert free_host_bytes() == 0


def test_unknown_systems_have_no_limit(kernel: Path) -> None:
    """Would catch a system without these files on which nothing fits."""
    (kernel / "proc/meminfo").unlink()
    assert free_host_bytes() == 2**62


def test_the_share_in_use_is_the_larger_one(kernel: Path) -> None:
    """Would catch a share of the wrong total, cached files counted as used, and a control group that is ignored."""
    assert used_share() == 0.5  # 8,000 of 16,000 kB
    group = {"memory__max": "1000000\n", "memory__stat": "anon 1\ninactive_file 50000\n"}
    write(kernel / V2, **group, memory__current="1020000\n")
    assert used_share() == pytest.approx(0.97)
    write(kernel / V2, **group, memory__current="400000\n")
    assert used_share() == 0.5
    write(kernel / V2, **group, memory__current="1200000\n")  # above its limit for a moment
    assert used_share() == 1.0


def test_without_figures_no_memory_is_in_use(kernel: Path) -> None:
    """Would catch an unlimited group that counts, and a division by a total of nothing."""
    write(kernel / V2, memory__max="max\n", memory__current="5\n")
    assert used_share() == 0.5
    (kernel / "proc/meminfo").unlink()
    assert used_share() == 0.0


def test_what_does_not_fit_is_refused_with_a_size_that_fits(kernel: Path) -> None:
    """Would catch a suggestion that is refused in turn, and an error without the value, the rule and the way out."""
    free = 8000 * 1024
    assert check_fits(int(0.95 * free), 1000, "replay_size", CPU) == free
    message = (
        r"replay_size=2000 needs 0.02 GB on cpu, but may use only 0.01 GB of the 0.01 GB that are free: use "
        r"--replay-device cpu, or --replay-size 950 or less"
    )
    with pytest.raises(UsageError, match=message):
        check_fits(2 * free, 2000, "replay_size", CPU, "--replay-device cpu, or ")
    check_fits(950 * free // 1000, 950, "replay_size", CPU)


def test_simulator_processes_can_import_it_without_torch() -> None:
    """Would catch an import that costs each simulator process seconds."""
    code = "import sys, accel_rl.hardware.host_memory; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
