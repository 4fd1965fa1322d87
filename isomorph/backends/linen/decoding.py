"""Generation with a bound Linen module: see :mod:`isomorph.backends.jax.decoding`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from isomorph.backends.jax import decoding
from isomorph.backends.jax.decoding import Array, CompiledLayout, JaxDecoder, Layers, like, slots, to_numpy
from isomorph.backends.linen.build import Network
from isomorph.backends.linen.build import build as unbound
from isomorph.backends.linen.layers import PRIMITIVES, calling
from isomorph.backends.linen.weights import variables
from isomorph.errors import IsomorphError, shorten
from isomorph.lowering.decoding_layout import DecodingLayout
from isomorph.plan import Plan

if TYPE_CHECKING:
    from flax import linen as nn

__all__ = ["build", "inputs", "like", "plan_of", "slots", "start", "to_numpy"]


def build(plan: Plan, weights: Mapping[str, Any]) -> nn.Module:
    """A module bound to the weights."""
    return unbound(plan).bind(variables(plan, weights))


def plan_of(model: nn.Module) -> Plan:
    if not isinstance(model, Network) or model.scope is None:
        got = "one without variables" if isinstance(model, Network) else shorten(type(model).__name__)
        raise IsomorphError(
            "E_ARGUMENT",
            f"expected a bound module, got {got}",
            hints=[
                "module = isomorph.linen.build(plan); module.bind(isomorph.linen.variables(plan, weights))"
            ],
        )
    return model.plan


def inputs(
    model: Network, layout: DecodingLayout, shape: tuple[int, int], given: Mapping[str, Any]
) -> dict[int, Any]:
    prepared = model.prepared
    return decoding.checked_inputs(prepared, model._dtype(), layout, shape, given)


def start(
    model: nn.Module, layout: DecodingLayout, capacity: int, pads: Array, inputs: Mapping[int, Any]
) -> JaxDecoder:
    module, variables = model.unbind()
    return decoding.decoder(decoding.same_steps(_compiled(module, layout), variables), capacity, pads, inputs)


@lru_cache(maxsize=16)
def _compiled(module: Any, layout: DecodingLayout) -> CompiledLayout:
    def bind(variables: Any, primitives: Any) -> Layers:
        bound = module.bind(variables)
        return {
            node.name: calling(getattr(bound, node.name), False, bound._tied(node), primitives or PRIMITIVES)
            for node in layout.plan.nodes
        }

    return CompiledLayout(layout, bind)
