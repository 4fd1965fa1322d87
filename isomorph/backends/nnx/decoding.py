"""Generation with an NNX model: see :mod:`isomorph.backends.jax.decoding`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache, reduce
from typing import Any

from flax import nnx

from isomorph.backends.jax import decoding
from isomorph.backends.jax.decoding import Array, CompiledLayout, JaxDecoder, Layers, like, slots, to_numpy
from isomorph.backends.nnx.build import Network, build
from isomorph.backends.nnx.layers import PRIMITIVES, OperatorModule, calling
from isomorph.errors import IsomorphError, shorten
from isomorph.lowering.decoding_layout import DecodingLayout
from isomorph.plan import Plan

__all__ = ["build", "inputs", "like", "plan_of", "slots", "start", "to_numpy"]


def plan_of(model: nnx.Module) -> Plan:
    if not isinstance(model, Network):
        got = shorten(type(model).__name__)
        raise IsomorphError("E_ARGUMENT", f"expected a network from isomorph.nnx.build, got {got}")
    for path, operator in decoding.composites(model.plan):
        module = reduce(getattr, path.split("."), model)
        if not isinstance(module, OperatorModule):
            raise IsomorphError(
                "E_ARGUMENT",
                f"{path} ({operator.name}) was replaced by {type(module).__name__}, which cannot take part in generation",
                hints=["replace layers such as linear inside it, or change the definition"],
            )
    return model.plan


def inputs(
    model: Network, layout: DecodingLayout, shape: tuple[int, int], given: Mapping[str, Any]
) -> dict[int, Any]:
    prepared = model._prepared
    return decoding.checked_inputs(prepared, model._dtype(), layout, shape, given)


def start(
    model: nnx.Module, layout: DecodingLayout, capacity: int, pads: Array, inputs: Mapping[int, Any]
) -> JaxDecoder:
    definition, state = nnx.split(model)
    return decoding.decoder(decoding.same_steps(_compiled(definition, layout), state), capacity, pads, inputs)


@lru_cache(maxsize=16)
def _compiled(definition: Any, layout: DecodingLayout) -> CompiledLayout:
    def bind(state: Any, primitives: Any) -> Layers:
        model = nnx.merge(definition, state)  # a copy, so that its mode may be changed
        model.eval()
        return {
            node.name: calling(getattr(model, node.name), model._tied(node), primitives or PRIMITIVES)
            for node in layout.plan.nodes
        }

    return CompiledLayout(layout, bind)
