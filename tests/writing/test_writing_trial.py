"""Results written onto whatever may have a name: nothing that was there is lost."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import shutil
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import isomorph as iso
from isomorph.cli import convert, draw, export
from isomorph.source_code import export_python

pytestmark = pytest.mark.skipif(os.name == "nt", reason="names of another kind")

TEXT = 'x = input("B", 3)\nlinear(2)\n'
PLAN = iso.resolve(TEXT)
WEIGHTS = iso.initial_weights(PLAN)
CONTRACTS = (None, None, None, None)


def state(directory: Path) -> dict[str, object]:
    """Everything below by name: kinds, contents and where links lead."""
    found: dict[str, object] = {}
    for path in sorted(directory.rglob("*")):
        mode, name = path.lstat().st_mode, str(path.relative_to(directory))
        if stat.S_ISLNK(mode):
            found[name] = ("link", os.readlink(path))
        elif stat.S_ISREG(mode):
            found[name] = path.read_bytes()
        else:
            found[name] = ("node", stat.S_IFMT(mode), path.lstat().st_rdev)
    return found


# -- what may have a name ----------------------------------------------------------------------------


class Place:
    """A directory with the inputs, and something under the name of the result."""

    def __init__(self, home: Path, draws: random.Random, extension: str) -> None:
        self.home, self.draws = home, draws
        self.net, self.model = home / "in.net", home / "in.safetensors"
        self.net.write_text(TEXT)
        iso.save(self.model, PLAN, WEIGHTS)
        self.name = home / f"out{extension}"
        self.inputs: tuple[Path, ...] = ()
        self.closing = contextlib.ExitStack()
        self.may_change = False  # a file that may be replaced without force

    def foreign(self) -> None:
        self.name.write_bytes(self.draws.randbytes(self.draws.choice([1, 7, 9, 100, 5000])))

    def empty(self) -> None:
        self.name.touch()
        self.may_change = True

    def nothing(self) -> None:
        self.may_change = True

    def directory(self) -> None:
        self.name.mkdir()
        (self.name / "kept").write_bytes(b"kept")

    def link_to_file(self) -> None:
        (self.home / "far").write_bytes(b"far away")
        self.name.symlink_to(self.draws.choice(["far", self.home / "far"]))

    def link_to_input(self) -> None:
        self.name.symlink_to(self.draws.choice(self.inputs))

    def hard_link(self) -> None:
        (self.home / "twin").write_bytes(b"two names")
        self.name.hardlink_to(self.home / "twin")

    def hard_link_to_input(self) -> None:
        self.name.hardlink_to(self.draws.choice(self.inputs))

    def dangling(self) -> None:
        self.name.symlink_to(self.draws.choice(["nowhere", "no/where", "in.net/below"]))
        self.may_change = True

    def loop(self) -> None:
        (self.home / "round").symlink_to(self.name.name)
        self.name.symlink_to("round")

    def pipe(self) -> None:
        os.mkfifo(self.name)
        descriptor = os.open(self.name, os.O_RDONLY | os.O_NONBLOCK)
        self.closing.callback(os.close, descriptor)

        def drain() -> None:
            with contextlib.suppress(OSError):
                while not done.wait(0.0005):
                    with contextlib.suppress(BlockingIOError):
                        os.read(descriptor, 1 << 16)

        done = threading.Event()
        reader = threading.Thread(target=drain)
        reader.start()
        self.closing.callback(reader.join)
        self.closing.callback(done.set)

    def closed_pipe(self) -> None:
        """A descriptor whose reader is gone."""
        reading, writing = os.pipe()
        os.close(reading)
        self.closing.callback(os.close, writing)
        self.name.symlink_to(f"/dev/fd/{writing}")

    def device(self) -> None:
        self.name.symlink_to(self.draws.choice(["/dev/null", "/dev/zero", "/dev/full"]))

    def node(self) -> None:
        """A device of this test's own, as far as the machine allows one."""
        kind, number = self.draws.choice(
            [(stat.S_IFCHR, (1, 3)), (stat.S_IFCHR, (1, 7)), (stat.S_IFBLK, (7, 250))]
        )
        try:
            os.mknod(self.name, kind | 0o600, os.makedev(*number))
        except OSError:
            self.device()

    def terminal(self) -> None:
        import pty

        leader, follower = pty.openpty()
        self.closing.callback(os.close, leader)
        self.closing.callback(os.close, follower)
        os.set_blocking(follower, False)
        self.name.symlink_to(os.ttyname(follower))
        threading.Thread(target=_drain, args=(leader,), daemon=True).start()

    def socket(self) -> None:
        bound = self.closing.enter_context(socket.socket(socket.AF_UNIX))
        before = os.getcwd()
        os.chdir(self.home)
        try:
            bound.bind(self.name.name)
        finally:
            os.chdir(before)

    def open_file(self) -> None:
        """A file that the caller opened to add to it, under the name of its descriptor."""
        log = self.home / "log"
        log.write_bytes(b"line\n")
        descriptor = os.open(log, os.O_WRONLY | os.O_APPEND)
        self.closing.callback(os.close, descriptor)
        self.name.symlink_to(f"/dev/fd/{descriptor}")

    def below_a_file(self) -> None:
        self.name = self.net / self.name.name

    def below_nothing(self) -> None:
        self.name = self.home / "no" / self.name.name

    def too_long(self) -> None:
        self.name = self.home / ("n" * self.draws.choice([256, 300, 5000]) + self.name.suffix)

    def other_extension(self) -> None:
        self.name = self.home / f"out{self.draws.choice(['.png', '.pt', '.net', '.py', '.npz'])}"
        self.draws.choice([self.foreign, self.nothing])()
        self.may_change = False


