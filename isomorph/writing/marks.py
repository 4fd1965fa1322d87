"""How a file that was written here is known again, from its content alone.

Files of arrays say it in their header. Text that people read, and may edit, ends in a comment with the digest of what
stands above it: as soon as somebody has changed a character, the text is theirs. No module but this one knows how the
marks look.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, NamedTuple

MOST_HEADER_BYTES = 100_000_000
"""Of a safetensors file: what its package accepts."""


class Kind(NamedTuple):
    """What a result is.

    Attributes:
        noun: for messages, as in "picture".
        extensions: with which the name of such a file ends, in small letters; the first is the usual one.
        is_own: whether the file of this name was written here, as its content says. OSError where it cannot be read.
        comment: of a text, how a comment of one line is written there, as in ``"# {}"``.
    """

    noun: str
    extensions: tuple[str, ...]
    is_own: Callable[[str], bool]
    comment: str | None = None


def text_kind(noun: str, extensions: tuple[str, ...], comment: str) -> Kind:
    """A kind of text, which is sealed when it is written."""
    return Kind(noun, extensions, lambda name: is_sealed(name, comment), comment)


def seal(text: str, comment: str) -> bytes:
    """A text in UTF-8 with its digest in a last line, a comment."""
    content = (text if text.endswith("\n") else text + "\n").encode()
    return content + _last_line(content, comment)


def is_sealed(name: str, comment: str) -> bool:
    """Whether a file is, byte for byte, what :func:`seal` made."""
    length = len(_last_line(b"", comment))
    with open(name, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - length))
        last = file.read()
        if b"isomorph " not in last:  # somebody else's, however long, is not read
            return False
        file.seek(0)
        return last == _last_line(file.read(max(0, size - length)), comment)


def _last_line(content: bytes, comment: str) -> bytes:
    return comment.format(f"isomorph {hashlib.sha256(content).hexdigest()[:32]}").encode() + b"\n"


# -- files of arrays -----------------------------------------------------------------------------


def tensors_marked(key: str) -> Callable[[str], bool]:
    """Whether the header of a safetensors file has a text of this name."""

    def is_own(name: str) -> bool:
        return key in tensor_metadata(name)

    return is_own


def tensor_metadata(name: str) -> dict[str, Any]:
    """The texts in a safetensors file's header; none where it is no such file."""
    with open(name, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > min(os.fstat(file.fileno()).st_size - 8, MOST_HEADER_BYTES):
            return {}
        try:
            metadata = json.loads(file.read(length))["__metadata__"]
        except (ValueError, KeyError, TypeError, RecursionError):
            return {}
    return metadata if isinstance(metadata, dict) else {}


def onnx_marked(key: str) -> Callable[[str], bool]:
    """Whether the metadata of an ONNX file have an entry of this name."""

    def is_own(name: str) -> bool:
        with open(name, "rb") as file:
            return any(key.encode() == entry for entry in _onnx_metadata(file))

    return is_own


_METADATA_FIELD = 14  # ModelProto.metadata_props, https://github.com/onnx/onnx/blob/main/onnx/onnx.proto
_LONGEST_ENTRY = 1 << 24


def _onnx_metadata(file: BinaryIO) -> Iterator[bytes]:
    """The keys of a model's metadata. Weights are passed over, not read; what is no such file ends it."""
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    while (tag := _varint(file)) is not None:
        field, wire = tag >> 3, tag & 7
        if wire == 0:
            if _varint(file) is None:
                return
            continue
        length = _varint(file) if wire == 2 else {1: 8, 5: 4}.get(wire)
        if length is None or length > size - file.tell():
            return
        if field == _METADATA_FIELD and length <= _LONGEST_ENTRY:
            entry = file.read(
                length
            )  # StringStringEntryProto: the key is field 1, a text of less than 128 bytes
            if entry[:1] == b"\x0a":
                yield entry[2 : 2 + entry[1]]
        else:
            file.seek(length, os.SEEK_CUR)


def _varint(file: BinaryIO) -> int | None:
    """A number of seven bits a byte, as protobuf writes it; None at the end of the file or where it is none."""
    value = 0
    for shift in range(0, 70, 7):
        byte = file.read(1)
        if not byte:
            return None
        value |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return value
    return None
