"""Writing a file so that it is, at every moment, either the old one or the new one."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

try:
    import fcntl
except ModuleNotFoundError:  # Windows
    fcntl = None


def atomic_write(path: str | os.PathLike[str], write: bytes | Callable[[BinaryIO], None]) -> None:
    """Put bytes, or what ``write`` writes to an open file, at ``path``, whole or not at all.

    The data go to a new file in the same directory, reach the disk (fsync), and take the name in one step
    (``os.replace``); then the directory reaches the disk too. On failure the new file is removed and the
    old one is as it was. A killed process may leave a hidden ``.<name>.<random>.tmp`` behind; the next writing to
    that name removes it, but on Windows.

    Args:
        path: where to write. Of a symbolic link, the file it points at is replaced.
        write: the content, or a function that writes it. It may seek.

    Raises:
        OSError: the directory does not exist, is not writable, or is full.
    """
    target = Path(os.path.realpath(path))
    _remove_abandoned(target)
    temporary, descriptor = _create(target)
    with contextlib.ExitStack() as locked:
        if (
            fcntl is not None
        ):  # the lock lasts until the file has its name; Windows would not rename an open one
            locked.callback(os.close, os.dup(descriptor))
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


def _create(target: Path) -> tuple[Path, int]:
    """A new file beside the target, locked as long as somebody has it open."""
    while True:
        temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}.tmp")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        descriptor = os.open(temporary, flags, 0o666)
        if _lock(descriptor) is not False and os.path.lexists(temporary):
            return temporary, descriptor
        os.close(descriptor)  # before it was locked, somebody took it for abandoned and removed it


def _lock(descriptor: int) -> bool | None:
    """Whether nobody else has the file locked; None where there are no locks."""
    if fcntl is None:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return None
    return True


def _remove_abandoned(target: Path) -> None:
    """Remove what killed processes left of earlier writings to this name: a living one has its file locked."""
    if fcntl is None:
        return
    pattern = re.compile(re.escape(f".{target.name}.") + r"[0-9a-f]{16}\.tmp")
    with contextlib.suppress(OSError):  # whoever writes there will say what is wrong
        for entry in os.scandir(target.parent):
            if pattern.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                _remove_unlocked(entry.path)


def _remove_unlocked(path: str) -> None:
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            if _lock(descriptor):
                os.unlink(path)
        finally:
            os.close(descriptor)


def sync_directory(directory: Path) -> None:
    """Make renaming and removing in a directory durable. Windows has no such call for directories."""
    if os.name == "nt":
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
