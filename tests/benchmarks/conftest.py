"""A fixture that runs a whole program of benchmarks/."""

import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def run_program(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Returns a function that runs a program in this process and asserts that it ends with status 0."""

    def run(name: str, *options: Any) -> None:
        monkeypatch.setattr(sys, "argv", [name, *map(str, options)])
        status: Any = 0
        try:
            runpy.run_path(str(BENCHMARKS / name), run_name="__main__")
        except SystemExit as end:
            status = end.code
        assert not status

    return run
