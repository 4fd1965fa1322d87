"""A model as one file: safetensors in plan layout, with the plan's JSON in the header.

The format (https://github.com/huggingface/safetensors) is eight bytes with the header's length, a JSON
header, and the arrays' bytes one after another. It is written here, array by array and without a second
copy in memory; it is read by the ``safetensors`` package, which checks every offset. Nothing in such a file
can be executed.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from isomorph.errors import IsomorphError, shorten, shown
from isomorph.paths import open_regular, path_text
from isomorph.plan import Plan
from isomorph.weights.convert import owned_weights, to_array
from isomorph.writing.atomic import Content, atomic_write
from isomorph.writing.marks import MOST_HEADER_BYTES, Kind, tensors_marked
from isomorph.writing.rule import file_target, naming_errors

CODES = {"float64": "F64", "float32": "F32", "bfloat16": "BF16", "float16": "F16"}
"""The format's names of the dtypes that a plan may have."""

PLAN_KEY = "isomorph.plan"
NOTES_KEY = "isomorph.notes"
MOST_NOTES_BYTES = 4 << 20
"""What notes may take as JSON: the names of 21,841 classes take less than one megabyte."""

MOST_LISTED = 20
"""Of what is wrong with a file's arrays."""

MODEL = Kind("model", (".safetensors",), tensors_marked(PLAN_KEY))
"""What :func:`save` writes."""


def save(
    path: str | bytes | os.PathLike[str] | os.PathLike[bytes],
    plan: Plan,
    weights: Mapping[str, Any],
    *,
    notes: Mapping[str, Any] | None = None,
    force: bool = False,
) -> None:
    """Write a plan and its weights to one file, atomically: a killed process leaves the old file whole.

    Equal plans, weights and notes give equal bytes.

    Args:
        path: the file; ``.safetensors`` or no extension. A pipe or a device is written to, and stays what it is.
        plan: the network.
        weights: arrays of the plan's dtype by parameter path, such as a backend's ``weights(model)``.
        notes: what belongs to the model but not to its network, as JSON values by name: ``eos_token_id``,
            ``id2label``. :func:`load_notes` reads them back; :func:`load` does not need them.
        force: whether a file that is no saved model is replaced.

    Raises:
        IsomorphError: E_WEIGHTS when the arrays are not exactly the plan's, in name, shape and dtype;
            E_ARGUMENT when the notes are not JSON or take more than four megabytes; E_OUTPUT when something
            else than a saved model is there, or the file cannot be written; E_CHECKPOINT when there are more
            parameters than a file of this format can name.
    """
    target = file_target(path, MODEL, "the file's path", force=force, bare=True)
    target.write(model_content(plan, weights, notes))


def model_content(plan: Plan, weights: Mapping[str, Any], notes: Mapping[str, Any] | None = None) -> Content:
    """What a model's file holds, as a function that writes it. Raises what :func:`save` raises but E_OUTPUT."""
    metadata = {"format": "pt", **_noted(notes)}
    arrays = _prepared(plan, weights)
    return tensor_content(arrays, {**metadata, PLAN_KEY: plan.to_json()})


def load_plan(path: str | bytes | os.PathLike[str] | os.PathLike[bytes]) -> Plan:
    """The plan that :func:`save` wrote, without its weights.

    Raises:
        IsomorphError: E_CHECKPOINT when there is no such file, it is no safetensors file, it is damaged or
            holds no plan; E_INTEGRITY when the plan in it was altered.
    """
    name = path_text(path, "the model's path")
    return _plan_of(name, _metadata(name))


def load_notes(path: str | bytes | os.PathLike[str] | os.PathLike[bytes]) -> dict[str, Any]:
    """The notes that :func:`save` wrote beside a plan; an empty dictionary where there are none.

    Raises:
        IsomorphError: E_CHECKPOINT when there is no such file, it is no safetensors file, it is damaged, or
            its notes are no JSON object of at most four megabytes.
    """
    name = path_text(path, "the model's path")
    text = _metadata(name).get(NOTES_KEY, "{}")
    try:
        if len(text) > MOST_NOTES_BYTES:
            raise ValueError(f"more than {MOST_NOTES_BYTES:,} bytes")
        notes = json.loads(text)
        if not isinstance(notes, dict):
            raise ValueError(f"{type(notes).__name__}, expected an object")
    except (ValueError, RecursionError) as error:
        raise IsomorphError(
            "E_CHECKPOINT",
            f"{name} holds notes that cannot be read: {shorten(str(error), 100)}",
            hints=["save the model again"],
        ) from None
    return notes


