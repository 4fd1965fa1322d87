"""Graphs as text, and contracts added to a text."""

from __future__ import annotations

import pytest

from isomorph.errors import IsomorphError
from isomorph.initializers import Normal, Orthogonal
from isomorph.language.graph import Call, Contract, Graph, Reference
from isomorph.language.parser import parse
from isomorph.language.writer import literal, output_line, with_contracts, write


def test_a_chain_keeps_its_current_tensor() -> None:
    text = 'linear(16)\ntransformer_block(2, mlp_ratio=2, layer_scale=True, name="block")\nlinear()\n'
    assert write(parse(text)) == text


def test_names_are_kept_where_a_tensor_is_mentioned() -> None:
    text = (
        "features = linear(128)\na, b = split(features, 64)\nc = add(linear(a, 64), b)\nconcat(a, c, axis=1)"
    )
    assert write(parse(text)) == (
        "features = linear(128)\n"
        "a, b = split(features, 64)\n"
        "t2 = linear(a, 64)\n"
        "c = add(t2, b)\n"
        "concat(a, c, axis=1)\n"
    )


def test_a_loop_is_written_out() -> None:
    assert write(parse('for _ in range(2):\n    relu(name="a")')) == 'relu(name="a0")\nrelu(name="a1")\n'


def test_contracts_and_options() -> None:
    text = (
        'ids = input("B", "T", dtype="int64")\n'
        'm = input("B", "T", dtype="bool")\n'
        'e = embedding(ids, 10, init={"weight": normal(mean=0.0, std=0.02)}, trainable=False)\n'
        "f = attention(2, mask=m)\n"
        'linear(f, 10, trainable={"bias": False}, tie={"weight": "n0.weight"})\n'
        'output(e=("B", "T", 4), f=("B", "T", 4))\n'
    )
    graph = parse(text.replace("mean=0.0, ", ""))
    assert write(graph) == text
    assert parse(write(graph)) == graph


@pytest.mark.parametrize(
    "text",
    [
        "x = linear(x, 4)\nadd(x, x)",
        "h = x\nlinear(4)\nadd(h, linear(h, 4))",
        "h = linear(4)\nh = relu(h)\nh = add(h, h)",
        'a = input(1)\nb = input(1)\nh = a\na = b\nb = h\noutput(a=("B",), b=("B",))',
        'a = input(1)\nb = input(1)\na = b\noutput(a=("B",), b=("B",))',
        'a = input(1)\na = relu(a)\nb = a\noutput(a=("B",), b=("B",))',
        'a, b = split(4)\nx = b\noutput(x=("B",), b=("B",))',
        "t2 = relu()\nt1 = relu()\nadd(relu(t2), t1)",
        'linear(a=(1,), b=[(), {"c": {"d": (None, True)}}], c=-0.5, d="\\"\\\\\'\\n", e=1e-300)',
        "attention(2, mask=relu())",
        "",
    ],
)
def test_what_is_written_reads_back_equal(text: str) -> None:
    graph = parse(text)
    again = parse(write(graph))
    assert again == graph
    assert write(again) == write(graph)


def test_equality_sees_what_matters() -> None:
    base = parse("h = linear(4)\nadd(h, x)")
    assert base == parse("# other words\ng = linear(4)\nadd(g, x)")
    for other in (
        "h = linear(5)\nadd(h, x)",
        "h = linear(4)\nadd(x, h)",
        "h = linear(4)\nadd(h, h)",
        "linear(4)",
    ):
        assert base != parse(other)
    assert base != parse("h = linear(4)\nadd(h, x)", input_names=("x", "y"))
    assert base != parse('h = linear(4)\nadd(h, x)\noutput("B")')
    named = 'h = linear(4)\ng = linear(4)\noutput({}=("B",))'
    assert parse(named.format("h")) != parse(named.format("g"))


def test_a_call_on_an_earlier_tensor_names_it() -> None:
    x, first = Reference(-1, 0), Reference(0, None)
    graph = Graph(calls=[Call("relu", current=x), Call("relu", current=x)], current=Reference(1, None))
    assert write(graph) == "relu()\nrelu(x)\n"
    graph = Graph(
        calls=[Call("relu", current=x), Call("tanh", current=first), Call("relu", current=first)],
        current=Reference(2, None),
    )
    assert write(graph) == "t0 = relu()\ntanh()\nrelu(t0)\n"


