"""The text of a function that runs a rewritten program, for the engines of all frameworks.

A function is written for one set of input sizes at a time, as a compiler would: sizes are numbers in the text, and
which kernel serves a product is decided while it is written. A framework supplies a :class:`Writer`, which knows
its own expressions; everything else is here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from isomorph.lowering.derived import Weight
from isomorph.lowering.rewrite import Op, Rewritten

PATH_MARK = "  # "
"""What stands between a line of a source and the path of the operator that it belongs to."""


Read = Callable[[int], str]
"""The name of a tensor in the text, by its id."""


class Writer:
    """Expressions for operations. A framework's writer adds ``_<kind>`` for each kind that has one of its own.

    Attributes:
        scope: what the expressions name; ``P`` is the framework's primitives, which serve every other kind.
    """

    scope: dict[str, Any]

    def parameter(self, path: str) -> str:
        """The name of a parameter that is read as a tensor."""
        raise NotImplementedError

    def weight(self, weight: Weight | None) -> str:
        """The name of a derived weight; ``None`` for an absent one."""
        raise NotImplementedError

    def expression(self, op: Op, read: Read, program: Rewritten) -> str:
        """A Python expression for an operation."""
        write = getattr(self, f"_{op.kind}", None)
        if write is not None:
            return write(op, read, program)
        return f"P.{op.kind}({', '.join(map(read, op.inputs))}{keywords(op.attributes)})"

    def _add(self, op: Op, read: Read, program: Rewritten) -> str:
        return " + ".join(_sides(op, read))

    def _subtract(self, op: Op, read: Read, program: Rewritten) -> str:
        return " - ".join(_sides(op, read))

    def _multiply(self, op: Op, read: Read, program: Rewritten) -> str:
        return " * ".join(_sides(op, read))

    def _rms_norm(self, op: Op, read: Read, program: Rewritten) -> str:
        x, weight, _ = self._norm(op, read)
        return f"P.rms_norm({x}, {weight}{keywords(op.attributes)})"

    def _norm(self, op: Op, read: Read) -> tuple[str, str, str]:
        """Its input, weight and bias: a network's own, or tensors that the network computes."""
        x, *computed = map(read, op.inputs)
        if not computed:
            return x, self.weight(op.weight), self.weight(op.bias)
        weight = computed.pop(0) if op.attributes.get("weight", True) else "None"
        return x, weight, computed[0] if computed else "None"

    def _concatenate(self, op: Op, read: Read, program: Rewritten) -> str:
        parts = "".join(f"{read(tensor)}, " for tensor in op.inputs)
        return f"P.concatenate(({parts}), {op.attributes['axis']})"


def _sides(op: Op, read: Read) -> tuple[str, str]:
    """Both sides of arithmetic; a number is an attribute."""
    tensors = [read(tensor) for tensor in op.inputs]
    left = repr(op.attributes["left"]) if "left" in op.attributes else tensors.pop(0)
    right = repr(op.attributes["right"]) if "right" in op.attributes else tensors.pop(0)
    return left, right


def compose(program: Rewritten, writer: Writer, leading: Iterable[str] = ()) -> str:
    """The source of ``run(<leading>, x0, x1, ...)``, which returns a tuple of the outputs in order.

    A tensor is let go behind its last use, so that no more of them live than in a module's forward.
    """
    names: dict[int, str] = {tensor: f"x{i}" for i, tensor in enumerate(program.inputs.values())}

    def read(tensor: int) -> str:
        if tensor in program.parameters:
            return writer.parameter(program.parameters[tensor])
        return names[tensor]

    last = _last_uses(program)
    lines = []
    for index, op in enumerate(program.ops):
        for output in op.outputs:
            names.setdefault(output, f"t{output}")
        targets = ", ".join(names[output] for output in op.outputs)
        lines.append(f"    {targets} = {writer.expression(op, read, program)}{PATH_MARK}{op.path}")
        done = [names[tensor] for tensor in last.get(index, ()) if tensor in names]
        if done:
            lines.append(f"    del {', '.join(done)}")
    results = "".join(f"{read(tensor)}, " for tensor in program.outputs.values())
    given = (f"x{i}" for i in range(len(program.inputs)))  # one tensor may be given under several names
    arguments = ", ".join([*leading, *given])
    return "\n".join([f"def run({arguments}):", *lines, f"    return ({results})", ""])


PROGRAM = "<prepared>"
"""The file that a source of :func:`compose` seems to stand in."""


def defined(text: str, scope: dict[str, Any]) -> Callable[..., tuple[Any, ...]]:
    """The function ``run`` of a source. The scope does not name it, so that both go with the last reference."""
    exec(compile(text, PROGRAM, "exec"), scope)
    return scope.pop("run")


def _last_uses(program: Rewritten) -> dict[int, list[int]]:
    """For each operation the tensors that nobody reads after it."""
    kept = set(program.outputs.values()) | set(program.parameters)
    last: dict[int, int] = {}
    for index, op in enumerate(program.ops):
        for tensor in (*op.outputs, *op.reads):
            if tensor not in kept:
                last[tensor] = index
    by_index: dict[int, list[int]] = {}
    for tensor, index in last.items():
        by_index.setdefault(index, []).append(tensor)
    return by_index


def tables_read(program: Rewritten) -> tuple[tuple[int, int], ...]:
    """Which inputs, counted in order, are looked up in a table as they are, and how many rows it has.

    Compiled code does not refuse an id outside a table; who calls it can.
    """
    places = {tensor: index for index, tensor in enumerate(program.inputs.values())}
    return tuple(
        (places[op.inputs[0]], program.shapes[op.inputs[1]][0])
        for op in program.ops
        if op.kind == "embedding" and op.inputs[0] in places
    )


def shape_text(shape: Iterable[int]) -> str:
    """``(2, 3)`` and ``(2,)`` as source."""
    return repr(tuple(int(size) for size in shape))


def keywords(attributes: Mapping[str, Any]) -> str:
    """``, axis=1, keepdim=False``."""
    return "".join(f", {name}={value!r}" for name, value in attributes.items())
