"""Text to ids and back: a tokenizer's file beside the model, or bytes."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from isomorph.errors import IsomorphError, shorten
from isomorph.paths import TOKENIZER

_BYTES = 256
_INCOMPLETE = "\ufffd"  # what a decoder writes for part of a character


_IDS = 2**32  # how many ids the tokenizers package can write down


class TextStream(Protocol):
    """Text of ids that come one after another."""

    def add(self, token: int) -> str:
        """What the id adds, empty while a character is incomplete."""
        ...

    def end(self) -> str:
        """What is left of an incomplete character."""
        ...


class Tokenizer(Protocol):
    """Text to ids and back. Ids that mean nothing to it are no text."""

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: Sequence[int], before: Sequence[int] = ()) -> str:
        """The text of ids where they follow others: what they add to those others' text."""
        ...

    def stream(self, before: Sequence[int] = ()) -> TextStream:
        """The same of ids that come one after another."""
        ...


class Bytes:
    """The bytes of UTF-8, ids 0 to 255; any other id is no text."""

    def encode(self, text: str) -> list[int]:
        try:
            return list(text.encode("utf-8", "surrogateescape"))
        except UnicodeEncodeError as error:
            raise _not_unicode(text) from error

    def decode(self, ids: Sequence[int], before: Sequence[int] = ()) -> str:
        stream = self.stream(before)
        return "".join(map(stream.add, ids)) + stream.end()

    def stream(self, before: Sequence[int] = ()) -> TextStream:
        return _ByteStream(before)


class _ByteStream:
    def __init__(self, before: Sequence[int]) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        for token in before:
            self.add(token)

    def add(self, token: int) -> str:
        return self._decoder.decode(bytes([token])) if 0 <= token < _BYTES else ""

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
        self._path = path
        with _failing(lambda reason: self._broken(f"is damaged or no tokenizer: {reason}")):
            self._inner = Inner.from_file(str(path))
            self._inner.no_padding()  # a prompt is what was said, no more and no less
            self._inner.no_truncation()

    def encode(self, text: str) -> list[int]:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise _not_unicode(text) from error
        with _failing(lambda reason: self._no_ids(text, reason)):
            return self._inner.encode(text).ids

    def decode(self, ids: Sequence[int], before: Sequence[int] = ()) -> str:
        return added(self.text(before), self.text([*before, *ids]))

    def text(self, ids: Sequence[int]) -> str:
        """The text of ids that follow no others."""
        with _failing(lambda reason: self._broken(f"cannot turn ids into text: {reason}")):
            return self._inner.decode([token for token in ids if 0 <= token < _IDS])

    def stream(self, before: Sequence[int] = ()) -> TextStream:
        return _PublishedStream(self, before)

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


def added(before: str, whole: str) -> str:
    """What a longer text adds to a shorter one, whose last character may have become complete."""
    complete = before.rstrip(_INCOMPLETE)
    for known in (before, complete):
        if whole.startswith(known):
            return whole[len(known) :]
    pairs = enumerate(zip(complete, whole, strict=False))
    return whole[next((i for i, (one, other) in pairs if one != other), min(len(complete), len(whole))) :]


class _PublishedStream:
    """Decodes all ids again and gives what is new: an id's text may depend on those around it."""

    def __init__(self, tokenizer: Published, before: Sequence[int]) -> None:
        self._tokenizer, self._ids = tokenizer, list(before)
        self._before = tokenizer.text(before)
        self._given = 0

    def add(self, token: int) -> str:
        self._ids.append(token)
        text = self._text()
        return "" if text.endswith(_INCOMPLETE) else self._give(text)

    def end(self) -> str:
        return self._give(self._text())

    def _text(self) -> str:
        return added(self._before, self._tokenizer.text(self._ids))

    def _give(self, text: str) -> str:
        new, self._given = text[self._given :], len(text)
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
