"""Reads the table of games in which the emulator was compared with ale-py; `verify` writes it.

Each row names what was compared: numbers of frames, the emulator's sources, the version of ale-py."""

import csv
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
TABLE = FOLDER / "exactness.csv"
# Modules that do not affect what a console computes; they have their own tests. All others count, including new ones.
NOT_COMPARED = frozenset({
    *("__init__", "batch", "compilation", "compiled", "debugger", "exactness", "frame_making", "machine_code"),
    *("palette", "pcg64", "play", "vector_chunk", "vector_env", "vector_steps", "verify"),
})  # fmt: skip
_COMMENT = re.compile(r'"""[\s\S]*?"""|#.*')


@dataclass
class Row:
    """A row of the table: the numbers of frames compared, and the first difference ("" if there is none).

    sources: `source_hash` of the emulator that was compared. ale_py: the version of ale-py."""

    game: str
    md5: str
    cartridge: str
    from_start: int = 0
    from_snapshots: int = 0
    modes: int = 0
    in_modes: int = 0
    recorded: int = 0
    difference: str = ""
    sources: str = ""
    ale_py: str = ""


def read_table(path: Path = TABLE) -> list[dict[str, Any]]:
    """Returns the rows of a table."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def source_hash() -> str:
    """Returns 12 hexadecimal digits: a hash of the code that decides what the emulator computes, without comments and
    docstrings."""
    paths = [path for path in FOLDER.glob("*.py") if path.stem not in NOT_COMPARED]
    digest = hashlib.sha256()
    for path in sorted([*paths, FOLDER / "games.ini"]):
        lines = map(str.rstrip, _COMMENT.sub("", path.read_text()).splitlines())
        digest.update("\n".join([path.name, *filter(None, lines)]).encode())
    return digest.hexdigest()[:12]
