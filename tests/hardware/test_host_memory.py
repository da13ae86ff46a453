"""Tests of free memory of the host and of a control group, read from the kernel's files."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

from accel_rl.errors import UsageError
from accel_rl.hardware import host_memory
from accel_rl.hardware.host_memory import check_fits, free_host_bytes, used_share
from tests.helpers.machines import write

V2, V1 = "sys/fs/cgroup", "sys/fs/cgroup/memory"
Write = Callable[[dict[str, str]], Path]


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Fakes 8,000 KiB available, and control groups of both versions without files; returns a writer of such files."""
    write(tmp_path, {"proc/meminfo": "MemTotal: 16000 kB\nMemAvailable: 8000 kB"})
    write(tmp_path, {"proc/self/cgroup": "4:memory:/job/step\n0::/job"})
    monkeypatch.setattr(host_memory, "ROOT", tmp_path)
    return partial(write, tmp_path)


def test_without_a_limit_the_available_memory_is_free(kernel: Write) -> None:
    """Without a limit the available memory is free, and without the kernel's files everything fits."""
    assert free_host_bytes() == 8000 * 1024
    root = kernel({f"{V2}/memory.max": "max", f"{V2}/memory.current": "5"})
    assert free_host_bytes() == 8000 * 1024 and used_share() == 0.5
    (root / "proc/meminfo").unlink()
    assert free_host_bytes() == 2**62 and used_share() == 0.0


def test_memory_that_nothing_uses_is_free_before_it_is_available(kernel: Write) -> None:
    """Memory that neither programs nor the kernel hold is free, as a virtual machine may provide it only on demand."""
    held = "Active(anon): 2000 kB\nInactive(anon): 1000 kB\nSUnreclaim: 500 kB\nHugetlb: 500 kB\n"
    kernel({"proc/meminfo": f"MemTotal: 16000 kB\nMemAvailable: 300 kB\n{held}Cached: 900 kB"})
    assert free_host_bytes() == 12_000 * 1024
    kernel({"proc/meminfo": f"MemTotal: 16000 kB\nMemAvailable: 300 kB\n{held}Unevictable: 11900 kB"})
    assert free_host_bytes() == 300 * 1024


def test_a_control_group_limits_what_is_free(kernel: Write) -> None:
    """The tightest limit of nested control groups holds, and inactive cached files count as free."""
    kernel({f"{V2}/memory.max": "9000000", f"{V2}/memory.current": "700000"})
    kernel({f"{V2}/job/memory.max": "1000000", f"{V2}/job/memory.current": "700000"})
    kernel({f"{V2}/job/memory.stat": "anon 1\ninactive_file 50000"})
    assert free_host_bytes() == 350_000


def test_a_control_group_of_version_1_limits_what_is_free(kernel: Write) -> None:
    group = f"{V1}/job/step"
    kernel({f"{group}/memory.limit_in_bytes": "1000000", f"{group}/memory.usage_in_bytes": "1200000"})
    kernel({f"{group}/memory.stat": "total_inactive_file 1000"})
    assert free_host_bytes() == 0


def test_the_share_in_use_is_the_larger_one(kernel: Write) -> None:
    """The share in use is the larger one of machine and control group, without inactive cached files."""
    assert used_share() == 0.5  # 8,000 of 16,000 kB
    kernel({f"{V2}/memory.max": "1000000", f"{V2}/memory.stat": "anon 1\ninactive_file 50000"})
    for current, share in (("1020000", 0.97), ("400000", 0.5), ("1200000", 1.0)):  # the last is too much, for a moment
        kernel({f"{V2}/memory.current": current})
        assert used_share() == pytest.approx(share)


def test_what_does_not_fit_is_refused_with_a_size_that_fits(kernel: Write) -> None:
    free, cpu = 8000 * 1024, torch.device("cpu")
    assert check_fits(int(0.95 * free), 1000, "replay_size", cpu) == free
    message = (
        r"replay_size=2000 needs 0.02 GB on cpu, but may use only 0.01 GB of the 0.01 GB that are free: use "
        r"--replay-device cpu, or --replay-size 950 or less"
    )
    with pytest.raises(UsageError, match=message):
        check_fits(2 * free, 2000, "replay_size", cpu, "--replay-device cpu, or ")
    check_fits(950 * free // 1000, 950, "replay_size", cpu)