def test_a_result_that_no_text_can_say() -> None:
    graph = parse("relu()\nrelu()")
    graph.current = Reference(0, None)
    with pytest.raises(IsomorphError) as caught:
        write(graph)
    assert str(caught.value) == (
        "E_BINDING: the result is not the last tensor that was made, which a text cannot say\n"
        '  return a dictionary, such as {"features": features}'
    )
    graph.returned, graph.bindings["y"] = ("y",), Reference(0, None)
    with pytest.raises(IsomorphError) as caught:
        write(graph)
    assert caught.value.message == "the outputs y have no contracts, which a text needs to name them"
    graph.outputs = [Contract("y", ("B",))]
    assert write(graph) == 'y = relu()\nrelu()\noutput(y=("B",))\n'


def test_literals() -> None:
    assert literal((1,)) == "(1,)"
    assert literal(()) == "()"
    assert literal([True, None, "a'b"]) == '[True, None, "a\'b"]'
    assert literal('say "\\"\t\x00é') == '"say \\"\\\\\\"\\t\\x00é"'
    assert (
        literal({"w": Normal(std=0.02), 1: Orthogonal()})
        == '{"w": normal(mean=0.0, std=0.02), 1: orthogonal(gain=1.0)}'
    )
    assert output_line([Contract("", ("B", "2*T+1", 8))]) == 'output("B", "2*T+1", 8)'


INPUT = [Contract("", ("B", 6, 8))]
OUTPUT = [Contract("", ("B", 8))]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("linear(8)", 'input("B", 6, 8)\nlinear(8)\noutput("B", 8)\n'),
        ("linear(8)\n", 'input("B", 6, 8)\nlinear(8)\noutput("B", 8)\n'),
        ("\n    linear(8)\n    relu()\n  ",
         '\n    input("B", 6, 8)\n    linear(8)\n    relu()\n    output("B", 8)\n'),
        ("# one\n# two\n\n# three\nlinear(8)",
         '# one\n# two\ninput("B", 6, 8)\n\n# three\nlinear(8)\noutput("B", 8)\n'),
        ('"""A\nB"""  # c\nlinear(8)', '"""A\nB"""  # c\ninput("B", 6, 8)\nlinear(8)\noutput("B", 8)\n'),
        ("# é\n'é'; linear(8)", "# é\n'é'\ninput(\"B\", 6, 8)\nlinear(8)\noutput(\"B\", 8)\n"),
        ("  'a'; linear(8)\n  relu()",
         "  'a'\n  input(\"B\", 6, 8)\n  linear(8)\n  relu()\n  output(\"B\", 8)\n"),
        ("for _ in range(2):\n    linear(8)",
         'input("B", 6, 8)\nfor _ in range(2):\n    linear(8)\noutput("B", 8)\n'),
        ('input("B", 6, 8)\nlinear(8)', 'input("B", 6, 8)\nlinear(8)\noutput("B", 8)\n'),
        ('linear(8)\noutput("B", 8)', 'input("B", 6, 8)\nlinear(8)\noutput("B", 8)\n'),
        ('linear(8)  # input(x), output',
         'input("B", 6, 8)\nlinear(8)  # input(x), output\noutput("B", 8)\n'),
        ("", 'input("B", 6, 8)\noutput("B", 8)\n'),
        ("# only", '# only\ninput("B", 6, 8)\noutput("B", 8)\n'),
    ],
)  # fmt: skip
def test_contracts_are_added_where_they_lack(text: str, expected: str) -> None:
    found = with_contracts(text, INPUT, OUTPUT)
    assert found == expected
    assert with_contracts(found, INPUT, OUTPUT) == expected
    assert parse(found).calls == parse(text).calls


def test_named_contracts_are_added_by_name() -> None:
    inputs = [Contract("ids", ("B", "T"), "int64"), Contract("x", ("B", 8))]
    outputs = [Contract("y", ("B", "T", 8)), Contract("z", ("B",))]
    assert with_contracts("y = f(ids)\nz = f(x)", inputs, outputs) == (
        'ids = input("B", "T", dtype="int64")\nx = input("B", 8)\ny = f(ids)\nz = f(x)\n'
        'output(y=("B", "T", 8), z=("B",))\n'
    )
    assert with_contracts("f()", [], []) == "f()\n"
