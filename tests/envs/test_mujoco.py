"""MuJoCo's environments: stepped, saved exactly, drawn; and the error where MuJoCo is not installed."""

import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import accel_rl
from accel_rl.envs.gym import GymSimulator
from accel_rl.envs.spec import EnvConfig

pytest.importorskip("mujoco")


def make(name, seed):
    simulator = GymSimulator(EnvConfig(name), np.random.SeedSequence(seed))
    return simulator, np.zeros(simulator.spec.row_shape, simulator.spec.row_dtype)


def trace(simulator, row, steps, seed):
    rng, found = np.random.default_rng(seed), []
    for _ in range(steps):
        action = rng.normal(size=simulator.spec.action_shape).astype(np.float32)
        outcome = simulator.step(action, row)
        found.append((outcome, row.tobytes()))
        if outcome.game_over:
            simulator.reset(row)
            found.append(row.tobytes())
    return found


@pytest.mark.parametrize("name", ["Hopper-v5", "Ant-v5", "Reacher-v5"])
@pytest.mark.parametrize("steps", [0, 1, 70])
def test_state_is_exact(name, steps):
    """Catches what positions and velocities leave out: accelerations that the solver starts from, a body's place as of
    the step before (which Ant's reward uses), a goal, the steps so far."""
    (original, row), (copy, row_copy) = make(name, 1), make(name, 2)
    if steps:
        original.reset(row)
        trace(original, row, steps, seed=0)
    state = pickle.dumps(original.get_state())
    assert len(state) < 100_000
    copy.set_state(pickle.loads(state))
    if not steps:
        original.reset(row)
        copy.reset(row_copy)
    assert trace(original, row, 120, seed=7) == trace(copy, row_copy, 120, seed=7)


@pytest.mark.slow
def test_it_is_recorded(tmp_path: Path) -> None:
    """Catches a video that needs a screen. Skipped where there is no EGL to draw with, either."""
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
    """Catches a traceback from the depths of gymnasium, or its extra in place of ours."""
    source = "import sys; sys.modules['mujoco'] = None; from accel_rl.envs import make_env; make_env('Hopper-v5')"
    failed = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)
    assert 'UsageError: Hopper-v5 needs a package that is not installed; install it with: pip install "accel-rl' in (
        failed.stderr
    )
    assert 'accel-rl[mujoco]"' in failed.stderr
