"""Every published family by its ``model_type``, and which of them a plan is."""

from __future__ import annotations

from typing import Any, NamedTuple

from isomorph.checkpoints.bert import BERT
from isomorph.checkpoints.clip import CLIP, CLIP_TEXT, CLIP_VISION
from isomorph.checkpoints.dinov2 import DINOV2, DINOV2_WITH_REGISTERS
from isomorph.checkpoints.family import Family, NotThisFamily
from isomorph.checkpoints.gpt2 import GPT2
from isomorph.checkpoints.llama import LLAMA, MINISTRAL, MISTRAL, QWEN2
from isomorph.checkpoints.vit import DEIT, VIT
from isomorph.checkpoints.whisper import WHISPER
from isomorph.errors import IsomorphError
from isomorph.plan import Node, Plan
from isomorph.plan.resolve import resolve

FAMILIES: dict[str, Family] = {
    family.model_type: family
    for family in (
        GPT2,
        LLAMA,
        MISTRAL,
        MINISTRAL,
        QWEN2,
        BERT,
        VIT,
        DEIT,
        DINOV2,
        DINOV2_WITH_REGISTERS,
        WHISPER,
        CLIP,
        CLIP_TEXT,
        CLIP_VISION,
    )
}
"""In the order in which a plan is compared with them."""


class Match(NamedTuple):
    """What a plan is: a family, its configuration, and the plan's path for each of the family's."""

    family: Family
    options: dict[str, Any]
    ours: dict[str, str]


def recognize(plan: Plan) -> Match:
    """The family whose definition computes what a plan computes, whatever its nodes are called.

    Dropout probabilities, initial values and frozen parts may differ: they do not change what is computed
    from the weights.

    Raises:
        IsomorphError: E_CHECKPOINT when no family fits, with what is in the way of each.
    """
    Plan.expect(plan)
    reasons = []
    for family in FAMILIES.values():
        try:
            options = family.describe(plan)
            return Match(
                family, options, _matched(plan, resolve(family.definition(options), dtype=plan.dtype))
            )
        except NotThisFamily as reason:
            reasons.append(f"{family.model_type}: {reason}")
        except IsomorphError as error:
            reasons.append(f"{family.model_type}: {error.message}")
    raise IsomorphError(
        "E_CHECKPOINT", "the network is not laid out as any family that can be exported", hints=reasons
    )


def _matched(plan: Plan, family: Plan) -> dict[str, str]:
    """The plan's parameter path for each of the family plan's; NotThisFamily at the first difference."""
    for ours, theirs in zip(plan.nodes, family.nodes, strict=False):
        if difference := _difference(plan, family, ours, theirs):
            raise NotThisFamily(f"{ours.name} {difference}")
    if len(plan.nodes) != len(family.nodes):
        raise NotThisFamily(f"it would have {len(family.nodes)} nodes, not {len(plan.nodes)}")
    mine, other = ([(v, p.values[v].dtype) for _, v in p.inputs] for p in (plan, family))
    if mine != other or [v for _, v in plan.outputs] != [v for _, v in family.outputs]:
        raise NotThisFamily("its inputs or outputs are others")
    return {
        f"{theirs.name}.{path}": f"{ours.name}.{path}"
        for ours, theirs in zip(plan.nodes, family.nodes, strict=True)
        for path in theirs.operator.all_parameters
    }


def _difference(plan: Plan, family: Plan, ours: Node, theirs: Node) -> str:
    """How two nodes differ, or nothing."""
    a, b = ours.operator, theirs.operator
    if a.name != b.name:
        return f"is {a.name} where {b.name} is expected"
    for argument, value in a.argument_values.items():
        expected = b.argument_values[argument]
        if value != expected and argument not in ("dropout", "layer_scale_init", "init_values"):
            return f"has {argument}={value!r} where {expected!r} is expected"
    shapes = [{path: spec.shape for path, spec in each.all_parameters.items()} for each in (a, b)]
    if shapes[0] != shapes[1]:
        return "has parameters of another shape"
    if (ours.inputs, ours.outputs) != (theirs.inputs, theirs.outputs):
        return "takes its input from elsewhere"
    if _owners(plan, ours) != _owners(family, theirs):
        return "is tied otherwise"
    return ""


def _owners(plan: Plan, node: Node) -> dict[str, tuple[int, str]]:
    """For each tied path of a node its owner's node index and path inside it."""
    index = {each.name: each.index for each in plan.nodes}
    owners = {}
    for path, owner in node.tie.items():
        name, _, inner = owner.partition(".")
        owners[path] = (index[name], inner)
    return owners
