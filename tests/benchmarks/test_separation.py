"""The programs for developers stand apart from what is installed."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_package_imports_nothing_of_benchmarks() -> None:
    """Would catch an installed command that needs a checkout."""
    programs = {"benchmarks", *(path.stem for path in (ROOT / "benchmarks").rglob("*.py"))}
    for path in (ROOT / "accel_rl").rglob("*.py"):
        imported = re.findall(r"^\s*(?:from|import) (\w+)", path.read_text(), re.MULTILINE)
        assert not programs.intersection(imported), path
