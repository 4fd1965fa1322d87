"""Operators as ``nnx.Module``: Flax's own layers for leaves, one generic module for everything else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
from flax import nnx

from isomorph.backends.jax import primitives
from isomorph.backends.jax.arithmetic import PRECISION
from isomorph.backends.jax.build import PreparedPlan, broadcasting, refuse_name
from isomorph.backends.jax.initial import Fill
from isomorph.backends.jax.layers import inside, native
from isomorph.backends.jax.weights import to_jax
from isomorph.operators.declare import Operator
from isomorph.primitives import Primitives

PRIMITIVES: Primitives = primitives
"""What every operator's forward computation is written in."""


class Frozen(nnx.Variable[jax.Array]):
    """A parameter that is not trained (``trainable=False``).

    It is no ``nnx.Param``, so ``nnx.grad`` and ``nnx.Optimizer(model, tx, wrt=nnx.Param)`` pass it over.
    """


class Values(NamedTuple):
    """Where a module under construction takes its values from.

    Attributes:
        prepared: the plan.
        weights: arrays in plan layout by parameter path; None to draw from ``rngs``.
        rngs: Flax's streams, ``params`` for drawing and ``dropout`` for what dropout draws later.
    """

    prepared: PreparedPlan
    weights: Mapping[str, Any] | None
    rngs: nnx.Rngs

    def fill(self, path: str) -> Fill:
        """The initialiser of one parameter, in Flax's axis order."""
        if self.weights is None:
            return self.prepared.drawing(path)
        array, place = self.weights[path], self.prepared.places[path]
        return lambda key, shape, dtype: to_jax(array, self.dtype, place.transposed)

    def variable(self, path: str) -> nnx.Variable[jax.Array]:
        """One parameter as the plan has it."""
        parameter = self.prepared.parameters[path]
        return nnx.Param(self.fill(path)(self.rngs.params(), parameter.shape, self.dtype))

    @property
    def dtype(self) -> str:
        """The plan's compute dtype."""
        return self.prepared.plan.dtype


class OperatorModule(nnx.Module):
    """An operator that has no native layer: children as submodules, own parameters as ``nnx.Param``."""

    def __init__(self, operator: Operator, values: Values, path: str, tied: Mapping[str, str]) -> None:
        self._operator = operator
        for name in operator.own_parameters:
            if name not in tied:
                put(self, name, values.variable(f"{path}.{name}"), operator.name)
        for name, child in operator.child_operators.items():
            put(self, name, layer(child, values, f"{path}.{name}", inside(tied, name)), operator.name)

    def __call__(
        self, *inputs: Any, tied: Mapping[str, jax.Array] | None = None, primitives: Primitives = PRIMITIVES
    ) -> Any:
        with broadcasting():
            return self._operator.forward(Parts(self, tied or {}, primitives), primitives, *inputs)


class Parts:
    """What ``Operator.forward`` sees of a module: parameters as plain arrays, children to call.

    Args:
        module: the module.
        tied: arrays that take the place of parameters it does not hold, by path inside it.
        primitives: what the children compute with.
    """

    __slots__ = ("_module", "_primitives", "_tied")

    def __init__(
        self, module: nnx.Module, tied: Mapping[str, jax.Array], primitives: Primitives = PRIMITIVES
    ) -> None:
        self._module, self._tied, self._primitives = module, tied, primitives

    def __getattr__(self, name: str) -> Any:
        if name in self._tied:
            return self._tied[name]
        value = getattr(self._module, name)
        if isinstance(value, nnx.Variable):
            return value[...]
        return calling(value, inside(self._tied, name), self._primitives)


def calling(
    module: Any, tied: Mapping[str, jax.Array], primitives: Primitives = PRIMITIVES
) -> Callable[..., Any]:
    """The module, told of the tied parameters inside it and of what to compute with."""
    keywords: dict[str, Any] = {"tied": tied} if tied else {}
    if primitives is not PRIMITIVES and isinstance(module, OperatorModule):
        keywords["primitives"] = primitives
    return partial(module, **keywords) if keywords else module


