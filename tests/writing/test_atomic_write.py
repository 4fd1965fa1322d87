"""Atomic writing: the old file or the new one, never anything between."""

import os
import stat
import subprocess
import sys
import textwrap

import pytest

from isomorph.writing import atomic
from isomorph.writing.atomic import atomic_write


def test_bytes_and_functions(tmp_path):
    atomic_write(tmp_path / "a", b"one")
    atomic_write(str(tmp_path / "b"), lambda file: file.writelines([b"t", b"wo"]))
    assert [(path.name, path.read_bytes()) for path in sorted(tmp_path.iterdir())] == [
        ("a", b"one"),
        ("b", b"two"),
    ]


def test_failure_leaves_the_old_file_and_nothing_else(tmp_path):
    (tmp_path / "a").write_bytes(b"old")

    def write(file):
        file.write(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        atomic_write(tmp_path / "a", write)
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("a", b"old")]


def test_the_data_reach_the_disk_before_the_name_changes(tmp_path, monkeypatch):
    events = []
    for name in ("fsync", "replace"):
        real = getattr(os, name)
        monkeypatch.setattr(atomic.os, name, lambda *a, name=name, real=real: events.append(name) or real(*a))
    atomic_write(tmp_path / "a", b"data")
    assert events == ["fsync", "replace", "fsync"]  # the file, its name, the directory


def test_permissions_and_links_are_kept(tmp_path):
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_bytes(b"old")
    target.chmod(0o640)
    link.symlink_to(target)
    atomic_write(link, b"new")
    assert link.is_symlink()
    assert target.read_bytes() == b"new"
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    mask = os.umask(0o027)
    try:
        atomic_write(tmp_path / "fresh", b"")
    finally:
        os.umask(mask)
    assert stat.S_IMODE((tmp_path / "fresh").stat().st_mode) == 0o640


def test_a_missing_directory(tmp_path):
    with pytest.raises(FileNotFoundError):
        atomic_write(tmp_path / "no" / "a", b"")


ABANDON = """
    import os, sys, time
    from isomorph.writing.atomic import atomic_write

    def write(file):
        file.write(b"half")
        file.flush()
        print("writing", flush=True)
        sys.stdin.read()

    atomic_write(sys.argv[1], write)
"""


@pytest.mark.skipif(os.name == "nt", reason="there are no such locks")
def test_what_a_killed_process_left_is_removed_and_what_a_living_one_writes_is_not(tmp_path):
    def begin(target):
        command = [sys.executable, "-c", textwrap.dedent(ABANDON), str(target)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "writing\n"
        return process

    target, other = tmp_path / "a", tmp_path / "b"
    before = set(os.listdir(tmp_path))
    killed, elsewhere = begin(target), begin(other)
    for process in (killed, elsewhere):
        process.kill()
        process.communicate()
    left = set(os.listdir(tmp_path)) - before
    assert sorted(name[:3] for name in left) == [".a.", ".b."]
    living = begin(target)  # which removes the first one's
    names = {f".a.{'0' * 15}.tmp", f".a.{'g' * 16}.tmp", ".a.tmp", "a.tmp"}  # not of our pattern
    for name in names:
        (tmp_path / name).write_bytes(b"")
    os.mkfifo(tmp_path / f".a.{'0' * 16}.tmp")  # no file
    atomic_write(target, b"new")
    assert target.read_bytes() == b"new"
    living.communicate("", timeout=60)
    assert living.returncode == 0
    assert target.read_bytes() == b"half"  # whoever comes last
    expected = names | {name for name in left if name.startswith(".b.")} | {"a", f".a.{'0' * 16}.tmp"}
    assert set(os.listdir(tmp_path)) == expected


@pytest.mark.skipif(os.name == "nt", reason="there are no such locks")
def test_a_file_removed_before_it_is_locked_is_made_anew(tmp_path, monkeypatch):
    real, made = atomic._lock, []

    def lock(descriptor):
        if not made:
            made.extend(tmp_path.glob(".a.*.tmp"))
            made[0].unlink()
        return real(descriptor)

    monkeypatch.setattr(atomic, "_lock", lock)
    atomic_write(tmp_path / "a", b"new")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("a", b"new")]


def test_a_file_system_without_locks(tmp_path, monkeypatch):
    monkeypatch.setattr(atomic, "_lock", lambda descriptor: None)
    left = tmp_path / f".a.{'0' * 16}.tmp"
    left.write_bytes(b"whose?")
    atomic_write(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"new"
    assert left.exists()
