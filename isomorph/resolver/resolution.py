"""The pass over the calls of a graph, and what follows it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from isomorph.errors import IsomorphError
from isomorph.language.graph import Call, Contract, Graph, Reference
from isomorph.operators import catalogue
from isomorph.operators.declare import Conflict, Operator
from isomorph.resolver import binding, contracts, finish, ranks, story
from isomorph.resolver.budget import Exhausted
from isomorph.resolver.resolved import ResolvedGraph
from isomorph.resolver.search import Check, Multiple, NoSolution, Several, Undetermined, search
from isomorph.resolver.shapes import AxisClash, RankClash, match, produce
from isomorph.resolver.solver import Clash, OpenShape
from isomorph.resolver.state import Draft, State

CONFLICTS = (Conflict, Clash, AxisClash, RankClash, NoSolution, Several, Undetermined, Exhausted)

FREE_TERMS = 4
"""Terms of one size that cost nothing."""


class Request(NamedTuple):
    """What a caller says beside the definition; :func:`isomorph.resolve` tells what each may be."""

    input: Any = None
    output: Any = None
    dtype: Any = "float32"
    input_dtype: Any = None
    limits: Mapping[str, int] | None = None


class Resolution(State):
    """The pass over the calls of one graph, and what follows it."""

    def __init__(self, graph: Graph, given: list[Contract], request: Request, limits: dict[str, int]) -> None:
        dtype, largest = contracts.check_dtype(request.dtype), limits["max_dimension"]
        inputs, named = contracts.read_inputs(graph.inputs, given, dtype, request.input_dtype, largest)
        outputs = contracts.read_outputs(graph.outputs, request.output, largest)
        super().__init__(graph, limits, dtype, inputs, outputs, named)
        self._applied: dict[Any, tuple[dict[str, Any], list[Any], Operator | None]] = {}

    # -- the main pass -------------------------------------------------------------------------

    def run(self, definition: Callable[[list[Contract], list[Contract]], str]) -> ResolvedGraph:
        """Resolve everything; ``definition`` writes the text from the contracts that it lacks."""
        try:
            for index, call in enumerate(self.graph.calls):
                self.solver.owner = index
                self._enter(index, call)
            self.solver.owner = len(self.drafts)
            outputs = self.outputs = self._bind_outputs()
            self._solve_the_rest()
            return finish.finish(self, outputs, definition)
        except CONFLICTS as conflict:
            raise story.explain(self, conflict) from None

    def _enter(self, index: int, call: Call) -> None:
        operator = catalogue.get(call.operator)
        if operator is None:
            error = catalogue.unknown(call.operator)
            place = call.locate(None) if call.locate else None
            raise IsomorphError(error.code, error.message, place, error.hints)
        draft = Draft(index, call, operator)
        self.drafts.append(draft)
        draft.signature_key, draft.arguments = binding.bind_arguments(self, draft)
        binding.bind_tensors(self, draft)
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
            self.add_value(None, self.dtype, (index, i))
        self._apply(draft)

    # -- shapes --------------------------------------------------------------------------------

    def _apply(self, draft: Draft) -> None:
        """Work out the output shapes of a call from what is known of its inputs."""
        shapes = [self.shapes[value] for _, value in draft.inputs]
        if OpenShape in map(type, shapes):
            shapes = ranks.closed(shapes)
            if OpenShape in map(type, shapes) and not ranks.fix_ranks(self, draft, shapes, self._resume):
                return
            shapes = ranks.closed(shapes)
        key = (draft.signature_key, *shapes)
        applied = self._applied.get(key)
        if applied is None:
            before = len(self.solver.unknowns), len(self.solver.bound)
            applied = self._relate(draft, shapes)
            if before == (len(self.solver.unknowns), len(self.solver.bound)):
                self._applied[key] = applied
        draft.sizes, outputs, draft.instance = applied
        for value, shape in zip(draft.outputs, outputs, strict=True):
            self._set_output(value, shape)
            if type(shape) is tuple:
                self._charge(shape)

    def _charge(self, shape: tuple[Any, ...]) -> None:
        """Sizes of many terms are many terms to copy, to print and to save, wherever they stand."""
        for dim in shape:
            if type(dim) is not int and len(dim.terms) > FREE_TERMS:
                self.solver.budget.spend(len(dim.terms))

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
        for name in operator.bounds:
            draft.check_bound(name, sizes[name])
        known = [solver.value(sizes[name]) for name in operator.sizing]
        instance = None
        if all(type(size) is int for size in known):
            instance = operator.bind(draft.arguments, dict(zip(operator.sizing, known, strict=True)))
        return sizes, outputs, instance

    def _set_output(self, value: int, shape: Any) -> None:
        promised = self.shapes[value]
        if promised is None or promised is shape:
            self.shapes[value] = shape
            return
        # The output was promised with an open rank; what waits for it now learns the shape.
        if type(promised) is not OpenShape:
            for one, other in zip(promised, shape, strict=True):
                self.solver.equal(one, other)
            return
        if type(shape) is OpenShape:
            shape.waiting.append(lambda: self._set_output(value, shape.closed))
            return
        axes = self.solver.close(promised, len(shape))
        for one, other in zip(axes, shape, strict=True):
            self.solver.equal(one, other)

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
        self._search()
        if self._settle_open_shapes():
            self._search()
        for value, shape in enumerate(self.shapes):
            if shape is None or (type(shape) is OpenShape and shape.closed is None):
                raise story.open_shape_error(self, value)

    def _search(self) -> None:
        if len(self.solver.bound) < len(self.solver.unknowns) or self.solver.minimums:
            search(self.solver, self._checks(), self._multiples())

    def _settle_open_shapes(self) -> bool:
        """Close the shapes whose rank nothing fixed, where exactly one rank can be."""
        before = len(self.solver.unknowns)
        for shape in self.shapes:
            if type(shape) is OpenShape and shape.closed is None and not shape.promised:
                ranks.settle(self.solver, shape)
        return len(self.solver.unknowns) > before

    # -- outputs -------------------------------------------------------------------------------

    def _bind_outputs(self) -> list[tuple[str, int]]:
        graph = self.graph
        if not self.output_contracts or (
            len(self.output_contracts) == 1 and not self.output_contracts[0].name
        ):
            bound = self._returned(graph)
        else:
            bound, ports = [], self._ports_at_the_end()
            for one in self.output_contracts:
                reference = graph.bindings.get(one.name)
                if reference is None and one.name in ports:
                    reference = graph.bindings[one.name] = ports[one.name]
                if reference is None:
                    names = ", ".join(graph.bindings) or "none"
                    raise IsomorphError(
                        "E_OUTPUT", f"the output {one.name!r} names no tensor; tensors: {names}", one.location
                    )
                bound.append((one.name, binding.value_of(self, None, reference, None)))
        if self.output_contracts:
            for (_, value), one in zip(bound, self.output_contracts, strict=True):
                self._meet(value, one)
        return bound

    def _returned(self, graph: Graph) -> list[tuple[str, int]]:
        returned = getattr(graph, "returned", None)
        if returned:
            return [(name, binding.value_of(self, None, graph.bindings[name], None)) for name in returned]
        if not graph.calls:
            raise IsomorphError(
                "E_OUTPUT",
                "the definition calls no operator",
                hints=["write at least one, such as linear(64)"],
            )
        if ports := self._ports_at_the_end():
            draft = self.drafts[-1]
            if self.output_contracts:
                raise IsomorphError(
                    "E_OUTPUT",
                    f"{draft.name} ({draft.operator.name}) is last and has several outputs ({', '.join(ports)}), "
                    "the contract has one shape",
                    draft.locate(),
                    [f"name them: output({', '.join(f'{name}=...' for name in ports)})"],
                )
            return [(name, binding.value_of(self, None, port, None)) for name, port in ports.items()]
        if graph.current is None:
            raise IsomorphError(
                "E_OUTPUT", "there is no current tensor at the end, so the output is not known",
                hints=["end with an operator call, or name outputs: output(features=(...))"],
            )  # fmt: skip
        return [("", binding.value_of(self, None, graph.current, None))]

    def _ports_at_the_end(self) -> dict[str, Reference]:
        """The outputs of the last call, where it has several: no other tensor is the current one then."""
        last = len(self.drafts) - 1
        if last < 0 or self.graph.current not in (None, Reference(last, None)):
            return {}
        ports = self.drafts[last].operator.signature.outputs
        return {port.name: Reference(last, k) for k, port in enumerate(ports)} if len(ports) > 1 else {}

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
        checks = []
        for draft in self.drafts:
            for name in draft.operator.bounds:

                def bounded(sizes: tuple[int, ...], draft: Draft = draft, name: str = name) -> None:
                    draft.check_bound(name, sizes[0])

                if name in draft.sizes:  # else the call still waits for a rank
                    checks.append(Check((draft.sizes[name],), bounded, draft.index))
            if draft.instance is None and draft.operator.sizing and draft.sizes:
                dims = tuple(draft.sizes[name] for name in draft.operator.sizing)

                def judge(sizes: tuple[int, ...], draft: Draft = draft) -> None:
                    draft.operator.bind(draft.arguments, dict(zip(draft.operator.sizing, sizes, strict=True)))

                checks.append(Check(dims, judge, draft.index))
        return checks

    def _multiples(self) -> list[Multiple]:
        """What is known of divisibility before any value is tried, of calls whose sizes are still open."""
        return [
            Multiple(draft.sizes[name], number, draft.index)
            for draft in self.drafts
            if draft.instance is None and draft.sizes
            for name, number in draft.operator.provisional(draft.arguments).multiples().items()
            if number > 1
        ]
