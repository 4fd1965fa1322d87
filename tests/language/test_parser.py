"""What each statement of the language means, and what is refused, with whole messages."""

from __future__ import annotations

import pytest

from isomorph.errors import IsomorphError, Location
from isomorph.initializers import Normal
from isomorph.language.graph import Call, Contract, Graph, Reference
from isomorph.language.parser import parse
from isomorph.limits import limits_with

OPERATORS = {"linear", "relu", "add", "split", "attention", "layer_norm", "feed_forward", "reshape"}
X = Reference(-1, 0)


def read(text: str | bytes, **options: object) -> Graph:
    return parse(text, is_operator=OPERATORS.__contains__, **options)  # type: ignore[arg-type]


def refusal(text: str | bytes, **options: object) -> IsomorphError:
    with pytest.raises(IsomorphError) as caught:
        read(text, **options)
    return caught.value


def made(call: int, output: int | None = None) -> Reference:
    return Reference(call, output)


# -- calls and the current tensor ----------------------------------------------------------------


def test_a_call_takes_the_current_tensor_and_its_result_becomes_current() -> None:
    graph = read("linear(64)\nrelu()")
    assert graph.calls == [
        Call("linear", current=X, arguments=(64,)),
        Call("relu", current=made(0)),
    ]
    assert graph.current == made(1)
    assert graph.input_names == ("x",)
    assert graph.bindings == {"x": X}


def test_every_kind_of_literal() -> None:
    graph = read(
        "reshape(1, -2, +3, 0x10, 1_000, 2.5, -1e-5, .5, True, False, None, \"a\", 'b', r'\\c', (1,), [], {})"
    )
    values = graph.calls[0].arguments
    assert values == (1, -2, 3, 16, 1000, 2.5, -1e-5, 0.5, True, False, None, "a", "b", "\\c", (1,), [], {})
    assert [type(value) for value in values[:10]] == [int] * 5 + [float] * 3 + [bool] * 2


def test_nested_literals() -> None:
    graph = read('linear(8, option={"a": [1, (2, {"b": None})], 3: "c"})')
    assert graph.calls[0].keywords == {"option": {"a": [1, (2, {"b": None})], 3: "c"}}


def test_a_name_is_the_result_of_its_call() -> None:
    graph = read("h = linear(64)\nrelu()\nadd(h, x)")
    assert [call.targets for call in graph.calls] == [1, 0, 0]
    assert graph.calls[2].inputs == (made(0), X)
    assert graph.calls[2].current == made(1)
    assert graph.bindings == {"x": X, "h": made(0)}


def test_a_reference_leaves_the_current_tensor_alone() -> None:
    graph = read("linear(4)\nh = x\nrelu()\nadd(h, h)")
    assert graph.calls[1].current == made(0)
    assert graph.calls[2].inputs == (X, X)


def test_several_results_leave_no_current_tensor() -> None:
    graph = read("a, b = split(64)\nlinear(a, 8)\nadd(x, b)")
    assert graph.calls[0].targets == 2
    assert graph.bindings == {"x": X, "a": made(0, 0), "b": made(0, 1)}
    assert graph.calls[1].inputs == (made(0, 0),)
    assert graph.calls[1].current is None
    assert graph.calls[2].current == made(1)


def test_nested_calls_are_evaluated_from_the_inside() -> None:
    graph = read("h = x\nadd(h, feed_forward(layer_norm(h), 512))")
    assert [call.operator for call in graph.calls] == ["layer_norm", "feed_forward", "add"]
    assert graph.calls[0].inputs == (X,)
    assert graph.calls[1].inputs == (made(0),)
    assert graph.calls[1].arguments == (512,)
    assert graph.calls[2].inputs == (X, made(1))


def test_an_inner_call_changes_the_current_tensor_for_the_next_one() -> None:
    # written out: relu(), then relu() of that, then their sum
    graph = read("add(relu(), relu())")
    assert [call.current for call in graph.calls] == [X, made(0), made(1)]
    assert graph == read("a = relu()\nb = relu()\nadd(a, b)")


