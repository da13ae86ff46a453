"""Tests of the package's import directions: downwards only, and no cycles."""

import ast
import functools
import graphlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "accel_rl"

# From the top to the bottom. A part imports from floors below its own, and from itself; parts on one floor do not
# import each other.
FLOORS = (
    ("__init__", "__main__"),
    ("cli",),
    ("tune",),
    ("experiments", "bench", "doctor", "watch"),
    ("report",),
    ("analysis",),
    ("distributed",),
    ("training",),
    ("run_folder",),
    ("settings",),
    ("algos", "samplers"),
    ("updates",),
    ("models", "replay"),
    ("rollout",),
    ("stacks",),
    ("envs",),
    ("emulator",),
    ("processes",),
    ("config",),
    ("hardware",),
    ("errors", "version"),
)
FLOOR_OF = {part: floor for floor, parts in enumerate(FLOORS) for part in parts}
PARTS = sorted({path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()})


@functools.cache
def imports(path: Path) -> set[str]:
    """Returns the modules of accel_rl that a file imports while the program runs, even inside functions."""
    names: set[str] = set()
    for node in _runtime_nodes(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= (
                {f"{node.module}.{alias.name}" for alias in node.names} if node.module == "accel_rl" else {node.module}
            )
    return {name.removeprefix("accel_rl.") for name in names if name.startswith("accel_rl.")}


def _runtime_nodes(tree: ast.AST) -> list[ast.AST]:
    """Returns all nodes except those under `if TYPE_CHECKING`."""
    found = [tree]
    for child in ast.iter_child_nodes(tree):
        if not (isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)):
            found += _runtime_nodes(child)
    return found


def files_of(part: str) -> list[Path]:
    return sorted((PACKAGE / part).rglob("*.py")) or [PACKAGE / f"{part}.py"]


@pytest.mark.parametrize("part", PARTS)
def test_imports_lead_downwards(part: str) -> None:
    """Each part of the package imports only itself and parts on lower floors."""
    assert part in FLOOR_OF, f"{part} is new: give it a floor"
    for path in files_of(part):
        for name in imports(path):
            other = name.split(".")[0]
            assert other == part or FLOOR_OF[other] > FLOOR_OF[part], f"{path.relative_to(ROOT)} imports {name}"


def test_the_documentation_has_these_floors() -> None:
    """docs/architecture.md shows the same floors."""
    page = (ROOT / "docs" / "architecture.md").read_text().partition("## Import directions")[2]
    lines = page.split("```")[1].split("\n")[1:-1]
    shown = tuple(tuple(part.removesuffix(".py") for part in line.split(", ")) for line in lines)
    assert shown == FLOORS[1:]


def test_modules_of_a_package_form_no_cycle() -> None:
    """Modules import each other without cycles."""
    modules = {
        ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__"): imports(path)
        for path in PACKAGE.rglob("*.py")
    }
    graphlib.TopologicalSorter({name: found & modules.keys() for name, found in modules.items()}).prepare()


def test_the_top_of_the_package_stays_small() -> None:
    """At most eight modules lie at the top of the package."""
    assert len(list(PACKAGE.glob("*.py"))) <= 8


def test_links_lead_to_the_same_modules() -> None:
    """The links at the top of the tree lead into the package."""
    for name in ("algos", "samplers"):
        assert (ROOT / name).resolve() == PACKAGE / name


def test_the_package_imports_nothing_of_benchmarks() -> None:
    programs = {"benchmarks", *(path.stem for path in (ROOT / "benchmarks").rglob("*.py"))}
    for path in PACKAGE.rglob("*.py"):
        imported = re.findall(r"^\s*(?:from|import) (\w+)", path.read_text(), re.MULTILINE)
        assert not programs.intersection(imported), path
