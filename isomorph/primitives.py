"""The small set of tensor functions that every backend implements, and all that is known of each.

Operators are written in them. Beside these functions a tensor has ``.shape`` (a tuple of sizes; a compiler may make
them symbolic) and the arithmetic ``+``, ``-``, ``*`` between tensors of equal or broadcastable shape, or with a
Python number. A result has the dtype of its first tensor unless stated. The module of each backend named
``primitives`` is checked against :class:`Primitives`. Axes may be negative unless stated.

A primitive's entry is its method: signature and meaning, and as its body the shape of its result and what it costs,
recorded as a step by whoever records (``tensor.recorder``); :class:`Acts` says how it acts. Sizes may be symbolic
there: what only numbers tell is asked of numbers alone.

How operations are counted: a multiplication, an addition, a comparison and a call of exp, tanh, erf, sqrt, sin or cos
are one each, so that a matrix product of ``[M, K]`` and ``[K, N]`` is ``2 M N K``. What a causal or windowed attention
need not compute is not taken off. Moving data (``reshape``, ``embedding``) is free.

Axis legend: B batch, T (query) positions, S key positions, H heads, K key/value heads, d head width,
D model width, C input channels, p and q the sides of a kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from math import prod
from typing import Any, Protocol, TypeVar

from isomorph.dimensions import show_shape
from isomorph.errors import IsomorphError

Tensor = Any
"""A backend's array: ``numpy.ndarray``, ``torch.Tensor``, ``jax.Array`` or a traced value."""
Cost = Callable[[], tuple[int, int]]
"""Operations, and the length of the longest sum behind a number of the result (1 for none); asked where sizes are known."""

SOFTMAX_FLOPS = 5  # per element: compare, subtract, exp, add to the sum, divide
SOFTCAP_FLOPS = 3  # divide, tanh, multiply
LAYER_NORM_FLOPS = 5  # add to the mean, subtract it, square, add to the variance, divide
RMS_NORM_FLOPS = 3  # square, add, divide
SIGMOID_FLOPS = 4  # negate, exp, add, divide
GELU_FLOPS = 5  # divide, erf, add, multiply, multiply
GELU_TANH_FLOPS = 9  # cube (2), multiply, add, multiply, tanh, add, multiply, multiply
COS_SIN_FLOPS = 3  # multiply, cos, sin


class Acts(Enum):
    """On what of its first tensor each number of a result depends."""

    EACH = "one element"
    ROWS = "one vector along the last axis"
    AXIS = "one vector along the axis of its attribute"
    MOVES = "one element, which stands elsewhere"
    ALL = "anything"
    PLACES = "no element: a table of positions, or a part of one"


_Function = TypeVar("_Function", bound=Callable[..., Any])


def acts(how: Acts) -> Callable[[_Function], _Function]:
    """Say of an entry how it acts."""

    def mark(entry: _Function) -> _Function:
        entry.acts = how  # type: ignore[attr-defined]
        return entry

    return mark


def acts_of(primitive: str) -> Acts | None:
    """How a primitive acts; None for arithmetic."""
    return getattr(getattr(Primitives, primitive, None), "acts", None)


class Recorder(Protocol):
    """Who takes down steps."""

    def record(
        self,
        primitive: str,
        inputs: Sequence[Tensor | None],
        shapes: Sequence[Sequence[Any]],
        attributes: Mapping[str, Any] | None = None,
        *,
        cost: Cost | None = None,
        dtype: str | None = None,
        view: bool = False,
    ) -> tuple[Tensor, ...]:
        """Add a step; the tensors that it makes.

        Args:
            primitive: its name, or ``add``, ``subtract``, ``multiply``.
            inputs: its tensors in order, None for an absent one.
            shapes: of its results.
            attributes: everything else that it was called with, by name.
            cost: None for what is free.
            dtype: of the results; the first tensor's unless stated.
            view: whether a result is its input's memory seen otherwise.
        """
        ...


