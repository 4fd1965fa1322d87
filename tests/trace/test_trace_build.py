"""Plans and operators as recorded programs."""

from typing import ClassVar

import pytest

from isomorph.errors import IsomorphError
from isomorph.operators import catalogue
from isomorph.operators.attention import Attention
from isomorph.operators.blocks import TransformerBlock
from isomorph.operators.declare import Operator, operator
from isomorph.operators.linear import Linear
from isomorph.plan.resolve import resolve
from isomorph.trace.build import parameter_rows, sizes_with, trace, trace_operator


def test_one_operator():
    program = trace_operator(Linear.of(D_in=4, D_out=5), [(2, 3, 4)])
    assert program.inputs["x"].shape == (2, 3, 4)
    assert {path: t.shape for path, t in program.parameters.items()} == {
        "linear.weight": (5, 4),
        "linear.bias": (5,),
    }
    assert program.outputs["out"].shape == (2, 3, 5)
    assert [(s.primitive, s.path, s.flops, s.reduction) for s in program.steps] == [
        ("linear", "linear", 2 * 6 * 20 + 30, 4)
    ]


def test_a_block_names_the_operator_behind_each_step():
    program = trace_operator(TransformerBlock.of(D=8, heads=2), [(3, 5, 8)])
    assert [(step.primitive, step.path.removeprefix("transformer_block")) for step in program.steps] == [
        ("layer_norm", ".norm1"),
        ("linear", ".attn.q_proj"), ("reshape", ".attn"), ("permute", ".attn"),
        ("linear", ".attn.k_proj"), ("reshape", ".attn"), ("permute", ".attn"),
        ("linear", ".attn.v_proj"), ("reshape", ".attn"), ("permute", ".attn"),
        ("attention", ".attn"), ("permute", ".attn"), ("reshape", ".attn"),
        ("linear", ".attn.o_proj"),
        ("add", ""),
        ("layer_norm", ".norm2"),
        ("linear", ".ffn.up"), ("gelu", ".ffn"), ("linear", ".ffn.down"),
        ("add", ""),
    ]  # fmt: skip
    positions = 3 * 5
    right = (
        2 * positions * 8 * 7  # two layer norms with gain and shift
        + 4 * positions * (2 * 8 * 8 + 8)  # four projections with bias
        + 3 * 2 * 5 * 5 * (4 * 4 + 5)  # attention: 3 examples, 2 heads of width 4, 5 x 5 scores
        + positions * (2 * 8 * 32 + 32)  # up
        + positions * 32 * 5  # gelu
        + positions * (2 * 32 * 8 + 8)  # down
        + 2 * positions * 8  # two residual sums
    )
    assert program.flops == right
    assert program.reduction("transformer_block") == 32  # the down projection
    assert program.reduction("transformer_block.attn") == 8
    assert program.reduction("transformer_block.attn.missing") == 1
    assert len(program.within("transformer_block.attn")) == 13


def test_an_optional_input_and_declared_dtypes():
    program = trace_operator(Attention.of(D=8, heads=2), [(1, 4, 8), (1, 4)], dtype="bfloat16")
    assert {name: t.dtype for name, t in program.inputs.items()} == {"x": "bfloat16", "mask": "bool"}
    (step,) = [step for step in program.steps if step.primitive == "attention"]
    assert step.attributes == {"causal": False, "window": 0, "softcap": 0.0, "mask": True}
    assert step.inputs[-1] == program.inputs["mask"].id
    assert program.outputs["out"].dtype == "bfloat16"


def test_a_plan():
    plan = resolve(
        'embedding(11, 4, name="wte")\npos_embed(6)\nlinear(11, bias=False, tie={"weight": "wte.weight"})',
        input=("B", "T"),
        input_dtype="int64",
    )
    program = trace(plan, {"B": 2, "T": 3})
    assert program.sizes == {"B": 2, "T": 3}
    assert program.outputs[""].shape == (2, 3, 11)
    assert [(s.primitive, s.path) for s in program.steps] == [
        ("embedding", "wte"),
        ("positions", "n1"),
        ("add", "n1"),
        ("linear", "n2"),
    ]
    # the tied head reads the owner's table
    assert program.steps[-1].inputs[1] == program.steps[0].inputs[1] == program.parameters["wte.weight"].id
    assert list(program.parameters) == ["wte.weight", "n1.weight"]


