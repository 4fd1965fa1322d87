"""Signs and keywords that the language lacks, and texts made to do harm."""

from __future__ import annotations

import pytest

from isomorph.errors import IsomorphError
from isomorph.language.parser import parse
from isomorph.limits import limits_with

CALL = "call operators by their bare names: linear(64)"
FUNCTION = "in Python code, iso.resolve_function records a function in which loops and helpers are free"
NUMBER = "write the number itself; tensors are added with add(a, b)"
VALUE = "write the value itself: True, False or a number"


def refusal(text: str | bytes, **options: object) -> IsomorphError:
    with pytest.raises(IsomorphError) as caught:
        parse(text, **options)  # type: ignore[arg-type]
    return caught.value


def test_a_whole_message() -> None:
    assert str(refusal("linear(64)\nlinear(8 * 4)", file="mlp.net")) == (
        "E_SYNTAX: arithmetic (`*`) is not part of the language\n"
        "  mlp.net:2:10\n"
        "  2 | linear(8 * 4)\n"
        "    |          ^\n"
        "  write the number itself; tensors are added with add(a, b)"
    )


@pytest.mark.parametrize(
    ("text", "message", "column", "hint"),
    [
        ("nn.linear(4)", "attribute access is not part of the language", 3, CALL),
        ("h = x.T", "attribute access is not part of the language", 6, CALL),
        ("linear(2 + 3)", "arithmetic (`+`) is not part of the language", 10, NUMBER),
        ("linear(2 // 3)", "arithmetic (`//`) is not part of the language", 10, NUMBER),
        ("linear(-x)", "arithmetic (`-`) is not part of the language", 8, NUMBER),
        ("linear(~1)", "arithmetic (`~`) is not part of the language", 8, NUMBER),
        ("h = x @ x", "arithmetic (`@`) is not part of the language", 7, NUMBER),
        ("linear(1 < 2)", "comparisons (`<`) are not part of the language", 10,
         "write the value itself: True or False"),
        ("linear(1 == 2)", "comparisons (`==`) are not part of the language", 10,
         "write the value itself: True or False"),
        ("h += x", "`+=` is not part of the language", 3, "write h = add(h, x)"),
        ("linear(h := 4)",
         "`:=` is not part of the language", 10, "name a result in a statement: h = linear(64)"),
        ("a = b = relu()", "a statement names its result once", 7,
         "write two statements: a = linear(64), then b = a"),
        ("h: int = relu()", "annotations are not part of the language", 2, "write h = linear(64)"),
        ("x[0]", "subscripts are not part of the language", 2,
         "split(...) takes a part of a tensor: first, rest = split(4, dim=1)"),
        ("relu(x[1:2])", "subscripts are not part of the language", 7,
         "split(...) takes a part of a tensor: first, rest = split(4, dim=1)"),
        ("linear(4)(x)", "only an operator, by its name, can be called", 10, "write linear(64)"),
        ("'a'(x)", "only an operator, by its name, can be called", 4, "write linear(64)"),
        ("linear(*x)", "star arguments (`*`) are not part of the language", 8, "write every argument out"),
        ("linear(**x)", "star arguments (`**`) are not part of the language", 8, "write every argument out"),
        ("a, *b = split(4)",
         "star arguments (`*`) are not part of the language", 4, "write every argument out"),
        ("@relu\nlinear(4)", "decorators are not part of the language", 1, None),
        ("linear(...)", "`...` is not a value of the language", 8, "write every value out"),
        ("linear(f'{x}')", "f-strings are not part of the language", 8, 'write the string itself: "gelu"'),
        ("linear(Rf'{x}')", "f-strings are not part of the language", 8, 'write the string itself: "gelu"'),
        ("linear(t'{x}')", "t-strings are not part of the language", 8, 'write the string itself: "gelu"'),
        ("linear(b'x')", "bytes are not part of the language", 8, 'write a string: "gelu"'),
        ("linear(x'x')", "a string cannot follow a name", 9, "put a comma between them"),
        ("linear(3j)", "complex numbers are not part of the language, got 3j", 8, None),
        ("linear(1and 2)", "'1and' is not a number", 8, "write it as 64, 0.1 or 1e-5"),
        ("linear(012)", "'012' is not a number", 8, "write it as 64, 0.1 or 1e-5"),
        ("linear([1 for _ in x])",
         "comprehensions are not part of the language", 11, "write every element out"),
        ("if x:\n  relu()", "`if` is not part of the language", 1,
         f"write out the network that is meant; {FUNCTION}"),
        ("linear(4 if x else 8)", "`if` is not part of the language", 10,
         f"write out the network that is meant; {FUNCTION}"),
        ("while True:\n  relu()",
         "`while` is not part of the language", 1, "loops are written `for _ in range(4):`"),
        ("import torch", "`import` is not part of the language", 1,
         "every operator is there by its name; nothing is imported"),
        ("def f():\n  relu()", "`def` is not part of the language", 1, FUNCTION),
        ("h = lambda: relu()", "`lambda` is not part of the language", 5, FUNCTION),
        ("await x", "`await` is not part of the language", 1, FUNCTION),
        ("linear(not True)", "`not` is not part of the language", 8, VALUE),
        ("linear(x or 4)", "`or` is not part of the language", 10, VALUE),
        ("linear(4 in x)", "`in` is not part of the language", 10, VALUE),
        ("pass", "`pass` is not part of the language", 1, None),
        ("linear(4)?", "'?' is not part of the language", 10, None),
        ("linear(4,, 8)", "something is missing before this ','", 10, None),
        (";", "something is missing before this ';'", 1, None),
        ("linear(4: 8)", "a `:` inside brackets belongs to a dictionary", 9, 'write {"weight": 0.1}'),
        ("linear(4", "this '(' is never closed", 7, "add the missing ')'"),
        ("linear(4))", "nothing is open that this ')' could close", 10, None),
        ("linear((4]", "']' cannot close the '(' of 1:8", 10, "write ')'"),
        ("linear('a)", "this string is never closed", 8, "add the missing '"),
        ('"""linear(4)', "this string is never closed", 1, 'add the missing """'),
        # a plain line in all but the keyword:
        ("return(x)", "`return` is not part of the language", 1, FUNCTION),
        ("not(x)", "`not` is not part of the language", 1, VALUE),
        ("linear(lambda)", "`lambda` is not part of the language", 8, FUNCTION),
        ("linear(4, if=3)",
         "`if` is not part of the language", 11, f"write out the network that is meant; {FUNCTION}"),
    ],
)  # fmt: skip
def test_what_python_has_and_the_language_lacks(
    text: str, message: str, column: int, hint: str | None
) -> None:
    error = refusal(text)
    assert (error.code, error.message, error.hints) == ("E_SYNTAX", message, (hint,) if hint else ())
    assert error.location is not None
    assert error.location[1:3] == (1, column)
    assert error.location.text == text.split("\n")[0]


