"""Functions give the graphs that texts give, and misuse is told."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from isomorph import ops
from isomorph.errors import IsomorphError
from isomorph.initializers import Normal
from isomorph.language.capture import capture
from isomorph.language.graph import Reference
from isomorph.language.parser import parse
from isomorph.language.writer import write
from isomorph.limits import limits_with


def refusal(function: Callable[..., Any], **options: Any) -> IsomorphError:
    with pytest.raises(IsomorphError) as caught:
        capture(function, **options)
    return caught.value


def test_function_and_text_give_equal_graphs() -> None:
    def network(x: Any) -> Any:
        h = ops.linear(x, 16)
        for i in range(2):
            ops.transformer_block(2, mlp_ratio=2, name=f"block{i}")
        a, b = ops.split(8, dim=2)
        ops.linear(a, 16, init={"weight": ops.normal(std=0.02)}, trainable=False)
        return ops.add(h, ops.linear(b, 16, tie={"weight": "n0.weight"}))

    text = """
        h = linear(x, 16)
        for _ in range(2):
            transformer_block(2, mlp_ratio=2, name="block")
        a, b = split(8, dim=2)
        linear(a, 16, init={"weight": normal(std=0.02)}, trainable=False)
        add(h, linear(b, 16, tie={"weight": "n0.weight"}))
    """
    graph = capture(network)
    assert graph == parse(text)
    assert parse(write(graph)) == graph


def test_the_current_tensor_is_implicit_in_functions_too() -> None:
    def network() -> None:
        ops.linear(4)
        ops.add(ops.relu(), ops.relu())

    assert capture(network) == parse("linear(4)\nadd(relu(), relu())")


def test_inputs_come_by_name_or_in_order() -> None:
    text = parse("attention(b, 2, mask=a)", input_names=("a", "b"))

    def by_name(b: Any, a: Any) -> None:
        ops.attention(b, 2, mask=a)

    def by_keyword(*, b: Any, a: Any) -> None:
        ops.attention(b, 2, mask=a)

    def in_order(first: Any, second: Any) -> None:
        ops.attention(second, 2, mask=first)

    def open_ended(*tensors: Any) -> None:
        ops.attention(tensors[1], 2, mask=tensors[0])

    for function in (by_name, by_keyword, in_order, open_ended):
        assert capture(function, input_names=("a", "b")) == text


def test_the_function_must_take_the_inputs() -> None:
    error = refusal(lambda a: None, input_names=("x", "m"))
    assert (error.code, error.message) == (
        "E_BINDING",
        "the function takes (a), the network has the inputs x, m",
    )


def test_what_is_returned_is_the_output() -> None:
    def first(x: Any) -> Any:
        h, _ = ops.split(2)
        return h

    def named(x: Any) -> Any:
        h = ops.linear(4)
        return {"logits": ops.relu(), "x": h}

    assert capture(lambda x: None).current == Reference(-1, 0)
    assert capture(lambda x: ops.relu()).current == Reference(0, None)
    assert capture(first).current == Reference(0, 0)
    graph = capture(named)
    assert graph.returned == ("logits", "x")
    assert graph.published == {"logits": Reference(1, None), "x": Reference(0, None)}


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (3, "the function returns a tensor, a dictionary of tensors or nothing, got 3"),
        ({}, "the function returns a tensor, a dictionary of tensors or nothing, got {}"),
        ({"a": 3}, "the output a is a tensor, got 3"),
        ({3: 3}, "an output's name is a string, got 3"),
    ],
)
def test_anything_else_returned_is_refused(result: Any, message: str) -> None:
    error = refusal(lambda x: result)
    assert (error.code, error.message) == ("E_BINDING", message)


def test_tuples_are_returned_as_dictionaries() -> None:
    assert refusal(lambda x: (x, x)).hints == (
        'several outputs: return {"logits": logits, "features": features}',
    )
    assert refusal(lambda x: {"relu": x}, is_operator={"relu"}.__contains__).code == "E_NAME"


def test_numbers_of_numpy_are_numbers() -> None:
    def network(x: Any) -> None:
        ops.linear(np.int64(8), np.float64(0.5), np.float32(0.25), np.array(3), bias=np.bool_(True))

    (call,) = capture(network).calls
    assert call.arguments == (8, 0.5, 0.25, 3)
    assert [type(value) for value in call.arguments] == [int, float, float, int]
    assert call.keywords["bias"] is True
    assert refusal(lambda x: ops.linear(np.zeros(2))).code == "E_ARGUMENT"


@pytest.mark.parametrize(
    ("call", "code", "message"),
    [
        (lambda x: ops.linear(4, x), "E_SYNTAX", "tensors come first, before literals"),
        (lambda x: ops.linear((x, 4)), "E_SYNTAX",
         "a tensor is an argument by itself, not a part of a literal"),
        (lambda x: ops.linear(4, name=x), "E_ARGUMENT", 'name is a string such as "block", got a tensor'),
        (lambda x: ops.linear(4, name="train"), "E_NAME",
         "'train' is reserved: the models that are built use it themselves"),
        (lambda x: (ops.relu(name="a"), ops.relu(name="a")), "E_NAME", "two nodes are named 'a'"),
        (lambda x: ops.linear(4, init=0.1), "E_ARGUMENT",
         'init is a dictionary such as {"weight": 0.1} or {"weight": normal(std=0.02)}, got 0.1'),
        (lambda x: ops.linear(float("nan")), "E_ARGUMENT", "a number must be finite, got nan"),
        (lambda x: ops.linear(2**31), "E_RESOURCE",
         "the number 2147483648 is above the limit of 2,147,483,647 (max_dimension)"),
        (lambda x: ops.linear(object), "E_ARGUMENT",
         "an argument is a number, a string, True, False, None, or a tuple, list or dictionary of them; "
         "got <class 'object'>"),
        (lambda x: ops.linaer(4), "E_OPERATOR", "there is no operator 'linaer'"),
        (lambda x: ops.normal(sd=1), "E_ARGUMENT", "normal has no argument 'sd'; it takes mean, std"),
        (lambda x: x + 1, "E_SYNTAX", "a tensor cannot be used in `+`: it has no value yet"),
        (lambda x: 2 * x, "E_SYNTAX", "a tensor cannot be used in `*`: it has no value yet"),
        (lambda x: bool(x), "E_SYNTAX", "a tensor cannot be used in a condition: it has no value yet"),
        (lambda x: len(x), "E_SYNTAX", "a tensor cannot be used in len(): it has no value yet"),
        (lambda x: list(x), "E_SYNTAX",
         "a tensor cannot be used in unpacking or a loop: it has no value yet"),
        (lambda x: x[0], "E_SYNTAX", "a tensor cannot be used in a subscript: it has no value yet"),
        (lambda x: x > 0, "E_SYNTAX", "a tensor cannot be used in `>`: it has no value yet"),
        (lambda x: x == 0, "E_SYNTAX", "a tensor cannot be compared: it has no value yet"),
        (lambda x: x.shape, "E_SYNTAX",
         "a tensor has no attribute 'shape' while the network is being recorded"),
    ],
)  # fmt: skip
def test_misuse_inside_a_function(call: Callable[[Any], Any], code: str, message: str) -> None:
    error = refusal(call)
    assert (error.code, error.message) == (code, message)
    assert error.location is not None
    assert error.location.file == __file__


def test_a_sum_says_which_operator_to_use() -> None:
    def network(x: Any) -> Any:
        return x + x

    error = refusal(network)
    line = network.__code__.co_firstlineno + 1
    assert str(error) == (
        "E_SYNTAX: a tensor cannot be used in `+`: it has no value yet\n"
        f"  {__file__}:{line}:16\n"
        f"  {line} |         return x + x\n"
        f"  {' ' * len(str(line))} |                ^\n"
        "  use iso.ops.add(a, b)"
    )


def test_calls_know_their_place() -> None:
    def network(x: Any) -> Any:
        return ops.relu(
            ops.linear(4),
        )

    line = network.__code__.co_firstlineno
    places = [call.locate(None) for call in capture(network).calls if call.locate]
    assert [(p.file, p.line - line, p.column) for p in places if p] == [(__file__, 2, 13), (__file__, 1, 16)]
    assert places[0] is not None
    assert places[0].text == "            ops.linear(4),"


def test_operators_outside_a_network() -> None:
    with pytest.raises(IsomorphError) as caught:
        ops.linear(4)
    error = caught.value
    assert (error.code, error.message) == (
        "E_BINDING", "iso.ops.linear was called outside a network: it records, and computes nothing"
    )  # fmt: skip
    assert error.location is not None
    assert error.location.file == __file__
    assert ops.normal(std=0.5) == Normal(std=0.5)  # an initialiser is only a value


def test_recordings_do_not_nest_and_do_not_leak() -> None:
    kept: list[Any] = []

    def outer(x: Any) -> None:
        kept.append(x)
        capture(lambda x: None)

    error = refusal(outer)
    assert (error.code, error.message) == (
        "E_BINDING", "a function is being recorded already; recordings do not nest"
    )  # fmt: skip
    assert refusal(lambda x: ops.relu(kept[0])).message == "argument 0 is a tensor of another network"

    def broken(x: Any) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        capture(broken)
    assert capture(lambda x: None).calls == []  # the recorder was put away


def test_another_thread_records_its_own_network() -> None:
    found: list[Any] = []

    def network(x: Any) -> None:
        ops.relu()
        thread = threading.Thread(target=lambda: found.append(capture(lambda x: ops.linear(4))))
        thread.start()
        thread.join()
        ops.relu()

    assert capture(network) == parse("relu()\nrelu()")
    assert found == [parse("linear(4)")]


def test_nodes_are_bounded() -> None:
    def network(x: Any) -> None:
        while True:
            ops.relu()

    error = refusal(network, limits=limits_with({"max_nodes": 100}))
    assert (error.code, error.message) == (
        "E_RESOURCE",
        "the definition has more than 100 operator calls (max_nodes)",
    )


def test_a_literal_that_holds_itself_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    assert refusal(lambda x: ops.linear(endless)).code == "E_ARGUMENT"


def test_the_module_lists_its_operators() -> None:
    assert {"linear", "transformer_block", "normal"} <= set(dir(ops))
    assert not hasattr(ops, "__path__")
    assert ops.linear.__name__ == "linear"
    assert "Affine map" in (ops.linear.__doc__ or "")
    assert sys.modules["isomorph.ops"] is ops