class RecordedTensor:
    """A tensor without numbers: ``+``, ``-`` and ``*`` with another one, or with a number, are steps of its recorder."""

    __slots__ = ()
    recorder: Any

    def __add__(self, other: Tensor) -> Tensor:
        return self.recorder.combine("add", self, other)

    def __radd__(self, other: float) -> Tensor:
        return self.recorder.combine("add", other, self)

    def __sub__(self, other: Tensor) -> Tensor:
        return self.recorder.combine("subtract", self, other)

    def __rsub__(self, other: float) -> Tensor:
        return self.recorder.combine("subtract", other, self)

    def __mul__(self, other: Tensor) -> Tensor:
        return self.recorder.combine("multiply", self, other)

    def __rmul__(self, other: float) -> Tensor:
        return self.recorder.combine("multiply", other, self)


class Primitives(Protocol):
    """What ``F`` offers to ``Operator.forward``."""

    @acts(Acts.ROWS)
    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """``x @ weight.T + bias``: ``[..., D_in], [D_out, D_in], [D_out] -> [..., D_out]``."""
        D_out, D_in = weight.shape
        _check(
            "linear", not _differ(x.shape[-1], D_in) and (bias is None or bias.shape == (D_out,)), x, weight
        )
        shape = (*x.shape[:-1], D_out)
        return _step(
            "linear", (x, weight, bias), shape, cost=lambda: (prod(shape) * (2 * D_in + _one(bias)), D_in)
        )

    @acts(Acts.ALL)
    def conv1d(
        self, x: Tensor, weight: Tensor, bias: Tensor | None = None, *, stride: int = 1, padding: int = 0
    ) -> Tensor:
        """Cross-correlation, ``padding`` zeros at either end: ``[B, C, T], [O, C, k] -> [B, O, L]``.

        ``L = (T + 2 * padding - k) // stride + 1``, at least 1.
        """
        B, C, T = x.shape
        D, channels, k = weight.shape
        length = T + 2 * padding
        _check("conv1d", channels == C and not _short(length, k), x, weight)
        shape, options = (B, D, (length - k) // stride + 1), {"stride": stride, "padding": padding}
        cost = lambda: (prod(shape) * (2 * C * k + _one(bias)), C * k)  # noqa: E731
        return _step("conv1d", (x, weight, bias), shape, options, cost=cost)

    @acts(Acts.ALL)
    def conv2d(self, x: Tensor, weight: Tensor, bias: Tensor | None = None, *, stride: int = 1) -> Tensor:
        """Cross-correlation without padding: ``[B, C, H, W], [O, C, p, q] -> [B, O, H', W']``."""
        B, C, H, W = x.shape
        D, channels, p, q = weight.shape
        _check("conv2d", channels == C and not _short(H, p) and not _short(W, q), x, weight)
        shape = (B, D, (H - p) // stride + 1, (W - q) // stride + 1)
        cost = lambda: (prod(shape) * (2 * C * p * q + _one(bias)), C * p * q)  # noqa: E731
        return _step("conv2d", (x, weight, bias), shape, {"stride": stride}, cost=cost)

    @acts(Acts.EACH)
    def embedding(self, ids: Tensor, weight: Tensor) -> Tensor:
        """Rows of a table: ``[...]:int64, [N, D] -> [..., D]``. An id outside 0..N-1 is E_RUNTIME."""
        return _step("embedding", (ids, weight), (*ids.shape, weight.shape[1]), dtype=weight.dtype)

    @acts(Acts.ROWS)
    def layer_norm(self, x: Tensor, weight: Tensor | None, bias: Tensor | None, *, eps: float) -> Tensor:
        """``(x - mean) / sqrt(var + eps) * weight + bias`` over the last axis, two-pass, in float32 at least."""
        options = {"eps": eps, "weight": weight is not None, "bias": bias is not None}
        each = LAYER_NORM_FLOPS + _one(weight) + _one(bias)
        return _step("layer_norm", (x, weight, bias), x.shape, options, cost=_of_rows(x, each))

    @acts(Acts.ROWS)
    def rms_norm(self, x: Tensor, weight: Tensor | None, *, eps: float, offset: float = 0.0) -> Tensor:
        """``x / sqrt(mean(x^2) + eps) * (weight + offset)`` over the last axis; squares in float32 at least."""
        options = {"eps": eps, "offset": offset}
        return _step(
            "rms_norm", (x, weight), x.shape, options, cost=_of_rows(x, RMS_NORM_FLOPS + _one(weight))
        )

    @acts(Acts.ROWS)
    def l2_normalize(self, x: Tensor, *, eps: float) -> Tensor:
        """``x / sqrt(sum(x^2) + eps)`` over the last axis, in float32 at least."""
        return _step("l2_normalize", (x,), x.shape, {"eps": eps}, cost=_of_rows(x, RMS_NORM_FLOPS))

    @acts(Acts.ALL)
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
        B, H, T, d = q.shape
        K, S = k.shape[1:3]
        fits = k.shape == v.shape == (B, K, S, d) and H % K == 0 and (mask is None or mask.shape == (B, S))
        _check("attention", fits, q, k, v)
        options = {"causal": causal, "window": window, "softcap": softcap, "mask": mask is not None}
        each = 4 * d + SOFTMAX_FLOPS + (SOFTCAP_FLOPS if softcap else 0)  # of a score
        cost = lambda: (B * H * T * S * each, d if d > S else S)  # noqa: E731
        return _step("attention", (q, k, v, mask), q.shape, options, cost=cost)

    @acts(Acts.EACH)
    def relu(self, x: Tensor) -> Tensor:
        """``max(x, 0)``; a NaN stays."""
        return _of_each("relu", x, 1)

    @acts(Acts.EACH)
    def silu(self, x: Tensor) -> Tensor:
        """``x * sigmoid(x)``."""
        return _of_each("silu", x, SIGMOID_FLOPS + 1)

    @acts(Acts.EACH)
    def gelu(self, x: Tensor, approximate: str = "none") -> Tensor:
        """``0.5 x (1 + erf(x / sqrt 2))``; with ``"tanh"`` the tanh form (Hendrycks and Gimpel, 2016)."""
        each = GELU_TANH_FLOPS if approximate == "tanh" else GELU_FLOPS
        return _of_each("gelu", x, each, approximate=approximate)

    @acts(Acts.EACH)
    def quick_gelu(self, x: Tensor) -> Tensor:
        """``x * sigmoid(1.702 x)``."""
        return _of_each("quick_gelu", x, SIGMOID_FLOPS + 2)

    @acts(Acts.EACH)
    def tanh(self, x: Tensor) -> Tensor:
        """``tanh(x)``."""
        return _of_each("tanh", x, 1)

    @acts(Acts.EACH)
    def exp(self, x: Tensor) -> Tensor:
        """``e ** x``."""
        return _of_each("exp", x, 1)

    @acts(Acts.EACH)
    def sigmoid(self, x: Tensor) -> Tensor:
        """``1 / (1 + exp(-x))``, without overflow."""
        return _of_each("sigmoid", x, SIGMOID_FLOPS)

    @acts(Acts.AXIS)
    def softmax(self, x: Tensor, axis: int = -1) -> Tensor:
        """Softmax with the maximum subtracted, in float32 at least."""
        cost = lambda: (SOFTMAX_FLOPS * prod(x.shape), x.shape[axis])  # noqa: E731
        return _step("softmax", (x,), x.shape, {"axis": axis}, cost=cost)

    @acts(Acts.MOVES)
    def reshape(self, x: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Same elements, row-major; no -1."""
        fits = _differ(prod(shape), prod(x.shape)) is False and all(size >= 0 for size in shape)
        _check("reshape", fits, x, shape)
        return _step("reshape", (x,), tuple(shape), view=True)

    @acts(Acts.MOVES)
    def permute(self, x: Tensor, axes: tuple[int, ...]) -> Tensor:
        """Axis i of the result is axis ``axes[i]`` of x."""
        shape = tuple(x.shape[axis] for axis in axes)
        return _step("permute", (x,), shape, {"axes": tuple(axes)}, view=True)

    @acts(Acts.AXIS)
    def concatenate(self, tensors: tuple[Tensor, ...], axis: int) -> Tensor:
        """The tensors one after another along an axis; all other sizes are equal."""
        shape, others = list(tensors[0].shape), [list(tensor.shape) for tensor in tensors]
        for sizes in others:
            del sizes[axis]
        _check(f"concatenate along axis {axis}", not any(_differ(o, others[0]) for o in others), *tensors)
        shape[axis] = sum(tensor.shape[axis] for tensor in tensors)
        return _step("concatenate", tensors, tuple(shape), {"axis": axis})

    @acts(Acts.AXIS)
    def narrow(self, x: Tensor, axis: int, start: int, stop: int | None) -> Tensor:
        """Elements ``start..stop-1`` along one axis; None for the end, negative counts from the end."""
        length, shape = x.shape[axis], list(x.shape)
        first = start + length if start < 0 else start
        last = length if stop is None else stop + length if stop < 0 else stop
        if not 0 <= first <= last <= length:
            raise outside_axis(axis, start, stop, x.shape)
        shape[axis] = last - first
        return _step("narrow", (x,), tuple(shape), {"axis": axis, "start": start, "stop": stop}, view=True)

    @acts(Acts.MOVES)
    def expand(self, x: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Axes of size 1 repeated to ``shape``; same rank."""
        fits = len(shape) == len(x.shape)
        fits = fits and all(old in (1, new) for old, new in zip(x.shape, shape, strict=True))
        _check("expand", fits, x, shape)
        return _step("expand", (x,), tuple(shape), view=True)

    @acts(Acts.ALL)
    def select(self, x: Tensor, mask: Tensor) -> Tensor:
        """``x`` where ``mask`` is True, zeros elsewhere: ``[B, S, D], [B, S]:bool -> [B, S, D]``.

        By selection, not by a product: a NaN or infinity where the mask is False reaches neither the result
        nor a gradient.
        """
        _check("select", not _differ(mask.shape, x.shape[:-1]), x, mask)
        return _step("select", (x, mask), x.shape)

    @acts(Acts.ALL)
    def take_at(self, x: Tensor, ids: Tensor, token: int) -> Tensor:
        """``x[b, p[b]]``, p the first position of ``token`` in ids: ``[B, T, D], [B, T]:int64 -> [B, D]``.

        Where no id is ``token``, p is 0. With ``token=-1``, p is the first position of the largest id. Other
        positions, NaN too, change nothing. No positions: E_RUNTIME.
        """
        _check("take_at", not _differ(ids.shape, x.shape[:2]), x, ids)
        if x.shape[1] == 0:
            raise no_elements("take_at", 1, x.shape)
        return _step("take_at", (x, ids), (x.shape[0], *x.shape[2:]), {"token": token})

    @acts(Acts.AXIS)
    def mean(self, x: Tensor, axis: int, keepdim: bool = False) -> Tensor:
        """Arithmetic mean along one axis, accumulated in float32 at least. No elements: E_RUNTIME."""
        return _reduction("mean", x, axis, keepdim, lambda: (prod(x.shape), x.shape[axis]))

    @acts(Acts.AXIS)
    def max(self, x: Tensor, axis: int, keepdim: bool = False) -> Tensor:
        """Largest element along one axis. No elements: E_RUNTIME."""
        return _reduction("max", x, axis, keepdim, lambda: (prod(x.shape), 1))  # choosing rounds nothing

    @acts(Acts.AXIS)
    def cumsum(self, x: Tensor, axis: int) -> Tensor:
        """The sum of all elements so far along one axis, accumulated in float32 at least and rounded once."""
        return _step("cumsum", (x,), x.shape, {"axis": axis}, cost=lambda: (prod(x.shape), x.shape[axis]))

    @acts(Acts.ALL)
    def masked_pool(self, x: Tensor, mask: Tensor, mode: str) -> Tensor:
        """One vector of the positions where ``mask`` is True: ``[B, T, D], [B, T]:bool -> [B, D]``.

        ``mode`` is ``mean`` (accumulated in float32 at least), ``max``, ``first`` or ``last``. An example
        whose mask is nowhere True gives zeros. Chosen by selection, as in :meth:`select`: what stands at the
        others reaches neither the result nor a gradient. No positions (T = 0): E_RUNTIME.
        """
        _check("masked_pool", not _differ(mask.shape, x.shape[:-1]), x, mask)
        B, T, D = x.shape
        if T == 0:
            raise no_elements(mode, 1, x.shape)
        flops = prod(x.shape) if mode in ("mean", "max") else 0  # the first and the last one are only moved
        cost = lambda: (flops, T if mode == "mean" else 1)  # noqa: E731
        return _step("masked_pool", (x, mask), (B, D), {"mode": mode}, cost=cost)

    @acts(Acts.PLACES)
    def cos_sin(self, length: int, frequencies: tuple[float, ...], like: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines of ``position * frequency``: two ``[length, len(frequencies)]`` tables.

        Positions are 0..length-1; angles are float64 and rounded once, to ``like``'s dtype and device. While
        text is generated, positions are those of the new ids; rows of a batch that stand at positions of
        their own get ``[B, length, len(frequencies)]``. An operator allows for a leading axis.
        """
        shape = (length, len(frequencies))
        options = {"length": length, "frequencies": tuple(frequencies)}
        cost = lambda: (COS_SIN_FLOPS * prod(shape), 1)  # noqa: E731
        return like.recorder.record("cos_sin", (), [shape, shape], options, cost=cost, dtype=like.dtype)

    @acts(Acts.PLACES)
    def positions(self, table: Tensor, length: int) -> Tensor:
        """Rows of a table at positions 0..length-1: ``[N, D] -> [length, D]``.

        While text is generated, positions are those of the new ids, and the result may be ``[B, length, D]``,
        as for :meth:`cos_sin`. More positions than rows are E_RUNTIME.
        """
        if length > table.shape[0]:
            raise outside_axis(0, 0, length, table.shape)
        return _step("positions", (table,), (length, *table.shape[1:]), {"length": length}, view=True)


class Recording(Primitives):
    """The primitives as their entries say: every call is a step."""


def broadcast(*shapes: Sequence[Any]) -> tuple[Any, ...]:
    """The common shape under NumPy's rules, of sizes that may be symbolic; ValueError when there is none."""
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    sizes = []
    for axis in zip(*padded, strict=True):
        wide = list(dict.fromkeys(size for size in axis if size != 1))
        if len(wide) > 1:
            raise ValueError(f"shapes {', '.join(map(str, shapes))} do not broadcast")
        sizes.append(wide[0] if wide else 1)
    return tuple(sizes)


def arithmetic(recorder: Recorder, primitive: str, left: Any, right: Any) -> Tensor:
    """``+``, ``-`` or ``*`` as a step; a number becomes the attribute ``left`` or ``right``."""
    sides = {"left": left, "right": right}
    numbers = {name: side for name, side in sides.items() if not hasattr(side, "shape")}
    tensors = [side for name, side in sides.items() if name not in numbers]
    shape = broadcast(*(tensor.shape for tensor in tensors))
    return recorder.record(primitive, tensors, [shape], numbers, cost=lambda: (prod(shape), 1))[0]


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


def _step(
    primitive: str, inputs: Sequence[Tensor], shape: Sequence[Any], options: Any = None, /, **more: Any
) -> Tensor:
    """A step with one result, recorded where the first tensor is."""
    return inputs[0].recorder.record(primitive, inputs, [shape], options, **more)[0]


def _of_each(primitive: str, x: Tensor, flops: int, **options: Any) -> Tensor:
    return _step(primitive, (x,), x.shape, options, cost=lambda: (flops * prod(x.shape), 1))


def _of_rows(x: Tensor, flops: int) -> Cost:
    return lambda: (flops * prod(x.shape), x.shape[-1])


def _reduction(primitive: str, x: Tensor, axis: int, keepdim: bool, cost: Cost) -> Tensor:
    if x.shape[axis] == 0:
        raise no_elements(primitive, axis, x.shape)
    shape = list(x.shape)
    shape[axis : axis + 1 or None] = [1] if keepdim else []
    return _step(primitive, (x,), tuple(shape), {"axis": axis, "keepdim": keepdim}, cost=cost)


def _one(parameter: Tensor | None) -> int:
    """An operation for an element of a parameter that is there."""
    return parameter is not None


def _differ(sizes: Any, others: Any) -> bool:
    """Whether two sizes, or shapes, are known to differ."""
    if isinstance(sizes, tuple | list):
        return len(sizes) != len(others) or any(map(_differ, sizes, others))
    return type(sizes) is type(others) is int and sizes != others


def _short(size: Any, least: Any) -> bool:
    return type(size) is type(least) is int and size < least


def _check(what: str, fits: bool, *given: Any) -> None:
    if not fits:
        shapes = ", ".join(str(getattr(one, "shape", one)) for one in given)
        raise ValueError(f"{what}: {shapes} do not fit")
