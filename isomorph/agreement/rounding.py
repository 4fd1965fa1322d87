"""A network in double precision, every result moved as far as rounding may move it.

Operators' forward computations run as they are, on tensors that are wrapped: what a primitive, a sum or a product of
tensors gives is multiplied, element by element, by ``1 + r`` with a random r. So does the network behave that a
backend in finite precision computes; and where it is differentiated, the same factors move what flows back, so that
terms which cancel in a gradient leave what rounding leaves of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from isomorph.backends.available import Noise
from isomorph.plan import Plan
from isomorph.plan.holder import Holder, evaluate, with_ties
from isomorph.primitives import Primitives, Tensor
from isomorph.trace.program import Program, Step

RUNS = 3
"""How many times a network is moved."""


def amplitude(terms: int) -> float:
    """How far a result may be off, in units of its dtype's epsilon: ``max(1, sqrt(K) / 2) / 2``.

    One rounding is off by half an epsilon at most. A sum of K terms in order rounds K partial sums, which
    comes to about ``0.15 sqrt(K)`` epsilon (root mean square; 0.17 was measured in the worst product of torch
    and XLA on the CPU, K from 8 to 16,384). That of a uniform number within this amplitude is the same.
    """
    return max(1.0, terms**0.5 / 2) / 2


def evaluate_rounded(
    plan: Plan,
    program: Program,
    primitives: Primitives,
    parameters: Mapping[str, Tensor],
    inputs: Sequence[Tensor],
    noise: Noise,
    epsilon: float,
    *,
    differentiated: bool = False,
) -> dict[str, Tensor]:
    """Outputs by name, moved at random.

    Args:
        plan: the network.
        program: its trace at the inputs' sizes; it says how long the sum behind each result is.
        primitives: a backend's.
        parameters: the backend's tensors by path, in plan layout and double precision.
        inputs: its tensors in order; floating-point ones are moved too.
        noise: random numbers.
        epsilon: that of the dtype whose rounding is imitated.
        differentiated: whether gradients are wanted: then the sums that they are made of count too.
    """
    rounding = _Rounding(program, primitives, noise, epsilon, differentiated)
    wrapped = with_ties(plan, parameters, lambda tensor: _Tensor(tensor, rounding))
    holders = [Holder(node.operator, cast("Primitives", rounding), wrapped, node.name) for node in plan.nodes]
    floating = [program.values[value].dtype.startswith(("float", "bfloat")) for _, value in plan.inputs]
    ready = [
        rounding.input(tensor) if moves else _Tensor(tensor, rounding)
        for tensor, moves in zip(inputs, floating, strict=True)
    ]
    outputs = evaluate(plan, holders, ready)
    return {name: _plain(tensor) for name, tensor in outputs.items()}


class _Tensor:
    """A tensor whose sums and products are moved as well."""

    __slots__ = ("_rounding", "value")

    def __init__(self, value: Tensor, rounding: _Rounding) -> None:
        self.value, self._rounding = value, rounding

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.shape

    def __add__(self, other: _Tensor | float) -> _Tensor:
        return self._rounding.result("add", self.value + _plain(other))

    __radd__ = __add__

    def __sub__(self, other: _Tensor | float) -> _Tensor:
        return self._rounding.result("subtract", self.value - _plain(other))

    def __rsub__(self, other: float) -> _Tensor:
        return self._rounding.result("subtract", other - self.value)

    def __mul__(self, other: _Tensor | float) -> _Tensor:
        return self._rounding.result("multiply", self.value * _plain(other))

    __rmul__ = __mul__


def _plain(x: Any) -> Any:
    """What is inside a wrapped tensor, or wrapped tensors of a tuple."""
    if isinstance(x, tuple):
        return tuple(map(_plain, x))
    return x.value if isinstance(x, _Tensor) else x


class _Rounding:
    """A backend's primitives on wrapped tensors, in step with the trace."""

    def __init__(
        self, program: Program, primitives: Primitives, noise: Noise, epsilon: float, differentiated: bool
    ) -> None:
        self._program, self._primitives, self._noise = program, primitives, noise
        self._epsilon, self._differentiated = epsilon, differentiated
        self._steps = iter(program.steps)

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._primitives, name)
        if not callable(function):  # the name of the module, say
            return function

        def primitive(*arguments: Any, **named: Any) -> Any:
            given = {key: _plain(value) for key, value in named.items()}
            return self.result(name, function(*map(_plain, arguments), **given), *arguments[:1])

        return primitive

    # Derivatives of these five are differences of terms that cancel for some values or for any: a softmax of one
    # number has none. No factor on a result or on what flows back shows what rounding leaves of them, so a zero is
    # added whose derivative is that.

    def layer_norm(self, x: _Tensor, weight: Any, bias: Any, *, eps: float) -> _Tensor:
        centered = self._moved(x.value - self._moved(self._primitives.mean(x.value, -1, True), 1), 1)
        out = self._scaled(centered, x.value, 1, eps)
        out = out if weight is None else self._moved(out * weight.value, 1)
        return self.result("layer_norm", out if bias is None else out + bias.value, terms=1)

    def rms_norm(self, x: _Tensor, weight: Any, *, eps: float, offset: float = 0.0) -> _Tensor:
        out = self._scaled(x.value, x.value, 1, eps)
        return self.result("rms_norm", out if weight is None else out * (weight.value + offset), terms=1)

    def l2_normalize(self, x: _Tensor, *, eps: float) -> _Tensor:
        return self.result("l2_normalize", self._scaled(x.value, x.value, x.shape[-1], eps), terms=1)

    def _scaled(self, centered: Tensor, x: Tensor, factor: int, eps: float) -> Tensor:
        """``centered / sqrt(factor mean(centered^2) + eps)``: the long sum is off for all of a row alike."""
        square = self._moved(self._primitives.mean(centered * centered, -1, True), x.shape[-1]) * factor
        inverse = (square + eps) ** -0.5
        out = centered * inverse
        return out + self._lost(self._slopes(inverse, x), 1) if self._differentiated else out

    def softmax(self, x: _Tensor, axis: int = -1) -> _Tensor:
        F, length = self._primitives, x.shape[axis]
        out = F.softmax(x.value, axis)
        if self._differentiated and length:
            slopes, constant = self._slopes(out, x.value), self._noise.constant
            lost = F.mean(slopes, axis, True) * length * constant(self._lost(out, length))
            out = out + self._lost(slopes, length) + lost
        return self.result("softmax", out)

    def _slopes(self, slope: Tensor, x: Tensor) -> Tensor:
        """Zeros, whose derivative by x is ``slope``."""
        constant = self._noise.constant
        return constant(slope) * (x - constant(x))

    def _lost(self, x: Tensor, terms: int) -> Tensor:
        """What moving changes."""
        return self._moved(x, terms) - x

    def attention(
        self, q: _Tensor, k: _Tensor, v: _Tensor, mask: Any = None, *, dropout: Any = None, **named: Any
    ) -> _Tensor:
        """With every term ``weight * value`` moved; ``dropout``, which is the identity here, is left out.

        A score's derivative is ``weight (g v - g out)``. What rounding leaves of it is made of further
        attentions, so that no matrix of weights is ever held: of values that are but what moving changes, for
        the first product; and for the second, which is one number for all keys of a query, of the keys
        themselves, for ``sum(weight * score) = q sum(weight * k) / sqrt(d)``.
        """
        mask, terms = _plain(mask), max(q.shape[3], k.shape[2])

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return self._primitives.attention(q, k, v, mask, **named)

        out = attend(q.value, k.value, self._moved(v.value, terms))
        if not self._differentiated:
            return self.result("attention", out)
        constant = self._noise.constant
        query, key = constant(q.value), constant(k.value)
        mean_key = constant(attend(query, key, key))
        score = self._summed(query * mean_key)  # the mean over the keys, each with its weight
        change = (
            self._summed(q.value * mean_key) + self._summed(query * attend(query, key, k.value)) - 2 * score
        )
        lost = attend(q.value, k.value, constant(self._lost(v.value, terms)))
        both = self._lost(out, terms) + self._lost(
            out, terms
        )  # each product, of numbers that were rounded before
        out = out + (lost - constant(lost)) + change * constant(2 * both)
        # Kernels make the weights anew as exp(score - log of the sum), which is rounded in units of the score.
        anew = self._epsilon / 2 * self._noise.random(score) * abs(score)
        return self.result("attention", out + anew * (out - constant(out)))

    def _summed(self, products: Tensor) -> Tensor:
        """Scores, from products of queries and keys: ``[B, H, T, d] -> [B, H, T, 1]``."""
        return self._primitives.mean(products, -1, True) * products.shape[-1] ** 0.5

    def input(self, x: Tensor) -> _Tensor:
        return _Tensor(self._moved(x, 1), self)

    def result(self, primitive: str, result: Any, *first: Any, terms: int = 0) -> Any:
        """What a primitive gave, moved and wrapped; ``first`` is its first argument.

        ``terms`` is the length of its sum where the parts that it came in have taken account of that already.
        """
        step = next(self._steps)
        assert step.primitive == primitive, f"{primitive} where {step.primitive} was traced"
        if not step.flops:  # data that is only moved about is not rounded
            return _wrapped(result, self)
        terms = max(terms or step.reduction, self._terms_of_gradient(step) if self._differentiated else 1)
        if isinstance(result, tuple):
            return tuple(_Tensor(self._moved(one, terms), self) for one in result)
        moved = self._moved(result, terms)
        x = _plain(first[0]) if first and step.reduction == 1 and len(step.inputs) == 1 else None
        if x is not None and x.shape == result.shape:  # a function of every element, not a maximum of some
            moved = moved + self._beside(x)
        return _Tensor(moved, self)

    def _moved(self, x: Tensor, terms: int) -> Tensor:
        return x * (1 + self._epsilon * amplitude(terms) * self._noise.random(x))

    def _beside(self, x: Tensor) -> Tensor:
        """How far a function of one element is off where its own value says too little.

        ``x (1 + erf(x))`` at -5 is 1e-6, but the sum in it is rounded in units of 1; and so is ``y (1 - y)``,
        which the derivative of a sigmoid is computed as. Half an epsilon, of x where that is below 1; in the
        derivative likewise.
        """
        fixed = self._noise.constant(x)
        up_to_one = 1 - 1 / (1 + abs(fixed))
        numbers = self._noise.random(x) * up_to_one + self._noise.random(x) * (x - fixed)
        return self._epsilon / 2 * numbers

    def _terms_of_gradient(self, step: Step) -> int:
        """The longest sum in the gradients of a step's inputs.

        Each product that the step adds up contributes to each of its inputs' gradients once; of a bias or a
        gain each result does.
        """
        size = self._program.tensors[step.outputs[0]].size
        inputs = [self._program.tensors[id] for id in step.inputs]
        products = (size * (step.reduction if len(x.shape) > 1 else 1) // max(1, x.size) for x in inputs)
        return max(products, default=1)


def _wrapped(result: Any, rounding: _Rounding) -> Any:
    if isinstance(result, tuple):
        return tuple(_Tensor(one, rounding) for one in result)
    return _Tensor(result, rounding)
