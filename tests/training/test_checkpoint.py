"""Tests of checkpoints on the disk: damage is noticed wherever it is, and there is a way back."""

import os
import re
import shlex
import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
import yaml

import accel_rl
from accel_rl.errors import RunError, UsageError
from accel_rl.run_folder import checkpoint
from accel_rl.run_folder.checkpoint import CHECKPOINT, PREVIOUS
from tests.helpers.runs import TINY_DQN_RUN, TINY_SERIAL_RUN, assert_same, assert_same_run

RUN: dict[str, Any] = {**TINY_DQN_RUN, "log_interval_steps": 20, "decorrelation_steps": 5}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: Any) -> Path:
    return accel_rl.train(**RUN, steps=120, out=tmp_path_factory.mktemp("finished") / "run")


@pytest.fixture(scope="module")
def small(tmp_path_factory: Any) -> Path:
    """The checkpoint of a run with one environment and a minimal network: about 25 KB, 10 of them for generators."""
    settings = {**TINY_SERIAL_RUN, "algo": "a2c", "envs": 1, "network": "tests.helpers.samplers:Flat"}
    return accel_rl.train(**settings, steps=20, out=tmp_path_factory.mktemp("small") / "run") / CHECKPOINT


def copy_run(run: Path, to: Path) -> Path:
    to.mkdir()
    for path in run.iterdir():
        (to / path.name).write_bytes(path.read_bytes())
    return to


def flip_bit(path: Path, position: int, bit: int = 3) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1 << bit
    path.write_bytes(content)


def records(path: Path) -> Iterator[tuple[str, int, int]]:
    """Yields the name of each record with content, the position of its first byte, and its size."""
    with zipfile.ZipFile(path) as file:
        content = path.read_bytes()
        for record in file.infolist():
            lengths = content[record.header_offset + 26 : record.header_offset + 30]
            name, extra = (int.from_bytes(length, "little") for length in (lengths[:2], lengths[2:]))
            if record.file_size:
                yield record.filename, record.header_offset + 30 + name + extra, record.file_size


def strides(fast: int, slow: int) -> list[Any]:
    return [fast, pytest.param(slow, marks=pytest.mark.slow)]


@pytest.mark.parametrize("stride", strides(1009, 9))  # 9: a bit of each byte, each time a different one
def test_a_flipped_bit_anywhere_is_noticed_or_without_effect(small: Path, tmp_path: Path, stride: int) -> None:
    """A flipped bit anywhere in the file is noticed or changes nothing that is read."""
    file, content, state, num_noticed = tmp_path / CHECKPOINT, small.read_bytes(), checkpoint.load(small), 0
    assert len(content) < 34_000
    file.write_bytes(content)
    with file.open("r+b", buffering=0) as damaged:
        for position in range(0, 8 * len(content), stride):
            byte, bit = divmod(position, 8)
            os.pwrite(damaged.fileno(), bytes([content[byte] ^ 1 << bit]), byte)
            try:
                read = checkpoint.load(file)
            except UsageError:
                num_noticed += 1
            else:
                assert_same(read, state)
            os.pwrite(damaged.fileno(), content[byte : byte + 1], byte)
    assert num_noticed > 0.8 * 8 * len(content) / stride


def test_a_record_that_is_marked_as_a_folder_is_noticed(small: Path, tmp_path: Path) -> None:
    """A record marked as a folder, from which PyTorch would read nothing, is noticed."""
    file = tmp_path / CHECKPOINT
    file.write_bytes(small.read_bytes())
    entry = small.read_bytes().rindex(b"PK\x01\x02", 0, small.read_bytes().rindex(b"archive/data/0"))
    flip_bit(file, entry + 38, 4)
    with pytest.raises(UsageError, match="archive/data/0 does not match its checksum"):
        checkpoint.load(file)


@pytest.mark.parametrize("stride", strides(251, 5))
def test_a_file_that_was_cut_is_noticed(small: Path, tmp_path: Path, stride: int) -> None:
    """A checkpoint cut at any place is reported as damaged."""
    file, content = tmp_path / CHECKPOINT, small.read_bytes()
    for size in range(0, len(content), stride):
        file.write_bytes(content[:size])
        with pytest.raises(UsageError, match=r"checkpoint\.pt is damaged"):
            checkpoint.load(file)