def test_signs_inside_strings_and_comments_are_text() -> None:
    graph = parse("'''if\nx.y'''\nrelu(a='f(1 + 2).b', b=\"[lambda: x]\")  # if x[0] := 3:\n")
    assert graph.calls[0].keywords == {"a": "f(1 + 2).b", "b": "[lambda: x]"}


MEBI = 1 << 20
HOSTILE = {
    "nested round brackets": "(" * 5000,
    "nested square brackets": "[" * 5000 + "]" * 5000,
    "nested calls": "f(" * 5000 + ")" * 5000,
    "nested dictionaries": "f(a=" + "{1:" * 5000,
    "a power as a range": "for _ in range(10**9):\n f()",
    "a power alone": "range(10**9)",
    "a huge range": "for _ in range(1000000000):\n f()",
    "a huge range of nothing": "for _ in range(1000000000):\n h = x",
    "huge nested ranges": "for _ in range(20000):\n for _ in range(20000):\n  h = x",
    "a long body, often": "for _ in range(20000):\n" + " h = x\n" * 10_000,
    "a wide body, often": "for _ in range(20000):\n f(" + "1," * 9000 + ")",
    "a long name, often": "for _ in range(20000):\n f(name='" + "a" * 900_000 + "')",
    "deep loops": "".join(" " * i + "for _ in range(1):\n" for i in range(60)) + " " * 60 + "f()",
    "deeper loops": "".join(" " * i + "for _ in range(1):\n" for i in range(200)) + " " * 200 + "f()",
    "deep conditions": "".join(" " * i + "if x:\n" for i in range(90)) + " " * 90 + "f()",
    "many branches": "if x:\n f()\n" + "elif x:\n f()\n" * 30_000,
    "a line of 10 MB": "f(" + "1," * 5_000_000 + ")",
    "a digit 5,000 times": "linear(" + "9" * 5000 + ")",
    "a hexadecimal digit 900,000 times": "linear(0x" + "f" * 900_000 + ")",
    "a long fraction": "linear(0." + "1" * 900_000 + ")",
    "a huge exponent": "linear(1e" + "9" * 50 + ")",
    "a long string, multiplied": "f('a' * 1000000000)",
    "minus signs": "f(" + "-" * 100_000 + "1)",
    "attributes": "a" + ".a" * 100_000,
    "sums": "f(1" + "+1" * 100_000 + ")",
    "negations": "not " * 100_000 + "1",
    "lambdas": "lambda:" * 100_000 + "1",
    "called results": "f" + "()" * 100_000,
    "subscripts": "a" + "[0]" * 100_000,
    "comparisons": "1" + "<1" * 100_000,
    "assignments": "a=" * 100_000 + "f()",
    "walrus": "(a:=" * 40 + "1" + ")" * 40,
    "starred": "f(" + "*" * 100_000 + "x)",
    "decorators": "@a\n" * 100_000,
    "f-strings in f-strings": "f'{" * 1000,
    "commas": "," * (MEBI - 1),
    "semicolons": ";" * (MEBI - 1),
    "colons": ":" * (MEBI - 1),
    "backslashes": "\\" * (MEBI - 1),
    "continued lines": "\\\n" * (MEBI // 2 - 1),
    "vertical tabs": "\v" * (MEBI - 1),
    "quotes": "'" * (MEBI - 1),
    "an open string": '"' + "a" * (MEBI - 10),
    "an open block": '"""' + "a" * (MEBI - 10),
    "many calls": "f()\n" * 260_000,
    "many calls in calls": "f(f())\n" * 140_000,
    "many contracts": "".join(f"a{i} = input(1)\n" for i in range(45_000)),
    "many numbers": "f(" + "1," * 500_000 + ")",
    "many names": "f(" + "x," * 500_000 + ")",
    "many strings": "f(" + "''," * 300_000 + ")",
    "strings side by side": "f(" + "'' " * 300_000 + ")",
    "many keys": "f(init={" + "1:1," * 200_000 + "})",
    "many keywords": "f(" + "a=1," * 200_000 + ")",
    "many targets": ",".join(f"a{i}" for i in range(90_000)) + " = f()",
    "many references": "h = x\n" * 170_000,
    "a name of a megabyte": "a" * (MEBI - 1),
    "a tail of blanks": "f(1)" + " " * 900_000 + "x",
    "a NUL": "f()\0",
    "half a surrogate pair": "f('\ud800')",
    "a no-break space": "f(\u00a01)",
    "right to left": "\u202ef()",
    "line separators": "\u2028" * 300_000,
    "Latin-1": "linear('é')".encode("latin-1"),
    "UTF-16": "f()".encode("utf-16"),
    "every byte": bytes(range(256)) * 1000,
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_text_gets_an_error_with_its_place(text: str | bytes) -> None:
    error = refusal(text)
    assert error.code in ("E_SYNTAX", "E_RESOURCE", "E_NAME", "E_ARGUMENT")
    assert error.location is not None
    assert error.location.line >= 1
    assert error.location.column >= 1
    assert len(str(error)) < 2000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("(" * 5000, "E_RESOURCE: brackets nest more than 50 deep (max_nesting)\n  a.net:1:51\n"),
        ("linear(" + "9" * 5000 + ")",
         "E_RESOURCE: a number of 5,000 characters; at most 100 are read\n  a.net:1:8\n"),
        ("f(" + "1," * 5_000_000 + ")",
         "E_RESOURCE: the definition has 10,000,003 bytes or more, above the limit of 1,048,576 "
         "(max_source_bytes)\n  a.net:1:1\n"),
        ("f()\0", "E_SYNTAX: a NUL byte is not text\n  a.net:1:4\n"),
        ("f()\n'é'".encode("latin-1"),
         "E_SYNTAX: the definition is not UTF-8: byte 0xe9 at position 5\n  a.net:2:2\n"),
        ("f('\ud800')", "E_SYNTAX: half a surrogate pair (U+D800) is not text\n  a.net:1:4\n"),
        ("f(" + "1," * 500_000 + ")",
         "E_RESOURCE: a statement has more than 10,000 names and literals\n  a.net:1:20001\n"),
        ("h = x\n" * 170_000,
         "E_RESOURCE: the definition has more than 160,000 names and literals, 8 for each node that "
         "max_nodes allows\n  a.net:80001:1\n"),
    ],
)  # fmt: skip
def test_words_and_places(text: str | bytes, expected: str) -> None:
    assert str(refusal(text, file="a.net")).startswith(expected)


