"""An ``onnx_ir.Model`` as files, which are read without their weights and get their names when they are whole."""

from __future__ import annotations

import mmap
import re
import secrets
from collections.abc import Iterator
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
    digits = bytearray()
    while number > 0x7F:
        digits.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*digits, number])


def write_outline(path: Path) -> Path:
    """Write beside a model's file the same model, whose large arrays stay where they are: external data, in the file.

    What reads the whole file has its weights in memory, and some of them twice while it makes tensors of them.
    """
    light = path.with_name(f"{path.name}.outline")
    with light.open("wb") as file:
        file.write(_outline(path).SerializeToString())
    return light


def _outline(path: Path) -> Any:
    import onnx

    is_graph = onnx.ModelProto.GRAPH_FIELD_NUMBER
    is_initializer = onnx.GraphProto.INITIALIZER_FIELD_NUMBER
    message = onnx.ModelProto()
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
        for number, start, content, stop in _fields(view, 0, len(view)):
            if number != is_graph:
                message.MergeFromString(view[start:stop])
                continue
            for part, begin, inside, end in _fields(view, content, stop):
                if part == is_initializer and end - inside >= SPLICED_BYTES:
                    message.graph.initializer.append(_external(onnx, view, inside, end, path.name))
                else:
                    message.graph.MergeFromString(view[begin:end])
    return message


def _external(onnx: Any, view: Any, start: int, stop: int, location: str) -> Any:
    """The tensor whose message lies there, its bytes named by where they are."""
    tensor = onnx.TensorProto()
    for number, begin, content, end in _fields(view, start, stop):
        if number != tensor.RAW_DATA_FIELD_NUMBER:
            tensor.MergeFromString(view[begin:end])
            continue
        tensor.data_location = tensor.EXTERNAL
        for key, value in (("location", location), ("offset", content), ("length", end - content)):
            tensor.external_data.add(key=key, value=str(value))
    return tensor


def _fields(view: Any, start: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
    """Of every field of a message: its number, where it starts, where its content starts, where it ends."""
    while start < stop:
        tag, content = _read_varint(view, start)
        kind = tag & 7
        if kind == 2:  # a length, and so many bytes
            length, content = _read_varint(view, content)
            end = content + length
        else:
            end = _read_varint(view, content)[1] if kind == 0 else content + {1: 8, 5: 4}[kind]
        yield tag >> 3, start, content, end
        start = end


def _read_varint(view: Any, at: int) -> tuple[int, int]:
    """What :func:`_varint` wrote, and where it ends."""
    number, shift = 0, 0
    while view[at] > 0x7F:
        number, shift, at = number | (view[at] & 0x7F) << shift, shift + 7, at + 1
    return number | view[at] << shift, at + 1


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
