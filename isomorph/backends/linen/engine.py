"""Prepared inference for a bound Linen module: see :mod:`isomorph.backends.jax.engine`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import TYPE_CHECKING, Any

import jax

from isomorph.backends.jax.engine import Engine
from isomorph.backends.linen.decoding import plan_of

if TYPE_CHECKING:
    from flax import linen as nn


def prepare(model: nn.Module, dtype: str | None = None) -> Engine:
    """A faster function of the same inputs and outputs; see :func:`isomorph.prepare`."""
    plan = plan_of(model)
    module, variables = model.unbind()
    prepared = module.prepared  # type: ignore[attr-defined]
    places = prepared.places

    def array(path: str) -> Any:
        return reduce(lambda tree, key: tree[key], places[path].path, variables["params"])

    def read() -> Mapping[str, jax.Array]:
        found = {path: array(path).T if places[path].transposed else array(path) for path in places}
        return {**found, **{path: found[owner] for path, owner in plan.ties.items()}}

    held = [array(path) for path in places]  # a bound module's variables do not change
    return Engine(prepared, read, lambda: held, dtype)
