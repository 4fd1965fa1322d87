"""What every backend's decoder shares: the order of work, and primitives that remember.

A decoder runs the nodes of a plan on a few new positions at a time. Operators are what they always are: their
forward computation is given other primitives, under which causal attention keeps keys and values and reads
those of earlier positions, and under which positions go on where they stopped.

Axis legend: B batch, T new positions, C slots of the cache, K key/value heads, d head width, V vocabulary.
Every row of a batch uses the same slots; row b begins at slot ``pads[b]``, so its position in slot s is
``s - pads[b]``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import numpy as np

from isomorph.backends.contract import InputContracts
from isomorph.errors import IsomorphError
from isomorph.lowering.decoding_layout import DecodingLayout
from isomorph.plan import Node, Plan
from isomorph.primitives import Primitives, Tensor

Array = np.ndarray[Any, Any]


class Decoder(Protocol):
    """A model that is generating, with what it remembers."""

    def feed(self, ids: Array, *, wanted: bool) -> Array | None:
        """Take further ids ``[B, T]``; the scores after the last of them ``[B, V]`` if they are wanted."""
        ...


class DecodingBackend(Protocol):
    """The functions of a module ``isomorph.backends.<name>.decoding``."""

    def build(self, plan: Plan, weights: Mapping[str, Any], **options: Any) -> Any:
        """A model that generates, of weights by parameter path; options are those of the backend's own ``build``."""
        ...

    def plan_of(self, model: Any) -> Plan:
        """The plan of a model, or E_ARGUMENT when it is none of this backend's or was taken apart."""
        ...

    def slots(self, length: int, chunk: int) -> int:
        """How many slots a prompt of ``length`` ids takes; compiled backends round up to few lengths."""
        ...

    def inputs(
        self, model: Any, layout: DecodingLayout, shape: tuple[int, int], given: Mapping[str, Any]
    ) -> dict[int, Any]:
        """The further inputs as tensors by their value ids, for prompts of a shape ``[B, T]``.

        Raises:
            IsomorphError: E_RUNTIME, as from a call of the model, for what does not meet its contracts. NumPy's
                arrays are taken everywhere.
        """
        ...

    def start(
        self, model: Any, layout: DecodingLayout, capacity: int, pads: Array, inputs: Mapping[int, Any]
    ) -> Decoder:
        """A decoder that has seen nothing, with memory for ``capacity`` slots, which grows when they are full."""
        ...

    def to_numpy(self, ids: Any) -> Array | None:
        """An array of this backend's kind in NumPy, or None for anything else."""
        ...

    def like(self, ids: Array, given: Any) -> Any:
        """The ids as an array of the kind and on the device of ``given``."""
        ...


class _Ids(NamedTuple):
    """What a contract asks of ids."""

    shape: tuple[int, int]
    dtype: Any


def check_contracts(
    layout: DecodingLayout, shape: tuple[int, int], inputs: Mapping[int, Any], kinds: Mapping[Any, str]
) -> dict[int, Any]:
    """The further inputs as a call of the model takes them: masks of integers made boolean.

    E_RUNTIME unless they, and the ids' number of rows, meet the plan's contracts.

    Args:
        layout: how the plan generates text.
        shape: of the prompts.
        inputs: the further inputs by their value ids.
        kinds: as for :class:`InputContracts`.
    """
    plan = layout.plan
    ids = plan.inputs[layout.tokens][1]
    length = plan.values[ids].shape[1]
    if isinstance(length, int):  # a position sees none of those that are still to come
        shape = (shape[0], length)
    integer = next(dtype for dtype, kind in kinds.items() if kind == "int")
    tensors = {**inputs, ids: _Ids(shape, integer)}
    kept = tuple((name, value) for name, value in plan.inputs if value in tensors)
    contracts = InputContracts(replace(plan, inputs=kept), kinds)
    bound = contracts.bind([tensors[value] for _, value in kept], {})
    contracts.check(bound)
    return {value: tensor for (_, value), tensor in zip(kept, bound, strict=True) if value in inputs}


