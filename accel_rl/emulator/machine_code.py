"""Caches compiled functions on the disk as object files, and runs them without Numba.

Numba compiles a function with all its callees into one LLVM module, in a separate process (compilation.py). The machine
code is stored under a hash of everything that it depends on. Later processes load it with llvmlite in milliseconds."""

import contextlib
import ctypes
import fcntl
import hashlib
import importlib.metadata
import json
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from accel_rl.errors import UsageError
from accel_rl.processes.spawning import ask_process

if TYPE_CHECKING:
    from accel_rl.emulator.compiled import EntryFunction

ArgumentTypes = tuple[str, ...]  # as Numba writes them: int32[:, ::1], int32
OLDEST_NUMBA = (0, 61)
KEPT_S = 30 * 86_400.0  # older machine code may be removed when new code is written
SYMBOL = "call_with_arguments_in_memory"  # the function of an object file that Python calls
INSTALL = "pip install 'accel-rl[native]'"
PROCESSOR = "ACCEL_RL_EMULATOR_CPU"  # environment variable: LLVM's name of the processor to compile for
COMPILATION = "accel_rl.emulator.compilation"


class MachineCode:
    """One compiled function in memory.

    image: the object file. returns_int: whether the function returns a number or None."""

    def __init__(self, image: bytes, returns_int: bool):
        self._engine = _link(image)
        prototype = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
        self._function = prototype(self._engine.get_function_address(SYMBOL))
        self._returns_int = returns_int

    def bind(self, arguments: tuple[Any, ...]) -> Callable[[], Any]:
        """Returns a function without parameters that calls this one with these arguments."""
        # Numba passes an array as fields: two that are unused here, the number of elements, their size, the address,
        # shape and strides. The result goes to the address in the first argument; the second one is unused.
        result = ctypes.c_int64()
        flat = [ctypes.addressof(result), ctypes.addressof(result)]
        for argument in arguments:
            if isinstance(argument, np.ndarray):
                flat += [0, 0, argument.size, argument.itemsize, argument.ctypes.data]
                flat += [*argument.shape, *argument.strides]
            else:
                flat.append(int(argument))
        words = np.array(flat, np.int64)
        function, address, returns_int = self._function, words.ctypes.data, self._returns_int

        def call(_held: Any = (arguments, words)) -> Any:
            function(address)
            return ctypes.c_int32(result.value).value if returns_int else None

        return call


def load(function: "EntryFunction", types: ArgumentTypes) -> MachineCode:
    """Returns a function's machine code from the disk; compiles and writes it first if needed.

    If the cache is damaged or cannot be written, it prints a message and compiles. Raises UsageError if Numba is
    missing or too old."""
    path = _cache_path(function, types)
    code = _read(path)
    if code is None:
        with compile_lock(path.with_suffix(".lock")) as has_waited:
            code = _read(path) if has_waited else None  # another process may have compiled it meanwhile
            if code is None:
                image, returns_int = _compile(function, types)
                _write(path, json.dumps({"returns_int": returns_int}).encode() + b"\n" + image)
                code = MachineCode(image, returns_int)
    return code


def _read(path: Path) -> MachineCode | None:
    """Returns the contents of a file of the cache; None if it does not exist or is damaged."""
    try:
        digest, data = path.read_bytes().split(b"\n", 1)
        if digest.decode() != hashlib.sha256(data).hexdigest():
            raise ValueError("damaged")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        say(f"the cache {path} cannot be read ({error}): compiling anew")
        return None
    header, image = data.split(b"\n", 1)
    facts = json.loads(header)
    return MachineCode(image, facts["returns_int"])


