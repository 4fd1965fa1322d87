"""The plainest way to hold an operator: children as callables, parameters as attributes.

For backends whose tensors need no framework's module around them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from isomorph.operators.declare import Operator
from isomorph.plan import Node, Plan
from isomorph.primitives import Primitives

Observer = Callable[[Node, tuple[Any, ...], tuple[Any, ...]], None]
"""Called after every node with the node, its inputs (None for an absent one) and its outputs."""


class Holder:
    """An operator that can be called; what ``Operator.forward`` knows as ``m``.

    Args:
        operator: the operator, sizes known.
        primitives: what its forward computation is written in.
        parameters: tensors by full path; those under ``path`` are read whenever its computation asks for them.
        path: its own path, such as ``n1.attn``.
        entering: gives a context for every call, from the path of the operator called.

    Dropout is what its operator's forward says, the identity.
    """

    def __init__(
        self,
        operator: Operator,
        primitives: Primitives,
        parameters: Mapping[str, Any],
        path: str,
        entering: Callable[[str], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._operator, self._primitives, self._path, self._entering = operator, primitives, path, entering
        self._parameters, self._own = parameters, {name: f"{path}.{name}" for name in operator.own_parameters}
        for name, child in operator.child_operators.items():
            setattr(self, name, Holder(child, primitives, parameters, f"{path}.{name}", entering))

    def __getattr__(self, name: str) -> Any:
        """One of its own parameters, which nobody holds here: it may have been made for this reading."""
        own = self.__dict__.get("_own", {})
        if name not in own:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return self._parameters[own[name]]

    def __call__(self, *inputs: Any) -> Any:
        with self._entering(self._path):
            return self._operator.forward(self, self._primitives, *inputs)


def _as_stored(tensor: Any) -> Any:
    return tensor


def with_ties(
    plan: Plan, parameters: Mapping[str, Any], read: Callable[[Any], Any] = _as_stored
) -> Mapping[str, Any]:
    """The parameters, and every tied path beside its owner, each passed through ``read`` whenever it is read."""
    return _WithTies(parameters, plan.ties, read)


class _WithTies(Mapping[str, Any]):
    def __init__(
        self, stored: Mapping[str, Any], ties: Mapping[str, str], read: Callable[[Any], Any]
    ) -> None:
        self._stored, self._ties, self._read = stored, ties, read

    def __getitem__(self, path: str) -> Any:
        return self._read(self._stored[self._ties.get(path, path)])

    def __iter__(self) -> Iterator[str]:
        return iter({**dict.fromkeys(self._stored), **dict.fromkeys(self._ties)})

    def __len__(self) -> int:
        return len(self._stored.keys() | self._ties.keys())


def evaluate(
    plan: Plan,
    holders: Sequence[Callable[..., Any]],
    inputs: Sequence[Any],
    observe: Observer | None = None,
) -> dict[str, Any]:
    """Run every node in order and return the outputs by name.

    Args:
        plan: the network.
        holders: one callable per node.
        inputs: one tensor per input, in order.
        observe: called after every node.
    """
    values: dict[int, Any] = {value: given for (_, value), given in zip(plan.inputs, inputs, strict=True)}
    for node, holder in zip(plan.nodes, holders, strict=True):
        taken = tuple(None if slot is None else values[slot] for slot in node.call_slots)
        result = holder(*taken)
        results = result if isinstance(result, tuple) else (result,)
        values.update(zip(node.outputs, results, strict=True))
        if observe is not None:
            observe(node, taken, results)
    return {name: values[value] for name, value in plan.outputs}
