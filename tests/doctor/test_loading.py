"""Packages that crash or hang while they are loaded: the doctor says which, and survives."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from accel_rl import cli
from accel_rl.doctor import loading, process, software, survey
from accel_rl.doctor.finding import Finding, examine
from accel_rl.emulator import machine_code

MODULES = {
    "fine": "print('hello')",
    "broken": "raise OSError('libX.so: cannot open\\nmore')",
    "leaves": "raise SystemExit(3)",
    "needs_other": "import not_there",
    "crashes": "import os, signal; os.kill(os.getpid(), signal.SIGILL)",
    "hangs": "import time; time.sleep(600)",
}


@pytest.fixture(autouse=True)
def _modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in MODULES.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)


def test_what_cannot_be_imported_is_named() -> None:
    """Would catch a broken optional package that counts as installed, a missing one that counts as broken, and what
    packages print taken for an answer."""
    finding = loading.loading(["fine", "absent"], ["broken", "leaves", "needs_other", "also_absent"])
    assert finding.data["crashes"] is None and finding.text.endswith("cannot be imported: broken, leaves, needs_other")
    assert finding.data["errors"]["broken"] == "OSError: libX.so: cannot open"
    assert [problem.level for problem in finding.problems] == ["optional"] * 3
    assert finding.problems[0].command == "pip install --force-reinstall broken"
    assert not loading.loading(["broken"], ["leaves"]).problems  # which may need it


@pytest.mark.parametrize("is_needed", [True, False])
def test_a_crash_is_named(is_needed: bool) -> None:
    """Would catch a doctor that crashes with the package, or ends for one that it does not need."""
    needed, optional = ("fine", "crashes") if is_needed else ("fine",), () if is_needed else ("crashes",)
    finding = loading.loading(needed, optional)
    assert finding.text == "crashes kills Python by SIGILL while it is loaded"
    assert finding.data["crashes"] == ("crashes" if is_needed else None)
    assert [problem.level for problem in finding.problems] == ["error" if is_needed else "optional"]


@pytest.mark.slow
def test_a_hang_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch a doctor that waits for a broken driver forever."""
    monkeypatch.setattr(loading, "TIMEOUT_S", 10.0)
    finding = loading.loading(["fine", "hangs"], [])
    assert finding.data["crashes"] == "hangs" and finding.text.startswith("hangs hangs for 10 s")


def test_without_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch a traceback where no process can be started (`ulimit -u`)."""

    def refuse(*arguments: Any, **options: Any) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "run", refuse)
    finding = loading.loading(["crashes"], [])
    assert finding.text.startswith("not tried: BlockingIOError") and not finding.problems


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_the_report_ends_at_a_crash(flags: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """Would catch probes that load what crashes, and a report that is lost with it."""

    def never(*arguments: Any) -> Finding:
        raise AssertionError

    probes = {"loading": lambda: Finding("torch kills Python", {"crashes": "torch"}), "packages": never}
    monkeypatch.setattr(survey, "PROBES", probes)
    monkeypatch.setattr(process, "run_in_processes", never)
    assert cli.main(["doctor", *flags]) == 1
    said = capsys.readouterr()
    assert said.err == "accel-rl: nothing can be trained: torch kills Python\n" and "packages" not in said.out
    if flags:
        assert not json.loads(said.out)["can_train"]


def test_a_package_that_leaves_is_one_line() -> None:
    """Would catch a package whose import ends the doctor without a word."""

    def leave() -> Finding:
        raise SystemExit("no licence")

    assert examine(leave).text == "unknown: SystemExit: no licence"


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch a compilation at each start that nobody explains."""
    monkeypatch.setattr(machine_code, "cache_folder", lambda: tmp_path / "a" / "b")
    assert not software._cache_problems()
    monkeypatch.setattr(os, "access", lambda folder, mode: folder != tmp_path)
    (problem,) = software._cache_problems()
    assert str(tmp_path / "a" / "b") in problem.what and problem.command == "export XDG_CACHE_HOME=FOLDER"
