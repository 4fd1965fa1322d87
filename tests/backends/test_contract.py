"""Run-time checks of inputs: binding, shapes, symbols, bounds, dtypes; whole messages."""

from types import SimpleNamespace

import pytest

from isomorph.backends.contract import InputContracts, dtype_name
from isomorph.dimensions import parse_dimension
from isomorph.errors import IsomorphError
from isomorph.plan import Bound, Plan, Value


def contracts(bounds=None, **inputs):
    """Contracts of inputs written ``x="B 8 32 float32"``."""
    values = []
    for name, text in inputs.items():
        *sizes, dtype = text.split()
        values.append(Value(name, tuple(map(parse_dimension, sizes)), dtype, -1, name))
    named = tuple((name, index) for index, name in enumerate(inputs))
    return InputContracts(Plan("float32", tuple(values), named, (), (), bounds or {}))


def tensor(*shape, dtype="float32"):
    return SimpleNamespace(shape=shape, dtype=dtype)


def refusal(call, *arguments):
    with pytest.raises(IsomorphError) as caught:
        call(*arguments)
    assert caught.value.code == "E_RUNTIME"
    return str(caught.value).removeprefix("E_RUNTIME: ")


def test_a_fitting_input_gives_the_symbols():
    assert contracts(x="B 8 32 float32").check([tensor(2, 8, 32)]) == {"B": 2}
    assert contracts(x="B T 4 float32", m="B T bool").check(
        [tensor(0, 0, 4, dtype="float64"), tensor(0, 0, dtype="bool")]
    ) == {"B": 0, "T": 0}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (tensor(2, 8, 31), "[2, 8, 31] float32: axis 2 must be 32"),
        (tensor(2, 8), "[2, 8] float32: its rank must be 3"),
        (tensor(2, 8, 32, dtype="int64"), "[2, 8, 32] int64: it must have a floating-point dtype"),
        (tensor(2, 8, 32, dtype="complex64"), "[2, 8, 32] complex64: it must have a floating-point dtype"),
    ],
)
def test_what_does_not_fit_is_said(given, message):
    checked = contracts(x="B 8 32 float32")
    assert refusal(checked.check, [given]) == "input x: expected [B, 8, 32] float32, got " + message


def test_integers_and_booleans_are_asked_for_by_kind():
    checked = contracts(ids="B T int64", m="B T bool")
    assert checked.check([tensor(2, 3, dtype="int32"), tensor(2, 3, dtype="bool")]) == {"B": 2, "T": 3}
    assert refusal(checked.check, [tensor(2, 3), tensor(2, 3, dtype="bool")]) == (
        "input ids: expected [B, T] int64, got [2, 3] float32: it must have an integer dtype"
    )
    assert refusal(checked.check, [tensor(2, 3, dtype="int64"), tensor(2, 3, dtype="uint8")]) == (
        "input m: expected [B, T] bool, got [2, 3] uint8: it must have dtype bool"
    )


def test_a_symbol_has_one_value_across_inputs_and_axes():
    checked = contracts(x="B T 8 float32", m="B T bool")
    assert refusal(checked.check, [tensor(2, 6, 8), tensor(2, 5, dtype="bool")]) == (
        "input m: expected [B, T] bool, got [2, 5] bool: axis 1 must be T=6 (from axis 1 of x)"
    )
    square = contracts(x="B T T float32")
    assert refusal(square.check, [tensor(1, 3, 4)]) == (
        "input x: expected [B, T, T] float32, got [1, 3, 4] float32: axis 2 must be T=3 (from axis 1 of x)"
    )


def test_arithmetic_is_checked_once_its_symbols_are_known():
    checked = contracts(y="B 2*T+1 float32", x="B T float32")
    assert checked.check([tensor(2, 7), tensor(2, 3)]) == {"B": 2, "T": 3}
    assert refusal(checked.check, [tensor(2, 8), tensor(2, 3)]) == (
        "input y: expected [B, 2*T+1] float32, got [2, 8] float32: "
        "axis 1 must be 2*T+1 = 7, with T=3 (from axis 1 of x)"
    )


def test_a_symbol_that_occurs_in_arithmetic_alone_is_solved_for():
    checked = contracts(x="B 2*T+1 float32")
    assert checked.check([tensor(2, 7)]) == {"B": 2, "T": 3}
    assert refusal(checked.check, [tensor(2, 8)]) == (
        "input x: expected [B, 2*T+1] float32, got [2, 8] float32: axis 1 must be 2*T+1 for an integer T"
    )
    assert refusal(contracts(x="B T+2 float32").check, [tensor(2, 1)]) == (
        "input x: expected [B, T+2] float32, got [2, 1] float32: T=-1 must be at least 0"
    )
    # S+T needs T, which T+1 gives; two open symbols in one axis stay unchecked
    assert contracts(x="S+T T+1 float32").check([tensor(9, 5)]) == {"T": 4, "S": 5}
    assert contracts(x="S+T 3 float32").check([tensor(9, 3)]) == {}


def test_bounds():
    checked = contracts({"T": Bound(1, 1024)}, x="B T 8 float32")
    assert checked.check([tensor(1, 1024, 8)])["T"] == 1024
    for length, message in ((1025, "at most 1024"), (0, "at least 1")):
        assert refusal(checked.check, [tensor(1, length, 8)]) == (
            f"input x: expected [B, T, 8] float32, got [1, {length}, 8] float32: T={length} must be {message}"
        )
    assert contracts({"T": Bound(2)}, x="T float32").check([tensor(10**9)]) == {"T": 10**9}


def test_binding_by_position_and_by_name():
    checked = contracts(x="B float32", mask="B bool")
    for bound in (
        checked.bind((1, 2), {}),
        checked.bind((1,), {"mask": 2}),
        checked.bind((), {"mask": 2, "x": 1}),
    ):
        assert bound == [1, 2]


@pytest.mark.parametrize(
    ("arguments", "keywords", "message"),
    [
        ((1, 2, 3), {}, "the network takes 2 inputs (x, mask), got 3 by position"),
        ((1,), {}, "missing input mask; the network takes 2 inputs (x, mask)"),
        ((), {}, "missing inputs x, mask; the network takes 2 inputs (x, mask)"),
        ((1,), {"x": 2}, "input x is given twice, by position and by name"),
        (
            (1,),
            {"masks": 2},
            "unexpected input 'masks'; the network takes 2 inputs (x, mask)\n  did you mean mask?",
        ),
    ],
)
def test_binding_refuses(arguments, keywords, message):
    assert refusal(contracts(x="B float32", mask="B bool").bind, arguments, keywords) == message


def test_dtypes_may_be_keyed_by_a_frameworks_own_objects():
    torch = pytest.importorskip("torch")
    plan = Plan(
        "float32", (Value("input", (parse_dimension("B"), 2), "float32", -1, "x"),), (("x", 0),), (), ()
    )
    checked = InputContracts(plan, {torch.float32: "float", torch.int64: "int"})
    assert checked.check([torch.zeros(3, 2)]) == {"B": 3}
    assert refusal(checked.check, [torch.zeros(3, 2, dtype=torch.int64)]) == (
        "input x: expected [B, 2] float32, got [3, 2] int64: it must have a floating-point dtype"
    )
    assert dtype_name(torch.bfloat16) == "bfloat16"
