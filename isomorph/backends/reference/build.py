"""A plan and its weights as a NumPy function: any float in, float64 out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isomorph.backends.available import Evaluation
from isomorph.backends.contract import DTYPE_KINDS, InputContracts
from isomorph.backends.reference import primitives as numpy_primitives
from isomorph.backends.reference.layers import to_float64
from isomorph.plan import Plan
from isomorph.plan.holder import Holder, Observer, evaluate, with_ties
from isomorph.primitives import Primitives
from isomorph.weights.convert import owned_weights, to_array

Array = NDArray[Any]


class _KindByName(dict[Any, str]):
    """Kinds by NumPy dtype, looked up by name once: bfloat16 is a dtype only once ml_dtypes is loaded."""

    def get(self, key: Any, default: Any = None) -> Any:
        if key not in self:
            self[key] = DTYPE_KINDS.get(getattr(key, "name", ""), "other")
        return self[key]


def _full(shape: tuple[int, ...], value: Any, dtype: str, like: Array) -> Array:
    return np.full(shape, value, dtype)


class ReferenceNetwork:
    """A plan with weights, computed in float64.

    Args:
        plan: the network.
        weights: arrays by parameter path, a tied one under either path or both.
        primitives: the primitives to compute with, NumPy's unless someone wants to look on.
        copy: whether the weights are copied, 8 bytes per parameter, so that later changes to them do not matter.
            Otherwise the network reads them where they are, and each is float64 for as long as it is computed
            with: for a network that runs once, or is large.

    Raises:
        IsomorphError: E_WEIGHTS listing every missing, unexpected and misshapen entry; E_ARGUMENT when
            ``plan`` is no plan or ``weights`` no mapping.
    """

    def __init__(
        self,
        plan: Plan,
        weights: Mapping[str, Any],
        primitives: Primitives = numpy_primitives,
        *,
        copy: bool = True,
    ) -> None:
        self.plan = Plan.expect(plan)
        self.contracts = InputContracts(plan, _KindByName(), _full)
        if isinstance(weights, Mapping):
            weights = {path: _numbers(to_array(path, value), copy) for path, value in weights.items()}
        self._parameters = with_ties(plan, owned_weights(plan, weights), _widened)
        self._holders = [
            Holder(node.operator, primitives, self._parameters, node.name) for node in plan.nodes
        ]

    def __call__(self, /, *inputs: Any, **named: Any) -> Any:
        """The output, or a dictionary of outputs in order; inputs by position or by name.

        Raises:
            IsomorphError: E_RUNTIME when an input does not fit its contract.
        """
        given = [None if tensor is None else np.asarray(tensor) for tensor in inputs]
        outputs = self.run(self.contracts.bind(given, named))
        return next(iter(outputs.values())) if len(outputs) == 1 else outputs

    def run(self, inputs: Sequence[Any], observe: Observer | None = None) -> dict[str, Array]:
        """Outputs by name; ``observe(node, inputs, outputs)`` sees every node's float64 tensors."""
        arrays = [np.asarray(given) for given in inputs]
        self.contracts.check(arrays)
        with np.errstate(all="ignore"):  # NaN and infinity pass through silently, as they do elsewhere
            outputs = evaluate(self.plan, self._holders, self._ready(arrays), observe)
        return {name: np.array(array) for name, array in outputs.items()}  # owned by the caller

    def evaluated(self, evaluate: Evaluation, inputs: Sequence[Array], seed: int) -> dict[str, Array]:
        """Outputs by name as ``evaluate`` makes them of float64 tensors and noise; equal seeds give equal noise."""
        with np.errstate(all="ignore"):
            return dict(evaluate(numpy_primitives, self._parameters, self._ready(inputs), _Noise(seed)))

    def _ready(self, arrays: Sequence[Array]) -> list[Array]:
        """Floating-point inputs in float64, the others as they are."""
        return [
            to_float64(array) if DTYPE_KINDS[value.dtype] == "float" else array
            for array, value in zip(arrays, self.contracts.values, strict=True)
        ]


class _Noise:
    """NumPy's :class:`isomorph.backends.available.Noise`."""

    def __init__(self, seed: int) -> None:
        self._generator = np.random.default_rng(seed)

    def random(self, like: Array) -> Array:
        return self._generator.uniform(-1.0, 1.0, like.shape)

    def constant(self, x: Array) -> Array:
        return x


def _numbers(array: Array, copy: bool) -> Array:
    """A float64 copy of numbers, or floats as they are; what holds none stays as it is, to be refused by name."""
    kind = DTYPE_KINDS.get(array.dtype.name)
    return to_float64(array) if kind and (copy or kind != "float") else array


def _widened(array: Array) -> Array:
    """In float64; what is float64 already is not copied."""
    return np.asarray(array, np.float64)


def build(plan: Plan, weights: Mapping[str, Any]) -> ReferenceNetwork:
    """The plan as a function of arrays: float64 inside, one array or a dictionary of them out.

    Raises:
        IsomorphError: E_WEIGHTS when the weights are not exactly the plan's.
    """
    return ReferenceNetwork(plan, weights)


def run(
    plan: Plan,
    weights: Mapping[str, Any],
    inputs: Sequence[Any] | Mapping[str, Any],
    observe: Observer | None = None,
) -> dict[str, Array]:
    """Build, and evaluate once. Outputs by name; ``observe`` is called after every node."""
    network = ReferenceNetwork(plan, weights, copy=False)
    named = inputs if isinstance(inputs, Mapping) else {}
    given = () if isinstance(inputs, Mapping) else inputs
    return network.run(network.contracts.bind(given, named), observe)
