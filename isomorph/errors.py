"""The one error class, its codes, and the helpers that write good messages.

Inner code states what conflicts; the code that knows the line adds the place. Nothing else in the
package derives from :class:`Exception` for a person to see.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

CODES = frozenset(
    [
        "E_SYNTAX",
        "E_NAME",
        "E_OPERATOR",
        "E_ARGUMENT",
        "E_BINDING",
        "E_CONSTRAINT",
        "E_AMBIGUOUS",
        "E_UNRESOLVED",
        "E_DTYPE",
        "E_OUTPUT",
        "E_RESOURCE",
        "E_WEIGHTS",
        "E_INTEGRITY",
        "E_RUNTIME",
        "E_BACKEND",
        "E_CHECKPOINT",
    ]
)


MOST_LINE = 2000
"""The most characters of a message, or of a hint, that are shown: names in files that somebody made may be longer."""

MOST_COMPARED = 200
"""Names that a mistyped one is compared with in full: of more, those that share most pairs of letters with it."""


class Location(NamedTuple):
    """A place in a definition: file, 1-based line and column (in characters), and the line's text."""

    file: str
    line: int
    column: int
    text: str = ""

    def render(self) -> list[str]:
        """The place and, where the source is known, its line with a caret."""
        lines = [f"  {shown(self.file, MOST_LINE)}:{self.line}:{self.column}"]
        text = self.text.expandtabs(1)
        if text.strip():
            offset = self.column - 1
            if len(text) > 120:  # keep a window around the caret
                start = max(0, offset - 60)
                text, offset = text[start : start + 120], offset - start
            text = "".join(character if character.isprintable() else "?" for character in text)
            gutter = f"  {self.line} | "
            lines.append(gutter + text.rstrip())
            lines.append(" " * (len(gutter) - 2) + "| " + " " * offset + "^")
        return lines


class IsomorphError(Exception):
    """Every error that isomorph raises on purpose.

    Attributes:
        code: one of :data:`CODES`, such as ``E_CONSTRAINT``.
        message: what happened and what was expected, with the received values.
        location: the place in the definition, or None.
        hints: further lines: where values came from, how to mend it.
    """

    def __init__(
        self, code: str, message: str, location: Location | None = None, hints: Iterable[str] = ()
    ) -> None:
        assert code in CODES, code
        super().__init__(code, message, location, tuple(hints))
        self.code = code
        self.message = message
        self.location = location
        self.hints = tuple(hints)

    def __str__(self) -> str:
        """The message, the place and the hints, a line each.

        What they quote may come from a file that somebody made: nothing in it reaches a terminal as a control
        character, or as a line of its own.
        """
        lines = [f"{self.code}: {shown(self.message, MOST_LINE)}"]
        if self.location is not None:
            lines += self.location.render()
        lines += [f"  {shown(hint, MOST_LINE)}" for hint in self.hints]
        return "\n".join(lines)


class MissingAttributeError(IsomorphError, AttributeError):
    """An attribute of the package that is not there, so that ``hasattr`` and ``getattr`` work as usual."""


def nearest(word: object, choices: Iterable[object], count: int = 3) -> list[str]:
    """The choices that a mistyped word most resembles, best first; none for what is no string."""
    if not isinstance(word, str):
        return []
    from difflib import get_close_matches  # loaded only when something went wrong
    from heapq import nlargest

    word, spelled = word[:100], [str(choice) for choice in choices]
    if len(spelled) > MOST_COMPARED:  # comparing takes quadratic time in a name's length
        pairs = _pairs(word)
        spelled = nlargest(MOST_COMPARED, spelled, key=lambda choice: len(pairs & _pairs(choice[:100])))
    return get_close_matches(word, spelled, n=count, cutoff=0.6)


def _pairs(word: str) -> set[str]:
    """The pairs of neighbouring characters."""
    return {word[i : i + 2] for i in range(len(word) - 1)}


def did_you_mean(word: object, choices: Iterable[object]) -> list[str]:
    """A hint line for a mistyped word, or none."""
    words = nearest(word, choices)
    return [f"did you mean {' or '.join(words)}?"] if words else []


def shorten(value: object, width: int = 60) -> str:
    """A short, safe spelling of a received value for a message."""
    try:
        text = repr(value)
    except ValueError:  # an integer too long to print
        text = f"an integer of {value.bit_length()} bits" if isinstance(value, int) else "a value"
    except RecursionError:
        text = f"a deeply nested {type(value).__name__}"
    return shown(text, width)


def shown(name: str, width: int = 200) -> str:
    """A name that comes from a file, as it may stand in a message: what does not print is escaped, the end is cut."""
    text = "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
        for character in name[: width + 1]
    )
    return text if len(text) <= width else text[: width - 3] + "..."
