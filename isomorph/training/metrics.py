"""The file of what is measured in a run: one JSON object per line."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TextIO

from isomorph.writing.atomic import atomic_write


class MetricsFile:
    """Appends records to a JSONL file; each is in the file when :meth:`write` returns."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: TextIO = path.open("a", encoding="utf-8", buffering=1)

    def write(self, record: dict[str, Any]) -> None:
        """Append one record."""
        self._file.write(json.dumps(record) + "\n")

    def sync(self) -> None:
        """Wait until the disk has everything."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file; every record is in it."""
        self._file.close()


def read_records(path: Path) -> list[dict[str, Any]]:
    """Every whole record: an object of numbers.

    Other lines, such as a last one that a killed process left half-written, are passed over.
    """
    records = []
    if path.exists():
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if isinstance(record, dict) and all(type(value) in (int, float) for value in record.values()):
                records.append(record)
    return records


def is_step(record: Mapping[str, Any]) -> bool:
    """Whether a record is of a step that a run took."""
    return {"step", "loss", "learning_rate", "gradient_norm"} <= record.keys()


def keep_records(path: Path, wanted: Callable[[dict[str, Any]], bool]) -> None:
    """Rewrite the file, atomically, with the wanted records alone."""
    kept = [record for record in read_records(path) if wanted(record)]
    atomic_write(path, "".join(json.dumps(record) + "\n" for record in kept).encode())
