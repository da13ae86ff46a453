"""What tests of benchmarks share: a program of that folder, run whole."""

import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def run_program(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Runs a program with these options in this process, to its end with status 0."""

    def run(name: str, *options: Any) -> None:
        monkeypatch.setattr(sys, "argv", [name, *map(str, options)])
        status: Any = 0
        try:
            runpy.run_path(str(BENCHMARKS / name), run_name="__main__")
        except SystemExit as end:
            status = end.code
        assert not status

    return run
