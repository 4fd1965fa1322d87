"""What may be given where a file's or a directory's path is expected, and names that several parts know."""

from __future__ import annotations

import os

from isomorph.errors import IsomorphError, shorten

TOKENIZER = "tokenizer.json"
"""The file beside a model that turns text into its ids, as the ``tokenizers`` package writes it."""


def path_text(path: object, what: str = "a path") -> str:
    """A path as text.

    Args:
        path: str, bytes in the file system's encoding, or an ``os.PathLike`` of either.
        what: what the path is of, for messages.

    Raises:
        IsomorphError: E_ARGUMENT for anything else, an empty path, or one with a NUL character, which no
            system has.
    """
    if not isinstance(path, str | bytes | os.PathLike):
        raise IsomorphError(
            "E_ARGUMENT", f"{what} must be str, bytes or os.PathLike, got {shorten(type(path).__name__)}"
        )
    text = os.fsdecode(path)
    if not text or "\0" in text:
        problem = "is empty" if not text else "holds a NUL character"
        raise IsomorphError("E_ARGUMENT", f"{what} {problem}: {shorten(text)}")
    return text
