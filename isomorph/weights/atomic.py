"""Writing a file so that it is, at every moment, either the old one or the new one."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO


def atomic_write(path: str | os.PathLike[str], write: bytes | Callable[[BinaryIO], None]) -> None:
    """Put bytes, or what ``write`` writes to an open file, at ``path``, whole or not at all.

    The data go to a new file in the same directory, reach the disk (fsync), and take the name in one step
    (``os.replace``); then the directory reaches the disk too. On failure the new file is removed and the
    old one is as it was. A killed process may leave a hidden ``.<name>.<random>.tmp`` behind.

    Args:
        path: where to write. Of a symbolic link, the file it points at is replaced.
        write: the content, or a function that writes it. It may seek.

    Raises:
        OSError: the directory does not exist, is not writable, or is full.
    """
    target = Path(os.path.realpath(path))
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
    try:
        with os.fdopen(descriptor, "wb") as file:
            if isinstance(write, bytes):
                file.write(write)
            else:
                write(file)
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileNotFoundError):
            os.chmod(temporary, target.stat().st_mode & 0o7777)  # an existing file keeps its permissions
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(target.parent)


def sync_directory(directory: Path) -> None:
    """Make renaming and removing in a directory durable. Windows has no such call for directories."""
    if os.name == "nt":
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
