"""NumPy archives (``.npz``): what their arrays declare comes first, their numbers when they are asked for.

An archive is a zip file of ``.npy`` files. A few bytes can declare any number of rows, and a few kilobytes can
unpack to gigabytes, so every size is compared with the length of what holds it before memory is taken.
Nothing is ever unpickled.
"""

from __future__ import annotations

import io
import warnings
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from typing import IO, Any, NamedTuple

import numpy as np

from isomorph.errors import IsomorphError, did_you_mean

Array = np.ndarray[Any, Any]

MOST_UNPACKED_BYTES = 1 << 30
MOST_UNPACKED_TIMES = 100
"""All arrays that are read together take at most so many bytes, or so many times the file's length."""
_CHUNK = 1 << 20
_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}  # version 3 is for arrays with named fields


class Declared(NamedTuple):
    """What an array's header says of it.

    Attributes:
        shape: its sizes.
        fortran: whether its first index runs fastest in the file.
        dtype: of its elements.
        start: where in the member its elements begin, in bytes.
    """

    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype[Any]
    start: int

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return prod(self.shape) * self.dtype.itemsize


class Archive:
    """A NumPy archive whose bytes are in memory.

    Args:
        content: the file's bytes.
        place: its path, for messages.

    Raises:
        IsomorphError: E_ARGUMENT, here and in every method, for what is no archive or is damaged.
    """

    def __init__(self, content: bytes, place: str) -> None:
        self._place, self._length, self._unpacked = place, len(content), 0
        with self._failing():
            if not content.startswith(b"PK"):
                single = content.startswith(b"\x93NUMPY")
                raise ValueError("it holds a single array" if single else "it is another file")
            self._zip = zipfile.ZipFile(io.BytesIO(content))
        self._members = {info.filename.removesuffix(".npy"): info for info in self._zip.infolist()}

    @property
    def names(self) -> list[str]:
        """Of all arrays."""
        return list(self._members)

    def declared(self, name: str) -> Declared:
        """What the array's header says, once it is known to agree with the member's length; E_ARGUMENT otherwise.

        E_ARGUMENT too when there is no such array, or it holds something else than plain numbers.
        """
        if name not in self._members:
            raise IsomorphError(
                "E_ARGUMENT",
                f"npz:{self._place} has no array {name!r}; it has: {', '.join(self._members) or 'none'}",
                hints=did_you_mean(name, self._members),
            )
        with self._failing(), self._open(name) as member:
            declared = _read_header(member, name)
            present = self._members[name].file_size - declared.start
            if declared.nbytes != present:
                raise ValueError(
                    f"{name} declares {declared.nbytes:,} bytes of numbers, but its part of the file holds {present:,}"
                )
            return declared

    def read(self, name: str, declared: Declared) -> Array:
        """The array; E_ARGUMENT when it is damaged or the arrays read would take too much memory."""
        with self._failing(), self._open(name) as member:
            self._unpacked += declared.nbytes
            most = max(MOST_UNPACKED_BYTES, MOST_UNPACKED_TIMES * self._length)
            if self._unpacked > most:
                raise ValueError(
                    f"{self._length:,} bytes unpack to {self._unpacked:,} and more, accepted are {most:,}; "
                    "what numpy.savez writes, unpacked, may be of any length"
                )
            member.seek(declared.start)
            elements = np.empty(prod(declared.shape), declared.dtype)
            _fill(elements.view(np.uint8).data, member)
        if declared.fortran:
            return elements.reshape(declared.shape[::-1]).T
        return elements.reshape(declared.shape)

    def _open(self, name: str) -> IO[bytes]:
        info = self._members[name]
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError(f"{name} is packed in a way that NumPy does not write")
        return self._zip.open(info)

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """What the readers of zip files raise, as E_ARGUMENT."""
        try:
            yield
        except (
            ValueError,
            EOFError,
            OSError,
            NotImplementedError,
            RuntimeError,  # of an encrypted member
            zlib.error,
            zipfile.BadZipFile,
        ) as error:
            raise IsomorphError(
                "E_ARGUMENT",
                f"{self._place} is no usable NumPy archive: {error}",
                hints=[
                    "write it with numpy.savez(FILE, x=..., y=...); arrays of Python objects are not read"
                ],
            ) from None


def _read_header(member: IO[bytes], name: str) -> Declared:
    try:
        read = _HEADERS.get(np.lib.format.read_magic(member))
    except ValueError:
        raise ValueError(f"{name} is no array") from None
    if read is None:
        raise ValueError(f"{name} holds no plain numbers")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of headers that Python 2 wrote
            shape, fortran, dtype = read(member)
    except Exception:  # NumPy's parser of a damaged header raises whatever comes (ValueError, TokenError)
        raise ValueError(f"{name} is damaged") from None
    if dtype.hasobject or min(shape, default=0) < 0:
        raise ValueError(f"{name} is damaged or holds Python objects")
    declared = Declared(tuple(int(size) for size in shape), bool(fortran), dtype, member.tell())
    if declared.nbytes >= 2**63:
        raise ValueError(f"{name} declares more numbers than any file holds")
    return declared


def _fill(view: memoryview, member: IO[bytes]) -> None:
    """Read exactly as many bytes as there is room for."""
    done = 0
    while done < len(view):
        chunk = member.read(min(_CHUNK, len(view) - done))
        if not chunk:
            raise EOFError("it ends too early")
        view[done : done + len(chunk)] = chunk
        done += len(chunk)