def test_tensors_by_keyword_leave_the_first_input_implicit() -> None:
    graph = read("attention(4, mask=m)", input_names=("x", "m"))
    (call,) = graph.calls
    assert call.inputs == ()
    assert call.current == X
    assert call.keyword_inputs == {"mask": Reference(-1, 1)}
    assert read("attention(4, mask=relu(m))", input_names=("x", "m")).calls[1].keyword_inputs == {
        "mask": made(0)
    }


def test_names_can_be_bound_anew() -> None:
    graph = read("x = linear(x, 8)\nrelu(x)")
    assert graph.calls[1].inputs == (made(0),)
    assert graph.bindings == {"x": made(0)}


def test_keywords_that_every_operator_takes() -> None:
    graph = read(
        'linear(8, name="head", init={"weight": normal(std=0.02), "bias": 0.1}, trainable={"bias": False}, '
        'tie={"weight": "wte.weight"}, bias=True)'
    )
    (call,) = graph.calls
    assert call.name == "head"
    assert call.init == {"weight": Normal(std=0.02), "bias": 0.1}
    assert call.trainable == {"bias": False}
    assert call.tie == {"weight": "wte.weight"}
    assert call.keywords == {"bias": True}
    assert read("linear(8, trainable=False)").calls[0].trainable is False
    assert read("linear(8, name=None, init=None, trainable=None, tie=None)") == read("linear(8)")


def test_initialisers_take_positions_too() -> None:
    graph = read('linear(8, init={"weight": normal(0.5, -0.0), "bias": constant(-1)})')
    assert graph.calls[0].init is not None
    assert str(graph.calls[0].init["weight"]) == "normal(mean=0.5, std=-0.0)"
    assert str(graph.calls[0].init["bias"]) == "constant(value=-1.0)"


# -- layout ----------------------------------------------------------------------------------------


def test_an_indented_text_reads_as_it_stands() -> None:
    text = "\n    linear(16)\n    for _ in range(2):\n        relu()\n    linear()\n"
    assert read(text) == read("linear(16)\nrelu()\nrelu()\nlinear()")
    locate = read(text).calls[2].locate
    assert locate is not None
    assert locate(None) == Location("<definition>", 4, 9, "        relu()")


@pytest.mark.parametrize(
    "text",
    [
        '"""A docstring."""\nlinear(4); relu()',
        "# comment\n\nlinear(4)  # width (4)\n\n# end\nrelu()",
        "linear(\n    4,\n)\nrelu()\n",
        "linear(4)\r\nrelu()\r",
        "linear \\\n  (4)\nrelu()",
        "\ufefflinear(4)\nrelu()",
        b"\xef\xbb\xbflinear(4)\nrelu()",
        b"# -*- coding: latin-1 -*-\nlinear(4)\nrelu()",
        "\uff4cinear(4)\nrelu()",  # a full-width l is an l to Python
        "linear((4))\nrelu()",
    ],
)
def test_other_layouts_of_the_same_text(text: str | bytes) -> None:
    assert read(text) == read("linear(4)\nrelu()")


def test_a_text_without_calls_is_the_identity() -> None:
    assert read("").current == X
    assert read('"""Nothing."""').calls == []


def test_bad_escapes_pass_without_a_warning() -> None:
    assert read("linear(a='\\d')").calls[0].keywords == {"a": "\\d"}


# -- loops -----------------------------------------------------------------------------------------


def test_a_loop_builds_what_writing_it_out_builds() -> None:
    looped = read('for _ in range(3):\n    h = linear(8, name="block")\n    add(h, relu())')
    written = "".join(f'h = linear(8, name="block{i}")\nadd(h, relu())\n' for i in range(3))
    assert looped == read(written)
    assert [call.name for call in looped.calls[::3]] == ["block0", "block1", "block2"]
    assert looped.bindings == {"x": X, "h": made(6)}


def test_nested_loops_append_every_index() -> None:
    graph = read('for _ in range(2):\n  for _ in range(2):\n    relu(name="a")\n  relu(name="b")')
    assert [call.name for call in graph.calls] == ["a0_0", "a0_1", "b0", "a1_0", "a1_1", "b1"]


def test_a_name_outside_a_loop_has_no_suffix() -> None:
    graph = read('relu(name="a")\nfor _ in range(1):\n  relu(name="a")\nrelu(name="b")')
    assert [call.name for call in graph.calls] == ["a", "a0", "b"]


