"""From a published checkpoint to a plan and its weights."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from isomorph.checkpoints.families import FAMILIES
from isomorph.checkpoints.family import (
    MOST_SIZE,
    Family,
    Row,
    each_layer,
    oversized,
    read_options,
    their_shape,
    to_plan,
)
from isomorph.checkpoints.hub import local_directory
from isomorph.checkpoints.left import left_lines
from isomorph.checkpoints.sentence import MODULES, read_sentence
from isomorph.checkpoints.source import CONFIGURATION, Checkpoint, Tensor, open_checkpoint
from isomorph.checkpoints.timm import TIMM
from isomorph.dimensions import show_shape
from isomorph.errors import IsomorphError, shorten, shown
from isomorph.plan import DTYPE_BYTES, Plan
from isomorph.plan.resolve import resolve
from isomorph.weights.convert import owned_weights

_MOST_LISTED = 20
_CODES = re.compile(
    r"\.(qweight|qzeros|scales|g_idx|SCB|weight_format|absmax|nested_absmax|quant_map|nested_quant_map"
    r"|quant_state\..*|weight_scale(_inv)?|weight_packed|weight_zero_point|input_scale)$"
)
"""Tensors beside codes, as GPTQ, AWQ, bitsandbytes, compressed-tensors and FP8 call them."""


def import_checkpoint(
    path: str | bytes | os.PathLike[str] | os.PathLike[bytes],
    *,
    dtype: str | None = None,
    report: Callable[[str], object] | None = None,
) -> tuple[Plan, dict[str, np.ndarray]]:
    """Read a published model as a plan, whose ``definition`` is commented text, and its weights.

    Tensors are read one at a time from memory-mapped files; nothing in the files is executed.

    Args:
        path: a directory with ``config.json`` and ``model.safetensors`` (or parts of it with an index, or
            ``pytorch_model.bin``, for which PyTorch must be installed), or ``hf:owner/name`` for a model on
            the hub, ``hf:owner/name@revision`` for one state of it.
        dtype: the plan's compute dtype and the weights' dtype; that of the tensors where omitted, and the
            widest where they differ.
        report: called with a line for each kind of thing in the directory that was left: keys that nobody
            reads, tensors, other files of weights, a chat template, settings of generation that are not followed.
            ``report=print`` shows them.

    The settings of generation themselves are :func:`isomorph.generation_settings`'s.

    Returns:
        The plan, with batch and length open, and arrays in plan layout by parameter path.

    Raises:
        IsomorphError: E_CHECKPOINT when the directory cannot be read, holds an adapter or quantized weights,
            its family is not known, its configuration asks for something that cannot be expressed, or it was
            written for a related family that computes otherwise; E_WEIGHTS when the tensors are not
            those of the configuration; E_BACKEND when a pickle needs PyTorch, or the hub its client.
    """
    if dtype is not None and not (isinstance(dtype, str) and dtype in DTYPE_BYTES):
        raise IsomorphError(
            "E_ARGUMENT", f"dtype must be one of {', '.join(DTYPE_BYTES)}, got {shorten(dtype)}"
        )
    checkpoint = open_checkpoint(local_directory(path))
    family = _family(checkpoint)
    tensors = _named(family, checkpoint.tensors)
    _refuse_quantized(checkpoint)
    options = _options(family, checkpoint, tensors)
    tensors = _without_copies(family, options, tensors)
    # The configuration's sizes first: a hostile one is refused by the resolver's limits.
    plan = _resolved(checkpoint, family, options, dtype or _dtype(family, tensors))
    rows = each_layer(family.rows(options), family.layers(options))
    prefixed = [
        name for row in rows if row.head and (name := f"{family.prefix}.{row.theirs}") in checkpoint.tensors
    ]
    _check_tensors(family, options, plan, rows, tensors, prefixed)
    weights = _read(plan, rows, tensors)
    _refuse_strangers(family, checkpoint.directory, family.strange_weights(weights))
    if report is not None:
        read = {row.theirs for row in rows}
        for line in left_lines(family, checkpoint, options, [name for name in tensors if name not in read]):
            report(line)
    return plan, weights


def _resolved(checkpoint: Checkpoint, family: Family, options: Mapping[str, Any], dtype: str) -> Plan:
    try:
        return resolve(family.definition(options), dtype=dtype)
    except IsomorphError as error:
        raise IsomorphError(
            "E_CHECKPOINT",
            f"{checkpoint.directory / CONFIGURATION} describes a network that cannot be built: {error.message}",
            hints=[*error.hints, *oversized(family, options, above=MOST_SIZE)],
        ) from error


def _family(checkpoint: Checkpoint) -> Family:
    model_type = checkpoint.configuration.get("model_type")
    if isinstance(model_type, str) and model_type in FAMILIES:
        return FAMILIES[model_type]
    if model_type is None and "architecture" in checkpoint.configuration:
        return TIMM
    # No family is suggested for another: what is nearest by name computes something else.
    raise IsomorphError(
        "E_CHECKPOINT",
        f"{checkpoint.directory / CONFIGURATION} has model_type {shorten(model_type)}, which cannot be imported",
        hints=[f"families: {', '.join([*FAMILIES, TIMM.model_type])}"],
    )


def _named(family: Family, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors under the family's present names, without the base model's prefix."""
    prefix = family.prefix + "." if family.prefix else ""
    named: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        short = family.rename(name.removeprefix(prefix))
        if short in named:
            raise IsomorphError("E_WEIGHTS", f"{tensor.file} holds {shorten(short)} twice, under two names")
        named[short] = tensor
    return named


