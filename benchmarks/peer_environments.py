"""Python environments of the other frameworks that benchmarks/training_throughput.py needs, one for each peer."""

import shutil
import subprocess
import venv
from pathlib import Path

import torch

from accel_rl.errors import RunError

# Packages of each peer's environment, in addition to this environment's version of torch. All contestants use ale-py.
PEERS = {
    "stable-baselines3": (
        *("stable-baselines3==2.9.2", "gymnasium[mujoco]==1.4.0", "numpy==2.4.6", "opencv-python-headless"),
        *("box2d==2.3.10", "minigrid==3.1.0", "mujoco==4.0.0", "pygame-ce"),
    ),
    "sample-factory": ("sample-factory==2.1.1", "gymnasium==0.29.1", "numpy==1.26.4", "opencv-python==4.11.0.86"),
}
ALE = "ale-py==0.12.1"


def python_of(peers: Path, peer: str) -> Path:
    """Returns the interpreter of a peer's environment."""
    return peers.absolute() / peer / "bin" / "python"


def install_peers(peers: Path) -> None:
    """Creates the environments that do not exist yet. Raises RunError if pip fails."""
    for peer, requirements in PEERS.items():
        python = python_of(peers, peer)
        if python.exists():
            print(f"{python.parent.parent} already exists")
            continue
        print(f"installing {peer} into {python.parent.parent}")
        same_torch = f"torch=={torch.__version__.split('+')[0]}"
        try:
            venv.create(python.parent.parent, with_pip=True)
            subprocess.run([python, "-m", "pip", "install", "--quiet", same_torch, ALE, *requirements], check=True)
        except BaseException as error:
            shutil.rmtree(python.parent.parent, ignore_errors=True)
            if isinstance(error, subprocess.CalledProcessError):
                raise RunError(f"{peer} could not be installed; see pip's message above") from None
            raise