@pytest.mark.parametrize(
    ("text", "message", "column"),
    [
        ("for i in range(3):\n  relu()", "the loop variable is `_`: a body does not depend on the turn", 5),
        ("for _ in x:\n  relu()", "a loop repeats its body a stated number of times", 10),
        ("for _ in range(0):\n  relu()", "range takes one positive number, written out", 10),
        ("for _ in range(-1):\n  relu()", "range takes one positive number, written out", 10),
        ("for _ in range(True):\n  relu()", "range takes one positive number, written out", 10),
        ("for _ in range(2.0):\n  relu()", "range takes one positive number, written out", 10),
        ("for _ in range(x):\n  relu()", "range takes one positive number, written out", 10),
        ("for _ in range(1, 2):\n  relu()", "range takes one positive number, written out", 10),
        ("range(3)", "range(...) stands only in a loop", 1),
    ],
)
def test_loops_have_one_form(text: str, message: str, column: int) -> None:
    error = refusal(text)
    assert (error.code, error.message, error.location and error.location.column) == (
        "E_SYNTAX",
        message,
        column,
    )
    assert "loops are written `for _ in range(4):`" in error.hints


def test_unrolled_nodes_are_bounded_before_the_work() -> None:
    assert str(refusal("for _ in range(1000):\n  for _ in range(1000000):\n    relu()", file="a.net")) == (
        "E_RESOURCE: the loop unrolls to 1,000,000 operator calls, above the limit of 20,000 (max_nodes)\n"
        "  a.net:2:12\n"
        "  2 |   for _ in range(1000000):\n"
        "    |            ^\n"
        "  repeat it less often, or raise the limit"
    )
    assert refusal("for _ in range(300):\n  for _ in range(100):\n    relu()").location[1:3] == (1, 10)  # type: ignore[index]
    assert refusal("for _ in range(1000000000):\n  h = x").code == "E_RESOURCE"
    limits = limits_with({"max_nodes": 6})
    assert len(read("for _ in range(3):\n  add(relu(), x)", limits=limits).calls) == 6
    assert refusal("for _ in range(4):\n  add(relu(), x)", limits=limits).code == "E_RESOURCE"
    assert len(read('for _ in range(6):\n  relu(init={"a": normal(0)})', limits=limits).calls) == 6


def test_nodes_of_the_whole_text_are_bounded() -> None:
    limits = limits_with({"max_nodes": 2})
    assert len(read("relu()\nrelu()", limits=limits).calls) == 2
    error = refusal("relu()\nrelu()\nrelu()", limits=limits)
    assert (error.code, error.message) == (
        "E_RESOURCE",
        "the definition has more than 2 operator calls (max_nodes)",
    )
    assert error.location is not None
    assert error.location[1:3] == (3, 1)


# -- contracts -------------------------------------------------------------------------------------


def test_a_file_can_be_complete_by_itself() -> None:
    graph = read('input("B", "T", dtype="int64")\nlinear(8)\noutput("B", "T", 50257)')
    assert graph.inputs == [Contract("x", ("B", "T"), "int64")]
    assert graph.outputs == [Contract("", ("B", "T", 50257))]
    assert graph.inputs[0].location == Location("<definition>", 1, 1, 'input("B", "T", dtype="int64")')


def test_named_inputs_and_outputs() -> None:
    graph = read(
        '"""Two of each."""\nids = input("B", "T", dtype="int64")\nm = input("B", "T", dtype="bool")\n'
        'features = linear(ids, 64)\nlogits = linear(10)\noutput(logits=("B", 10), features=["B", 64])'
    )
    assert graph.input_names == ("ids", "m")
    assert graph.outputs == [Contract("logits", ("B", 10)), Contract("features", ("B", 64))]
    assert graph.published == {"logits": made(1), "features": made(0)}


def test_inputs_of_the_caller_are_bound() -> None:
    graph = read("add(a, b)", input_names=("a", "b"))
    assert graph.calls[0].inputs == (X, Reference(-1, 1))
    assert graph.calls[0].current == X
    assert read('a = input("B")\nrelu()', input_names=("a",)).input_names == ("a",)
    assert read('ids = input("B")\nrelu()', input_names=("x",)).input_names == (
        "ids",
    )  # a lone unnamed shape


