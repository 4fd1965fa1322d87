"""What holds for every text: an error of ours or a graph, one meaning however it is read and written."""

from __future__ import annotations

import re
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from isomorph.errors import IsomorphError
from isomorph.language.graph import Graph
from isomorph.language.parser import parse
from isomorph.language.writer import write
from isomorph.limits import limits_with

OPERATORS = ("linear", "relu", "add", "split", "transformer_block")
LIMITS = limits_with({"max_nodes": 300, "max_source_bytes": 20_000})
quick = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

VALID = '''"""A docstring."""
ids = input("B", "T", dtype="int64")
m = input("B", "T", dtype="bool")
h = linear(ids, 16, name="embed")  # a comment
linear(8, bias=False)
transformer_block(2, mlp_ratio=2, dropout=0.1)
for _ in range(3):
    transformer_block(2, name="block", init={"gamma1": normal(std=0.02)})
    for _ in range(2):
        add(h, linear(relu(), 16), mask=m)
a, b = split(8, dim=-1); relu(a)
k = b
output(a=("B", 8), k=("B", "2*T+1"))
'''
TOKENS = [
    *re.findall(r"\w+|\"[^\"]*\"|[^\w\s]|\n +|\n", VALID),
    *[
        "[",
        "]",
        "'",
        '"',
        '"""',
        "\\",
        "=",
        "==",
        ":=",
        "**",
        "*",
        "@",
        "~",
        "->",
        "...",
        "lambda",
        "if",
        "else",
        "not",
        "await",
        "f'{x}'",
        "1j",
        "1e999",
        "0x1",
        "-",
        "+",
        "_",
        "True",
        "None",
    ],
    *["\\\n", "\t", "\f", "\r", "\x00", "\ufeff", "é", "\u00a0", "\ud800", "9" * 40, "9" * 5000, "(" * 60],
    *[
        "x.y",
        "x[0]",
        "range(10**9)",
        "for _ in range(100000):\n    relu()",
        "for i in x:",
        "#",
        ";",
        " ",
        "  ",
    ],
]


def attempt(text: str | bytes) -> Graph | IsomorphError:
    try:
        return parse(text, limits=LIMITS, is_operator=OPERATORS.__contains__)
    except IsomorphError as caught:
        error = caught
    assert error.location is not None
    assert error.location.line >= 1
    assert error.location.column >= 1
    assert str(error)
    return error


def told(result: Graph | IsomorphError) -> object:
    """What a reader learns: the graph and its places, or the whole message."""
    if isinstance(result, IsomorphError):
        return str(result)
    places = [call.locate(None) for call in result.calls if call.locate]
    return result, result.bindings, [call.targets for call in result.calls], places


@quick
@given(st.binary(max_size=300))
def test_random_bytes(data: bytes) -> None:
    attempt(data)


@quick
@given(st.text(max_size=200))
def test_random_text(text: str) -> None:
    attempt(text)


@quick
@given(st.lists(st.sampled_from(TOKENS), max_size=60), st.sampled_from(["", " "]))
def test_token_soup(tokens: list[str], gap: str) -> None:
    attempt(gap.join(tokens))


@st.composite
def mutated(draw: st.DrawFn) -> str:
    text = VALID
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.integers(0, 12)))
        text = text[:start] + draw(st.sampled_from(["", *TOKENS])) + text[end:]
    return text


@quick
@given(mutated())
def test_mutated_definitions(text: str) -> None:
    attempt(text)


def test_the_valid_definition_is_valid() -> None:
    graph = attempt(VALID)
    assert isinstance(graph, Graph)
    assert len(graph.calls) == 3 + 3 * (1 + 2 * 3) + 2


# -- plain lines ---------------------------------------------------------------------------------

