"""Runs updates on a CPU as machine code: a small network's time goes into PyTorch's calls, not into arithmetic.

A call is recorded once, compiled in a separate process while the run continues, and replaced between two updates. The
machine code stays on disk for later runs."""

import contextlib
import hashlib
import logging
import math
import operator
import os
import pickle
import platform
import subprocess
import tempfile
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from accel_rl.emulator.machine_code import cache_folder
from accel_rl.errors import UsageError, first_line
from accel_rl.hardware.topology import read_file
from accel_rl.processes.spawning import describe_exit, spawn
from accel_rl.updates.compilation import (
    Code,
    Request,
    digest_path,
    failure_path,
    is_whole,
    recall_failure,
    remember_failure,
)
from accel_rl.updates.cuda_graphs import Work
from accel_rl.updates.recording import Recording, record
from accel_rl.updates.terms import PackedTerms, Terms, unpacked
from accel_rl.updates.trees import dtype_of, leaves, map_leaves, structure

logger = logging.getLogger("accel_rl")

RunCode = Callable[[list[Tensor], list[Tensor]], list[Tensor]]
"""run(bases, arguments) -> the program's results; it also changes the bases. See `recording.replay`."""

FindCode = Callable[[Recording], RunCode | None]

NUM_WARM_UP_CALLS = 2  # run operation by operation before a call is recorded
MAX_PARAMETERS = 300_000
NUM_TIMED_CALLS = 20  # calls of machine code are timed, then compared with single operations
MAX_CALLS = 8  # the most calls that are compiled, of different functions or shapes
MIN_SPENT_S = 5.0  # seconds of learning before a compilation begins, since many runs end earlier
MIN_LEFT_S = 60.0  # seconds of learning without machine code to come; compiling takes 20 to 60 s of a busy CPU
COMPILATION = "accel_rl.updates.compilation"
TIMEOUT_S = 900.0  # limit of a compilation


def why_not_compiled(when: str, deterministic: bool, module: nn.Module, has_store: bool = False) -> str:
    """Returns why a run does not compile the updates of a network, or "" if it does.

    A small network's time goes into calls, but convolutions gain nothing. Machine code rounds differently, so
    deterministic runs use it only on demand. has_store: learners share a central store."""
    if when == "never":
        return "it is switched off"
    if when == "auto" and deterministic:
        return "machine code rounds differently"
    if has_store:
        return "the learners share a central store"
    parameters = [*module.parameters()]
    if any(parameter.device.type != "cpu" for parameter in parameters):
        return "the network is on a GPU"
    if (count := sum(parameter.numel() for parameter in parameters)) > MAX_PARAMETERS:
        return f"the network has {count:,} parameters; only networks of at most {MAX_PARAMETERS:,} gain from it"
    if any(isinstance(layer, nn.Conv2d) for layer in module.modules()):
        return "the network has convolutions, which gain nothing"
    return "" if hasattr(torch._C, "_aoti") else "this PyTorch cannot run machine code"


class CompiledCalls:
    """A cache of machine code, for calls of a function with arguments of one structure and shape.

    when: "always" compiles before the first call; "auto" during the run, if enough of it remains to save time.
    find_code: returns the machine code of a recording, if there is any. Keep `share_done`, the part of the run that is
    done (0 to 1), up to date.

    A function that cannot be compiled keeps running operation by operation, and the log says so."""

    def __init__(self, when: str, find_code: FindCode | None = None):
        self.when, self.find_code, self.share_done = when, find_code or load, 0.0
        self.num_calls = self.num_compiled = 0
        self.is_recording = False
        self._calls: dict[Hashable, _Call] = {}

    def __call__(
        self,
        key: Hashable,
        work: Work,
        parts: Sequence[Any],
        arguments: tuple[Any, ...],
        eager: Callable[[Any], Terms],
        uses: Sequence[Tensor] = (),
    ) -> list[Terms]:
        """Returns eager(part) for each part in order, or computes the same as unpack(work(part, *arguments)) by machine
        code.

        key: the same if and only if work does the same. parts: of one structure and shape. uses: other tensors that
        work reads and that may be replaced; everything else that it reads changes only in place."""
        whole_key = (key, structure(parts[0]), structure(arguments))
        call = self._calls.get(whole_key)
        self.num_calls += len(parts)
        if call and not all(map(operator.is_, uses, call.uses)):
            call.stop()
            call = self._calls[whole_key] = _Call(self, uses)
        if call is None and len(self._calls) < MAX_CALLS:
            call = self._calls[whole_key] = _Call(self, uses)
        if call is None:
            return [eager(part) for part in parts]
        num_prepared, terms = 0, list[Terms]()
        while not call.is_ready and num_prepared < len(parts):
            terms.append(call.prepare(work, (parts[num_prepared], *arguments), partial(eager, parts[num_prepared])))
            num_prepared += 1
        return terms + call.run(parts[num_prepared:], arguments)

    def forget(self) -> None:
        """Drops all machine code. Call it after replacing a tensor that a function uses."""
        for call in self._calls.values():
            call.stop()
        self._calls.clear()

    def read_share(self) -> float:
        """Returns the share of calls since the last reading that machine code made."""
        share = self.num_compiled / max(1, self.num_calls)
        self.num_calls = self.num_compiled = 0
        return share


