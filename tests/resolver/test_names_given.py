"""Names of sizes, inputs, outputs and nodes are checked where they are given; and what counts as a size."""

from __future__ import annotations

from typing import Any

import pytest

import isomorph as iso


def refusal(text: str, **contracts: Any) -> iso.IsomorphError:
    with pytest.raises(iso.IsomorphError) as caught:
        iso.resolve(text, **contracts)
    return caught.value


ODD = (
    "-T", "T-2*T", "-T+10", "S-T", "0*T", "T T", "2*", "", " ", "T+", "+T", "*T", "T*2", "2T", "2*T*3", "T-T",
    "T**2", "T/2", "(T)", "T.", "T+-1", "--T", "1.5*T", "é", "Ｔ", "T²", "٣*T", "T\u200b", "T\0",
)  # fmt: skip


@pytest.mark.parametrize("symbol", ODD)
def test_what_is_no_size(symbol: str) -> None:
    """A size is a number, or symbols times positive numbers plus a number, in ASCII."""
    message = f'input: a size is a positive int or a symbol such as "B" or "2*T+1", got {symbol!r}'
    error = refusal("relu()", input=("B", symbol))
    assert (error.code, error.message) == ("E_ARGUMENT", message)
    if symbol.isprintable():
        error = refusal(f'x = input("B", "{symbol}")\nrelu()')
        assert error.code == "E_ARGUMENT" and error.location is not None
    assert refusal("relu()", input=("B", 4), output=("B", symbol)).code == "E_ARGUMENT"


@pytest.mark.parametrize(
    "symbol", ["T", "T1", "_T", "2*T+1", " 2 * T + 1 ", "T-9", "S+T", "10+T", "batch_size"]
)
def test_what_is_a_size(symbol: str) -> None:
    plan = iso.resolve("relu()", input=("B", symbol, 3))
    assert iso.resolve(plan.definition) == plan


def test_numbers_in_a_size_are_held_to_the_limit() -> None:
    assert str(refusal("relu()", input=("B", "2147483648*T"))) == (
        "E_RESOURCE: input: a size is at most 2,147,483,647, got '2147483648*T'"
    )
    assert refusal("relu()", input=("B", "T+2147483648")).code == "E_RESOURCE"
    assert refusal("relu()", input=("B", "T-2147483648")).code == "E_RESOURCE"


@pytest.mark.parametrize("word", ["if", "None", "lambda", "True", "await", "__class__", "__init__", "_"])
def test_a_symbol_is_no_word_of_python(word: str) -> None:
    assert str(refusal("relu()", input=("B", f"2*{word}+1"))) == (
        f"E_NAME: input: {word!r} cannot name a size: code that is written for a plan names its sizes\n"
        f"  choose another symbol, such as {word.strip('_').upper() or 'T'}_SIZE"
    )
    error = refusal(f'input("B", 3, "{word}")\nrelu()')
    assert error.code == "E_NAME" and error.location is not None
    assert refusal("relu()", input=("B", 3), output=("B", word)).code == "E_NAME"
    assert refusal("relu()", input={"x": ("B", word)}).code == "E_NAME"


@pytest.mark.parametrize("word", ["if", "None", "lambda", "__class__", "a b", "", "1a", "ﬁ", "class"])
def test_an_input_is_no_word_of_python(word: str) -> None:
    error = refusal("relu()", input={word: ("B", 3)})
    assert error.code == "E_NAME" and repr(word) in error.message

    def network(**tensors: Any) -> None:
        iso.ops.relu(next(iter(tensors.values())))

    with pytest.raises(iso.IsomorphError, match="E_NAME"):
        iso.resolve_function(network, input={word: ("B", 3)})


@pytest.mark.parametrize("word", ["if", "None", "lambda", "__class__", "ﬁ"])
def test_an_output_is_no_word_of_python(word: str) -> None:
    def network(x: Any) -> Any:
        return {word: iso.ops.relu(x)}

    with pytest.raises(iso.IsomorphError) as caught:
        iso.resolve_function(network, input=("B", 3))
    assert caught.value.code == "E_NAME"
    error = refusal("relu()", input=("B", 3), output={word: ("B", 3)})
    assert error.code == "E_NAME" and repr(word) in error.message


def test_a_tensor_has_no_name_of_pythons_own() -> None:
    assert str(refusal("__class__ = relu()\nrelu(__class__)", input=("B", 3))) == (
        "E_NAME: '__class__' begins with two underscores, which Python keeps for its own names\n"
        "  <definition>:1:1\n"
        "  1 | __class__ = relu()\n"
        "    | ^\n"
        "  choose another name, such as class_out"
    )


@pytest.mark.parametrize("word", ["if", "None", "lambda", "__class__", "class", "ﬁ"])
def test_a_node_is_no_word_of_python(word: str) -> None:
    error = refusal(f'relu(name="{word}")', input=("B", 3))
    assert error.code == "E_NAME" and error.location is not None
