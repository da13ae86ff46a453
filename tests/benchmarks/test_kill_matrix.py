"""A sample of the kill matrix, and a check that its committed result has all cells."""

import json
import random
import sys
from typing import Any

import pytest

from kill_matrix import LEARNER_LIMIT_S, RESULTS, SIGNALS, WITHIN_S, Cell, cells, make_references, run_in_folder

DRAW = random.Random(5)
# Two cells of each kind of strike.
STRIKES = [[cell for cell in cells() if cell.strike == strike] for strike in (*SIGNALS, "exception")]
SAMPLE = [cell for kind in STRIKES for cell in DRAW.sample(kind, 2)]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in the way of Linux")


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return make_references(tmp_path_factory.mktemp("references"))


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.parametrize("cell", SAMPLE, ids=str)
def test_a_run_survives_or_ends_as_promised(cell: Cell, references: dict[str, Any]) -> None:
    """After a strike, a run ends or goes on as expected, leaves nothing behind and can be resumed."""
    assert "failure" not in run_in_folder(cell, references)[1]


def test_the_result_is_of_all_cells() -> None:
    """The committed result has exactly the matrix's cells, none failed, and each ended in time."""
    found = json.loads(RESULTS.read_text())["cells"]
    assert list(found) == [str(cell) for cell in cells()]
    assert not [name for name, result in found.items() if "failure" in result]
    ended = {name: result["seconds"] for name, result in found.items() if result["status"] != 0}
    waited_s = {name: LEARNER_LIMIT_S if name.endswith("SIGSTOP") else 0.0 for name in ended}
    assert not [name for name, seconds in ended.items() if seconds > waited_s[name] + WITHIN_S]
