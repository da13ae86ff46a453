"""The comparison of two checkouts' speed: rows of progress.csv, turns of real runs, and the JSON."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from accel_rl.errors import RunError
from process_tree import ProcessTree
from training_run import ProgressFile, steps_of

ROOT = Path(__file__).parents[2]

# Writes a table for each line that it reads: a row, then half a row, then a row with the columns in another order.
WRITER = """
import os, sys
tables = [
    "a,time/total_timesteps\\n1,80\\n",
    "a,time/total_timesteps\\n1,80\\n1,16",
    "time/total_timesteps,a\\n80,1\\n160,1\\n",
]
for table in tables:
    sys.stdin.readline()
    with open("new.csv", "w") as file:
        file.write(table)
    os.replace("new.csv", "progress.csv")
sys.stdin.readline()
"""


def test_steps_are_those_of_the_last_complete_row(tmp_path: Path) -> None:
    """Only whole rows count, by column name, and waiting ends if the program dies."""
    (tmp_path / "writer.py").write_text(WRITER)
    tree = ProcessTree("writer", [sys.executable, str(tmp_path / "writer.py")], stdin=subprocess.PIPE)
    progress = ProgressFile(tree, tree.folder / "progress.csv")
    try:
        assert tree.process.stdin
        tree.process.stdin.write(b"\n")
        assert steps_of(progress.wait_for_row(60.0)) == 80
        tree.process.stdin.write(b"\n\n")
        assert steps_of(progress.wait_for_row(60.0)) == 160
        tree.process.stdin.write(b"\n")
        with pytest.raises(RunError, match="writer has ended"):
            progress.wait_for_row(60.0)
    finally:
        tree.kill()


@pytest.mark.slow
@pytest.mark.parametrize("contests", [("a2c", "startup"), ("sampling",)])
def test_contests_and_their_json(
    contests: tuple[str, ...], run_program: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The program runs, and contestants make steps in their turns."""
    file = tmp_path / "c.json"
    options = ["--rounds", 1, "--seconds", 0.1, "--json", file, "--contests", *contests]
    run_program("compare_commits.py", ROOT, ROOT, *options)
    result = json.loads(file.read_text())
    assert result["contests"].keys() == {*contests} and result["commits"].keys() == {"old", "new"}
    for contest in result["contests"].values():
        old, new = (contest["rates"][name] for name in ("old", "new"))
        assert old[0] > 0 and new[0] > 0
        assert contest["new / old"]["median"] == pytest.approx(new[0] / old[0])
    assert str(ROOT) not in file.read_text()
    assert "should be at least 0.97" in capsys.readouterr().out
