"""The check that comes before Python's parser: only the language's tokens, bounded in depth and number.

Every operator sign and keyword that the language lacks is refused here, with its place and the nearest
legal form. What is left can nest only in brackets, which are counted, so that no text makes
``ast.parse`` deep, slow or large. One pass, linear in the text: statements of the common form are
skipped by one regular expression, all others are read token by token.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple, NoReturn

from isomorph.errors import IsomorphError, shorten
from isomorph.language.names import PYTHON_KEYWORDS
from isomorph.language.plain import INDENTED_LINES, PLAIN_LINES
from isomorph.language.source import Source

TERMS_PER_NODE = 8  # names and literals that a text, or an unrolled loop, may have per node of max_nodes
TERMS_PER_STATEMENT = 10_000
LONGEST_NUMBER = 100  # characters; Python takes quadratic time for long ones

_TOKEN = re.compile(
    r"""
      (?P<skip>  (?:[ \t\f]|\\\n)++ | \#[^\n]*+ )
    | (?P<newline> \n )
    | (?P<number> \.?[0-9](?:[eE][+-]|[\w.])*+ )
    | (?P<name>  (?:[^\W\d]|[^\x00-\x7f])(?:\w|[^\x00-\x7f])*+ )
    | (?P<string> \"{3}(?:[^\\"]|\\.|"(?!""))*+\"{3} | '{3}(?:[^\\']|\\.|'(?!''))*+'{3}
                | "(?!"")(?:[^"\\\n]|\\.)*+" | '(?!'')(?:[^'\\\n]|\\.)*+' )
    | (?P<quote> ["'] )
    | (?P<open>  [(\[{] )
    | (?P<close> [)\]}] )
    | (?P<sign>  \*\*=? | //=? | >>=? | <<=? | := | -> | \.\.\. | [-+*/%@&|^=<>!]=? | . )
    """,
    re.VERBOSE | re.DOTALL,
)

_DIGITS = r"[0-9](?:_?[0-9])*"
_NUMBER = re.compile(
    rf"0[xX](?:_?[0-9a-fA-F])+|0[oO](?:_?[0-7])+|0[bB](?:_?[01])+|[1-9](?:_?[0-9])*|0(?:_?0)*"
    rf"|(?:{_DIGITS}\.(?:{_DIGITS})?|\.{_DIGITS}|{_DIGITS}(?=[eE]))(?:[eE][-+]?{_DIGITS})?"
)
_NUMBER_AHEAD = re.compile(r"[ \t]*+\.?[0-9]")
_PAIRS = {"(": ")", "[": "]", "{": "}"}

_FUNCTION = "in Python code, iso.resolve_function records a function in which loops and helpers are free"
_KEYWORD_HINTS = {
    **dict.fromkeys(("if", "elif", "else"), f"write out the network that is meant; {_FUNCTION}"),
    **dict.fromkeys(("while", "async"), "loops are written `for _ in range(4):`"),
    **dict.fromkeys(("import", "from"), "every operator is there by its name; nothing is imported"),
    **dict.fromkeys(("def", "class", "lambda", "return", "yield", "await"), _FUNCTION),
    **dict.fromkeys(("and", "or", "not", "is", "in"), "write the value itself: True, False or a number"),
}
_COMPARISONS = frozenset({"==", "!=", "<", ">", "<=", ">="})
_ARITHMETIC = frozenset({"+", "-", "*", "/", "%", "@", "&", "|", "^", "//", ">>", "<<", "**", "~"})
_AUGMENTED = frozenset(sign + "=" for sign in _ARITHMETIC)


class Segment(NamedTuple):
    """A run of whole statements: from one offset to another, all plain or not."""

    start: int
    end: int
    plain: bool


class Scan(NamedTuple):
    """What a pass found: the text in segments, and whether a string holds a backslash."""

    segments: list[Segment]
    has_escapes: bool


def scan(source: Source, limits: Mapping[str, int], *, thorough: bool = False) -> Scan:
    """Refuse whatever the language has no use for; say which statements are plain.

    With ``thorough`` every line is read token by token, which finds the place of a keyword that a plain
    line misuses.
    """
    return _Scanner(source, limits).run(thorough)


class _Scanner:
    """The state of one pass."""

    def __init__(self, source: Source, limits: Mapping[str, int]) -> None:
        self.source = source
        self.text = source.text + "\n"
        self.max_nesting = limits["max_nesting"]
        self.max_nodes = limits["max_nodes"]
        self.max_terms = max(1000, TERMS_PER_NODE * limits["max_nodes"])
        self.calls = self.terms = 0
        self.brackets: list[tuple[str, int]] = []
        self.has_escapes = False
        self._start_statement()

    def _start_statement(self) -> None:
        self.at_start = True
        self.in_loop_header = False
        self.assigned = False
        self.statement_terms = 0
        self.previous = ""  # what operand has just ended: "name", "value", "bracket", or none

    def run(self, thorough: bool) -> Scan:
        text, position, end = self.text, 0, len(self.text)
        segments: list[Segment] = []
        start = 0  # of the statements since the last plain run
        in_pieces = not (thorough or self.source.indentation)  # an indented text is read as one block
        while position < end:
            plain = PLAIN_LINES.match(text, position) if in_pieces else None
            if plain is not None:
                if start < position:
                    segments.append(Segment(start, position, False))
                segments.append(Segment(position, plain.end(), True))
                self._count_plain(position, plain.end())
                position = start = plain.end()
                continue
            shallow = None if thorough else INDENTED_LINES.match(text, position)
            if shallow is not None:
                self._count_plain(position, shallow.end())
                position = shallow.end()
            else:
                position = self._logical_line(position)
        if start < end:
            segments.append(Segment(start, end, False))
        return Scan(segments, self.has_escapes)

    def _count_plain(self, start: int, end: int) -> None:
        calls = self.text.count("(", start, end)
        self.calls += calls
        self.terms += 2 * calls + self.text.count(",", start, end) + self.text.count("=", start, end)
        self._check_counts(end - 1)

    def _check_counts(self, offset: int) -> None:
        # Contracts are counted as calls here; the exact bound is the parser's.
        if self.calls > 2 * self.max_nodes:
            error = too_many_nodes(self.max_nodes)
            raise self._error(offset, error.message, error.code, *error.hints)
        if self.terms > self.max_terms:
            raise self._error(
                offset,
                f"the definition has more than {self.max_terms:,} names and literals, {TERMS_PER_NODE} for "
                f"each node that max_nodes allows",
                "E_RESOURCE",
                "repeat blocks with `for _ in range(N):`, or raise max_nodes",
            )

    def _error(self, offset: int, message: str, code: str = "E_SYNTAX", *hints: str) -> IsomorphError:
        return IsomorphError(code, message, self.source.at(min(offset, len(self.source.text))), hints)

    def _fail(self, offset: int, message: str, *hints: str) -> NoReturn:
        raise self._error(offset, message, "E_SYNTAX", *hints)

    def _logical_line(self, position: int) -> int:
        """Read one logical line; return where the next begins."""
        handlers = {
            "name": self._name, "number": self._number, "string": self._string, "quote": self._quote,
            "open": self._open, "close": self._close, "sign": self._sign,
        }  # fmt: skip
        self._start_statement()
        for match in _TOKEN.finditer(self.text, position):
            kind = match.lastgroup
            if kind == "skip":
                continue
            if kind == "newline":
                if not self.brackets:
                    return match.end()
                continue
            assert kind is not None
            self.first, self.at_start = self.at_start, False
            handlers[kind](match[0], match.start())
        if self.brackets:
            bracket, offset = self.brackets[-1]
            self._fail(offset, f"this {bracket!r} is never closed", f"add the missing {_PAIRS[bracket]!r}")
        return len(self.text)

    # -- tokens --------------------------------------------------------------------------------

    def _operand(self, kind: str, offset: int) -> None:
        self.previous = kind
        self.terms += 1
        self.statement_terms += 1
        if self.statement_terms > TERMS_PER_STATEMENT:
            raise self._error(
                offset,
                f"a statement has more than {TERMS_PER_STATEMENT:,} names and literals",
                "E_RESOURCE",
                "name inner results in statements of their own: h = linear(64)",
            )
        self._check_counts(offset)

    def _name(self, word: str, offset: int) -> None:
        following = self.text[offset + len(word)]
        if following in "\"'":
            self._prefix(word, offset)
        elif word not in PYTHON_KEYWORDS:
            self._operand("name", offset)
        elif word in ("None", "True", "False"):
            self._operand("value", offset)
        elif word == "for" and self.first:
            self.in_loop_header = True
        elif word == "for":
            self._fail(offset, "comprehensions are not part of the language", "write every element out")
        elif not (word == "in" and self.in_loop_header):
            hint = _KEYWORD_HINTS.get(word)
            self._fail(offset, f"`{word}` is not part of the language", *([hint] if hint else []))
        else:
            self.previous = ""

    def _prefix(self, word: str, offset: int) -> None:
        lowered = word.lower()
        if lowered in ("r", "u"):
            return
        if lowered in ("f", "fr", "rf", "t", "tr", "rt"):
            kind = "t" if "t" in lowered else "f"
            self._fail(
                offset, f"{kind}-strings are not part of the language", 'write the string itself: "gelu"'
            )
        if lowered in ("b", "br", "rb"):
            self._fail(offset, "bytes are not part of the language", 'write a string: "gelu"')
        self._fail(offset + len(word), "a string cannot follow a name", "put a comma between them")

    def _number(self, word: str, offset: int) -> None:
        if len(word) > LONGEST_NUMBER:
            raise self._error(
                offset,
                f"a number of {len(word):,} characters; at most {LONGEST_NUMBER} are read",
                "E_RESOURCE",
                "write the number in its usual form, such as 64 or 1e-5",
            )
        if not _NUMBER.fullmatch(word):
            if word[-1] in "jJ" and _NUMBER.fullmatch(word[:-1]):
                self._fail(offset, f"complex numbers are not part of the language, got {word}")
            self._fail(offset, f"{word!r} is not a number", "write it as 64, 0.1 or 1e-5")
        self._operand("value", offset)

    def _string(self, word: str, offset: int) -> None:
        self.has_escapes = self.has_escapes or "\\" in word
        self._operand("value", offset)

    def _quote(self, word: str, offset: int) -> None:
        mark = word * 3 if self.text.startswith(word * 3, offset) else word
        self._fail(offset, "this string is never closed", f"add the missing {mark}")

    def _open(self, bracket: str, offset: int) -> None:
        if self.previous:
            if bracket == "[":
                self._fail(offset, "subscripts are not part of the language",
                           "split(...) takes a part of a tensor: first, rest = split(4, dim=1)")  # fmt: skip
            if bracket == "(":
                if self.previous != "name":
                    self._fail(offset, "only an operator, by its name, can be called", "write linear(64)")
                if not any(opened == "{" for opened, _ in self.brackets):  # there it is an initialiser
                    self.calls += 1
                    self._check_counts(offset)
        self.brackets.append((bracket, offset))
        if len(self.brackets) > self.max_nesting:
            raise self._error(
                offset,
                f"brackets nest more than {self.max_nesting} deep (max_nesting)",
                "E_RESOURCE",
                "name inner results in statements of their own: h = linear(64)",
            )
        self.previous = ""

    def _close(self, bracket: str, offset: int) -> None:
        if not self.brackets:
            self._fail(offset, f"nothing is open that this {bracket!r} could close")
        opened, start = self.brackets.pop()
        if _PAIRS[opened] != bracket:
            place = self.source.at(start)
            self._fail(
                offset, f"{bracket!r} cannot close the {opened!r} of {place.line}:{place.column}",
                f"write {_PAIRS[opened]!r}",
            )  # fmt: skip
        self.previous = "bracket"

    def _sign(self, sign: str, offset: int) -> None:
        operand, self.previous = bool(self.previous), ""
        if not operand and (sign in ",;" or (sign == "=" and self.brackets)):
            self._fail(offset, f"something is missing before this {sign!r}")
        if sign == ",":
            return
        if sign == "=":
            self._equals(offset)
        elif sign == ":":
            self._colon(offset)
        elif sign == ";" and not self.brackets:
            self._start_statement()
        elif not (sign in "+-" and not operand and _NUMBER_AHEAD.match(self.text, offset + 1)):
            self._refuse_sign(sign, offset, operand)

    def _equals(self, offset: int) -> None:
        if self.brackets:
            return
        if self.assigned:
            self._fail(
                offset,
                "a statement names its result once",
                "write two statements: a = linear(64), then b = a",
            )
        self.assigned = True

    def _colon(self, offset: int) -> None:
        if self.brackets:
            if self.brackets[-1][0] != "{":
                self._fail(offset, "a `:` inside brackets belongs to a dictionary", 'write {"weight": 0.1}')
        elif self.in_loop_header:
            self._start_statement()
        else:
            self._fail(offset, "annotations are not part of the language", "write h = linear(64)")

    def _refuse_sign(self, sign: str, offset: int, operand: bool) -> NoReturn:
        if sign == ".":
            self._fail(offset, "attribute access is not part of the language",
                       "call operators by their bare names: linear(64)")  # fmt: skip
        if sign == "...":
            self._fail(offset, "`...` is not a value of the language", "write every value out")
        if sign == ":=":
            self._fail(
                offset, "`:=` is not part of the language", "name a result in a statement: h = linear(64)"
            )
        if sign in _AUGMENTED:
            self._fail(offset, f"`{sign}` is not part of the language", "write h = add(h, x)")
        if sign in _COMPARISONS:
            self._fail(offset, f"comparisons (`{sign}`) are not part of the language",
                       "write the value itself: True or False")  # fmt: skip
        if sign in ("*", "**") and not operand:
            self._fail(offset, f"star arguments (`{sign}`) are not part of the language",
                       "write every argument out")  # fmt: skip
        if sign == "@" and not operand:
            self._fail(offset, "decorators are not part of the language")
        if sign in _ARITHMETIC:
            self._fail(offset, f"arithmetic (`{sign}`) is not part of the language",
                       "write the number itself; tensors are added with add(a, b)")  # fmt: skip
        self._fail(offset, f"{shorten(sign)} is not part of the language")


def too_many_nodes(most: int) -> IsomorphError:
    """The error for a text with more operator calls than ``max_nodes`` (without a place)."""
    return IsomorphError(
        "E_RESOURCE",
        f"the definition has more than {most:,} operator calls (max_nodes)",
        hints=["raise the limit if this network is meant"],
    )