def test_inputs_of_text_and_caller_must_be_the_same() -> None:
    assert str(refusal('a = input("B", 8)\nb = input("B", 8)\nadd(a, b)', input_names=("b", "a"))) == (
        "E_BINDING: the definition declares the inputs a, b, the call gives b, a\n"
        "  <definition>:1:5\n"
        '  1 | a = input("B", 8)\n'
        "    |     ^\n"
        "  leave one of the two out, or name the same inputs in the same order"
    )


@pytest.mark.parametrize(
    ("text", "code", "message", "place"),
    [
        ('relu()\ninput("B")', "E_SYNTAX", "input(...) statements come before all others", (2, 1)),
        ('h = x\ninput("B")', "E_SYNTAX", "input(...) statements come before all others", (2, 1)),
        ('output("B")\nrelu()', "E_SYNTAX", "output(...) is the last statement", (2, 1)),
        ('output("B")\nh = x', "E_SYNTAX", "output(...) is the last statement", (2, 1)),
        ('output("B")\ninput("B")', "E_SYNTAX", "output(...) is the last statement", (2, 1)),
        ('output("B")\noutput("B")', "E_SYNTAX", "there is one output statement", (2, 1)),
        ('input("B")\nx = input("B")', "E_NAME", "two inputs are named 'x'", (2, 1)),
        ('for _ in range(2):\n  input("B")', "E_SYNTAX", "input(...) stands outside loops", (2, 3)),
        ('for _ in range(2):\n  output("B")', "E_SYNTAX", "output(...) stands outside loops", (2, 3)),
        ('a, b = input("B")', "E_SYNTAX", "one input(...) declares one tensor", (1, 1)),
        ('h = output("B")', "E_SYNTAX", "output(...) has no result", (1, 1)),
        ('linear(input("B"))', "E_SYNTAX", "input(...) is a statement of its own", (1, 8)),
        ("input(B, 8)", "E_SYNTAX", "a size is a number, or a symbol in quotes", (1, 7)),
        ('input("B", dtype=64)', "E_ARGUMENT", 'dtype is a string such as "int64", got 64', (1, 18)),
        ('input("B", type="a")', "E_ARGUMENT", "input takes sizes, one dtype and optional=True, got 'type'", (1, 12)),
        ('linear = input("B")', "E_NAME", "'linear' is an operator and cannot name a tensor", (1, 1)),
        ("output()", "E_SYNTAX",
         "output(...) takes the sizes of one output, or several outputs by name", (1, 1)),
        ('output(8, x=("B", 8))', "E_SYNTAX",
         "output(...) takes the sizes of one output, or several outputs by name", (1, 1)),
        ("output(x=8)", "E_ARGUMENT", "the shape of x is a tuple", (1, 10)),
        ('output(y=("B", 8))', "E_NAME", "no tensor is named 'y'", (1, 8)),
    ],
)  # fmt: skip
def test_contracts_have_their_places(text: str, code: str, message: str, place: tuple[int, int]) -> None:
    error = refusal(text)
    assert (error.code, error.message) == (code, message)
    assert error.location is not None
    assert error.location[1:3] == place


