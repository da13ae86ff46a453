"""Writes checkpoints atomically, and verifies them when it reads them. Keeps the last two.

A checkpoint is a zip file written by PyTorch. Each of its records (the pickle, and every tensor) has a CRC-32, which
`torch.load` ignores. `load` reads the file once more to check them. This takes 0.24 s per GiB from the page cache;
writing takes 3.5 s, and copying a mapped replay into its arrays 3.6 s (1 GiB of frames, AMD EPYC).
"""

import re
import shlex
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

import torch

from accel_rl.errors import UsageError, first_line
from accel_rl.run_folder.atomic import write_file
from accel_rl.run_folder.trust import check_owner

FORMAT_NAME, FORMAT_VERSION = "accel_rl checkpoint", 6
FORMAT = f"{FORMAT_NAME} {FORMAT_VERSION}"
# The entries of a run's checkpoint; replay files have others.
PARTS = ("steps", "spec", "policy", "evaluation_due", "best_score", "update", "shared_buffers", "progress", "learners")
# Files in a run's folder.
CHECKPOINT, PREVIOUS = "checkpoint.pt", "checkpoint.previous.pt"
REPLAY = re.compile(r"replay-(\d+)(?:-(\d+))?\.pt(?:\.tmp)?")  # steps, and rank if it is not 0


def save(path: Path, state: dict[str, Any], keep_previous: bool = False) -> None:
    """Replaces the file at path atomically. keep_previous: the old file becomes PREVIOUS in the same folder.

    Raises RunError if writing fails; both files are then unchanged."""
    previous = path.with_name(PREVIOUS) if keep_previous else None
    write_file(path, lambda file: _write({"format": FORMAT, **state}, file), "checkpoint", previous)


def _write(state: dict[str, Any], file: BinaryIO) -> None:
    try:
        torch.save(state, file)
    except RuntimeError as error:
        # When PyTorch cannot write a tensor, it closes its archive, which also fails and hides the reason.
        if isinstance(error.__context__, OSError):
            raise error.__context__ from None
        raise


class DamagedError(UsageError):
    """Raised for a file that has changed since it was written, or never was a checkpoint."""


def load(path: Path, mapped: bool = False, trust: bool = False, parts: Iterable[str] = ()) -> dict[str, Any]:
    """Returns the state that `save` has written, on the CPU. mapped: tensors are read from the file when used.

    Unpickles the file, which can run code: load only checkpoints that you trust. Raises UsageError if there is no such
    file, if it belongs to another user (unless trust is set), or if it is damaged, foreign, of another version, or
    without one of these parts. The message names the way out."""
    try:
        state = _load(path, mapped, trust)
        if missing := [part for part in parts if part not in state]:
            raise DamagedError(f"{path} is damaged: it lacks {', '.join(missing)}")
        return state
    except DamagedError as error:
        raise DamagedError(f"{error}{_way_out(path, trust)}") from None


def _load(path: Path, mapped: bool, trust: bool) -> dict[str, Any]:
    try:
        if not path.is_file():
            raise UsageError(f"there is no checkpoint {path}")
        check_owner(path, trust)
        if record := _damaged_record(path):
            raise DamagedError(f"{path} is damaged: {record} does not match its checksum")
        state = torch.load(path, map_location="cpu", weights_only=False, mmap=mapped)
    except UsageError:
        raise
    except (ImportError, AttributeError) as error:  # it is not damaged: its checksums are right
        way_out = "continue the run where that can be imported, with the version of accel_rl that wrote it"
        raise UsageError(f"{path} needs code that is missing here: {error}; {way_out}") from None
    except Exception as error:  # foreign bytes can make the unpickler raise anything
        raise DamagedError(f"{path} is damaged or not a checkpoint: {first_line(error)}") from None
    version = str(state.get("format")) if isinstance(state, dict) else ""
    if not version.startswith(FORMAT_NAME):
        raise UsageError(f"{path} is not a checkpoint of accel_rl")
    if version != FORMAT:
        raise UsageError(
            f"{path} has format {version.removeprefix(FORMAT_NAME).strip()}, but this version of accel_rl reads format "
            f"{FORMAT_VERSION}: use the version that wrote it, or start a new run"
        )
    return dict(state)


def _damaged_record(path: Path) -> str | None:
    """Returns the name of a record that does not match its checksum; None if all do. Reads the whole file.

    Raises zipfile.BadZipFile, or other errors, for a file that is not a complete zip file."""
    with zipfile.ZipFile(path) as records:
        folders = [record.filename for record in records.infolist() if record.external_attr]
        return folders[0] if folders else records.testzip()  # PyTorch does not read an entry marked as a folder


def _way_out(path: Path, trust: bool) -> str:
    """Returns the end of a message: how to continue without the damaged file; an empty text if that is impossible."""
    previous = path.with_name(PREVIOUS)
    try:
        state = _load(previous, True, trust)
        for name in replay_names(state):
            _load(path.with_name(name), True, trust)
    except UsageError:
        return ""
    copy = f"cp {shlex.quote(str(previous))} {shlex.quote(str(path.with_name(CHECKPOINT)))}"
    return f"; the checkpoint before it, of step {state['steps']}, is intact: to continue from there, {copy}"


# ---- replays: a file for each learner, next to the checkpoint ----


def replay_name(steps: int, rank: int) -> str:
    """Returns the file name of a learner's replay."""
    return f"replay-{steps}{f'-{rank}' if rank else ''}.pt"


def replay_names(state: dict[str, Any]) -> list[str]:
    """Returns the names of the replays that a checkpoint needs."""
    return [learner["replay"] for learner in state.get("learners", ()) if learner["replay"]]


def replays_of_previous(folder: Path, trust: bool = False) -> list[str]:
    """Returns the names of the replays that the checkpoint before the last one needs."""
    try:
        return replay_names(_load(folder / PREVIOUS, True, trust))
    except UsageError:  # it is missing or damaged
        return []


def remove_older_replays(folder: Path, named: list[str | None], trust: bool = False) -> None:
    """Removes the replays that neither the last checkpoint nor the one before it (PREVIOUS) needs.

    named: the last one's. Newer ones stay, since learners may have written them for the next checkpoint."""
    newest = dict(_rank_and_steps(name) for name in named if name)
    replays = replay_files(folder)
    kept = replays_of_previous(folder, trust) if replays else []
    for path in replays:
        rank, steps = _rank_and_steps(path.name)
        if steps < newest.get(rank, steps + 1) and path.name not in kept:
            path.unlink(missing_ok=True)


def replay_files(folder: Path) -> list[Path]:
    """Returns the replays that runs have written to a folder, unfinished ones too, but none of the user's files."""
    return [path for path in folder.glob("replay-*") if REPLAY.fullmatch(path.name)]


def _rank_and_steps(replay: str) -> tuple[int, int]:
    match = REPLAY.fullmatch(replay)
    assert match
    return int(match[2] or 0), int(match[1])
