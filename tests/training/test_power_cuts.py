"""Tests of power cuts: whatever the disk has kept, there is a run to continue."""

import itertools
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import accel_rl
from accel_rl.run_folder import checkpoint
from accel_rl.run_folder.checkpoint import CHECKPOINT
from accel_rl.run_folder.directory import reopen
from tests.helpers.runs import TINY_DQN_RUN

Names = dict[str, int]  # names in the folder with their inodes
Files = dict[str, bytes]


class Disk:
    """Records the disk calls for one folder, and tells what a power cut may leave there.

    A file keeps the content of its last sync, or nothing before the first one. Of the names that were made, replaced
    or removed since the folder was synced, any subset of the changes may remain."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch):
        self.folder = folder
        self._synced: Names = {}
        self._changes: list[tuple[str, int | None]] = []  # a name and its new inode, or None
        self._contents: dict[int, bytes] = {}
        self._held: list[int] = []
        self.moments: list[list[Files]] = []  # possible remains of a power cut after each call
        for name in ("fsync", "replace", "link", "unlink"):
            monkeypatch.setattr(os, name, self._recorded(getattr(os, name), getattr(self, f"_{name}")))

    def close(self) -> None:
        for descriptor in self._held:
            os.close(descriptor)

    def _recorded(self, call: Callable[..., Any], record: Callable[..., None]) -> Callable[..., Any]:
        def recorded(*arguments: Any) -> None:
            record(*arguments)
            call(*arguments)
            self.moments.append([*self._possible()])

        return recorded

    def _fsync(self, descriptor: int) -> None:
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode):
            self._held.append(os.dup(descriptor))  # otherwise another file could reuse the inode number
            self._contents[status.st_ino] = Path(f"/proc/self/fd/{descriptor}").read_bytes()
        elif os.path.samestat(status, self.folder.stat()):
            self._synced = self._names(self._changes)
            self._changes = []

    def _replace(self, source: Path, name: Path) -> None:
        self._change(name, source.stat().st_ino)
        self._change(source, None)

    def _link(self, source: Path, name: Path) -> None:
        self._change(name, source.stat().st_ino)

    def _unlink(self, name: Path) -> None:
        self._change(name, None)

    def _change(self, name: Path, inode: int | None) -> None:
        if name.parent == self.folder and name.suffix != ".tmp":
            self._changes.append((name.name, inode))

    def _names(self, changes: Any) -> Names:
        names = {**self._synced, **dict(changes)}
        return {name: inode for name, inode in names.items() if inode is not None}

    def _possible(self) -> Iterator[Files]:
        for number in range(len(self._changes) + 1):
            for changes in itertools.combinations(self._changes, number):
                yield {name: self._contents.get(inode, b"") for name, inode in self._names(changes).items()}


def test_a_power_cut_at_any_write_leaves_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut at any write leaves the newest synced checkpoint with its replay and settings."""
    out = tmp_path / "run"
    out.mkdir()
    with monkeypatch.context() as patch:
        disk = Disk(out, patch)
        accel_rl.train(**TINY_DQN_RUN, steps=80, out=out)
    disk.close()
    found, read = [], dict[frozenset[Any], int]()
    for moment in disk.moments:
        steps = []
        for files in moment:
            key = frozenset((name, id(content)) for name, content in files.items())
            if key not in read:
                read[key] = _steps(files, tmp_path / f"cut-{len(read)}")
            steps.append(read[key])
        found.append(steps)
    written = [max(steps) if len({*steps}) == 1 else 0 for steps in found]
    for steps, least in zip(found, itertools.accumulate(written, max), strict=True):
        assert min(steps) >= least
    assert found[-1] == [80] * len(found[-1]) and {0, 40, 80} == {step for steps in found for step in steps}


def _steps(files: Files, folder: Path) -> int:
    """Returns the steps from which a run with these files continues; 0 if it has no checkpoint yet."""
    if CHECKPOINT not in files:
        return 0
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    _, state = reopen(folder, {"steps": 200}, None, None)
    for name in checkpoint.replay_names(state):
        checkpoint.load(folder / name, parts=("ring",))
    return int(state["steps"])
