"""Python text, laid out as ``ruff format`` leaves it at its default width."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from typing import Any, NamedTuple

WIDTH = 88
INDENT = "    "

SUM, PRODUCT, ATOM = 1, 2, 3
"""How tightly an expression binds: ``a + b``, ``a * b``, everything else."""


class Expression(NamedTuple):
    """A Python expression.

    Attributes:
        text: on one line.
        binds: :data:`SUM`, :data:`PRODUCT` or :data:`ATOM`.
        head: of a call, what stands before its last parenthesis.
        arguments: of a call, what stands in it.
    """

    text: str
    binds: int = ATOM
    head: str = ""
    arguments: tuple[str | Expression, ...] = ()

    def within(self, binds: int) -> str:
        """The text, in parentheses where it binds less."""
        return self.text if self.binds >= binds else f"({self.text})"


def plain(part: str | Expression) -> str:
    """A part of a call on one line."""
    return part if isinstance(part, str) else part.text


def call(head: str, *arguments: str | Expression) -> Expression:
    """A call; empty arguments are left out."""
    given = tuple(argument for argument in arguments if argument)
    return Expression(f"{head}({', '.join(map(plain, given))})", ATOM, head, given)


def method(receiver: Expression, name: str, *arguments: str) -> Expression:
    """A method call."""
    return call(f"{receiver.within(ATOM)}.{name}", *arguments)


def infix(left: Expression, sign: str, right: Expression) -> Expression:
    """``left sign right`` for ``+``, ``-`` and ``*``."""
    binds = PRODUCT if sign == "*" else SUM
    after = binds + 1 if sign == "-" else binds
    return Expression(f"{left.within(binds)} {sign} {right.within(after)}", binds)


class Bare(str):
    """A constant that is written as it is, such as ``jnp.bfloat16``."""

    __slots__ = ()


def literal(value: Any) -> str:
    """A constant as a person writes it: ``1e-5``, ``(1, 2)``, ``"tanh"``."""
    if isinstance(value, Bare):
        return str(value)
    if isinstance(value, float):
        return re.sub(r"e([+-])0+(\d)", r"e\1\2", repr(value)).replace("e+", "e")
    if isinstance(value, tuple):
        inner = ", ".join(map(literal, value))
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return repr(value)


def statement(prefix: str, expression: Expression, depth: int, comment: str = "") -> list[str]:
    """``prefix`` and an expression, as lines; the comment stands behind where it fits, else above.

    A call that is too long is broken at its last parenthesis.
    """
    indent = INDENT * depth
    remark = f"  # {comment}" if comment else ""
    line = f"{indent}{prefix}{expression.text}"
    if len(line) + len(remark) <= WIDTH:
        return [line + remark]
    if len(line) <= WIDTH:
        return [f"{indent}# {comment}", line] if comment else [line]
    if not expression.head:
        return [f"{indent}{prefix}(", f"{indent}{INDENT}{expression.text}", f"{indent}){remark}"]
    return broken(f"{prefix}{expression.head}(", expression.arguments, ")" + remark, depth)


def broken(start: str, parts: Sequence[str | Expression], end: str, depth: int) -> list[str]:
    """A bracket over several lines: its parts on one line where they fit, else one on each."""
    indent, inner = INDENT * depth, INDENT * (depth + 1)
    joined = f"{inner}{', '.join(map(plain, parts))}"
    if len(joined) <= WIDTH:
        return [f"{indent}{start}", joined, f"{indent}{end}"]
    lines = []
    for part in parts:
        if isinstance(part, Expression) and part.head and len(inner + part.text) >= WIDTH:
            lines += broken(f"{part.head}(", part.arguments, "),", depth + 1)
        else:
            lines.append(f"{inner}{plain(part)},")
    return [f"{indent}{start}", *lines, f"{indent}{end}"]


def bracketed(start: str, parts: Sequence[str], end: str, depth: int) -> list[str]:
    """``start parts end`` on one line where it fits (the head of a function)."""
    line = f"{INDENT * depth}{start}{', '.join(parts)}{end}"
    return [line] if len(line) <= WIDTH else broken(start, parts, end, depth)


def docstring(text: str, depth: int) -> list[str]:
    """A docstring: paragraphs, of which those of several lines or with an indent stay as they are."""
    indent = INDENT * depth
    text = text.replace("\\", "/").replace('"""', "'''").strip()
    paragraphs = text.split("\n\n")
    if text.endswith('"'):
        paragraphs[-1] += " "
    wrapped = [
        textwrap.indent(paragraph, indent)
        if paragraph.startswith(" ") or "\n" in paragraph
        else textwrap.fill(
            paragraph,
            WIDTH - 6 * (number == 0),
            initial_indent=indent,
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
        for number, paragraph in enumerate(paragraphs)
    ]
    body = "\n\n".join(wrapped).split("\n")
    body[0] = f'{indent}"""{body[0].lstrip()}'
    if len(body) == 1:
        return [body[0] + '"""']
    return [*body, f'{indent}"""']
