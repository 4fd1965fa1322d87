"""From a plan and its weights to a directory that ``transformers`` loads.

Everything is written to a hidden directory inside the target first, which may fail without any harm. Only then
is the target's ``config.json`` removed, without which nobody loads it; the weights of an earlier export are
removed, the new files take their places by renaming, and the new ``config.json`` comes last. Killed at any
moment, the directory is what it was, does not load, or is the new one; it is never a mixture that loads.

An earlier export is known by the mark in the header of its weights. Somebody else's model is not replaced: its
owner may have it nowhere else, and a loader would mix what stays of it with the new one.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from isomorph.checkpoints.families import Match, recognize
from isomorph.checkpoints.family import Family, Handled, Row, each_layer, nested, their_shape, to_theirs
from isomorph.checkpoints.generation import generation_bytes
from isomorph.checkpoints.notes import TOKEN_IDS, class_names_of, token_id_of
from isomorph.checkpoints.sentence import MODULES, POOLING_DIRECTORY, write_sentence
from isomorph.checkpoints.source import CONFIGURATION, GENERATION, SAFETENSORS
from isomorph.errors import IsomorphError, shorten, shown
from isomorph.paths import TOKENIZER
from isomorph.plan import DTYPE_BYTES, Plan
from isomorph.weights.convert import owned_weights, to_array
from isomorph.weights.file import write_safetensors
from isomorph.writing.atomic import atomic_write, hidden_directory, sync_directory, take_name
from isomorph.writing.marks import Kind, tensor_metadata
from isomorph.writing.rule import Input, Target, directory_target, made_directory

INDEX = f"{SAFETENSORS}.index.json"
MOST_SHARD_BYTES = 5_000_000_000
_MOST_LISTED = 20
_SHARD = re.compile(r"model-[0-9]{5,}-of-[0-9]{5,}\.safetensors")
_METADATA = {"format": "pt", "isomorph.export": "1"}
_GENERATION_KEY = "isomorph.export.generation"
"""In the header of an export's weights: the digest of the settings of generation that were written beside them."""
_PART = Kind("published model", (), lambda name: True)  # whose it is, the weights in the directory say
_FOREIGN = re.compile(r"pytorch_model.*\.bin(\.index\.json)?|adapter_(config|model)\..*|(tf|flax)_model.*")
"""What loaders read beside ``config.json`` and ``model.safetensors``, or instead, and no export writes."""


def export_checkpoint(
    directory: str | bytes | os.PathLike[str] | os.PathLike[bytes],
    plan: Plan,
    weights: Mapping[str, Any],
    *,
    max_shard_bytes: int = MOST_SHARD_BYTES,
    notes: Mapping[str, Any] | None = None,
    tokenizer: bytes | None = None,
    force: bool = False,
    inputs: Sequence[Input] = (),
) -> str:
    """Write ``config.json`` and the weights, from which ``from_pretrained`` makes the same network.

    The plan need not have been imported: it is compared with the definition of each family, whatever its
    nodes are called. Dropout is written as 0. Weights of an earlier export in the directory are removed; the
    module's docstring says in which order, and what a killed process leaves. Another library's model that is
    there is not touched.

    Args:
        directory: where to write; made if it is missing.
        plan: the network.
        weights: arrays by parameter path, such as a backend's ``weights(model)``.
        max_shard_bytes: weights that take more are cut in files of at most so many bytes of arrays, with an
            index; a larger array has a file for itself.
        notes: ids of special tokens, names of classes and settings of generation, as
            :func:`isomorph.weights.file.load_notes` gives them; ids and names that do not fit the network are left
            out, as if they were not known.
        tokenizer: the content of a ``tokenizer.json`` to write beside; one that is there is kept without it.
        force: whether somebody else's files are replaced that have an export's names. Those with other names that
            a loader would read are in the way nevertheless.
        inputs: paths of what is read meanwhile, which is never replaced.

    Returns:
        The class of ``transformers`` that loads it, such as ``GPT2LMHeadModel``.

    Raises:
        IsomorphError: E_CHECKPOINT when the plan is not laid out as any known family, with what is in the
            way; E_OUTPUT when the directory holds somebody else's model or cannot be written; E_WEIGHTS when the
            arrays are not the plan's; E_ARGUMENT for arguments of another kind.
    """
    if type(max_shard_bytes) is not int or max_shard_bytes < 1:
        raise IsomorphError(
            "E_ARGUMENT", f"max_shard_bytes must be an integer from 1, got {shorten(max_shard_bytes)}"
        )
    if notes is not None and not isinstance(notes, Mapping):
        raise IsomorphError("E_ARGUMENT", f"notes must be a dictionary or None, got {shorten(notes)}")
    if tokenizer is not None and not isinstance(tokenizer, bytes):
        raise IsomorphError(
            "E_ARGUMENT", f"tokenizer must be a file's bytes or None, got {shorten(tokenizer)}"
        )
    match = recognize(plan)
    arrays = {path: to_array(path, array) for path, array in owned_weights(plan, weights).items()}
    target = directory_target(directory, "the directory's path")
    text = json.dumps(_configuration(plan, match, notes or {}), indent=2, sort_keys=True) + "\n"
    generation = generation_bytes(notes or {}) if match.family.has_tokens else None
    with made_directory(target):
        _refuse_foreign_model(target, tokenizer, force)
        with hidden_directory(target, "export") as place:
            metadata = _METADATA
            if generation is not None:
                atomic_write(place / GENERATION, generation)
                metadata = {**_METADATA, _GENERATION_KEY: sha256(generation).hexdigest()}
            _write_weights(place, plan, match, arrays, max_shard_bytes, metadata)
            if pooling := match.options.get("pooling"):
                write_sentence(place, pooling, match.options["normalize"], match.options["hidden_size"])
            if tokenizer is not None:
                atomic_write(place / TOKENIZER, tokenizer)
            atomic_write(place / CONFIGURATION, text.encode())
            _check_places(place, target, tuple(inputs))
            _replace(place, target)
    return match.options["architecture"]


