"""Which query may attend which key, found in a plan's operators.

Nothing here knows an operator. Every node is traced, and the attentions that it runs are read from the trace, so
that an operator of someone else's, whatever is inside it, is found as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from isomorph.dimensions import evaluate, symbols_of
from isomorph.display.naming import listed, name_ranges
from isomorph.errors import IsomorphError, shorten
from isomorph.trace.build import sizes_with, trace_operator
from isomorph.trace.program import Program, Step

if TYPE_CHECKING:
    from isomorph.operators.declare import Operator
    from isomorph.plan import Plan

MOST_TOKENS = 64
"""The longest axis of a picture."""
STANDARD_WINDOW = 3


class Pattern(NamedTuple):
    """Who may attend to whom, as an attention is told.

    Attributes:
        causal, window: as in :meth:`isomorph.primitives.Primitives.attention`.
        mask: whether a mask is given.
        cross: whether keys and values come from elsewhere than queries.
    """

    causal: bool = False
    window: int = 0
    mask: bool = False
    cross: bool = False

    @property
    def name(self) -> str:
        """``causal``, ``sliding window of 3``, ``bidirectional, padding mask``, ..."""
        kind = "cross-attention" if self.cross else "causal" if self.causal else "bidirectional"
        if self.window:
            reach = f"window of {self.window}"
            kind = f"sliding {reach}" if self.causal else f"two-sided {reach}"
            kind = f"cross-attention, {kind}" if self.cross else kind
        elif self.cross and self.causal:
            kind = "causal cross-attention"
        return f"{kind}, padding mask" if self.mask else kind

    @property
    def rule(self) -> str:
        """The same in a sentence."""
        if not self.causal and not self.window:
            keys = "every key of the other sequence" if self.cross else "every key"
            return f"Every query attends {keys}{' that the mask shows' if self.mask else ''}."
        others = self.window - 1
        near = f"the {f'{others} keys' if others > 1 else 'key'}"
        if self.window == 1:
            rule = "A query attends its own position alone"
        elif self.causal:
            rule = f"A query attends itself and {near if self.window else 'every key'} before it"
        else:
            rule = f"A query attends itself and {near} on either side"
        return f"{rule}{', where the mask shows them' if self.mask else ''}."


class AttentionNode(NamedTuple):
    """One attention of a plan.

    Attributes:
        path: the operator that runs it, such as ``block0.attn``.
        node: name of the plan's node.
        pattern: who may attend to whom.
        queries, keys: number of positions, T and S, at the sizes that it was found with.
    """

    path: str
    node: str
    pattern: Pattern
    queries: int
    keys: int


def permissions(
    T: int, S: int, causal: bool = False, window: int = 0, mask: Sequence[bool] | None = None
) -> list[list[bool]]:
    """Which key (column) each query (row) may attend: T rows of S.

    The last query stands at the last key: key j is visible to query i when ``j <= i + S - T`` (``causal``),
    ``j > i + S - T - window`` and, without ``causal``, ``j < i + S - T + window`` (``window > 0``), and
    ``mask[j]`` (S booleans).
    """
    return [_row(i + S - T, S, causal, window, mask) for i in range(T)]


def _row(position: int, keys: int, causal: bool, window: int, mask: Sequence[bool] | None) -> list[bool]:
    """What a query that stands at the key ``position`` may attend of the first ``keys`` keys."""
    first = position - window + 1 if window else 0
    last = position if causal else position + window - 1 if window else keys - 1
    return [first <= j <= last and (mask is None or mask[j]) for j in range(keys)]


def attention_nodes(plan: Plan, sizes: Mapping[str, int] | None = None) -> list[AttentionNode]:
    """Every attention in the plan, also inside composite operators, in order of evaluation.

    Args:
        plan: the network.
        sizes: symbol values; for those left out see :func:`isomorph.trace.build.sizes_with`.

    Raises:
        IsomorphError: E_ARGUMENT for an unknown symbol or a value outside its bound.
    """
    values = sizes_with(plan, sizes)
    shapes = [tuple(evaluate(d, values) for d in value.shape) for value in plan.values]
    known: dict[Any, list[AttentionNode]] = {}
    attentions = []
    for node in plan.nodes:
        slots = node.call_slots
        inputs = tuple(None if slot is None else shapes[slot] for slot in slots)
        key = (node.operator, inputs)
        if key not in known:
            known[key] = _inside(node.operator, inputs, plan.dtype)
        attentions += [inner._replace(path=node.name + inner.path, node=node.name) for inner in known[key]]
    return attentions


def _inside(operator: Operator, inputs: Sequence[tuple[int, ...] | None], dtype: str) -> list[AttentionNode]:
    """The attentions of one operator, their paths from it on."""
    program = trace_operator(operator, inputs, dtype=dtype)
    steps = [step for step in program.steps if step.primitive == "attention"]
    if not steps:
        return []
    origins = _origins(program)
    return [_attention(step, program, origins, len(operator.name)) for step in steps]


def _attention(
    step: Step, program: Program, origins: Mapping[int, frozenset[int]], prefix: int
) -> AttentionNode:
    q, k = step.inputs[:2]
    rule = step.attributes
    pattern = Pattern(rule["causal"], rule["window"], rule["mask"], cross=origins[q] != origins[k])
    return AttentionNode(
        step.path[prefix:], "", pattern, program.tensors[q].shape[2], program.tensors[k].shape[2]
    )


def _origins(program: Program) -> dict[int, frozenset[int]]:
    """For each tensor, the inputs of the program that it depends on."""
    origins = {tensor.id: frozenset((tensor.id,)) for tensor in program.inputs.values()}
    for step in program.steps:
        merged = frozenset[int]().union(*(origins.get(tensor, frozenset()) for tensor in step.inputs))
        origins.update(dict.fromkeys(step.outputs, merged))
    return origins


class Panel(NamedTuple):
    """One square of the picture.

    Attributes:
        names: whose it is: the nodes, or the name of a standard pattern.
        pattern: what it shows.
        queries, keys: positions drawn.
        all_queries, all_keys: positions there are.
        attentions: how many of the network's attentions have it.
        matches: whether it is a standard pattern that the network has.
        standard: whether it is one for comparison.
    """

    names: str
    pattern: Pattern
    queries: int
    keys: int
    all_queries: int
    all_keys: int
    attentions: int = 0
    matches: bool = False
    standard: bool = False

    @property
    def title(self) -> str:
        """``block0..block11 · causal``."""
        return self.names if self.standard else f"{self.names} · {self.pattern.name}"

    @property
    def mask(self) -> list[bool] | None:
        """An example of a mask: the last quarter of the keys drawn is padding."""
        if not self.pattern.mask:
            return None
        padding = self.keys // 4 or int(self.keys > 1)
        return [True] * (self.keys - padding) + [False] * padding

    def cells(self, masked: bool = True) -> list[list[bool]]:
        """The permissions drawn: the first rows and columns of all, with the example mask or without."""
        shift, mask = self.all_keys - self.all_queries, self.mask if masked else None
        causal, window = self.pattern.causal, self.pattern.window
        return [_row(i + shift, self.keys, causal, window, mask) for i in range(self.queries)]


def panels(
    plan: Plan, length: int = 8, sizes: Mapping[str, int] | None = None
) -> tuple[list[Panel], list[Panel]]:
    """The panels of a picture: one per distinct pattern of the plan, and the standard ones.

    Args:
        plan, length, sizes: as of :func:`draw_attention`.

    Raises:
        IsomorphError: E_ARGUMENT for a length outside 1 .. 64, for sizes that the plan cannot have, and for a
            plan without attention.
    """
    if type(length) is not int or not 1 <= length <= MOST_TOKENS:
        raise IsomorphError(
            "E_ARGUMENT", f"length must be an int from 1 to {MOST_TOKENS}, got {shorten(length)}"
        )
    nodes = attention_nodes(plan, {**_drawn_sizes(plan, length), **(sizes or {})})
    groups: dict[tuple[Pattern, int, int], list[AttentionNode]] = {}
    for node in nodes:
        groups.setdefault((node.pattern, node.queries, node.keys), []).append(node)
    if not groups:
        raise IsomorphError(
            "E_ARGUMENT", "the network has no attention, so there are no permissions to draw",
            hints=["without --attention, the network itself is drawn"],
        )  # fmt: skip
    several = {name for name, count in Counter(node.node for node in nodes).items() if count > 1}
    own = [
        Panel(_names(alike, several), pattern, min(T, length), min(S, length), T, S, len(alike))
        for (pattern, T, S), alike in groups.items()
    ]
    return own, _standard(own, length)


def _drawn_sizes(plan: Plan, length: int) -> dict[str, int]:
    """Symbol values for a picture: the first axis of tokens is ``length`` long, others differ from it."""
    batch = {s for _, value in plan.inputs for s in symbols_of((plan.values[value].shape or (1,))[0])}
    free = [symbol for symbol in plan.symbols if symbol not in batch]
    sizes = {}
    for index, symbol in enumerate(free):
        low, high = plan.bounds.get(symbol, (0, None))
        size = max(low, 1, length - 2 * index)
        sizes[symbol] = size if high is None else min(size, high)
    return sizes


def _names(nodes: Sequence[AttentionNode], several: Container[str]) -> str:
    """The nodes' names; with the path inside where a node has several attentions."""
    inside: dict[str, list[str]] = {}
    for node in nodes:
        inside.setdefault(node.path[len(node.node) :] if node.node in several else "", []).append(node.node)
    parts = [f"{names}{path}" for path, owners in inside.items() for names in name_ranges(owners)]
    return listed(parts)


def _standard(own: Sequence[Panel], length: int) -> list[Panel]:
    """The four patterns for comparison, those that the network has marked."""
    selves = [panel for panel in own if not panel.pattern.cross]
    tokens = max((panel.queries for panel in selves), default=length)
    theirs = {panel.pattern for panel in selves}
    windows = [pattern for pattern in theirs if pattern.window and not pattern.mask and pattern.causal]
    window = min(windows, default=Pattern(causal=True, window=STANDARD_WINDOW))  # its own, if it has one
    patterns = {
        "bidirectional": Pattern(),
        "causal": Pattern(causal=True),
        "sliding window": window,
        "padding": Pattern(mask=True),
    }
    return [
        Panel(name, pattern, tokens, tokens, tokens, tokens, matches=pattern in theirs, standard=True)
        for name, pattern in patterns.items()
    ]
