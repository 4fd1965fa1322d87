"""Records an operator's forward computation: the primitives it calls, with its children as opaque calls.

Sizes that no parameter depends on stay symbolic (see :mod:`.sizes`), so that the written code says
``B, T, _ = x.shape``. A tensor is called what the operator's author called it: the names are read from
the frames of the forward computation while it runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from inspect import currentframe
from types import CodeType, FrameType
from typing import Any

from isomorph.errors import IsomorphError
from isomorph.primitives import Cost, RecordedTensor, arithmetic
from isomorph.source_code.primitives import RecordingPrimitives

Shape = tuple[Any, ...]


@dataclass(eq=False, slots=True)
class Value(RecordedTensor):
    """A tensor of the recorded computation.

    Attributes:
        recorder: where it is recorded.
        shape: its sizes, some of them symbolic.
        dtype: ``"float32"``, ``"int64"``, ...
        hint: what the operator's author calls it, or ``""``.
        parameter: its path inside the operator, for a parameter.
        step: what makes it; None for an input or a parameter.
    """

    recorder: Recorder = field(repr=False)
    shape: Shape
    dtype: str
    hint: str = ""
    parameter: str | None = None
    step: Step | None = field(default=None, repr=False)


@dataclass(eq=False, slots=True)
class Step:
    """One primitive, or the call of a child (``call``) or of a helper function (``helper``).

    Attributes:
        primitive: its name.
        inputs: its tensors; None for an absent one.
        attributes: everything else it was called with; sizes may be symbolic.
        outputs: what it makes.
        frames: the functions of the operator's file that were running, outermost first.
    """

    primitive: str
    inputs: tuple[Value | None, ...]
    attributes: dict[str, Any]
    outputs: tuple[Value, ...] = ()
    frames: tuple[FrameType, ...] = field(default=(), repr=False)


@dataclass(eq=False, slots=True)
class Loop:
    """Steps that are repeated.

    Attributes:
        times: how often.
        variable: the name of its counter.
        body: one repetition.
        carried: (what the first repetition starts from, what stands for it in the body, what the body makes
            for the next one).
    """

    times: int
    variable: str
    body: list[Step | Loop]
    carried: list[tuple[Value, Value, Value]]


class Recorder:
    """Collects steps; what an operator's ``forward`` knows as ``F`` is :attr:`primitives`."""

    def __init__(self, dtype: str, *, keep_argument_names: bool = True) -> None:
        self.dtype = dtype
        self.steps: list[Step | Loop] = []
        self.primitives: Any = RecordingPrimitives()
        self._keeps_arguments = keep_argument_names

    def value(self, shape: Sequence[Any], dtype: str, hint: str = "", parameter: str | None = None) -> Value:
        """A tensor that no step makes."""
        return Value(self, tuple(shape), dtype, hint, parameter)

    def record(
        self,
        primitive: str,
        inputs: Sequence[Value | None],
        shapes: Sequence[Sequence[Any]],
        attributes: Mapping[str, Any] | None = None,
        *,
        cost: Cost | None = None,
        dtype: str | None = None,
        view: bool = False,
    ) -> tuple[Value, ...]:
        """See :meth:`isomorph.primitives.Recorder.record`; what it costs is not asked."""
        step = Step(primitive, tuple(inputs), dict(attributes or {}), frames=_frames())
        self._notice(step)
        kind = dtype or next(value.dtype for value in inputs if value is not None)
        step.outputs = tuple(Value(self, tuple(shape), kind, step=step) for shape in shapes)
        self.steps.append(step)
        return step.outputs

    def combine(self, primitive: str, left: Any, right: Any) -> Value:
        """Arithmetic between tensors, or a tensor and a number (the attribute ``left`` or ``right``)."""
        sides = {"left": left, "right": right}
        rank = max(len(side.shape) for side in sides.values() if isinstance(side, Value))
        sides = {name: _without_leading_ones(side, rank) for name, side in sides.items()}
        return arithmetic(self, primitive, sides["left"], sides["right"])

    def run(self, operator: Any, holder: Any, inputs: Sequence[Any]) -> tuple[Value, ...]:
        """The results of an operator's forward computation."""
        results = operator.forward(holder, self.primitives, *inputs)
        return results if isinstance(results, tuple) else (results,)

    def _notice(self, step: Step) -> None:
        """Remember under which names the step's tensors stand in the functions that are running."""
        for depth, frame in enumerate(step.frames):
            code = frame.f_code
            if code.co_name.startswith("<"):
                continue  # a comprehension: its names say less than those around it
            skipped = code.co_varnames[: code.co_argcount] if depth or not self._keeps_arguments else ()
            for name, value in frame.f_locals.items():
                if isinstance(value, Value) and not value.hint and value.step and name not in skipped:
                    value.hint = name


def _without_leading_ones(side: Any, rank: int) -> Any:
    """What a reshape that only adds axes of 1 in front was made of: arithmetic broadcasts by itself."""
    step = side.step if isinstance(side, Value) else None
    if step is None or step.primitive != "reshape" or len(side.shape) > rank or step.inputs[0] is None:
        return side
    source = step.inputs[0]
    added = len(side.shape) - len(source.shape)
    if added < 1 or side.shape != (*(1,) * added, *source.shape):
        return side
    source.hint = source.hint or side.hint
    return source


def _frames() -> tuple[FrameType, ...]:
    """The frames from the operator's ``forward`` inwards, without those of this package."""
    frames: list[FrameType] = []
    frame = currentframe()
    while frame is not None and frame.f_code is not _RUN:
        if not frame.f_globals.get("__name__", "").startswith(_OWN):
            frames.append(frame)
        frame = frame.f_back
    return () if frame is None else tuple(reversed(frames))


_OWN = ("isomorph.source_code", "isomorph.primitives")
_RUN: CodeType = Recorder.run.__code__


class Holder:
    """What ``forward`` knows as ``m``: parameters as tensors, children that record a call."""

    def __init__(self, **parts: Any) -> None:
        self.__dict__.update(parts)


def used_steps(steps: Sequence[Step], outputs: Sequence[Value]) -> list[Step]:
    """The steps that an output depends on."""
    needed = set(map(id, outputs))
    kept = []
    for step in reversed(steps):
        if any(id(value) in needed for value in step.outputs):
            needed.update(id(value) for value in step.inputs if value is not None)
            kept.append(step)
    return kept[::-1]


def cannot_write(what: str, hints: Sequence[str] = ()) -> IsomorphError:
    """The error for a computation that has no source code here."""
    return IsomorphError("E_BACKEND", f"cannot write {what} as source code", hints=hints)
