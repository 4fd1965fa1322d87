"""Weights of the two plain Flax blocks to and from those of an ``encoder_block`` node.

On the plan's side: NumPy arrays by parameter path, ``n0.attn.q_proj.weight`` and so on, with linear weights
``[out, in]``. On Flax's side: the Linen block's ``variables``, or the NNX block itself. Each layout is a table
that states the axis order of every parameter; copies are made both ways, bit for bit.

Axis legend: D model width, F inner width, H heads, h = D/H head width.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import reduce
from typing import Any, NamedTuple

import jax
import numpy as np

from isomorph.backends.jax.weights import to_jax, to_numpy, to_plan
from isomorph.dimensions import show_shape
from isomorph.errors import IsomorphError, shorten
from isomorph.flax.nnx import EncoderBlock
from isomorph.plan import Plan
from isomorph.weights.convert import owned_weights

Tree = dict[str, Any]


class Entry(NamedTuple):
    """Where a block keeps a parameter, and how to bring it into the plan's axis order and back.

    Attributes:
        path: keys or attributes to follow.
        to_plan: from the block's array to the plan's.
        to_flax: back again, given the number of heads.
    """

    path: tuple[str, ...]
    to_plan: Callable[[np.ndarray], np.ndarray]
    to_flax: Callable[[np.ndarray, int], np.ndarray]


def _same(*path: str) -> Entry:
    return Entry(path, lambda a: a, lambda a, heads: a)


def _kernel(*path: str) -> Entry:
    """Flax ``[in, out]``, plan ``[out, in]``."""
    return Entry(path, lambda a: a.T, lambda a, heads: a.T)


def _split_kernel(*path: str) -> Entry:
    """Flax ``[D, H, h]``, plan ``[H*h, D]``."""
    return Entry(
        path,
        lambda a: a.reshape(a.shape[0], -1).T,
        lambda a, heads: a.T.reshape(a.shape[1], heads, -1),
    )


def _split_bias(*path: str) -> Entry:
    """Flax ``[H, h]``, plan ``[H*h]``."""
    return Entry(path, lambda a: a.reshape(-1), lambda a, heads: a.reshape(heads, -1))


def _join_kernel(*path: str) -> Entry:
    """Flax ``[H, h, D]``, plan ``[D, H*h]``."""
    return Entry(
        path,
        lambda a: a.reshape(-1, a.shape[-1]).T,
        lambda a, heads: a.T.reshape(heads, -1, a.shape[0]),
    )


_ATTENTION = "MultiHeadDotProductAttention_0"

LINEN: dict[str, Entry] = {
    "norm1.weight": _same("LayerNorm_0", "scale"),
    "norm1.bias": _same("LayerNorm_0", "bias"),
    "attn.q_proj.weight": _split_kernel(_ATTENTION, "query", "kernel"),
    "attn.q_proj.bias": _split_bias(_ATTENTION, "query", "bias"),
    "attn.k_proj.weight": _split_kernel(_ATTENTION, "key", "kernel"),
    "attn.k_proj.bias": _split_bias(_ATTENTION, "key", "bias"),
    "attn.v_proj.weight": _split_kernel(_ATTENTION, "value", "kernel"),
    "attn.v_proj.bias": _split_bias(_ATTENTION, "value", "bias"),
    "attn.o_proj.weight": _join_kernel(_ATTENTION, "out", "kernel"),
    "attn.o_proj.bias": _same(_ATTENTION, "out", "bias"),
    "norm2.weight": _same("LayerNorm_1", "scale"),
    "norm2.bias": _same("LayerNorm_1", "bias"),
    "ffn.up.weight": _kernel("Dense_0", "kernel"),
    "ffn.up.bias": _same("Dense_0", "bias"),
    "ffn.down.weight": _kernel("Dense_1", "kernel"),
    "ffn.down.bias": _same("Dense_1", "bias"),
}
"""The Linen block's parameters by path inside the ``encoder_block`` operator."""

NNX: dict[str, Entry] = {
    "norm1.weight": _same("layer_norm_1", "scale"),
    "norm1.bias": _same("layer_norm_1", "bias"),
    "attn.q_proj.weight": _kernel("attention", "query", "kernel"),
    "attn.q_proj.bias": _same("attention", "query", "bias"),
    "attn.k_proj.weight": _kernel("attention", "key", "kernel"),
    "attn.k_proj.bias": _same("attention", "key", "bias"),
    "attn.v_proj.weight": _kernel("attention", "value", "kernel"),
    "attn.v_proj.bias": _same("attention", "value", "bias"),
    "attn.o_proj.weight": _kernel("attention", "out", "kernel"),
    "attn.o_proj.bias": _same("attention", "out", "bias"),
    "norm2.weight": _same("layer_norm_2", "scale"),
    "norm2.bias": _same("layer_norm_2", "bias"),
    "ffn.up.weight": _kernel("ff1", "kernel"),
    "ffn.up.bias": _same("ff1", "bias"),
    "ffn.down.weight": _kernel("ff2", "kernel"),
    "ffn.down.bias": _same("ff2", "bias"),
}
"""The NNX block's parameters by path inside the ``encoder_block`` operator."""


def linen_variables(plan: Plan, weights: Mapping[str, Any], node: str = "n0") -> Tree:
    """An ``encoder_block`` node's weights as the Linen block's variables, ``{"params": ...}``.

    Args:
        plan: the network.
        weights: arrays by parameter path; those of other nodes are passed over.
        node: the node's name.

    Raises:
        IsomorphError: E_WEIGHTS listing every missing, unexpected and misshapen entry; E_ARGUMENT when the
            node is no ``encoder_block`` with Flax's epsilon, 1e-6.
    """
    heads = _heads(plan, node)
    params: Tree = {}
    for path, array in _node_weights(plan, weights, node).items():
        entry = LINEN[path]
        inner = params
        for key in entry.path[:-1]:
            inner = inner.setdefault(key, {})
        inner[entry.path[-1]] = _to_jax(entry, array, heads)
    return {"params": params}


