"""``isomorph import``: a published checkpoint as a definition and a model.

``-o MODEL.safetensors`` writes the model, and beside it ``MODEL.net``, the same definition as text to read and
edit; ``-o DIR`` writes ``DIR/model.safetensors`` and ``DIR/model.net``. A ``tokenizer.json`` of the checkpoint is
copied beside them; ids of special tokens, names of classes and settings of generation go into the model's notes.

Nothing that somebody made is overwritten: neither an edited definition, unless ``--force`` says so, nor another
model's tokenizer. Of an earlier import the definition goes first where it is another one, then the model is
replaced, then the new definition and the tokenizer are written: killed at any moment, a definition that is there
is that of the model beside it.
"""

from __future__ import annotations

import contextlib
import json as json_text
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from isomorph.checkpoints.hub import local_directory
from isomorph.checkpoints.importing import import_checkpoint
from isomorph.checkpoints.notes import notes_of
from isomorph.checkpoints.source import configuration_of, generation_of, tokenizer_of
from isomorph.errors import IsomorphError
from isomorph.paths import TOKENIZER, path_text
from isomorph.weights.atomic import atomic_write
from isomorph.weights.file import load_plan, save


class _Target(NamedTuple):
    """Where an import is written."""

    model: Path
    definition: Path
    tokenizer: Path


def run(source: str, out: str, dtype: str | None, *, force: bool = False, json: bool, quiet: bool) -> None:
    """Write the files and say what is in them."""
    directory = Path(local_directory(source))
    with _told(out):
        target = _target(directory, path_text(out, "-o"))
    left: list[str] = []
    plan, weights = import_checkpoint(directory, dtype=dtype, report=left.append)
    generation, tokenizer = generation_of(directory), tokenizer_of(directory)
    notes = notes_of(configuration_of(directory), generation)
    text = plan.definition.encode()
    with _told(out):
        _check_tokenizer(target, tokenizer)
        if not force:
            _check_definition(target, text)
        target.model.parent.mkdir(parents=True, exist_ok=True)
        with _withdrawn(target.definition, text):
            save(target.model, plan, weights, notes=notes or None)
        atomic_write(target.definition, text)
        if tokenizer is not None and not target.tokenizer.exists():  # else it is the same
            atomic_write(target.tokenizer, tokenizer)
    found = {
        "model": str(target.model), "definition": str(target.definition), "dtype": plan.dtype,
        "parameters": plan.parameter_count,
        **({} if tokenizer is None else {"tokenizer": str(target.tokenizer)}), **({"notes": left} if left else {}),
    }  # fmt: skip
    if json:
        print(json_text.dumps(found, indent=2))
    elif not quiet:
        print(
            f"{target.model}: {plan.parameter_count:,} parameters, {plan.dtype}; "
            f"its definition is {target.definition}"
        )
        for line in left:
            print(line, file=sys.stderr)


@contextlib.contextmanager
def _told(out: str) -> Iterator[None]:
    """E_CHECKPOINT for whatever the system has against a file."""
    try:
        yield
    except OSError as error:
        raise IsomorphError(
            "E_CHECKPOINT",
            f"cannot write {error.filename or out}: {error.strerror or error}",
            hints=["check the directory"],
        ) from error


def _target(source: Path, out: str) -> _Target:
    """Where to write; E_ARGUMENT when that would replace the source."""
    path = Path(out)
    model = path if path.suffix == ".safetensors" else path / "model.safetensors"
    if model.exists() and os.path.realpath(model.parent) == os.path.realpath(source):
        raise IsomorphError(
            "E_ARGUMENT", f"-o {out} would replace {model}, which is imported", hints=["choose another name"]
        )
    return _Target(model, model.with_suffix(".net"), model.with_name(TOKENIZER))


def _check_tokenizer(target: _Target, tokenizer: bytes | None) -> None:
    """E_ARGUMENT when this model would be read with another one's tokenizer, or another one with this one's.

    One file serves every model in a directory.
    """
    beside = target.tokenizer
    if beside.exists():
        if tokenizer is None:
            problem = "is there already, and this model has none of its own"
        elif beside.stat().st_size != len(tokenizer) or beside.read_bytes() != tokenizer:
            problem = "is there already, and is not this model's"
        else:
            return
    elif tokenizer is not None and (others := _other_models(target.model)):
        problem = f"would be taken for that of {others[0].name} too"
    else:
        return
    hint = "a model and its tokenizer.json lie side by side: choose another directory"
    raise IsomorphError(
        "E_ARGUMENT",
        f"{beside} {problem}",
        hints=[hint + (", or remove it" if beside.exists() else ", as in -o NAME/")],
    )


def _other_models(model: Path) -> list[Path]:
    return sorted(other for other in model.parent.glob("*.safetensors") if other.name != model.name)


def _check_definition(target: _Target, text: bytes) -> None:
    """E_ARGUMENT for a definition that is neither the new one nor that of the model beside it."""
    definition = target.definition
    if not os.path.lexists(definition):
        return
    there = definition.read_bytes()
    if there == text:
        return
    with contextlib.suppress(IsomorphError):  # without a sound model beside it nobody knows whose it is
        if there == load_plan(target.model).definition.encode():
            return
    raise IsomorphError(
        "E_ARGUMENT",
        f"{definition} is there already, and is not the definition of this model or of the one beside it",
        hints=["choose another name, or overwrite it: --force"],
    )


@contextlib.contextmanager
def _withdrawn(definition: Path, text: bytes) -> Iterator[None]:
    """Take a definition away while its model is replaced, unless the new one's is the same; on failure it returns."""
    before = definition.read_bytes() if os.path.lexists(definition) else text
    if before != text:
        definition.unlink()
    try:
        yield
    except BaseException:
        if before != text:
            with contextlib.suppress(OSError):
                atomic_write(definition, before)
        raise
