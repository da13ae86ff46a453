"""Measures free and used memory, on the host within its control group or on a GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from accel_rl.errors import UsageError
from accel_rl.hardware.topology import control_groups, read_file

if TYPE_CHECKING:
    import torch

USABLE_SHARE = 0.95  # the rest of the free memory is left for other growth

ROOT = Path("/")  # the folder of /proc and /sys
# In control groups of version 2 and 1: limit, usage, and the field of memory.stat that counts reclaimable files.
FIELDS = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)

# Fields of /proc/meminfo: memory that cannot be reclaimed.
HELD = ("Active(anon)", "Inactive(anon)", "Unevictable", "SUnreclaim", "KernelStack", "PageTables", "Hugetlb")


def check_fits(
    num_bytes: int,
    size: int,
    setting: str,
    device: torch.device,
    way_out: str = "",
    *,
    num_learners: int = 1,
    untouched: bool = False,
) -> int:
    """Returns the free bytes of the device. Raises UsageError if num_bytes do not fit into the usable share of them.

    num_bytes: memory for `size` entries, where size is the value of `setting`. The error names the setting, its largest
    value that fits, and way_out, as in "--replay-device cpu, or ". num_learners: learners that need num_bytes together.
    untouched: compares with a GPU's total memory, for a process that must not use the GPU. (Even asking how much is
    free takes some memory.)"""
    import torch

    if device.type != "cuda":
        free = free_host_bytes()
    elif untouched:
        free = torch.cuda.get_device_properties(device).total_memory
    else:
        free = torch.cuda.mem_get_info(device)[0]
    usable = free * USABLE_SHARE
    if num_bytes > usable:
        place = f"{device} for {num_learners} learners" if num_learners > 1 else f"{device}"
        raise UsageError(
            f"{setting}={size} needs {num_bytes / 1e9:.2f} GB on {place}, but may use only {usable / 1e9:.2f} GB of "
            f"the {free / 1e9:.2f} GB that {'it has' if untouched else 'are free'}: use {way_out}"
            f"--{setting.replace('_', '-')} {int(size * usable / num_bytes)} or less"
        )
    return free


def check_all_fit(
    num_bytes: int, size: int, setting: str, places: Sequence[str], of_others: bool, way_out: str = ""
) -> None:
    """Raises UsageError unless each device has room for num_bytes times its number of occurrences in places.

    of_others: GPUs belong to other processes. way_out: advice for GPUs; see `check_fits`."""
    import torch

    for place, num_learners in Counter(places).items():
        device, is_gpu = torch.device(place), torch.device(place).type != "cpu"
        advice, untouched = way_out if is_gpu else "", of_others and is_gpu
        check_fits(
            num_bytes * num_learners, size, setting, device, advice, num_learners=num_learners, untouched=untouched
        )


def free_host_bytes() -> int:
    """Returns the bytes that the system can still provide, or that the control group still allows, if fewer.

    Memory that a virtual machine holds back until it is needed (a balloon) counts as free."""
    sizes, not_held = _meminfo(), 0
    if {"MemTotal", "Active(anon)", "Inactive(anon)"} <= sizes.keys():
        not_held = sizes["MemTotal"] - sum(sizes.get(name, 0) for name in HELD)
    system, *groups = [free for free, _ in free_and_total()] or [2**62]
    return max(0, min([max(system, not_held), *groups]))


def used_share() -> float:
    """Returns the share of memory in use, from 0 to 1: the larger of the system's and the control group's.

    Cached files that can be reclaimed do not count. Returns 0 on a system without these figures."""
    used = max([1 - free / total for free, total in free_and_total() if total], default=0.0)
    return min(max(0.0, used), 1.0)


def free_and_total() -> list[tuple[int, int]]:
    """Returns (free, total) bytes: of the system first, then of each control group with a limit."""
    found = []
    sizes = _meminfo()
    if "MemAvailable" in sizes:
        found.append((sizes["MemAvailable"], sizes.get("MemTotal", 0)))
    for folder in control_groups("memory", ROOT):
        for limit_name, usage_name, cache_field in FIELDS:
            limit, usage = (read_file(folder / name) for name in (limit_name, usage_name))
            if limit.isdigit() and usage.isdigit():
                # Cached files count as used, but are reclaimed when memory is needed.
                stat = dict(line.split() for line in read_file(folder / "memory.stat").splitlines())
                found.append((int(limit) - int(usage) + int(stat.get(cache_field, 0)), int(limit)))
    return found


def _meminfo() -> dict[str, int]:
    """Returns the bytes in each field of /proc/meminfo."""
    fields = dict(line.split(":", 1) for line in read_file(ROOT / "proc/meminfo").splitlines() if ":" in line)
    return {name: int(text.split()[0]) * 1024 for name, text in fields.items() if text.endswith(" kB")}