def test_what_is_no_file_is_no_checkpoint(tmp_path: Path) -> None:
    """A folder, pipe or broken link in a checkpoint's place counts as no checkpoint."""
    for make in (Path.mkdir, os.mkfifo, lambda path: path.symlink_to(path)):
        path = tmp_path / f"{make}" / CHECKPOINT
        path.parent.mkdir()
        make(path)
        with pytest.raises(UsageError, match=r"^there is no checkpoint .*checkpoint\.pt$"):
            checkpoint.load(path)


class Foreign:
    """A class that is missing where its pickle is read."""


def test_foreign_files_are_no_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Foreign bytes, and a checkpoint with a missing class, are refused in one line that names the file."""
    path = tmp_path / CHECKPOINT
    checkpoint.save(path, {"algo": Foreign()})
    monkeypatch.delitem(globals(), "Foreign")
    contents = {path.read_bytes(): "needs code that is missing here: .*Foreign.*; continue the run where"}
    contents |= dict.fromkeys((Random(0).randbytes(5000), b"steps: 400\n"), "is damaged or not a checkpoint: ")
    for content, message in contents.items():
        path.write_bytes(content)
        with pytest.raises(UsageError, match=f"^{path} {message}") as caught:
            checkpoint.load(path)
        assert "\n" not in str(caught.value)


def test_checkpoints_of_an_older_format_are_named_as_such(tmp_path: Path) -> None:
    """A checkpoint of another format is refused with its number, and a foreign file as not being a checkpoint."""
    for number in (5, 7):
        torch.save({"format": f"accel_rl checkpoint {number}", "steps": 5}, tmp_path / CHECKPOINT)
        message = f"has format {number}, but this version of accel_rl reads format 6: use the version that wrote it"
        with pytest.raises(UsageError, match=message):
            checkpoint.load(tmp_path / CHECKPOINT)
    torch.save({"model": 1}, tmp_path / CHECKPOINT)
    with pytest.raises(UsageError, match="is not a checkpoint of accel_rl"):
        checkpoint.load(tmp_path / CHECKPOINT)


def test_a_checkpoint_that_lacks_a_part_is_one_line(finished: Path, tmp_path: Path) -> None:
    run = copy_run(finished, tmp_path / "run")
    state = checkpoint.load(run / CHECKPOINT)
    assert state.keys() == {"format", *checkpoint.PARTS}
    checkpoint.save(run / CHECKPOINT, {name: value for name, value in state.items() if name != "spec"})
    message = r"checkpoint\.pt is damaged: it lacks spec; the checkpoint before it, of step 80, is intact"
    with pytest.raises(UsageError, match=message):
        accel_rl.train(resume=run, steps=200)
    checkpoint.save(run / CHECKPOINT, state)
    settings = yaml.safe_load((run / "config.yaml").read_text())
    del settings["horizon"]
    (run / "config.yaml").write_text(yaml.safe_dump(settings))
    with pytest.raises(UsageError, match=r"config\.yaml lacks horizon: start a new run with --config"):
        accel_rl.train(resume=run, steps=200)


# ---- the checkpoint before the last one ----


@pytest.mark.parametrize("name", [CHECKPOINT, "replay-120.pt"])
def test_the_way_out_of_damage_leads_to_the_same_run(finished: Path, tmp_path: Path, name: str) -> None:
    """The command that the error gives restores the previous checkpoint, from which the run continues exactly."""
    whole = copy_run(finished, tmp_path / "whole")
    accel_rl.train(resume=whole, steps=200)
    run = copy_run(finished, tmp_path / "a run")
    _, first, size = max(records(run / name), key=lambda record: record[2])
    flip_bit(run / name, first + size // 2)
    with pytest.raises(UsageError) as caught:
        accel_rl.train(resume=run, steps=200)
    message, _, command = str(caught.value).partition(": to continue from there, ")
    assert message.endswith("; the checkpoint before it, of step 80, is intact")
    assert command == f"cp {shlex.quote(str(run / PREVIOUS))} {shlex.quote(str(run / CHECKPOINT))}"
    subprocess.run(shlex.split(command), check=True)
    accel_rl.train(resume=run, steps=200)
    assert_same_run(run, whole)
    assert sorted(path.name for path in run.glob("replay-*")) == ["replay-160.pt", "replay-200.pt"]


def test_there_is_no_way_out_that_is_damaged_itself(finished: Path, tmp_path: Path) -> None:
    """The error names the previous checkpoint only if it and its replay can be read."""
    for name in (PREVIOUS, "replay-80.pt", "replay-120.pt"):
        run = copy_run(finished, tmp_path / f"without {name}")
        (run / CHECKPOINT).write_bytes(b"")
        flip_bit(run / name, 2000)
        with pytest.raises(UsageError) as caught:
            checkpoint.load(run / CHECKPOINT)
        assert ("is intact" in str(caught.value)) == (name == "replay-120.pt")


def test_what_is_replaced_becomes_the_previous_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replaced checkpoint becomes the previous one, even on disks without hard links."""
    path = tmp_path / CHECKPOINT

    def steps() -> list[int]:
        return [checkpoint.load(tmp_path / name)["steps"] for name in (CHECKPOINT, PREVIOUS)]

    checkpoint.save(path, {"steps": 1}, keep_previous=True)
    assert os.listdir(tmp_path) == [CHECKPOINT]
    checkpoint.save(path, {"steps": 2}, keep_previous=True)
    assert steps() == [2, 1]

    def refuse(*_: Any) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "link", refuse)
    checkpoint.save(path, {"steps": 3}, keep_previous=True)
    assert steps() == [3, 2]
    checkpoint.save(path, {"steps": 4})
    assert steps() == [4, 2]
    monkeypatch.setattr(torch, "save", refuse)
    with pytest.raises(RunError, match=r"could not write the checkpoint .*: Operation not supported; the previous one"):
        checkpoint.save(path, {"steps": 5}, keep_previous=True)
    assert steps() == [4, 2] and sorted(os.listdir(tmp_path)) == [PREVIOUS, CHECKPOINT]


