"""From a definition to a plan: bind arguments and tensors, solve the sizes, check what is left."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from isomorph.errors import IsomorphError, shorten
from isomorph.language.graph import Call, Contract, Graph, Reference
from isomorph.limits import limits_with
from isomorph.operators import registry
from isomorph.operators.declare import Conflict, Operator
from isomorph.plan import Plan
from isomorph.resolver import contracts, finish, story
from isomorph.resolver.search import Check, Several, Undetermined, search
from isomorph.resolver.shapes import AxisClash, RankClash, match, produce
from isomorph.resolver.solver import Clash, OpenShape, Solver

CONFLICTS = (Conflict, Clash, AxisClash, RankClash, Several, Undetermined)


def resolve(
    text: str | bytes,
    *,
    input: Any = None,
    output: Any = None,
    dtype: str = "float32",
    input_dtype: Any = None,
    limits: Mapping[str, int] | None = None,
    file: str = "<definition>",
) -> Plan:
    """Work out every argument, shape and parameter of a definition; allocate nothing.

    Args:
        text: the definition.
        input: the input's shape, or a dictionary of shapes by name; may stand in the text instead.
        output: the shape that the output must have, or a dictionary by name.
        dtype: compute dtype: float32, float64, bfloat16 or float16.
        input_dtype: dtype of the inputs, or a dictionary by name; the compute dtype where omitted.
        limits: bounds that replace those of :data:`isomorph.limits.DEFAULTS`.
        file: the name shown in errors.

    Raises:
        IsomorphError: with the code and the place of whatever is wrong.
    """
    from isomorph.language.parser import parse
    from isomorph.language.writer import with_contracts

    bounds = limits_with(limits)
    given = contracts.given_contracts("input", input)
    names = tuple(one.name or "x" for one in given) or None
    graph = parse(text, file=file, limits=bounds, input_names=names, is_operator=_is_operator)
    resolution = Resolution(graph, given, output, dtype, input_dtype, bounds)
    return resolution.run(lambda ins, outs: with_contracts(graph.source, ins, outs))


def resolve_file(path: str | os.PathLike[str], **arguments: Any) -> Plan:
    """:func:`resolve` of a file's contents. E_SYNTAX when the file cannot be read."""
    name = os.fspath(path)
    limits = limits_with(arguments.get("limits"))
    try:
        with open(name, "rb") as file:
            text = file.read(limits["max_source_bytes"] + 1)
    except OSError as error:
        raise IsomorphError(
            "E_SYNTAX", f"cannot read the definition {name}: {error.strerror}",
            hints=["give the path of a .net file"],
        ) from None  # fmt: skip
    return resolve(text, file=name, **arguments)


def resolve_function(
    function: Callable[..., Any],
    *,
    input: Any,
    output: Any = None,
    dtype: str = "float32",
    input_dtype: Any = None,
    limits: Mapping[str, int] | None = None,
) -> Plan:
    """:func:`resolve` of the calls that a Python function makes to ``iso.ops``; equal plans result."""
    from isomorph.language.capture import capture
    from isomorph.language.writer import write

    bounds = limits_with(limits)
    given = contracts.given_contracts("input", input)
    names = tuple(one.name or "x" for one in given) or ("x",)
    graph = capture(function, input_names=names)
    resolution = Resolution(graph, given, output, dtype, input_dtype, bounds)

    def definition(inputs: list[Contract], outputs: list[Contract]) -> str:
        graph.inputs, graph.outputs = inputs, outputs
        return write(graph)

    return resolution.run(definition)


def _is_operator(name: str) -> bool:
    return registry.get(name) is not None


