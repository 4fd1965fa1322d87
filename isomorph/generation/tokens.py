"""Text to ids and back: a tokenizer's file beside the model, or bytes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Protocol

from isomorph.errors import IsomorphError, shorten
from isomorph.generation.text_stream import ByteStream, PieceStream, TextStream, text_of
from isomorph.paths import TOKENIZER

_BYTES = 256
_BYTE = re.compile("<0x([0-9A-Fa-f]{2})>")
_IDS = 2**32  # how many ids the tokenizers package can write down


class Tokenizer(Protocol):
    """Text to ids and back. Ids that mean nothing to it are no text."""

    def encode(self, text: str) -> list[int]:
        """The ids of a text; E_ARGUMENT for what is no Unicode."""
        ...

    def decode(self, ids: Sequence[int], before: Sequence[int] = ()) -> str:
        """The text of ids where they follow others: what they add to those others' text."""
        ...

    def stream(self, before: Sequence[int] = ()) -> TextStream:
        """The same of ids that come one after another."""
        ...


class Bytes(Tokenizer):
    """The bytes of UTF-8, ids 0 to 255; any other id is no text."""

    def encode(self, text: str) -> list[int]:
        try:
            return list(text.encode("utf-8", "surrogateescape"))
        except UnicodeEncodeError as error:
            raise _not_unicode(text) from error

    def decode(self, ids: Sequence[int], before: Sequence[int] = ()) -> str:
        return text_of(self.stream(before), ids)

    def stream(self, before: Sequence[int] = ()) -> TextStream:
        return ByteStream(_one_byte, before)


def _one_byte(token: int) -> bytes:
    return bytes([token]) if 0 <= token < _BYTES else b""


class Published(Tokenizer):
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
        self._path = path
        with _failing(lambda reason: self._broken(f"is damaged or no tokenizer: {reason}")):
            self._inner = Inner.from_file(str(path))
            self._inner.no_padding()  # a prompt is what was said, no more and no less
            self._inner.no_truncation()
            decoder = self._inner.decoder
            self._steps = _steps(json.loads(decoder.__getstate__())) if decoder else frozenset()
            added_tokens = self._inner.get_added_tokens_decoder()
        self._special = frozenset(token for token, entry in added_tokens.items() if entry.special)

    def encode(self, text: str) -> list[int]:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise _not_unicode(text) from error
        with _failing(lambda reason: self._no_ids(text, reason)):
            encoding = self._inner.encode(text)
            own = [place for place, mark in enumerate(encoding.special_tokens_mask) if not mark]
            end = own[-1] + 1 if own else self._marks_in_front
        return encoding.ids[:end]  # a mark behind a prompt would end what is to be continued

    @cached_property
    def _marks_in_front(self) -> int:
        """How many marks the tokenizer puts before a text."""
        marks = self._inner.encode("a").special_tokens_mask
        return marks.index(0) if 0 in marks else len(marks)

    def decode(self, ids: Sequence[int], before: Sequence[int] = ()) -> str:
        return text_of(self.stream(before), ids)

    def text(self, ids: Sequence[int]) -> str:
        """The text of ids that follow no others."""
        with _failing(lambda reason: self._broken(f"cannot turn ids into text: {reason}")):
            return self._inner.decode(ids)

    def stream(self, before: Sequence[int] = ()) -> TextStream:
        if self._steps and self._steps <= {"ByteLevel", "Fuse"}:
            return ByteStream(self._mapped_bytes, before)
        return PieceStream(self.text, self._fallback_byte, before, splits="ByteLevel" in self._steps)

    def _piece(self, token: int) -> str:
        """How the vocabulary writes an id; nothing where the id is no text."""
        if not 0 <= token < _IDS or token in self._special:
            return ""
        return self._inner.id_to_token(token) or ""

    def _mapped_bytes(self, token: int) -> bytes:
        """The bytes of an id of a byte-level vocabulary, whose characters stand for one byte each."""
        piece = self._piece(token)
        try:
            return bytes(map(_byte_of_character().__getitem__, piece))
        except KeyError:  # a piece that was added as it is written
            return piece.encode()

    def _fallback_byte(self, token: int) -> bytes | None:
        """The byte of an id such as ``<0xE2>``, where the decoder knows such ids; None for other pieces."""
        piece = self._piece(token)
        byte = _BYTE.fullmatch(piece) if "ByteFallback" in self._steps else None
        return bytes([int(byte[1], 16)]) if byte else None if piece else b""

    def _broken(self, problem: str) -> IsomorphError:
        hints = ["copy it again from where the model is from"]
        return IsomorphError("E_CHECKPOINT", f"{self._path} {problem}", hints=hints)

    def _no_ids(self, text: str, reason: str) -> IsomorphError:
        return IsomorphError(
            "E_ARGUMENT",
            f"{self._path} has no ids for the text {shorten(text)}: {reason}",
            hints=["give another text, or ids: --ids 1,2,3"],
        )


@contextmanager
def _failing(error_of: Callable[[str], IsomorphError]) -> Iterator[None]:
    """Tell a failure inside the tokenizers package, which raises nothing narrower than Exception.

    A panic of its compiled part is a BaseException whose class cannot be imported, so it is known by its name.
    """
    try:
        yield
    except BaseException as failure:
        if not isinstance(failure, Exception) and type(failure).__name__ != "PanicException":
            raise
        raise error_of(str(failure)[:200]) from failure


def _not_unicode(text: str) -> IsomorphError:
    return IsomorphError(
        "E_ARGUMENT",
        f"the text is not valid UTF-8: {shorten(text)}",
        hints=["convert it first, as in iconv -t utf-8"],
    )


def _steps(decoder: Any) -> frozenset[str]:
    """The kinds of all steps of a decoder as the package writes it."""
    inner = (_steps(step) for step in decoder.get("decoders", ()))
    return frozenset({decoder["type"]} - {"Sequence"}).union(*inner)


@cache
def _byte_of_character() -> dict[str, int]:
    """Which byte a character of a byte-level vocabulary stands for (Radford et al., 2019).

    The printable characters of Latin-1 stand for themselves, the other bytes in order for those from U+0100.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(_BYTES) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(_BYTES + n): byte for n, byte in enumerate(others)}


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
