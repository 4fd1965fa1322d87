"""What the writing of a result may touch: one rule, for every verb and every function that writes.

1. An input is never overwritten, under whatever name it is given, links included; force changes nothing about it.
2. What was not written here, or was changed since, is replaced only with ``--force`` (``force=True`` in Python). How a
   file is known says :mod:`isomorph.writing.marks`. An empty file holds nothing to lose.
3. A pipe, a terminal and another device of characters are written to, and so is what the process has open
   (``/dev/stdout``, ``/dev/fd/3``). A directory, a socket and a device of blocks are refused. None is ever replaced.
4. The name's extension says the format, or is refused.
5. A regular file is, at every moment, the old one or the new one (:mod:`isomorph.writing.atomic`). Several files that
   make one result are looked at before the first of them is written.

Every refusal is E_OUTPUT, and happens before anything is touched.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from isomorph.errors import IsomorphError, shown
from isomorph.paths import path_text
from isomorph.writing.atomic import Content, Staged, staged
from isomorph.writing.marks import Kind, seal

Input = str | os.PathLike[str] | int
"""What is read: a path, or a descriptor such as 0 for standard input."""

FORCE = "choose another name, or replace it: --force, in Python force=True"

_HINTS = {
    errno.ENOENT: "make its directory first",
    errno.ENOTDIR: "what stands before the last / must be a directory",
    errno.EACCES: "its directory must be writable",
    errno.EPERM: "its directory must be writable",
    errno.EROFS: "its directory must be writable",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.ELOOP: "it is a link that leads back to itself: choose another name",
    **dict.fromkeys(
        (errno.ENOSPC, errno.EDQUOT, errno.EFBIG),
        "there must be room for a second copy of the file: the old one stays until the new one is whole",
    ),
}
_KINDS = {stat.S_IFDIR: "a directory", stat.S_IFSOCK: "a socket", stat.S_IFBLK: "a device of blocks"}
_EXTENSION = re.compile(r"\.[A-Za-z][A-Za-z0-9]*")
"""What is taken for an extension: ``v1.5`` and ``Qwen2.5-0.5B`` have none."""


class Target(NamedTuple):
    """One file of a result, and what is known about it before there is anything to write.

    Attributes:
        name: its path as given.
        kind: what it will be.
        inputs: what is read meanwhile.
        force: whether a file that was not written here is replaced.
        alone: False for a file among several in a directory, which is a regular file and nothing else.
    """

    name: str
    kind: Kind
    inputs: tuple[Input, ...] = ()
    force: bool = False
    alone: bool = True

    @property
    def streams(self) -> bool:
        """Whether bytes go to what is there, a pipe for example, and no file takes its place."""
        mode = self._mode()
        return self.alone and mode is not None and (_descriptor(self.name) is not None or _is_stream(mode))

    def check(self) -> None:
        """Refuse what the rule refuses: E_OUTPUT."""
        name, mode = self.name, self._mode()
        if mode is not None:
            for given in self.inputs:
                refuse_input(name, given)
        if self.streams:
            return
        opened = mode is not None and _descriptor(self.name) is not None
        if mode is None or (stat.S_ISREG(mode) and not opened):
            self._check_file(mode is not None)
            return
        what = "open already" if opened else _KINDS.get(stat.S_IFMT(mode), "a pipe or a device")
        raise IsomorphError(
            "E_OUTPUT",
            f"{shown(name)} is {what}; expected the name of a file for the {self.kind.noun}",
            hints=["choose another name"],
        )

    def check_there(self) -> None:
        """:meth:`check` of what has the name; nothing for a name that is free, whose directory may be missing."""
        if os.path.lexists(self.name):
            self.check()

    def write(self, content: Content) -> None:
        """Write it, whole or not at all where it is a file; E_OUTPUT where that is refused or fails."""
        self.check()
        with naming_errors(self.name):
            if self.streams:
                _write_through(self.name, content)
            else:
                with staged(self.name, content) as file:
                    file.publish()

    def text(self, text: str) -> bytes:
        """A text as the file holds it: sealed, so that the file is known again."""
        assert self.kind.comment is not None
        return seal(text, self.kind.comment)

    def _mode(self) -> int | None:
        """The mode of what has the name, links followed; None where nothing has, and a file can be made there."""
        try:
            return os.stat(self.name).st_mode
        except FileNotFoundError:
            return None
        except OSError as error:
            raise unwritable(self.name, error) from None

    def _check_file(self, exists: bool) -> None:
        name = self.name
        if name.endswith(("/", os.sep)):
            raise unwritable(name, OSError(errno.EISDIR, os.strerror(errno.EISDIR)))
        with naming_errors(name):
            if exists and not self.force and os.stat(name).st_size and not self.kind.is_own(name):
                raise IsomorphError(
                    "E_OUTPUT",
                    f"{shown(name)} is there already, and is no {self.kind.noun} as it is written here, or was "
                    "changed since",
                    hints=[FORCE],
                )
            _check_directory(os.path.dirname(os.path.realpath(name)))


def file_target(
    path: object,
    kind: Kind,
    what: str,
    *,
    inputs: Sequence[Input] = (),
    force: bool = False,
    bare: bool = False,
) -> Target:
    """A target that was looked at: nothing of the rule is in its way, as far as is known before it is written.

    Args:
        path: str, bytes or ``os.PathLike``.
        kind: what is to be written.
        what: what the path is of, for messages.
        inputs: what is read meanwhile.
        force: whether a file that was not written here is replaced.
        bare: whether the name may have no extension.

    Raises:
        IsomorphError: E_ARGUMENT for what is no path, E_OUTPUT for what the rule refuses.
    """
    target = Target(path_text(path, what), kind, tuple(inputs), force)
    if not target.streams:
        refuse_extension(target.name, kind.extensions, bare=bare)
    target.check()
    return target


def refuse_extension(name: str, extensions: Sequence[str], *, bare: bool = False) -> None:
    """E_OUTPUT unless a file's name ends with one of these; ``bare`` allows a name without any."""
    extension = os.path.splitext(name)[1]
    if extension.lower() in extensions or (bare and not _EXTENSION.fullmatch(extension)):
        return
    raise IsomorphError(
        "E_OUTPUT",
        f"the extension says the format: expected {' or '.join(extensions)}, got {shown(extension) or 'none'} "
        f"in {shown(name)}",
        hints=[f"as in {shown(os.path.splitext(name)[0])}{extensions[0]}"],
    )


