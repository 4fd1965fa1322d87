"""Atomic writing: the old file or the new one, never anything between."""

import os
import stat

import pytest

from isomorph.weights import atomic
from isomorph.weights.atomic import atomic_write


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
