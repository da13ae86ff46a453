"""Tests of the documentation's Python: complete examples run, and all others are known to be parts."""

import ast
import builtins
import inspect
import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import pytest

import accel_rl
from accel_rl.cli import main
from tests.helpers.runs import TINY_SERIAL_RUN, rows

ROOT = Path(__file__).parents[1]

PARTS: dict[str, str] = {
    "docs/algorithms.md": "Rollout Update Stats batch targets num_samples rate parts_of spec observation",
    "docs/environments.md": "MyEnv gymnasium",
    "docs/policies.md": "model vec_env policy observation",
}
"""The names that a page's incomplete examples take from their surroundings."""

SHORTER = {
    "steps=200_000": f"steps=40, {', '.join(f'{k}={v!r}' for k, v in TINY_SERIAL_RUN.items() if k != 'env')}",
    "range(1000)": "range(20)",
    "range(100)": "range(20)",
    '"pong", num_envs=4096': '"pong", num_envs=4, num_starts=2, device="cpu"',  # CudaAtari
    '(4096,), device="cuda"': '(4,), device="cpu"',
    "results/ppo/CartPole-v1/20260101-120000-000000-s1": "run",
}


ONNX = "policy.onnx"


class Example(NamedTuple):
    """A block of Python on a page."""

    page: str
    line: int
    code: str

    @property
    def undefined(self) -> set[str]:
        """The names that it reads but does not define."""
        defined, read = set(dir(builtins)) | {"__name__"}, set()
        for node in ast.walk(ast.parse(self.code)):
            if isinstance(node, ast.Name):
                (read if isinstance(node.ctx, ast.Load) else defined).add(node.id)
            elif isinstance(node, ast.FunctionDef | ast.ClassDef):
                defined.add(node.name)
            elif isinstance(node, ast.arg):
                defined.add(node.arg)
            elif isinstance(node, ast.alias):
                defined.add((node.asname or node.name).partition(".")[0])
        return read - defined


def examples() -> Iterator[Example]:
    for path in (ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))):
        text = path.read_text()
        for block in re.finditer(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
            yield Example(str(path.relative_to(ROOT)), text.count("\n", 0, block.start()) + 1, block[1])


COMPLETE = [example for example in examples() if not example.undefined]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the run that the pages name."""
    folder = tmp_path_factory.mktemp("docs")
    accel_rl.train(**TINY_SERIAL_RUN, steps=40, out=folder / "run")
    return folder


# Loading ONNX takes longer than all other examples.
EXAMPLES = [pytest.param(each, marks=[pytest.mark.slow] if ONNX in each.code else []) for each in COMPLETE]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: f"{example.page}:{example.line}")
def test_complete_examples_run(example: Example, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Complete examples run, and their algorithms, networks and environments train."""
    code = example.code
    for long, short in SHORTER.items():
        code = code.replace(long, short)
    monkeypatch.chdir(folder)
    assert ONNX not in code or main(["export", "run", "--format", "onnx", "--out", ONNX]) == 0
    monkeypatch.syspath_prepend(str(tmp_path))
    file = tmp_path / f"example_{example.line}.py"
    file.write_text(code)
    names = runpy.run_path(str(file), run_name="__main__")
    settings: dict[str, Any] = {**TINY_SERIAL_RUN, "steps": 1_200, "log_interval_steps": 400}
    for name, value in names.items():
        if isinstance(value, type) and issubclass(value, accel_rl.algos.Algo) and value.__module__ == "__main__":
            run = accel_rl.train(**settings, algo=f"{file.stem}:{name}", out=tmp_path / name)
            assert {key for key, text in rows(run)[-1].items() if key.startswith("train/") and text}
        elif is_environment(value):
            accel_rl.train(**settings | {"steps": 40, "env": f"{file.stem}:{name}"}, out=tmp_path / name)
        elif inspect.isfunction(value) and [*inspect.signature(value).parameters] == ["spec"]:
            accel_rl.train(**settings | {"steps": 40}, network=f"{file.stem}:{name}", out=tmp_path / name)


def is_environment(value: Any) -> bool:
    """Returns whether an example defines this as an environment or as a factory of batches."""
    if inspect.isfunction(value):
        return "num_envs" in inspect.signature(value).parameters
    is_env = isinstance(value, type) and issubclass(value, gymnasium.Env) and not issubclass(value, gymnasium.Wrapper)
    return is_env and value.__module__ == "__main__"


def test_other_examples_are_parts() -> None:
    """Only examples listed as parts use undefined names."""
    for example in examples():
        assert example.undefined <= set(PARTS.get(example.page, "").split()), example
    pages = {example.page for example in COMPLETE}
    assert len(COMPLETE) >= 8 and {"README.md", "docs/algorithms.md", "docs/emulator.md", "docs/policies.md"} <= pages


def test_places_to_change_exist() -> None:
    """Every row of the table of places to change names at least one, and all of them exist."""
    section = (ROOT / "CONTRIBUTING.md").read_text().split("## To change X, open Y")[1].split("\n## ")[0]
    places = [re.findall(r"`([^`]*[/.][^`]*)`", line) for line in section.splitlines()[4:] if line]
    assert len(places) >= 10 and all(places)
    assert [name for row in places for name in row if name != "command.py" and not (ROOT / name).exists()] == []
