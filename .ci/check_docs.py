"""Checks the documentation: links lead to files and headings, Python code blocks parse and import what exists, names
such as `accel_rl.envs.make_env` and `docs.reinforce:Reinforce` import, files such as `training/loop.py` exist, and
`training/loop.py: TrainingLoop.run` is in its file."""

import ast
import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OURS = ("accel_rl", "benchmarks", "docs", "runs", "tests")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
DOTTED = re.compile(rf"\b(?:{'|'.join(OURS)})(?:\.\w+)+(?::\w+)?")
PATH = re.compile(r"`([\w./-]+/[\w.-]+\.(?:md|py|yaml|yml|svg|png|csv|json))`")

MEMBER = re.compile(r"`([\w/]+/\w+)\.py: ([\w.]+)`")


def main() -> int:
    sys.path.insert(0, str(ROOT))
    files = [path for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")) if path.name != "CHANGELOG.md"]
    wrong = [f"{path.relative_to(ROOT)}: {problem}" for path in sorted(files) for problem in problems(path)]
    print("\n".join(wrong) or f"{len(files)} documentation files are correct")
    return bool(wrong)


def problems(path: Path) -> Iterator[str]:
    text = path.read_text()
    blocks = FENCE.findall(text)
    prose = FENCE.sub("", text)
    for target in LINK.findall(prose):
        if not re.match(r"\w+:", target) and not leads_somewhere(path, target):
            yield f"link to {target}, which does not exist"
    for name in PATH.findall(prose):
        if "<" not in name and not any((base / name).exists() for base in (ROOT, ROOT / "accel_rl", path.parent)):
            yield f"file {name}, which does not exist"
    for module, name in MEMBER.findall(prose):
        if not resolves(f"accel_rl.{module.replace('/', '.')}:{name}"):
            yield f"{name}, which is not in {module}.py"
    for name in sorted(set(DOTTED.findall(text))):
        if not name.endswith((".md", ".py", ".svg", ".png", ".yaml")) and not resolves(name):
            yield f"name {name}, which does not import"
    for language, code in blocks:
        if language == "python":
            yield from problems_of_code(code)


def leads_somewhere(path: Path, target: str) -> bool:
    name, _, heading = target.partition("#")
    file = path.parent / name if name else path
    return file.exists() and (not heading or heading in headings(file.read_text()))


def headings(text: str) -> set[str]:
    """Returns the anchors of a page's headings as GitHub makes them."""
    titles = re.findall(r"^#+ +(.+?) *$", FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def problems_of_code(code: str) -> Iterator[str]:
    """Yields the syntax errors and failing imports of a block of Python."""
    try:
        tree = ast.parse(code)
    except SyntaxError as error:
        yield f"Python that does not parse ({error.msg}): {(error.text or '').strip()}"
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (f"import of {name}, which fails" for name in names if not resolves(name))


def resolves(name: str) -> bool:
    """Returns whether a dotted name, or module:name, is a module or an attribute reachable from one."""
    parts = name.replace(":", ".").split(".")
    for end in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:end]))
        except ImportError:
            continue
        for part in parts[end:]:
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False


if __name__ == "__main__":
    sys.exit(main())