class Draft:
    """An operator call on its way to becoming a node."""

    __slots__ = (
        "arguments", "call", "index", "inputs", "instance", "operator", "outputs", "signature_key", "sizes",
    )  # fmt: skip

    def __init__(self, index: int, call: Call, operator: type[Operator]) -> None:
        self.index, self.call, self.operator = index, call, operator
        self.inputs: list[tuple[str, int]] = []
        self.outputs: tuple[int, ...] = ()
        self.arguments: dict[str, Any] = {}
        self.signature_key: int = 0
        self.sizes: dict[str, Any] = {}
        self.instance: Operator | None = None

    @property
    def name(self) -> str:
        return self.call.name or f"n{self.index}"

    def locate(self, key: Any = None) -> Any:
        return self.call.locate(key) if self.call.locate is not None else None


class Resolution:
    """The state of resolving one graph."""

    def __init__(
        self, graph: Graph, given: list[Contract], output: Any, dtype: str, input_dtype: Any, limits: dict[str, int]
    ) -> None:
        self.graph, self.limits = graph, limits
        self.dtype = contracts.check_dtype(dtype)
        self.solver = Solver()
        self.drafts: list[Draft] = []
        self.shapes: list[Any] = []
        self.dtypes: list[str] = []
        self.producers: list[tuple[int, int]] = []  # (call, output index), or (-1, input index)
        self._arguments: dict[Any, tuple[int, dict[str, Any]]] = {}
        self._applied: dict[Any, tuple[dict[str, Any], list[Any], Operator | None]] = {}
        self.input_contracts = self._read_inputs(given, input_dtype)
        self.output_contracts = self._read_outputs(output)

    # -- contracts -----------------------------------------------------------------------------

    def _read(self, kind: str, items: list[Contract]) -> list[contracts.Declared]:
        largest = self.limits["max_dimension"]
        return [
            contracts.Declared(c.name, contracts.read_shape(c, kind, largest), c.dtype, c.location) for c in items
        ]

    def _read_inputs(self, given: list[Contract], input_dtype: Any) -> list[contracts.Declared]:
        merged = contracts.merge(
            "input", self._read("input", self.graph.inputs), self._read("input", given)
        )
        if not merged:
            raise IsomorphError(
                "E_BINDING", "no input is declared",
                hints=['pass input=("B", 8, 32), or begin the definition with input("B", 8, 32)'],
            )  # fmt: skip
        self.named_inputs = len(merged) > 1 or merged[0].name not in ("", "x") or any(c.name for c in given)
        dtypes = self._input_dtypes([one.name or "x" for one in merged], input_dtype)
        found = []
        for one in merged:
            name = one.name or "x"
            asked, stated = dtypes.get(name), one.dtype
            if stated is not None:
                contracts.check_input_dtype(stated, one.location)
            if asked and stated and asked != stated:
                raise IsomorphError(
                    "E_DTYPE", f"input {name}: the definition says {stated}, the call says {asked}", one.location,
                    ["leave one of the two out, or make them equal"],
                )  # fmt: skip
            found.append(one._replace(name=name, dtype=asked or stated or self.dtype))
        for i, one in enumerate(found):
            self._add_value(one.shape, one.dtype or self.dtype, (-1, i))
        return found

    def _input_dtypes(self, names: list[str], input_dtype: Any) -> dict[str, str]:
        if input_dtype is None:
            return {}
        if not isinstance(input_dtype, Mapping):
            return dict.fromkeys(names, contracts.check_input_dtype(input_dtype))
        for name in input_dtype:
            if name not in names:
                raise IsomorphError(
                    "E_BINDING", f"input_dtype names {shorten(name)}, which is no input; inputs: {', '.join(names)}"
                )
        return {name: contracts.check_input_dtype(dtype) for name, dtype in input_dtype.items()}

    def _read_outputs(self, output: Any) -> list[contracts.Declared]:
        given = self._read("output", contracts.given_contracts("output", output))
        return contracts.merge("output", self._read("output", self.graph.outputs), given)

    # -- the main pass -------------------------------------------------------------------------

    def run(self, definition: Callable[[list[Contract], list[Contract]], str]) -> Plan:
        """Resolve everything; ``definition`` writes the text from the contracts that it lacks."""
        try:
            for index, call in enumerate(self.graph.calls):
                self.solver.owner = index
                self._enter(index, call)
            self.solver.owner = len(self.drafts)
            outputs = self._bind_outputs()
            self._solve_the_rest()
            return finish.finish(self, outputs, definition)
        except CONFLICTS as conflict:
            raise story.explain(self, conflict) from None

    def _add_value(self, shape: Any, dtype: str, producer: tuple[int, int]) -> int:
        self.shapes.append(shape)
        self.dtypes.append(dtype)
        self.producers.append(producer)
        return len(self.shapes) - 1

    def _enter(self, index: int, call: Call) -> None:
        operator = registry.get(call.operator)
        if operator is None:
            error = registry.unknown(call.operator)
            place = call.locate(None) if call.locate else None
            raise IsomorphError(error.code, error.message, place, error.hints)
        draft = Draft(index, call, operator)
        self.drafts.append(draft)
        draft.signature_key, draft.arguments = self._bind_arguments(draft)
        self._bind_tensors(draft)
        ports = operator.signature.outputs
        if call.targets and call.targets != len(ports):
            names = ", ".join(port.name for port in ports)
            raise IsomorphError(
                "E_BINDING",
                f"{operator.name} has {len(ports)} output{'s' * (len(ports) > 1)} ({names}), "
                f"{call.targets} name{'s are' if call.targets > 1 else ' is'} given",
                draft.locate(),
                [f"write {names} = {operator.name}(...)"] if len(ports) > 1 else [],
            )
        first = len(self.shapes)
        draft.outputs = tuple(range(first, first + len(ports)))
        for i in range(len(ports)):
            self._add_value(None, self.dtype, (index, i))
        self._apply(draft)

    def _bind_arguments(self, draft: Draft) -> tuple[int, dict[str, Any]]:
        """Complete, checked arguments and a number that is equal for equal ones."""
        call, operator = draft.call, draft.operator
        given = call.arguments
        keywords = call.keywords
        key: Any = (
            operator, given, tuple(map(type, given)), tuple(keywords.items()),
            tuple(map(type, keywords.values())),
        )  # fmt: skip
        try:
            found = self._arguments.get(key)
        except TypeError:  # a list or dictionary among the values; refused below with its place
            key, found = None, None
        if found is None:
            found = len(self._arguments), operator.complete(self._named(draft))
            if key is not None:
                self._arguments[key] = found
        return found

    def _named(self, draft: Draft) -> dict[str, Any]:
        """Positional literals given their names."""
        call, operator = draft.call, draft.operator
        named: dict[str, Any] = {}
        positional = operator.positional
        if positional and positional[0].variadic:
            if call.arguments:
                named[positional[0].name] = call.arguments
        else:
            if len(call.arguments) > len(positional):
                takes = ", ".join(spec.name for spec in positional) or "none"
                raise IsomorphError(
                    "E_ARGUMENT",
                    f"{operator.name} takes {len(positional)} positional argument"
                    f"{'s' * (len(positional) != 1)} ({takes}), got {len(call.arguments)}",
                    draft.locate(len(positional)),
                    ["give the others by keyword: " + ", ".join(operator.arguments)],
                )
            named.update(zip((spec.name for spec in positional), call.arguments, strict=False))
        for name, value in call.keywords.items():
            if name in named:
                raise IsomorphError(
                    "E_ARGUMENT", f"{operator.name}: {name} is given by position and by keyword", draft.locate(name)
                )
            if any(port.name == name for port in operator.signature.inputs):
                raise IsomorphError(
                    "E_BINDING", f"{operator.name}: {name} takes a tensor, got {shorten(value)}", draft.locate(name)
                )
            named[name] = value
        return named

    def _bind_tensors(self, draft: Draft) -> None:
        """Find the value for every input port; E_BINDING says which tensors an operator takes."""
        call, ports = draft.call, draft.operator.signature.inputs
        if len(ports) == 1 and not call.inputs and not call.keyword_inputs and not ports[0].variadic:
            reference = call.current
            if reference is None:
                raise self._no_current(draft)
            draft.inputs.append((ports[0].name, self._value_of(draft, reference, None)))
            self._check_dtype(draft, ports[0], draft.inputs[0][1])
            return
        given = self._assign_tensors(draft, ports)
        for port, reference, place in given:
            value = self._value_of(draft, reference, place)
            draft.inputs.append((port if isinstance(port, str) else port.name, value))
            self._check_dtype(draft, ports[0] if isinstance(port, str) else port, value)

    def _assign_tensors(self, draft: Draft, ports: Any) -> list[tuple[Any, Reference, Any]]:
        call, name = draft.call, draft.operator.name
        if ports[0].variadic:
            if len(call.inputs) < 2 or call.keyword_inputs:
                raise IsomorphError(
                    "E_BINDING", f"{name} takes two or more tensors, got {len(call.inputs)}", draft.locate(),
                    [f"write {name}(a, b)"],
                )  # fmt: skip
            return [(f"{ports[0].name}{i}", r, ("input", i)) for i, r in enumerate(call.inputs)]
        if len(call.inputs) > len(ports):
            raise IsomorphError(
                "E_BINDING",
                f"{name} takes {len(ports)} tensor{'s' * (len(ports) > 1)} "
                f"({', '.join(port.name for port in ports)}), got {len(call.inputs)}",
                draft.locate(("input", len(ports))),
            )
        chosen: dict[str, tuple[Reference, Any]] = {}
        for i, (port, reference) in enumerate(zip(ports, call.inputs, strict=False)):
            chosen[port.name] = reference, ("input", i)
        for key, reference in call.keyword_inputs.items():
            if all(port.name != key for port in ports):
                raise IsomorphError(
                    "E_BINDING",
                    f"{name} has no input {key!r}; it takes {', '.join(port.name for port in ports)}",
                    draft.locate(key),
                )
            if key in chosen:
                raise IsomorphError("E_BINDING", f"{name}: input {key} is given twice", draft.locate(key))
            chosen[key] = reference, key
        required = [port for port in ports if not port.optional]
        if len(required) == 1 and required[0].name not in chosen:
            if call.current is None:
                raise self._no_current(draft)
            chosen[required[0].name] = call.current, None
        missing = [port.name for port in required if port.name not in chosen]
        if missing:
            takes = ", ".join(port.name for port in required)
            raise IsomorphError(
                "E_BINDING", f"{name} takes the tensors {takes}; missing: {', '.join(missing)}", draft.locate(),
                [f"write {name}({takes})"],
            )  # fmt: skip
        return [(port, *chosen[port.name]) for port in ports if port.name in chosen]

    def _no_current(self, draft: Draft) -> IsomorphError:
        name = draft.operator.name
        return IsomorphError(
            "E_BINDING", f"{name} needs a tensor and there is no current one here", draft.locate(),
            [f"give it first, as in {name}(h, ...)"],
        )  # fmt: skip

    def _value_of(self, draft: Draft | None, reference: Reference, place: Any) -> int:
        call, output = reference
        if call < 0:
            return output or 0
        made = self.drafts[call]
        if output is None:
            if len(made.outputs) > 1:
                ports = [port.name for port in made.operator.signature.outputs]
                raise IsomorphError(
                    "E_BINDING",
                    f"{made.name} ({made.operator.name}) has several outputs, so none of them is current",
                    (draft or made).locate(place),
                    [f"name them: {', '.join(ports)} = {made.operator.name}(...)"],
                )
            output = 0
        return made.outputs[output]

    def _check_dtype(self, draft: Draft, port: Any, value: int) -> None:
        dtype = self.dtypes[value]
        expected = self.dtype if port.dtype == "compute" else port.dtype
        if dtype == expected or (expected == "int64" and dtype == "int32"):
            return
        hint = {
            "int64": 'declare the input as integers: input(..., dtype="int64")',
            "bool": 'declare the input as booleans: input(..., dtype="bool")',
        }.get(expected, "integers become features through embedding(...)" if "int" in dtype else "")
        raise IsomorphError(
            "E_DTYPE",
            f"{draft.operator.name}: input {port.name} must be {expected}, {story.source_of(self, value)} is {dtype}",
            draft.locate(),
            [hint] if hint else [],
        )

    # -- shapes --------------------------------------------------------------------------------

    def _apply(self, draft: Draft) -> None:
        """Work out the output shapes of a call from what is known of its inputs."""
        shapes = [self.shapes[value] for _, value in draft.inputs]
        if OpenShape in map(type, shapes):
            shapes = self._closed(shapes)
            if OpenShape in map(type, shapes) and not self._fix_ranks(draft, shapes):
                return
            shapes = self._closed(shapes)
        key = (draft.signature_key, *shapes)
        found = self._applied.get(key)
        if found is None:
            before = len(self.solver.unknowns), len(self.solver.bound)
            found = self._relate(draft, shapes)
            if before == (len(self.solver.unknowns), len(self.solver.bound)):
                self._applied[key] = found
        draft.sizes, outputs, draft.instance = found
        for value, shape in zip(draft.outputs, outputs, strict=True):
            self._set_output(value, shape)

    def _relate(self, draft: Draft, shapes: list[Any]) -> tuple[dict[str, Any], list[Any], Operator | None]:
        operator, solver = draft.operator, self.solver
        ports = operator.signature.inputs
        sizes = draft.sizes = {}
        for name, spec in operator.arguments.items():
            if spec.size and draft.arguments[name] is not None:
                sizes[spec.size] = draft.arguments[name]
        if operator.ranks and len(shapes[0]) not in operator.ranks:
            raise RankClash(ports[0], shapes[0], operator.ranks)
        if not ports[0].variadic:
            by_name = {port.name: port for port in ports}
            for (name, _), shape in zip(draft.inputs, shapes, strict=True):
                match(solver, by_name[name], shape, sizes)
        if operator.relate is None:
            outputs = [produce(solver, port, sizes, draft.arguments) for port in operator.signature.outputs]
        else:
            for name, spec in operator.arguments.items():
                if spec.size and spec.size not in sizes:
                    sizes[spec.size] = solver.unknown(name, name)
            provisional = operator.provisional(draft.arguments)
            outputs = list(provisional.relate(solver, sizes, *shapes))
        for name, argument in operator.bounds.items():
            if type(sizes[name]) is int and sizes[name] > draft.arguments[argument]:
                raise Conflict(
                    f"{name}={sizes[name]} exceeds {argument}={draft.arguments[argument]}",
                    argument=argument,
                    sizes=(name,),
                )
        known = [solver.value(sizes[name]) for name in operator.sizing]
        instance = None
        if all(type(size) is int for size in known):
            instance = operator.bind(draft.arguments, dict(zip(operator.sizing, known, strict=True)))
        return sizes, outputs, instance

    def _set_output(self, value: int, shape: Any) -> None:
        held = self.shapes[value]
        if held is None or held is shape:
            self.shapes[value] = shape
            return
        # The output was promised with an open rank; what waits for it now learns the shape.
        if type(held) is not OpenShape:
            for one, other in zip(held, shape, strict=True):
                self.solver.equal(one, other)
            return
        if type(shape) is OpenShape:
            shape.waiting.append(lambda: self._set_output(value, shape.closed))
            return
        axes = self.solver.close(held, len(shape))
        for one, other in zip(axes, shape, strict=True):
            self.solver.equal(one, other)

    @staticmethod
    def _closed(shapes: list[Any]) -> list[Any]:
        return [s.closed or s if type(s) is OpenShape else s for s in shapes]

    def _fix_ranks(self, draft: Draft, shapes: list[Any]) -> bool:
        """Some input's rank is unknown: fix it, or make the call wait. True when all are known."""
        operator = draft.operator
        ports = [self._port(draft, name) for name, _ in draft.inputs]
        middle = self._middle(operator, ports, shapes)
        still_open = []
        for port, shape in zip(ports, shapes, strict=True):
            if type(shape) is not OpenShape or shape.closed is not None:
                continue
            if operator.ranks:
                shape.limit_ranks(operator.ranks)
            rank = port.rank if middle is None or port.rank is not None else len(port.axes) - 1 + middle
            if rank is None:
                still_open.append((port, shape))
                continue
            try:
                self.solver.close(shape, rank)
            except Clash:
                raise RankClash(port, shape.prefix, (rank,)) from None
        if still_open:
            self._wait_for_ranks(draft, still_open)
        return not still_open

    @staticmethod
    def _port(draft: Draft, name: str) -> Any:
        ports = draft.operator.signature.inputs
        return next((port for port in ports if port.name == name), ports[0])  # else one of a variadic port

    @staticmethod
    def _keeps_rank(operator: type[Operator]) -> bool:
        """Whether ``...`` in the operator's pattern is the same number of axes wherever it stands."""
        return operator.relate is None or operator.keeps_rank

    def _middle(self, operator: type[Operator], ports: list[Any], shapes: list[Any]) -> int | None:
        """How many axes ``...`` stands for, if some input says."""
        if self._keeps_rank(operator):
            for port, shape in zip(ports, shapes, strict=True):
                if type(shape) is not OpenShape and "..." in port.axes:
                    return len(shape) - (len(port.axes) - 1)
        return None

    def _wait_for_ranks(self, draft: Draft, still_open: list[tuple[Any, OpenShape]]) -> None:
        """Resume the call when a rank is known, and let every rank that ``...`` ties to it follow."""
        operator = draft.operator
        if self.shapes[draft.outputs[0]] is None:
            self._promise_outputs(draft, *still_open[0])
        still_open[0][1].waiting.append(lambda: self._resume(draft))
        if not self._keeps_rank(operator):
            return
        outputs = zip(operator.signature.outputs, (self.shapes[v] for v in draft.outputs), strict=True)
        linked = [(port, shape) for port, shape in [*still_open, *outputs] if "..." in port.axes]
        for port, shape in linked:
            shape.links += [(o, len(p.axes) - len(port.axes)) for p, o in linked if o is not shape]
            shape.waiting.append(lambda port=port, shape=shape: self._follow(draft, port, shape, linked))

    def _promise_outputs(self, draft: Draft, port: Any, shape: OpenShape) -> None:
        """Give the outputs of a waiting call open shapes, or what can be said without the rank."""
        operator = draft.operator
        if operator.relate_open is not None and shape.count is not None:
            provisional = operator.provisional(draft.arguments)
            made = provisional.relate_open(self.solver, shape.prefix, shape.count)
            for value, known in zip(draft.outputs, made, strict=True):
                self.shapes[value] = known
            return
        for value, output in zip(draft.outputs, operator.signature.outputs, strict=True):
            same = operator.keeps_count or (operator.relate is None and output.axes == port.axes)
            self.shapes[value] = OpenShape((), shape.count if same else None, draft.index)

    def _follow(self, draft: Draft, port: Any, shape: OpenShape, linked: list[tuple[Any, OpenShape]]) -> None:
        middle = len(shape.closed or ()) - len(port.axes)
        for other_port, other in linked:
            if other.closed is None:
                try:
                    self.solver.close(other, len(other_port.axes) + middle)
                except Clash:
                    other_rank = (len(other_port.axes) + middle,)
                    conflict = RankClash(other_port, other.prefix, other_rank)
                    conflict.owner = draft.index
                    raise conflict from None

    def _resume(self, draft: Draft) -> None:
        outer, self.solver.owner = self.solver.owner, draft.index
        try:
            self._apply(draft)
        except CONFLICTS as conflict:
            if getattr(conflict, "owner", None) is None:
                conflict.owner = draft.index  # type: ignore[union-attr]
            raise
        self.solver.owner = outer

    def _solve_the_rest(self) -> None:
        """Ranks that only one number fits, then sizes, then the ranks that those sizes decide."""
        self._settle_open_shapes()
        search(self.solver, self._checks())
        if self._settle_open_shapes():
            search(self.solver, self._checks())
        for value, shape in enumerate(self.shapes):
            if shape is None or (type(shape) is OpenShape and shape.closed is None):
                raise story.open_shape_error(self, value)

    def _settle_open_shapes(self) -> bool:
        """Close the shapes whose rank nothing fixed, where exactly one rank can be."""
        before = len(self.solver.unknowns)
        for shape in self.shapes:
            if type(shape) is OpenShape and shape.closed is None and shape.prefix:
                finish.settle(self, shape)
        return len(self.solver.unknowns) > before

    # -- outputs -------------------------------------------------------------------------------

    def _bind_outputs(self) -> list[tuple[str, int]]:
        graph = self.graph
        if not self.output_contracts or (len(self.output_contracts) == 1 and not self.output_contracts[0].name):
            bound = self._returned(graph)
        else:
            bound = []
            for one in self.output_contracts:
                reference = graph.bindings.get(one.name)
                if reference is None:
                    names = ", ".join(graph.bindings) or "none"
                    raise IsomorphError(
                        "E_OUTPUT", f"the output {one.name!r} names no tensor; tensors: {names}", one.location
                    )
                bound.append((one.name, self._value_of(None, reference, None)))
        if self.output_contracts:
            for (_, value), one in zip(bound, self.output_contracts, strict=True):
                self._meet(value, one)
        return bound

    def _returned(self, graph: Graph) -> list[tuple[str, int]]:
        returned = getattr(graph, "returned", None)
        if returned:
            return [(name, self._value_of(None, graph.bindings[name], None)) for name in returned]
        if not graph.calls:
            raise IsomorphError(
                "E_OUTPUT", "the definition calls no operator", hints=["write at least one, such as linear(64)"]
            )
        if graph.current is None:
            raise IsomorphError(
                "E_OUTPUT", "there is no current tensor at the end, so the output is not known",
                hints=["end with an operator call, or name outputs: output(features=(...))"],
            )  # fmt: skip
        return [("", self._value_of(None, graph.current, None))]

    def _meet(self, value: int, contract: contracts.Declared) -> None:
        """Equate an output's shape with its contract."""
        shape = self.shapes[value]
        if type(shape) is OpenShape:
            try:
                shape = self.solver.close(shape, len(contract.shape))
            except Clash:
                raise story.output_error(self, value, contract, shape.prefix) from None
        if len(shape) != len(contract.shape):
            raise story.output_error(self, value, contract, shape)
        for axis, (one, other) in enumerate(zip(shape, contract.shape, strict=True)):
            try:
                self.solver.equal(one, other)
            except Clash as clash:
                if clash.owner is not None and clash.owner != len(self.drafts):
                    raise
                raise story.output_error(self, value, contract, shape, axis, clash) from None

    # -- the end -------------------------------------------------------------------------------

    def _checks(self) -> list[Check]:
        """Rules of calls whose sizes are still open, as filters for the search."""
        found = []
        for draft in self.drafts:
            if draft.instance is None and draft.operator.sizing and draft.sizes:
                dims = tuple(draft.sizes[name] for name in draft.operator.sizing)

                def judge(sizes: tuple[int, ...], draft: Draft = draft) -> None:
                    draft.operator.bind(draft.arguments, dict(zip(draft.operator.sizing, sizes, strict=True)))

                found.append(Check(dims, judge, draft.index))
        return found
