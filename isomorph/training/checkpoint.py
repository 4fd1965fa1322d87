"""A run's state in files that are always whole, and the run's directory.

A directory holds ``config.json`` and ``definition.net`` from the start, ``metrics.jsonl``, the last two
``checkpoint-<step>.safetensors``, and at the end ``model.safetensors`` and ``curve.png``.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from isomorph.errors import IsomorphError
from isomorph.paths import path_text
from isomorph.plan import Plan
from isomorph.training.config import TrainingConfig
from isomorph.training.data import Array
from isomorph.weights.atomic import atomic_write

KEY = "isomorph.checkpoint"
FORMAT = 2
KEPT = 2
_NAME = re.compile(r"checkpoint-(\d+)\.safetensors")


class Checkpoint(NamedTuple):
    """A trainer's state before step number ``step``."""

    step: int
    state: dict[str, Array]


class RunDirectory:
    """Where a run lives. Knows names and what may be overwritten; the loop decides when."""

    def __init__(self, path: str | bytes | os.PathLike[str] | os.PathLike[bytes]) -> None:
        self.path = Path(path_text(path, "the run's directory"))
        self.model = self.path / "model.safetensors"
        self.metrics = self.path / "metrics.jsonl"
        self.curve = self.path / "curve.png"
        self.config = self.path / "config.json"
        self.definition = self.path / "definition.net"

    @property
    def finished(self) -> bool:
        """Whether a run has ended here."""
        return self.model.exists()

    @property
    def begun(self) -> bool:
        """Whether a run has left anything here, or something else lies under a name that a run would take."""
        return bool(self._taken())

    def checkpoints(self) -> list[Path]:
        """Checkpoint files, the latest first."""
        found = {int(match[1]): path for path in self._children() if (match := _NAME.fullmatch(path.name))}
        return [found[step] for step in sorted(found, reverse=True)]

    def prepare(self, plan: Plan, config: TrainingConfig, *, resume: bool, force: bool) -> None:
        """Make the directory ready, or refuse.

        Args:
            plan, config: of the run.
            resume: a run that has begun here must have this plan and these settings, and is continued.
            force: a run that has begun here is deleted (its own files and nothing else).

        Raises:
            IsomorphError: E_CHECKPOINT when a run is here and neither is given, when it is another run, or
                when files lie here under a run's names that no run made.
        """
        if self.begun and self._settings() is None:
            raise self._foreign()
        if self.begun and not (resume or force):
            state = "a finished run" if self.finished else "an unfinished run"
            raise IsomorphError(
                "E_CHECKPOINT",
                f"{self.path} holds {state}",
                hints=[
                    "--resume continues it, --force deletes it and starts anew, --out takes another place"
                ],
            )
        try:
            if self.begun and resume:
                self._compare(plan, config)
                self._remove_leftovers()
            else:
                self.path.mkdir(parents=True, exist_ok=True)
                self._clear()
                text = json.dumps({"plan": plan.to_json(), "training": config.to_dict()}, indent=2)
                atomic_write(self.config, text.encode() + b"\n")  # first: with it the run has begun
            if not self.definition.exists():
                atomic_write(self.definition, plan.definition.rstrip("\n").encode() + b"\n")
        except OSError as error:
            raise self._unwritable(error) from error

    def save(self, step: int, state: Mapping[str, Array]) -> None:
        """Write a checkpoint, then delete all but the last two. E_CHECKPOINT when that fails."""
        import numpy as np
        from safetensors.numpy import save

        arrays = {name: np.ascontiguousarray(array) for name, array in state.items()}
        run = json.loads(self.config.read_text(encoding="utf-8"))
        header = {"format": FORMAT, "step": step, **run}
        # One entry, since the package writes several in no fixed order: equal states give equal bytes.
        metadata = {KEY: json.dumps({**header, "digest": state_digest(header, arrays)})}
        try:
            atomic_write(self.path / f"checkpoint-{step:08d}.safetensors", save(arrays, metadata))
        except OSError as error:
            raise self._unwritable(error) from error
        for path in self.checkpoints()[KEPT:]:
            path.unlink(missing_ok=True)

    def latest(self) -> Checkpoint | None:
        """The latest checkpoint, or None when there is none yet.

        Raises:
            IsomorphError: E_CHECKPOINT when the latest file is damaged, E_INTEGRITY when its content is not
                what was saved; naming the one before it, if any.
        """
        paths = self.checkpoints()
        return _read(paths[0], paths[1:]) if paths else None

    # ------------------------------------------------------------------------------------------

    def _compare(self, plan: Plan, config: TrainingConfig) -> None:
        """E_CHECKPOINT unless the run here has this plan and these settings, listing what differs."""
        held = self._settings() or {}
        try:
            held_plan = Plan.from_json(held["plan"])
            held_config = TrainingConfig.from_dict(held["training"])
        except IsomorphError as error:
            raise IsomorphError(
                "E_CHECKPOINT",
                f"{self.config} is damaged: {error.message}",
                hints=["--force deletes the run and starts anew"],
            ) from error
        differences = list(held_plan.diff(plan))
        before, after = held_config.to_dict(), config.to_dict()
        differences += [
            f"{n}: {before[n]!r} there, {after[n]!r} here" for n in after if after[n] != before[n]
        ]
        if differences:
            raise IsomorphError(
                "E_CHECKPOINT",
                f"{self.path} holds another run, which cannot be resumed with this definition and settings",
                hints=[*differences, "--out takes another place, --force deletes that run"],
            )

    def _settings(self) -> dict[str, Any] | None:
        """What ``config.json`` holds if a run wrote it: the run's plan and settings."""
        try:
            found = json.loads(self.config.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return None
        return found if isinstance(found, dict) and {"plan", "training"} <= found.keys() else None

    def _foreign(self) -> IsomorphError:
        """Files under a run's names beside which no run's configuration lies are not a run's to delete."""
        reason = "is no run's configuration" if self.config.exists() else "is not there"
        return IsomorphError(
            "E_CHECKPOINT",
            f"{self.path} holds files that a run would replace, but no run made them: config.json {reason}",
            hints=[
                f"files: {', '.join(sorted(path.name for path in self._taken()))}",
                "--out takes another place; or move these files away",
            ],
        )

    def _taken(self) -> list[Path]:
        """What is here under the names that a run takes."""
        named = (self.config, self.definition, self.metrics, self.curve, self.model)
        return [*(path for path in named if path.exists()), *self.checkpoints()]

    def _clear(self) -> None:
        """Delete a run's files; its configuration last, so that a killed deletion can be repeated."""
        self._remove_leftovers()
        for path in (*self.checkpoints(), self.model, self.metrics, self.curve, self.definition, self.config):
            path.unlink(missing_ok=True)

    def _remove_leftovers(self) -> None:
        """Temporary files of a killed process."""
        for path in self._children():
            if path.name.startswith((".checkpoint-", ".model.", ".metrics.")) and path.suffix == ".tmp":
                path.unlink(missing_ok=True)

    def _children(self) -> list[Path]:
        return list(self.path.iterdir()) if self.path.is_dir() else []

    def _unwritable(self, error: OSError) -> IsomorphError:
        return IsomorphError(
            "E_CHECKPOINT",
            f"cannot write to {self.path}: {error.strerror or error}",
            hints=["--out takes another place"],
        )


def settings_of(directory: str | Path) -> dict[str, Any]:
    """The training settings that a run in this directory began with; empty when there is none."""
    path = RunDirectory(directory).config
    try:
        return dict(json.loads(path.read_text(encoding="utf-8"))["training"])
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def state_digest(header: Mapping[str, Any], state: Mapping[str, Array]) -> str:
    """SHA-256 of a checkpoint's header and of every array's name, dtype, shape and bytes, in order of names."""
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for name in sorted(state):
        array = state[name]
        digest.update(json.dumps([name, array.dtype.name, array.shape]).encode())
        digest.update(array.reshape(-1).view("uint8").data)
    return digest.hexdigest()


def _read(path: Path, earlier: list[Path]) -> Checkpoint:
    from safetensors import SafetensorError, safe_open

    mend = f"delete it to continue from {earlier[0].name}" if earlier else "start anew with --force"
    try:
        with safe_open(path, framework="numpy") as file:
            header = json.loads((file.metadata() or {}).get(KEY, "{}"))
            if header.get("format") != FORMAT:
                raise SafetensorError("it is no checkpoint of this program's format")
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            digest, step = header.pop("digest"), header["step"]
    except (SafetensorError, OSError, KeyError, ValueError, AttributeError) as error:
        raise IsomorphError("E_CHECKPOINT", f"{path} is damaged: {error}", hints=[mend]) from error
    if digest != state_digest(header, state):
        raise IsomorphError(
            "E_INTEGRITY",
            f"{path} was altered: its content has not the digest it was saved with",
            hints=[mend],
        )
    return Checkpoint(step, state)