def test_replays_of_two_checkpoints_are_kept(tmp_path: Path) -> None:
    """Only replays that the last two checkpoints need, or that are of learners ahead, are kept."""

    def write(steps: int, names: list[str]) -> list[str]:
        for name in names:
            checkpoint.save(tmp_path / name, {})
        state = {"steps": steps, "learners": [{"replay": name} for name in names]}
        checkpoint.save(tmp_path / CHECKPOINT, state, keep_previous=True)
        checkpoint.remove_older_replays(tmp_path, list(names))
        return sorted(path.name for path in tmp_path.glob("replay-*"))

    assert write(10, ["replay-10.pt", "replay-12-1.pt"]) == ["replay-10.pt", "replay-12-1.pt"]
    checkpoint.save(tmp_path / "replay-15.pt", {})  # superseded before the next checkpoint
    four = ["replay-10.pt", "replay-12-1.pt", "replay-20.pt", "replay-22-1.pt"]
    assert write(20, ["replay-20.pt", "replay-22-1.pt"]) == four
    checkpoint.save(tmp_path / "replay-44-1.pt", {})  # from a learner that is ahead
    assert write(30, ["replay-30.pt", "replay-32-1.pt"]) == [
        *four[2:],
        "replay-30.pt",
        "replay-32-1.pt",
        "replay-44-1.pt",
    ]
    assert write(40, ["replay-40.pt"]) == ["replay-30.pt", "replay-32-1.pt", "replay-40.pt"]


def test_overwriting_a_run_removes_both_checkpoints(finished: Path, tmp_path: Path) -> None:
    run = copy_run(finished, tmp_path / "run")
    accel_rl.train(**{**RUN, "checkpoint_interval_steps": 1000}, steps=100, out=run, overwrite=True)
    assert not (run / PREVIOUS).exists() and not re.search("replay-(80|120)", " ".join(os.listdir(run)))
