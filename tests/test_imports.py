"""The house's import directions: who may know whom."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "accel_rl"

# folder -> what it must not import (samplers.rollout is the one thing that algos and samplers share)
ON_TOP = ("training", "learner", "supervisor", "launch", "team", "run_folder", "queue", "player", "cli", "bench")
FORBIDDEN = {
    "envs": ("algos", "models", "replay", "samplers", "updates", *ON_TOP),
    "models": ("algos", "samplers", "updates", *ON_TOP),
    "replay": ("algos", "samplers", "updates", *ON_TOP),
    "updates": ("algos", "models", "samplers", "envs", *ON_TOP),
    "samplers": ("algos", "models", "updates", *ON_TOP),
    "algos": ("samplers", *ON_TOP),
    "bench": ("launch", "player", "cli"),
}
ALLOWED = {"accel_rl.samplers.rollout"}


def imports(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return names - ALLOWED


@pytest.mark.parametrize("folder", FORBIDDEN)
def test_import_directions(folder: str) -> None:
    """Would catch a sampler that knows an algorithm, an update that knows either, and the like."""
    for path in (PACKAGE / folder).glob("*.py"):
        for name in imports(path):
            for forbidden in FORBIDDEN[folder]:
                assert not f"{name}.".startswith(f"accel_rl.{forbidden}."), f"{path} imports {name}"


def test_links_lead_to_the_same_modules() -> None:
    """Would catch links at the top of the tree that have become copies."""
    for name in ("algos", "samplers"):
        assert (PACKAGE.parent / name).resolve() == PACKAGE / name
