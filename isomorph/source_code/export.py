"""Source code and weights in a directory of their own."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from isomorph.plan import Plan
from isomorph.source_code.write import write_python
from isomorph.weights.file import MODEL, model_content
from isomorph.writing.atomic import Content
from isomorph.writing.marks import Kind, text_kind
from isomorph.writing.rule import Input, Target, directory_target, made_directory, write_files

SOURCE, WEIGHTS = "model.py", "model.safetensors"
PYTHON = text_kind("source code", (".py",), "# {}")


def export_python(
    directory: str | bytes | os.PathLike[str] | os.PathLike[bytes],
    plan: Plan,
    weights: Mapping[str, Any] | None = None,
    framework: str = "torch",
    *,
    force: bool = False,
    inputs: Sequence[Input] = (),
) -> list[str]:
    """Write ``model.py``, and ``model.safetensors`` where there are weights.

    The weights' file is an isomorph model too, in plan layout; ``load`` in ``model.py`` reads it.

    Args:
        directory: where to write; made if it is missing.
        plan: the network.
        weights: arrays by parameter path, such as a backend's ``weights(model)``; None for the text alone.
        framework: ``"torch"`` or ``"nnx"``.
        force: whether files of these names are replaced that were not written here, or were changed since. Those of
            an earlier export are, in any case.
        inputs: paths of what is read meanwhile, which is never replaced.

    Returns:
        The names of the files written.

    Raises:
        IsomorphError: of :func:`write_python`; E_WEIGHTS when the arrays are not the plan's; E_OUTPUT when something
            else is there, or it cannot be written. None of them leaves one file without the other.
    """
    text = write_python(plan, framework)
    target = directory_target(directory, "the directory's path")

    def one(name: str, kind: Kind) -> Target:
        return Target(str(target / name), kind, tuple(inputs), force, alone=False)

    files: list[tuple[Target, Content]] = []
    if weights is not None:
        files.append((one(WEIGHTS, MODEL), model_content(plan, weights)))
    source = one(SOURCE, PYTHON)
    files.append((source, source.text(text)))
    with made_directory(target):
        write_files(files)
    return [SOURCE] if weights is None else [SOURCE, WEIGHTS]
