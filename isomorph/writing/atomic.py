"""Writing a file so that it is, at every moment, either the old one or the new one.

How it is done, and nothing of what may be replaced: that is :mod:`isomorph.writing.rule`. Whoever calls this module
itself knows that the name is its own, as a run knows those in its directory.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

try:
    import fcntl
except ModuleNotFoundError:  # Windows
    fcntl = None

Content = bytes | Callable[[BinaryIO], None]
"""What a file is to hold, or a function that writes it to an open file."""

_LONGEST_STEM = 200  # bytes; systems take 255, and what stands around it takes 22


def atomic_write(path: str | os.PathLike[str], write: Content) -> None:
    """Put bytes, or what ``write`` writes to an open file, at ``path``, whole or not at all.

    The data go to a new file in the same directory, reach the disk (fsync), and take the name in one step
    (``os.replace``); then the directory reaches the disk too. On failure the new file is removed and the
    old one is as it was. A killed process may leave a hidden ``.<name>.<random>.tmp`` behind; the next writing to
    that name removes it, but on Windows.

    Args:
        path: where to write. Of a symbolic link, the file it points at is replaced.
        write: the content, or a function that writes it. It may seek.

    Raises:
        OSError: the directory does not exist, is not writable, or is full; something that is no regular file, such
            as a device, has the name.
    """
    with staged(path, write) as file:
        file.publish()


class Staged:
    """A finished file beside the one whose name it is to take."""

    def __init__(self, temporary: Path, target: Path) -> None:
        self.temporary, self.target = temporary, target

    def publish(self) -> None:
        """Take the name. An existing file's permissions are kept."""
        take_name(self.temporary, self.target)
        sync_directory(self.target.parent)


@contextlib.contextmanager
def staged(path: str | os.PathLike[str], write: Content) -> Iterator[Staged]:
    """The content in a hidden file beside ``path``, on the disk; removed at the end unless it was published.

    Raises:
        OSError: as of :func:`atomic_write`.
    """
    target = Path(os.path.realpath(path))
    _refuse_irregular(target)
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
            yield Staged(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)  # it is gone where it has its name


def take_name(temporary: Path, target: Path) -> None:
    """Rename a finished file; one that has the name is replaced, and its permissions are kept."""
    with contextlib.suppress(FileNotFoundError):
        os.chmod(temporary, target.stat().st_mode & 0o7777)
    os.replace(temporary, target)


@contextlib.contextmanager
def set_aside(path: Path) -> Iterator[None]:
    """Take a file's name away, and at the end the file; on failure it has its name again."""
    aside = path.with_name(f".{_stem(path.name)}.{secrets.token_hex(8)}.tmp")
    os.replace(path, aside)
    try:
        yield
    except BaseException:
        os.replace(aside, path)
        raise
    aside.unlink()


@contextlib.contextmanager
def hidden_directory(parent: Path, stem: str) -> Iterator[Path]:
    """A new directory ``.<stem>.<random>.tmp``, removed afterwards with whatever is still in it.

    It is for what other libraries write, and for several files that are to appear together.
    """
    place = parent / f".{_stem(stem)}.{secrets.token_hex(8)}.tmp"
    place.mkdir()
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def sync_files(paths: Iterable[Path]) -> None:
    """Wait until the disk has what others wrote."""
    for path in paths:
        with path.open("rb+") as file:
            os.fsync(file.fileno())


def sync_directory(directory: Path) -> None:
    """Make renaming and removing in a directory durable. Windows has no such call for directories."""
    if os.name == "nt":
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _refuse_irregular(target: Path) -> None:
    """A rename would put a file in the place of a device, a pipe or a socket."""
    try:
        mode = os.lstat(target).st_mode  # a real path is no link, unless links lead round in a ring
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode):
        raise OSError(None, "it is no regular file", str(target))


def _stem(name: str) -> str:
    """A file's name, or a digest of it where it leaves no room for what is written around it."""
    encoded = os.fsencode(name)
    return name if len(encoded) <= _LONGEST_STEM else hashlib.sha256(encoded).hexdigest()


def _create(target: Path) -> tuple[Path, int]:
    """A new file beside the target, locked as long as somebody has it open."""
    while True:
        temporary = target.with_name(f".{_stem(target.name)}.{secrets.token_hex(8)}.tmp")
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
    pattern = re.compile(re.escape(f".{_stem(target.name)}.") + r"[0-9a-f]{16}\.tmp")
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
