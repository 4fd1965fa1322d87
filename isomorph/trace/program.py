"""What a trace is: tensors without values, and the steps that make them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple

from isomorph.primitives import Cost, RecordedTensor, arithmetic

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class TracedTensor(RecordedTensor):
    """A tensor of a :class:`Program`: a shape and a dtype, no values.

    Attributes:
        recorder: where it is recorded.
        id: its index in ``recorder.tensors``.
        shape: sizes.
        dtype: ``"float32"``, ``"int64"``, ...
    """

    recorder: Program = field(repr=False)
    id: int
    shape: Shape
    dtype: str

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)


class Step(NamedTuple):
    """One primitive of a program.

    Attributes:
        primitive: a name of :class:`isomorph.primitives.Primitives`, or ``add``, ``subtract``, ``multiply``.
        inputs: ids of its tensors, parameters included, in the primitive's order.
        attributes: everything else that it was called with, by name.
        outputs: ids of its results.
        path: which operator asked for it: ``n1.attn.q_proj``.
        flops: floating-point operations; zero for moving data.
        reduction: length of its longest sum; 1 when no element depends on a sum.
        view: True when a result is its input's memory seen otherwise (``reshape``).
    """

    primitive: str
    inputs: tuple[int, ...]
    attributes: Mapping[str, Any]
    outputs: tuple[int, ...]
    path: str
    flops: int
    reduction: int
    view: bool


@dataclass(slots=True, eq=False)
class Program:
    """A network as a list of primitives over tensors of known sizes.

    Attributes:
        dtype: the compute dtype.
        sizes: the symbol values that it was traced at.
        tensors: every tensor; ids index this list.
        inputs, parameters, outputs: tensors by input name, parameter path, output name.
        steps: the primitives in order of evaluation.
        values: the plan's tensors by their ids in the plan, inputs included; empty for a lone operator.
    """

    dtype: str = "float32"
    sizes: dict[str, int] = field(default_factory=dict)
    tensors: list[TracedTensor] = field(default_factory=list)
    inputs: dict[str, TracedTensor] = field(default_factory=dict)
    parameters: dict[str, TracedTensor] = field(default_factory=dict)
    outputs: dict[str, TracedTensor] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    values: dict[int, TracedTensor] = field(default_factory=dict)
    _path: str = ""

    @property
    def flops(self) -> int:
        """Floating-point operations of all steps."""
        return sum(step.flops for step in self.steps)

    def within(self, path: str) -> list[Step]:
        """The steps of an operator and of all that is inside it."""
        return [step for step in self.steps if step.path == path or step.path.startswith(path + ".")]

    def reduction(self, path: str) -> int:
        """The longest reduction inside an operator, at least 1."""
        return max((step.reduction for step in self.within(path)), default=1)

    def tensor(self, shape: Sequence[int], dtype: str) -> TracedTensor:
        """A new tensor that no step makes: an input or a parameter."""
        tensor = TracedTensor(self, len(self.tensors), tuple(shape), dtype)
        self.tensors.append(tensor)
        return tensor

    def record(
        self,
        primitive: str,
        inputs: Sequence[TracedTensor | None],
        shapes: Sequence[Sequence[int]],
        attributes: Mapping[str, Any] | None = None,
        *,
        cost: Cost | None = None,
        dtype: str | None = None,
        view: bool = False,
    ) -> tuple[TracedTensor, ...]:
        """See :meth:`isomorph.primitives.Recorder.record`."""
        given = [tensor for tensor in inputs if tensor is not None]
        flops, reduction = cost() if cost is not None else (0, 1)
        tensors = tuple(self.tensor(shape, dtype or given[0].dtype) for shape in shapes)
        self.steps.append(
            Step(
                primitive,
                tuple(tensor.id for tensor in given),
                dict(attributes or {}),
                tuple(tensor.id for tensor in tensors),
                self._path,
                flops,
                max(1, reduction),
                view,
            )
        )
        return tensors

    def combine(self, primitive: str, left: Any, right: Any) -> TracedTensor:
        """See :func:`isomorph.primitives.arithmetic`."""
        return arithmetic(self, primitive, left, right)

    @contextmanager
    def entering(self, path: str) -> Iterator[None]:
        """Steps recorded inside belong to the operator at ``path``."""
        outer, self._path = self._path, path
        try:
            yield
        finally:
            self._path = outer
