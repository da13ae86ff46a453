"""MuJoCo's environments: stepped, saved exactly and drawn; and the error when MuJoCo is not installed."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

import accel_rl
from tests.envs.gym_simulators import assert_state_is_exact

pytestmark = pytest.mark.skipif(not importlib.util.find_spec("mujoco"), reason="MuJoCo is not installed")


@pytest.mark.parametrize("name", ["Hopper-v5", "Ant-v5", "Reacher-v5"])
@pytest.mark.parametrize("steps", [0, 1, 70])
def test_state_is_exact(name, steps):
    """A state restores the game exactly, beyond positions and velocities: solver accelerations, last positions, goal
    and steps."""
    assert assert_state_is_exact(name, steps) < 100_000


@pytest.mark.slow
def test_it_is_recorded(tmp_path: Path) -> None:
    """An episode is recorded without a display; skipped if there is no EGL to draw with."""
    source = "import gymnasium; e = gymnasium.make('Hopper-v5', render_mode='rgb_array'); e.reset(); e.render()"
    drawn = subprocess.run([sys.executable, "-c", f"import os; os.environ['MUJOCO_GL'] = 'egl'; {source}"])
    if drawn.returncode:
        pytest.skip("no EGL")
    settings = {"envs": 2, "workers": 2, "horizon": 5, "eval_interval_steps": 0, "tensorboard": False}
    run = accel_rl.train("a2c", "Hopper-v5", steps=20, out=tmp_path / "run", **settings)
    command = [sys.executable, "-m", "accel_rl", "record", str(run), "--out", str(tmp_path / "hopper.mp4")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and "hopper.mp4: score" in done.stdout, done.stderr
    assert (tmp_path / "hopper.mp4").stat().st_size > 1000


def test_without_mujoco() -> None:
    """Without MuJoCo, the error names this project's extra to install."""
    source = "import sys; sys.modules['mujoco'] = None; from accel_rl.envs import make_env; make_env('Hopper-v5')"
    failed = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)
    assert 'UsageError: Hopper-v5 needs a package that is not installed; install it with: pip install "accel-rl' in (
        failed.stderr
    )
    assert 'accel-rl[mujoco]"' in failed.stderr
