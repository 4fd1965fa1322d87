"""The text of a prepared function in JAX, what it calls, and what its compiler is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax import lax
from jax import numpy as jnp

from isomorph.backends.composing import Read, Writer, keywords, shape_text
from isomorph.backends.jax import attention, primitives
from isomorph.backends.jax.arithmetic import PRECISION
from isomorph.backends.jax.compiling import known_options
from isomorph.backends.jax.engine_weights import Kept
from isomorph.lowering import derived
from isomorph.lowering.derived import Weight
from isomorph.lowering.rewrite import Op, Rewritten

Tensor = jax.Array


def compiler_options() -> tuple[tuple[str, Any], ...]:
    """Those that help, as far as they are known."""
    return known_options(("xla_cpu_prefer_vector_width", 512))


class JaxWriter(Writer):
    """See :class:`isomorph.backends.composing.Writer`.

    Args:
        keys: the derived weights.
        weights: their arrays, in the same order.
        dtype: the model's.
        narrow: whether products take a narrower dtype than the rest.
        sums: a list that the sum of every causal attention is added to; without one, attention keeps what
            is not finite from who must not see it.
        remembering: whether causal attention and positions are those of a memory, the argument ``M``.
    """

    def __init__(
        self,
        keys: Mapping[Kept, bool],
        weights: Sequence[Tensor],
        dtype: Any,
        narrow: bool,
        *,
        sums: list[Tensor] | None = None,
        remembering: bool = False,
    ) -> None:
        self._places = {kept: place for place, kept in enumerate(keys)}
        self._dtype, self._remembering, self._summing = dtype, remembering, sums is not None
        self._calls = 0
        self.scope: dict[str, Any] = {
            "P": primitives, "W": weights, "product": product, "heads": heads, "jnp": jnp,
            "S": sums, "summed": summed,
            "attend": attend_narrow if narrow else attend,
        }  # fmt: skip

    def parameter(self, path: str) -> str:
        return self.weight(derived.Stored(path))

    def weight(self, weight: Weight | None) -> str:
        return "None" if weight is None else f"W[{self._places[Kept(weight, False)]}]"

    def _embedding(self, op: Op, read: Read, program: Rewritten) -> str:
        return f"P.embedding({', '.join(map(read, op.inputs))}).astype({self._dtype.name!r})"

    def _reshape(self, op: Op, read: Read, program: Rewritten) -> str:
        return f"{read(op.inputs[0])}.reshape({shape_text(program.shapes[op.outputs[0]])})"

    def _expand(self, op: Op, read: Read, program: Rewritten) -> str:
        return f"P.expand({read(op.inputs[0])}, {shape_text(program.shapes[op.outputs[0]])})"

    def _cos_sin(self, op: Op, read: Read, program: Rewritten) -> str:
        like = f"jnp.zeros(0, {self._dtype.name!r})"
        owner = "M" if self._remembering else "P"
        return f"{owner}.cos_sin({op.attributes['length']}, {op.attributes['frequencies']!r}, {like})"

    def _positions(self, op: Op, read: Read, program: Rewritten) -> str:
        owner = "M" if self._remembering else "P"
        return f"{owner}.positions({read(op.inputs[0])}, {op.attributes['length']})"

    def _heads(self, op: Op, read: Read, program: Rewritten) -> str:
        shape, parts = op.attributes["shape"], op.attributes["parts"]
        return f"heads({read(op.inputs[0])}, {shape_text(shape)}, {parts})"

    def _layer_norm(self, op: Op, read: Read, program: Rewritten) -> str:
        x, weight, bias = self._norm(op, read)
        return f"P.layer_norm({x}, {weight}, {bias}, eps={op.attributes['eps']!r})"

    def _attention(self, op: Op, read: Read, program: Rewritten) -> str:
        rule = {name: value for name, value in op.attributes.items() if name != "mask"}
        tensors = ", ".join(map(read, op.inputs))
        if self._remembering and rule["causal"]:
            del rule["causal"]
            call, self._calls = self._calls, self._calls + 1
            return f"M.attend({call}, {tensors}{keywords(rule)})"
        hides = bool(rule["causal"] or rule["window"])
        if op.attributes["mask"] or (hides and not self._summing):
            return f"P.attention({tensors}{keywords(rule)})"
        text = f"attend({tensors}{keywords(rule)})"
        return f"summed({text}, S)" if hides else text

    def _linear(self, op: Op, read: Read, program: Rewritten) -> str:
        if op.weight is None:
            return f"P.linear({', '.join(map(read, op.inputs))})"
        place = self._places.get(Kept(op.weight, True))
        weight, axis = (self.weight(op.weight), 1) if place is None else (f"W[{place}]", 0)
        text = f"product({read(op.inputs[0])}, {weight}, {self.weight(op.bias)}, {axis})"
        if op.activation is not None:
            name, attributes = op.activation
            return f"P.{name}({text}{keywords(dict(attributes))})"
        return text if op.residual is None else f"{text} + {read(op.residual)}"


def summed(x: Tensor, sums: list[Tensor]) -> Tensor:
    """The tensor, its sum added to a list; a sum too large to represent is not finite either."""
    sums.append(x.astype(jnp.promote_types(x.dtype, jnp.float32)).sum())
    return x


def product(x: Tensor, weight: Tensor, bias: Tensor | None, axis: int) -> Tensor:
    """``x`` times a weight along its ``axis``, plus a bias.

    A narrow weight makes the product narrow, and the result is as wide as ``x``.
    """
    if weight.dtype == x.dtype:
        axes = (((x.ndim - 1,), (axis,)), ((), ()))
        out = lax.dot_general(x, weight, axes, precision=PRECISION)
    else:
        narrow = x.astype(weight.dtype).reshape(-1, x.shape[-1])
        single = len(narrow) == 1  # the CPU compiler has a kernel for two rows, and a slow loop for one
        rows = jnp.repeat(narrow, 2, 0) if single else narrow
        axes = (((1,), (axis,)), ((), ()))
        out = lax.dot_general(rows, weight, axes, preferred_element_type=x.dtype)
        out = (out[:1] if single else out).reshape(*x.shape[:-1], out.shape[1])
    return out if bias is None else out + bias


def heads(x: Tensor, shape: tuple[int, int, int, int], parts: int) -> tuple[Tensor, ...]:
    """``[B, T, n * H * d]`` as n times ``[B, H, T, d]``."""
    B, T, H, d = shape
    split = x.reshape(B, T, parts, H, d)
    return tuple(jnp.swapaxes(split[:, :, part], 1, 2) for part in range(parts))


def attend(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, window: int, softcap: float) -> Tensor:
    """Attention without a mask; who calls it looks whether the results are finite, see :func:`summed`."""
    if k.shape[2] == 0:
        return jnp.zeros_like(q)
    return attention.attend_in_blocks(
        q, k, v, None, causal=causal, window=window, softcap=softcap, adding=True
    )


def attend_narrow(q: Tensor, k: Tensor, v: Tensor, **rule: Any) -> Tensor:
    """The same with products of half precision; the softmax stays wide."""
    narrow = (tensor.astype(jnp.bfloat16) for tensor in (q, k, v))
    return attend(*narrow, **rule).astype(q.dtype)
