"""``isomorph import``: a published checkpoint as a definition and a model.

``-o MODEL.safetensors`` writes the model, and beside it ``MODEL.net``, the same definition as text to read and
edit; ``-o DIR`` writes ``DIR/model.safetensors`` and ``DIR/model.net``. A ``tokenizer.json`` of the checkpoint is
copied beside them; ids of special tokens, names of classes and settings of generation go into the model's notes.

Nothing that somebody made is overwritten: neither an edited definition nor another model's tokenizer, unless
``--force`` says so, and nothing of the checkpoint in any case. Of an earlier import the definition goes first where it
is another one, then the model is replaced, then come the new definition and the tokenizer: killed at any moment, a
definition that is there is that of the model beside it.
"""

from __future__ import annotations

import contextlib
import json as json_text
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from isomorph.checkpoints.hub import local_directory
from isomorph.checkpoints.importing import import_checkpoint
from isomorph.checkpoints.notes import notes_of
from isomorph.checkpoints.source import configuration_of, generation_of, tokenizer_of
from isomorph.errors import IsomorphError
from isomorph.paths import TOKENIZER, path_text
from isomorph.weights.file import MODEL, load_plan, model_content
from isomorph.writing.atomic import Content, Staged, set_aside
from isomorph.writing.marks import Kind
from isomorph.writing.rule import Target, directory_target, made_directory, naming_errors, staged_files


class _Places(NamedTuple):
    """Where an import is written."""

    model: Path
    definition: Path
    tokenizer: Path


def run(source: str, out: str, dtype: str | None, *, force: bool = False, json: bool, quiet: bool) -> None:
    """Write the files and say what is in them."""
    directory = Path(local_directory(source))
    places = _places(path_text(out, "-o"))
    inputs = _files_of(directory)
    _check([Target(str(places.model), MODEL, inputs, force, alone=False)])
    left: list[str] = []
    plan, weights = import_checkpoint(directory, dtype=dtype, report=left.append)
    generation, tokenizer = generation_of(directory), tokenizer_of(directory)
    notes = notes_of(configuration_of(directory), generation)
    text = plan.definition.encode()
    _check_tokenizer(places, tokenizer, force)

    def target(path: Path, kind: Kind) -> Target:
        return Target(str(path), kind, inputs, force, alone=False)

    files: list[tuple[Target, Content]] = [
        (target(places.model, MODEL), model_content(plan, weights, notes or None)),
        (target(places.definition, _definition_kind(places.model, text)), text),
    ]
    if tokenizer is not None and not _is_tokenizer(places.tokenizer, tokenizer):
        files.append((target(places.tokenizer, _TOKENIZER_KIND), tokenizer))
    _check([one for one, _ in files])
    with made_directory(places.model.parent), staged_files(files) as finished:
        _publish(finished, text)
    summary = {
        "model": str(places.model), "definition": str(places.definition), "dtype": plan.dtype,
        "parameters": plan.parameter_count,
        **({} if tokenizer is None else {"tokenizer": str(places.tokenizer)}), **({"notes": left} if left else {}),
    }  # fmt: skip
    if json:
        print(json_text.dumps(summary, indent=2))
    elif not quiet:
        print(
            f"{places.model}: {plan.parameter_count:,} parameters, {plan.dtype}; "
            f"its definition is {places.definition}"
        )
        for line in left:
            print(line, file=sys.stderr)


def _places(out: str) -> _Places:
    """Where to write: a model by its name, or a directory."""
    directory = out.endswith(("/", os.sep)) or os.path.isdir(out)
    model = Path(out)
    if directory or model.suffix.lower() != ".safetensors":
        model = directory_target(out, "-o") / "model.safetensors"
    return _Places(model, model.with_suffix(".net"), model.with_name(TOKENIZER))


def _files_of(directory: Path) -> tuple[str, ...]:
    """What is read: a checkpoint's files. Of what is no directory, its reader says so."""
    with contextlib.suppress(OSError):
        return tuple(entry.path for entry in os.scandir(directory))
    return ()


def _check(targets: Sequence[Target]) -> None:
    """E_OUTPUT for files that cannot be written; their directory may be missing."""
    for target in targets:
        if directory := os.path.dirname(target.name):
            directory_target(directory + "/", "-o")  # with its mark: whatever its name looks like
        target.check_there()


_TOKENIZER_KIND = Kind("tokenizer of this model", (".json",), lambda name: False)


def _is_tokenizer(path: Path, content: bytes) -> bool:
    """Whether a file holds exactly this tokenizer."""
    with naming_errors(str(path)):
        return os.path.isfile(path) and path.stat().st_size == len(content) and path.read_bytes() == content


def _check_tokenizer(places: _Places, tokenizer: bytes | None, force: bool) -> None:
    """E_OUTPUT when this model would be read with another one's tokenizer, or another one with this one's.

    One file serves every model in a directory.
    """
    beside, others = places.tokenizer, _other_models(places.model)
    there = os.path.lexists(beside)
    replaceable = tokenizer is not None and not others
    if there and tokenizer is None:
        problem = "is there already, and this model has none of its own"
    elif there and tokenizer is not None and not _is_tokenizer(beside, tokenizer):
        if force and replaceable:
            return
        problem = "is there already, and is not this model's"
    elif not there and tokenizer is not None and others:
        problem = f"would be taken for that of {others[0].name} too"
    else:
        return
    hint = "a model and its tokenizer.json lie side by side: choose another directory"
    hint += ", or remove it" if there else ", as in -o NAME/"
    raise IsomorphError(
        "E_OUTPUT",
        f"{beside} {problem}",
        hints=[hint + (", or replace it: --force" if there and replaceable else "")],
    )


def _other_models(model: Path) -> list[Path]:
    return sorted(other for other in model.parent.glob("*.safetensors") if other.name != model.name)


def _definition_kind(model: Path, text: bytes) -> Kind:
    """A definition is ours when it is the new one, or that of the model beside it."""

    def is_own(name: str) -> bool:
        there = Path(name).read_bytes()
        if there == text:
            return True
        with contextlib.suppress(IsomorphError):  # without a sound model beside it nobody knows whose it is
            return there == load_plan(model).definition.encode()
        return False

    return Kind("definition of this model or of the one beside it", (".net",), is_own)


def _publish(finished: Sequence[Staged], text: bytes) -> None:
    """Let the files take their names, the model first, and an old definition away before it."""
    model, definition, *others = finished
    before = definition.target
    changes = os.path.lexists(before) and before.read_bytes() != text
    with set_aside(before) if changes else contextlib.nullcontext():
        model.publish()
    for file in (definition, *others):
        file.publish()
