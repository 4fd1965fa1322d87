"""Operators as ``flax.linen.Module``: Flax's own layers for leaves, one generic module for everything else.

Submodules are attributes set in ``setup``, so each has the plan's name whatever the order of construction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial, reduce
from typing import TYPE_CHECKING, Any

from flax import linen as nn
from flax.errors import ScopeParamShapeError

from isomorph.backends.jax import primitives
from isomorph.backends.jax.arithmetic import PRECISION
from isomorph.backends.jax.build import PreparedPlan, broadcasting, refuse_name
from isomorph.backends.jax.layers import Place, inside, native
from isomorph.errors import IsomorphError
from isomorph.operators.declare import Operator
from isomorph.primitives import Primitives

if TYPE_CHECKING:
    import jax

PRIMITIVES: Primitives = primitives
"""What every operator's forward computation is written in."""

PARAMS, FROZEN = "params", "frozen"
"""The collections of variables: what is trained, and what is not (``trainable=False``)."""


def collection(place: Place) -> str:
    """The collection that holds a parameter.

    What is frozen is held apart: an optimizer over ``variables["params"]`` would decay it though its gradient were 0.
    """
    return FROZEN if place.frozen else PARAMS


def array_at(variables: Mapping[str, Any], place: Place) -> Any:
    """A parameter among a network's variables, as it lies there.

    Raises:
        IsomorphError: E_WEIGHTS where there is none.
    """
    name = collection(place)
    try:
        return reduce(lambda tree, key: tree[key], place.path, variables[name])
    except KeyError:
        hint = (
            'what is frozen is given too, as in module.apply({**variables, "params": params}, x)'
            if place.frozen
            else "isomorph.linen.variables(plan, weights) has all of them"
        )
        message = f"the variables have no {'/'.join((name, *place.path))}"
        raise IsomorphError("E_WEIGHTS", message, hints=[hint]) from None


def frozen_variable(module: nn.Module, name: str, fill: Callable[..., Any], *arguments: Any) -> Any:
    """``module.param`` for a frozen parameter, with the same value at initialisation.

    Args:
        module: who holds it.
        name: what it is called there.
        fill: the initialiser: ``(key, shape, dtype)``.
        arguments: its arguments after the key, the shape first.
    """
    variable = module.variable(FROZEN, name, lambda: fill(module.make_rng(PARAMS), *arguments))
    if tuple(variable.value.shape) != tuple(arguments[0]):
        path = module.scope.path_text if module.scope is not None else ""
        raise ScopeParamShapeError(name, path, tuple(variable.value.shape), tuple(arguments[0]))
    return variable.value


class OperatorModule(nn.Module):
    """An operator that has no native layer: children as submodules, own parameters as its variables.

    Attributes:
        operator: the operator, sizes known.
        prepared: the plan, for distributions and dtype.
        path_in_plan: its own path, such as ``n1.attn``.
        tied: paths inside it of parameters that it does not hold.
    """

    operator: Operator
    prepared: PreparedPlan
    path_in_plan: str
    tied: tuple[str, ...] = ()

    def setup(self) -> None:
        tied = dict.fromkeys(self.tied)
        for name, parameter in self.operator.own_parameters.items():
            if name not in tied:
                path = f"{self.path_in_plan}.{name}"
                make = partial(frozen_variable, self) if self.prepared.places[path].frozen else self.param
                value = make(name, self.prepared.drawing(path), parameter.shape, self.prepared.plan.dtype)
                put(self, name, value, self.operator.name)
        for name, child in self.operator.child_operators.items():
            module = layer(child, self.prepared, f"{self.path_in_plan}.{name}", inside(tied, name))
            put(self, name, module, self.operator.name)

    def __call__(
        self,
        *inputs: Any,
        train: bool = False,
        tied: Mapping[str, jax.Array] | None = None,
        primitives: Primitives = PRIMITIVES,
    ) -> Any:
        with broadcasting():
            return self.operator.forward(Parts(self, train, tied or {}, primitives), primitives, *inputs)


class Parts:
    """What ``Operator.forward`` sees of a module: parameters as arrays, children to call.

    Args:
        module: the module, bound to its variables.
        train: whether dropout acts.
        tied: arrays that take the place of parameters it does not hold, by path inside it.
        primitives: what the children compute with.
    """

    __slots__ = ("_module", "_primitives", "_tied", "_train")

    def __init__(
        self,
        module: nn.Module,
        train: bool,
        tied: Mapping[str, jax.Array],
        primitives: Primitives = PRIMITIVES,
    ) -> None:
        self._module, self._train, self._tied, self._primitives = module, train, tied, primitives

    def __getattr__(self, name: str) -> Any:
        if name in self._tied:
            return self._tied[name]
        value = getattr(self._module, name)
        if not isinstance(value, nn.Module):
            return value
        return calling(value, self._train, inside(self._tied, name), self._primitives)


def calling(
    module: nn.Module, train: bool, tied: Mapping[str, jax.Array], primitives: Primitives = PRIMITIVES
) -> Callable[..., Any]:
    """The module, told whether it is training, of the tied parameters inside it, and of what to compute with."""
    if isinstance(module, nn.Dropout):
        return partial(module, deterministic=not train)
    if isinstance(module, OperatorModule):
        return partial(module, train=train, tied=tied, primitives=primitives)
    return module  # type: ignore[return-value]


