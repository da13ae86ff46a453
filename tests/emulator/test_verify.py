"""The comparison with ale-py, and its results for some games."""

import importlib.metadata
from pathlib import Path

import numpy as np
import pytest

from accel_rl.emulator import exactness
from accel_rl.emulator import verify as program
from accel_rl.emulator.exactness import TABLE as EXACTNESS
from accel_rl.emulator.exactness import Row, read_table, source_hash
from accel_rl.emulator.rules import known_games
from accel_rl.emulator.verify import Pair, Plan, verify, write_table


# The games cover paddles, swapped ports, frames that stop halfway and a cartridge with its own memory.
@pytest.mark.parametrize("game", ["breakout", "wizard_of_wor", "qbert", "pitfall2"])
def test_games_are_equal(game: str) -> None:
    """Games equal ale-py's in RAM, rewards, lives, ends and pixels, from the start and from snapshots."""
    row = verify(game, Plan(frames=80, seeds=1, mode_frames=0))
    assert row.difference == ""
    assert row.from_start == 80 and row.from_snapshots == (0 if game == "qbert" else 80)


@pytest.mark.slow
@pytest.mark.parametrize("game", known_games())
def test_all_games_are_equal(game: str) -> None:
    """Every game equals ale-py's, except for those whose difference is in the committed table."""
    row = verify(game, Plan(frames=300, seeds=1, mode_frames=0))
    known = {row["game"]: row["difference"] for row in read_table(EXACTNESS)}
    assert row.difference == "" or known[game], row.difference


def test_modes_and_difficulties_are_equal() -> None:
    """A game equals ale-py's in all of its modes and difficulties."""
    row = verify("video_pinball", Plan(frames=10, seeds=1, mode_frames=5))
    assert row.difference == "" and row.modes >= 4 and row.in_modes == 5 * row.modes


def test_a_difference_is_found_and_named() -> None:
    """The comparison finds and names a difference in RAM, lives or pixels."""
    pair = Pair("breakout", 1)
    pair.reset()
    pair.act(1)
    for word, what in ((state_word("RAM") + 77, "RAM at 77"), (state_word("LIVES"), "lives")):
        before = pair.ours.words(0).copy()
        pair.ours.words(0)[word] ^= 1
        if what == "lives":
            pair.ours.arrays.lives[0] ^= 1
        with pytest.raises(program.DifferenceError, match=what):
            pair.compare(look=False)
        pair.ours.words(0)[:] = before
        pair.ours.arrays.lives[0] = before[state_word("LIVES")]
    pair.compare()
    pair.ours.words(0)[state_word("COLUBK")] ^= 0x42
    with pytest.raises(program.DifferenceError, match=r"screen at \("):
        pair.act(0)


def state_word(name: str) -> int:
    from accel_rl.emulator import state

    return state.REGISTER + 9 if name == "COLUBK" else int(getattr(state, name))


def test_recorded_actions_are_played(tmp_path: Path) -> None:
    """Recorded actions are played and counted."""
    (tmp_path / "boxing.actions").write_text("# a comment\nright 30\nnoop\n12 9\n")
    row = verify("boxing", Plan(frames=0, seeds=0, mode_frames=0, actions=tmp_path))
    assert row.recorded == 40 and row.difference == ""


def test_the_table_keeps_other_games(tmp_path: Path) -> None:
    """Writing one game's row keeps the table's other rows."""
    path = tmp_path / "table.csv"
    write_table([Row("pong", "aa", "2K", from_start=5), Row("boxing", "bb", "2K")], path)
    write_table([Row("boxing", "bb", "2K", difference="seed 1, frame 2: lives 1 instead of 0")], path)
    rows = read_table(path)
    assert [row["game"] for row in rows] == ["boxing", "pong"]
    assert rows[0]["difference"].endswith("instead of 0") and rows[1]["from_start"] == "5"


def test_the_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The program reports equal games, writes the table, and refuses unknown games and wrong flags in one line."""
    table = tmp_path / "table.csv"
    arguments = ["boxing", "--frames", "20", "--seeds", "1", "--mode-frames", "0", "--csv", str(table)]
    assert program.main(arguments) == 0
    [row] = read_table(table)
    assert "1 of 1 games are equal" in capsys.readouterr().out
    assert (row["sources"], row["ale_py"]) == (source_hash(), importlib.metadata.version("ale-py"))
    assert program.main(["boxng"]) == 2
    assert "unknown game 'boxng'; did you mean boxing" in capsys.readouterr().err
    for flag in ("--jobs", "--seeds", "--consoles", "--cuda-frames"):
        assert program.main(["boxing", flag, "0"]) == 2
        assert capsys.readouterr().err == f"error: {flag} 0 must be at least 1\n"


def test_the_table_is_of_these_sources() -> None:
    """The committed table was made from the current sources; docs/emulator.md has the command that makes it again."""
    assert {row["sources"] for row in read_table(EXACTNESS)} == {source_hash()}


def test_the_hash_is_of_the_code_of_all_that_is_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hash changes with the code and the games' rules, not with comments or verify.py."""
    monkeypatch.setattr(exactness, "FOLDER", tmp_path)
    (tmp_path / "games.ini").write_text("[pong]\nlives = 0\n")
    (tmp_path / "verify.py").write_text("FRAMES = 1\n")

    def hash_of(source: str) -> str:
        (tmp_path / "cpu.py").write_text(source)
        return source_hash()

    before = hash_of('"""Emulates."""\nA = 0\n')
    assert hash_of('"""Emulates the 6507.\n\nAll of it."""\n\n# Why\nA = 0  # accumulator\n') == before
    (tmp_path / "verify.py").write_text("FRAMES = 2\n")
    assert source_hash() == before
    (tmp_path / "games.ini").write_text("[pong]\nlives = 1\n")
    sources = ("A = 1\n", "if A:\n    A = 1\nB = 0", "if A:\n    A = 1\n    B = 0")
    assert len({before, source_hash(), *map(hash_of, sources)}) == 5


def test_the_committed_table() -> None:
    """The committed table has every game, with as many frames as the README says."""
    rows = read_table(EXACTNESS)
    assert [row["game"] for row in rows] == known_games()
    exact = [row for row in rows if not row["difference"]]
    assert len(exact) >= 100
    for row in exact:
        assert int(row["from_start"]) >= 30_000 and int(row["in_modes"]) == 500 * int(row["modes"]) > 0
        assert int(row["from_snapshots"]) >= 30_000 or row["game"] in program.INCOMPLETE_STATES
    assert np.all([int(row["recorded"]) >= 20_000 for row in rows if row["game"] in ("pong", "breakout", "seaquest")])
