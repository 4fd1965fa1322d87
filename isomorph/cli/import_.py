"""``isomorph import``: a published checkpoint as a definition and a model.

``-o MODEL.safetensors`` writes the model, and beside it ``MODEL.net``, the same definition as text to read and
edit; ``-o DIR`` writes ``DIR/model.safetensors`` and ``DIR/model.net``. A ``tokenizer.json`` of the checkpoint is
copied beside them; ids of special tokens and names of classes go into the model's notes.
"""

from __future__ import annotations

import json as json_text
from pathlib import Path

from isomorph.checkpoints.hub import local_directory
from isomorph.checkpoints.importing import import_checkpoint
from isomorph.checkpoints.notes import notes_of
from isomorph.checkpoints.source import TOKENIZER, configuration_of, tokenizer_of
from isomorph.errors import IsomorphError
from isomorph.weights.atomic import atomic_write
from isomorph.weights.file import save


def run(source: str, out: str, dtype: str | None, *, json: bool, quiet: bool) -> None:
    """Write the files and say what is in them."""
    directory = Path(local_directory(source))
    model = _target(directory, out)
    plan, weights = import_checkpoint(directory, dtype=dtype)
    notes, tokenizer = notes_of(configuration_of(directory)), tokenizer_of(directory)
    definition, beside = model.with_suffix(".net"), model.with_name(TOKENIZER)
    if tokenizer is not None:
        _check_tokenizer(beside, tokenizer)
    try:
        model.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(definition, plan.definition.encode())
        if tokenizer is not None and not beside.exists():
            atomic_write(beside, tokenizer)
    except OSError as error:
        raise IsomorphError(
            "E_CHECKPOINT",
            f"cannot write {error.filename or definition}: {error.strerror or error}",
            hints=["check the directory"],
        ) from error
    save(model, plan, weights, notes=notes or None)
    found = {
        "model": str(model), "definition": str(definition), "dtype": plan.dtype,
        "parameters": plan.parameter_count, **({} if tokenizer is None else {"tokenizer": str(beside)}),
    }  # fmt: skip
    if json:
        print(json_text.dumps(found, indent=2))
    elif not quiet:
        print(f"{model}: {plan.parameter_count:,} parameters, {plan.dtype}; its definition is {definition}")


def _target(source: Path, out: str) -> Path:
    """The model's file; E_ARGUMENT when it would replace the source."""
    path = Path(out)
    model = path if path.suffix == ".safetensors" else path / "model.safetensors"
    if model.exists() and model.parent.exists() and model.parent.resolve() == source.resolve():
        raise IsomorphError(
            "E_ARGUMENT", f"-o {out} would replace {model}, which is imported", hints=["choose another name"]
        )
    return model


def _check_tokenizer(beside: Path, tokenizer: bytes) -> None:
    """E_ARGUMENT when another model's tokenizer is where this one's belongs."""
    if not beside.exists():
        return
    if beside.stat().st_size != len(tokenizer) or beside.read_bytes() != tokenizer:
        raise IsomorphError(
            "E_ARGUMENT",
            f"{beside} is there already, and is not this model's",
            hints=["a model and its tokenizer.json lie side by side: choose another directory, or remove it"],
        )
