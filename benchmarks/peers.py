"""An environment of its own for the peers that benchmarks compare with, isomorph beside them."""

from __future__ import annotations

import importlib.machinery
import os
import subprocess
import sys
import types
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / ".cache" / "peers"
REQUIREMENTS = (
    "torch==2.13.0",
    "hndl==0.10.0",
    "pyyaml",
    "pillow",
    "huggingface-hub",
    f"--editable={ROOT}",
)
WITHOUT_DEPENDENCIES = (
    "timm==1.0.31",
)  # its torchvision does not load beside that torch; see stub_torchvision


def python() -> Path:
    """The peers' interpreter, set up on first use."""
    interpreter, stamp = HOME / "bin" / "python", HOME / ".installed"
    wanted = "\n".join((*REQUIREMENTS, *WITHOUT_DEPENDENCIES))
    if not stamp.exists() or stamp.read_text() != wanted:
        print(f"setting up {HOME}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", str(HOME)], check=True)
        pip = [str(interpreter), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *REQUIREMENTS], check=True)
        subprocess.run([*pip, "--no-deps", *WITHOUT_DEPENDENCIES], check=True)
        stamp.write_text(wanted)
    return interpreter


def enter() -> None:
    """Start the running script again inside that environment, unless it is there already."""
    if Path(sys.prefix).resolve() != HOME.resolve():
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


def stub_torchvision() -> None:
    """Let timm's models import: they need torchvision for image transforms alone."""
    sys.meta_path.insert(0, _Finder())  # type: ignore[arg-type]
