"""From a plan and its weights to a directory that ``transformers`` loads."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from isomorph.checkpoints.families import Match, recognize
from isomorph.checkpoints.family import Handled, each_layer, to_theirs
from isomorph.checkpoints.source import CONFIGURATION, SAFETENSORS
from isomorph.errors import IsomorphError
from isomorph.paths import path_text
from isomorph.plan import Plan
from isomorph.weights.atomic import atomic_write
from isomorph.weights.convert import owned_weights, to_array
from isomorph.weights.file import write_safetensors


def export_checkpoint(
    directory: str | bytes | os.PathLike[str] | os.PathLike[bytes], plan: Plan, weights: Mapping[str, Any]
) -> str:
    """Write ``config.json`` and ``model.safetensors``, from which ``from_pretrained`` makes the same network.

    The plan need not have been imported: it is compared with the definition of each family, whatever its
    nodes are called. Dropout is written as 0, and names of tokens and classes are not known here.

    Args:
        directory: where to write; made if it is missing. Files of these names in it are replaced.
        plan: the network.
        weights: arrays by parameter path, such as a backend's ``weights(model)``.

    Returns:
        The class of ``transformers`` that loads it, such as ``GPT2LMHeadModel``.

    Raises:
        IsomorphError: E_CHECKPOINT when the plan is not laid out as any known family, with what is in the
            way, or the directory cannot be written; E_WEIGHTS when the arrays are not the plan's.
    """
    match = recognize(plan)
    found = {path: to_array(path, array) for path, array in owned_weights(plan, weights).items()}
    family, options = match.family, match.options
    bare = options["architecture"] in family.base_architectures
    tensors = {}
    for row in each_layer(family.rows(options), family.layers(options)):
        ours = [match.ours[path] for path in row.ours]
        if ours[0] in plan.ties:
            continue  # their loader ties it again
        prefix = "" if bare or row.head else family.prefix + "."
        tensors[prefix + row.theirs] = to_theirs(row, [found[path] for path in ours])
    target = Path(path_text(directory, "the directory's path"))
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise IsomorphError(
            "E_CHECKPOINT", f"cannot write {target}: {error.strerror or error}", hints=["choose a directory"]
        ) from error
    # The weights first: a directory with a configuration is complete.
    write_safetensors(target / SAFETENSORS, tensors, {"format": "pt"})
    text = json.dumps(_configuration(plan, match), indent=2, sort_keys=True) + "\n"
    atomic_write(target / CONFIGURATION, text.encode())
    return options["architecture"]


def _configuration(plan: Plan, match: Match) -> dict[str, Any]:
    """The configuration's file: what the definition follows, nothing that is not known."""
    family, options = match.family, match.options
    written = {
        key: value
        for key, value in options.items()
        if key not in ("architecture", *family.unwritten)
        and (isinstance(family.settings.get(key), Handled) or key in family.written)
    }
    dropouts = {key: 0.0 for key in family.settings if key.endswith(("dropout", "_pdrop", "dropout_prob"))}
    tokens = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id")) if family.has_tokens else {}
    return {
        "architectures": [options["architecture"]], "model_type": family.model_type, "dtype": plan.dtype,
        **dropouts, **tokens, **written,
    }  # fmt: skip
