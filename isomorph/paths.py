"""What may be given where a file's or a directory's path is expected, and names that several parts know."""

from __future__ import annotations

import errno
import os
import stat
from typing import BinaryIO

from isomorph.errors import IsomorphError, shorten

TOKENIZER = "tokenizer.json"
"""The file beside a model that turns text into its ids, as the ``tokenizers`` package writes it."""


def path_text(path: object, what: str = "a path") -> str:
    """A path as text.

    Args:
        path: str, bytes in the file system's encoding, or an ``os.PathLike`` of either.
        what: what the path is of, for messages.

    Raises:
        IsomorphError: E_ARGUMENT for anything else, an empty path, or one that no file can have: with a NUL
            character, or with one that the file system's encoding has not.
    """
    if not isinstance(path, str | bytes | os.PathLike):
        raise IsomorphError(
            "E_ARGUMENT", f"{what} must be str, bytes or os.PathLike, got {shorten(type(path).__name__)}"
        )
    text = os.fsdecode(path)
    if not text or "\0" in text:
        problem = "is empty" if not text else "holds a NUL character"
        raise IsomorphError("E_ARGUMENT", f"{what} {problem}: {shorten(text)}")
    try:
        os.fsencode(text)
    except UnicodeEncodeError as error:
        character = f"U+{ord(text[error.start]):04X}, which is no part of a file's name here"
        raise IsomorphError("E_ARGUMENT", f"{what} holds {character}: {shorten(text)}") from None
    return text


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a regular file for reading. A pipe is not waited for, and a device is not touched.

    Raises:
        OSError: it cannot be opened, or is no regular file; ``strerror`` says what it is.
    """
    _expect_regular(os.stat(path).st_mode, path)  # first: merely to open a device may do something
    # Should it be exchanged in this moment, opening does not wait either.
    flags = (
        os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_BINARY", 0)
    )
    descriptor = os.open(path, flags)
    try:
        _expect_regular(os.fstat(descriptor).st_mode, path)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


_KINDS = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def _expect_regular(mode: int, path: str | os.PathLike[str]) -> None:
    if not stat.S_ISREG(mode):
        kind = next((name for is_kind, name in _KINDS if is_kind(mode)), "something else")
        raise OSError(errno.EINVAL, f"it is {kind}, expected a regular file", os.fspath(path))
