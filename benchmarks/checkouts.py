"""Runs and identifies the accel_rl of other checkouts of this repository."""

import os
import subprocess
import sys
from pathlib import Path

from accel_rl.errors import UsageError


def environment_of(checkout: Path) -> dict[str, str]:
    """Returns environment variables that make a process import this checkout's accel_rl."""
    return {**os.environ, "PYTHONPATH": str(checkout.resolve())}


def check_checkout(checkout: Path) -> None:
    """Raises UsageError if a process with this checkout would import another accel_rl, or none."""
    command = [sys.executable, "-c", "import accel_rl; print(accel_rl.__file__)"]
    done = subprocess.run(command, env=environment_of(checkout), cwd="/", capture_output=True, text=True)
    package = checkout.resolve() / "accel_rl" / "__init__.py"
    if Path(done.stdout.strip()) != package:
        found = done.stdout.strip() or done.stderr.strip().splitlines()[-1]
        raise UsageError(f"{checkout} must be a checkout of accel_rl, but importing {package} gives {found}")


def describe_commit(checkout: Path) -> str:
    """Returns the checkout's commit, with "-dirty" if files differ from it; "unknown" if git has no answer."""
    command = ["git", "-C", str(checkout), "describe", "--always", "--dirty", "--abbrev=10", "--exclude=*"]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stdout.strip() or "unknown"
