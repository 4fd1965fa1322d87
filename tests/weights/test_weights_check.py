"""Strict weights: everything that is wrong, at once."""

import pytest

from isomorph.errors import IsomorphError
from isomorph.plan.resolve import resolve
from isomorph.weights.check import check_weights


def shapes(plan):
    return {parameter.path: parameter.shape for parameter in plan.parameters}


def test_exact_weights_pass():
    plan = resolve("linear(3)\nlayer_norm()", input=("B", 2))
    assert shapes(plan) == {"n0.weight": (3, 2), "n0.bias": (3,), "n1.weight": (3,), "n1.bias": (3,)}
    check_weights(plan, shapes(plan))
    check_weights(plan, {path: list(shape) for path, shape in shapes(plan).items()})


def test_every_fault_is_listed_at_once():
    plan = resolve("linear(3)\nlayer_norm()", input=("B", 2))
    given = shapes(plan)
    del given["n0.bias"], given["n1.bias"]
    given["n0.weight"] = (2, 3)  # the transpose is another layout, not a spelling
    given["n1.weight"] = (1,)  # nor is anything broadcast
    given["n0.biass"] = (3,)
    given["module.extra"] = (5, 1)
    with pytest.raises(IsomorphError) as caught:
        check_weights(plan, given)
    assert str(caught.value) == (
        "E_WEIGHTS: the weights do not fit the plan: 2 missing, 2 unexpected, 2 misshapen\n"
        "  missing: n0.bias [3]\n"
        "  missing: n1.bias [3]\n"
        "  unexpected: n0.biass [3] (did you mean n0.bias or n1.bias?)\n"
        "  unexpected: module.extra [5, 1]\n"
        "  misshapen: n0.weight: expected [3, 2], got [2, 3]\n"
        "  misshapen: n1.weight: expected [3], got [1]"
    )


def test_a_tied_path_is_its_owners():
    plan = resolve(
        'embedding(5, 3, name="wte")\nlinear(5, bias=False, tie={"weight": "wte.weight"}, name="head")',
        input=("B", "T"),
        input_dtype="int64",
    )
    check_weights(plan, {"wte.weight": (5, 3)})
    with pytest.raises(IsomorphError) as caught:
        check_weights(plan, {"wte.weight": (5, 3), "head.weight": (5, 3)})
    assert str(caught.value) == (
        "E_WEIGHTS: the weights do not fit the plan: 1 unexpected\n"
        "  unexpected: head.weight [5, 3] (tied: wte.weight holds it)"
    )