def test_default_sizes():
    plan = resolve("embedding(11, 4)\npos_embed(6)", input=("B", "T"), input_dtype="int64")
    assert sizes_with(plan) == {"B": 1, "T": 6}
    assert sizes_with(plan, {"B": 5}) == {"B": 5, "T": 6}
    assert sizes_with(resolve("relu()", input=("N", "L", 2))) == {"N": 1, "L": 128}


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"T": 7}, "size T must be an int from 0 to 6, got 7"),
        ({"B": -1}, "size B must be an int >= 0, got -1"),
        ({"B": 2.0}, "size B must be an int >= 0, got 2.0"),
        ({"S": 7}, "the network has no symbol 'S'; its symbols: B, T"),
    ],
)
def test_sizes_that_the_plan_cannot_have(sizes, message):
    plan = resolve("embedding(11, 4)\npos_embed(6)", input=("B", "T"), input_dtype="int64")
    with pytest.raises(IsomorphError) as caught:
        trace(plan, sizes)
    assert str(caught.value) == "E_ARGUMENT: " + message


def test_parameter_rows():
    def rows(text, shape, **sizes):
        plan = resolve(text, input=shape, input_dtype="int64" if text.startswith("embedding") else None)
        return parameter_rows(trace(plan, sizes), "n0")

    assert rows("linear(7)", ("B", "T", 4), B=2, T=3) == 6
    assert rows("layer_norm()", ("B", "T", 4), B=2, T=3) == 6
    assert rows("embedding(7, 4)", ("B", "T"), B=2, T=3) == 6
    assert rows("patch_embed(7, 2)", ("B", 3, 8, 6), B=2) == 2 * 4 * 3
    assert rows('attention(2, qk_norm="rms_norm")', ("B", "T", 4), B=2, T=3) == 12  # a gain acts per head
    assert rows("relu()", ("B", "T", 4), B=2, T=3) == 1


def test_every_example_of_every_operator_traces():
    """Also the check that a forward computation gives the shapes that its shape rule says."""
    count = 0
    for cls in catalogue.all_operators().values():
        for example in cls.examples:
            plan = resolve(
                example.definition,
                input=example.input,
                output=example.output,
                dtype=example.dtype,
                input_dtype=example.input_dtype,
            )
            symbols = sizes_with(plan)
            for size in (1, 3):
                program = trace(
                    plan,
                    {
                        s: max(
                            plan.bounds.get(s, (0,))[0], min(size, plan.bounds.get(s, (0, size))[1] or size)
                        )
                        for s in symbols
                    },
                )
                assert {tensor.dtype for tensor in program.outputs.values()} <= {plan.dtype}
                count += 1
    assert count > 60


def test_a_forward_that_disobeys_its_shape_rule_is_named():
    @operator("wrong_shape", shape="x[B, D] -> out[B, D]", category="test", register=False)
    class WrongShape(Operator):
        """Drops a column."""

        examples: ClassVar = ()

        def forward(self, m, F, x):
            return F.narrow(x, 1, 0, 1)

    plan = resolve("relu()", input=("B", 4))
    node = plan.nodes[0]
    bad = type(node)(0, "n0", WrongShape.of(), node.inputs, node.outputs)
    with pytest.raises(IsomorphError) as caught:
        trace(type(plan)(plan.dtype, plan.values, plan.inputs, plan.outputs, (bad,)), {"B": 2})
    assert str(caught.value) == (
        "E_OPERATOR: wrong_shape (n0): forward gives [2, 1], but its shape rule says [2, 4]\n"
        "  the operator's forward computation and its shape pattern must agree"
    )
