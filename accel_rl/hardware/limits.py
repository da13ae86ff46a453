"""Explains errors caused by limits of the process, its user or its control group. Imports no torch."""

import contextlib
import errno
import os
import resource
import threading
from collections.abc import Iterator

from accel_rl.errors import RunError, UsageError, first_line


@contextlib.contextmanager
def advice_on_limits() -> Iterator[None]:
    """Replaces an error caused by a limit with a RunError that names a way out."""
    try:
        yield
    except Exception as error:
        if (advice := describe_exceeded_limit(error)) is None:
            raise
        raise RunError(advice) from error


def describe_exceeded_limit(error: BaseException) -> str | None:
    """Returns a line that explains an error caused by a limit on files, processes, threads or addresses, with a way
    out. Returns None for any other error, and for this package's own errors."""
    if isinstance(error, RunError | UsageError):
        return None
    reason, number = first_line(error), error.errno if isinstance(error, OSError) else None
    if number in (errno.EMFILE, errno.ENFILE):
        return (
            f"{reason}: this process may have {resource.getrlimit(resource.RLIMIT_NOFILE)[0]} files open; raise that "
            "limit (ulimit -n 65536), or use fewer --workers"
        )
    if os.strerror(errno.EAGAIN) in reason or "can't start new thread" in reason:  # errors from C++ have no number
        return (
            f"no further process or thread can be started ({reason}): raise the user's limit (ulimit -u), or that of "
            "the container (docker run --pids-limit), or use fewer --workers and --learning-threads"
        )
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    signs = ("failed to map segment", "annot allocate memory", "can't allocate memory")
    is_about_memory = isinstance(error, MemoryError) or any(sign in str(error) for sign in signs)
    if limit != resource.RLIM_INFINITY and is_about_memory:
        return (
            f"the limit of {limit / 1e9:.1f} GB for this process's addresses is too low ({reason}); raise it "
            "(ulimit -v unlimited): PyTorch's libraries alone take about 1 GB, those for GPUs several"
        )
    return None


def check_threads(num_threads: int) -> None:
    """Raises RuntimeError if this process cannot start num_threads more; OpenMP and Gloo would abort it later."""
    is_tried = threading.Event()
    tried = [threading.Thread(target=is_tried.wait, daemon=True) for _ in range(num_threads)]
    try:
        for thread in tried:
            thread.start()
    finally:
        is_tried.set()
        for thread in tried:
            if thread.ident is not None:
                thread.join()
