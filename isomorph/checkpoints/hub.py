"""``hf:owner/name``: a model on the Hugging Face hub, through its own client (the extra ``hub``).

The client keeps what it loads in its own cache and takes it from there when the hub cannot be reached. Exactly
the files that are read are loaded: small ones first, and then the weights that they name.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from isomorph.checkpoints.sentence import MODULES, POOLING_DIRECTORY
from isomorph.checkpoints.source import (
    ADAPTER,
    CONFIGURATION,
    GENERATION,
    PICKLED,
    SAFETENSORS,
    indexed_names,
)
from isomorph.errors import IsomorphError, shorten
from isomorph.paths import TOKENIZER, path_text

SCHEME = "hf:"
SECONDS = 5.0
"""How long the hub may take to answer before the cache is asked."""

_SMALL = (CONFIGURATION, ADAPTER, GENERATION, TOKENIZER, MODULES, f"{POOLING_DIRECTORY}/config.json")
_PART = r"[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?"
_SOURCE = re.compile(rf"(?P<name>{_PART}/{_PART})(?:@(?P<revision>[A-Za-z0-9_][A-Za-z0-9._/-]{{0,254}}))?")


def local_directory(source: str | bytes | os.PathLike[str] | os.PathLike[bytes]) -> str:
    """The directory of a source: itself, or what the hub's client loads for ``hf:owner/name[@revision]``.

    Raises:
        IsomorphError: E_ARGUMENT when what follows ``hf:`` is no name; E_BACKEND when the client is not
            installed; E_CHECKPOINT when the hub has no such model, or cannot be reached and the cache has
            none of it.
    """
    text = path_text(source, "the checkpoint's path")
    if not text.startswith(SCHEME):
        return text
    match = _SOURCE.fullmatch(text[len(SCHEME) :])
    if match is None or any(mark in text for mark in ("--", "..", "//", "/@")) or text.endswith("/"):
        raise IsomorphError(
            "E_ARGUMENT",
            f"{shorten(text, 200)} names no model on the hub",
            hints=["expected hf:owner/name or hf:owner/name@revision, as in hf:openai-community/gpt2"],
        )
    return str(_download(match["name"], match["revision"], _client()))


def _client() -> Callable[..., Any]:
    try:
        from huggingface_hub import snapshot_download
    except ModuleNotFoundError as error:
        if error.name != "huggingface_hub":
            raise
        raise IsomorphError(
            "E_BACKEND",
            "a model on the hub is loaded by huggingface_hub, which is not installed",
            hints=['pip install "isomorph[hub]"'],
        ) from None
    return snapshot_download


def _download(name: str, revision: str | None, snapshot_download: Callable[..., Any]) -> Path:
    """The directory with the model's files, all of one revision."""

    def load(files: Sequence[str]) -> Path:
        nonlocal revision
        try:
            directory = Path(
                snapshot_download(
                    name, revision=revision, allow_patterns=[glob.escape(file) for file in files],
                    etag_timeout=SECONDS,
                )
            )  # fmt: skip
        except Exception as error:  # its own errors, and those of whichever HTTP library it uses
            raise _refused(name, revision, error) from error
        revision = directory.name if re.fullmatch("[0-9a-f]{40}", directory.name) else revision
        return directory

    for weights in (SAFETENSORS, PICKLED):
        index = f"{weights}.index.json"
        directory = load([*_SMALL, weights, index] if weights == SAFETENSORS else [weights, index])
        if (directory / weights).exists():
            return directory
        if (directory / index).exists():
            return load(indexed_names(directory, index))
    return directory  # without weights, which its reader says


def _refused(name: str, revision: str | None, error: Exception) -> IsomorphError:
    kind = type(error).__name__
    full = f"{name}@{revision}" if revision else name
    if kind in ("LocalEntryNotFoundError", "IncompleteSnapshotError", "OfflineModeIsEnabled"):
        offline = os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")
        why = "HF_HUB_OFFLINE is set" if offline else "the hub cannot be reached"
        return IsomorphError(
            "E_CHECKPOINT",
            f"{why}, and the local cache has not all of {full}",
            hints=[f"where there is a network: hf download {name} --local-dir DIR; then import DIR"],
        )
    first = next((line for line in str(error).splitlines() if line.strip()), "")
    hints = {
        "RepositoryNotFoundError": "check the name; a private model needs a login: hf auth login",
        "GatedRepoError": "ask for access on the model's page, and log in: hf auth login",
        "RevisionNotFoundError": "give a branch, a tag or a commit that the model has",
    }
    return IsomorphError(
        "E_CHECKPOINT",
        f"the hub does not give {full}: {kind}: {shorten(first, 200)}",
        hints=[hints.get(kind, "try again later")],
    )
