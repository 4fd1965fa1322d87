"""An environment of its own for the peers that benchmarks compare with."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HOME = Path(__file__).resolve().parent.parent / ".cache" / "peers"
REQUIREMENTS = ("torch==2.13.0", "hndl==0.10.0")


def python() -> Path:
    """The peers' interpreter, set up on first use."""
    interpreter, stamp = HOME / "bin" / "python", HOME / ".installed"
    if not stamp.exists() or stamp.read_text() != "\n".join(REQUIREMENTS):
        subprocess.run([sys.executable, "-m", "venv", str(HOME)], check=True)
        pip = [str(interpreter), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *REQUIREMENTS], check=True)
        stamp.write_text("\n".join(REQUIREMENTS))
    return interpreter
