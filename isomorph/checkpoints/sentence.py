"""What sentence-transformers adds to a directory: how token features become one vector for a sentence.

``modules.json`` lists the steps. The network itself is the first; then the features of the tokens are pooled,
and the result may be divided by its length. A directory without that file is no such model.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from isomorph.checkpoints.source import inside, is_file_name, read_json
from isomorph.errors import IsomorphError, shorten, shown
from isomorph.writing.atomic import atomic_write

MODULES = "modules.json"
POOLING_DIRECTORY = "1_Pooling"
MODES = {"cls": "first", "mean": "mean", "max": "max", "lasttoken": "last"}
"""Their names of pooling modes, each with ours."""

_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "lasttoken",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
}
_WIDTHS = ("word_embedding_dimension", "embedding_dimension")
_KINDS = ("Transformer", "Pooling", "Normalize")


def read_sentence(directory: Path, width: Any) -> dict[str, Any]:
    """``pooling`` and ``normalize`` of a directory that has ``modules.json``; nothing where it has none.

    Raises:
        IsomorphError: E_CHECKPOINT when a step, a mode of pooling or a key of its configuration is not
            among those that a definition can say, by name.
    """
    path = directory / MODULES
    if not os.path.lexists(path):
        return {}
    modules = read_json(inside(directory, MODULES), list)
    kinds = [_kind(path, module) for module in modules]
    expected = [list(_KINDS[:2]), list(_KINDS)]
    if kinds not in expected or modules[0].get("path"):
        raise IsomorphError(
            "E_CHECKPOINT",
            f"{path} lists the steps {shorten(kinds, 200)}, which a definition cannot follow",
            hints=[
                "expected Transformer (in the directory itself), Pooling, and perhaps Normalize",
                f"without {MODULES} the network alone is imported",
            ],
        )
    place = modules[1].get("path")
    if not isinstance(place, str) or not is_file_name(place):
        raise IsomorphError(
            "E_CHECKPOINT",
            f"{path} has the pooling's files in {shorten(place, 200)}",
            hints=["expected the name of a directory inside"],
        )
    configuration = inside(directory, f"{place}/config.json")
    pooling = _pooling(configuration, read_json(configuration), width)
    return {"pooling": pooling, "normalize": kinds == expected[1]}


def _kind(path: Path, module: Any) -> str:
    """The class of a step, without the module that it lives in."""
    given = module.get("type") if isinstance(module, dict) else None
    if not isinstance(given, str):
        raise IsomorphError("E_CHECKPOINT", f"{path} has a step without a type: {shorten(module, 100)}")
    package, _, name = given.rpartition(".")
    return name if package.split(".")[0] == "sentence_transformers" else given


def _pooling(path: Path, configuration: Mapping[str, Any], width: Any) -> str:
    """Our name of the one mode that is on; E_CHECKPOINT naming whatever cannot be followed."""
    problems, modes = [], []
    for key, value in configuration.items():
        if key in _FLAGS:
            if type(value) is not bool:
                problems.append(f"{key}: expected true or false, got {shorten(value)}")
            elif value:
                modes.append(_FLAGS[key])
        elif key == "pooling_mode":
            pass  # read below
        elif key in _WIDTHS:
            if value != width:
                problems.append(f"{key}: expected {width}, the width of the network, got {shorten(value)}")
        elif key == "include_prompt":
            if value is not True:
                problems.append(f"{key}: expected true (a prompt counts like any text), got {shorten(value)}")
        else:
            problems.append(f"{shown(key)}: unknown key, got {shorten(value)}")
    if "pooling_mode" in configuration:  # the newer key, beside which the older ones do not count
        given = configuration["pooling_mode"]
        modes = given if isinstance(given, list) else [given]
    if not problems and (len(modes) != 1 or not isinstance(modes[0], str) or modes[0] not in MODES):
        problems.append(f"the mode: expected one of {', '.join(MODES)}, got {shorten(modes, 200)}")
    if problems:
        raise IsomorphError("E_CHECKPOINT", f"{path}: this pooling cannot be followed", hints=problems[:20])
    return MODES[modes[0]]


def write_sentence(directory: Path, pooling: str, normalize: bool, width: int) -> None:
    """Write ``modules.json`` and the pooling's configuration, from which sentence-transformers makes the same."""
    kinds = _KINDS if normalize else _KINDS[:2]
    modules = [
        {
            "idx": i,
            "name": str(i),
            "path": f"{i}_{kind}" if i else "",
            "type": f"sentence_transformers.models.{kind}",
        }
        for i, kind in enumerate(kinds)
    ]
    flags = {flag: MODES.get(mode) == pooling for flag, mode in _FLAGS.items()}
    for i, kind in enumerate(kinds[1:], 1):
        (directory / f"{i}_{kind}").mkdir(exist_ok=True)
    _write(directory / POOLING_DIRECTORY / "config.json", {"word_embedding_dimension": width, **flags})
    _write(directory / MODULES, modules)  # last: with it the directory is one


def _write(path: Path, content: Any) -> None:
    atomic_write(path, (json.dumps(content, indent=2) + "\n").encode())