def holds_plan(path: str | bytes | os.PathLike[str] | os.PathLike[bytes]) -> bool:
    """Whether a safetensors file was written by :func:`save`; E_CHECKPOINT when it cannot be read."""
    return PLAN_KEY in _metadata(path_text(path, "the model's path"))


def _metadata(name: str) -> dict[str, str]:
    """The texts in a file's header; E_CHECKPOINT when it cannot be read."""
    from safetensors import SafetensorError, safe_open

    refuse_foreign(Path(name))
    try:
        with safe_open(name, framework="numpy") as file:
            return file.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise _damaged(name, error) from error


def _noted(notes: Mapping[str, Any] | None) -> dict[str, str]:
    """The header's entry for notes; E_ARGUMENT unless they come back from JSON as they are."""
    if notes is None:
        return {}
    try:
        given = dict(notes)
        text = json.dumps(given, sort_keys=True, separators=(",", ":"), allow_nan=False)
        if json.loads(text) != given:
            raise ValueError("a key is no text, or a sequence is no list")
    except (TypeError, ValueError, RecursionError) as error:
        raise IsomorphError(
            "E_ARGUMENT",
            f"notes must be a dictionary of JSON values by name: {shorten(str(error), 100)}",
            hints=[
                "JSON has text, finite numbers, true, false, null, lists, and dictionaries with text as keys"
            ],
        ) from None
    if len(text) > MOST_NOTES_BYTES:
        raise IsomorphError(
            "E_ARGUMENT", f"notes may take {MOST_NOTES_BYTES:,} bytes as JSON, got {len(text):,}"
        )
    return {NOTES_KEY: text}


def _damaged(name: str, error: Exception) -> IsomorphError:
    return IsomorphError(
        "E_CHECKPOINT",
        f"{name} is damaged or no safetensors file: {shown(str(error))}",
        hints=["copy or save it again; a partly copied file is the usual cause"],
    )


def write_safetensors(
    path: str | bytes | os.PathLike[str] | os.PathLike[bytes],
    arrays: Mapping[str, np.ndarray],
    metadata: Mapping[str, str],
) -> None:
    """Write floating-point arrays by name as a safetensors file, atomically and without a second copy.

    What has the name is replaced: it is for names that are known to be the caller's own.

    Args:
        path: the file.
        arrays, metadata: as for :func:`tensor_content`.

    Raises:
        IsomorphError: E_OUTPUT when the file cannot be written.
    """
    name = path_text(path, "the file's path")
    with naming_errors(name):
        atomic_write(name, tensor_content(arrays, metadata))


def tensor_content(arrays: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> Content:
    """What a safetensors file holds, as a function that writes it: array by array, without a second copy.

    Args:
        arrays: arrays of the dtypes in :data:`CODES`, in the order in which they are written.
        metadata: the header's texts; ``format: pt`` says that linear weights are ``[out, in]``.
    """
    header = _header(arrays, metadata)

    def write(file: BinaryIO) -> None:
        file.write(struct.pack("<Q", len(header)))
        file.write(header)
        for array in arrays.values():
            # bfloat16 has no buffer protocol: the bytes are passed as what they are
            file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)

    return write


def load(path: str | bytes | os.PathLike[str] | os.PathLike[bytes]) -> tuple[Plan, dict[str, np.ndarray]]:
    """Read what :func:`save` wrote: the plan, and its weights bit for bit in its order.

    Raises:
        IsomorphError: E_CHECKPOINT when there is no such file, it is no safetensors file, it is damaged or
            holds no plan; E_INTEGRITY when the plan in it was altered; E_WEIGHTS when its arrays are not
            the plan's, in name, shape and dtype.
    """
    from safetensors import SafetensorError, safe_open

    name = path_text(path, "the model's path")
    refuse_foreign(Path(name))
    try:
        with safe_open(name, framework="numpy") as file:
            plan = _plan_of(name, file.metadata())
            # Dtypes first: the package cannot read all of the format's dtypes into NumPy.
            _check_dtypes(plan, {name: file.get_slice(name).get_dtype() for name in file.keys()})  # noqa: SIM118
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise _damaged(name, error) from error
    return plan, owned_weights(plan, arrays)


