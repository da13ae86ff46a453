"""Records a game as a video: the environment's rendering, enlarged, above a strip with score and step."""

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import gymnasium
import numpy as np
import numpy.typing as npt

from accel_rl.envs.games.atari_env import AtariEnv
from accel_rl.errors import RunError, UsageError
from accel_rl.rollout import Game

Picture = npt.NDArray[np.uint8]

CODECS = ("vp09", "mp4v")  # by preference: browsers play the first one; OpenCV's wheels encode both
MIN_HEIGHT = 400  # pixels, after enlarging
STRIP_HEIGHT = 40  # pixels
DEFAULT_FPS = 30


def record_video(
    env: gymnasium.Env[Any, Any],
    act: Callable[[Any, float, Any], Any],
    out: Path,
    *,
    max_steps: int = 27_000,
    seed: int | None = None,
) -> Game:
    """Plays one whole game, over all its lives but at most max_steps; writes it to out, an MP4 of length + 1 frames.

    env renders RGB arrays [H, W, 3]; `act(observation, reward, info)` returns the action, with the last step's reward.
    seed: the game's; None: any. The environment's metadata give the frames, and so the steps, per second (Atari: real
    time). Only a complete video replaces an existing file. Raises UsageError if out is not an .mp4 or cannot be
    written, or if env does not render RGB arrays; RunError if the video is incomplete."""
    if out.suffix != ".mp4" or out.is_dir():
        raise UsageError(f"cannot write a video to {out}: it must be a file whose name ends in .mp4")
    observation, info = env.reset(seed=seed)
    counts_lives = isinstance(env.unwrapped, AtariEnv)  # other environments may give these keys another meaning
    picture = _render(env)
    unfinished = out.with_name(f".{out.stem}.{os.getpid()}.mp4")
    score, length, over = 0.0, 0, False
    try:
        first = compose(picture, score, length)
        writer = _open_writer(unfinished, env.metadata.get("render_fps") or DEFAULT_FPS, first)
        try:
            writer.write(first)
            reward: Any = 0.0
            while not over and length < max_steps:
                observation, reward, terminated, truncated, info = env.step(act(observation, reward, info))
                score += float(info["score"] if counts_lives else reward)
                length += 1
                writer.write(compose(_render(env, picture.shape), score, length))
                if terminated or truncated:
                    over = not counts_lives or info["game_over"]
                    if not over:  # a life is lost; the game continues
                        observation, info = env.reset()
        finally:
            writer.release()
        video = cv2.VideoCapture(str(unfinished))
        num_frames = int(video.get(cv2.CAP_PROP_FRAME_COUNT))
        video.release()
        if num_frames != length + 1:  # OpenCV does not report failed writes
            raise RunError(f"the video {out} could not be written completely; is the disk full?")
        os.replace(unfinished, out)
    finally:
        if unfinished.is_file():
            unfinished.unlink()
    return Game(0, score, length)


def compose(picture: Picture, score: float, step: int) -> Picture:
    """Returns a frame of the video, BGR [even, even, 3]: the RGB picture enlarged by an integer, above the strip."""
    factor = math.ceil(MIN_HEIGHT / picture.shape[0])
    picture = picture.repeat(factor, 0).repeat(factor, 1)
    height, width = picture.shape[:2]
    frame = np.zeros((height + height % 2 + STRIP_HEIGHT, width + width % 2, 3), np.uint8)
    frame[:height, :width] = picture[:, :, ::-1]
    strip = frame[-STRIP_HEIGHT:]
    strip[:] = (36, 30, 28)
    _write_text(strip, f"score {score:,.10g}", x=12, color=(255, 255, 255))
    _write_text(strip, f"step {step:,}", x=-12, color=(170, 165, 160))
    return frame


def _write_text(strip: Picture, text: str, x: int, color: tuple[int, int, int]) -> None:
    """Writes text onto the strip. x: distance from the left edge; if negative, from the right edge."""
    font, scale = cv2.FONT_HERSHEY_DUPLEX, 0.55
    (width, height), _ = cv2.getTextSize(text, font, scale, 1)
    origin = (x if x >= 0 else strip.shape[1] + x - width, (STRIP_HEIGHT + height) // 2)
    cv2.putText(strip, text, origin, font, scale, color, 1, cv2.LINE_AA)


def _render(env: gymnasium.Env[Any, Any], shape: tuple[int, ...] | None = None) -> Picture:
    """Renders a picture. Raises UsageError if env renders none, RunError if it does not have the given shape."""
    try:
        picture: Any = env.render()
    except gymnasium.error.DependencyNotInstalled as error:
        raise UsageError(f"{env} cannot render: {error}") from error
    except NotImplementedError:
        raise UsageError(f"{env} cannot be recorded: it has no render() method") from None
    is_rgb = isinstance(picture, np.ndarray) and picture.ndim == 3 and picture.shape[2] == 3
    if not is_rgb or picture.dtype != np.uint8:
        raise UsageError(
            f"{env} does not render RGB arrays [H, W, 3] of uint8; make it with render_mode='rgb_array', which a "
            "factory with an argument render_mode receives"
        )
    if shape and picture.shape != shape:
        raise RunError(f"{env} rendered an array of shape {picture.shape} after one of shape {shape}")
    return np.asarray(picture)


def _open_writer(path: Path, fps: float, frame: Picture) -> cv2.VideoWriter:
    """Opens an empty video for frames of the same size. Raises UsageError if the file cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    except OSError as error:
        raise UsageError(f"cannot write into {path.parent}: {error.strerror}") from error
    height, width = frame.shape[:2]
    for codec in CODECS:
        writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*codec), fps, (width, height))
        if writer.isOpened():
            return writer
    raise UsageError(f"cannot write a video to {path.parent}: OpenCV can open none with the codecs {', '.join(CODECS)}")
