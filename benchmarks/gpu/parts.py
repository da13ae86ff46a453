"""The process of one part of a GPU session; benchmarks/gpu_session.py starts it.

checks.py, runs.py, speed.py, kernels.py, emulator.py and peers.py have the parts, rows.py has their rows.
"""

import platform

import numpy
import torch

from accel_rl.envs import EnvConfig
from accel_rl.envs.games.emulator_choice import choose_simulator
from accel_rl.errors import UsageError
from accel_rl.hardware.devices import find_device, num_gpus
from accel_rl.hardware.gpu_driver import find_driver, why_no_gpu
from accel_rl.version import __version__
from gpu import checks, emulator, kernels, peers, runs, speed
from gpu.rows import Rows, run_part


def probe(rows: Rows) -> None:
    """Names the GPUs, or says why none can be used."""
    try:
        if not num_gpus():
            raise UsageError(f"there is no GPU here: {why_no_gpu()}")
        find_device("cuda:0")
    except UsageError as error:
        rows.put({"name": "probe", "no_gpu": str(error)})
        return
    gpu = {"gpu": torch.cuda.get_device_name(0), "num_gpus": num_gpus()}
    versions = {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "accel_rl": __version__,
        "driver": find_driver(),
    }
    versions |= {"python": platform.python_version(), "numpy": numpy.__version__}
    simulator, _ = choose_simulator(EnvConfig("pong"))
    rows.put({"name": "probe", **gpu, **versions, "simulator": simulator})


MODULES = (checks, runs, speed, kernels, emulator, peers)
PARTS = {"probe": probe, **{name: part for module in MODULES for name, part in module.PARTS.items()}}


if __name__ == "__main__":
    run_part(PARTS)
