"""An environment of its own for the peers that benchmarks compare with, isomorph beside them."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import subprocess
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / ".cache" / "peers"
CONSTRAINTS = ROOT / "constraints.txt"
REQUIREMENTS = (
    "hndl==0.10.0",
    "pyyaml",
    "pillow",
    "huggingface-hub",
    "transformers>=5.0",
    "torch",
    "jax",
    "flax",
    "optax",
)
WITHOUT_DEPENDENCIES = ("timm==1.0.31",)
"""Its torchvision does not load beside that torch; see :func:`stubbed_torchvision`."""


def python() -> Path:
    """The peers' interpreter, set up on first use and when what it holds has changed."""
    interpreter, stamp = HOME / "bin" / "python", HOME / ".installed"
    wanted = "\n".join((*REQUIREMENTS, *WITHOUT_DEPENDENCIES, CONSTRAINTS.read_text()))
    if not stamp.exists() or stamp.read_text() != wanted:
        print(f"setting up {HOME}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", str(HOME)], check=True)
        pip = [str(interpreter), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, f"--constraint={CONSTRAINTS}", f"--editable={ROOT}", *REQUIREMENTS], check=True)
        subprocess.run([*pip, "--no-deps", *WITHOUT_DEPENDENCIES], check=True)
        stamp.write_text(wanted)
    return interpreter


def entered() -> bool:
    """Whether this process runs in that environment."""
    return Path(sys.prefix).resolve() == HOME.resolve()


def enter() -> None:
    """Start the running script again inside that environment, unless it is there already."""
    if not entered():
        interpreter = str(python())
        os.execv(interpreter, [interpreter, *sys.argv])


class _Anything(type):
    """A class whose every attribute is its own name."""

    def __getattr__(cls, name: str) -> str:
        if name.startswith("__"):
            raise AttributeError(name)
        return name


class _Stub(types.ModuleType):
    """A module whose every attribute is a class that nothing calls."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__ = []

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything(name, (), {})


class _Finder:
    def find_spec(self, name: str, path: object = None, target: object = None) -> object:
        if name.split(".")[0] == "torchvision":
            return importlib.machinery.ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Stub(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


@contextmanager
def stubbed_torchvision() -> Iterator[None]:
    """Let timm's models import: they need torchvision for image transforms alone.

    Afterwards there is no torchvision again, so that nobody else takes the stub for one. Where there is one, it is
    left alone.
    """
    if importlib.util.find_spec("torchvision") is not None:
        yield
        return
    finder = _Finder()
    sys.meta_path.insert(0, finder)  # type: ignore[arg-type]
    try:
        yield
    finally:
        sys.meta_path.remove(finder)  # type: ignore[arg-type]
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]
