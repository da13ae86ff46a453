"""Checkpoints: written whole or not at all, and recognised when read."""

import contextlib
import os
from pathlib import Path
from typing import Any

import torch

from accel_rl.errors import RunError, UsageError

FORMAT = "accel_rl checkpoint 3"
CHECKPOINT, BEST, REPLAYS = "checkpoint.pt", "best.pt", "replay-*.pt*"  # in a run's folder


def save(path: Path, state: dict[str, Any]) -> None:
    """Replaces the file at path in one go. Raises RunError if the disk refuses; the previous file then survives."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        with open(temporary, "wb") as file:
            torch.save({"format": FORMAT, **state}, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        survivor = "; the previous one is intact" if path.exists() else ""
        raise RunError(f"could not write the checkpoint {path}: {error.strerror}{survivor}") from error


def load(path: Path, mapped: bool = False) -> dict[str, Any]:
    """What `save` was given, on the CPU. mapped: tensors are read from the file when they are looked at.

    Unpickles the file, which can run code: load only checkpoints that you trust. Raises UsageError if there is none,
    or the file is damaged or not one of ours."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=False, mmap=mapped)
    except FileNotFoundError:
        raise UsageError(f"there is no checkpoint {path}") from None
    except Exception as error:  # foreign bytes can make the unpickler raise anything
        reason = str(error).splitlines() or [type(error).__name__]
        raise UsageError(f"{path} is damaged or no checkpoint: {reason[0]}") from None
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise UsageError(f"{path} is not a checkpoint of this version of accel_rl")
    return state


def replay_name(steps: int, rank: int) -> str:
    """Of the file beside the checkpoint that has a learner's replay."""
    return f"replay-{steps}{f'-{rank}' if rank else ''}.pt"


def remove_older_replays(folder: Path, named: list[str | None]) -> None:
    """Those that no checkpoint will name any more, now that it names these: a learner may have written several since
    the last one."""
    newest = dict(_rank_and_steps(name) for name in named if name)
    for path in folder.glob("replay-*.pt"):
        rank, steps = _rank_and_steps(path.name)
        if steps < newest.get(rank, steps + 1):
            path.unlink()


def _rank_and_steps(replay: str) -> tuple[int, int]:
    _, steps, *rank = replay.removesuffix(".pt").split("-")
    return int(rank[0]) if rank else 0, int(steps)
