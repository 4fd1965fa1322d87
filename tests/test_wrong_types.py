"""Values of a wrong kind at the public doors get the library's own error, whole."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import isomorph as iso
from isomorph.errors import IsomorphError, MissingAttributeError, shorten

PLAN = iso.resolve("linear(4)", input=("B", 8))
WEIGHTS = iso.initial_weights(PLAN)


def refusal(call: Any, *arguments: Any, **keywords: Any) -> str:
    with pytest.raises(IsomorphError) as error:
        call(*arguments, **keywords)
    return str(error.value)


@pytest.mark.parametrize("limits", [[1], "x", 7])
def test_limits_are_a_mapping(limits: Any) -> None:
    assert refusal(iso.resolve, "linear(4)", input=("B", 8), limits=limits) == (
        f"E_ARGUMENT: limits must be a mapping from name to number, got {limits!r}\n"
        '  as in limits={"max_nodes": 1000}\n'
        "  limits: max_nodes, max_dimension, max_source_bytes, max_nesting, max_parameter_bytes, "
        "max_search_steps"
    )


@pytest.mark.parametrize("name", [1, None, (1, 2), b"max_nodes"])
def test_a_limits_name_is_a_string(name: Any) -> None:
    assert refusal(iso.resolve, "linear(4)", input=("B", 8), limits={name: 2}) == (
        f"E_ARGUMENT: unknown limit {name!r}\n"
        "  limits: max_nodes, max_dimension, max_source_bytes, max_nesting, max_parameter_bytes, "
        "max_search_steps"
    )


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        (None, "must be str, bytes or os.PathLike, got 'NoneType'"),
        (7, "must be str, bytes or os.PathLike, got 'int'"),
        ("", "is empty: ''"),
        ("a\0b", "holds a NUL character: 'a\\x00b'"),
        (b"a\0b", "holds a NUL character: 'a\\x00b'"),
    ],
)
def test_what_is_no_path(path: Any, problem: str) -> None:
    assert refusal(iso.resolve_file, path) == f"E_ARGUMENT: the definition's path {problem}"
    assert refusal(iso.load, path) == f"E_ARGUMENT: the model's path {problem}"
    assert refusal(iso.save, path, PLAN, WEIGHTS) == f"E_ARGUMENT: the file's path {problem}"


def test_a_path_that_no_file_system_has(tmp_path: Path) -> None:
    """Half of a surrogate pair stands for no byte of a name; those that stand for one, U+DC80 and on, are a name's."""
    path = f"{tmp_path}/a\ud800"
    problem = f"holds U+D800, which is no part of a file's name here: {shorten(path)}"
    for what, use in {
        "the definition's path": lambda: iso.resolve_file(path),
        "the model's path": lambda: iso.load(path),
        "the file's path": lambda: iso.save(path, PLAN, WEIGHTS),
        "the checkpoint's path": lambda: iso.import_checkpoint(path),
    }.items():
        assert refusal(use) == f"E_ARGUMENT: {what} {problem}"
    iso.save(f"{tmp_path}/a\udcff", PLAN, WEIGHTS)
    assert os.listdir(os.fsencode(tmp_path)) == [b"a\xff"]


def test_paths_of_every_kind(tmp_path: Path) -> None:
    definition, model = tmp_path / "ü.net", tmp_path / "ü.safetensors"
    definition.write_text('input("B", 8)\nlinear(4)\n')
    for kind in (str, os.fsencode, Path):
        assert iso.resolve_file(kind(definition)).parameter_count == 36
        iso.save(kind(model), PLAN, WEIGHTS)
        plan, weights = iso.load(kind(model))
        assert plan == PLAN
        assert all(np.array_equal(weights[path], array) for path, array in WEIGHTS.items())


def test_resolve_file_takes_what_resolve_takes(tmp_path: Path) -> None:
    path = tmp_path / "a.net"
    path.write_text("linear()\n")
    plan = iso.resolve_file(path, input=("B", 8), output=("B", 4), dtype="float64", input_dtype="float64")
    assert (plan.dtype, plan.parameter_count) == ("float64", 36)
    with pytest.raises(TypeError):
        iso.resolve_file(path, inputs=("B", 8))  # type: ignore[call-arg]


def test_a_function_is_one() -> None:
    assert refusal(iso.resolve_function, None, input=("B", 8)) == (
        "E_ARGUMENT: the network is a function, got None"
    )


def test_plans_differ_from_plans() -> None:
    assert refusal(PLAN.diff, None) == "E_ARGUMENT: expected a plan, got 'NoneType'"


def test_a_parameter_path_is_a_string() -> None:
    for key in (1, None):
        assert refusal(iso.reference.build, PLAN, {key: 2}) == (
            f"E_WEIGHTS: a parameter path is a string such as n0.weight, got {key}"
        )


def test_integers_of_numpy_are_sizes_and_its_booleans_are_none() -> None:
    plan = iso.resolve("linear(4)", input=("B", np.int64(8)))
    assert plan == PLAN
    assert plan.definition == PLAN.definition
    assert all(type(size) is not np.int64 for value in plan.values for size in value.shape)
    assert refusal(iso.resolve, "linear(4)", input=("B", np.int32(0))).startswith(
        "E_ARGUMENT: input: a size is at least 1, got 0"
    )
    for size in (True, np.True_, 8.0, np.float32(8)):
        assert refusal(iso.resolve, "linear(4)", input=("B", size)).startswith(
            "E_ARGUMENT: input: a size is a positive int or a symbol"
        )


def test_a_missing_operator_is_a_missing_attribute() -> None:
    assert not hasattr(iso.ops, "zz")
    assert getattr(iso.ops, "linaer", 5) == 5
    with pytest.raises(AttributeError) as error:
        _ = iso.ops.linaer
    assert isinstance(error.value, IsomorphError)
    assert error.value.code == "E_OPERATOR"
    assert "did you mean linear" in str(error.value)


def test_a_missing_framework_is_a_missing_attribute(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise IsomorphError("E_BACKEND", f"{name} needs PyTorch", hints=["install it"])

    monkeypatch.setattr("importlib.import_module", missing)
    monkeypatch.delitem(vars(iso), "torch", raising=False)
    assert not hasattr(iso, "torch")
    with pytest.raises(MissingAttributeError) as error:
        _ = iso.torch
    assert str(error.value) == "E_BACKEND: isomorph.torch needs PyTorch\n  install it"
