"""Compares what a run has learned on a GPU with the same run on the CPU."""

from pathlib import Path
from typing import Any

import torch

from accel_rl.doctor.gpu_check import TOLERANCES, distance
from accel_rl.run_folder import checkpoint
from accel_rl.settings.resolve import resolve
from accel_rl.training.build import build_algo


def assert_learned_alike(settings: dict[str, Any], there: Path, here: Path, tolerance: float) -> None:
    """Asserts that two runs with these settings, on GPUs and on the CPU, have made the same updates.

    tolerance: for each parameter on the fake GPU, which has the CPU's kernels. A real GPU's kernels add in other
    orders, and a ReLU that rounding switches changes more, so the change by all updates is compared there, as by
    `accel-rl doctor --gpu`."""
    found, expected = (checkpoint.load(run / "checkpoint.pt")["policy"] for run in (there, here))
    if torch.cuda.get_device_name(0).startswith("fake GPU"):
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, rtol=1e-6, atol=tolerance, msg=f"{name} differs")
        return
    first = dict(build_algo(resolve({"device": "cpu", **settings})).policy.named_parameters())

    def change(policy: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.cat([(policy[name] - value.detach()).double().flatten() for name, value in first.items()])

    assert distance(change(found), change(expected)) < TOLERANCES[1]
    for name in expected.keys() - first.keys():  # statistics
        torch.testing.assert_close(found[name], expected[name], rtol=1e-4, atol=1e-4, msg=f"{name} differs")
