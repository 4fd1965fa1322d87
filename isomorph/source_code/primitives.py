"""The primitives as steps of a recording: :class:`isomorph.primitives.Primitives` on values without numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from isomorph.source_code.sizes import Size

if TYPE_CHECKING:
    from isomorph.source_code.record import Recorder, Shape, Value


class RecordingPrimitives:
    """Each method adds one step to a recorder and says what shape its result has."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def _one(
        self, name: str, inputs: Any, shape: Shape, dtype: str | None = None, /, **attributes: Any
    ) -> Any:
        return self._recorder.record(name, inputs, [shape], attributes, dtype)[0]

    # -- maps with parameters --------------------------------------------------------------------

    def linear(self, x: Value, weight: Value, bias: Value | None = None) -> Value:
        return self._one("linear", (x, weight, bias), (*x.shape[:-1], weight.shape[0]))

    def conv1d(
        self, x: Value, weight: Value, bias: Value | None = None, *, stride: int = 1, padding: int = 0
    ) -> Value:
        B, _, T = x.shape
        length = (T + 2 * padding - weight.shape[2]) // stride + 1
        shape = (B, weight.shape[0], length)
        return self._one("conv1d", (x, weight, bias), shape, stride=stride, padding=padding)

    def conv2d(self, x: Value, weight: Value, bias: Value | None = None, *, stride: int = 1) -> Value:
        B, _, H, W = x.shape
        D, _, p, q = weight.shape
        shape = (B, D, (H - p) // stride + 1, (W - q) // stride + 1)
        return self._one("conv2d", (x, weight, bias), shape, stride=stride)

    def embedding(self, ids: Value, weight: Value) -> Value:
        return self._one("embedding", (ids, weight), (*ids.shape, weight.shape[1]), weight.dtype)

    # -- norms -----------------------------------------------------------------------------------

    def layer_norm(self, x: Value, weight: Value | None, bias: Value | None, *, eps: float) -> Value:
        return self._one("layer_norm", (x, weight, bias), x.shape, shape=(x.shape[-1],), eps=eps)

    def rms_norm(self, x: Value, weight: Value | None, *, eps: float, offset: float = 0.0) -> Value:
        attributes = {"offset": offset} if offset else {}
        return self._one("rms_norm", (x, weight), x.shape, shape=(x.shape[-1],), eps=eps, **attributes)

    def l2_normalize(self, x: Value, *, eps: float) -> Value:
        return self._one("l2_normalize", (x,), x.shape, eps=eps)

    # -- attention -------------------------------------------------------------------------------

    def attention(
        self,
        q: Value,
        k: Value,
        v: Value,
        mask: Value | None = None,
        *,
        causal: bool = False,
        window: int = 0,
        softcap: float = 0.0,
        dropout: Any = None,
    ) -> Value:
        """Which features it has is part of the step: absent ones leave no trace in the text."""
        features: dict[str, Any] = {"causal": causal, "window": window, "softcap": softcap}
        attributes = {name: value for name, value in features.items() if value}
        attributes["grouped"] = q.shape[1] != k.shape[1]
        attributes["square"] = q.shape[2] == k.shape[2]
        if dropout is not None:
            attributes["dropout"] = dropout.name
        return self._one("attention", (q, k, v, mask), q.shape, **attributes)

    # -- elementwise -----------------------------------------------------------------------------

    def relu(self, x: Value) -> Value:
        return self._one("relu", (x,), x.shape)

    def silu(self, x: Value) -> Value:
        return self._one("silu", (x,), x.shape)

    def gelu(self, x: Value, approximate: str = "none") -> Value:
        return self._one("gelu", (x,), x.shape, approximate=approximate)

    def quick_gelu(self, x: Value) -> Value:
        return self._one("quick_gelu", (x,), x.shape)

    def tanh(self, x: Value) -> Value:
        return self._one("tanh", (x,), x.shape)

    def exp(self, x: Value) -> Value:
        return self._one("exp", (x,), x.shape)

    def sigmoid(self, x: Value) -> Value:
        return self._one("sigmoid", (x,), x.shape)

    def softmax(self, x: Value, axis: int = -1) -> Value:
        return self._one("softmax", (x,), x.shape, axis=axis)

    # -- shapes ----------------------------------------------------------------------------------

    def reshape(self, x: Value, shape: tuple[Any, ...]) -> Value:
        """An axis of one element that goes away is an index: ``x[:, 0]``."""
        step = x.step
        if step is not None and step.primitive == "narrow" and step.inputs[0] is not None:
            axis, start = step.attributes["axis"], step.attributes["start"]
            if x.shape[axis] == 1 and tuple(shape) == (*x.shape[:axis], *x.shape[axis + 1 :]):
                return self._one("index", step.inputs, tuple(shape), axis=axis, index=start)
        return self._one("reshape", (x,), tuple(shape), shape=tuple(shape)) if shape != x.shape else x

    def permute(self, x: Value, axes: tuple[int, ...]) -> Value:
        return self._one("permute", (x,), tuple(x.shape[axis] for axis in axes), axes=tuple(axes))

    def concatenate(self, tensors: tuple[Value, ...], axis: int) -> Value:
        shape = list(tensors[0].shape)
        shape[axis] = sum(tensor.shape[axis] for tensor in tensors)
        return self._one("concatenate", tensors, tuple(shape), axis=axis)

    def narrow(self, x: Value, axis: int, start: Any, stop: Any) -> Value:
        rank, length = len(x.shape), x.shape[axis]
        first = start + length if type(start) is int and start < 0 else start
        last = length if stop is None else stop + length if type(stop) is int and stop < 0 else stop
        shape = list(x.shape)
        shape[axis] = last - first
        if stop == length:
            stop = None
        if start == 0 and stop is None:
            return x
        return self._one("narrow", (x,), tuple(shape), axis=axis % rank, start=start, stop=stop)

    def expand(self, x: Value, shape: tuple[Any, ...]) -> Value:
        return self._one("expand", (x,), tuple(shape), shape=tuple(shape))

    def select(self, x: Value, mask: Value) -> Value:
        return self._one("select", (x, mask), x.shape)

    def take_at(self, x: Value, ids: Value, token: int) -> Value:
        return self._one("take_at", (x, ids), (x.shape[0], *x.shape[2:]), token=token)

    # -- reductions ------------------------------------------------------------------------------

    def _reduced(self, name: str, x: Value, axis: int, keepdim: bool) -> Value:
        shape = list(x.shape)
        shape[axis : axis + 1 or None] = [1] if keepdim else []
        return self._one(name, (x,), tuple(shape), axis=axis, keepdim=keepdim)

    def mean(self, x: Value, axis: int, keepdim: bool = False) -> Value:
        return self._reduced("mean", x, axis, keepdim)

    def max(self, x: Value, axis: int, keepdim: bool = False) -> Value:
        return self._reduced("max", x, axis, keepdim)

    def masked_pool(self, x: Value, mask: Value, mode: str) -> Value:
        return self._one("masked_pool", (x, mask), (x.shape[0], x.shape[2]), mode=mode)

    # -- tables ----------------------------------------------------------------------------------

    def cos_sin(self, length: Any, frequencies: tuple[float, ...], like: Value) -> tuple[Value, Value]:
        shape = (length, len(frequencies))
        attributes = {"length": length, "frequencies": tuple(frequencies)}
        cos, sin = self._recorder.record("cos_sin", (like,), [shape, shape], attributes)
        return cos, sin

    def positions(self, table: Value, length: int | Size) -> Value:
        return self.narrow(table, 0, 0, length)
