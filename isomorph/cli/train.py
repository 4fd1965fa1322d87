"""``isomorph train``: settings from the command line, a watcher, and a polite end."""

from __future__ import annotations

import json as json_text
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from math import log
from pathlib import Path
from types import FrameType
from typing import Any

from isomorph.cli.network import Contracts, open_network
from isomorph.errors import IsomorphError
from isomorph.paths import path_text
from isomorph.training.checkpoint import settings_of
from isomorph.training.config import TrainingConfig
from isomorph.training.loop import Outcome, Reporter, Silence, train
from isomorph.training.trainer import default_backend

INTERRUPTED = 130


def run(
    file: str,
    contracts: Contracts,
    settings: Mapping[str, Any],
    out: str | None,
    *,
    resume: bool,
    force: bool,
    json: bool,
    quiet: bool,
) -> None:
    """Train, then say how it went. Exit status 130 when it was stopped."""
    if resume and force:
        raise IsomorphError(
            "E_ARGUMENT", "--resume keeps the run that is there and --force deletes it: give one"
        )
    network = open_network(file, contracts)
    if network.weights is not None:
        raise IsomorphError(
            "E_ARGUMENT",
            f"{file} is a saved model; training starts from a definition",
            hints=["a run's own directory has its definition.net"],
        )
    directory = (
        Path(path_text(out, "--out")) if out is not None else Path("runs") / (Path(file).stem or "run")
    )
    config = configuration(settings, directory, resume)
    with _stopping(quiet) as stop:
        outcome = train(
            network.plan,
            config,
            directory,
            resume=resume,
            force=force,
            reporter=Silence() if quiet or json else _reporter(),
            should_stop=lambda: bool(stop),
        )
    if json:
        print(json_text.dumps(outcome.to_dict(), indent=2))
    elif outcome.stopped:
        print(
            f"stopped after step {outcome.step:,} of {outcome.steps:,}; the same command with --resume continues",
            file=sys.stderr,
        )
    else:
        print(closing(outcome))
    if outcome.stopped:
        sys.exit(INTERRUPTED)


def configuration(settings: Mapping[str, Any], directory: Path, resume: bool) -> TrainingConfig:
    """The settings given, over those that a resumed run began with, over the defaults.

    The default backend is the preferred one of those installed: see ``default_backend``.
    """
    given = {name: value for name, value in settings.items() if value is not None}
    chosen = {**(settings_of(directory) if resume else {}), **given}
    if "backend" not in chosen:
        chosen["backend"] = default_backend()
    return TrainingConfig.from_dict(chosen)


def closing(outcome: Outcome) -> str:
    """What a finished run has to say."""
    lines = []
    if outcome.test_accuracy is not None and outcome.test_loss is not None:
        detail = f"loss {outcome.test_loss:.4f}"
        if outcome.unit == "byte":
            detail += f", {outcome.test_loss / log(2):.3f} bits per byte"
        lines.append(
            f"Test accuracy: {100 * outcome.test_accuracy:.2f}% of {outcome.test_count:,} {outcome.unit}s ({detail})"
        )
    lines.append(f"Trained in {outcome.seconds:.1f} s." if outcome.seconds else "This run had ended before.")
    lines.append(f"{outcome.directory} holds model.safetensors, metrics.jsonl and curve.png.")
    return "\n".join(lines)


def _reporter() -> Reporter:
    from rich.console import Console

    from isomorph.cli.progress import Bar, Lines

    console = Console(stderr=True)
    return Bar(console) if console.is_terminal else Lines()


@contextmanager
def _stopping(quiet: bool) -> Iterator[list[int]]:
    """A list that is no longer empty once the process was asked to stop; asked again, it stops at once."""
    asked: list[int] = []
    before = {}

    def restore() -> None:
        for number, handler in before.items():  # None: not installed from Python, and so not restorable
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def note(number: int, frame: FrameType | None) -> None:
        asked.append(number)
        restore()  # of both: the next signal, whichever it is, acts at once
        if not quiet:
            with suppress(RuntimeError, OSError):  # the signal may have come in the middle of a line
                print("stopping after this step; again to stop at once", file=sys.stderr, flush=True)

    for number in (signal.SIGINT, signal.SIGTERM):
        before[number] = signal.getsignal(number)
        signal.signal(number, note)
    try:
        yield asked
    finally:
        restore()