def test_no_text_reaches_pythons_parser_deep(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only brackets nest, and those are counted: the depth of every tree is bounded."""
    text = "f(" + "[" * 48 + "1" + "]" * 48 + ")"
    assert parse(text).calls[0].operator == "f"
    assert refusal("f(" + "[" * 50 + "1" + "]" * 50 + ")").code == "E_RESOURCE"
    assert parse(text, limits=limits_with({"max_nesting": 49})).calls
    assert refusal(text, limits=limits_with({"max_nesting": 48})).code == "E_RESOURCE"

    def fail(*_: object) -> None:
        raise RecursionError("too deep")

    monkeypatch.setattr("ast.parse", fail)  # whatever else it may raise becomes an error of ours
    assert str(refusal("f(g())")) == (
        "E_SYNTAX: this cannot be read: too deep\n  <definition>:1:1\n  1 | f(g())\n    | ^"
    )


def test_size_counts_bytes() -> None:
    text = "f(a='éé')"  # 9 characters, 11 bytes
    assert parse(text, limits=limits_with({"max_source_bytes": 11})).calls
    assert refusal(text, limits=limits_with({"max_source_bytes": 10})).code == "E_RESOURCE"


def test_no_limit_lets_a_text_reach_the_bounds_of_pythons_parser() -> None:
    limits = limits_with({"max_nesting": 10**6})
    calls = "f(" * 90 + "x" + ")" * 90
    loops = "".join(" " * depth + "for _ in range(1):\n" for depth in range(90)) + " " * 90
    assert len(parse(calls, limits=limits).calls) == 90
    assert len(parse(loops + "f()\n", limits=limits).calls) == 1
    for text, what in (
        ("f(" * 3000 + "x" + ")" * 3000, "brackets"),
        (loops + "for _ in range(1):\n" + " " * 91 + "f()\n", "loops"),
    ):
        error = refusal(text, limits=limits)
        assert (error.code, error.message) == ("E_RESOURCE", f"{what} nest more than 90 deep (max_nesting)")