class _Call:
    """The calls of one function with arguments of one structure: first by single operations, later by machine code."""

    def __init__(self, owner: CompiledCalls, uses: Sequence[Tensor]):
        self.uses, self._owner, self._share_at_start = [*uses], owner, owner.share_done
        self._num_calls, self._seconds, self._fastest_s = 0, 0.0, math.inf
        self._recording: Recording | None = None
        self._compiler: _Compiler | None = None
        self._code: RunCode | None = None
        self._is_checked = self._is_given_up = False
        self._num_timed, self._fastest_code_s = 0, math.inf

    @property
    def is_ready(self) -> bool:
        """True if there is machine code, and two recordings were the same."""
        return self._code is not None and self._is_checked

    def prepare(self, work: Work, arguments: tuple[Any, ...], eager: Callable[[], Terms]) -> Terms:
        """Makes a call before there is machine code, and takes a step toward it."""
        self._num_calls += 1
        if self._recording is None and self._is_due():
            self._take(self._record(work, arguments))
        elif self._recording and not self._is_checked:
            self._check(self._recording, self._record(work, arguments))
        if self._recording and not self._code and not self._is_given_up:
            self._advance(self._recording)
        if self._code:
            return self.run(arguments[:1], arguments[1:])[0]
        started = time.perf_counter()
        terms = eager()
        seconds = time.perf_counter() - started
        self._seconds, self._fastest_s = self._seconds + seconds, min(self._fastest_s, seconds)
        return terms

    def run(self, parts: Sequence[Any], arguments: tuple[Any, ...]) -> list[Terms]:
        """Makes a call for each part, by machine code."""
        if not parts:
            return []
        assert self._recording and self._code
        self._owner.num_compiled += len(parts)
        code, bases, constant = self._code, self._recording.bases, [*map(_ready, leaves(arguments))]
        started = time.perf_counter()
        results = [code(bases, [*map(_ready, leaves(part)), *constant]) for part in parts]
        if self._num_timed < NUM_TIMED_CALLS and self._owner.when == "auto":
            self._compare((time.perf_counter() - started) / len(parts), len(parts))
        return [self._terms(self._recording.result, iter(each)) for each in results]

    def _terms(self, packed: PackedTerms, results: Iterator[Tensor]) -> Terms:
        """Returns what `unpack` does. The code stacks scalars, so they are not views of anything."""
        scalars = {places: next(results) for places in packed.scalars}
        return unpacked(PackedTerms(scalars, {place: next(results).clone() for place in packed.arrays}))

    def stop(self) -> None:
        """Ends a compilation that is under way."""
        if self._compiler:
            self._compiler.stop()

    def _is_due(self) -> bool:
        return self._owner.when == "always" or self._num_calls > NUM_WARM_UP_CALLS

    def _record(self, work: Work, arguments: tuple[Any, ...]) -> Recording:
        self._owner.is_recording = True
        try:
            return record(work, map_leaves(_contiguous, arguments))
        finally:
            self._owner.is_recording = False

    def _take(self, recording: Recording) -> None:
        """Looks for the machine code of a recording, unless it cannot be compiled."""
        self._recording = recording
        if recording.problem:
            self._give_up(recording.problem)
        else:
            self._find_code(recording)

    def _check(self, first: Recording, second: Recording) -> None:
        """Compares the recordings of two calls, since machine code would freeze a number that Python computes."""
        self._is_checked = True
        ours, theirs = ([base.data_ptr() for base in each.bases] for each in (first, second))
        if first.program != second.program or ours != theirs:
            self._give_up("it uses numbers or tensors of its own, which differ from call to call")

    def _compare(self, seconds: float, num_calls: int) -> None:
        """Goes back to single operations if they are faster, as they can be for large batches."""
        self._num_timed += num_calls
        self._fastest_code_s = min(self._fastest_code_s, seconds)
        if self._num_timed >= NUM_TIMED_CALLS and self._fastest_code_s > self._fastest_s:
            ours, theirs = 1e3 * self._fastest_code_s, 1e3 * self._fastest_s
            self._give_up(f"machine code takes {ours:.2f} ms, single operations {theirs:.2f} ms")

    def _advance(self, recording: Recording) -> None:
        """Begins to compile if that saves time; loads the machine code once it exists."""
        is_needed = self._owner.when == "always"
        is_worth_it = self._seconds > MIN_SPENT_S and self._left_s() > MIN_LEFT_S
        if self._compiler is None and (is_needed or is_worth_it):
            self._begin(recording)
        if self._compiler and self._compiler.has_ended(wait=is_needed):
            if not self._find_code(recording) and not self._is_given_up:
                self._give_up(self._compiler.problem())
            self._compiler = None

    def _begin(self, recording: Recording) -> None:
        try:
            self._compiler = _Compiler(recording)
        except (OSError, UsageError) as error:
            self._give_up(str(error))
        else:
            logger.info("the update is being compiled, which takes about half a minute")

    def _find_code(self, recording: Recording) -> bool:
        """Loads the machine code if it is complete on disk; returns whether there is any."""
        try:
            self._code = self._owner.find_code(recording)
        except (OSError, RuntimeError, UsageError) as error:
            self._give_up(first_line(error))
            return False
        if self._code:
            logger.info("the update runs as machine code from here on")
        return self._code is not None

    def _left_s(self) -> float:
        """Estimates how many seconds these calls will take in the rest of the run, without machine code."""
        done = self._owner.share_done
        return self._seconds * (1 - done) / (done - self._share_at_start) if done > self._share_at_start else 0.0

    def _give_up(self, reason: str) -> None:
        self._is_given_up, self._is_checked, self._code = True, True, None
        logger.warning("the update is not compiled and keeps running operation by operation: %s", reason)


