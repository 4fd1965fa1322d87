"""The primitives where their calls become text: what a step says there, where its entry says it for numbers."""

from __future__ import annotations

from typing import Any

from isomorph.primitives import Recording, Tensor


class RecordingPrimitives(Recording):
    """Each method adds one step to a tensor's recorder; absent features leave no trace in the text."""

    def layer_norm(self, x: Tensor, weight: Tensor | None, bias: Tensor | None, *, eps: float) -> Tensor:
        return _step("layer_norm", (x, weight, bias), x.shape, shape=(x.shape[-1],), eps=eps)

    def rms_norm(self, x: Tensor, weight: Tensor | None, *, eps: float, offset: float = 0.0) -> Tensor:
        options = {"offset": offset} if offset else {}
        return _step("rms_norm", (x, weight), x.shape, shape=(x.shape[-1],), eps=eps, **options)

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
        features: dict[str, Any] = {"causal": causal, "window": window, "softcap": softcap}
        options = {name: value for name, value in features.items() if value}
        options |= {"grouped": q.shape[1] != k.shape[1], "square": q.shape[2] == k.shape[2]}
        if dropout is not None:
            options["dropout"] = dropout.name
        return _step("attention", (q, k, v, mask), q.shape, **options)

    def reshape(self, x: Tensor, shape: tuple[Any, ...]) -> Tensor:
        """An axis of one element that goes away is an index: ``x[:, 0]``."""
        step = x.step
        if step is not None and step.primitive == "narrow" and step.inputs[0] is not None:
            axis, start = step.attributes["axis"], step.attributes["start"]
            if x.shape[axis] == 1 and tuple(shape) == (*x.shape[:axis], *x.shape[axis + 1 :]):
                return _step("index", step.inputs, tuple(shape), axis=axis, index=start)
        return _step("reshape", (x,), tuple(shape), shape=tuple(shape)) if shape != x.shape else x

    def narrow(self, x: Tensor, axis: int, start: Any, stop: Any) -> Tensor:
        """All of an axis is the tensor itself; lengths may be symbolic."""
        rank, length = len(x.shape), x.shape[axis]
        first = start + length if type(start) is int and start < 0 else start
        last = length if stop is None else stop + length if type(stop) is int and stop < 0 else stop
        shape = list(x.shape)
        shape[axis] = last - first
        if stop == length:
            stop = None
        if start == 0 and stop is None:
            return x
        return _step("narrow", (x,), tuple(shape), axis=axis % rank, start=start, stop=stop)

    def expand(self, x: Tensor, shape: tuple[Any, ...]) -> Tensor:
        return _step("expand", (x,), tuple(shape), shape=tuple(shape))

    def cos_sin(self, length: Any, frequencies: tuple[float, ...], like: Tensor) -> tuple[Tensor, Tensor]:
        shape, options = (length, len(frequencies)), {"length": length, "frequencies": tuple(frequencies)}
        cos, sin = like.recorder.record("cos_sin", (like,), [shape, shape], options)
        return cos, sin

    def positions(self, table: Tensor, length: Any) -> Tensor:
        return self.narrow(table, 0, 0, length)


def _step(primitive: str, inputs: Any, size: tuple[Any, ...], /, **options: Any) -> Tensor:
    return inputs[0].recorder.record(primitive, inputs, [size], options)[0]