def _refuse_foreign_model(target: Path, tokenizer: bytes | None, force: bool) -> None:
    """E_OUTPUT listing the files of a model that is no earlier export."""
    pooling = f"{POOLING_DIRECTORY}/{CONFIGURATION}"
    names = [*sorted(os.listdir(target)), *([pooling] if os.path.lexists(target / pooling) else [])]
    weights = [name for name in names if _are_weights(name)]
    foreign = {name for name in weights if not _is_ours(target / name)}
    if foreign or not weights:
        foreign |= {CONFIGURATION, INDEX, MODULES, pooling} & set(names)
        if tokenizer is not None and TOKENIZER in names and not _holds(target / TOKENIZER, tokenizer):
            foreign.add(TOKENIZER)
    if GENERATION in names and not _wrote_generation(target, weights):
        foreign.add(GENERATION)
    # No export writes these, so none replaces them.
    beside = {name for name in names if _FOREIGN.fullmatch(name)}
    foreign = beside if force else foreign | beside
    if foreign:
        mend = "" if beside else "; or replace them: --force, in Python force=True"
        raise IsomorphError(
            "E_OUTPUT",
            f"{target} holds files of a model that was not exported here, which a loader would read",
            hints=[
                *sorted(map(shown, foreign))[:_MOST_LISTED],
                f"choose another directory, or move them away{mend}",
            ],
        )


def _holds(path: Path, content: bytes) -> bool:
    return path.is_file() and path.stat().st_size == len(content) and path.read_bytes() == content


def _check_places(written: Path, target: Path, inputs: tuple[Input, ...]) -> None:
    """E_OUTPUT when a file cannot go where it belongs, or an input would be replaced or removed."""
    files = [file.relative_to(written) for file in written.rglob("*")]
    there = [
        Path(name)
        for name in os.listdir(target)
        if _are_weights(name) or name in (INDEX, MODULES, GENERATION)
    ]
    for file in dict.fromkeys([*files, *there]):
        if (written / file).is_dir():
            directory_target(target / file, "a directory's path")
        else:
            Target(str(target / file), _PART, inputs, force=True, alone=False).check_there()


def _are_weights(name: str) -> bool:
    return name == SAFETENSORS or _SHARD.fullmatch(name) is not None


def _is_ours(path: Path) -> bool:
    return _metadata(path).items() >= _METADATA.items()


def _wrote_generation(target: Path, weights: Sequence[str]) -> bool:
    """Whether the settings of generation are those that an export wrote with its weights."""
    path = target / GENERATION
    if not path.is_file():
        return False
    digest = sha256(path.read_bytes()).hexdigest()
    return any(_metadata(target / name).get(_GENERATION_KEY) == digest for name in weights)


def _metadata(path: Path) -> dict[str, Any]:
    """The texts in a file's header; none where it cannot be read."""
    try:
        return tensor_metadata(str(path)) if path.is_file() else {}  # a pipe would be waited for
    except OSError:
        return {}


