"""Text of ids that come one after another, at a cost per id that does not grow with the text.

A character may take several ids, each of which is some of its bytes. Bytes go through an incremental UTF-8 decoder:
what can become a character is kept back, what no longer can is one U+FFFD, and the rest is flushed at the end. An id
that is a piece of text is read behind the one before it, since pieces at the beginning of a text may lose a space.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

INCOMPLETE = "\ufffd"
"""What a decoder writes for bytes that are no character."""

_LONGEST = 4  # bytes of a character

BytesOf = Callable[[int], "bytes | None"]
"""The bytes of an id; none at all for an id without text; None for an id that is a piece of text."""


class TextStream(Protocol):
    """Text of ids that come one after another."""

    def add(self, token: int) -> str:
        """What the id adds, empty while a character is incomplete."""
        ...

    def end(self) -> str:
        """What is left of an incomplete character."""
        ...


def text_of(stream: TextStream, ids: Iterable[int]) -> str:
    """The text of ids that are all there."""
    return "".join(map(stream.add, ids)) + stream.end()


class ByteStream(TextStream):
    """Every id is some bytes, possibly none.

    Args:
        bytes_of: the bytes of an id.
        before: ids that come before, whose text is known.
    """

    def __init__(self, bytes_of: Callable[[int], bytes], before: Sequence[int] = ()) -> None:
        self._bytes_of = bytes_of
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        last: list[bytes] = []
        for token in reversed(before):
            if sum(map(len, last)) >= _LONGEST:
                break
            last.append(bytes_of(token))
        self._utf8.decode(b"".join(reversed(last)))

    def add(self, token: int) -> str:
        return self._utf8.decode(self._bytes_of(token))

    def end(self) -> str:
        return self._utf8.decode(b"", True)


class PieceStream(TextStream):
    """Ids are pieces of text; some may be single bytes.

    Args:
        text: the text of ids that follow no others, as the tokenizer's own decoder gives it.
        bytes_of: the bytes of an id.
        before: ids that come before, whose text is known.
        splits: whether a piece may hold part of a character, for which the decoder writes U+FFFD.
    """

    def __init__(
        self,
        text: Callable[[Sequence[int]], str],
        bytes_of: BytesOf,
        before: Sequence[int] = (),
        *,
        splits: bool = False,
    ) -> None:
        self._text, self._bytes_of, self._splits = text, bytes_of, splits
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._context: list[int] = []  # what the next piece stands behind: the last ids that were text
        self._waiting: list[int] = []  # ids of an incomplete character
        for token in self._last(before):
            self.add(token)

    def add(self, token: int) -> str:
        data = self._bytes_of(token)
        if data is None:
            return self._broken() + self._piece(token)
        if not data:
            return ""
        new = self._utf8.decode(data)
        if self._utf8.getstate()[0]:
            if new:  # what came before can no longer become a character
                self._given(self._waiting, new)
            self._waiting = [*self._waiting, token]
            return new
        ids = [*self._waiting, token]
        is_first = not self._context and INCOMPLETE not in new
        return self._given(ids, self._text(ids) if is_first else new)

    def end(self) -> str:
        return self._broken() + self._pending()

    def _last(self, before: Sequence[int]) -> list[int]:
        """The ids that decide how the next one is read: an incomplete character, and a text before it."""
        last: list[int] = []
        for token in reversed(before):
            data = self._bytes_of(token)
            if data != b"":
                last.append(token)
            if len(last) > 2 * _LONGEST or (data is None and not self._splits):
                break
        return last[::-1]

    def _broken(self) -> str:
        """What is left of bytes that will not become a character."""
        if not self._utf8.getstate()[0]:
            return ""
        return self._given(self._waiting, self._utf8.decode(b"", True))

    def _piece(self, token: int) -> str:
        self._waiting = [*self._waiting, token]
        may_wait = self._splits and len(self._waiting) < _LONGEST
        if may_wait and self._text([*self._context, *self._waiting]).endswith(INCOMPLETE):
            return ""
        return self._pending()

    def _pending(self) -> str:
        return self._behind(self._waiting) if self._waiting else ""

    def _behind(self, ids: list[int]) -> str:
        """What ids add to the text that they stand behind."""
        before = self._text(self._context) if self._context else ""
        return self._given(ids, added(before, self._text([*self._context, *ids])))

    def _given(self, ids: list[int], text: str) -> str:
        self._context, self._waiting = ids, []
        return text


def added(before: str, whole: str) -> str:
    """What a longer text adds to a shorter one, whose last character may have become complete."""
    complete = before.rstrip(INCOMPLETE)
    for known in (before, complete):
        if whole.startswith(known):
            return whole[len(known) :]
    pairs = enumerate(zip(complete, whole, strict=False))
    return whole[next((i for i, (one, other) in pairs if one != other), min(len(complete), len(whole))) :]
