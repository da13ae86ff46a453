"""What a check is: a function that compares a GPU path with the CPU, and notes each difference in its probe."""

import logging
import math
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from accel_rl.doctor.float32 import exact_float32

# How far a GPU may be from the CPU. Both compute in float32 (TF32 is off), but sum in another order.
OUTPUT_TOLERANCE = 1e-4  # of a network's outputs: a few layers, and convolutions that use Winograd's algorithm
# Of what several updates have changed. One ReLU that rounding switches on or off changes a gradient by far more than
# rounding itself does; a wrong or stale batch changes these by a tenth or more.
UPDATE_TOLERANCE = 1e-2
GRAPH_TOLERANCE = 1e-3  # the same kernels in a graph and outside; only the order of atomic additions differs
ACTION_TOLERANCE = 0.02  # share of actions: a random number or two values so near each other that rounding decides

# Warnings with which a run goes on more slowly: a GPU path that could not be used.
FALLBACKS = ("cannot be captured", "cannot be pinned")


class Difference(NamedTuple):
    what: str
    value: float
    tolerance: float  # 0: exactly equal

    @property
    def is_ok(self) -> bool:
        return self.value <= self.tolerance

    @property
    def severity(self) -> float:
        """The value in units of the tolerance."""
        return self.value / self.tolerance if self.tolerance else (math.inf if self.value else 0.0)


@dataclass(frozen=True)
class Result:
    """How a check ended. outcome: passed, failed or skipped. worst: the largest difference, measured in tolerances.

    details: what was measured, or why the check was skipped; data: what was measured, as numbers. failure: what is
    wrong, with a traceback if there is one."""

    name: str
    outcome: str
    seconds: float
    worst: Difference | None = None
    details: tuple[str, ...] = ()
    failure: str = ""
    data: dict[str, Any] = field(default_factory=dict)


class SkippedError(Exception):
    """Ends a check that this machine cannot run; the message says why."""


@dataclass
class Probe:
    """What a check is given: the GPU, a folder of its own that is removed afterwards; and where it notes differences.

    A difference beyond its tolerance fails the check, but does not end it."""

    device: torch.device
    folder: Path
    differences: list[Difference] = field(default_factory=list)
    details: list[str] = field(default_factory=list)

    def close(self, what: str, found: Tensor, expected: Tensor, tolerance: float) -> None:
        """Compares ||found - expected|| / ||expected|| with the tolerance."""
        found, expected = found.detach().cpu().double(), expected.detach().cpu().double()
        value = math.inf
        if found.shape == expected.shape:
            distance, norm = float((found - expected).norm()), float(expected.norm())
            value = distance / norm if norm else distance
        self.note(what, value, tolerance)

    def equal(self, what: str, found: Tensor, expected: Tensor, tolerance: float = 0.0) -> None:
        """Compares the share of entries that are not equal with the tolerance."""
        found, expected = found.detach().cpu(), expected.detach().cpu()
        value = math.inf
        if found.shape == expected.shape and found.dtype == expected.dtype:
            value = float((found != expected).double().mean()) if found.numel() else 0.0
        self.note(what, value, tolerance)

    def true(self, what: str, is_true: bool) -> None:
        """Notes a fact that must hold."""
        self.note(what, 0.0 if is_true else math.inf, 0.0)

    def note(self, what: str, value: float, tolerance: float) -> None:
        self.differences.append(Difference(what, math.inf if math.isnan(value) else value, tolerance))


Function = Callable[[Probe], None]


@dataclass(frozen=True)
class Check:
    """name: as the table shows it; compares: what with what."""

    name: str
    compares: str
    function: Function


CHECKS: dict[str, Check] = {}
"""All checks by name, in the order in which they run; filled when accel_rl.doctor.checks is imported."""


def check(name: str, compares: str) -> Callable[[Function], Function]:
    """Registers a function as a check."""

    def register(function: Function) -> Function:
        assert name not in CHECKS
        CHECKS[name] = Check(name, compares, function)
        return function

    return register


def run_check(name: str, device: torch.device) -> Result:
    """Runs one check on a GPU. Whatever it raises is its failure."""
    start, skipped, error = time.perf_counter(), "", ""
    warnings = _Warnings()
    with tempfile.TemporaryDirectory() as folder, exact_float32(), warnings:
        probe = Probe(device, Path(folder))
        try:
            CHECKS[name].function(probe)
            torch.cuda.synchronize(device)
        except SkippedError as reason:
            skipped = str(reason)
        except Exception:
            error = traceback.format_exc()
    seconds = time.perf_counter() - start
    if skipped:
        return Result(name, "skipped", seconds, details=(skipped,))
    worst = max(probe.differences, key=lambda each: (each.severity, each.tolerance), default=None)
    failures = [f"{each.what}: {show_difference(each)}" for each in probe.differences if not each.is_ok]
    failures += [text for text in warnings.texts if any(fallback in text for fallback in FALLBACKS)]
    failure = "\n".join([*failures, *([error] if error else [])])
    return Result(name, "failed" if failure else "passed", seconds, worst, tuple(probe.details), failure)


def show_difference(difference: Difference) -> str:
    if not difference.tolerance:
        return "equal" if difference.is_ok else "not equal"
    return f"{difference.value:.1e} of {difference.tolerance:g}"


class _Warnings(logging.Handler):
    """Collects the framework's warnings while it is entered."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())

    def __enter__(self) -> None:
        logging.getLogger("accel_rl").addHandler(self)

    def __exit__(self, *_: object) -> None:
        logging.getLogger("accel_rl").removeHandler(self)
