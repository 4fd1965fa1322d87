"""``isomorph export``: a saved model as a directory that another library loads."""

from __future__ import annotations

import json as json_text
import os
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

from isomorph.backends.available import able, door
from isomorph.cli.network import inputs_of, model_file, open_network
from isomorph.errors import IsomorphError, did_you_mean, shorten
from isomorph.plan import DTYPE_BYTES, Plan
from isomorph.writing.rule import directory_target, made_directory

FORMATS = ("hf", "onnx", "python")


def run(
    model: str, to: str, out: str, *, force: bool, json: bool, quiet: bool, framework: str | None = None
) -> None:
    """Write the directory and say what loads it."""
    if to not in FORMATS:
        hints = did_you_mean(to, FORMATS) or [f"--to {' | '.join(FORMATS)}"]
        raise IsomorphError("E_ARGUMENT", f"there is no format {shorten(to)} to export to", hints=hints)
    if framework is not None and to != "python":
        raise IsomorphError(
            "E_ARGUMENT",
            f"--framework {shorten(framework)} says what source code is for, and --to {to} writes none",
            hints=["leave it out, or give --to python"],
        )
    plan, weights = open_network(model)
    if weights is None and to != "python":
        raise IsomorphError(
            "E_ARGUMENT",
            f"{model} is a definition, which has no weights to export",
            hints=["give a saved model: a .safetensors file or the directory of a run"],
        )
    directory_target(out, "-o")
    if model != "-" and os.path.realpath(out) == os.path.realpath(model_file(model).parent):
        raise IsomorphError(
            "E_OUTPUT", f"-o {out} is where the model itself is", hints=["choose another directory"]
        )
    rule: dict[str, Any] = {"force": force, "inputs": inputs_of(model)}
    if to == "python":
        _run_python(plan, weights, out, framework or able("python")[0], rule, json=json, quiet=quiet)
        return
    assert weights is not None
    if to == "onnx":
        _run_onnx(plan, weights, out, rule, json=json, quiet=quiet)
        return
    architecture = _export_published(model_file(model), plan, weights, out, rule)
    if json:
        summary = {"directory": out, "to": to, "architecture": architecture}
        print(json_text.dumps(summary, indent=2))
    elif not quiet:
        print(f'{out}: for transformers.{architecture}.from_pretrained("{out}")')


def _export_published(
    file: Path, plan: Plan, weights: Mapping[str, Any], out: str, rule: Mapping[str, Any]
) -> str:
    """Write the directory, with the notes in the model's file and the tokenizer beside it; its class."""
    from isomorph.checkpoints.exporting import export_checkpoint
    from isomorph.checkpoints.source import tokenizer_of
    from isomorph.weights.file import load_notes

    notes, tokenizer = load_notes(file), tokenizer_of(file.parent)
    return export_checkpoint(out, plan, weights, notes=notes, tokenizer=tokenizer, **rule)


def _run_python(
    plan: Plan,
    weights: Mapping[str, Any] | None,
    out: str,
    framework: str,
    rule: Mapping[str, Any],
    *,
    json: bool,
    quiet: bool,
) -> None:
    """Write source code, with the weights where there are some, and say how to use it."""
    from isomorph.source_code import export_python

    files = export_python(out, plan, weights, framework, **rule)
    if json:
        summary = {"directory": out, "to": "python", "framework": framework, "files": files}
        print(json_text.dumps(summary, indent=2))
    elif not quiet:
        paths = ", ".join(str(Path(out) / file) for file in files)
        print(f"{paths}: from model import {'load' if len(files) > 1 else 'Model'}")


ONNX_FILE = "model.onnx"


def _run_onnx(
    plan: Plan, weights: Mapping[str, Any], out: str, rule: Mapping[str, Any], *, json: bool, quiet: bool
) -> None:
    """Write ``model.onnx``, and say what it takes and how far onnxruntime is from the reference."""
    from isomorph.display.memory import available_bytes

    needed, room = _comparison_bytes(plan), available_bytes()
    directory = Path(out)
    compare = room is None or needed <= room
    with made_directory(directory):
        written = door(able("onnx")[0]).export_onnx(
            directory / ONNX_FILE, plan, weights, compare=compare, **rule
        )
    if json:
        comparisons = [one._asdict() for one in written.comparisons]
        files = {"model": written.path, "data": written.data}
        summary = {"directory": out, "to": "onnx", **files, "inputs": written.inputs,
                 "outputs": written.outputs, "comparisons": comparisons}  # fmt: skip
        print(json_text.dumps(summary, indent=2))
    elif not quiet:
        ends = (", ".join(f"{name} {what}" for name, what in end.items()) for end in written[2:4])
        print(f"{directory / ONNX_FILE}: {' -> '.join(ends)}")
        for comparison in written.comparisons:
            print(f"onnxruntime against the reference: {comparison}")
        if not compare:
            print(f"not compared with the reference, for which {needed / 2**30:.1f} GiB of memory are needed")


def _comparison_bytes(plan: Plan) -> int:
    """What comparing holds at once, the weights that are there already left out.

    Those of onnxruntime, and as much for what it casts or transposes; or of the reference the largest in float64,
    and a result of its size.
    """
    largest = max((prod(parameter.shape) for parameter in plan.parameters), default=0)
    return plan.parameter_count * 2 * DTYPE_BYTES[plan.dtype] + 16 * largest