def _prepared(plan: Plan, weights: Mapping[str, Any]) -> dict[str, np.ndarray]:
    Plan.expect(plan)
    arrays = {path: to_array(path, array) for path, array in owned_weights(plan, weights).items()}
    wrong = {path: array.dtype.name for path, array in arrays.items() if array.dtype.name != plan.dtype}
    if wrong:
        raise IsomorphError(
            "E_WEIGHTS",
            f"the plan's dtype is {plan.dtype}, but {len(wrong)} of the weights have another",
            hints=[
                *(f"{path}: {dtype}" for path, dtype in wrong.items()),
                f"cast them to {plan.dtype}, or resolve the definition with their dtype",
            ],
        )
    return {
        path: array if array.dtype.isnative else array.astype(plan.dtype) for path, array in arrays.items()
    }


def _header(arrays: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> bytes:
    """The JSON header."""
    content: dict[str, Any] = {"__metadata__": dict(metadata)}
    position = 0
    for path, array in arrays.items():
        end = position + array.nbytes
        content[path] = {
            "dtype": CODES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [position, end],
        }
        position = end
    header = json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode()
    header += b" " * (-len(header) % 8)  # the arrays start at a multiple of eight
    if len(header) > MOST_HEADER_BYTES:
        raise IsomorphError(
            "E_CHECKPOINT",
            f"the file needs a header of {len(header):,} bytes; readers accept {MOST_HEADER_BYTES:,}",
        )
    return header


def refuse_foreign(path: Path) -> None:
    """E_CHECKPOINT for what is no safetensors file by its first bytes, with what it seems to be."""
    try:
        with open_regular(path) as file:  # a pipe would be waited for
            start = file.read(9)
            size = os.fstat(file.fileno()).st_size
    except OSError as error:
        raise IsomorphError(
            "E_CHECKPOINT", f"cannot read {path}: {error.strerror or error}", hints=["check the path"]
        ) from error
    length = int.from_bytes(start[:8], "little")
    if len(start) >= 8 and length <= min(size - 8, MOST_HEADER_BYTES):
        return  # plausible; the package reads on
    if _is_pickle_or_archive(start, length):
        raise IsomorphError(
            "E_CHECKPOINT",
            f"{path} is a pickle or an archive, as torch.save writes it, and no safetensors file",
            hints=[
                "nothing in it was executed; load it where it comes from and save its arrays with isomorph"
            ],
        )
    raise IsomorphError(
        "E_CHECKPOINT",
        f"{path} is damaged or no safetensors file: "
        f"its {size:,} bytes cannot hold a header of {length:,} bytes",
        hints=["copy or save it again; a partly copied file is the usual cause"],
    )


def _is_pickle_or_archive(start: bytes, length: int) -> bool:
    """Whether a file's first nine bytes are those of a pickle or a zip archive.

    A safetensors file may begin with the same byte, and a cut one is still no pickle: its length is one that a
    header can have, and a brace follows.
    """
    if len(start) < 9:  # a pickle this short is whole, and ends with its last instruction
        return start[:1] == b"\x80" and start.endswith(b".")
    if length <= MOST_HEADER_BYTES and start[8:] == b"{":
        return False
    protocol = start[0] == 0x80 and 2 <= start[1] <= 5
    return protocol or start[:4] in (b"PK\x03\x04", b"PK\x05\x06")


def _plan_of(path: str | os.PathLike[str], metadata: Mapping[str, str] | None) -> Plan:
    text = (metadata or {}).get(PLAN_KEY)
    if text is None:
        raise IsomorphError(
            "E_CHECKPOINT",
            f"{os.fspath(path)} holds arrays but no plan",
            hints=[
                "if they are under a plan's paths: resolve its definition, read them with "
                "safetensors.numpy.load_file, and pass them as weights",
            ],
        )
    return Plan.from_json(text)


def _check_dtypes(plan: Plan, codes: Mapping[str, str]) -> None:
    expected = CODES[plan.dtype]
    wrong = {name: code for name, code in codes.items() if code != expected}
    if wrong:
        raise IsomorphError(
            "E_WEIGHTS",
            f"the plan's dtype is {plan.dtype} ({expected}), {len(wrong)} of the file's arrays have another",
            hints=[f"{shown(name)}: {code}" for name, code in list(wrong.items())[:MOST_LISTED]],
        )
