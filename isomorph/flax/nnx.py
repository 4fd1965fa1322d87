"""The encoder block as an NNX module."""

from __future__ import annotations

import jax  # noqa: TC002  (an example to copy)
from flax import nnx

from isomorph.flax.check import check_heads, check_input, check_sizes


class SelfAttention(nnx.Module):
    """Bidirectional multi-head self-attention with four D-to-D projections.

    Args:
        d_model: width of the input and the output, D.
        num_heads: heads; must divide D.
        rngs: Flax's streams, of which ``params`` draws the parameters.
    """

    def __init__(self, d_model: int, num_heads: int, *, rngs: nnx.Rngs) -> None:
        self.num_heads = num_heads
        self.query = nnx.Linear(d_model, d_model, rngs=rngs)
        self.key = nnx.Linear(d_model, d_model, rngs=rngs)
        self.value = nnx.Linear(d_model, d_model, rngs=rngs)
        self.out = nnx.Linear(d_model, d_model, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        heads = (*x.shape[:-1], self.num_heads, x.shape[-1] // self.num_heads)
        q = self.query(x).reshape(heads)  # (..., T, H, Dh)
        k = self.key(x).reshape(heads)
        v = self.value(x).reshape(heads)
        y = nnx.dot_product_attention(q, k, v)  # (..., T, H, Dh), scores scaled by 1/sqrt(Dh)
        return self.out(y.reshape(x.shape))  # (..., T, D)


class EncoderBlock(nnx.Module):
    """Pre-norm encoder block: ``h = x + attention(norm(x)); out = h + ff2(relu(ff1(norm(h))))``.

    Attention is bidirectional and unmasked; both norms have Flax's epsilon, 1e-6, and take the variance after
    the mean (Flax's faster form cancels where the mean is large); there is no dropout, no position
    information and no norm at the end.

    Args:
        d_model: width of the input and the output, D.
        num_heads: attention heads; must divide D.
        d_ff: inner width of the feed-forward, which need not exceed D.
        rngs: Flax's streams, of which ``params`` draws the parameters.

    Raises:
        IsomorphError: E_ARGUMENT for sizes below 1, E_CONSTRAINT when ``num_heads`` does not divide D.
    """

    def __init__(self, d_model: int, num_heads: int, d_ff: int, *, rngs: nnx.Rngs) -> None:
        check_sizes(d_model=d_model, num_heads=num_heads, d_ff=d_ff)
        check_heads(num_heads, d_model)
        self.d_model = d_model
        self.layer_norm_1 = nnx.LayerNorm(d_model, use_fast_variance=False, rngs=rngs)
        self.attention = SelfAttention(d_model, num_heads, rngs=rngs)
        self.layer_norm_2 = nnx.LayerNorm(d_model, use_fast_variance=False, rngs=rngs)
        self.ff1 = nnx.Linear(d_model, d_ff, rngs=rngs)
        self.ff2 = nnx.Linear(d_ff, d_model, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """``[T, D]`` or ``[B, T, D]``, kept; E_RUNTIME for anything else."""
        check_input(x, (2, 3), self.d_model)
        h = x + self.attention(self.layer_norm_1(x))
        return h + self.ff2(nnx.relu(self.ff1(self.layer_norm_2(h))))
