"""The lists of faults fit the current program, and the tables fit the results."""

from pathlib import Path
from typing import Any

import pytest

from tests.faults import plant

FAULTS = plant.read_faults()

# One fault for each kind of test: functions, files, and the fake GPU.
SAMPLE = (
    "returns: a return is cut one step too late",
    "policy_file: damaged tensors are read",
    "gpu: a value is read in a captured loss",
)


def test_every_fault_applies() -> None:
    """Every fault's passage occurs once, its replacement compiles, and its nearest tests exist."""
    for fault in FAULTS:
        fault.apply()
        for test in fault.tests:
            file, _, name = test.partition("::")
            assert f"def {name}" in (plant.ROOT / file).read_text(), f"{fault.key}: there is no {test}"
    assert len({fault.key for fault in FAULTS}) == len(FAULTS)


def test_a_passage_that_has_moved_is_named() -> None:
    """A fault whose passage does not occur exactly once raises an error with its name."""
    fault = plant.Fault("area", "name", "accel_rl/errors.py", "no such passage", "", ())
    with pytest.raises(ValueError, match=r"area: name: its passage occurs 0 times in accel_rl/errors\.py, not once"):
        fault.apply()


def test_the_table_is_that_of_the_results() -> None:
    """The README's tables show the lists and their results."""
    assert plant.README.read_text().endswith(plant.TABLES + plant.tables(FAULTS, plant.read_results()))


def test_a_result_holds_until_something_changes(monkeypatch: Any, tmp_path: Path) -> None:
    """A result holds until its fault or the tests change."""
    fault = next(fault for fault in FAULTS if fault.key == SAMPLE[0])
    found = {"test": "tests/algos/test_returns.py::test_x[1]", "how": "failure"}
    monkeypatch.setattr(plant, "_search", lambda *_: iter([None, found]))
    result = plant.find(fault, None, only_nearest=True)
    assert result["found"] == found and plant.is_current(fault, result)
    assert not plant.is_current(fault, result | {"planted": "another"})
    assert not plant.is_current(fault, result | {"tests": "others"})
    monkeypatch.setattr(plant, "_search", lambda *_: iter([None, None]))
    assert not plant.is_current(fault, plant.find(fault, None, only_nearest=True)), "the other tests were not run"
    assert plant.is_current(fault, plant.find(fault, None, only_nearest=False))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("key", SAMPLE)
def test_a_fault_is_found(key: str) -> None:
    """The nearest tests find each fault of the sample."""
    fault = next(fault for fault in FAULTS if fault.key == key)
    found = plant.find(fault, None, only_nearest=True)["found"]
    assert found and found["how"] == "failure" and found["test"].split("::")[0] in " ".join(fault.tests)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_what_changes_nothing_is_not_found() -> None:
    """A replacement that changes nothing is not found."""
    fault = next(fault for fault in FAULTS if fault.key == SAMPLE[0])
    harmless = plant.Fault("area", "name", fault.file, fault.old, f"{fault.old}  # the same", fault.tests)
    assert plant.find(harmless, None, only_nearest=True)["found"] is None
