"""What is measured, and the file that holds it: one JSON object per line."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from isomorph.writing.atomic import atomic_write


@dataclass(frozen=True)
class Totals:
    """Sums over predictions, so that unequal batches add up rightly; ignored targets are not counted.

    Attributes:
        loss: sum of cross entropies in nats.
        correct: predictions whose best-scored class is the target.
        count: predictions.
    """

    loss: float = 0.0
    correct: int = 0
    count: int = 0

    def __add__(self, other: Totals) -> Totals:
        return Totals(self.loss + other.loss, self.correct + other.correct, self.count + other.count)

    @property
    def mean_loss(self) -> float:
        """Nats per prediction; 0 when nothing was predicted."""
        return self.loss / self.count if self.count else 0.0

    @property
    def accuracy(self) -> float:
        """Share of correct predictions; 0 when nothing was predicted."""
        return self.correct / self.count if self.count else 0.0


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
