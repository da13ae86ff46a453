"""Tests of which devices a setting names, which of them can be used, and how memory is pinned."""

import logging
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from accel_rl.errors import UsageError
from accel_rl.hardware import devices
from accel_rl.hardware.devices import device_id, find_device, find_devices, gpu_node, pin, restore_generator, unpin
from accel_rl.hardware.shared_memory import SharedArrays
from tests.fake_cuda import machine


def have_gpus(num: int, monkeypatch: Any) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: num > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: num)
    monkeypatch.setattr(torch.cuda, "get_arch_list", list)


@pytest.mark.parametrize(
    ("name", "device"), [("cuda", "cuda:0"), ("cuda:1", "cuda:1"), ("auto", "cuda:0"), ("cpu", "cpu"), ("cpu:0", "cpu")]
)
def test_devices_have_full_names(name: str, device: str, monkeypatch: Any) -> None:
    """Every device name is resolved to its full form, such as cuda:0."""
    have_gpus(2, monkeypatch)
    assert find_device(name) == device


@pytest.mark.parametrize("name", ["mps", "cuda:x", "cuda:-1", ""])
def test_other_devices_are_refused(name: str, monkeypatch: Any) -> None:
    """Devices other than CPUs and CUDA GPUs are usage errors."""
    have_gpus(2, monkeypatch)
    with pytest.raises(UsageError, match=f"^replay_device='{name}' must be auto, cpu or cuda:<number>$"):
        find_device(name, "replay_device")


@pytest.mark.parametrize(
    ("names", "learners_per_gpu", "expected"),
    [
        ("cpu, cpu", 1, "cpu cpu"),
        ("auto", 1, "cuda:0"),
        ("auto", 2, "cuda:0 cuda:0"),
        ("all", 1, "cuda:0 cuda:1 cuda:2 cuda:3"),
        ("2,0", 1, "cuda:2 cuda:0"),
        ([3, 1], 1, "cuda:3 cuda:1"),
        ("cuda:1-2", 2, "cuda:1 cuda:1 cuda:2 cuda:2"),
        ("cuda:0,cuda:3", 1, "cuda:0 cuda:3"),
    ],
)
def test_lists_of_devices(names: Any, learners_per_gpu: int, expected: str, monkeypatch: Any) -> None:
    """Lists of devices are resolved, and a resolved list resolves to itself."""
    have_gpus(4, monkeypatch)
    devices = find_devices(names, learners_per_gpu)
    assert devices == tuple(expected.split())
    assert find_devices(devices, learners_per_gpu) == devices
    assert find_devices(",".join(devices), learners_per_gpu) == devices


@pytest.mark.parametrize(
    ("num_gpus", "names", "learners_per_gpu", "message"),
    [
        (0, "all", 1, "devices='all', but there is no GPU here; use --devices cpu,cpu for two learners"),
        (4, "2-5", 1, "devices='2-5', but there is no GPU 4-5 here; use some of 0-3"),
        (4, "0,1,0", 1, "names GPU 0 2 times; name it once, and --learners-per-gpu 2 puts 2 on each"),
        (4, "0,1,0", 2, "names GPU 0 2 times; name it once"),
        (4, "cpu,cuda:0", 1, "learners are all on the CPU or all on GPUs, as in cpu,cpu or cuda:0,cuda:1"),
        (4, "cpu,cpu", 3, "devices='cpu,cpu' with learners_per_gpu=3: that is for GPUs; .* --devices cpu,cpu,cpu$"),
        (4, "all", 0, "learners_per_gpu=0 must be at least 1"),
        (4, "", 1, "devices='' must be auto, all, cpu,cpu, or GPUs as in 0-3 or cuda:0,cuda:2"),
        (4, "0,all", 1, "must be auto, all"),
        (4, "3-1", 1, "must be auto, all"),
    ],
)
def test_devices_that_are_not_there(
    num_gpus: int, names: str, learners_per_gpu: int, message: str, monkeypatch: Any
) -> None:
    """Missing devices are one usage error before any learner starts."""
    have_gpus(num_gpus, monkeypatch)
    with pytest.raises(UsageError, match=message):
        find_devices(names, learners_per_gpu)


# ---- GPUs without kernels ----

CU126 = ["sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90"]
CU130 = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120"]


def have_capabilities(built_for: list[str], capabilities: Sequence[tuple[int, int]], monkeypatch: Any) -> None:
    """Fakes GPUs of these compute capabilities, and a PyTorch built for these architectures."""
    have_gpus(len(capabilities), monkeypatch)
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: built_for)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda gpu: capabilities[gpu])
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda gpu: f"Model {capabilities[gpu][0]}")


@pytest.mark.parametrize(
    ("built_for", "capability", "runs"),
    [
        (CU130, (7, 0), False),  # V100
        (CU130, (8, 9), True),  # L40: sm_86 serves it
        (CU130, (10, 3), True),  # B300: sm_100 serves it
        (CU130, (13, 0), True),  # a future GPU, by PTX
        (CU130[:-1], (13, 0), False),
        (["sm_86"], (8, 0), False),
        (["sm_90a"], (9, 0), True),
        (["sm_100a"], (10, 3), False),
        (["sm_100f"], (10, 3), True),
        (["sm_100f"], (12, 0), False),
        (["compute_80"], (9, 0), True),
        (["compute_90a"], (10, 0), False),
        ([], (7, 0), True),  # PyTorch names no architecture
        (["gfx90a"], (9, 0), True),  # an AMD GPU
    ],
)
def test_code_and_capabilities(built_for: list[str], capability: tuple[int, int], runs: bool, monkeypatch: Any) -> None:
    """A GPU is used exactly if the PyTorch build has code that it can run."""
    have_capabilities(built_for, [capability], monkeypatch)
    assert find_device("auto") == ("cuda:0" if runs else "cpu")


