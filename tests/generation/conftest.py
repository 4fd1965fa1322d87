"""Small causal networks of every kind that generation knows, and the same model in each framework."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import isomorph as iso
from isomorph.testing import order_one_weights

HEAD = 'ids = input("B", "T", dtype="int64")\n'
NETWORKS = {
    "learned": (
        HEAD + 'embedding(23, 12, name="wte")\npos_embed(24)\n'
        "for _ in range(2):\n    transformer_block(3, causal=True, mlp_ratio=2)\n"
        'layer_norm()\nlinear(23, bias=False, tie={"weight": "wte.weight"})\n'
    ),
    "rope": (
        HEAD + "h = embedding(23, 12)\n"
        "for _ in range(2):\n"
        "    rms_norm(h)\n"
        "    a = attention(4, causal=True, rope=True, kv_heads=2, head_dim=6, bias=False)\n"
        "    h = add(h, a)\n    rms_norm(h)\n    f = swiglu(20)\n    h = add(h, f)\n"
        "rms_norm(h)\nlinear(23, bias=False)\n"
    ),
    "window": (
        HEAD + "h = embedding(23, 12)\n"
        "for _ in range(2):\n"
        "    rms_norm(h)\n"
        "    a = attention(4, causal=True, rope=True, head_dim=4, kv_heads=1, window_size=3)\n"
        "    h = add(h, a)\n"
        "rms_norm(h)\nlinear(23)\n"
    ),
    "sinusoidal": (
        HEAD
        + "embedding(23, 12)\nsinusoidal_pos_embed()\npost_norm_block(2, causal=True, hidden=9)\nlinear(23)\n"
    ),
    "capped": (
        HEAD + "embedding(23, 12)\npos_embed(24)\n"
        'attention(2, causal=True, logit_softcap=2.0, qk_norm="rms_norm")\nlinear(23)\n'
    ),
}


@pytest.fixture
def network() -> Callable[..., tuple[Any, dict[str, Any]]]:
    """``network("rope", dtype="float64")``: a plan, and weights of order one."""

    def make(name: str, dtype: str = "float32") -> tuple[Any, dict[str, Any]]:
        plan = iso.resolve(NETWORKS[name], dtype=dtype)
        return plan, order_one_weights(plan, 3)

    return make


@pytest.fixture
def models() -> Callable[..., Any]:
    """``models(plan, weights)``: the same network in torch, NNX and Linen; with a third argument that one.

    ``prepared torch`` and the like are given by name alone.
    """
    pytest.importorskip("torch")
    pytest.importorskip("flax")
    makers: dict[str, Callable[[Any, Any], Any]] = {
        "torch": lambda plan, weights: iso.torch.build(plan, weights),
        "nnx": lambda plan, weights: iso.nnx.build(plan, weights),
        "linen": lambda plan, weights: iso.linen.build(plan).bind(iso.linen.variables(plan, weights)),
    }

    def make(plan: Any, weights: Any, framework: str = "") -> Any:
        if framework:
            model = makers[framework.removeprefix("prepared ")](plan, weights)
            return iso.prepare(model) if framework.startswith("prepared ") else model
        return {name: maker(plan, weights) for name, maker in makers.items()}

    return make