class LayerNorm(nn.LayerNorm):
    """``linen.LayerNorm`` with the more careful statistics of :func:`primitives.layer_norm`."""

    @nn.compact
    def __call__(self, x: jax.Array, *, mask: jax.Array | None = None) -> jax.Array:
        shape = (x.shape[-1],)
        scale = self.param("scale", self.scale_init, shape, self.param_dtype) if self.use_scale else None
        bias = self.param("bias", self.bias_init, shape, self.param_dtype) if self.use_bias else None
        if mask is not None:
            raise TypeError("this LayerNorm takes no mask")
        return primitives.layer_norm(x, scale, bias, eps=self.epsilon)


class Embedding(nn.Embed):
    """``linen.Embed`` that refuses an id outside its table; see :func:`primitives.embedding`."""

    def __call__(self, inputs: jax.Array) -> jax.Array:
        return primitives.embedding(inputs, self.embedding)


class Freezing(nn.Module):
    """A layer of whose parameters some lie in the collection ``frozen``.

    Attributes:
        frozen: the names of those.
    """

    frozen: tuple[str, ...] = ()

    def param(self, name: str, init_fn: Any, *init_args: Any, **options: Any) -> Any:
        make = partial(frozen_variable, self) if name in self.frozen else super().param
        return make(name, init_fn, *init_args, **options)


class FrozenDense(Freezing, nn.Dense):
    """``linen.Dense`` with frozen parameters."""


class FrozenLayerNorm(Freezing, LayerNorm):
    """:class:`LayerNorm` with frozen parameters."""


class FrozenEmbedding(Freezing, Embedding):
    """:class:`Embedding` with a frozen table."""


def layer(operator: Operator, prepared: PreparedPlan, path: str, tied: Mapping[str, Any]) -> nn.Module:
    """The module of an operator.

    Args:
        operator: the operator, sizes known.
        prepared: the plan, for distributions and dtype.
        path: its own path, such as ``n1.attn``.
        tied: the paths inside it that it does not hold itself.
    """
    if native(operator, tied) is None:
        return OperatorModule(operator, prepared, path, tuple(tied))
    assert operator.leaf is not None
    return LEAVES[operator.leaf](operator, prepared, path)


def _class_for(
    usual: Callable[..., nn.Module], freezing: Callable[..., nn.Module],
    operator: Operator, prepared: PreparedPlan, path: str,
) -> Callable[..., nn.Module]:  # fmt: skip
    """The first class, or the second where the plan freezes some of the operator's parameters."""
    places = (prepared.places[f"{path}.{name}"] for name in operator.own_parameters)
    frozen = tuple(place.path[-1] for place in places if place.frozen)
    return partial(freezing, frozen=frozen) if frozen else usual


def _linear(operator: Any, prepared: PreparedPlan, path: str) -> nn.Module:
    return _class_for(nn.Dense, FrozenDense, operator, prepared, path)(
        operator.sizes["D_out"],
        use_bias=operator.bias,
        param_dtype=prepared.plan.dtype,
        precision=PRECISION,
        kernel_init=prepared.drawing(f"{path}.weight"),
        bias_init=prepared.drawing(f"{path}.bias") if operator.bias else nn.initializers.zeros_init(),
    )


def _layer_norm(operator: Any, prepared: PreparedPlan, path: str) -> nn.Module:
    scaled, shifted = operator.affine, operator.affine and operator.bias
    return _class_for(LayerNorm, FrozenLayerNorm, operator, prepared, path)(
        epsilon=operator.eps,
        use_scale=scaled,
        use_bias=shifted,
        use_fast_variance=False,  # the fast one cancels where the mean is far larger than the spread
        param_dtype=prepared.plan.dtype,
        scale_init=prepared.drawing(f"{path}.weight") if scaled else nn.initializers.ones_init(),
        bias_init=prepared.drawing(f"{path}.bias") if shifted else nn.initializers.zeros_init(),
    )


def _embedding(operator: Any, prepared: PreparedPlan, path: str) -> nn.Module:
    return _class_for(Embedding, FrozenEmbedding, operator, prepared, path)(
        operator.num_embeddings,
        operator.sizes["D"],
        param_dtype=prepared.plan.dtype,
        embedding_init=prepared.drawing(f"{path}.weight"),
    )


def _dropout(operator: Any, prepared: PreparedPlan, path: str) -> nn.Module:
    return nn.Dropout(operator.p)


LEAVES: dict[str, Callable[[Any, PreparedPlan, str], nn.Module]] = {
    "linear": _linear,
    "layer_norm": _layer_norm,
    "embedding": _embedding,
    "dropout": _dropout,
}
"""Makers of the native layers whose parameters :data:`isomorph.backends.jax.layers.LEAVES` names."""

_TAKEN = frozenset(dir(nn.Module)) | {"name", "parent", "operator", "prepared", "path_in_plan", "tied"}


def put(module: nn.Module, name: str, part: Any, owner: str) -> None:
    """Set an attribute that must not hide one of the module's own."""
    if name in _TAKEN:
        raise refuse_name(name, owner, "a linen.Module")
    setattr(module, name, part)
