"""``isomorph train``: settings from the command line, a watcher, and a polite end."""

from __future__ import annotations

import json as json_text
import sys
from collections.abc import Mapping
from math import log
from pathlib import Path
from typing import Any

from isomorph.backends.available import default_backend
from isomorph.backends.training_config import TrainingConfig
from isomorph.cli.network import Contracts, open_network
from isomorph.cli.stopping import Stopping
from isomorph.errors import IsomorphError
from isomorph.training.checkpoint import RunDirectory, settings_of
from isomorph.training.loop import Outcome, Reporter, Silence, train
from isomorph.writing.rule import directory_target, refuse_input


def run(
    file: str,
    contracts: Contracts,
    settings: Mapping[str, Any],
    out: str | None,
    stopping: Stopping,
    *,
    resume: bool,
    force: bool,
    json: bool,
    quiet: bool,
) -> None:
    """Train, then say how it went. When it was stopped, the exit status tells by which signal."""
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
    directory = directory_target(Path("runs") / (Path(file).stem or "run") if out is None else out, "--out")
    if force:
        _keep_inputs(directory, (file, str(settings.get("data") or "").partition(":")[2]))
    config = configuration(settings, directory, resume)
    outcome = train(
        network.plan,
        config,
        directory,
        resume=resume,
        force=force,
        reporter=Silence() if quiet or json else _reporter(),
        should_stop=stopping.asked,
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
        sys.exit(stopping.status)


def _keep_inputs(directory: Path, inputs: tuple[str, ...]) -> None:
    """E_OUTPUT when --force would delete the definition or the data of the run that it begins."""
    run = RunDirectory(directory)
    for path in (run.config, run.definition, run.metrics, run.curve, run.model, *run.checkpoints()):
        for given in inputs:
            refuse_input(str(path), given)


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
