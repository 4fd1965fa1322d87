"""Running a definition on the reference backend."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import isomorph as iso
from isomorph import reference


def run_definition(
    definition: str, inputs: Any, weights: Mapping[str, Any] | None = None, **contracts: Any
) -> Any:
    """The reference's output for one array, or for a dictionary of arrays by input name."""
    named = inputs if isinstance(inputs, dict) else {"x": inputs}
    named = {name: np.asarray(array) for name, array in named.items()}
    if "input(" not in definition and "input" not in contracts:
        shapes = {name: ("B", *array.shape[1:]) for name, array in named.items()}
        contracts["input"] = shapes if isinstance(inputs, dict) else shapes["x"]
    plan = iso.resolve(definition, **contracts)
    return reference.build(plan, weights or {})(**named)


@pytest.fixture(name="run")
def _run() -> Any:
    return run_definition


@pytest.fixture
def error() -> Any:
    """The error of resolving a definition, which must have one."""

    def resolve(definition: str, **contracts: Any) -> iso.IsomorphError:
        with pytest.raises(iso.IsomorphError) as caught:
            iso.resolve(definition, **contracts)
        return caught.value

    return resolve


@pytest.fixture
def shape_of() -> Any:
    """The shapes of a resolved definition's outputs, as a list of lists of int and text."""

    def resolve(definition: str, **contracts: Any) -> Any:
        plan = iso.resolve(definition, **contracts)
        shapes = [
            [size if isinstance(size, int) else str(size) for size in plan.values[value].shape]
            for _, value in plan.outputs
        ]
        return shapes[0] if len(shapes) == 1 else shapes

    return resolve
