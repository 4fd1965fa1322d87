"""Source code and weights in a directory of their own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from isomorph.errors import IsomorphError
from isomorph.paths import path_text
from isomorph.plan import Plan
from isomorph.source_code.write import write_python
from isomorph.weights.atomic import atomic_write
from isomorph.weights.file import save

SOURCE, WEIGHTS = "model.py", "model.safetensors"


def export_python(
    directory: str | bytes | os.PathLike[str] | os.PathLike[bytes],
    plan: Plan,
    weights: Mapping[str, Any] | None = None,
    framework: str = "torch",
) -> list[str]:
    """Write ``model.py``, and ``model.safetensors`` where there are weights.

    The weights' file is an isomorph model too, in plan layout; ``load`` in ``model.py`` reads it.

    Args:
        directory: where to write; made if it is missing. Files of these names in it are replaced.
        plan: the network.
        weights: arrays by parameter path, such as a backend's ``weights(model)``; None for the text alone.
        framework: ``"torch"`` or ``"nnx"``.

    Returns:
        The names of the files written.

    Raises:
        IsomorphError: of :func:`write_python`; E_WEIGHTS when the arrays are not the plan's; E_CHECKPOINT when
            the directory cannot be written.
    """
    text = write_python(plan, framework)
    target = Path(path_text(directory, "the directory's path"))
    try:
        target.mkdir(parents=True, exist_ok=True)
        if weights is not None:
            save(target / WEIGHTS, plan, weights)
        atomic_write(target / SOURCE, text.encode())
    except OSError as error:
        raise IsomorphError(
            "E_CHECKPOINT", f"cannot write {target}: {error.strerror or error}", hints=["choose a directory"]
        ) from error
    return [SOURCE] if weights is None else [SOURCE, WEIGHTS]
