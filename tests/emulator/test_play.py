"""Videos made from files of actions, and the debugger."""

import io
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path

import cv2
import numpy as np
import pytest

from accel_rl.emulator import BatchAtari
from accel_rl.emulator.debugger import Debugger, disassemble
from accel_rl.emulator.play import main, read_actions
from accel_rl.errors import UsageError


def test_actions_are_read(tmp_path: Path) -> None:
    """A file's actions are read with their numbers of frames, in order."""
    path = tmp_path / "presses.txt"
    path.write_text("noop 3\nrightfire 2\nup 1\ndownleftfire 1\nnoop 1\n")
    assert read_actions(path) == [0, 0, 0, 11, 11, 2, 17, 0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("noop\nfier 3\n", "unknown action in line 2 of .*: 'fier'; did you mean fire"),
        ("18\n", "unknown action in line 1"),
        ("fire x\n", "line 1 of .*: 'x' is no number of frames"),
        ("fire ²\n", "line 1 of .*: '²' is no number of frames"),
        ("²\n", "unknown action in line 1 of .*: '²'"),
        (None, "cannot read the actions of"),
    ],
)
def test_files_that_are_no_actions(text: str | None, message: str, tmp_path: Path) -> None:
    """A file that is not a list of actions is refused with the line and its error."""
    path = tmp_path / "presses.txt"
    if text:
        path.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=message):
        read_actions(path)


def test_a_video(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A video has one frame for each frame of the game, in the console's colours."""
    presses, out = tmp_path / "presses.txt", tmp_path / "boxing.mp4"
    presses.write_text("right 20\nfire 4\n")
    assert main(["boxing", "--actions", str(presses), "--frames", "30", "--out", str(out)]) == 0
    assert f"{out}: 30 frames, score 0" in capsys.readouterr().out
    video = cv2.VideoCapture(str(out))
    assert video.get(cv2.CAP_PROP_FRAME_COUNT) == 30 and video.get(cv2.CAP_PROP_FPS) == 60
    _, picture = video.read()
    atari = BatchAtari("boxing", 1)
    atari.reset()
    expected = atari.palette()[atari.step([3]).frames[0]].repeat(2, axis=0).repeat(4, axis=1)[:, :, ::-1]
    assert np.abs(picture.astype(int) - expected).mean() < 8  # a video loses some detail


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["boxing", "--out", "game.gif"], 2, "its name must end in .mp4"),
        (["boxing", "--out", "missing/game.mp4"], 1, "cannot be written"),
        (["boxinng", "--trace"], 2, "did you mean boxing"),
    ],
)
def test_errors(
    arguments: list[str], status: int, message: str, capsys: pytest.CaptureFixture[str],
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """A wrong argument is reported with its cause, and no file is written."""
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == status
    assert message in capsys.readouterr().err and not list(tmp_path.iterdir())


def debug(commands: str, actions: Iterator[int] | None = None) -> list[str]:
    """Returns the lines that the debugger prints for commands."""
    atari = BatchAtari("boxing", 1, full_action_space=True)
    out = io.StringIO()
    Debugger(atari, actions or repeat(0), stdin=io.StringIO(commands), stdout=out).cmdloop()
    return out.getvalue().replace("> ", "").splitlines()


@pytest.mark.parametrize(
    ("code", "text"),
    [("85 02", "STA WSYNC"), ("a5 02", "LDA CXP0FB"), ("b1 80", "LDA ($80),Y"), ("d0 fe", "BNE $F000"), ("0a", "ASL"),
     ("ad 84 02", "LDA INTIM"), ("6c fc ff", "JMP ($FFFC)"), ("a9 10", "LDA #$10"), ("95 1b", "STA GRP0,X")],
)  # fmt: skip
def test_disassembly(code: str, text: str) -> None:
    """Instructions are disassembled with their operands, and registers by their names for reading or writing."""
    assert disassemble(bytes.fromhex(code), 0xF000) == text


def test_the_debugger_runs_frames_as_a_step_does(tmp_path: Path) -> None:
    """The debugger runs frames and shows objects, memory and picture of the game."""
    picture = tmp_path / "boxing.png"
    lines = debug(f"frame 3\npress right\nline 40\nuntil F14C\nframe\nobjects\nram\nscreen {picture}\nhelp\nEOF\n")
    assert sum(line.startswith("frame ") for line in lines) == 2
    assert any(line.startswith("player 1") for line in lines) and any("COLUBK=" in line for line in lines)
    memory = [int(byte, 16) for line in lines if line[2:3] == ":" for byte in line[4:].split()]
    assert len(memory) == 128 and memory != [0] * 128
    assert cv2.imread(str(picture)).shape == (210, 320, 3)