SIMPLE_VALUES = st.one_of(
    st.integers(-20, 3_000_000_000).map(str),
    st.floats(allow_nan=False).map(repr),
    st.sampled_from(
        ["x", "h", "q", "True", "None", "if", '"a"', "'b'", '""', '"é#"', "01", "1_0", ".5", "-0", "1e5",
         "1e99", "1e999", "relu()", "(1, 2)", "'a' 'b'", "'''c'''", "normal", "n3"]
    ),
)  # fmt: skip
KEYS = st.sampled_from(["", "", "", "a=", "mask=", "name=", "init=", "trainable=", "if="])
LINES = st.builds(
    lambda target, operator, arguments, gap, end: f"{target}{operator}({gap.join(arguments)}){end}",
    st.sampled_from(["", "", "", "h = ", "x=", "linear = ", "_ = ", "if = ", "a, b = "]),
    st.sampled_from([*OPERATORS, "input", "output", "range", "normal", "not", "f"]),
    st.lists(st.builds("".join, st.tuples(KEYS, SIMPLE_VALUES)), max_size=4),
    st.sampled_from([", ", ","]),
    st.sampled_from(["", "", " ", "  # note", "  # (note)", ";", "\n", "\n# note\n"]),
)


@quick
@given(lines=st.lists(LINES, max_size=5))
def test_plain_lines_mean_what_the_tree_says(lines: list[str], monkeypatch: Any) -> None:
    text = "\n".join(lines)
    accelerated = attempt(text)
    with monkeypatch.context() as patch:
        patch.setattr("isomorph.language.scanner.PLAIN_LINES", re.compile(r"(?!)"))
        plodding = attempt(text)
    if len(lines) > 1 and isinstance(plodding, IsomorphError) and plodding.code == "E_SYNTAX":
        assert isinstance(accelerated, IsomorphError)  # of several faults either may be told first
    else:
        assert told(accelerated) == told(plodding)


# -- texts and graphs ------------------------------------------------------------------------------

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**31) + 1, 2**31 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3, alphabet="abé'\"\\\n"), inner, max_size=3)
    ),
    max_leaves=6,
)


@st.composite
def networks(draw: st.DrawFn) -> str:
    """A legal text: calls on known tensors, references, splits, node names, contracts."""
    from isomorph.language.writer import literal

    tensors = ["x", "y"]
    lines = ['x = input("B", 8)', 'y = input("B", "T", dtype="int64")']
    has_current = True
    for k in range(draw(st.integers(0, 6))):
        kind = draw(st.sampled_from(["call", "call", "call", "split", "reference"]))
        target = draw(st.sampled_from(["x", "h", "g", f"v{k}"]))
        inputs = draw(st.lists(st.sampled_from(tensors), min_size=0 if has_current else 1, max_size=2))
        if kind == "reference":
            lines.append(f"{target} = {draw(st.sampled_from(tensors))}")
            tensors.append(target)
            continue
        parts = [*inputs, *map(literal, draw(st.lists(VALUES, max_size=2)))]
        parts += [f"{key}={literal(draw(VALUES))}" for key in draw(st.sets(st.sampled_from(["p", "q"])))]
        parts += [f"mask={draw(st.sampled_from(tensors))}"] * draw(st.booleans())
        parts += [f'name="node_{k}"'] * draw(st.booleans())
        if kind == "split":
            lines.append(f"p{k}, q{k} = split({', '.join(parts)})")
            tensors += [f"p{k}", f"q{k}"]
            has_current = False
        else:
            named = draw(st.booleans())
            lines.append(f"{target} = " * named + f"linear({', '.join(parts)})")
            tensors += [target] * named
            has_current = True
    names = draw(st.sets(st.sampled_from(tensors), max_size=3))
    if names:
        lines.append(
            f"output({', '.join(f'{name}=({size},)' for size, name in enumerate(sorted(names), 1))})"
        )
    elif not has_current:
        lines.append(f"relu({tensors[-1]})")
    return "\n".join(lines)


@quick
@given(networks())
def test_writing_and_reading_give_the_same_graph(text: str) -> None:
    graph = parse(text)
    written = write(graph)
    again = parse(written)
    assert again == graph
    assert again.inputs == graph.inputs
    assert again.published == graph.published
    assert write(again) == written