def _replace(staged: Path, target: Path) -> None:
    """Put the written files in the place of an earlier export's."""
    (target / CONFIGURATION).unlink(missing_ok=True)
    sync_directory(target)
    for name in (MODULES, INDEX, GENERATION):  # before the weights, by which they are known to be an export's
        (target / name).unlink(missing_ok=True)
    sync_directory(target)
    for file in target.iterdir():
        if _are_weights(file.name):
            file.unlink()
    for file in sorted(staged.iterdir()):
        if file.is_dir():
            (target / file.name).mkdir(exist_ok=True)
            for inner in file.iterdir():
                take_name(inner, target / file.name / inner.name)
        elif file.name != CONFIGURATION:
            take_name(file, target / file.name)
    sync_directory(target)
    take_name(staged / CONFIGURATION, target / CONFIGURATION)
    sync_directory(target)


# -- weights -------------------------------------------------------------------------------------


def _write_weights(
    directory: Path,
    plan: Plan,
    match: Match,
    weights: Mapping[str, np.ndarray],
    most: int,
    metadata: Mapping[str, str],
) -> None:
    """One file, or several and an index; a file's tensors are in memory while it is written."""
    family, options = match.family, match.options
    rows = {
        _name(family, options, row): row
        for row in each_layer(family.rows(options), family.layers(options))
        if match.ours[row.ours[0]] not in plan.ties  # their loader ties it again
    }
    zeros = family.filled(options)

    def make(name: str) -> np.ndarray:
        if name in zeros:
            return np.zeros(zeros[name], next(iter(weights.values())).dtype)
        return to_theirs(rows[name], [weights[match.ours[path]] for path in rows[name].ours])

    sizes = {
        name: _bytes(plan, their_shape(row, [weights[match.ours[path]].shape for path in row.ours]))
        for name, row in rows.items()
    } | {name: _bytes(plan, shape) for name, shape in zeros.items()}
    shards = _shards(sizes, most)
    if len(shards) == 1:
        write_safetensors(directory / SAFETENSORS, {name: make(name) for name in shards[0]}, metadata)
        return
    places = {}
    for i, names in enumerate(shards, 1):
        file = f"model-{i:05d}-of-{len(shards):05d}.safetensors"
        write_safetensors(directory / file, {name: make(name) for name in names}, metadata)
        places |= dict.fromkeys(names, file)
    index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": dict(sorted(places.items()))}
    atomic_write(directory / INDEX, (json.dumps(index, indent=2) + "\n").encode())


def _name(family: Family, options: Mapping[str, Any], row: Row) -> str:
    """A tensor's whole name: with the base model's prefix unless it is the base model, or outside of it."""
    bare = options["architecture"] in family.base_architectures
    return row.theirs if bare or row.head else f"{family.prefix}.{row.theirs}"


def _bytes(plan: Plan, shape: Sequence[int]) -> int:
    return int(np.prod(shape, dtype=np.int64)) * DTYPE_BYTES[plan.dtype]


def _shards(sizes: Mapping[str, int], most: int) -> list[list[str]]:
    """Names in their order, cut before the one that would make a file too large."""
    shards: list[list[str]] = [[]]
    filled = 0
    for name, size in sizes.items():
        if shards[-1] and filled + size > most:
            shards.append([])
            filled = 0
        shards[-1].append(name)
        filled += size
    return shards


# -- configuration -------------------------------------------------------------------------------


def _configuration(plan: Plan, match: Match, notes: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration's file: what the definition follows and what the notes tell, nothing else."""
    family, options = match.family, match.options
    written = {
        key: value
        for key, value in options.items()
        if key not in ("architecture", *family.unwritten)
        and (isinstance(family.settings.get(key), Handled) or key in family.written)
    }
    if "id2label" in written and (names := class_names_of(notes, len(written["id2label"]))):
        written |= {"id2label": names, "label2id": {name: int(i) for i, name in names.items()}}
    dropouts = {key: 0.0 for key in family.settings if key.endswith(("dropout", "_pdrop", "dropout_prob"))}
    count = options.get("vocab_size", 0)
    tokens = {key: token_id_of(notes, key, count) for key in TOKEN_IDS} if family.has_tokens else {}
    return nested({
        "architectures": [options["architecture"]], "model_type": family.model_type, "dtype": plan.dtype,
        **dropouts, **tokens, **written,
    })  # fmt: skip
