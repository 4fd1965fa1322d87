"""A plan as an ``nnx.Module``: one submodule per node, run in order."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Any

import jax
import numpy as np
from flax import nnx

from isomorph.backends.jax.build import PreparedPlan, network_dtype, require_x64
from isomorph.backends.nnx.layers import Values, calling, layer, put
from isomorph.errors import IsomorphError, shorten
from isomorph.plan import Node, Plan

_LARGEST_KEY = 1 << 63  # JAX makes keys of 64-bit integers


class Network(nnx.Module):
    """A plan in Flax NNX. Made by :func:`build`; submodules have the plan's names.

    Call it with the plan's inputs, by position or by name: JAX or NumPy arrays. It returns one array, or a
    dictionary in order when the plan has several outputs. Inputs are checked against their contracts, in
    eager mode and while a function is traced. It starts in training mode, as NNX's models do.

    A parameter's attribute path is the plan's with Flax's name at the end where Flax has a layer for it:
    ``n1.attn.q_proj.weight`` is ``n1.attn.q_proj.kernel``, transposed. A tied parameter is held by its owner
    alone. In compiled code an id outside a table gives a row of NaN, where eager mode refuses it.
    """

    def __init__(self, values: Values) -> None:
        self._prepared = values.prepared
        for node in values.prepared.plan.nodes:
            put(self, node.name, layer(node.operator, values, node.name, node.tie), "a network")

    @property
    def plan(self) -> Plan:
        """The plan that this network runs."""
        return self._prepared.plan

    def __call__(self, /, *inputs: Any, **named: Any) -> Any:
        tensors = self._prepared.ready(inputs, named, self._dtype())
        layers = [calling(getattr(self, node.name), self._tied(node)) for node in self.plan.nodes]
        return self._prepared.run(layers, tensors)

    def variable(self, path: str) -> nnx.Variable[jax.Array]:
        """The variable that holds the parameter at a plan path, in Flax's axis order."""
        return reduce(getattr, self._prepared.places[path].path, self)  # type: ignore[return-value]

    def _tied(self, node: Node) -> dict[str, jax.Array]:
        """Arrays in plan layout for what the node takes from elsewhere."""
        arrays = {}
        for path, owner in node.tie.items():
            array = self.variable(owner)[...]
            arrays[path] = array.T if self._prepared.places[owner].transposed else array
        return arrays

    def _dtype(self) -> np.dtype[Any] | None:
        smallest = self._prepared.smallest
        if smallest is None:
            return np.dtype(jax.numpy.dtype(self.plan.dtype))
        try:
            return network_dtype(reduce(getattr, smallest.path, self))
        except AttributeError:
            return None  # a layer was replaced

    def __str__(self) -> str:
        return str(self.plan)


def build(
    plan: Plan,
    weights: Mapping[str, Any] | None = None,
    seed: int = 0,
    rngs: nnx.Rngs | None = None,
) -> Network:
    """The plan as an ``nnx.Module`` in training mode.

    ``linear``, ``layer_norm``, ``embedding`` and ``dropout`` are Flax's own layers. Parameters are
    ``nnx.Param``; frozen ones (``trainable=False``) are ``isomorph.nnx.Frozen``, which is none, so that
    ``nnx.grad`` and ``nnx.Optimizer(model, tx, wrt=nnx.Param)`` train exactly what the plan trains.

    Args:
        plan: the network.
        weights: arrays in plan layout by parameter path, copied.
        seed: of the draw ``isomorph.initial_weights(plan, seed)`` that is made without ``weights`` and
            ``rngs``, and of the dropout streams without ``rngs``.
        rngs: Flax's streams. Without ``weights`` its ``params`` stream draws the plan's distributions
            Flax's own way (works under ``nnx.eval_shape``); its ``dropout`` stream feeds dropout.

    Raises:
        IsomorphError: E_WEIGHTS when the weights are not exactly the plan's; E_ARGUMENT for a bad seed or bad streams;
            E_BACKEND for a float64 plan while JAX has float64 switched off; E_NAME when a node has a name
            that NNX modules use themselves.
    """
    from isomorph.weights.convert import owned_weights
    from isomorph.weights.initial import check_seed, initial_weights

    require_x64(Plan.expect(plan))
    check_seed(seed)
    if rngs is not None and not isinstance(rngs, nnx.Rngs):
        raise IsomorphError("E_ARGUMENT", f"rngs must be an nnx.Rngs or None, got {shorten(rngs)}")
    fitting = None
    if weights is not None:
        fitting = owned_weights(plan, weights)
    elif rngs is None:
        fitting = initial_weights(plan, seed)
    return Network(
        Values(PreparedPlan(plan), fitting, nnx.Rngs(int(seed) % _LARGEST_KEY) if rngs is None else rngs)
    )