def _drain(descriptor: int) -> None:
    with contextlib.suppress(OSError):
        while os.read(descriptor, 1 << 16):
            pass


KINDS = [name for name in vars(Place) if not name.startswith("_")]


# -- what writes -------------------------------------------------------------------------------------


def saves(place: Place, force: bool) -> None:
    iso.save(place.name, PLAN, WEIGHTS, force=force)


def draws(place: Place, force: bool) -> None:
    draw.run(
        str(place.net), CONTRACTS, None,
        attention=False, format=None, length=None, out=str(place.name), force=force, quiet=True,
    )  # fmt: skip


def converts(place: Place, force: bool) -> None:
    to = place.draws.choice(["torch", "nnx", "linen"])
    convert.run(str(place.model), to, str(place.name), force=force, json=False, quiet=True)


def exports(place: Place, force: bool) -> None:
    """A directory whose ``model.py`` is what was put there."""
    export.run(str(place.model), "python", str(place.name.parent), force=force, json=False, quiet=True)


def exports_into(place: Place, force: bool) -> None:
    """The place itself as the directory."""
    export_python(place.name, PLAN, WEIGHTS, force=force, inputs=[place.net, place.model])


WRITERS: list[tuple[Callable[[Place, bool], None], str, tuple[str, ...]]] = [
    (saves, ".safetensors", ()),
    (draws, ".svg", ("net",)),
    (draws, ".mmd", ("net",)),
    (converts, ".safetensors", ("model",)),
    (exports, ".py", ("model",)),
    (exports_into, "", ("net", "model")),
]
"""With the extension, and what it reads."""


@contextlib.contextmanager
def full_disk(draws: random.Random) -> Iterator[None]:
    """No file may be longer than a few bytes, as on a disk that fills up meanwhile."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (draws.choice([0, 1, 64, 200]), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.trial(sample=60, whole=2000)
def test_nothing_that_was_there_is_lost(trial, tmp_path):
    """Whatever has the name and whoever writes: only a file that may be replaced changes, and it changes as a whole."""
    draws_of = random.Random(trial.seed)
    outcomes, codes = {"written": 0, "refused": 0}, set()
    for number in range(trial.tries):
        home = tmp_path / str(number)
        (home / "run").mkdir(parents=True)
        write, extension, reads = draws_of.choice(WRITERS)
        kind = draws_of.choice(KINDS)
        force, full = draws_of.random() < 0.4, draws_of.random() < 0.2
        place = Place(home, draws_of, extension)
        if write is exports:
            place.name = home / "run" / "model.py"
        place.inputs = tuple(getattr(place, name) for name in reads)
        if not reads and kind.endswith("_input"):
            kind = "hard_link"  # a function that reads no file has no inputs
        context = (
            f"try {number}, seed {trial.seed}: {write.__name__} {extension} on {kind}, {force=}, {full=}"
        )
        with place.closing:
            getattr(place, kind)()
            before = state(home)
            try:
                with full_disk(draws_of) if full else contextlib.nullcontext():
                    write(place, force)
                outcomes["written"] += 1
                refused = False
            except iso.IsomorphError as error:
                codes.add(error.code)
                outcomes["refused"] += 1
                refused = True
            after = state(home)
        check(place, before, after, refused, force, context)
        shutil.rmtree(home)
    assert codes == {"E_OUTPUT"}
    assert min(outcomes.values()) >= trial.tries // 5, outcomes


def check(
    place: Place,
    before: dict[str, object],
    after: dict[str, object],
    refused: bool,
    force: bool,
    context: str,
) -> None:
    """The rule, said once more by what may differ."""
    assert not [name for name in after if name.endswith(".tmp")], context
    for name, old in before.items():
        new = after.get(name)
        if name == "log" and isinstance(old, bytes) and isinstance(new, bytes):
            assert new.startswith(old), context  # what streams is added; a full disk may cut it
        elif new != old:
            assert not refused, f"{context}: {name} changed"
            assert isinstance(old, bytes) and isinstance(new, bytes), f"{context}: {name} is another kind"
            assert place.home / name not in place.inputs, f"{context}: the input {name} changed"
            assert old == b"" or force, f"{context}: {name} was replaced"
    added = after.keys() - before.keys()
    if refused:
        assert not added, f"{context}: {added} are left"


def test_the_places_are_what_they_say(tmp_path):
    """Each kind once, so that none is refused by the machine without a word."""
    for kind in KINDS:
        home = tmp_path / kind
        home.mkdir()
        place = Place(home, random.Random(0), ".svg")
        place.inputs = (place.net,)
        with place.closing:
            getattr(place, kind)()
            free = kind in ("nothing", "below_a_file", "below_nothing", "too_long")
            assert os.path.lexists(place.name) is not free or kind == "other_extension", kind
