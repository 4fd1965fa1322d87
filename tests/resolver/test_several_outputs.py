"""A network whose last statement has several outputs: they are the network's, in order, under their port names."""

from __future__ import annotations

from typing import Any

import pytest

import isomorph as iso


def refusal(text: str, **contracts: Any) -> iso.IsomorphError:
    with pytest.raises(iso.IsomorphError) as caught:
        iso.resolve(text, **contracts)
    return caught.value


@pytest.mark.parametrize(
    "text",
    ["split(3)", "a, b = split(3)", "linear(8)\nsplit(3)", "for _ in range(2):\n    linear(8)\nsplit(3)"],
)
def test_the_outputs_of_a_last_split_are_the_networks(text: str) -> None:
    plan = iso.resolve(text, input=("B", 8))
    assert [(name, plan.values[value].shape[1:]) for name, value in plan.outputs] == [
        ("first", (3,)),
        ("rest", (5,)),
    ]
    assert str(plan).splitlines()[0] == "Network: [B, 8] -> first=[B, 3], rest=[B, 5]  dtype=float32"
    assert iso.resolve(plan.definition) == plan
    assert iso.Plan.from_json(plan.to_json()) == plan


def test_the_contract_may_state_them() -> None:
    """One part is enough to know the cut: 8 = 3 + 5."""
    for text in ("split()", "a, b = split()", "rest = linear(8)\na, b = split(rest)"):
        if "rest" not in text:
            plan = iso.resolve(text, input=("B", 8), output={"rest": ("B", 5), "first": ("B", 3)})
            assert [name for name, _ in plan.outputs] == ["rest", "first"]
            assert iso.resolve(plan.definition) == plan
    plan = iso.resolve('input("B", 8)\nsplit()\noutput(first=("B", 3))')
    assert plan.nodes[0].operator.argument_values["size"] == 3
    assert [name for name, _ in plan.outputs] == ["first"]


def test_a_name_of_the_text_comes_before_a_port() -> None:
    plan = iso.resolve(
        'rest = linear(7)\na, b = split(rest, 3)\noutput(first=("B", 3), rest=("B", 7))', input=("B", 8)
    )
    assert [plan.values[value].source for _, value in plan.outputs] == ["n1.first", "n0"]


def test_one_shape_does_not_say_which() -> None:
    assert str(refusal("split(3)", input=("B", 8), output=("B", 3))) == (
        "E_OUTPUT: n0 (split) is last and has several outputs (first, rest), the contract has one shape\n"
        "  <definition>:1:1\n"
        "  1 | split(3)\n"
        "    | ^\n"
        "  name them: output(first=..., rest=...)"
    )
    assert refusal('split(3)\noutput("B", 3)', input=("B", 8)).code == "E_OUTPUT"
    assert refusal('split(3)\noutput(second=("B", 3))', input=("B", 8)).code == "E_NAME"
    assert refusal("split(3)", input=("B", 8), output={"second": ("B", 3)}).code == "E_OUTPUT"


def test_elsewhere_there_is_no_current_tensor() -> None:
    assert refusal("a, b = split(3)\nrelu()", input=("B", 8)).code == "E_BINDING"
    assert refusal("split(3)\nrelu()", input=("B", 8)).code == "E_BINDING"


def test_a_recorded_function_ends_likewise() -> None:
    def network(x: Any) -> None:
        iso.ops.split(iso.ops.linear(x, 8), 3)

    plan = iso.resolve_function(network, input=("B", 4))
    assert plan == iso.resolve("linear(8)\nsplit(3)", input=("B", 4)) == iso.resolve(plan.definition)
    named = iso.resolve_function(network, input=("B", 4), output={"rest": ("B", 5), "first": ("B", 3)})
    assert iso.resolve(named.definition) == named


def test_the_reference_gives_them_in_order() -> None:
    import numpy as np

    plan = iso.resolve("split(3)", input=("B", 8))
    x = np.arange(16.0).reshape(2, 8)
    outputs = iso.reference.build(plan, {})(x)
    assert list(outputs) == ["first", "rest"]
    assert np.array_equal(outputs["first"], x[:, :3]) and np.array_equal(outputs["rest"], x[:, 3:])
