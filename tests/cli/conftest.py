"""Runs the command inside this process."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import NamedTuple

import pytest

from isomorph.cli.main import main


class Result(NamedTuple):
    """What a person and a script see."""

    status: int
    out: str
    err: str


@pytest.fixture
def isomorph(monkeypatch, capsys) -> Callable[..., Result]:
    """``isomorph("show", path)`` gives exit status, stdout and stderr."""

    def run(*arguments: object) -> Result:
        monkeypatch.setattr(sys, "argv", ["isomorph", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit:
            main()
        code = exit.value.code
        captured = capsys.readouterr()
        return Result(code if isinstance(code, int) else 0, captured.out, captured.err)

    return run


@pytest.fixture
def block(tmp_path):
    """A file with the block of width 32, without contracts."""
    path = tmp_path / "block.net"
    path.write_text("transformer_block(4)\n")
    return path