def symbol_sizes(
    layout: DecodingLayout, inputs: Mapping[int, Any], kinds: Mapping[Any, str]
) -> dict[str, int]:
    """Values of the symbols of the further inputs, which are given by their value ids."""
    kept = tuple((name, value) for name, value in layout.plan.inputs if value in inputs)
    plan = replace(layout.plan, inputs=kept, bounds={})
    return InputContracts(plan, kinds).check([inputs[value] for _, value in kept])


def no_memory(positions: int, size: int) -> IsomorphError:
    """The error when keys and values find no room.

    Args:
        positions: for how many, all rows together.
        size: bytes that one attention's keys take.
    """
    return IsomorphError(
        "E_RESOURCE",
        f"there is no memory for the keys and values of {positions:,} positions, {2 * size:,} bytes in each attention",
        hints=["ask for fewer new ids, or give fewer rows at a time"],
    )


class KeyValueCache(Protocol):
    """Keys and values so far, and where the new positions stand."""

    def attend(self, call: int, q: Tensor, k: Tensor, v: Tensor, *, window: int, softcap: float) -> Tensor:
        """Remember ``k, v [B, K, T, d]`` of the ``call``-th attention; what ``q [B, H, T, d]`` finds."""
        ...

    def positions(self, table: Tensor, length: int) -> Tensor:
        """Rows ``[T, D]`` of a table ``[N, D]`` for the new positions, or ``[B, T, D]`` behind filling."""
        ...

    def cos_sin(self, length: int, frequencies: tuple[float, ...], like: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines of the new positions' angles, as :meth:`Primitives.cos_sin` gives those of all."""
        ...


class RememberingPrimitives:
    """A backend's primitives for one step of decoding.

    Args:
        primitives: the backend's own.
        memory: where causal attention keeps its keys and values.
    """

    def __init__(self, primitives: Primitives, memory: KeyValueCache) -> None:
        self._primitives, self._calls = primitives, 0
        self.memory = memory
        self.positions, self.cos_sin = memory.positions, memory.cos_sin

    def __getattr__(self, name: str) -> Any:
        return getattr(self._primitives, name)

    def restart(self, memory: KeyValueCache) -> None:
        """Begin the next step: attentions are told apart by the order in which they are called."""
        self.memory, self._calls = memory, 0
        self.positions, self.cos_sin = memory.positions, memory.cos_sin

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
        """What new positions find among all so far; as :meth:`Primitives.attention`."""
        if not causal:  # of something that was there before the first id
            return self._primitives.attention(q, k, v, mask, window=window, softcap=softcap)
        call, self._calls = self._calls, self._calls + 1
        return self.memory.attend(call, q, k, v, window=window, softcap=softcap)


def run_fixed(
    layout: DecodingLayout, layers: Mapping[str, Callable[..., Any]], inputs: Mapping[int, Any]
) -> dict[int, Any]:
    """Values by id that no id changes: the further inputs and what is computed from them."""
    values: dict[int, Any] = dict(inputs)
    for node in layout.fixed:
        _run(node, layers, values)
    return values


def run_moving(
    layout: DecodingLayout,
    layers: Mapping[str, Callable[..., Any]],
    primitives: Any,
    ids: Tensor,
    fixed: Mapping[int, Any],
    *,
    wanted: bool,
) -> Tensor | None:
    """The scores ``[B, V]`` after the last of the new ids, or None when they are not wanted.

    What comes after the last node that mixes positions is computed for one position alone: scores of a whole
    prompt may need more memory than all the rest.
    """
    values = {**fixed, layout.plan.inputs[layout.tokens][1]: ids}
    for node in layout.moving[: layout.last]:
        _run(node, layers, values)
    if not wanted:
        return None
    for value, axis in layout.kept:
        values[value] = primitives.narrow(values[value], axis, -1, None)
    for node in layout.moving[layout.last :]:
        _run(node, layers, values)
    logits = values[layout.logits]  # (B, 1, V)
    return primitives.reshape(logits, (logits.shape[0], logits.shape[2]))


def _run(node: Node, layers: Mapping[str, Callable[..., Any]], values: dict[int, Any]) -> None:
    result = layers[node.name](*[None if slot is None else values[slot] for slot in node.call_slots])
    results = result if isinstance(result, tuple) else (result,)
    values.update(zip(node.outputs, results, strict=True))
