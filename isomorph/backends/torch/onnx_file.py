"""An ``onnx_ir.Model`` as files, which get their names when they are whole."""

from __future__ import annotations

import re
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from isomorph.writing.atomic import sync_directory, sync_files, take_name

EXTERNAL_BYTES = 1 << 30
"""Weights that take more go to a file beside the model, which may have 2 GiB at most."""

SPLICED_BYTES = 1 << 12
"""Smaller arrays are written with the rest of the model."""


def write(model: Any, path: Path, external_bytes: int) -> list[Path]:
    """Write the model, with its weights or beside them; the files, the model first."""
    import onnx_ir

    size = sum(value.const_value.nbytes for value in model.graph.initializers.values())
    if size <= external_bytes:
        _write_whole(model, path)
        return [path]
    data = f"{path.name}.{secrets.token_hex(8)}.data"
    onnx_ir.save(model, path, external_data=data)
    return [path, path.with_name(data)]


def _write_whole(model: Any, path: Path) -> None:
    """Write a model and its weights as one file, the weights from where they are.

    A message of Protocol Buffers holds all that it says in memory, and again when it is made bytes. Here the weights are
    written between the bytes of the rest: as the last fields of the graph, which is the last field of the model.
    """
    import onnx
    import onnx_ir

    graph = model.graph
    large = [value for value in graph.initializers.values() if value.const_value.nbytes >= SPLICED_BYTES]
    for value in large:
        del graph.initializers[value.name]
    message = onnx_ir.to_proto(model)
    for value in large:
        graph.register_initializer(value)
    rest = message.graph.SerializeToString()
    message.ClearField("graph")
    heads = [_head(onnx, value) for value in large]
    size = len(rest) + sum(
        len(head) + value.const_value.nbytes for head, value in zip(heads, large, strict=True)
    )
    with path.open("wb") as file:
        file.write(message.SerializeToString())
        file.write(_opened(onnx.ModelProto, "graph", size) + rest)
        for head, value in zip(heads, large, strict=True):
            file.write(head)
            file.write(_little_endian(value.const_value.numpy()))


def _head(onnx: Any, value: Any) -> bytes:
    """What precedes an array's bytes: the field of the graph, the tensor's name, dtype and shape, the bytes' field."""
    tensor = value.const_value
    about = onnx.TensorProto(dims=tensor.shape.numpy(), data_type=int(tensor.dtype), name=value.name)
    inner = about.SerializeToString() + _opened(onnx.TensorProto, "raw_data", tensor.nbytes)
    return _opened(onnx.GraphProto, "initializer", len(inner) + tensor.nbytes) + inner


def _opened(message: Any, field: str, size: int) -> bytes:
    """The tag and the length of a field of so many bytes, as Protocol Buffers' wire format has them."""
    return _varint(message.DESCRIPTOR.fields_by_name[field].number << 3 | 2) + _varint(size)


def _varint(number: int) -> bytes:
    """Seven bits a byte, the lowest first, the eighth bit set where more follow."""
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def _little_endian(array: np.ndarray) -> memoryview:
    """The bytes of an array, its own where the machine has them in that order."""
    ordered = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    return ordered.reshape(-1).view(np.uint8).data


def publish(written: list[Path], target: Path) -> None:
    """Give finished files their names: the weights first, under a name of their own, then the model.

    At every moment the model that has the name is whole, for the weights that it names lie beside it. Those
    of the model before go last.
    """
    sync_files(written)
    for path in written:
        with suppress(FileNotFoundError):
            path.chmod(
                target.stat().st_mode & 0o7777
            )  # an existing model's permissions are kept, of its data too
    for path in reversed(written):
        take_name(path, target.with_name(path.name))
    sync_directory(target.parent)
    data = re.compile(re.escape(target.name) + r"\.[0-9a-f]{16}\.data")
    for path in target.parent.iterdir():
        if data.fullmatch(path.name) and path.name not in [one.name for one in written]:
            with suppress(OSError):  # someone has it open, on Windows
                path.unlink()
