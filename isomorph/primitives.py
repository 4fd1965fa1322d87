"""The small set of tensor functions that every backend implements; operators are written in them.

Beside these functions a tensor has ``.shape`` (a tuple of sizes; a compiler may make them symbolic) and
the arithmetic ``+``, ``-``, ``*`` between tensors of equal or broadcastable shape, or with a Python
number. A result has the dtype of its first tensor unless stated. The module of each backend named
``primitives`` is checked against :class:`Primitives`. Axes may be negative unless stated.

Axis legend: B batch, T (query) positions, S key positions, H heads, K key/value heads, d head width,
D model width.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from isomorph.dimensions import show_shape
from isomorph.errors import IsomorphError

Tensor = Any
"""A backend's array: ``numpy.ndarray``, ``torch.Tensor``, ``jax.Array`` or a traced value."""


class Primitives(Protocol):
    """What ``F`` offers to ``Operator.forward``."""

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """``x @ weight.T + bias``: ``[..., D_in], [D_out, D_in], [D_out] -> [..., D_out]``."""
        ...

    def conv1d(
        self, x: Tensor, weight: Tensor, bias: Tensor | None = None, *, stride: int = 1, padding: int = 0
    ) -> Tensor:
        """Cross-correlation, ``padding`` zeros at either end: ``[B, C, T], [O, C, k] -> [B, O, L]``.

        ``L = (T + 2 * padding - k) // stride + 1``, at least 1.
        """
        ...

    def conv2d(self, x: Tensor, weight: Tensor, bias: Tensor | None = None, *, stride: int = 1) -> Tensor:
        """Cross-correlation without padding: ``[B, C, H, W], [O, C, p, q] -> [B, O, H', W']``."""
        ...

    def embedding(self, ids: Tensor, weight: Tensor) -> Tensor:
        """Rows of a table: ``[...]:int64, [N, D] -> [..., D]``. An id outside 0..N-1 is E_RUNTIME."""
        ...

    def layer_norm(self, x: Tensor, weight: Tensor | None, bias: Tensor | None, *, eps: float) -> Tensor:
        """``(x - mean) / sqrt(var + eps) * weight + bias`` over the last axis, two-pass, in float32 at least."""
        ...

    def rms_norm(self, x: Tensor, weight: Tensor | None, *, eps: float, offset: float = 0.0) -> Tensor:
        """``x / sqrt(mean(x^2) + eps) * (weight + offset)`` over the last axis; squares in float32 at least."""
        ...

    def l2_normalize(self, x: Tensor, *, eps: float) -> Tensor:
        """``x / sqrt(sum(x^2) + eps)`` over the last axis, in float32 at least."""
        ...

    def attention(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None = None,
        *,
        causal: bool = False,
        window: int = 0,
        softcap: float = 0.0,
        dropout: Any = None,
    ) -> Tensor:
        """``softmax(q k^T / sqrt(d)) v``: ``[B, H, T, d], [B, K, S, d], [B, K, S, d] -> [B, H, T, d]``.

        Query head h reads key/value head ``h // (H / K)``. ``mask [B, S]`` is True where a key may be
        attended. ``causal``: key j is visible to query i when ``j <= i + S - T``. ``window > 0``: also
        ``j > i + S - T - window`` and, without ``causal``, ``j < i + S - T + window``. ``softcap > 0``:
        scores become ``softcap * tanh(scores / softcap)``. A query that may attend nothing yields zeros,
        and a hidden value (NaN and inf too) changes nothing. ``dropout`` is a child callable that drops
        attention weights, or None. Softmax in float32 at least.
        """
        ...

    def relu(self, x: Tensor) -> Tensor:
        """``max(x, 0)``; a NaN stays."""
        ...

    def silu(self, x: Tensor) -> Tensor:
        """``x * sigmoid(x)``."""
        ...

    def gelu(self, x: Tensor, approximate: str = "none") -> Tensor:
        """``0.5 x (1 + erf(x / sqrt 2))``; with ``"tanh"`` the tanh form (Hendrycks and Gimpel, 2016)."""
        ...

    def quick_gelu(self, x: Tensor) -> Tensor:
        """``x * sigmoid(1.702 x)``."""
        ...

    def tanh(self, x: Tensor) -> Tensor:
        """``tanh(x)``."""
        ...

    def exp(self, x: Tensor) -> Tensor:
        """``e ** x``."""
        ...

    def sigmoid(self, x: Tensor) -> Tensor:
        """``1 / (1 + exp(-x))``, without overflow."""
        ...

    def softmax(self, x: Tensor, axis: int = -1) -> Tensor:
        """Softmax with the maximum subtracted, in float32 at least."""
        ...

    def reshape(self, x: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Same elements, row-major; no -1."""
        ...

    def permute(self, x: Tensor, axes: tuple[int, ...]) -> Tensor:
        """Axis i of the result is axis ``axes[i]`` of x."""
        ...

    def concatenate(self, tensors: tuple[Tensor, ...], axis: int) -> Tensor:
        """The tensors one after another along an axis; all other sizes are equal."""
        ...

    def narrow(self, x: Tensor, axis: int, start: int, stop: int | None) -> Tensor:
        """Elements ``start..stop-1`` along one axis; None for the end, negative counts from the end."""
        ...

    def expand(self, x: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Axes of size 1 repeated to ``shape``; same rank."""
        ...

    def select(self, x: Tensor, mask: Tensor) -> Tensor:
        """``x`` where ``mask`` is True, zeros elsewhere: ``[B, S, D], [B, S]:bool -> [B, S, D]``.

        By selection, not by a product: a NaN or infinity where the mask is False reaches neither the result
        nor a gradient.
        """
        ...

    def take_at(self, x: Tensor, ids: Tensor, token: int) -> Tensor:
        """``x[b, p[b]]``, p the first position of ``token`` in ids: ``[B, T, D], [B, T]:int64 -> [B, D]``.

        Where no id is ``token``, p is 0. With ``token=-1``, p is the first position of the largest id. Other
        positions, NaN too, change nothing. No positions: E_RUNTIME.
        """
        ...

    def mean(self, x: Tensor, axis: int, keepdim: bool = False) -> Tensor:
        """Arithmetic mean along one axis, accumulated in float32 at least. No elements: E_RUNTIME."""
        ...

    def max(self, x: Tensor, axis: int, keepdim: bool = False) -> Tensor:
        """Largest element along one axis. No elements: E_RUNTIME."""
        ...

    def masked_pool(self, x: Tensor, mask: Tensor, mode: str) -> Tensor:
        """One vector of the positions where ``mask`` is True: ``[B, T, D], [B, T]:bool -> [B, D]``.

        ``mode`` is ``mean`` (accumulated in float32 at least), ``max``, ``first`` or ``last``. An example
        whose mask is nowhere True gives zeros. Chosen by selection, as in :meth:`select`: what stands at the
        others reaches neither the result nor a gradient. No positions (T = 0): E_RUNTIME.
        """
        ...

    def cos_sin(self, length: int, frequencies: tuple[float, ...], like: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines of ``position * frequency``: two ``[length, len(frequencies)]`` tables.

        Positions are 0..length-1; angles are float64 and rounded once, to ``like``'s dtype and device. While
        text is generated, positions are those of the new ids; rows of a batch that stand at positions of
        their own get ``[B, length, len(frequencies)]``. An operator allows for a leading axis.
        """
        ...

    def positions(self, table: Tensor, length: int) -> Tensor:
        """Rows of a table at positions 0..length-1: ``[N, D] -> [length, D]``.

        While text is generated, positions are those of the new ids, and the result may be ``[B, length, D]``,
        as for :meth:`cos_sin`. More positions than rows are E_RUNTIME.
        """
        ...


# -- what they refuse -----------------------------------------------------------------------------


def outside_table(id: int, rows: int) -> IsomorphError:
    """The error for an id that a table of ``rows`` rows does not have."""
    hint = f"ids run from 0 to {rows - 1}" if rows else "the table is empty"
    return IsomorphError("E_RUNTIME", f"id {id} is outside a table of {rows} rows", hints=[hint])


def no_elements(reduction: str, axis: int, shape: Iterable[int]) -> IsomorphError:
    """The error for a mean or maximum over an axis of no elements."""
    return IsomorphError(
        "E_RUNTIME",
        f"{reduction} over axis {axis} of a tensor {show_shape(shape)}: there are no elements",
        hints=["give an input with at least one element along that axis"],
    )


def outside_axis(axis: int, start: int, stop: int | None, shape: Iterable[int]) -> IsomorphError:
    """The error for a range that an axis does not have."""
    ends = f"{start}:" if stop is None else f"{start}:{stop}"
    return IsomorphError(
        "E_RUNTIME", f"elements {ends} are outside axis {axis} of a tensor {show_shape(shape)}"
    )
