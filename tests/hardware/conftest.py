"""Fixtures for tests of hardware: machines of every shape."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.machines import build_topology


@pytest.fixture
def topology(tmp_path: Path, monkeypatch: Any) -> Any:
    """Builds a machine's topology: `build_topology` with the arguments of a test."""
    return partial(build_topology, tmp_path, monkeypatch)
