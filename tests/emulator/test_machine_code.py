"""Compiled functions and their cache on disk."""

import importlib.metadata
import os
import pwd
import subprocess
import sys
from pathlib import Path
from typing import Any

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
    """Writes factor times the sum of each row; returns the negative number of rows."""
    for row in range(numbers.shape[0]):
        sums[row] = 0
        for column in range(numbers.shape[1]):
            sums[row] += _scaled(i32(numbers[row, column]), factor)
    return i32(-numbers.shape[0])


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Returns the file of sum_rows, compiled by another process."""
    folder = tmp_path_factory.mktemp("cache")
    assert run_in_another_process(folder) == 1
    [path] = folder.glob("accel_rl/emulator/*.o")
    return path.read_bytes()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(sum_rows, "_compiled", {})
    return tmp_path / "accel_rl" / "emulator"


@pytest.fixture
def compiled(cache: Path, image: bytes, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """Replaces compilation by the machine code in `image`; returns the types compiled since then."""
    compiled_types: list[tuple[str, ...]] = []

    def compile_it(_function: Any, types: tuple[str, ...]) -> tuple[bytes, bool]:
        compiled_types.append(types)
        return image.split(b"\n", 2)[2], True

    monkeypatch.setattr(machine_code, "_compile", compile_it)
    return compiled_types


def run_it() -> None:
    sums = np.zeros(2, np.int32)
    assert sum_rows(np.array([[1, 2, 250], [0, 0, 255]], np.uint8), sums, -3) == -2
    assert sums.tolist() == [-759, -765]


def run_in_another_process(folder: Path) -> int:
    """Returns how often another process has compiled sum_rows; it must not import Numba itself."""
    code = "import tests.emulator.test_machine_code as t, sys; t.run_it(); print('numba' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([".", *sys.path]), "XDG_CACHE_HOME": str(folder)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
    return done.stderr.count("compiled sum_rows in")


def test_it_is_compiled_once(cache: Path, compiled: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    """A function is compiled once; later calls and other processes load its code without Numba."""
    run_it()
    assert run_in_another_process(cache.parent.parent) == 0
    monkeypatch.setattr(sum_rows, "_compiled", {})
    run_it()
    assert len(compiled) == 1 and len(list(cache.glob("*.o"))) == 1


@pytest.mark.parametrize("damage", ["truncated", "one bit", "name", "empty", "no header"])
def test_a_damaged_cache_costs_a_compilation(
    cache: Path,
    compiled: list[tuple[str, ...]],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    damage: str,
) -> None:
    """A damaged cache file is never executed; the function is compiled again and the file replaced."""
    run_it()
    [path] = cache.glob("*.o")
    data = bytearray(path.read_bytes())
    data[data.index(b"_ZN") + 8 if damage == "name" else -100] ^= 1
    others = {"truncated": data[:-100], "empty": b"", "no header": b"\x7fELF\n\n"}
    path.write_bytes(others.get(damage, data))
    for count in (2, 2):  # the damaged file is replaced
        monkeypatch.setattr(sum_rows, "_compiled", {})
        run_it()
        assert len(compiled) == count
    assert "cannot be read" in capsys.readouterr().err


def test_a_cache_that_cannot_be_written_costs_a_compilation(
    cache: Path, compiled: list[tuple[str, ...]], capsys: pytest.CaptureFixture[str]
) -> None:
    """A cache that cannot be written costs a warning and a compilation."""
    cache.parent.mkdir(parents=True)
    cache.write_text("a file where the folder should be")
    run_it()
    assert "cannot be written" in capsys.readouterr().err


def test_another_type_of_array_is_another_function(cache: Path, compiled: list[tuple[str, ...]]) -> None:
    """Each type of array gets its own compiled function; non-contiguous arrays are refused."""
    sums = np.zeros(2, np.int32)
    for dtype in (np.uint8, np.int32, np.uint8):
        sum_rows.bind(np.zeros((2, 3), dtype), sums, 1)
    assert compiled == [(f"{name}[:, ::1]", "int32[::1]", "int32") for name in ("uint8", "int32")]
    assert len(list(cache.glob("*.o"))) == 2
    with pytest.raises(ValueError, match="C-contiguous"):
        sum_rows(np.zeros((4, 4), np.int32).T[:2], sums, 1)


@pytest.mark.parametrize("version", [None, "0.60.0"])
def test_numba_is_missing_or_too_old(cache: Path, monkeypatch: pytest.MonkeyPatch, version: str | None) -> None:
    """Without Numba, or with an old version, the error names the command that installs it."""
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


def test_code_for_another_processor(
    compiled: list[tuple[str, ...]], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Code for the processor that the environment variable names is compiled and cached separately."""
    run_it()
    monkeypatch.setenv(machine_code.PROCESSOR, "x86-64-v2")
    monkeypatch.setattr(sum_rows, "_compiled", {})
    machine_code._build_key.cache_clear()
    run_it()
    machine_code._build_key.cache_clear()
    assert len(compiled) == len(list(cache.glob("*.o"))) == 2
    assert "+avx" not in "".join(machine_code._processor())


def test_llvmlite_cannot_be_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed package that cannot be imported is reported with its error and the way out."""
    (tmp_path / "llvmlite").mkdir()
    (tmp_path / "llvmlite" / "__init__.py").write_text("raise OSError('libLLVM.so is not of this processor')")
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "llvmlite"]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(UsageError, match=r"cannot be imported \(OSError: libLLVM.so is not .*pip install --force"):
        machine_code.target_machine()


def test_a_user_without_a_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user without a home folder is told to set XDG_CACHE_HOME."""
    for name in ("XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)

    def unknown_user(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", unknown_user)
    with pytest.raises(UsageError, match=r"no home folder: export XDG_CACHE_HOME=FOLDER"):
        machine_code.cache_folder()
