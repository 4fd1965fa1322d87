"""``isomorph import``: a published checkpoint as a definition and a model.

``-o MODEL.safetensors`` writes the model, and beside it ``MODEL.net``, the same definition as text to read and
edit; ``-o DIR`` writes ``DIR/model.safetensors`` and ``DIR/model.net``.
"""

from __future__ import annotations

import json as json_text
from pathlib import Path

from isomorph.checkpoints.importing import import_checkpoint
from isomorph.errors import IsomorphError
from isomorph.weights.atomic import atomic_write
from isomorph.weights.file import save


def run(source: str, out: str, dtype: str | None, *, json: bool, quiet: bool) -> None:
    """Write both files and say what is in them."""
    model = _target(source, out)
    plan, weights = import_checkpoint(source, dtype=dtype)
    definition = model.with_suffix(".net")
    try:
        model.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(definition, plan.definition.encode())
    except OSError as error:
        raise IsomorphError(
            "E_CHECKPOINT",
            f"cannot write {definition}: {error.strerror or error}",
            hints=["check the directory"],
        ) from error
    save(model, plan, weights)
    if json:
        found = {
            "model": str(model), "definition": str(definition), "dtype": plan.dtype,
            "parameters": plan.parameter_count,
        }  # fmt: skip
        print(json_text.dumps(found, indent=2))
    elif not quiet:
        print(f"{model}: {plan.parameter_count:,} parameters, {plan.dtype}; its definition is {definition}")


def _target(source: str, out: str) -> Path:
    """The model's file; E_ARGUMENT when it would replace the source."""
    path = Path(out)
    model = path if path.suffix == ".safetensors" else path / "model.safetensors"
    if model.exists() and model.parent.exists() and model.parent.resolve() == Path(source).resolve():
        raise IsomorphError(
            "E_ARGUMENT", f"-o {out} would replace {model}, which is imported", hints=["choose another name"]
        )
    return model