def refuse_input(name: str, given: Input) -> None:
    """E_OUTPUT when a name leads to a regular file that is read."""
    try:
        place, read = os.stat(name), os.stat(given)
    except (OSError, ValueError):
        return
    if not stat.S_ISREG(read.st_mode) or not os.path.samestat(place, read):
        return
    source = "standard input" if isinstance(given, int) else os.fspath(given)
    which = "is read" if source == name else f"is {shown(source)}, which is read"
    raise IsomorphError(
        "E_OUTPUT",
        f"{shown(name)} {which}, and an input is never overwritten",
        hints=["choose another name"],
    )


# -- several files -------------------------------------------------------------------------------


def directory_target(path: object, what: str) -> Path:
    """A directory to write into, which may be missing.

    Raises:
        IsomorphError: E_ARGUMENT for what is no path; E_OUTPUT when something else is there, when none can be made
            there, and for a missing one whose name looks like a file's.
    """
    name = path_text(path, what)
    with naming_errors(name):
        try:
            mode = os.stat(name).st_mode
        except FileNotFoundError:
            mode = None
        if mode is not None and not stat.S_ISDIR(mode):
            raise IsomorphError(
                "E_OUTPUT",
                f"{shown(name)} is no directory, and several files are to be written",
                hints=["choose a directory, which is made where there is none"],
            )
        extension = os.path.splitext(name)[1]
        if mode is None and _EXTENSION.fullmatch(extension):
            raise IsomorphError(
                "E_OUTPUT",
                f"{shown(name)} looks like a file's name, and a directory is to be written",
                hints=[f"for a directory of that name: {shown(name)}/"],
            )
        there = os.path.realpath(name)
        while not os.path.lexists(there):
            there = os.path.dirname(there)
        _check_directory(there)
    return Path(name)


