"""The programs for developers stand apart from what is installed."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]


def imported(path: Path) -> set[str]:
    """Returns the top-level names that a file imports."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.split(".")[0])
    return names


def test_the_package_imports_nothing_of_benchmarks() -> None:
    """Would catch an installed command that needs a checkout."""
    programs = {"benchmarks", *(path.stem for path in (ROOT / "benchmarks").rglob("*.py"))}
    for path in (ROOT / "accel_rl").rglob("*.py"):
        assert not imported(path) & programs, path
