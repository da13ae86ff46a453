"""Plays a game from a file of actions, as a video or step by step.

python -m accel_rl.emulator.play GAME [--actions FILE] [--frames N] [--mode M] [--difficulty D] --out video.mp4
python -m accel_rl.emulator.play GAME [--actions FILE] --trace

Each line of FILE has an action, by its name or ale-py's number, and a number of frames (default: 1): `rightfire 20`.
After the last line nothing is pressed. The video has 60 frames a second and stops when the game ends.

--trace reads commands from the terminal or a pipe: `help` lists them. It shows the next instruction, runs single
instructions, lines or frames, and prints the processor, the TIA's objects, RAM and ports.
"""

import argparse
import inspect
import os
import sys
from collections.abc import Iterator, Sequence
from itertools import chain, repeat
from pathlib import Path

import numpy as np

from accel_rl.emulator.batch import BatchAtari
from accel_rl.emulator.debugger import Debugger
from accel_rl.emulator.rules import ACTIONS
from accel_rl.errors import RunError, UsageError, unknown

FPS = 60
ENLARGED = 4, 2  # video pixels per TIA pixel, which is twice as wide as high
DEFAULT_FRAMES = 3600  # a minute


def read_actions(path: Path) -> list[int]:
    """Returns the action of each frame, as ale-py's numbers, from a file as described above.

    Raises UsageError for a wrong line, or a file that cannot be read."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the actions of {path}: {error}") from None
    actions: list[int] = []
    for number, line in enumerate(lines, start=1):
        name, _, frames = line.partition("#")[0].strip().lower().partition(" ")
        if not name:
            continue
        if name not in ACTIONS and not (name.isdecimal() and int(name) < len(ACTIONS)):
            raise unknown(f"action in line {number} of {path}:", name, ACTIONS)
        if frames and not frames.strip().isdecimal():
            raise UsageError(f"line {number} of {path}: {frames.strip()!r} is no number of frames")
        action = int(name) if name.isdecimal() else ACTIONS.index(name)
        actions += [action] * int(frames or 1)
    return actions


def write_video(atari: BatchAtari, actions: Iterator[int], num_frames: int, out: Path) -> tuple[int, int]:
    """Plays environment 0 until its game ends, for at most num_frames; returns its score and the number of frames.

    Raises UsageError if out is not an .mp4, RunError if it cannot be written."""
    import cv2

    if out.suffix != ".mp4":
        raise UsageError(f"cannot write a video to {out}: its name must end in .mp4")
    width, height = ENLARGED
    size = (160 * width, atari.arrays.frames.shape[1] * height)
    unfinished = out.with_name(f".{out.stem}.{os.getpid()}.mp4")
    writer = cv2.VideoWriter(str(unfinished), cv2.VideoWriter.fourcc(*"mp4v"), FPS, size)
    if not writer.isOpened():
        raise RunError(f"the video {out} cannot be written")
    score = frames = 0
    try:
        while frames < num_frames and not atari.arrays.ends.any():
            arrays = atari.step([next(actions)])
            score += int(arrays.rewards[0])
            frames += 1
            picture = atari.palette()[arrays.frames[0]]
            writer.write(np.ascontiguousarray(picture.repeat(height, axis=0).repeat(width, axis=1)[:, :, ::-1]))
        writer.release()
        os.replace(unfinished, out)
    finally:
        writer.release()
        unfinished.unlink(missing_ok=True)
    return score, frames


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m accel_rl.emulator.play",
        description=inspect.cleandoc(__doc__ or ""),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("game", metavar="GAME", help="a name as in ale-py, or the path of a ROM")
    parser.add_argument("--actions", type=Path, metavar="FILE", help="file of actions (none)")
    parser.add_argument("--frames", type=int, default=DEFAULT_FRAMES, metavar="N", help="frames at most (3600)")
    parser.add_argument("--mode", type=int, metavar="M", help="ale-py's number (the game's own)")
    parser.add_argument("--difficulty", type=int, metavar="D", help="ale-py's number (0)")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--out", type=Path, metavar="FILE.mp4", help="write a video")
    what.add_argument("--trace", action="store_true", help="go through the program step by step")
    options = parser.parse_args(arguments)
    try:
        recorded = read_actions(options.actions) if options.actions else []
        atari = BatchAtari(options.game, 1, mode=options.mode, difficulty=options.difficulty, full_action_space=True)
        atari.reset()
        actions = chain(recorded, repeat(0))
        if options.trace:
            Debugger(atari, actions).cmdloop()
        else:
            score, frames = write_video(atari, actions, options.frames, options.out)
            print(f"{options.out}: {frames} frames, score {score}")
    except (UsageError, RunError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
