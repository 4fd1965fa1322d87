"""What a directory of a published model holds beside what becomes the network, and that it was left.

An adapter changes the network, so that a directory with one is refused; whatever else is left is told.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from isomorph.checkpoints.family import Family, Options, passed_over
from isomorph.checkpoints.generation import settings_of
from isomorph.checkpoints.notes import notes_of
from isomorph.checkpoints.sentence import MODULES
from isomorph.checkpoints.source import (
    CONFIGURATION,
    GENERATION,
    Checkpoint,
    adapters_below,
    generation_of,
    read_json,
)
from isomorph.errors import IsomorphError, shown
from isomorph.paths import TOKENIZER

_MOST_LISTED = 20
_WEIGHTS = re.compile(r".*\.(safetensors|bin|pt|pth|ckpt|h5|msgpack|gguf|onnx|ot)(\.index\.json)?")
_TEMPLATES = ("chat_template.jinja", "chat_template.json", "tokenizer_config.json")
_DOCUMENTS = re.compile(r"\..*|README.*|LICEN[CS]E.*|NOTICE.*|USE_POLICY.*|.*\.md", re.IGNORECASE)


def left_lines(family: Family, checkpoint: Checkpoint, options: Options, tensors: Iterable[str]) -> list[str]:
    """A line for each kind of thing that was left.

    Args:
        family: what the directory was read as.
        checkpoint: the directory.
        options: its configuration, read.
        tensors: the names of those that no parameter was read from.
    """
    directory = checkpoint.directory
    names = sorted(entry.name for entry in os.scandir(directory) if entry.is_file())
    files = [name for name in names if name not in checkpoint.files and not _DOCUMENTS.fullmatch(name)]
    weights = [name for name in files if _WEIGHTS.fullmatch(name)]
    templates = [name for name in files if name in _TEMPLATES and _has_template(directory / name)]
    others = [name for name in files if name not in (*weights, *_TEMPLATES, GENERATION, TOKENIZER, MODULES)]
    read = " and ".join(sorted(name for name in checkpoint.files if _WEIGHTS.fullmatch(name))[:2])
    lines = {
        f"keys of {CONFIGURATION} that {family.model_type} does not read": passed_over(
            family, checkpoint.configuration, options
        ),
        f"tensors that {options['architecture']} does not compute with": _grouped(tensors),
        f"other weights (read: {read})": weights,
        "settings of generation that are not followed": _unfollowed(checkpoint),
        "a chat template (prompts are taken as they are)": templates,
        "adapters": adapters_below(directory),
        "other files": others,
    }
    return [f"left: {what}: {_listed(what_is_left)}" for what, what_is_left in lines.items() if what_is_left]


def _unfollowed(checkpoint: Checkpoint) -> list[str]:
    try:
        generation = generation_of(checkpoint.directory)
    except IsomorphError:  # whoever generates reads it, and says what is wrong
        return [GENERATION]
    return list(settings_of(notes_of(checkpoint.configuration, generation)).unfollowed)


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_LISTED} more" if len(names) > _MOST_LISTED else ""
    return ", ".join(shown(name, 100) for name in names[:_MOST_LISTED]) + more


def _grouped(tensors: Iterable[str]) -> list[str]:
    """Names with a layer's number as ``{i}``, each once."""
    return list(dict.fromkeys(re.sub(r"(?<=\.)[0-9]+(?=\.)", "{i}", name) for name in tensors))


def _has_template(path: Path) -> bool:
    if path.suffix == ".jinja":
        return True
    try:
        return bool(read_json(path).get("chat_template"))
    except IsomorphError:  # nobody's file to judge: it is not read
        return False
