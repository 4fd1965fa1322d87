"""The encoder block as a Linen module with Flax's default parameter scopes."""

from __future__ import annotations

import jax
from flax import linen as nn
from jax import numpy as jnp

from isomorph.errors import IsomorphError, shorten
from isomorph.flax.check import check_heads, check_input, check_sizes


class EncoderBlock(nn.Module):
    """Pre-norm encoder block: ``x1 = x + attention(norm(x)); out = x1 + feed_forward(norm(x1))``.

    Attention is bidirectional, unmasked and without dropout; the feed-forward is ``Dense(relu(Dense(z)))``
    and treats every token alone; both norms have Flax's defaults, epsilon 1e-6 among them, so that seeded
    results are Flax's own bit for bit; there is no norm at the end.

    Attributes:
        num_heads: attention heads; must divide the width D of the input.
        d_ff: inner width of the feed-forward, F.

    Scopes of the parameters: ``LayerNorm_0``, ``MultiHeadDotProductAttention_0``, ``LayerNorm_1``,
    ``Dense_0`` (kernel ``[D, F]``) and ``Dense_1`` (kernel ``[F, D]``).
    """

    num_heads: int
    d_ff: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """``[T, D]`` or ``[B, T, D]``, kept.

        Raises:
            IsomorphError: E_ARGUMENT, E_CONSTRAINT or E_RUNTIME for sizes, heads or an input that do not fit.
        """
        check_sizes(num_heads=self.num_heads, d_ff=self.d_ff)
        check_input(x, (2, 3))
        D = x.shape[-1]
        check_heads(self.num_heads, D)

        y = nn.LayerNorm()(x)  # (..., T, D)
        x1 = x + nn.MultiHeadDotProductAttention(num_heads=self.num_heads, qkv_features=D)(y)

        # One statement for each Dense: nested, the outer one would be created, and named, first.
        z = nn.LayerNorm()(x1)
        h = nn.Dense(self.d_ff)(z)  # (..., T, F)
        h = nn.relu(h)
        return x1 + nn.Dense(D)(h)  # (..., T, D)


def encoder_block_forward(seed: int, x: jax.Array, num_heads: int, d_ff: int) -> jax.Array:
    """Initialise an :class:`EncoderBlock` from a seed, apply it to ``x``, and flatten the result.

    Can be compiled with ``jax.jit(encoder_block_forward, static_argnums=(0, 2, 3))``.

    Args:
        seed: of ``jax.random.PRNGKey``.
        x: ``[T, D]``, float32.
        num_heads: attention heads; must divide D.
        d_ff: inner width of the feed-forward.

    Returns:
        A float32 array of T * D elements, features fastest.

    Raises:
        IsomorphError: E_ARGUMENT for sizes below 1 or a seed that is no int; E_CONSTRAINT when
            ``num_heads`` does not divide D; E_RUNTIME when ``x`` is not ``[T, D]`` of floating-point numbers.
    """
    check_sizes(num_heads=num_heads, d_ff=d_ff)
    check_input(x, (2,))
    check_heads(num_heads, x.shape[-1])
    try:
        seed = int(seed)
    except (TypeError, ValueError):
        raise IsomorphError("E_ARGUMENT", f"seed must be an int, got {shorten(seed)}") from None
    x = jnp.asarray(x)
    block = EncoderBlock(num_heads=num_heads, d_ff=d_ff)
    variables = block.init(jax.random.PRNGKey(seed), x)
    return jnp.asarray(block.apply(variables, x)).reshape(-1)
