"""Plants faults into the program, one at a time, and names the test of `make test` that catches each.

    python tests/faults/plant.py [NAME ...]     areas or faults; all by default

Each list in this folder (an area) has faults, each of which replaces one passage of one file. A fault is planted into a
copy of the checkout, where tests run until one fails: first the one that caught it last time, then the nearest tests
(those that the list names), then all others that are not slow. Each result goes to results.json and README.md at once.
A fault that has a result is not run again, unless the fault, its file, or the tests have changed. `make test` must pass
beforehand, as a test that fails by itself would count as catching everything."""

import argparse
import hashlib
import json
import multiprocessing
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RESULTS, README = HERE / "results.json", HERE / "README.md"
TABLES = "<!-- What follows is written by plant.py. -->\n"
TEST_TIMEOUT_S, RUN_TIMEOUT_S = 120, 3600  # a fault may make tests hang
NOT_COPIED = shutil.ignore_patterns(".git", ".venv", ".peers", ".*_cache", "*.egg-info", "dist", "build")
NOT_FOUND, NONE_CHOSEN = 4, 5  # pytest's exit status

# Forks a process for each run after it has imported the slow packages, in which no fault is planted.
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["torch._dynamo", "torch.distributed", "gymnasium", "ale_py", "pytest"])
# The code of that process is a string, since a function would be imported from the checkout without the fault.
PYTEST = """
import json, os, sys
os.chdir(checkout)
os.environ.update(OMP_NUM_THREADS="1", PYTHONPATH=checkout)
sys.path[:] = [checkout, *(path for path in sys.path if not path.startswith(root) or "site-packages" in path)]
sys.argv = ["pytest", *arguments]
for name in [name for name in sys.modules if name.split(".")[0] == "accel_rl"]:
    del sys.modules[name]  # without the fault, where something else has begun this process's server before
for stream in (1, 2):
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
import pytest

class FirstFailure:
    def pytest_runtest_logreport(self, report):
        if report.failed and not os.path.exists(failure):
            how = "timeout" if "from pytest-timeout" in report.longreprtext else "failure"
            with open(failure, "w") as file:
                json.dump({"test": report.nodeid, "how": how}, file)
    pytest_collectreport = pytest_runtest_logreport

sys.exit(pytest.main(arguments, [FirstFailure()]))
"""

Result = dict[str, Any]


@dataclass(frozen=True)
class Fault:
    """A replacement of `old`, which must occur exactly once in the file, by `new`. tests: the nearest ones."""

    area: str
    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    @property
    def key(self) -> str:
        return f"{self.area}: {self.name}"

    def apply(self) -> str:
        """Returns the file's text with the fault. Raises ValueError or SyntaxError if it does not apply or compile."""
        text = (ROOT / self.file).read_text()
        if (count := text.count(self.old)) != 1:
            raise ValueError(f"{self.key}: its passage occurs {count} times in {self.file}, not once")
        text = text.replace(self.old, self.new)
        compile(text, self.file, "exec")
        return text


def read_faults() -> list[Fault]:
    """Returns the faults of all lists."""
    faults = []
    for path in sorted(HERE.glob("*.yaml")):
        content = yaml.load(path.read_text(), yaml.CSafeLoader)
        for each in content["faults"]:
            faults.append(Fault(path.stem, **{"tests": content["tests"]} | each))
    return faults


def select(faults: Sequence[Fault], names: Sequence[str]) -> list[Fault]:
    """Returns the faults in these areas or with these names; all faults if there are no names."""
    if unknown := set(names) - {name for fault in faults for name in (fault.area, fault.name)}:
        raise SystemExit(f"there is no area or fault {min(unknown)!r}")
    return [fault for fault in faults if not names or fault.area in names or fault.name in names]


def find(fault: Fault, last: str | None, only_nearest: bool) -> Result:
    """Plants a fault, and runs tests until one fails, `last` first."""
    text = fault.apply()
    with tempfile.TemporaryDirectory() as folder:
        checkout = Path(folder) / "accel_rl"
        shutil.copytree(ROOT, checkout, symlinks=True, ignore=NOT_COPIED)
        (checkout / fault.file).write_text(text)
        found = next((each for each in _search(checkout, fault, last, only_nearest) if each), None)
    planted = _digest(text.encode())
    return {"planted": planted, "tests": _digest_tests(found) if found or not only_nearest else None, "found": found}


def _search(checkout: Path, fault: Fault, last: str | None, only_nearest: bool) -> Iterator[Result | None]:
    if last:
        yield _run(checkout, [last])
    yield _run(checkout, fault.tests)
    if not only_nearest:
        # tests/faults checks that faults apply, so it fails with any of them.
        yield _run(checkout, ["tests", "--ignore=tests/faults", *(f"--deselect={test}" for test in fault.tests)])