def test_auto_passes_over_gpus_without_kernels(monkeypatch: Any, caplog: Any) -> None:
    """The device "auto" skips GPUs without kernels, takes the next one, and warns with the way out."""
    have_capabilities(CU130, [(7, 0), (6, 0), (8, 0)], monkeypatch)
    with caplog.at_level(logging.WARNING, "accel_rl"):
        assert find_device("auto") == "cuda:2"
        assert find_devices("auto", 2) == ("cuda:2", "cuda:2")
    have_capabilities(CU130, [(7, 0)], monkeypatch)
    with caplog.at_level(logging.WARNING, "accel_rl"):
        assert find_device("auto") == "cpu"
    first, _, last = (record.getMessage() for record in caplog.records)
    for device, message in (("cuda:2", first), ("cpu", last)):
        assert message == (
            f"device=auto is {device}: this build of PyTorch ({torch.__version__}) has no kernels for cuda:0, Model 7 "
            f"(sm_70), only for {', '.join(CU130)}; install PyTorch's wheel for CUDA 12.6 (cu126)"
        )


def test_naming_a_gpu_without_kernels_is_refused(monkeypatch: Any) -> None:
    """Naming a GPU without kernels is a usage error with a way out that works."""
    have_capabilities(CU130, [(8, 0), (7, 0)], monkeypatch)
    missing = r"this build of PyTorch \(.*\) has no kernels for cuda:1, Model 7 \(sm_70\), only for sm_75, .*\(cu126\)"
    with pytest.raises(UsageError, match=f"^device='cuda:1': {missing}; or use --device auto$"):
        find_device("cuda:1")
    for names in ("all", "0-1", "cuda:1"):
        with pytest.raises(UsageError, match=f"^devices='{names}': {missing}; or use --devices 0$"):
            find_devices(names)
    assert (find_device("cuda"), find_devices("0")) == ("cuda:0", ("cuda:0",))
    have_capabilities(CU126, [(12, 0)], monkeypatch)
    with pytest.raises(UsageError, match=r"install PyTorch's wheel for a newer CUDA; or learn on the CPU$"):
        find_devices("all")


# ---- where a GPU is ----


def test_a_gpu_is_the_same_whatever_its_number(monkeypatch: Any, tmp_path: Path) -> None:
    """A GPU's identity depends on hardware and machine, not on its number."""
    gpus = {
        "cuda:0": SimpleNamespace(pci_domain_id=0, pci_bus_id=0x1A, pci_device_id=0, uuid="a"),
        "cuda:1": SimpleNamespace(pci_domain_id=0, pci_bus_id=0x1B, pci_device_id=0, uuid="b"),
        "cuda:2": SimpleNamespace(pci_domain_id=0, pci_bus_id=0x1B, pci_device_id=0, uuid="c"),  # a part of cuda:1
        "cuda:3": SimpleNamespace(uuid="d"),  # an older release of PyTorch
        "cuda:4": SimpleNamespace(uuid="e"),
    }
    monkeypatch.setattr(torch.cuda, "get_device_properties", gpus.get)
    ids = {name: device_id(name) for name in ("cpu", *gpus)}
    assert len({each.hardware for each in ids.values()}) == 5 and len({each.memory for each in ids.values()}) == 6
    assert ids["cuda:1"].hardware == ids["cuda:2"].hardware
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: gpus["cuda:1"])
    assert device_id("cuda:0") == ids["cuda:1"] and gpu_node("cpu") is None
    (tmp_path / "boot_id").write_text("another machine\n")
    monkeypatch.setattr(devices, "BOOT_ID", tmp_path / "boot_id")
    assert device_id("cuda:0").hardware == "another machine 0000:1b:00.0"


# ---- pinned memory ----


@pytest.mark.gpu(fake=True)
def test_memory_is_pinned_once_for_all_its_users(monkeypatch: Any) -> None:
    """Memory is pinned once for all users and unpinned by the last one."""
    monkeypatch.setattr(devices, "_pinned", {})
    memory, other = (SharedArrays({"x": ((4,), "float32")}) for _ in range(2))
    assert [pin(memory), pin(memory), pin(other)] == [memory.address, memory.address, other.address]
    unpin(memory.address)
    assert machine().registered == {memory.address, other.address}
    unpin(memory.address)
    assert machine().registered == {other.address} and machine().last_error is None
    assert pin(memory) == memory.address and machine().registered == {memory.address, other.address}


@pytest.mark.gpu(fake=True)
def test_a_refusal_to_pin_is_forgotten(caplog: Any) -> None:
    """A refusal to pin gives one warning and leaves no CUDA error behind."""
    machine().refuses_to_pin = True
    with caplog.at_level(logging.WARNING, "accel_rl"):
        assert pin(SharedArrays({"x": ((4,), "float32")})) is None
    assert machine().last_error is None
    (record,) = caplog.records
    assert record.getMessage() == "the shared memory cannot be pinned (CUDA error 801): transfers are slower"


def test_a_generator_of_another_kind_of_device_is_not_restored(caplog: Any) -> None:
    """A state of the same kind is restored; one of another kind, which has another size, is refused with a warning."""
    generator, other = (torch.Generator().manual_seed(seed) for seed in (1, 2))
    restore_generator(generator, other.get_state(), "draws")
    assert torch.equal(generator.get_state(), other.get_state()) and not caplog.records
    restore_generator(generator, torch.zeros(16, dtype=torch.uint8), "draws")
    assert torch.equal(generator.get_state(), other.get_state())
    assert [record.getMessage() for record in caplog.records] == [
        "draws restart from their seed: the checkpoint was written on another kind of device"
    ]