def _options(family: Family, checkpoint: Checkpoint, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    options, problems = read_options(family, checkpoint.configuration)
    large = oversized(family, options, len(tensors))
    if large and problems in ([], oversized(family, options)):
        raise IsomorphError(
            "E_CHECKPOINT",
            f"{checkpoint.directory / CONFIGURATION} describes a network that cannot be built: {large[0]}",
            hints=large[1:_MOST_LISTED],
        )
    named = checkpoint.configuration.get("architectures")
    listed = [family.default_architecture] if named in (None, []) else named
    given = listed[0] if isinstance(listed, list) else None
    architecture = family.architectures.get(given) if isinstance(given, str) else None
    if architecture is None:
        known = " or ".join(family.architectures)
        got = given if isinstance(listed, list) else named
        problems.insert(0, f"architectures: expected {known}, got {shorten(got)}")
    if problems:
        keys = "a key" if len(problems) == 1 else f"{len(problems)} keys"
        raise IsomorphError(
            "E_CHECKPOINT",
            f"{checkpoint.directory / CONFIGURATION}: {keys} of this {family.model_type} cannot be followed",
            hints=problems[:_MOST_LISTED],
        )
    _refuse_strangers(family, checkpoint.directory, family.strangers(checkpoint.configuration))
    facts = family.observe({name: tensor.shape for name, tensor in tensors.items()})
    if problems := family.disagreements({**options, **facts}):
        raise IsomorphError(
            "E_CHECKPOINT",
            f"{checkpoint.directory / CONFIGURATION}: this {family.model_type} cannot be followed",
            hints=problems[:_MOST_LISTED],
        )
    return {**options, "architecture": architecture, **facts, **_pooling(family, checkpoint, options)}


def _refuse_strangers(family: Family, directory: Path, signs: list[str]) -> None:
    """E_CHECKPOINT for a network of a related family under this one's name."""
    if signs:
        raise IsomorphError(
            "E_CHECKPOINT",
            f"{directory} was not made by {family.model_type}, whatever its configuration calls it: "
            "a related family computes something else from tensors of the same names",
            hints=[*signs[:_MOST_LISTED], "give model_type and architectures as they were published"],
        )


def _refuse_quantized(checkpoint: Checkpoint) -> None:
    """E_CHECKPOINT for weights that are codes of numbers, naming the method."""
    asked = checkpoint.configuration.get("quantization_config")
    codes = [name for name in checkpoint.tensors if _CODES.search(name)]
    if not asked and not codes:
        return
    method = asked.get("quant_method") if isinstance(asked, dict) else None
    by = f" by {shown(method, 60)}" if isinstance(method, str) else ""
    where = (
        f"quantization_config: {shorten(asked)}"
        if asked
        else f"{len(codes)} tensors such as {shown(codes[0])}"
    )
    raise IsomorphError(
        "E_CHECKPOINT",
        f"{checkpoint.directory} holds weights that are quantized{by}, and only plain numbers can be imported",
        hints=[where, "import the model that it was made from, or dequantize it first: model.dequantize()"],
    )


def _pooling(family: Family, checkpoint: Checkpoint, options: Mapping[str, Any]) -> dict[str, Any]:
    """How a sentence's embedding is made, where the directory is one of sentence-transformers."""
    pooling = read_sentence(checkpoint.directory, options.get("hidden_size"))
    if pooling and not family.sentences:
        raise IsomorphError(
            "E_CHECKPOINT",
            f"{checkpoint.directory / MODULES} asks for embeddings of sentences, "
            f"which are not made by {family.model_type} here",
            hints=[f"without {MODULES} the network alone is imported"],
        )
    # Its loader makes the base model, whatever class the configuration names.
    return {**pooling, "architecture": family.default_architecture} if pooling else {}


def _without_copies(
    family: Family, options: Mapping[str, Any], tensors: dict[str, Tensor]
) -> dict[str, Tensor]:
    """The tensors with each copy in its original's place; E_WEIGHTS when the two differ."""
    originals = dict(tensors)
    for copy, original in family.aliases(options).items():
        if copy not in originals:
            continue
        tensor = originals.pop(copy)
        other = originals.setdefault(original, tensor)
        readable = tensor.dtype in DTYPE_BYTES and other.dtype in DTYPE_BYTES  # others are reported later
        if other is not tensor and readable and not np.array_equal(tensor.read(), other.read()):
            raise IsomorphError(
                "E_WEIGHTS",
                f"{original} and {copy} in {tensor.file} are one tensor in {options['architecture']}, "
                "but they differ",
            )
    return originals


def _dtype(family: Family, tensors: Mapping[str, Tensor]) -> str:
    """The tensors' dtype, or the least that holds all of them exactly."""
    dtypes = {tensor.dtype for name, tensor in tensors.items() if not _unread(family, name)}
    dtypes &= DTYPE_BYTES.keys()  # others are reported with their names
    if len(dtypes) == 1:
        return dtypes.pop()
    return "float64" if "float64" in dtypes else "float32"


def _unread(family: Family, name: str) -> bool:
    patterns = (re.escape(one).replace(r"\{i\}", "[0-9]+") for one in family.unread)
    return any(re.fullmatch(pattern, name) for pattern in patterns)


def _check_tensors(
    family: Family,
    options: Mapping[str, Any],
    plan: Plan,
    rows: list[Row],
    tensors: Mapping[str, Tensor],
    prefixed: list[str],
) -> None:
    """E_WEIGHTS listing every missing, unexpected and misshapen tensor at once.

    A head's tensor stands beside the base model, and one with the base model's prefix (``prefixed``) is none.
    """
    shapes = _shapes(plan)
    expected = {row.theirs: their_shape(row, [shapes[path] for path in row.ours]) for row in rows}
    alternatives = {path: [r.theirs for r in rows if r.ours == (path,)] for path in plan.ties.values()}
    tied = {row.theirs: alternatives[plan.ties[row.ours[0]]] for row in rows if row.ours[0] in plan.ties}
    excused = {name for name, owners in tied.items() if any(owner in tensors for owner in owners)}
    excused |= {owner for name, owners in tied.items() if name in tensors for owner in owners}
    problems = [
        f"missing: {name} {show_shape(shape)}"
        for name, shape in expected.items()
        if name not in tensors and name not in excused
    ]
    problems += [
        f"unexpected: {name}, expected {name.removeprefix(family.prefix + '.')}" for name in prefixed
    ]
    for name, tensor in tensors.items():
        where = f"{shown(name)} in {shown(tensor.file.name)}"
        if name not in expected:
            if not _unread(family, name):
                problems.append(f"unexpected: {where} {show_shape(tensor.shape)}")
        elif tensor.shape != expected[name]:
            wanted, got = show_shape(expected[name]), show_shape(tensor.shape)
            problems.append(f"misshapen: {where}: expected {wanted}, got {got}")
        elif tensor.dtype not in DTYPE_BYTES:
            problems.append(f"no floating-point numbers: {where}: {tensor.dtype}")
    if problems:
        raise IsomorphError(
            "E_WEIGHTS",
            f"the tensors are not those of the configured {options['architecture']}: {len(problems)} differ",
            hints=[*problems[:_MOST_LISTED], *(["..."] if len(problems) > _MOST_LISTED else [])],
        )


def _shapes(plan: Plan) -> dict[str, tuple[int, ...]]:
    """Every parameter's shape by path, tied ones too."""
    return {
        f"{node.name}.{path}": spec.shape
        for node in plan.nodes
        for path, spec in node.operator.all_parameters.items()
    }


def _read(plan: Plan, rows: list[Row], tensors: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
    shapes = _shapes(plan)
    kind = _numpy_dtype(plan.dtype)
    weights: dict[str, np.ndarray] = {}
    for row in rows:
        if row.theirs not in tensors:
            continue  # tied: its owner is there
        tensor = tensors[row.theirs]
        array = tensor.read()
        if _has_nan(array):
            raise IsomorphError(
                "E_WEIGHTS",
                f"{row.theirs} in {tensor.file} holds NaN",
                hints=["the file is damaged, or training failed: copy it again"],
            )
        parts = to_plan(row, array, [shapes[path][0] for path in row.ours])
        weights |= {path: part.astype(kind, copy=False) for path, part in zip(row.ours, parts, strict=True)}
    return owned_weights(plan, weights)


def _has_nan(array: np.ndarray) -> bool:
    if array.dtype.name == "bfloat16":  # by its bits, which is many times faster
        return bool(((array.view(np.uint16) & 0x7FFF) > 0x7F80).any())
    return bool(array.size and np.isnan(array.min()))


def _numpy_dtype(name: str) -> np.dtype[Any]:
    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)
