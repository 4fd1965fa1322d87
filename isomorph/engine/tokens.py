"""Text to ids and back: a tokenizer's file beside the model, or bytes."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from isomorph.errors import IsomorphError

TOKENIZER = "tokenizer.json"
_BYTES = 256


class TextStream(Protocol):
    """Text of ids that come one after another."""

    def add(self, token: int) -> str:
        """What the id adds, empty while a character is incomplete."""
        ...

    def end(self) -> str:
        """What is left of an incomplete character."""
        ...


class Tokenizer(Protocol):
    """Text to ids and back."""

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...

    def stream(self) -> TextStream: ...


class Bytes:
    """The bytes of UTF-8, ids 0 to 255; any other id is no text."""

    def encode(self, text: str) -> list[int]:
        return list(text.encode("utf-8", "surrogateescape"))

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(token for token in ids if token < _BYTES).decode("utf-8", "replace")

    def stream(self) -> TextStream:
        return _ByteStream()


class _ByteStream:
    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, token: int) -> str:
        return self._decoder.decode(bytes([token])) if token < _BYTES else ""

    def end(self) -> str:
        return self._decoder.decode(b"", True)


class Published:
    """A tokenizer as the ``tokenizers`` package writes it."""

    def __init__(self, path: Path) -> None:
        try:
            from tokenizers import Tokenizer as Inner
        except ModuleNotFoundError:
            raise IsomorphError(
                "E_BACKEND",
                f"{path} needs the package tokenizers, which is not installed",
                hints=['pip install "isomorph[text]"'],
            ) from None
        try:
            self._inner = Inner.from_file(str(path))
        except Exception as error:  # the package raises nothing narrower
            raise IsomorphError(
                "E_CHECKPOINT",
                f"{path} is damaged or no tokenizer: {str(error)[:200]}",
                hints=["copy it again from where the model is from"],
            ) from error

    def encode(self, text: str) -> list[int]:
        return self._inner.encode(text).ids

    def decode(self, ids: Sequence[int]) -> str:
        return self._inner.decode(list(ids))

    def stream(self) -> TextStream:
        return _PublishedStream(self)


class _PublishedStream:
    """Decodes all ids again and gives what is new: an id's text may depend on those around it."""

    def __init__(self, tokenizer: Published) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._given = ""

    def add(self, token: int) -> str:
        self._ids.append(token)
        text = self._tokenizer.decode(self._ids)
        return "" if text.endswith("\ufffd") else self._give(text)  # a character that is not complete

    def end(self) -> str:
        return self._give(self._tokenizer.decode(self._ids))

    def _give(self, text: str) -> str:
        new, self._given = text[len(self._given) :], text
        return new


def open_tokenizer(directory: Path, vocabulary: int) -> Tokenizer:
    """The tokenizer of the model in a directory, or bytes for a network over 256 ids.

    Raises:
        IsomorphError: E_ARGUMENT when there is none; E_CHECKPOINT when its file is damaged; E_BACKEND when
            the package that reads it is not installed.
    """
    path = directory / TOKENIZER
    if path.is_file():
        return Published(path)
    if vocabulary == _BYTES:
        return Bytes()
    raise IsomorphError(
        "E_ARGUMENT",
        f"there is no {TOKENIZER} in {directory} to turn text into the network's {vocabulary:,} ids",
        hints=[f"put the model's {TOKENIZER} there, or give ids: --ids 1,2,3"],
    )