class _Compiler:
    """A process that compiles a recorded program. Raises OSError if it cannot be passed to it."""

    def __init__(self, recording: Recording):
        self._path = path_of(recording)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._request, self._said = tempfile.NamedTemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115
        request = Request(recording.program, recording.bases, recording.arguments, torch.get_num_threads(), self._path)
        pickle.dump(request, self._request)
        self._request.flush()
        self._deadline = time.monotonic() + TIMEOUT_S
        words = os.getpid(), self._request.name
        self._process = spawn(COMPILATION, *words, stdout=subprocess.DEVNULL, stderr=self._said)

    def has_ended(self, wait: bool) -> bool:
        """Returns whether the process has ended; stops it at its time limit."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(self._deadline - time.monotonic() if wait else 0)
        if self._process.returncode is None and time.monotonic() > self._deadline:
            self.stop()
            remember_failure(self._path, f"it takes longer than {TIMEOUT_S / 60:.0f} minutes")
        return self._process.returncode is not None

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()

    def problem(self) -> str:
        """Returns why there is no machine code: the last line that the process wrote."""
        self._said.seek(0)
        lines = self._said.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"the compiler {describe_exit(self._process.returncode)}"


def _contiguous(leaf: Any) -> Tensor:
    """Returns an argument as machine code takes it. A number becomes a new tensor: recordings go by identity."""
    return leaf.contiguous() if isinstance(leaf, Tensor) else torch.tensor(leaf, dtype=dtype_of(leaf))


@lru_cache(maxsize=256, typed=True)
def _number(value: float) -> Tensor:
    return _contiguous(value)


def _ready(leaf: Any) -> Tensor:
    """Does the same for calls of machine code, which changes no argument, so equal numbers can share a tensor."""
    return leaf.contiguous() if isinstance(leaf, Tensor) else _number(leaf)


def load(recording: Recording) -> RunCode | None:
    """Returns the machine code of a recording, or None if there is none on disk, or it is incomplete.

    Raises RuntimeError if PyTorch cannot load it, or could not compile it in an earlier run; OSError if it cannot be
    read; UsageError as `path_of` does."""
    path = path_of(recording)
    if is_whole(path):
        for used in (path, digest_path(path)):  # so that they are not removed soon
            with contextlib.suppress(OSError):
                os.utime(used)
        return Code(path)
    if reason := recall_failure(path):
        raise RuntimeError(f"{reason} (to try again, remove {failure_path(path)})")
    return None


def path_of(recording: Recording) -> Path:
    """Returns the path of a program's machine code. The name depends on everything that the code depends on. Raises
    UsageError for a user without a home folder."""
    tensors = [(tuple(tensor.shape), tensor.dtype) for tensor in (*recording.bases, *recording.arguments)]
    parts = (recording.program, tensors, torch.get_num_threads(), *_versions())
    name = hashlib.sha256(repr(parts).encode()).hexdigest()
    return cache_folder().with_name("updates") / f"{name}.so"


@cache
def _versions() -> tuple[str, ...]:
    """Returns what machine code depends on apart from its program: versions, sources, the processor."""
    sources = [Path(__file__).with_name(f"{name}.py").read_text() for name in ("compilation", "recording")]
    lines = read_file(Path("/proc/cpuinfo")).splitlines()
    features = (line for line in lines if line.startswith(("flags", "Features")))  # the names on x86 and on Arm
    return (torch.__version__, platform.machine(), next(features, platform.processor()), *sources)