# -- names -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("relu(featurs)", "no tensor is named 'featurs'", "did you mean features?"),
        ("relu(q)", "no tensor is named 'q'", "tensors: x, features"),
        ("relu(linear)", "no tensor is named 'linear'", "to call it, write linear(...)"),
        ("relu(_)", "`_` is the loop variable and holds no tensor", None),
        ("_ = relu()", "`_` is the loop variable and holds no tensor", None),
        ("a, _ = split(4)", "`_` is the loop variable and holds no tensor", None),
        ("relu = linear(4)", "'relu' is an operator and cannot name a tensor",
         "choose another name, such as relu_out"),
        ("normal = relu()", "'normal' is an initialiser and cannot name a tensor",
         "choose another name, such as normal_out"),
        ("input = relu()", "`input` declares a contract and cannot name a tensor",
         "choose another name, such as input_out"),
        ("\uff34rue = relu()", "'True' is not an identifier", "choose another name, such as True_out"),
    ],
)  # fmt: skip
def test_tensor_names(text: str, message: str, hint: str | None) -> None:
    error = refusal("features = linear(8)\n" + text)
    assert (error.code, error.message) == ("E_NAME", message)
    assert error.hints == ((hint,) if hint else ())
    assert error.location is not None
    assert error.location.line == 2


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Block", "a node's name is lower-case letters, digits and `_`, a letter first; got 'Block'"),
        ("1a", "a node's name is lower-case letters, digits and `_`, a letter first; got '1a'"),
        ("a.b", "a node's name is lower-case letters, digits and `_`, a letter first; got 'a.b'"),
        ("é", "a node's name is lower-case letters, digits and `_`, a letter first; got 'é'"),
        ("", "a node's name is lower-case letters, digits and `_`, a letter first; got ''"),
        ("n12", "'n12' is kept for a node without a name (n0, n1, ...)"),
        ("train", "'train' is reserved: the models that are built use it themselves"),
        ("apply", "'apply' is reserved: the models that are built use it themselves"),
        ("lambda", "'lambda' is reserved: the models that are built use it themselves"),
        ("a" * 101, f"a node's name has at most 100 characters, got 101: '{'a' * 56}..."),
        ("taken", "two nodes are named 'taken'"),
    ],
)
def test_node_names(name: str, message: str) -> None:
    error = refusal(f'relu(name="taken")\nlinear(8, name="{name}")')
    assert (error.code, error.message) == ("E_NAME", message)
    assert error.location == Location("<definition>", 2, 16, f'linear(8, name="{name}")')


def test_names_are_checked_with_their_loop_index() -> None:
    assert refusal('for _ in range(2):\n  relu(name="n")').message.startswith("'n0' is kept")
    assert refusal('for _ in range(20):\n  relu(name="bfloat")').message.startswith("'bfloat16' is reserved")
    assert (
        refusal('relu(name="a1")\nfor _ in range(2):\n  relu(name="a")').message == "two nodes are named 'a1'"
    )
    assert read('for _ in range(2):\n  relu(name="float")').calls[1].name == "float1"


# -- arguments -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "code", "message", "column"),
    [
        ("linear(4, x)", "E_SYNTAX", "tensors come first, before literals", 11),
        ("linear(4, relu())", "E_SYNTAX", "tensors come first, before literals", 11),
        ("linear(4, bias=True, bias=False)", "E_SYNTAX", "the argument 'bias' is given twice", 22),
        ('linear(4, name="a", name="b")', "E_SYNTAX", "the argument 'name' is given twice", 21),
        ("linear(x, a=x, a=x)", "E_SYNTAX", "the argument 'a' is given twice", 16),
        ("linear((x, 4))", "E_SYNTAX", "a tensor is an argument by itself, not a part of a literal", 9),
        ('linear(4, a={"a": 1, "a": 2})', "E_SYNTAX", "the key 'a' stands twice in this dictionary", 22),
        ("linear(4, a={x: 1})", "E_SYNTAX", "a dictionary's keys are strings or numbers", 14),
        ("linear(4, name=8)", "E_ARGUMENT", 'name is a string such as "block", got 8', 16),
        ("linear(4, name=x)", "E_ARGUMENT", 'name is a string such as "block"', 16),
        ("linear(4, init=8)", "E_ARGUMENT",
         'init is a dictionary such as {"weight": 0.1} or {"weight": normal(std=0.02)}, got 8', 16),
        ("linear(4, init=normal(std=1))", "E_ARGUMENT",
         'init is a dictionary such as {"weight": 0.1} or {"weight": normal(std=0.02)}', 16),
        ("linear(4, trainable=1)", "E_ARGUMENT",
         'trainable is True, False or a dictionary such as {"attn": False}, got 1', 21),
        ("linear(4, tie='a')", "E_ARGUMENT",
         'tie is a dictionary such as {"weight": "wte.weight"}, got \'a\'', 15),
        ('linear(4, init={"w": nrmal(1)})', "E_ARGUMENT", "unknown initialiser 'nrmal'", 22),
        ('linear(4, init={"w": normal(sd=1)})', "E_ARGUMENT",
         "normal has no argument 'sd'; it takes mean, std", 22),
        ('linear(4, init={"w": normal(x)})', "E_SYNTAX",
         "a tensor is an argument by itself, not a part of a literal", 29),
        ("normal(1)", "E_SYNTAX", "normal(...) is an initialiser and stands only in an init dictionary", 1),
        ("linear(4, a=1e999)", "E_ARGUMENT", "a number must be finite, got inf", 13),
        ("linear(a=-1e999)", "E_ARGUMENT", "a number must be finite, got inf", 11),
        ("linear(2147483648)", "E_RESOURCE",
         "the number 2147483648 is above the limit of 2,147,483,647 (max_dimension)", 8),
        ("linear((1, [99999999999]))", "E_RESOURCE",
         "the number 99999999999 is above the limit of 2,147,483,647 (max_dimension)", 13),
    ],
)  # fmt: skip
def test_arguments(text: str, code: str, message: str, column: int) -> None:
    error = refusal(text)
    assert (error.code, error.message) == (code, message)
    assert error.location is not None
    assert error.location[1:3] == (1, column)