@contextlib.contextmanager
def made_directory(path: Path) -> Iterator[Path]:
    """The directory, made with those above it where they are missing; on failure those made go again.

    Raises:
        IsomorphError: E_OUTPUT for whatever the system has against one, or against what is done inside.
    """
    missing = [place for place in (path, *path.parents) if not os.path.lexists(place)]
    with naming_errors(str(path)):
        try:
            path.mkdir(parents=True, exist_ok=True)
            yield path
        except BaseException:
            for place in missing:
                with contextlib.suppress(OSError):  # something is in it by now
                    place.rmdir()
            raise


@contextlib.contextmanager
def staged_files(files: Sequence[tuple[Target, Content]]) -> Iterator[list[Staged]]:
    """Every file's content, on the disk, beside the name that it takes when it is published.

    All are checked before the first is written; what is not published is removed.

    Raises:
        IsomorphError: E_OUTPUT.
    """
    for target, _ in files:
        target.check()
    with contextlib.ExitStack() as stack:
        finished = []
        for target, content in files:
            with naming_errors(target.name):
                finished.append(stack.enter_context(staged(target.name, content)))
        yield finished


def write_files(files: Sequence[tuple[Target, Content]]) -> None:
    """Write files that make one result, in their order; all of them or, unless a rename fails, none. E_OUTPUT."""
    with staged_files(files) as finished:
        for (target, _), file in zip(files, finished, strict=True):
            with naming_errors(target.name):
                file.publish()


# -- the system ----------------------------------------------------------------------------------


@contextlib.contextmanager
def naming_errors(name: str) -> Iterator[None]:
    """E_OUTPUT, with the place, for whatever the system has against a file."""
    try:
        yield
    except OSError as error:
        raise unwritable(name, error) from error


def unwritable(name: str, error: OSError) -> IsomorphError:
    """The error for a result that cannot be written."""
    hint = _HINTS.get(error.errno or 0, "choose another name")
    return IsomorphError("E_OUTPUT", f"cannot write {shown(name)}: {error.strerror or error}", hints=[hint])


def _check_directory(path: str) -> None:
    """OSError unless it is a directory in which a file can be made."""
    if not stat.S_ISDIR(os.stat(path).st_mode):
        raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    if not os.access(path, os.W_OK | os.X_OK):
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))


def _is_stream(mode: int) -> bool:
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)


def _descriptor(name: str) -> int | None:
    """The number of the descriptor of this process that a name such as ``/dev/stdout`` or ``/dev/fd/3`` stands for."""
    homes = ("/dev/fd", f"/proc/{os.getpid()}/fd")
    for _ in range(40):  # as many links as Linux follows
        directory, base = os.path.split(os.path.abspath(name))
        directory = os.path.realpath(directory)
        if directory in homes and base.isdecimal():
            return int(base)
        name = os.path.join(directory, base)
        if not os.path.islink(name):
            return None
        name = os.path.join(directory, os.readlink(name))
    return None


def _write_through(name: str, content: Content) -> None:
    """Write to what is there. A descriptor is written where it stands, so that nothing before it is lost."""
    number = _descriptor(name)
    if number is None:
        descriptor = os.open(name, os.O_WRONLY | getattr(os, "O_NOCTTY", 0))
    else:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()  # what was printed before comes before
        descriptor = os.dup(number)
    with os.fdopen(descriptor, "wb") as file:
        if isinstance(content, bytes):
            file.write(content)
        else:
            content(file)
