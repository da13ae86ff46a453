"""Messages of a run: log.txt and the console."""

import contextlib
import logging
import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from accel_rl.hardware.limits import describe_exceeded_limit

logger = logging.getLogger("accel_rl")


class _ConsoleHandler(logging.Handler):
    """A handler that prints messages above the panel, if there is one. It skips errors, since `main` prints them."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno < logging.ERROR:
            print_line(self.format(record))


def print_line(text: str) -> None:
    """Prints a line on stderr if possible: a run goes on when its terminal is gone, or the disk is full."""
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)


class _LogFile(logging.FileHandler):
    """A handler that writes to log.txt. If that fails, it says so once."""

    _has_failed = False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        if not self._has_failed:
            self._has_failed = True
            goes_on_without("log.txt", sys.exception())

    def close(self) -> None:
        with contextlib.suppress(OSError):  # it retries the messages that were not written
            super().close()


def goes_on_without(name: str, error: BaseException | None) -> None:
    """Logs that an optional file cannot be written and the run goes on."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else error
    logger.warning("the run goes on without %s, which cannot be written: %s", name, reason)


def command() -> str:
    """Returns how the user can call this program: by name if the shell finds it, else by its path."""
    if shutil.which("accel-rl"):
        return "accel-rl"
    script = Path(sys.executable).with_name("accel-rl")
    shown = script.relative_to(Path.cwd()) if script.is_relative_to(Path.cwd()) else script
    return shlex.quote(str(shown)) if script.exists() else f"{shlex.quote(sys.executable)} -m accel_rl"


@contextlib.contextmanager
def open_log(folder: Path, show: bool, rank: int = 0) -> Iterator[None]:
    """Sends the framework's messages to log.txt and, with show, to the console, within a `with` block.

    rank: the logging learner's rank. Ranks from 1 log only warnings and errors, with their rank."""
    folder.mkdir(parents=True, exist_ok=True)  # a learner on another machine may not see it yet
    file = _LogFile(folder / "log.txt", encoding="utf-8", errors="backslashreplace")
    prefix = f" learner {rank}:" if rank else ""
    file.setFormatter(logging.Formatter(f"%(asctime)s %(levelname)s{prefix} %(message)s"))
    handlers: list[logging.Handler] = [file, *([_ConsoleHandler()] if show else [])]
    for handler in handlers:
        handler.setLevel(logging.WARNING if rank else logging.INFO)
        logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        for handler in handlers:
            logger.removeHandler(handler)
            handler.close()


@contextlib.contextmanager
def logged(folder: Path, show: bool, has_page: bool = False, rank: int = 0) -> Iterator[None]:
    """Sends messages, and an exception that ends the run, to the run's log.txt and, with show, to the console.

    has_page: adds to an exception the command that makes a page about the run so far."""
    with open_log(folder, show, rank):
        try:
            yield
        except Exception as error:
            logger.error("%s", describe_exceeded_limit(error) or error)
            if has_page and not rank and os.path.exists(folder / "progress.csv"):
                error.add_note(f"a page about the run so far: {command()} report {shlex.quote(str(folder))}")
            raise
