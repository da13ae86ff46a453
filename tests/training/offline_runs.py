"""Reads, with the record types of Weights & Biases, the offline file of a run that `wandb sync` uploads."""

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BLOCK, HEADER = 32_768, 7  # bytes, by LevelDB's log format; the file begins with a header of that length
FULL, LAST = 1, 4  # parts that end a record


@dataclass
class OfflineRun:
    """A run as it would be uploaded: settings, rows, and each artifact's files by name."""

    folder: Path
    id: str = ""
    name: str = ""
    exit_code: int | None = None
    config: dict[str, Any] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    artifacts: dict[str, dict[str, Path]] = field(default_factory=dict)

    def media(self, name: str) -> Path:
        """Returns the file of a logged picture or video."""
        key = f"{name}/path"
        path: str = next(row[key] for row in reversed(self.rows) if key in row)
        return self.folder / "files" / path


def read_offline_runs(run_dir: Path) -> list[OfflineRun]:
    """Returns the tracker's records of a run, oldest first: one for the start and one for each resume."""
    return [_read(folder) for folder in sorted((run_dir / "wandb").glob("offline-run-*"))]


def _read(folder: Path) -> OfflineRun:
    from wandb.proto.wandb_internal_pb2 import Record

    run = OfflineRun(folder)
    (file,) = folder.glob("run-*.wandb")
    for content in _records(file.read_bytes()):
        record = Record.FromString(content)
        kind = record.WhichOneof("record_type")
        if kind == "run":
            run.id, run.name = record.run.run_id, record.run.display_name
            run.config |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
        elif kind == "history":
            items = {item.key or "/".join(item.nested_key): item.value_json for item in record.history.item}
            run.rows.append({name: json.loads(text) for name, text in items.items()})
        elif kind == "request" and record.request.HasField("log_artifact"):
            _add_artifact(run, record.request.log_artifact.artifact)
        elif kind == "artifact":
            _add_artifact(run, record.artifact)
        elif kind == "exit":
            run.exit_code = record.exit.exit_code
    return run


def _add_artifact(run: OfflineRun, artifact: Any) -> None:
    entries = artifact.manifest.contents
    run.artifacts[f"{artifact.type}: {artifact.name}"] = {each.path: Path(each.local_path) for each in entries}


def _records(content: bytes) -> Iterator[bytes]:
    """Yields the records of a file in LevelDB's log format."""
    record, position = b"", HEADER
    while position + HEADER <= len(content):
        if BLOCK - position % BLOCK < HEADER:
            position += BLOCK - position % BLOCK
            continue
        length, kind = struct.unpack_from("<HB", content, position + 4)
        record += content[position + HEADER : position + HEADER + length]
        position += HEADER + length
        if kind in (FULL, LAST):
            yield record
            record = b""
