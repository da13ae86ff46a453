"""What a run says in words: log.txt and the console."""

import logging
import shlex
import shutil
import sys
from pathlib import Path

from tqdm import tqdm

logger = logging.getLogger("accel_rl")


class _ConsoleHandler(logging.Handler):
    """Lines that do not tear the progress bar. Errors are left to whoever catches them."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno < logging.ERROR:
            tqdm.write(self.format(record), file=sys.stderr)


def command() -> str:
    """How the user can call this program again: by name if a shell would find it, else by where it is."""
    if shutil.which("accel-rl"):
        return "accel-rl"
    script = Path(sys.executable).with_name("accel-rl")
    shown = script.relative_to(Path.cwd()) if script.is_relative_to(Path.cwd()) else script
    return shlex.quote(str(shown)) if script.exists() else f"{shlex.quote(sys.executable)} -m accel_rl"


def open_log(folder: Path, show: bool, rank: int = 0) -> list[logging.Handler]:
    """Sends the framework's messages to log.txt and, with show, to the console; undo with close_log.

    rank: of the learner that speaks; of others than the first, warnings and what is worse."""
    folder.mkdir(parents=True, exist_ok=True)  # of a learner on another machine
    file = logging.FileHandler(folder / "log.txt")
    speaker = f" learner {rank}:" if rank else ""
    file.setFormatter(logging.Formatter(f"%(asctime)s %(levelname)s{speaker} %(message)s"))
    handlers: list[logging.Handler] = [file, *([_ConsoleHandler()] if show else [])]
    for handler in handlers:
        handler.setLevel(logging.WARNING if rank else logging.INFO)
        logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    return handlers


def close_log(handlers: list[logging.Handler]) -> None:
    for handler in handlers:
        logger.removeHandler(handler)
        handler.close()
