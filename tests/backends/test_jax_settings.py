"""Settings and exports of JAX under which Flax's own layers work."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import isomorph as iso
from isomorph.testing import order_one_weights

jax = pytest.importorskip("jax")
pytest.importorskip("flax")
from jax import export  # noqa: E402

ROWS = 'x = input("B", "T", 8)\n'
MASKED = ROWS + 'mask = input("B", "T", dtype="bool")\n'
TEXTS = {
    "rotary": ROWS + 'attention(4, causal=True, kv_heads=2, rope=True, logit_softcap=2.0, qk_norm="rms_norm")\n'
    "attention(2, causal=True, window_size=3)",
    "masked": MASKED + 'h = attention(x, 2, mask=mask)\na = pool_tokens(h, "last", mask=mask)\n'
    'b = pool_tokens(h, "mean", mask=mask)\nadd(a, b)',
    "positions": ROWS + "pos_embed(40)\nsinusoidal_pos_embed()\ncls_token()\n"
    "transformer_block(2, layer_scale=True)\nmean(1)",
    "norms": ROWS + 'layer_norm()\nrms_norm()\nswiglu(8)\nattention(2, window_size=2)\npool_tokens("max")',
    "ids": 'ids = input("B", "T", dtype="int64")\nembedding(7, 8, name="wte")\npos_embed(40)\n'
    'h = linear(7, name="head", tie={"weight": "wte.weight"})\ntake_at(h, ids, -1)',
}  # fmt: skip


def networks(text: str) -> tuple[Any, dict[str, Any]]:
    """The float64 reference, and the network in both Flax interfaces, as functions of its inputs."""
    plan = iso.resolve(text)
    weights = order_one_weights(plan)
    model = iso.nnx.build(plan, weights)
    model.eval()
    module, variables = iso.linen.build(plan), iso.linen.variables(plan, weights)
    flax = {"nnx": lambda *inputs: model(*inputs), "linen": lambda *inputs: module.apply(variables, *inputs)}
    return iso.reference.build(plan, weights), flax


def inputs(text: str, B: int, T: int) -> list[Any]:
    generator = np.random.default_rng(B + T)
    drawn: dict[str, Any] = {
        "x": generator.standard_normal((B, T, 8)).astype(np.float32),
        "mask": generator.random((B, T)) < 0.7,
        "ids": generator.integers(0, 7, (B, T)).astype(np.int32),
    }
    return [drawn[line.partition(" =")[0]] for line in text.splitlines() if "input(" in line]


def close(found: Any, right: Any) -> None:
    np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("interface", ["nnx", "linen"])
@pytest.mark.parametrize("name", TEXTS)
def test_ranks_need_not_be_promoted(name, interface):
    text = TEXTS[name]
    given = inputs(text, 2, 5)
    reference, flax = networks(text)
    with jax.numpy_rank_promotion("raise"):
        close(jax.jit(flax[interface])(*given), reference(*given))
        jax.eval_shape(jax.grad(lambda x: flax[interface](x, *given[1:]).sum(), allow_int=True), given[0])


def test_layers_alone_promote_no_ranks():
    """A layer that is called by itself, and arithmetic that is not compiled."""
    text = TEXTS["norms"]
    plan = iso.resolve(text)
    model = iso.nnx.build(plan, order_one_weights(plan))
    (x,) = inputs(text, 2, 5)
    with jax.numpy_rank_promotion("raise"):
        model.n1(model.n0(x))


def test_prepared_models_and_generation_need_no_promoted_ranks():
    text = (
        'ids = input("B", "T", dtype="int64")\nembedding(7, 8)\npos_embed(20)\n'
        "transformer_block(2, causal=True)\nrms_norm()\nlinear(7)"
    )
    plan = iso.resolve(text)
    weights = order_one_weights(plan)
    model = iso.nnx.build(plan, weights)
    ids = np.array([[1, 2, 3]])
    with jax.numpy_rank_promotion("raise"):
        engine = iso.prepare(model)
        for _ in range(2):
            close(engine(ids), iso.reference.build(plan, weights)(ids))
        assert iso.generate(model, [1, 2], 3).tolist() == iso.generate(engine, [1, 2], 3).tolist()


@pytest.mark.parametrize("interface", ["nnx", "linen"])
@pytest.mark.parametrize("name", TEXTS)
def test_an_export_with_open_lengths_gives_what_the_reference_gives(name, interface):
    text = TEXTS[name]
    reference, flax = networks(text)
    B, T = export.symbolic_shape("b, t")
    shapes = [jax.ShapeDtypeStruct((B, T, *x.shape[2:]), x.dtype) for x in inputs(text, 1, 1)]
    exported = export.export(jax.jit(flax[interface]))(*shapes)
    for sizes in ((1, 1), (3, 9)):
        given = inputs(text, *sizes)
        close(exported.call(*given), reference(*given))


@pytest.mark.parametrize("length", [1, 129, 1_000_000])
def test_angles_of_an_open_length_are_those_of_a_fixed_one(length):
    """The last place of a table, against NumPy in float64: no angle is ever rounded to float32."""
    from isomorph.backends.jax import primitives

    (T,) = export.symbolic_shape("t")
    frequencies = (1.0, 0.1, 1e-4)
    like = jax.ShapeDtypeStruct((T, 1), np.float32)
    exported = export.export(jax.jit(lambda x: primitives.cos_sin(x.shape[0], frequencies, x)))(like)
    cos, sin = exported.call(np.zeros((length, 1), np.float32))
    angles = (length - 1) * np.array(frequencies)
    np.testing.assert_allclose(cos[-1], np.cos(angles), atol=5e-7)
    np.testing.assert_allclose(sin[-1], np.sin(angles), atol=5e-7)


def test_a_place_beyond_a_table_is_nan_in_an_export():
    text = ROWS + "pos_embed(40)"
    function = networks(text)[1]["nnx"]
    B, T = export.symbolic_shape("b, t")
    exported = export.export(jax.jit(function))(jax.ShapeDtypeStruct((B, T, 8), np.float32))
    result = exported.call(np.ones((1, 42, 8), np.float32))
    assert np.isnan(result[:, 40:]).all()
    assert np.isfinite(result[:, :40]).all()


def test_a_prepared_model_is_exported_as_the_model_is():
    text = ROWS + "attention(2)"
    plan = iso.resolve(text)
    model = iso.nnx.build(plan, order_one_weights(plan))
    engine = iso.prepare(model)
    B, T = export.symbolic_shape("b, t")
    exported = export.export(jax.jit(lambda x: engine(x)))(jax.ShapeDtypeStruct((B, T, 8), np.float32))
    (x,) = inputs(text, 2, 5)
    np.testing.assert_allclose(exported.call(x), model(x), atol=2e-5)
