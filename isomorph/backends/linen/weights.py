"""Variables of a Linen network, between Flax's layout and the plan's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from isomorph.backends.jax.build import prepared, require_x64
from isomorph.backends.jax.weights import to_jax, to_plan
from isomorph.backends.linen.layers import FROZEN, PARAMS, collection
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

    What is frozen (``trainable=False``) lies in ``"frozen"`` in the same way, where there is something frozen; so
    ``variables["params"]`` is what an optimizer gets.

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
    leaves_by_collection: dict[str, dict[tuple[str, ...], jax.Array]] = {PARAMS: {}}
    for path, array in fitting.items():
        place = places[path]
        leaf = to_jax(array, plan.dtype, place.transposed)
        leaves_by_collection.setdefault(collection(place), {})[place.path] = leaf
    return {name: _nested(leaves) for name, leaves in leaves_by_collection.items()}


def weights(plan: Plan, variables: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Every parameter by path, in plan layout, as NumPy arrays that share no memory with the variables.

    Args:
        plan: the network.
        variables: ``{"params": ..., "frozen": ...}`` as :func:`variables` and ``module.init`` make it.
            Other collections are passed over.

    Returns:
        Arrays of the variables' dtype (bfloat16 as ``ml_dtypes.bfloat16``), in the plan's order.

    Raises:
        IsomorphError: E_WEIGHTS listing every missing, unexpected and misshapen entry, by the plan's path
            where it has one; E_ARGUMENT when there is no ``"params"`` collection, unless all is frozen.
    """
    places = prepared(Plan.expect(plan)).places
    optional = {PARAMS: all(place.frozen for place in places.values()), FROZEN: True}
    if not isinstance(variables, Mapping) or not all(
        isinstance(variables.get(name, {} if optional[name] else None), Mapping) for name in optional
    ):
        raise IsomorphError(
            "E_ARGUMENT",
            f'variables must be a mapping with a "params" collection, got {shorten(variables)}',
        )
    known = {place.path: (path, place) for path, place in places.items()}
    arrays, misplaced = {}, []
    for name in (PARAMS, FROZEN):
        for keys, array in _leaves(variables.get(name, {})):
            path, place = known.get(keys, (".".join(keys), None))
            arrays[path] = to_plan(array, place is not None and place.transposed)
            if place is not None and collection(place) != name:
                misplaced.append(f"{path} belongs in {collection(place)!r}, not in {name!r}")
    if misplaced:
        raise IsomorphError(
            "E_WEIGHTS",
            "what is frozen lies in a collection of its own, and some of this does not",
            hints=misplaced,
        )
    return owned_weights(plan, arrays)


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
