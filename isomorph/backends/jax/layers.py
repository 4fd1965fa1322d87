"""What both Flax backends know of their native layers: their names for parameters, and their axis orders.

``linear``, ``layer_norm`` and ``embedding`` become Flax's own layers, which keep a weight under another name
and a linear one as ``[in, out]``. Every other operator keeps its parameters as the plan has them. Nothing is
ever transposed because of its shape.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from isomorph.operators.declare import Operator
from isomorph.plan import Plan


class Leaf(NamedTuple):
    """How Flax keeps one parameter of a native layer.

    Attributes:
        name: Flax's name for it.
        transposed: whether its two axes stand in the other order.
    """

    name: str
    transposed: bool = False


LEAVES: dict[str, dict[str, Leaf]] = {
    "linear": {
        "weight": Leaf("kernel", transposed=True),  # [out, in] in the plan, [in, out] in Flax
        "bias": Leaf("bias"),
    },
    "layer_norm": {"weight": Leaf("scale"), "bias": Leaf("bias")},
    "embedding": {"weight": Leaf("embedding")},  # [num_embeddings, dim] in both
    "dropout": {},
}
"""Flax's own layers by :attr:`Operator.leaf`. A leaf that is not here runs its own forward computation."""


class Place(NamedTuple):
    """Where a model keeps a parameter.

    Attributes:
        path: attributes (or keys) to follow.
        transposed: whether its two axes stand in the other order.
        frozen: whether it is kept apart from what is trained.
    """

    path: tuple[str, ...]
    transposed: bool
    frozen: bool = False


def native(operator: Operator, tied: Mapping[str, Any]) -> dict[str, Leaf] | None:
    """The table of an operator's native layer, or None.

    A linear map that takes its weight from elsewhere (``tied``) holds none, so it is no native layer.
    """
    return None if operator.leaf is None or tied else LEAVES.get(operator.leaf)


def inside(paths: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The entries under a child: ``{"attn.q_proj.weight": x}`` for ``attn`` is ``{"q_proj.weight": x}``."""
    return {path[len(name) + 1 :]: value for path, value in paths.items() if path.startswith(name + ".")}


def places(plan: Plan) -> dict[str, Place]:
    """Where each of the plan's parameters is kept, in the plan's order."""
    by_path: dict[str, Place] = {}
    for node in plan.nodes:
        by_path.update(_places(node.operator, (node.name,), node.tie))
    return {p.path: by_path[p.path]._replace(frozen=not p.trainable) for p in plan.parameters}


def _places(
    operator: Operator, path: tuple[str, ...], tied: Mapping[str, str]
) -> Iterator[tuple[str, Place]]:
    table = native(operator, tied) or {}
    for name in operator.own_parameters:
        leaf = table.get(name, Leaf(name))
        yield ".".join((*path, name)), Place((*path, leaf.name), leaf.transposed)
    for name, child in operator.child_operators.items():
        yield from _places(child, (*path, name), inside(tied, name))