class LayerNorm(nnx.LayerNorm):
    """``nnx.LayerNorm`` with the more careful statistics of :func:`primitives.layer_norm`."""

    def __call__(self, x: jax.Array, *, mask: jax.Array | None = None) -> jax.Array:
        if mask is not None:  # statistics over some of the features: only Flax has those
            return super().__call__(x, mask=mask)
        scale = None if self.scale is None else self.scale[...]
        bias = None if self.bias is None else self.bias[...]
        return primitives.layer_norm(x, scale, bias, eps=self.epsilon)


class Embedding(nnx.Embed):
    """``nnx.Embed`` that refuses an id outside its table; see :func:`primitives.embedding`."""

    def __call__(self, inputs: jax.Array, out_sharding: Any = None) -> jax.Array:
        return primitives.embedding(inputs, self.embedding[...])


def layer(operator: Operator, values: Values, path: str, tied: Mapping[str, str]) -> nnx.Module:
    """The module of an operator, its parameters filled.

    Args:
        operator: the operator, sizes known.
        values: where its parameters come from.
        path: its own path, such as ``n1.attn``.
        tied: owners by the paths inside it that it does not hold itself.

    Raises:
        IsomorphError: E_NAME when a child or parameter has the name of something that every module has.
    """
    if native(operator, tied) is None:
        module = OperatorModule(operator, values, path, tied)
    else:
        assert operator.leaf is not None
        module = LEAVES[operator.leaf](operator, values, path)
    for name in operator.own_parameters:
        full = f"{path}.{name}"
        if name not in tied and not values.prepared.parameters[full].trainable:
            attribute = values.prepared.places[full].path[-1]
            setattr(module, attribute, Frozen(getattr(module, attribute)[...]))
    return module


def _linear(operator: Any, values: Values, path: str) -> nnx.Module:
    return nnx.Linear(
        operator.sizes["D_in"],
        operator.sizes["D_out"],
        use_bias=operator.bias,
        param_dtype=values.dtype,
        precision=PRECISION,
        kernel_init=values.fill(f"{path}.weight"),
        bias_init=values.fill(f"{path}.bias") if operator.bias else nnx.initializers.zeros_init(),
        rngs=values.rngs,
    )


def _layer_norm(operator: Any, values: Values, path: str) -> nnx.Module:
    scaled, shifted = operator.affine, operator.affine and operator.bias
    return LayerNorm(
        operator.sizes["D"],
        epsilon=operator.eps,
        use_scale=scaled,
        use_bias=shifted,
        use_fast_variance=False,  # the fast one cancels where the mean is far larger than the spread
        param_dtype=values.dtype,
        scale_init=values.fill(f"{path}.weight") if scaled else nnx.initializers.ones_init(),
        bias_init=values.fill(f"{path}.bias") if shifted else nnx.initializers.zeros_init(),
        rngs=values.rngs,
    )


def _embedding(operator: Any, values: Values, path: str) -> nnx.Module:
    return Embedding(
        operator.num_embeddings,
        operator.sizes["D"],
        param_dtype=values.dtype,
        embedding_init=values.fill(f"{path}.weight"),
        rngs=values.rngs,
    )


def _dropout(operator: Any, values: Values, path: str) -> nnx.Module:
    return nnx.Dropout(operator.p, rngs=values.rngs)


LEAVES: dict[str, Callable[[Any, Values, str], nnx.Module]] = {
    "linear": _linear,
    "layer_norm": _layer_norm,
    "embedding": _embedding,
    "dropout": _dropout,
}
"""Makers of the native layers whose parameters :data:`isomorph.backends.jax.layers.LEAVES` names."""


def put(module: nnx.Module, name: str, part: Any, owner: str) -> None:
    """Set an attribute that must not hide one of the module's own."""
    if hasattr(module, name):
        raise refuse_name(name, owner, "an nnx.Module")
    setattr(module, name, part)
