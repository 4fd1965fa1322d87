"""How the reference backend holds an operator: the plain holder around the NumPy primitives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from isomorph.backends.reference import primitives
from isomorph.operators.declare import Operator
from isomorph.plan.holder import Holder
from isomorph.primitives import Primitives

_PRIMITIVES: Primitives = primitives


def to_float64(array: Any) -> np.ndarray:
    """A float64 copy of any array that NumPy can read, bfloat16 included."""
    return np.array(array, dtype=np.float64)


def layer(operator: Operator, weights: Mapping[str, Any]) -> Holder:
    """One operator as a NumPy function; ``weights`` by the paths of ``operator.all_parameters``.

    Example: ``layer(Linear.of(D_in=2, D_out=1), {"weight": [[1.0, 2.0]], "bias": [0.5]})(x)``.
    """
    path = operator.name
    return Holder(operator, _PRIMITIVES, {f"{path}.{key}": to_float64(w) for key, w in weights.items()}, path)
