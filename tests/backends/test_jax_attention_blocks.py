"""Attention in JAX a block of queries at a time: the numbers of the reference, whatever the blocks."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from isomorph.backends.jax import attention, primitives, writer
from isomorph.backends.jax.harness import compiled_quickly
from isomorph.backends.reference import primitives as reference

SHAPES = [(9, 9), (3, 9), (9, 3), (0, 5)]
RULES: list[dict[str, Any]] = [
    {}, {"causal": True}, {"window": 3}, {"causal": True, "window": 2}, {"causal": True, "window": 1},
    {"causal": True, "softcap": 2.0},
]  # fmt: skip


@pytest.fixture(params=[2, 4])
def blocks(request, monkeypatch) -> int:
    """How many queries a block has."""
    monkeypatch.setattr(attention, "WHOLE", 0)
    monkeypatch.setattr(attention, "_BLOCK", request.param)
    monkeypatch.setattr(attention, "_MOST_BLOCKS", 1000)
    monkeypatch.setattr(attention, "_MULTIPLE", 1)
    return request.param


def drawn(T: int, S: int, heads: int = 4, groups: int = 2) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(T * 100 + S)
    return tuple(
        rng.standard_normal((2, n, length, 6)) for n, length in ((heads, T), (groups, S), (groups, S))
    )  # type: ignore[return-value]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("masked", [False, True])
def test_blocks_give_what_the_reference_gives(shape, rule, masked, blocks):
    q, k, v = drawn(*shape)
    mask = None
    if masked:
        mask = np.random.default_rng(1).random((2, shape[1])) < 0.6
        mask[1] = False  # a row of padding alone
    expected = reference.attention(q, k, v, mask, **rule)
    with jax.enable_x64(True):
        found = primitives.attention(
            *map(jnp.asarray, (q, k, v)), None if mask is None else jnp.asarray(mask), **rule
        )
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
        if not masked:
            told = {"causal": False, "window": 0, "softcap": 0.0} | rule
            fast = writer.attend(*map(jnp.asarray, (q, k, v)), **told)
            np.testing.assert_allclose(fast, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_blocks_have_the_gradients_of_the_whole(rule, blocks, monkeypatch):
    q, k, v = drawn(9, 9)
    with jax.enable_x64(True):

        def gradients() -> Any:
            def loss(*given: Any) -> Any:
                return (primitives.attention(*given, **rule) ** 2).sum()

            return compiled_quickly(jax.grad(loss, (0, 1, 2)))(q, k, v)

        in_blocks = gradients()
        monkeypatch.setattr(attention, "WHOLE", 1 << 30)
        for a, b in zip(in_blocks, gradients(), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_stays_with_those_who_see_it(bad, blocks):
    q, k, v = drawn(9, 9)
    clean = reference.attention(q, k, v, causal=True)
    v[:, :, 5, 0] = bad
    with jax.enable_x64(True):
        found = np.asarray(primitives.attention(*map(jnp.asarray, (q, k, v)), causal=True))
    np.testing.assert_allclose(found[:, :, :5], clean[:, :, :5], atol=1e-12)
    np.testing.assert_allclose(found[..., 1:], clean[..., 1:], atol=1e-12)
    assert not np.isfinite(found[:, :, 5:, 0]).any()


def test_long_queries_are_taken_in_blocks():
    """300 x 300 scores are more than 2 ** 16: three blocks of 128, 128 and 44 rows, each with the keys it may see."""
    q = jnp.zeros((1, 1, 300, 4))
    jaxpr = jax.make_jaxpr(lambda q: attention.attend_in_blocks(q, q, q, None, causal=True, window=0))(q)
    shapes = [e.outvars[0].aval.shape[-2:] for e in jaxpr.eqns if e.primitive.name == "exp"]
    assert shapes == [(128, 128), (128, 256), (44, 300)]


@pytest.mark.parametrize(("first", "groups"), [(1e20, 1), (1e19, 1), (1e20, 2)])
def test_nobody_sees_the_future_because_the_present_overflows(first, groups):
    """The first query times its key is -1e40 or -1e38; later scores are larger, and must not come in their place."""
    q, k = (jnp.asarray(x, jnp.float32).reshape(1, 1, 3, 1) for x in ([-first, 1, 1], [first, 1, 1]))
    v = jnp.arange(3.0).reshape(1, 1, 3, 1)
    quick = writer.attend(jnp.repeat(q, groups, 1), k, v, causal=True, window=0, softcap=0.0)
    seen = float(quick[0, 0, 0, 0])
    assert seen == 0.0 or not np.isfinite(seen)


def test_a_hidden_score_that_overflows_is_noticed_by_the_sum():
    """The second query times the third key is 1e40, which is no float32 and hidden: the quick form must say so."""
    q, k = (jnp.asarray(x, jnp.float32).reshape(1, 1, 3, 1) for x in ([1, 1e20, 1], [1, 1, 1e20]))
    v = jnp.arange(3.0).reshape(1, 1, 3, 1)
    careful = primitives.attention(q, k, v, causal=True)
    assert careful[0, 0, :, 0].tolist() == [0.0, 0.5, 2.0]
    quick = writer.attend(q, k, v, causal=True, window=0, softcap=0.0)
    assert not bool(jnp.isfinite(quick.sum()))
