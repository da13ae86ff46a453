"""Videos of games, read back: the number and size of their frames, and that the strip shows the score."""

import resource

import cv2
import gymnasium
import numpy as np
import pytest

from accel_rl.analysis.video import STRIP_HEIGHT, record_video
from accel_rl.envs import make_env
from accel_rl.errors import RunError, UsageError


class Corridor(gymnasium.Env):
    """Three steps to the right; rewards 0, 10, 0. Renders odd sizes. Its info uses Atari's names for something else."""

    observation_space = gymnasium.spaces.Discrete(4)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, size=(35, 71)):
        self.size = size

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.position = 0
        return 0, {}

    def step(self, action):
        self.position += action
        info = {"score": "low", "game_over": False}
        return self.position, 10.0 * (self.position == 2), self.position == 3, False, info

    def render(self):
        picture = np.zeros((*self.size, 3), np.uint8)
        picture[:, :10, 0] = 200  # red
        return picture


def read(path):
    """Returns frames [N, H, W, 3] in BGR, and frames per second."""
    video = cv2.VideoCapture(str(path))
    frames = []
    while (frame := video.read())[0]:
        frames.append(frame[1])
    return np.stack(frames), video.get(cv2.CAP_PROP_FPS)


def random_policy(env):
    env.action_space.seed(0)
    return lambda observation, reward, info: env.action_space.sample()


def score_strips(frames):
    """Returns the left part of the strips [N, ...]: the score without the step."""
    return frames[:, -STRIP_HEIGHT:, : frames.shape[2] // 2].astype(int)


def test_a_frame_per_step_and_the_strip_changes_with_the_score(tmp_path):
    out = tmp_path / "new" / "corridor.mp4"
    record = record_video(Corridor(), lambda observation, reward, info: 1, out)
    assert (record.score, record.length) == (10, 3)
    frames, fps = read(out)
    assert frames.shape == (4, 12 * 35 + STRIP_HEIGHT, 12 * 71, 3)  # 12: the least factor that gives 400 rows
    assert fps == 30
    # Decoded colors are close to the written ones, which are red at the left, in BGR.
    assert np.abs(frames[:, 10:400, 10:100].mean((0, 1, 2)) - [0, 0, 200]).max() < 20
    change = np.abs(np.diff(score_strips(frames), axis=0)).max((1, 2, 3))
    assert change[1] > 100  # from "score 0" to "score 10" at step 2
    assert change[[0, 2]].max() < 60  # compression alone
    assert [path.name for path in out.parent.iterdir()] == ["corridor.mp4"]


def test_a_game_is_cut_at_max_steps(tmp_path):
    env = make_env("pong", render_mode="rgb_array")
    record = record_video(env, random_policy(env), tmp_path / "pong.mp4", max_steps=20)
    assert record.length == 20
    frames, fps = read(tmp_path / "pong.mp4")
    assert frames.shape == (21, 420 + STRIP_HEIGHT, 320, 3)
    assert fps == 15  # 60 frames per second of the console, 4 of them in a step


@pytest.mark.slow
def test_a_game_of_atari_is_recorded_over_all_its_lives(tmp_path):
    env = make_env("breakout", render_mode="rgb_array")
    infos = []
    step = env.step
    env.step = lambda action: infos.append(step(action)) or infos[-1]
    record = record_video(env, random_policy(env), tmp_path / "breakout.mp4", seed=3)
    ends = [terminated for _, _, terminated, _, _ in infos]
    assert sum(ends) == 5  # lives
    assert [info["game_over"] for *_, info in infos] == [False] * (record.length - 1) + [True]
    assert record.score == sum(info["score"] for *_, info in infos) > 0
    frames, _ = read(tmp_path / "breakout.mp4")
    assert len(frames) == record.length + 1
    assert np.abs(score_strips(frames[[0, -1]])).max() > 200  # there is text
    assert np.abs(np.diff(score_strips(frames[[0, -1]]), axis=0)).max() > 100


def test_cartpole_is_recorded(tmp_path):
    env = make_env("CartPole-v1", render_mode="rgb_array")
    pytest.importorskip("pygame")
    record = record_video(env, random_policy(env), tmp_path / "cartpole.mp4")
    frames, fps = read(tmp_path / "cartpole.mp4")
    assert frames.shape == (record.length + 1, 400 + STRIP_HEIGHT, 600, 3)
    assert record.score == record.length
    assert fps == env.metadata["render_fps"] == 50


def test_a_failure_leaves_the_old_video_and_no_incomplete_one(tmp_path):
    out = tmp_path / "game.mp4"
    out.write_text("the old one")
    with pytest.raises(ZeroDivisionError):
        record_video(Corridor(), lambda observation, reward, info: 1 if observation == 0 else 1 // 0, out)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, limits[1]))  # simulates a full disk
    try:
        with pytest.raises(RunError, match="disk"):
            record_video(Corridor(), lambda observation, reward, info: 1, out)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert out.read_text() == "the old one"
    assert list(tmp_path.iterdir()) == [out]


def test_errors_name_what_is_wrong(tmp_path):
    with pytest.raises(UsageError, match=r"\.mp4"):
        record_video(Corridor(), lambda observation, reward, info: 1, tmp_path / "game.gif")
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot write into"):
        record_video(Corridor(), lambda observation, reward, info: 1, tmp_path / "file" / "game.mp4")
    blind = Corridor()
    blind.render = lambda: gymnasium.Env.render(blind)
    with pytest.raises(UsageError, match=r"cannot be recorded: it has no render\(\) method"):
        record_video(blind, lambda observation, reward, info: 1, tmp_path / "game.mp4")
    blind.render = lambda: None
    with pytest.raises(UsageError, match="render_mode='rgb_array'"):
        record_video(blind, lambda observation, reward, info: 1, tmp_path / "game.mp4")

    def needs_package():
        raise gymnasium.error.DependencyNotInstalled("pygame is not installed")

    blind.render = needs_package
    with pytest.raises(UsageError, match="pygame"):
        record_video(blind, lambda observation, reward, info: 1, tmp_path / "game.mp4")
    restless = Corridor()
    restless.render = lambda: np.zeros((30 + restless.position, 40, 3), np.uint8)
    with pytest.raises(RunError, match="shape"):
        record_video(restless, lambda observation, reward, info: 1, tmp_path / "game.mp4")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
