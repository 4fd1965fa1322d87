"""A run's directory belongs to one process at a time, until that process ends, however it ends.

The owner has a file in the directory open and locked (``flock``): the system lets go of the lock when the
process dies, so nothing is left to be cleaned up after a kill. Threads of one process keep each other out too.
What the file says is compared before anything is stored, so that a process whose directory was taken from it
stores nothing more.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import stat
import weakref
from pathlib import Path
from types import TracebackType
from typing import Any

from isomorph.errors import IsomorphError

try:
    import fcntl
except ModuleNotFoundError:  # Windows
    fcntl = None

LOCK = ".isomorph-run.lock"
"""The file's name. A killed process leaves it behind, unlocked."""
_TRIES = 1000  # each is lost to another process that ended in that very moment
_MOST_BYTES = 4096


class Ownership:
    """A directory that is owned until the end of a ``with``. It is made if it is missing, and is removed again
    if it is then empty.

    Attributes:
        locked: whether others are kept out. Windows and some network file systems have no such locks: there a
            later process takes the directory over, and the earlier one ends when it is about to store something.

    Raises:
        IsomorphError: E_CHECKPOINT when another process has the directory, naming it. Nothing is waited for.
        OSError: the directory, or the file in it, cannot be made.
    """

    def __init__(self, directory: Path) -> None:
        self.directory, self.path = directory, directory / LOCK
        self._created: list[Path] = []
        self._descriptor, self.locked = self._take()
        owner = {"pid": os.getpid(), "host": socket.gethostname(), "token": secrets.token_hex(16)}
        self._content = json.dumps(owner).encode()
        try:
            os.ftruncate(self._descriptor, 0)
            os.lseek(self._descriptor, 0, os.SEEK_SET)
            os.write(self._descriptor, self._content)
        except BaseException:
            os.close(self._descriptor)
            raise
        _OWNED.add(self)

    def __enter__(self) -> Ownership:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._descriptor < 0:  # in a forked process, which owns nothing
            return
        with contextlib.suppress(OSError):
            if self._is_mine():
                self.path.unlink()
        os.close(self._descriptor)
        self._descriptor = -1
        for directory in reversed(self._created):
            with contextlib.suppress(OSError):  # it holds something
                directory.rmdir()

    def confirm(self) -> None:
        """E_CHECKPOINT when the directory is no longer this process's: the file was removed or replaced."""
        if not self._is_mine():
            raise IsomorphError(
                "E_CHECKPOINT",
                f"{self.directory} no longer belongs to this run: its {LOCK} was removed or replaced while it ran",
                hints=[
                    "nothing more was stored; if no other process trains there, --resume continues from the last checkpoint"
                ],
            )

    def forget(self) -> None:
        """Let go in a forked process: the lock stays with its parent, and ends with it."""
        with contextlib.suppress(OSError):
            os.close(self._descriptor)
        self._descriptor = -1

    def _is_mine(self) -> bool:
        if self._descriptor < 0:
            return False
        try:
            there, here = os.stat(self.path, follow_symlinks=False), os.fstat(self._descriptor)
            return os.path.samestat(there, here) and _read(self._descriptor) == self._content
        except OSError:
            return False

    def _take(self) -> tuple[int, bool]:
        """An open descriptor of the file, and whether it is locked."""
        gone = FileNotFoundError()
        for _ in range(_TRIES):
            try:
                self._make_directory()
                descriptor = os.open(self.path, _FLAGS, 0o666)
            except FileNotFoundError as error:  # a process that had just made a directory removed it again
                gone = error
                continue
            try:
                locked = self._lock(descriptor)
                if os.path.samestat(os.fstat(descriptor), os.stat(self.path, follow_symlinks=False)):
                    return descriptor, locked
            except FileNotFoundError as error:  # its owner ended and removed it before it was locked
                gone = error
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)
        raise gone

    def _lock(self, descriptor: int) -> bool:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"{LOCK} is no regular file")
        if fcntl is None:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise self._refusal(_read(descriptor)) from None
        except OSError:  # a file system without locks
            return False
        return True

    def _make_directory(self) -> None:
        missing = [path for path in (self.directory, *self.directory.parents) if not path.exists()]
        for path in reversed(missing):
            with contextlib.suppress(FileExistsError):
                path.mkdir()
                self._created.append(path)

    def _refusal(self, content: bytes) -> IsomorphError:
        return IsomorphError(
            "E_CHECKPOINT",
            f"{self.directory} is in use: {_owner(content)} trains there",
            hints=["wait until it ends or stop it; --out takes another place"],
        )


_FLAGS = (
    os.O_RDWR
    | os.O_CREAT
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_BINARY", 0)
)

_OWNED: weakref.WeakSet[Ownership] = weakref.WeakSet()


def _forget_all() -> None:
    for ownership in list(_OWNED):
        ownership.forget()
    _OWNED.clear()


if hasattr(os, "register_at_fork"):  # else a child, such as a worker, would keep a dead owner's lock
    os.register_at_fork(after_in_child=_forget_all)


def _read(descriptor: int) -> bytes:
    os.lseek(descriptor, 0, os.SEEK_SET)
    return os.read(descriptor, _MOST_BYTES)


def _owner(content: bytes) -> str:
    """Who an owner's file says it is; a file is for a moment empty."""
    try:
        owner: dict[str, Any] = json.loads(content)
        pid, host = int(owner["pid"]), str(owner["host"])
    except (ValueError, KeyError, TypeError):
        return "another process"
    if host != socket.gethostname():
        return f"process {pid} on {host}"
    return f"this process ({pid})" if pid == os.getpid() else f"process {pid}"
