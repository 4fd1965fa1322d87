"""A definition's text: decoding, Python's syntax tree, and places in it.

Lines are split and columns counted only when somebody asks for a place.
"""

from __future__ import annotations

import ast
import re
import warnings
from typing import Any

from isomorph.errors import IsomorphError, Location

_INDENTED_START = re.compile(r"(?:[ \t\f]*+(?:#[^\n]*+)?\n)*+([ \t]++)[^\s#]")
_WRAPPER = "if True:\n"  # lets a text whose first line is indented stand as a block


class Source:
    """The text of one definition.

    Attributes:
        text: the text with ``\\n`` line ends and no byte-order mark.
        file: the name shown in errors.
    """

    __slots__ = ("_calls", "_lines", "file", "first_line", "text")

    def __init__(self, text: str, file: str) -> None:
        self.text, self.file = text, file
        self._lines: list[str] | None = None
        self._calls: dict[tuple[int, int], ast.Call] | None = None
        self.first_line = 1

    @property
    def indentation(self) -> str:
        """The white space in front of the first statement."""
        start = _INDENTED_START.match(self.text)
        return start[1] if start else ""

    def statements(
        self, *, has_escapes: bool, start: int = 0, end: int | None = None, line: int = 1
    ) -> list[ast.stmt]:
        """A part of the text, beginning at ``line``, as a syntax tree; what Python's parser raises passes.

        An indented text is read as a block, so that columns stay those of the text. Until the next call
        :meth:`of` knows the places of this tree.
        """
        wrapped = start == 0 and bool(self.indentation)
        text = self.text if start == 0 and end is None else self.text[start:end]
        if wrapped:
            text = _WRAPPER + text
        self.first_line = line - wrapped
        if has_escapes:  # Python warns of a backslash that escapes nothing
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                module = ast.parse(text)
        else:
            module = ast.parse(text)
        if not wrapped:
            return module.body
        if len(module.body) > 1:
            last = module.body[1]
            place = None, last.lineno, last.col_offset + 1, None
            raise IndentationError("a line is indented less than the first", place)
        block = module.body[0]
        assert isinstance(block, ast.If)
        return block.body

    # -- places --------------------------------------------------------------------------------

    def line(self, number: int) -> str:
        """The text of a line, counted from 1; empty beyond the end."""
        if self._lines is None:
            self._lines = self.text.split("\n")
        return self._lines[number - 1] if 0 < number <= len(self._lines) else ""

    def at(self, offset: int) -> Location:
        """The place of a character."""
        number = self.text.count("\n", 0, offset) + 1
        return Location(self.file, number, offset - self.text.rfind("\n", 0, offset), self.line(number))

    def of(self, node: Any) -> Location:
        """The place of a node of the syntax tree (its columns count UTF-8 bytes; ours, characters)."""
        return self._place(self.line_of(node), node.col_offset)

    def line_of(self, node: Any) -> int:
        """The line of a node of the tree that was read last."""
        return node.lineno + self.first_line - 1

    def end_of(self, node: ast.stmt) -> int:
        """The offset of the character after a statement."""
        last = (node.end_lineno or node.lineno) + self.first_line - 1
        place = self._place(last, node.end_col_offset or 0)
        return sum(len(self.line(number)) + 1 for number in range(1, place.line)) + place.column - 1

    def of_syntax_error(self, error: SyntaxError) -> Location:
        """The place that Python's parser blames."""
        number = min(max((error.lineno or 1) + self.first_line - 1, 1), self.text.count("\n") + 1)
        line = self.line(number)
        return Location(self.file, number, min(max(error.offset or 1, 1), len(line) + 1), line)

    def _place(self, number: int, column: int) -> Location:
        line = self.line(number)
        if not line.isascii():
            column = len(line.encode()[:column].decode(errors="replace"))
        return Location(self.file, number, column + 1, line)

    def locate(self, line: int, column: int, key: Any = None) -> Location:
        """A place in the call that begins there; ``key`` as for :attr:`isomorph.language.graph.Call.locate`.

        The syntax tree is not kept with a graph; when a place inside a call is asked for, the text is
        read again.
        """
        if key is None:
            return self._place(line, column)
        if self._calls is None:
            nodes = (node for tree in self.statements(has_escapes=True) for node in ast.walk(tree))
            self._calls = {(self.line_of(n), n.col_offset): n for n in nodes if isinstance(n, ast.Call)}
        part = _part_of(self._calls[line, column], key)
        return self.of(part) if part is not None else self._place(line, column)


def _part_of(call: ast.Call, key: Any) -> ast.expr | None:
    if isinstance(key, str):
        return next((keyword.value for keyword in call.keywords if keyword.arg == key), None)
    tensors = sum(isinstance(argument, ast.Name | ast.Call) for argument in call.args)
    position = key[1] if isinstance(key, tuple) else tensors + key
    return call.args[position] if position < len(call.args) else None


def read_source(source: str | bytes, file: str, max_bytes: int) -> Source:
    """Decode a definition as UTF-8; E_RESOURCE when it is too large, E_SYNTAX when it is not text."""
    if not isinstance(source, str | bytes):
        raise IsomorphError(
            "E_ARGUMENT", f"a definition is text (str, or bytes in UTF-8), got {type(source).__name__}"
        )
    size = len(source)
    if size <= max_bytes and isinstance(source, str) and not source.isascii():
        size = len(source.encode("utf-8", "surrogatepass"))
    if size > max_bytes:
        raise IsomorphError(
            "E_RESOURCE",
            f"the definition has {size:,} bytes or more, above the limit of {max_bytes:,} (max_source_bytes)",
            Location(file, 1, 1),
            ["repeat blocks with `for _ in range(N):`, or raise the limit"],
        )
    text = source if isinstance(source, str) else _decode(source, file)
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    read = Source(text.removeprefix("\ufeff"), file)
    if not read.text.isascii():
        _refuse_surrogates(read)
    zero = read.text.find("\0")
    if zero >= 0:
        raise IsomorphError("E_SYNTAX", "a NUL byte is not text", read.at(zero))
    return read


def _decode(data: bytes, file: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        before = Source(data[: error.start].decode().replace("\r\n", "\n").replace("\r", "\n"), file)
        raise IsomorphError(
            "E_SYNTAX",
            f"the definition is not UTF-8: byte 0x{data[error.start]:02x} at position {error.start}",
            before.at(len(before.text)),
            ["save the file as UTF-8"],
        ) from None


def _refuse_surrogates(source: Source) -> None:
    try:
        source.text.encode()
    except UnicodeEncodeError as error:
        raise IsomorphError(
            "E_SYNTAX", f"half a surrogate pair (U+{ord(source.text[error.start]):04X}) is not text",
            source.at(error.start),
        ) from None  # fmt: skip