def linen_weights(plan: Plan, variables: Mapping[str, Any], node: str = "n0") -> dict[str, np.ndarray]:
    """The Linen block's variables as the weights of an ``encoder_block`` node, by parameter path.

    Raises:
        IsomorphError: E_WEIGHTS listing every missing, unexpected and misshapen entry by Flax's path;
            E_ARGUMENT as in :func:`linen_variables`, or without a ``"params"`` collection.
    """
    if not isinstance(variables, Mapping) or not isinstance(variables.get("params"), Mapping):
        raise IsomorphError(
            "E_ARGUMENT",
            f'variables must be a mapping with a "params" collection, got {shorten(variables)}',
        )
    leaves, _ = jax.tree.flatten_with_path(dict(variables["params"]))
    arrays = {tuple(str(key.key) for key in path): array for path, array in leaves}
    return _to_weights(plan, node, LINEN, arrays)


def load_nnx(block: EncoderBlock, plan: Plan, weights: Mapping[str, Any], node: str = "n0") -> None:
    """Copy an ``encoder_block`` node's weights into the NNX block, which must have the same sizes.

    Raises:
        IsomorphError: E_WEIGHTS and E_ARGUMENT as in :func:`linen_variables`; E_WEIGHTS when the block has
            other sizes. Nothing is changed unless everything fits.
    """
    heads = _heads(plan, node)
    fitting = _node_weights(plan, weights, node)
    nnx_weights(block, plan, node)  # refuses a block of other sizes
    for path, array in fitting.items():
        _variable(block, NNX[path].path).set_value(_to_jax(NNX[path], array, heads))


def nnx_weights(block: EncoderBlock, plan: Plan, node: str = "n0") -> dict[str, np.ndarray]:
    """The NNX block's parameters as the weights of an ``encoder_block`` node, by parameter path.

    Raises:
        IsomorphError: E_WEIGHTS when the block has other sizes than the node; E_ARGUMENT as in
            :func:`linen_variables`.
    """
    return _to_weights(plan, node, NNX, _nnx_arrays(block, plan, node))


# -- both directions -------------------------------------------------------------------------------


def _heads(plan: Plan, node: str) -> int:
    operator = next((each.operator for each in plan.nodes if each.name == node), None)
    if operator is None or operator.name != "encoder_block":
        got = "there is no such node" if operator is None else f"it is {operator!r}"
        raise IsomorphError("E_ARGUMENT", f"node {shorten(node)} must be an encoder_block: {got}")
    arguments = operator.argument_values
    if arguments["eps"] != 1e-6:
        raise IsomorphError(
            "E_ARGUMENT", f"node {node}: Flax's blocks have eps=1e-6, the node has eps={arguments['eps']!r}"
        )
    return arguments["heads"]


def _node_weights(plan: Plan, weights: Mapping[str, Any], node: str) -> dict[str, Any]:
    """One node's arrays by path inside it, checked; a tied one is read from its owner."""
    block = plan.node(node)
    alone = replace(plan, nodes=(replace(block, tie={}),))
    given = {path: array for path, array in weights.items() if path.startswith(node + ".")}
    for path, owner in block.tie.items():
        if owner in weights:
            given.setdefault(f"{node}.{path}", weights[owner])
    return {path[len(node) + 1 :]: array for path, array in owned_weights(alone, given).items()}


def _to_jax(entry: Entry, array: Any, heads: int) -> jax.Array:
    given = to_numpy(array)
    return to_jax(entry.to_flax(given, heads), given.dtype.name)


def _to_weights(
    plan: Plan, node: str, table: Mapping[str, Entry], arrays: Mapping[tuple[str, ...], Any]
) -> dict[str, np.ndarray]:
    """Plan-layout copies of a block's arrays; E_WEIGHTS unless they are exactly those of the table."""
    heads, expected = _heads(plan, node), plan.node(node).operator.all_parameters
    shapes = {table[p].path: table[p].to_flax(np.empty(s.shape), heads).shape for p, s in expected.items()}
    faults = [
        f"missing: {'.'.join(path)} {show_shape(s)}" for path, s in shapes.items() if path not in arrays
    ]
    for path, array in arrays.items():
        got = show_shape(np.shape(array))
        if path not in shapes:
            faults.append(f"unexpected: {'.'.join(path)} {got}")
        elif np.shape(array) != shapes[path]:
            wanted = show_shape(shapes[path])
            faults.append(f"misshapen: {'.'.join(path)}: expected {wanted}, got {got}")
    if faults:
        raise IsomorphError("E_WEIGHTS", f"the block's parameters do not fit node {node}", hints=faults)
    return {f"{node}.{p}": to_plan(table[p].to_plan(np.asarray(arrays[table[p].path]))) for p in expected}


def _nnx_arrays(block: EncoderBlock, plan: Plan, node: str) -> dict[tuple[str, ...], jax.Array]:
    heads = _heads(plan, node)
    if block.attention.num_heads != heads:
        raise IsomorphError(
            "E_WEIGHTS",
            f"the block's parameters do not fit node {node}",
            hints=[f"the block has {block.attention.num_heads} heads, the node {heads}"],
        )
    return {entry.path: _variable(block, entry.path)[...] for entry in NNX.values()}


def _variable(block: EncoderBlock, path: tuple[str, ...]) -> Any:
    return reduce(getattr, path, block)
