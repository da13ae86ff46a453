"""Compiles the emulator's functions with Numba.

One convention for all of them, so that a CPU and later a GPU run the same source:

* Everything that changes is in the state (see state.py), an array of int32; a function gets it as `s`.
* Numbers are int32, wrapped explicitly: `i32(...)` around every result that is kept, `& 0xFF` where the hardware has
  eight bits. Nothing is negative where it is an index.
* No objects, exceptions, allocations or floats.
"""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba

i32 = numba.int32
_OPTIONS = {"nogil": True, "error_model": "numpy", "_nrt": False}


def jit(function: Callable[..., Any]) -> Any:
    """Compiles a function that is only called by compiled functions."""
    return numba.njit(**_OPTIONS)(function)


def entry(function: Callable[..., Any]) -> Any:
    """Compiles a function that Python calls, with all that it calls, and keeps the machine code on the disk."""
    before, numba.config.CACHE_DIR = numba.config.CACHE_DIR, str(_cache_folder())
    try:
        return numba.njit(cache=True, **_OPTIONS)(function)
    finally:
        numba.config.CACHE_DIR = before


def _cache_folder() -> Path:
    """Returns a folder for this version of the sources: Numba itself notices only changes of the entry's own file."""
    digest = hashlib.sha256(numba.__version__.encode())
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "accel_rl" / "emulator" / digest.hexdigest()[:16]
