"""Variables of a Linen network, between Flax's layout and the plan's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from isomorph.backends.jax.build import prepared, require_x64
from isomorph.backends.jax.weights import to_jax, to_plan
from isomorph.errors import IsomorphError, shorten
from isomorph.plan import Plan
from isomorph.weights.convert import owned_weights

if TYPE_CHECKING:
    import jax
    import numpy as np

Tree = dict[str, Any]
"""Nested dictionaries with arrays at the leaves."""


def variables(plan: Plan, weights: Mapping[str, Any] | None = None, seed: int = 0) -> Tree:
    """What ``module.apply`` takes: ``{"params": {"n0": {"kernel": ...}, ...}}``.

    Args:
        plan: the network.
        weights: arrays in plan layout by parameter path, copied; ``isomorph.initial_weights(plan, seed)``
            when None.
        seed: of that draw.

    Raises:
        IsomorphError: E_WEIGHTS when the weights are not exactly the plan's; E_ARGUMENT for a bad seed;
            E_BACKEND for a float64 plan while JAX has float64 switched off.
    """
    from isomorph.weights.initial import initial_weights

    require_x64(Plan.expect(plan))
    fitting = initial_weights(plan, seed) if weights is None else owned_weights(plan, weights)
    places = prepared(plan).places
    return {
        "params": _nested(
            {
                places[path].path: to_jax(array, plan.dtype, places[path].transposed)
                for path, array in fitting.items()
            }
        )
    }


def weights(plan: Plan, variables: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Every parameter by path, in plan layout, as NumPy arrays that share no memory with the variables.

    Args:
        plan: the network.
        variables: ``{"params": ...}`` as :func:`variables` and ``module.init`` make it.

    Returns:
        Arrays of the variables' dtype (bfloat16 as ``ml_dtypes.bfloat16``), in the plan's order.

    Raises:
        IsomorphError: E_WEIGHTS listing every missing, unexpected and misshapen entry, by the plan's path
            where it has one; E_ARGUMENT when there is no ``"params"`` collection.
    """
    if not isinstance(variables, Mapping) or not isinstance(variables.get("params"), Mapping):
        raise IsomorphError(
            "E_ARGUMENT",
            f'variables must be a mapping with a "params" collection, got {shorten(variables)}',
        )
    known = {
        place.path: (path, place.transposed) for path, place in prepared(Plan.expect(plan)).places.items()
    }
    found = {}
    for path, array in _leaves(variables["params"]):
        name, transposed = known.get(path, (".".join(path), False))
        found[name] = to_plan(array, transposed)
    return owned_weights(plan, found)


def trainable(plan: Plan) -> Tree:
    """A tree of booleans like ``variables["params"]``: False for what the plan freezes.

    For ``optax.masked`` and its like; ``optax.multi_transform`` takes the two groups apart by it.
    """
    places = prepared(Plan.expect(plan)).places
    return _nested({places[p.path].path: p.trainable for p in plan.parameters})


def _nested(leaves: Mapping[tuple[str, ...], Any]) -> Tree:
    tree: Tree = {}
    for path, value in leaves.items():
        inner = tree
        for key in path[:-1]:
            inner = inner.setdefault(key, {})
        inner[path[-1]] = value
    return tree


def _leaves(
    tree: Mapping[str, Any], path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], jax.Array]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, (*path, key))
        else:
            yield (*path, key), value