def _run(checkout: Path, tests: Sequence[str]) -> Result | None:
    """Runs tests until one fails; returns that test and how it failed."""
    failure = checkout.parent / "failure.json"
    arguments = ["-x", "-m", "not slow", "-p", "no:cacheprovider", "-p", "no:xdist", f"--timeout={TEST_TIMEOUT_S}"]
    arguments += [f"--basetemp={checkout.parent / 'tmp'}", *tests]
    names = {"arguments": arguments, "checkout": str(checkout), "root": str(ROOT), "failure": str(failure)}
    process = SERVER.Process(target=exec, args=(PYTEST, names))
    process.start()
    process.join(RUN_TIMEOUT_S)
    status = process.exitcode
    if status is None:
        process.kill()
        process.join()
    if failure.exists():
        return dict(json.loads(failure.read_text()))
    if status in (0, NOT_FOUND, NONE_CHOSEN):
        return None
    return {"test": tests[0], "how": "timeout" if status is None else f"exit status {status}"}


def is_current(fault: Fault, result: Result) -> bool:
    """Tells whether a result still holds: its fault's file and the test file that found it are unchanged. If no test
    found the fault, all tests must be unchanged."""
    planted = _digest(fault.apply().encode())
    return bool(result["planted"] == planted and result["tests"] == _digest_tests(result["found"]))


def _digest_tests(found: Result | None) -> str:
    paths = [ROOT / found["test"].split("::")[0]] if found else sorted((ROOT / "tests").rglob("*.py"))
    return _digest(*(path.read_bytes() for path in paths if path.is_file()))


def _digest(*contents: bytes) -> str:
    return hashlib.sha256(b"\0".join(contents)).hexdigest()[:16]


def read_results() -> dict[str, Result]:
    return dict(json.loads(RESULTS.read_text())) if RESULTS.exists() else {}


def write_results(faults: Sequence[Fault], results: dict[str, Result]) -> None:
    """Writes the results of all these faults, and their tables."""
    kept = {fault.key: results[fault.key] for fault in faults if fault.key in results}
    new = RESULTS.with_suffix(".new")  # another command may read the results meanwhile
    new.write_text(json.dumps(kept, indent=1) + "\n")
    new.replace(RESULTS)
    text = README.read_text().split(TABLES)[0]
    README.write_text(text + TABLES + tables(faults, kept))


def tables(faults: Sequence[Fault], results: dict[str, Result]) -> str:
    """Returns the number of found faults in a line, and a Markdown table for each area."""
    found = [results[fault.key]["found"] for fault in faults if fault.key in results]
    lines = [f"\nFound: {sum(map(bool, found))} of {len(faults)}."]
    for area in dict.fromkeys(fault.area for fault in faults):
        lines += [f"\n## {area}.yaml\n", "| fault | file | found by |", "|---|---|---|"]
        for fault in (each for each in faults if each.area == area):
            file = fault.file.removeprefix("accel_rl/")
            lines.append(f"| {fault.name} | `{file}` | {_describe(results.get(fault.key))} |")
    return "\n".join(lines) + "\n"


def _describe(result: Result | None) -> str:
    if result is None:
        return "not run"
    if not (found := result["found"]):
        return "**nothing**"
    test = f"`{found['test'].removeprefix('tests/').split('[')[0]}`"
    return test if found["how"] == "failure" else f"{test} ({found['how']})"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="areas or faults")
    parser.add_argument("--nearest", action="store_true", help="run the nearest tests only")
    parser.add_argument("--again", action="store_true", help="run also what has been found")
    parser.add_argument("--jobs", type=int, default=1, help="faults at a time")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    results, lock, every = read_results(), threading.Lock(), read_faults()
    faults = select(every, options.names)
    due = [
        fault
        for fault in faults
        if options.again or fault.key not in results or not is_current(fault, results[fault.key])
    ]

    def visit(fault: Fault) -> None:
        last = (results.get(fault.key, {}).get("found") or {}).get("test")
        result = find(fault, last, options.nearest)
        with lock:
            results[fault.key] = result
            write_results(every, read_results() | {fault.key: result})
            print(f"{fault.key}: {_describe(result)}", flush=True)

    with ThreadPoolExecutor(options.jobs) as pool:
        for _ in pool.map(visit, due):
            pass
    return not all(results[fault.key]["found"] for fault in faults)


if __name__ == "__main__":
    sys.exit(main())
