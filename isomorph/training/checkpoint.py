"""A run's directory: who may write there, what is overwritten, and where a run goes on.

A directory holds ``config.json`` and ``definition.net`` from the start, ``metrics.jsonl``, the last two
``checkpoint-<step>.safetensors``, and at the end ``model.safetensors`` and ``curve.png``. While a process
trains there, and after it was killed, also the file by which it owns the directory.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from isomorph.backends.trainer import Array
from isomorph.backends.training_config import TrainingConfig
from isomorph.errors import IsomorphError, shorten
from isomorph.paths import open_regular, path_text
from isomorph.plan import Plan
from isomorph.training.data import Fingerprint
from isomorph.training.metrics import is_step, read_records
from isomorph.training.ownership import Ownership
from isomorph.training.state import Checkpoint, Damaged, Run, is_checkpoint, read_checkpoint, write_checkpoint
from isomorph.weights.file import load_plan, save
from isomorph.writing.atomic import atomic_write

KEPT = 2
_MOST_SHOWN = 500  # characters of the name of data
_NAME = re.compile(r"checkpoint-(\d+)\.safetensors")
_TEMPORARY = (".checkpoint-", ".config.", ".curve.", ".definition.", ".metrics.", ".model.")
_CONFIG_BEGINS = b'{\n  "plan": "{'

Warn = Callable[[str], None]
"""Tells something that must be known."""


class RunDirectory:
    """Where a run lives. Knows names and what may be overwritten; the loop decides when.

    In order: :meth:`own`, and inside it :meth:`open`, :meth:`begin`, :meth:`latest`, then :meth:`save` as often as
    wanted and :meth:`finish`. What is stored says what this process was given, whatever lies on disk.
    """

    def __init__(self, path: str | bytes | os.PathLike[str] | os.PathLike[bytes]) -> None:
        self.path = Path(path_text(path, "the run's directory"))
        self.model = self.path / "model.safetensors"
        self.metrics = self.path / "metrics.jsonl"
        self.curve = self.path / "curve.png"
        self.config = self.path / "config.json"
        self.definition = self.path / "definition.net"
        self._ownership: Ownership | None = None
        self._given: tuple[Plan, TrainingConfig] | None = None
        self._resumed: Run | None = None
        self._header: dict[str, Any] = {}

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
        paths = {int(match[1]): path for path in self._children() if (match := _NAME.fullmatch(path.name))}
        return [paths[step] for step in sorted(paths, reverse=True)]

    @contextmanager
    def own(self, warn: Warn = lambda text: None) -> Iterator[None]:
        """Keep every other process and thread out; see :class:`isomorph.training.ownership.Ownership`.

        Raises:
            IsomorphError: E_CHECKPOINT when somebody trains here, naming the process, or nothing can be written.
        """
        try:
            ownership = Ownership(self.path)
        except OSError as error:
            raise self._unwritable(error) from error
        with ownership:
            if not ownership.locked:
                warn(f"{self.path} is on a file system without locks: no second process may train there")
            self._ownership = ownership
            try:
                yield
            finally:
                self._ownership = None

    def confirm(self) -> None:
        """E_CHECKPOINT unless this process owns the directory, still. Asked before anything is stored."""
        if self._ownership is None:
            raise IsomorphError("E_CHECKPOINT", f"{self.path} is not owned: use own() first")
        self._ownership.confirm()

    def open(self, plan: Plan, config: TrainingConfig, *, resume: bool, force: bool) -> None:
        """Refuse, or know what is to be done; nothing is changed yet.

        Args:
            plan, config: of the run.
            resume: a run that has begun here must have this plan and these settings, and is continued.
            force: a run that has begun here will be deleted (its own files and nothing else).

        Raises:
            IsomorphError: E_CHECKPOINT when a run is here and neither is given, when it is another run or its
                configuration is damaged, or when files lie here under a run's names that no run made.
        """
        self.confirm()
        self._given, self._resumed = (plan, config), None
        if not self.begun:
            return
        there = self._run()
        if there is None:
            raise self._foreign()
        if not (resume or force):
            state = "a finished run" if self.finished else "an unfinished run"
            raise IsomorphError(
                "E_CHECKPOINT",
                f"{self.path} holds {state}",
                hints=[
                    "--resume continues it, --force deletes it and starts anew, --out takes another place"
                ],
            )
        if resume:
            self._resumed = self._resumable(there, plan, config)

    def begin(self, data: Fingerprint, warn: Warn = lambda text: None) -> None:
        """Make the directory ready for the run that was opened, with these data.

        Raises:
            IsomorphError: E_CHECKPOINT when the run here was given other data, or nothing can be written.
        """
        assert self._given is not None, "open() comes first"
        run = Run(*self._given, data)
        self._header = run.to_dict()
        there = self._resumed
        if there is not None and there.data not in (None, data):
            raise self._other_data(there, data)
        self.confirm()
        try:
            if there is None:
                self._clear()
            else:
                self._remove_leftovers()
            if there is None or there.data is None:
                text = json.dumps(self._header, indent=2)
                atomic_write(self.config, text.encode() + b"\n")  # first: with it the run has begun
            if not self.definition.exists():
                atomic_write(self.definition, run.plan.definition.rstrip("\n").encode() + b"\n")
        except OSError as error:
            raise self._unwritable(error) from error
        if there is not None and there.data is None:
            warn(
                f"{self.path} was begun by a version that did not look at the data: whether {shorten(run.config.data, _MOST_SHOWN)} "
                "is what it was then cannot be told; from now on it is compared"
            )

    def save(self, step: int, state: Mapping[str, Array]) -> None:
        """Write a checkpoint, then delete all but it and the one before. E_CHECKPOINT when that fails."""
        self.confirm()
        try:
            write_checkpoint(self._checkpoint(step), step, state, self._header)
        except OSError as error:
            raise self._unwritable(error) from error
        paths = self.checkpoints()
        latest = paths.index(self._checkpoint(step))
        for path in (*paths[:latest], *paths[latest + KEPT :]):  # a later one was damaged, and passed over
            path.unlink(missing_ok=True)

    def finish(self, weights: Mapping[str, Array]) -> None:
        """Write the model, which says that the run has ended. E_CHECKPOINT when that fails."""
        assert self._given is not None, "open() comes first"
        self.confirm()
        save(self.model, self._given[0], weights)

    def has_result(self, warn: Warn = lambda text: None) -> bool:
        """Whether the opened run has ended here with a model that can be read.

        Raises:
            IsomorphError: E_CHECKPOINT when the model is another network's.
        """
        if self._resumed is None or not self.finished:
            return False
        try:
            plan = load_plan(self.model)
        except IsomorphError as error:
            warn(f"{error.message}; it is written again")
            return False
        differences = plan.diff(self._resumed.plan)
        if differences:
            raise IsomorphError(
                "E_CHECKPOINT",
                f"{self.model} is not the model of the run in {self.path}",
                hints=[*differences, "--force deletes both, --out takes another place"],
            )
        return True

    def latest(self, warn: Warn = lambda text: None) -> Checkpoint | None:
        """The latest whole checkpoint, or None when there is none yet. Damaged ones are told.

        Raises:
            IsomorphError: E_CHECKPOINT when there are checkpoints and none is whole, or the latest whole one is
                of another run or another version's.
        """
        damages: list[str] = []
        for path in self.checkpoints():
            try:
                checkpoint = read_checkpoint(path)
            except Damaged as error:
                damages.append(str(error))
                continue
            self._expect_own(path, checkpoint.run)
            for damage in damages:
                warn(f"{damage}; continuing from {path.name}")
            return checkpoint
        if damages:
            raise IsomorphError(
                "E_CHECKPOINT",
                f"{self.path} has no whole checkpoint to continue from",
                hints=[*damages, "--force deletes the run and starts anew"],
            )
        return None

    # ------------------------------------------------------------------------------------------

    def _checkpoint(self, step: int) -> Path:
        return self.path / f"checkpoint-{step:08d}.safetensors"

    def _run(self) -> Run | Damaged | None:
        """The run that is here, or how its configuration is damaged; None where no run made what is here."""
        try:
            with open_regular(self.config) as file:
                values = json.loads(file.read())
        except FileNotFoundError:
            damage = Damaged(f"{self.config} is missing")
        except (OSError, ValueError, RecursionError) as error:
            damage = Damaged(f"{self.config} is damaged: {getattr(error, 'strerror', None) or error}")
        else:
            if not _is_configuration(values):
                return None
            try:
                return Run.from_dict(values)
            except Damaged as error:
                return Damaged(f"{self.config} is damaged: {error}")
        return damage if self._is_recognized() else None

    def _is_recognized(self) -> bool:
        """Whether files show that a run was here whose configuration is damaged: no other program writes them."""
        return (
            any(is_checkpoint(path) for path in self.checkpoints())
            or (self.metrics.is_file() and any(map(is_step, read_records(self.metrics))))
            or _begins(self.config, _CONFIG_BEGINS)
        )

    def _resumable(self, there: Run | Damaged, plan: Plan, config: TrainingConfig) -> Run:
        """The run here, if it is that of this plan and these settings; E_CHECKPOINT lists what differs."""
        if isinstance(there, Damaged):
            raise IsomorphError(
                "E_CHECKPOINT",
                f"the run cannot be resumed: {there}",
                hints=["put the file back from a copy; --force deletes the run and starts anew"],
            )
        differences = there.differences(plan, config)
        if differences:
            raise IsomorphError(
                "E_CHECKPOINT",
                f"{self.path} holds another run, which cannot be resumed with this definition and settings",
                hints=[*differences, "--out takes another place, --force deletes that run"],
            )
        return there

    def _other_data(self, there: Run, data: Fingerprint) -> IsomorphError:
        return IsomorphError(
            "E_CHECKPOINT",
            f"{self.path} holds a run that was given other data: {shorten(there.config.data, _MOST_SHOWN)} was changed since",
            hints=[
                f"{there.data} there, {data} here",
                "put the data back as they were; --out takes another place, --force deletes that run",
            ],
        )

    def _expect_own(self, path: Path, run: Run) -> None:
        """E_CHECKPOINT unless a checkpoint is of the opened run; one that does not know its data may be."""
        assert self._given is not None, "open() comes first"
        differences = run.differences(*self._given)
        if run.data is not None and run.data._asdict() != self._header["data"]:
            differences.append(f"data: {run.data} there, {Fingerprint(**self._header['data'])} here")
        if differences:
            raise IsomorphError(
                "E_CHECKPOINT",
                f"{path} is the state of another run than that of {self.config.name} beside it",
                hints=[*differences, "move it away, or start anew with --force"],
            )

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
            if path.name.startswith(_TEMPORARY) and path.suffix == ".tmp":
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
    try:
        with open_regular(RunDirectory(directory).config) as file:
            return dict(json.loads(file.read())["training"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return {}


def _is_configuration(values: Any) -> bool:
    return isinstance(values, dict) and {"plan", "training"} <= values.keys()


def _begins(path: Path, start: bytes) -> bool:
    try:
        with open_regular(path) as file:
            return file.read(len(start)) == start
    except OSError:
        return False
