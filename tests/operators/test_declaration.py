"""Declarations: what their author hears of at once, and instances that equal arguments share."""

from __future__ import annotations

from math import copysign
from typing import Any

import pytest

import isomorph as iso
from isomorph.language.names import NOT_OPERATORS
from isomorph.language.options import NODE_KEYWORDS
from isomorph.operators import soundness
from isomorph.operators.attention import Attention
from isomorph.operators.declare import Conflict, Operator
from isomorph.operators.embedding import PatchEmbed
from isomorph.operators.linear import Linear

KEPT = "x[B, D] -> out[B, D]"


def refusal(name: str = "declared_for_a_test", shape: str = KEPT, **members: Any) -> str:
    """The message of a declaration that is refused, after the class's name."""
    annotations = members.pop("annotations", {})
    members |= {"__module__": "mine", "__annotations__": annotations}
    return refused(type("Declared", (Operator,), members), name, shape)


def refused(cls: Any, name: str = "declared_for_a_test", shape: str = KEPT) -> str:
    with pytest.raises(iso.IsomorphError) as caught:
        iso.operator(name, shape=shape, category="test")(cls)
    assert caught.value.code == "E_OPERATOR"
    assert caught.value.message.startswith("mine.Declared: ")
    return caught.value.message.removeprefix("mine.Declared: ")


def test_the_words_that_name_no_operator_are_those_of_the_language():
    assert soundness.NEVER_OPERATORS == NOT_OPERATORS
    assert set(NODE_KEYWORDS) == soundness.KEYWORDS_OF_EVERY_CALL


@pytest.mark.parametrize(
    ("name", "meaning"),
    [("lambda", "a keyword"), ("input", "a word of the language"), ("normal", "a word of the language")],
)
def test_a_name_that_no_definition_can_call(name, meaning):
    assert refusal(name) == f"{name!r} is {meaning}, and could never be called"
    if name == "normal":
        assert iso.resolve("linear(2, init={'weight': normal(std=0.5)})", input=("B", 2))


@pytest.mark.parametrize(
    ("name", "why"),
    [
        *(
            (word, "a keyword that every call takes for itself")
            for word in ("name", "init", "trainable", "tie")
        ),
        ("if", "a keyword"),
        ("sizes", "an attribute of every operator"),
        ("forward", "an attribute of every operator"),
        ("x", "one of its inputs"),
    ],
)
def test_an_argument_that_no_call_can_give(name, why):
    cls = type(
        "Declared",
        (Operator,),
        {"__module__": "mine", "__annotations__": {name: "int"}, name: iso.argument(1)},
    )
    assert refused(cls) == f"an argument cannot be named {name!r}, which is {why}"


def test_an_argument_needs_an_annotation_that_the_language_can_write():
    assert refusal(width=iso.argument(1)) == "the argument width has no annotation"
    for written, shown in (("list[int]", "'list[int]'"), (dict, "'dict'")):
        assert refusal(annotations={"width": written}, width=iso.argument(1)) == (
            f"the argument width is annotated {shown}, expected int, float, bool or str"
        )


def test_a_default_must_be_a_legal_value():
    assert refusal(annotations={"width": "int"}, width=iso.argument("wide")) == (
        "the default of width must be an int, got 'wide'"
    )
    assert refusal(annotations={"width": "int"}, width=iso.argument(0, minimum=1)) == (
        "the default of width must be >= 1, got 0"
    )


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        (None, "a shape pattern is a string, got None"),
        ("x[B, D]", "a shape pattern needs '->': 'x[B, D]'"),
        ("x[B, D -> out[B]", "malformed port in shape pattern: 'x[B, D'"),
        ("-> out[B]", "a shape pattern needs an input and an output: '-> out[B]'"),
        ("x[B], x[B] -> out[B]", "two ports are named 'x' in the shape pattern 'x[B], x[B] -> out[B]'"),
        (
            "x[..., ...] -> out[B]",
            "`...` stands twice in x[..., ...] of the shape pattern 'x[..., ...] -> out[B]'",
        ),
        ("x[B]:text -> out[B]", "x has the dtype 'text', expected int64 or bool"),
        ("x[B] -> out?[B]", "the output out takes no mark and no dtype in 'x[B] -> out?[B]'"),
        ("x[B] -> out[...]", "`...` of the output out stands in no input of 'x[B] -> out[...]'"),
        ("x[B, T+1] -> out[B]", "an input's axis is a size, an integer or `...`, got 'T+1' in x[B, T+1]"),
        ("x[T] -> out[T**2]", "an output's axis is arithmetic with +, -, * and / over sizes, got 'T**2'"),
        ("x[T] -> out[T+]", "an output's axis is arithmetic with +, -, * and / over sizes, got 'T+'"),
        ("x[T] -> out[T*1.5]", "an output's axis is arithmetic with +, -, * and / over sizes, got 'T*1.5'"),
        (
            "x[T] -> out[T/q]",
            "an output is computed from 'q', which neither the inputs nor the arguments have",
        ),
    ],
)
def test_a_shape_pattern_that_says_nothing(shape, message):
    assert refusal(shape=shape) == message


def test_sizes_that_nothing_tells():
    def children(self, Q):
        return {}

    assert refusal(children=children) == (
        "children asks for the size 'Q', which neither the shape pattern nor an argument has"
    )


# -- instances -------------------------------------------------------------------------------------


def factors(definition: str) -> list[float]:
    return [node.operator.factor for node in iso.resolve(definition, input=("B", 2)).nodes]


@pytest.mark.parametrize("definition", ["scale(0.0)\nscale(-0.0)", "scale(-0.0)\nscale(0.0)", "scale(-0.0)"])
def test_minus_zero_means_zero(definition):
    assert [copysign(1.0, factor) for factor in factors(definition)] == [1.0] * len(factors(definition))


def test_equal_values_of_another_type_are_not_taken_for_one_another():
    assert Attention.of(D=24, heads=1).heads == 1
    for wrong in (True, 1.0):
        with pytest.raises(Conflict, match=f"^heads must be an int, got {wrong}$"):
            Attention.of(D=24, heads=wrong)
    assert Linear.of(D_in=1, D_out=2).sizes == {"D_out": 2, "D_in": 1}
    with pytest.raises(Conflict, match=r"^linear: the size D_in must be an int >= 1, got True$"):
        Linear.of(D_in=True, D_out=2)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"D_in": -4, "D_out": 3}, "linear: the size D_in must be an int >= 1, got -4"),
        ({"D_in": "a", "D_out": 3}, "linear: the size D_in must be an int >= 1, got 'a'"),
        ({"D_in": 4}, "linear needs the size D_out"),
        ({}, "linear needs the sizes D_out, D_in"),
        (
            {"D_in": 4, "D_out": 3, "out_features": 5},
            "linear: out_features=5 states another size than D_out=3",
        ),
    ],
)
def test_sizes_of_an_instance(sizes, message):
    with pytest.raises(Conflict) as caught:
        Linear.of(**sizes)
    assert caught.value.message == message


def test_an_argument_states_its_size():
    assert Linear.of(in_features=4, out_features=3) is Linear.of(D_in=4, D_out=3)
    assert PatchEmbed.of(C=3, D=5, patch_size=2).sizes == {"D": 5, "p": 2, "C": 3}
