"""ViZDoom's scenarios: pictures, rewards, ends, seeds, and the end of their engines."""

import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from accel_rl.envs import make_env
from accel_rl.envs.gym import GymSimulator
from accel_rl.envs.spec import EnvConfig
from accel_rl.errors import UsageError
from tests.helpers.processes import Command, run
from tests.helpers.runs import rows

DOOM = "accel_rl.envs.threed:doom"


@pytest.fixture
def vizdoom() -> Any:
    return pytest.importorskip("vizdoom", reason="needs the extra threed")


def play(env: Any, seed: int, num_episodes: int) -> list[Any]:
    """Plays random episodes; returns the pictures and outcomes of each step."""
    env.action_space.seed(seed)
    steps = []
    for episode in range(num_episodes):
        observation, _ = env.reset(seed=seed if episode == 0 else None)
        steps.append((observation.tobytes(),))
        over = False
        while not over:
            observation, reward, terminated, truncated, _ = env.step(env.action_space.sample())
            steps.append((observation.tobytes(), reward, terminated, truncated))
            over = terminated or truncated
    return steps


def test_without_vizdoom(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without ViZDoom, the module can be imported, and making an environment names the extra to install."""
    monkeypatch.setitem(sys.modules, "vizdoom", None)
    with pytest.raises(UsageError, match=r'pip install "accel-rl\[threed\]"'):
        make_env(DOOM)


def test_wrong_options(vizdoom: Any) -> None:
    """Wrong options are refused before the engine starts, with the value and the rule."""
    for options, message in [
        ({"scenario": "basick"}, "unknown scenario 'basick'; did you mean basic"),
        ({"scenario": "mine.cfg"}, "mine.cfg: there is no such file"),
        ({"size": "84"}, "size='84' must be height x width"),
        ({"size": 84}, "size=84 must be height x width"),
        ({"size": "481x84"}, "between 1x1 and 480x640"),
        ({"size": "0x84"}, "between 1x1 and 480x640"),
        ({"frame_skip": 0}, "frame_skip=0 must be"),
        ({"frame_skip": 2.5}, "frame_skip=2.5 must be"),
        ({"skip": 4}, "unexpected keyword argument 'skip'"),
    ]:
        with pytest.raises(UsageError, match=message):
            make_env(DOOM, **options)


def test_a_timeout_truncates(vizdoom: Any) -> None:
    """A timeout truncates the episode at its last tic, with a true last picture. The scenario lasts 300 tics that cost
    1 each; 42 steps of 7 tics leave 6 for the last one."""
    simulator = GymSimulator(EnvConfig(DOOM, options={"frame_skip": 7, "size": "60x80"}), np.random.SeedSequence(0))
    try:
        assert simulator.spec.row_shape == (3, 60, 80) and simulator.spec.is_pixels
        assert simulator.spec.action_space.n == 4  # nothing, two ways to move, shoot
        row = np.zeros(simulator.spec.row_shape, np.uint8)
        for _ in range(2):
            simulator.reset(row)
            for _ in range(42):
                assert simulator.step(np.int64(0), row)[:5] == (-7, -7, False, False, False)
            row[:] = 0
            assert simulator.step(np.int64(0), row)[:5] == (-6, -6, False, True, True)
            assert 40 < row.mean() < 160
            assert (row[0] != row[2]).mean() > 0.2  # red is not blue
    finally:
        simulator.close()


def test_an_end_terminates(vizdoom: Any) -> None:
    """An end terminates the episode with its reward, and repeats the last picture."""
    env = make_env(DOOM)
    try:
        env.action_space.seed(0)
        for _ in range(20):  # most random episodes end by a shot that hits
            before, _ = env.reset(seed=1)
            while True:
                after, reward, terminated, truncated, _ = env.step(env.action_space.sample())
                if terminated or truncated:
                    break
                before = after
            if terminated:
                break
        assert terminated and not truncated
        assert reward > 50
        assert np.array_equal(after, before)
    finally:
        env.close()


def test_seeds_and_states(vizdoom: Any) -> None:
    """Episodes follow from the seed alone, and no state is saved, since none would be exact."""
    first, second = make_env(DOOM), make_env(DOOM)
    try:
        steps = play(first, 5, num_episodes=3)
        assert play(second, 5, num_episodes=3) == steps
        assert play(second, 6, num_episodes=1) != steps[: len(steps) // 3]
    finally:
        first.close()
        second.close()
    simulator = GymSimulator(EnvConfig(DOOM), np.random.SeedSequence(0))
    simulator.reset(np.zeros(simulator.spec.row_shape, np.uint8))
    assert simulator.get_state() is None
    simulator.close()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere, an engine notices nothing of its user's end")
@pytest.mark.parametrize("ends", ["kill", pytest.param("close", marks=pytest.mark.slow)])
def test_nothing_is_left(vizdoom: Any, ends: str, tmp_path: Path) -> None:
    """An engine ends with its user, whether closed or killed, ignores Ctrl-C and leaves no files."""
    script = tmp_path / "play.py"
    script.write_text(
        "import sys, time, pathlib\n"
        "from accel_rl.envs import make_env\n"
        f"env = make_env({DOOM!r})\n"
        "env.reset(seed=0)\n"
        "try:\n"
        "    pathlib.Path('ready').touch()\n"
        "    while True: time.sleep(0.01)\n"
        "except KeyboardInterrupt:\n"
        "    env.step(1)\n"
        "    env.close()\n"
    )
    source = str(Path(__file__).parents[2])
    user = Command(script=script, cwd=tmp_path, environment={"PYTHONPATH": source})
    user.wait_for(lambda: (tmp_path / "ready").exists())
    assert len(user.descendants()) == 1  # the engine
    if ends == "close":
        os.killpg(user.process.pid, signal.SIGINT)
    else:
        user.process.kill()
    assert user.finish().status == (0 if ends == "close" else -signal.SIGKILL)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["play.py", "ready"]


@pytest.mark.slow
@pytest.mark.multiprocess
def test_unreal_plays(vizdoom: Any, tmp_path: Path) -> None:
    """UNREAL trains on Doom with two learners, resumes with new episodes, and is evaluated."""
    arguments = ["--algo", "unreal", "--devices", "cpu,cpu", "--envs", 4, "--sampler", "alternating", "--workers", 2]
    arguments += ["--env", DOOM, "--env-options", "{size: 42x42}", "--normalize-returns", "--core-size", 32]
    arguments += ["--auxiliary-replay-steps", 200, "--log-interval-steps", 500, "--eval-interval-steps", 0]
    arguments += ["--share-processors", "--no-tensorboard"]
    trained = run("train", *arguments, "--steps", 1000, "--out", tmp_path / "run", within_s=300)
    assert trained.status == 0, trained.err
    resumed = run("train", "--resume", tmp_path / "run", "--steps", 2000, within_s=300)
    assert resumed.status == 0, resumed.err
    assert "no state to save and start a new episode" in (tmp_path / "run" / "log.txt").read_text()
    last = rows(tmp_path / "run")[-1]
    assert float(last["time/total_timesteps"]) >= 2000
    assert -500 < float(last["rollout/ep_rew_mean"]) <= 101  # from 300 tics with bullets to a monster at once
    assert float(last["train/pixel_control_loss"]) > 0  # the tasks learn
    evaluated = run("eval", tmp_path / "run", "--episodes", 2, within_s=300)
    assert evaluated.status == 0 and '"episodes": 2' in evaluated.out, evaluated.err
