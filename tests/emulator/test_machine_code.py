"""Compiled functions and their cache on the disk."""

import importlib.metadata
import os
import pwd
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from accel_rl.emulator import machine_code
from accel_rl.emulator.compiled import entry, i32, jit
from accel_rl.errors import UsageError


@jit
def _scaled(value, factor):
    return i32(value * factor)


@entry
def sum_rows(numbers, sums, factor):
    """Writes factor times the sum of each row; returns how many rows there are, negative."""
    for row in range(numbers.shape[0]):
        sums[row] = 0
        for column in range(numbers.shape[1]):
            sums[row] += _scaled(i32(numbers[row, column]), factor)
    return i32(-numbers.shape[0])


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(sum_rows, "_compiled", {})
    return tmp_path / "accel_rl" / "emulator"


def run_it() -> None:
    sums = np.zeros(2, np.int32)
    assert sum_rows(np.array([[1, 2, 250], [0, 0, 255]], np.uint8), sums, -3) == -2
    assert sums.tolist() == [-759, -765]


def compilations(capsys: pytest.CaptureFixture[str]) -> int:
    return capsys.readouterr().err.count("compiled sum_rows in")


def test_it_is_compiled_once(cache: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch a cache that is never used, and wrong values from loaded machine code."""
    run_it()
    assert compilations(capsys) == 1
    monkeypatch.setattr(sum_rows, "_compiled", {})
    run_it()
    assert compilations(capsys) == 0 and len(list(cache.glob("*.o"))) == 1


@pytest.mark.parametrize("damage", ["truncated", "one bit", "name", "empty", "no header"])
def test_a_damaged_cache_costs_a_compilation(
    cache: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    """Would catch machine code that is executed although it is not what was written."""
    run_it()
    [path] = cache.glob("*.o")
    data = bytearray(path.read_bytes())
    data[data.index(b"_ZN") + 8 if damage == "name" else -100] ^= 1
    others = {"truncated": data[:-100], "empty": b"", "no header": b"\x7fELF\n\n"}
    path.write_bytes(others.get(damage, data))
    monkeypatch.setattr(sum_rows, "_compiled", {})
    capsys.readouterr()
    run_it()
    messages = capsys.readouterr().err
    assert "cannot be read" in messages and "compiled sum_rows" in messages
    monkeypatch.setattr(sum_rows, "_compiled", {})
    run_it()
    assert compilations(capsys) == 0, "what was damaged is replaced"


def test_a_cache_that_cannot_be_written_costs_a_compilation(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Would catch a program that does not start where the home folder is read-only."""
    cache.parent.mkdir(parents=True)
    cache.write_text("a file where the folder should be")
    run_it()
    assert "cannot be written" in capsys.readouterr().err


def test_another_type_of_array_is_another_function(cache: Path) -> None:
    """Would catch bytes that are read as words."""
    run_it()
    sums = np.zeros(1, np.int32)
    sum_rows(np.array([[70_000, -1]], np.int32), sums, 1)
    assert sums[0] == 69_999 and len(list(cache.glob("*.o"))) == 2
    with pytest.raises(ValueError, match="C-contiguous"):
        sum_rows(np.zeros((4, 4), np.int32).T[:2], sums, 1)


@pytest.mark.parametrize("version", [None, "0.60.0"])
def test_numba_is_missing_or_too_old(cache: Path, monkeypatch: pytest.MonkeyPatch, version: str | None) -> None:
    """Would catch a traceback from the depths instead of the command that installs it."""
    real = importlib.metadata.version

    def version_of(name: str) -> str:
        if name == "numba" and version is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return version if name == "numba" and version else real(name)

    machine_code._build_key.cache_clear()
    monkeypatch.setattr(importlib.metadata, "version", version_of)
    with pytest.raises(
        UsageError, match=r"not installed: pip install 'accel-rl\[native\]'|0.61 or newer, this is 0.60.0"
    ):
        run_it()
    machine_code._build_key.cache_clear()


def test_numba_cannot_be_imported(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch a traceback of Numba's, as with a NumPy that is too new for it, or an endless wait."""
    (tmp_path / "numba.py").write_text("raise ImportError('Numba needs NumPy 2.2 or less')")
    monkeypatch.syspath_prepend(tmp_path)
    message = r"cannot compile the Atari emulator: ImportError: Numba needs NumPy 2.2 .*pip install --upgrade numba"
    with pytest.raises(UsageError, match=message):
        run_it()


def test_llvmlite_cannot_be_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch a traceback, in `accel-rl doctor` too, where a package is there but broken."""
    (tmp_path / "llvmlite").mkdir()
    (tmp_path / "llvmlite" / "__init__.py").write_text("raise OSError('libLLVM.so is not of this processor')")
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "llvmlite"]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(UsageError, match=r"cannot be imported \(OSError: libLLVM.so is not .*pip install --force"):
        machine_code.target_machine()


def test_a_user_without_a_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch a traceback in a container whose user has no entry in /etc/passwd."""
    for name in ("XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)

    def unknown_user(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", unknown_user)
    with pytest.raises(UsageError, match=r"no home folder: export XDG_CACHE_HOME=FOLDER"):
        machine_code._cache_folder()


def test_no_process_that_uses_machine_code_imports_numba(cache: Path) -> None:
    """Would catch start-up time and memory that only the process has to have that compiles."""
    code = "import tests.emulator.test_machine_code as t, sys; t.run_it(); print('numba' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(["."] + sys.path)}
    for compilations in (1, 0):
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert done.stdout == "False\n" and done.stderr.count("compiled sum_rows in") == compilations