def _write(path: Path, data: bytes) -> None:
    """Writes a file of the cache, and removes those of older versions."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        unfinished.write_bytes(hashlib.sha256(data).hexdigest().encode() + b"\n" + data)
        os.replace(unfinished, path)
        remove_old(path.parent)
    except OSError as error:
        say(f"{path.parent} cannot be written ({error.strerror}): the next start will compile again")
        with contextlib.suppress(OSError):
            unfinished.unlink()


def remove_old(folder: Path) -> None:
    """Removes machine code, of CPUs and GPUs, that was written or touched long ago."""
    for old in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # another process has removed it
            if old.suffix in (".o", ".lock", ".ptx", ".cubin") and time.time() - old.stat().st_mtime > KEPT_S:
                old.unlink()


@contextlib.contextmanager
def compile_lock(path: Path) -> Iterator[bool]:
    """Lets one process at a time compile a function; yields whether it waited for another one.

    If no file can be written or locked, all processes may compile."""
    with contextlib.ExitStack() as stack:
        has_waited = False
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(path.open("w"))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                say("waiting for another process that compiles it ...")
                fcntl.flock(file, fcntl.LOCK_EX)
                has_waited = True
        yield has_waited


def _compile(function: "EntryFunction", types: ArgumentTypes) -> tuple[bytes, bool]:
    """Runs `compilation.compile_function` in a separate process, and returns its result.

    So this process never loads Numba and its 300 MB. Raises UsageError if that process fails."""
    version = check_numba()
    say(f"compiling the Atari emulator ({function.__name__}) for this processor, once (20 to 40 s) ...")
    start = time.perf_counter()
    module, name = function.__wrapped__.__module__, function.__name__
    status, data, said = ask_process(COMPILATION, module, name, *types, stderr=subprocess.PIPE)
    if status or not data:
        reasons = said.decode(errors="replace").strip().splitlines() or [f"status {status}"]
        raise UsageError(
            f"Numba {version} cannot compile the Atari emulator: {reasons[-1]}; try another version of Numba "
            "(pip install --upgrade numba)"
        )
    image, returns_int = pickle.loads(data)
    say(f"compiled {function.__name__} in {time.perf_counter() - start:.1f} s")
    return image, returns_int


def check_numba() -> str:
    """Returns Numba's version, without importing it. Raises UsageError if it is missing or too old."""
    try:
        version = importlib.metadata.version("numba")
        importlib.metadata.version("llvmlite")
    except importlib.metadata.PackageNotFoundError:
        raise UsageError(f"the native emulator needs Numba, which is not installed: {INSTALL}") from None
    if tuple(map(int, version.split(".")[:2])) < OLDEST_NUMBA:
        oldest = ".".join(map(str, OLDEST_NUMBA))
        raise UsageError(f"the emulator needs Numba {oldest} or newer, this is {version}: {INSTALL}")
    return version


def _import_llvm() -> Any:
    """Returns llvmlite. Raises UsageError if it is installed but cannot be imported."""
    try:
        import llvmlite.binding as llvm
    except Exception as error:  # a library is missing or made for another processor
        raise UsageError(
            f"the native emulator needs llvmlite, which cannot be imported ({type(error).__name__}: {error}): "
            "pip install --force-reinstall llvmlite numba"
        ) from None
    return llvm


def target_machine() -> Any:
    """Returns the processor as an LLVM target machine. An engine takes ownership of it, so each needs its own."""
    llvm = _import_llvm()
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    name, features = _processor()
    target = llvm.Target.from_default_triple()
    return target.create_target_machine(cpu=name, features=features, opt=2, jit=True)


def _processor() -> tuple[str, str]:
    """Returns LLVM's name and features of the processor to compile for: this one, or that of PROCESSOR."""
    llvm = _import_llvm()
    name = os.environ.get(PROCESSOR)
    return (name, "") if name else (llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten())


def _link(image: bytes) -> Any:
    llvm = _import_llvm()
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), target_machine())
    engine.add_object_file(llvm.ObjectFileRef.from_data(image))
    engine.finalize_object()
    return engine


def _cache_path(function: "EntryFunction", types: ArgumentTypes) -> Path:
    key = hashlib.sha256(repr((_build_key(), function.sources(), types)).encode()).hexdigest()[:16]
    return cache_folder() / f"{function.__name__}-{key}.o"


def cache_folder() -> Path:
    """Returns the cache's folder. Raises UsageError for a user without a home folder, as in some containers."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "accel_rl" / "emulator"
    except RuntimeError:
        raise UsageError(
            "accel_rl keeps machine code in ~/.cache, but this user has no home folder: export XDG_CACHE_HOME=FOLDER"
        ) from None


@cache
def _build_key() -> str:
    """Returns a hash of the sources, compilers' versions and processor that machine code depends on."""
    parts = [check_numba(), importlib.metadata.version("llvmlite"), sys.version, *_processor()]
    digest = hashlib.sha256("\n".join(parts).encode())
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def say(message: str) -> None:
    with contextlib.suppress(OSError):  # the disk is full or the terminal is gone
        print(f"accel_rl.emulator: {message}", file=sys.stderr, flush=True)
