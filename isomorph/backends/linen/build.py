"""A plan as a ``flax.linen.Module``: one submodule per node, run in order."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from flax import linen as nn
from jax import numpy as jnp

from isomorph.backends.jax.build import PreparedPlan, network_dtype
from isomorph.backends.jax.layers import Place
from isomorph.backends.linen.layers import array_at, calling, layer, put
from isomorph.errors import IsomorphError
from isomorph.plan import Node, Plan


class Network(nn.Module):
    """A plan in Flax Linen. Made by :func:`build`; submodules have the plan's names.

    ``module.init(key, x)`` draws the plan's distributions Flax's own way; ``isomorph.linen.variables`` gives
    the weights that all backends share. ``module.apply(variables, x)`` evaluates; with dropout,
    ``module.apply(variables, x, train=True, rngs={"dropout": key})`` trains. Inputs are given by position or
    by name: JAX or NumPy arrays, checked against their contracts in eager mode and while a function is
    traced. It returns one array, or a dictionary in order when the plan has several outputs.

    ``n1.attn.q_proj.weight`` of the plan is ``params["n1"]["attn"]["q_proj"]["kernel"]``, transposed. What is
    frozen (``trainable=False``) lies in a collection of its own, ``variables["frozen"]``, so that an optimizer over
    ``variables["params"]`` trains exactly what the plan trains. A tied parameter is held by its owner alone. In
    compiled code an id outside a table gives a row of NaN, where eager mode refuses it.
    """

    prepared: PreparedPlan

    @property
    def plan(self) -> Plan:
        """The plan that this network runs."""
        return self.prepared.plan

    def setup(self) -> None:
        for node in self.plan.nodes:
            put(self, node.name, layer(node.operator, self.prepared, node.name, node.tie), "a network")

    def __call__(self, /, *inputs: Any, train: bool = False, **named: Any) -> Any:
        tensors = self.prepared.ready(inputs, named, self._dtype())
        if self.is_initializing() and self.plan.ties:
            self._run(tensors, train)  # makes the owners, whatever their order; what it computes is dropped
        return self._run(tensors, train)

    def _run(self, tensors: list[jax.Array], train: bool) -> Any:
        layers = [calling(getattr(self, node.name), train, self._tied(node)) for node in self.plan.nodes]
        return self.prepared.run(layers, tensors)

    def _tied(self, node: Node) -> dict[str, jax.Array]:
        """Arrays in plan layout for what the node takes from elsewhere."""
        arrays = {}
        for path, owner in node.tie.items():
            place = self.prepared.places[owner]
            try:
                array = self._array(place)
                arrays[path] = array.T if place.transposed else array
            except IsomorphError:
                if not self.is_initializing():
                    raise
                arrays[path] = jnp.zeros(self.prepared.parameters[owner].shape, self.plan.dtype)
        return arrays

    def _array(self, place: Place) -> Any:
        return array_at(self.variables, place)

    def _dtype(self) -> np.dtype[Any] | None:
        smallest = self.prepared.smallest
        if smallest is None or self.is_initializing():
            return np.dtype(jnp.dtype(self.plan.dtype))
        try:
            return network_dtype(self._array(smallest))
        except IsomorphError:
            return None  # Flax says itself what is missing


def build(plan: Plan) -> Network:
    """The plan as a ``flax.linen.Module``.

    ``linear``, ``layer_norm``, ``embedding`` and ``dropout`` are Flax's own layers.

    Args:
        plan: the network.

    Raises:
        IsomorphError: E_NAME when an input is named ``train``, which a call takes itself.
    """
    if any(name == "train" for name, _ in Plan.expect(plan).inputs):
        raise IsomorphError(
            "E_NAME",
            "an input named 'train' cannot be given to a Linen module, whose call has an argument of that name",
            hints=["give it another name"],
        )
    return Network(PreparedPlan(plan))