def test_the_largest_dimension_is_allowed() -> None:
    assert read("linear(2147483647)").calls[0].arguments == (2147483647,)
    assert refusal("linear(9)", limits=limits_with({"max_dimension": 8})).code == "E_RESOURCE"


# -- statements that mean nothing --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message", "place"),
    [
        ("relu()\nx", "a tensor's name alone does nothing: 'x'", (2, 1)),
        ("3", "a value alone does nothing", (1, 1)),
        ("a, b", "a value alone does nothing", (1, 1)),
        ("relu()\n'text'", "a string stands alone only as the first statement", (2, 1)),
        ("'one'; 'two'", "a string stands alone only as the first statement", (1, 8)),
        ("h = 3", "a name takes the result of a call", (1, 5)),
        ("h = (relu(), 4)", "a name takes the result of a call", (1, 5)),
        ("a, b = x", "a name takes the result of a call", (1, 8)),
        ("a, = split(4)", "several results are taken by two or more different names", (1, 1)),
        ("a, a = split(4)", "several results are taken by two or more different names", (1, 1)),
        ("[a, b] = split(4)", "results are taken by names", (1, 1)),
        ("(a, (b, c)) = split(4)", "results are taken by names", (1, 1)),
        ("linear({1, 2})", "this form (set) is not part of the language", (1, 8)),
        ("linear(a=1, 2)", "this cannot be read: positional argument follows keyword argument", (1, 14)),
        ("relu()\n  relu()", "this cannot be read: unexpected indent", (2, 2)),
        ("  relu(x)\nrelu()", "this cannot be read: a line is indented less than the first", (2, 1)),
        ("  relu(relu())\nrelu()", "this cannot be read: a line is indented less than the first", (2, 1)),
    ],
)
def test_statements_that_mean_nothing(text: str, message: str, place: tuple[int, int]) -> None:
    error = refusal(text)
    assert (error.code, error.message) == ("E_SYNTAX", message)
    assert error.location is not None
    assert error.location[1:3] == place


def test_a_definition_is_text() -> None:
    assert str(refusal(5)) == "E_ARGUMENT: a definition is text (str, or bytes in UTF-8), got int"  # type: ignore[arg-type]


# -- places ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", ["", "relu()\n", "relu(relu())\n", "# note\n\n"])
def test_places_inside_a_call(before: str) -> None:
    text = before + 'h = attention(x, 4, (1, 2), eps=1e-5, mask=x, name="é")'.replace("é", "a")
    line = before.count("\n") + 1
    locate = read(text).calls[-1].locate
    assert locate is not None
    source = text.split("\n")[-1]
    for key, part in [
        (None, "attention"), (0, "4, "), (1, "(1, 2)"), ("eps", "1e-5"), ("mask", 'x, name'), ("name", '"a"'),
        (("input", 0), "x, 4"), ("absent", "attention"), (7, "attention"),
    ]:  # fmt: skip
        assert locate(key) == Location("<definition>", line, source.index(part) + 1, source), key


def test_columns_count_characters() -> None:
    text = 'linear("αβγ", 4); relu(q)'
    error = refusal(text)
    assert error.location == Location("<definition>", 1, text.index("q") + 1, text)
    locate = read('linear(4, "αβγ", 5)').calls[0].locate
    assert locate is not None
    assert locate(2).column == 18
