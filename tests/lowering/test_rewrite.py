"""Each rewrite on tiny programs: where it acts, where it must not, and that the numbers stay.

A program is recorded by hand, rewritten, and both forms are evaluated in NumPy and float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from isomorph.backends.reference import primitives as reference
from isomorph.lowering import derived
from isomorph.lowering.derived import Columns, Joined, Rows, Scaled, Shifted, Stored
from isomorph.lowering.flatten import flattened, split_gelus
from isomorph.lowering.rewrite import Op, Rewritten, rewritten
from isomorph.primitives import Recording
from isomorph.trace.program import Program, TracedTensor

F = Recording()

P = Stored
erf = np.vectorize(math.erf, otypes=[np.float64])


class Recorder:
    """``x`` is ``[2, 3, 8]``; parameters are made by name and shape."""

    def __init__(self) -> None:
        self.program = Program("float64")
        self.x = self.input("x", 2, 3, 8)

    def input(self, name: str, *shape: int) -> TracedTensor:
        self.program.inputs[name] = self.program.tensor(shape, "float64")
        return self.program.inputs[name]

    def p(self, path: str, *shape: int) -> TracedTensor:
        if path not in self.program.parameters:
            self.program.parameters[path] = self.program.tensor(shape, "float64")
        return self.program.parameters[path]

    def linear(self, x: TracedTensor, name: str, out: int, *, bias: bool = True) -> TracedTensor:
        b = self.p(f"{name}.b", out) if bias else None
        return F.linear(x, self.p(f"{name}.w", out, x.shape[-1]), b)


def record(build: Callable[[Recorder], Any]) -> tuple[Program, Rewritten]:
    """The program that ``build`` records, and its rewritten form, found to compute the same."""
    recorder = Recorder()
    made = build(recorder)
    outputs = made if isinstance(made, tuple) else (made,)
    recorder.program.outputs = {f"out{i}": tensor for i, tensor in enumerate(outputs)}
    program = recorder.program
    found = rewritten(program)
    rng = np.random.default_rng(0)
    values = {tensor.id: rng.standard_normal(tensor.shape) for tensor in program.inputs.values()}
    weights = {path: rng.standard_normal(tensor.shape) for path, tensor in program.parameters.items()}
    plain = dict(values) | {program.parameters[path].id: array for path, array in weights.items()}
    for step in program.steps:
        run(
            step.primitive,
            [plain[i] for i in step.inputs],
            step.attributes,
            step.outputs,
            plain,
            program.tensors,
        )
    fast = dict(values) | {tensor: weights[path] for tensor, path in found.parameters.items()}
    for op in found.ops:
        run_op(op, found, weights, fast)
    for name, tensor in program.outputs.items():
        np.testing.assert_allclose(fast[found.outputs[name]], plain[tensor.id], rtol=1e-12, atol=1e-12)
    return program, found


def run(
    kind: str, inputs: list[Any], told: Any, outputs: tuple[int, ...], values: dict[int, Any], tensors: Any
) -> None:
    """One primitive by the reference."""
    told = dict(told)
    if kind in ("add", "subtract", "multiply"):
        left = told.get("left", inputs[0])
        right = told.get("right", inputs[-1])
        made = {"add": left + right, "subtract": left - right, "multiply": left * right}[kind]
    elif kind in ("reshape", "expand"):
        made = getattr(reference, kind)(inputs[0], tensors[outputs[0]].shape)
    elif kind == "attention":
        told.pop("mask")
        made = reference.attention(*inputs, **told)
    elif kind == "layer_norm":
        x, *rest = inputs
        weight = rest.pop(0) if told["weight"] else None
        made = reference.layer_norm(x, weight, rest[0] if rest else None, eps=told["eps"])
    elif kind == "rms_norm":
        made = reference.rms_norm(inputs[0], inputs[1] if len(inputs) > 1 else None, **told)
    elif kind == "concatenate":
        made = reference.concatenate(tuple(inputs), **told)
    else:
        made = getattr(reference, kind)(*inputs, **told)
    values.update(zip(outputs, made if isinstance(made, tuple) else (made,), strict=True))


class NumPy:
    """See :class:`isomorph.lowering.derived.Arithmetic`."""

    def __init__(self, weights: dict[str, Any]) -> None:
        self.parameter = weights.__getitem__
        self.zeros, self.join = np.zeros, np.concatenate

    def wide(self, array: Any) -> Any:
        return array.astype(np.float64)

    def times(self, array: Any, factor: Any) -> Any:
        return array * factor

    def apply(self, matrix: Any, vector: Any) -> Any:
        return matrix @ vector


def run_op(op: Op, program: Rewritten, weights: dict[str, Any], values: dict[int, Any]) -> None:
    """One operation of a rewritten program."""
    inputs = [values[i] for i in op.inputs]
    if op.kind == "heads":
        B, T, H, d = op.attributes["shape"]
        parts = inputs[0].reshape(B, T, op.attributes["parts"], H, d).transpose(2, 0, 3, 1, 4)
        values.update(zip(op.outputs, parts, strict=True))
        return
    held = [None if w is None else derived.evaluate(w, NumPy(weights)) for w in (op.weight, op.bias)]
    if op.kind in ("layer_norm", "rms_norm") and len(inputs) == 1:
        told = {name: value for name, value in op.attributes.items() if name in ("eps", "offset")}
        made = getattr(reference, op.kind)(*inputs, *held[: 2 if op.kind == "layer_norm" else 1], **told)
        values[op.outputs[0]] = made
    elif op.kind == "linear" and op.weight is not None:
        made = reference.linear(inputs[0], *held)
        if op.activation is not None:
            name, told = op.activation
            made = (
                made + made * erf(made)
                if name == "split_gelu"
                else getattr(reference, name)(made, **dict(told))
            )
        values[op.outputs[0]] = made if op.residual is None else made + values[op.residual]
    else:
        shapes = {i: TracedTensor(None, i, shape, "") for i, shape in program.shapes.items()}  # type: ignore[arg-type]
        run(op.kind, inputs, op.attributes, op.outputs, values, shapes)


def kinds(found: Rewritten) -> list[str]:
    return [op.kind for op in found.ops]


# -- norms into products -------------------------------------------------------------------------------


def norm(r: Recorder, *, affine: bool = True) -> TracedTensor:
    return F.layer_norm(r.x, *((r.p("g", 8), r.p("s", 8)) if affine else (None, None)), eps=1e-5)


def test_a_norms_gain_and_shift_move_into_the_product():
    _, found = record(lambda r: r.linear(norm(r), "a", 4))
    layer_norm, linear = found.ops
    assert (layer_norm.kind, layer_norm.weight, layer_norm.bias) == ("layer_norm", None, None)
    assert linear.weight == Columns(P("a.w"), P("g"))
    assert linear.bias == Shifted(P("a.b"), P("a.w"), P("s"))
    assert found.parameters == {}  # all of them are inside derived weights


def test_a_product_without_bias_takes_the_shift_where_another_has_one():
    def two(r: Recorder) -> tuple[TracedTensor, TracedTensor]:
        n = norm(r)
        return r.linear(n, "a", 4, bias=False), r.linear(n, "b", 4)

    _, found = record(two)  # both become one product, which has a bias in any case
    assert found.ops[1].bias == Joined(
        (Shifted(None, P("a.w"), P("s")), Shifted(P("b.b"), P("b.w"), P("s"))), (4, 4)
    )


def test_a_shift_stays_where_no_product_has_a_bias():
    _, found = record(lambda r: r.linear(norm(r), "a", 4, bias=False))
    layer_norm, linear = found.ops
    assert (layer_norm.weight, layer_norm.bias) == (P("g"), P("s"))
    assert (linear.weight, linear.bias) == (P("a.w"), None)


def test_a_tied_weight_stays_as_it_is():
    def tied(r: Recorder) -> tuple[TracedTensor, TracedTensor]:
        n = F.rms_norm(r.x, r.p("g", 8), eps=1e-6)
        return F.linear(n, r.p("w", 4, 8)), r.p("w", 4, 8) * 2

    _, found = record(tied)
    assert [op.weight for op in found.ops if op.kind in ("rms_norm", "linear")] == [P("g"), P("w")]


def test_a_norm_without_shift_leaves_the_bias():
    _, found = record(lambda r: r.linear(F.layer_norm(r.x, r.p("g", 8), None, eps=1e-5), "a", 4))
    assert found.ops[1].bias == P("a.b")
    _, found = record(lambda r: r.linear(F.rms_norm(r.x, r.p("g", 8), eps=1e-6, offset=1.0), "a", 4))
    assert found.ops[1].weight == Columns(P("a.w"), P("g"), 1.0)  # 1 + gain


def test_columns_by_hand():
    """W = [[1, 2]], gain = [3, 5], offset 1: [[1 * 4, 2 * 6]]; bias 7 and shift [1, -1]: 7 + 1 - 2 = 6."""
    arithmetic = NumPy(
        {"w": np.array([[1.0, 2]]), "g": np.array([3.0, 5]), "b": np.array([7.0]), "s": np.array([1.0, -1])}
    )
    assert derived.evaluate(Columns(P("w"), P("g"), 1.0), arithmetic).tolist() == [[4.0, 12.0]]
    assert derived.evaluate(Shifted(P("b"), P("w"), P("s")), arithmetic).tolist() == [6.0]
    assert derived.evaluate(Shifted(None, P("w"), P("s")), arithmetic).tolist() == [-1.0]
    assert derived.evaluate(Rows(P("w"), P("b")), arithmetic).tolist() == [[7.0, 14.0]]
    assert derived.evaluate(Rows(P("b"), P("b")), arithmetic).tolist() == [49.0]
    joined = Joined((P("b"), None, P("s")), (1, 2, 2))
    assert derived.evaluate(joined, arithmetic).tolist() == [7.0, 0.0, 0.0, 1.0, -1.0]
    assert derived.evaluate(Scaled(P("s"), 0.5), arithmetic).tolist() == [0.5, -0.5]


@pytest.mark.parametrize(
    "build",
    [
        lambda r: (n := norm(r), r.linear(n, "a", 4)),  # the norm is an output
        lambda r: (n := norm(r)) + F.relu(r.linear(n, "a", 8)),  # something else reads it too
        lambda r: norm(r),  # nothing reads it
        lambda r: F.linear(norm(r), r.input("w", 4, 8)),  # the product's weight is no parameter
        lambda r: F.linear(r.x, F.reshape(norm(r), (6, 8))),  # the norm is a product's weight
        lambda r: F.relu(norm(r)),
    ],
)
def test_a_norm_stays_whole_where(build):
    _, found = record(build)
    (layer_norm,) = [op for op in found.ops if op.kind == "layer_norm"]
    assert (layer_norm.weight, layer_norm.bias) == (P("g"), P("s"))


def test_a_norm_without_gain_has_nothing_to_move():
    _, found = record(lambda r: r.linear(norm(r, affine=False), "a", 4))
    assert found.ops[1].weight == P("a.w")
    _, found = record(lambda r: r.linear(F.layer_norm(r.x, None, r.p("s", 8), eps=1e-5), "a", 4))
    assert (found.ops[0].weight, found.ops[0].bias) == (None, P("s"))


def test_a_norm_whose_gain_is_computed_reads_it_as_a_tensor():
    _, found = record(lambda r: r.linear(F.layer_norm(r.x, F.tanh(r.p("g", 8)), None, eps=1e-5), "a", 4))
    (layer_norm,) = [op for op in found.ops if op.kind == "layer_norm"]
    assert layer_norm.weight is None and len(layer_norm.inputs) == 2
    _, found = record(lambda r: r.linear(F.rms_norm(r.x, F.tanh(r.p("g", 8)), eps=1e-5), "a", 4))
    assert [len(op.inputs) for op in found.ops if op.kind == "rms_norm"] == [2]


def test_two_products_share_a_norm():
    _, found = record(lambda r: F.relu(r.linear(n := norm(r), "a", 4)) + r.linear(n, "b", 4, bias=False))
    (joined,) = [op for op in found.ops if op.kind == "linear"]
    assert joined.weight == Joined((Columns(P("a.w"), P("g")), Columns(P("b.w"), P("g"))), (4, 4))


# -- gains behind products -------------------------------------------------------------------------------


@pytest.mark.parametrize("gain_first", [False, True])
def test_a_gain_moves_into_the_product_before_it(gain_first):
    def build(r: Recorder) -> TracedTensor:
        product, gain = r.linear(r.x, "a", 4), r.p("g", 4)
        return gain * product if gain_first else product * gain

    _, found = record(build)
    assert kinds(found) == ["linear"]
    assert (found.ops[0].weight, found.ops[0].bias) == (Rows(P("a.w"), P("g")), Rows(P("a.b"), P("g")))


def test_gains_follow_one_another():
    _, found = record(lambda r: r.linear(r.x, "a", 4, bias=False) * r.p("g", 4) * r.p("h", 4))
    assert kinds(found) == ["linear"]
    assert (found.ops[0].weight, found.ops[0].bias) == (Rows(Rows(P("a.w"), P("g")), P("h")), None)


@pytest.mark.parametrize(
    "build",
    [
        lambda r: (p := r.linear(r.x, "a", 4), p * r.p("g", 4)),  # the product is an output
        lambda r: (p := r.linear(r.x, "a", 4)) * r.p("g", 4) + p,  # and is read twice
        lambda r: r.linear(r.x, "a", 4) * r.p("g", 1),  # one number for all
        lambda r: r.linear(r.x, "a", 4) * r.p("g", 3, 4),  # another gain at every position
        lambda r: r.linear(r.x, "a", 4) * r.input("g", 4),  # no parameter
        lambda r: r.linear(r.x, "a", 4) * 2.0,
        lambda r: F.relu(r.linear(r.x, "a", 4)) * r.p("g", 4),
        lambda r: (p := r.linear(r.x, "a", 4)) * p,
        lambda r: F.linear(r.x, r.input("w", 4, 8)) * r.p("g", 4),
    ],
)
def test_a_product_is_not_scaled_where(build):
    _, found = record(build)
    assert "multiply" in kinds(found)
    assert not any(isinstance(op.weight, Rows) for op in found.ops)


# -- products on one input -------------------------------------------------------------------------------


def test_parallel_products_become_one():
    def build(r: Recorder) -> TracedTensor:
        return F.concatenate((r.linear(r.x, "a", 4), F.relu(r.x), r.linear(r.x, "b", 3, bias=False)), -1)

    program, found = record(build)
    assert kinds(found) == ["linear", "narrow", "narrow", "relu", "concatenate"]
    joined, first, second = found.ops[:3]
    assert joined.weight == Joined((P("a.w"), P("b.w")), (4, 3))
    assert joined.bias == Joined((P("a.b"), None), (4, 3))
    assert found.shapes[joined.outputs[0]] == (2, 3, 7)
    assert [op.attributes for op in (first, second)] == [
        {"axis": -1, "start": 0, "stop": 4},
        {"axis": -1, "start": 4, "stop": 7},
    ]
    assert len(program.tensors) == joined.outputs[0]  # a new tensor


def test_products_without_biases_are_joined_without():
    _, found = record(lambda r: r.linear(r.x, "a", 4, bias=False) + r.linear(r.x, "b", 4, bias=False))
    assert found.ops[0].bias is None


def test_products_on_different_inputs_stay_apart():
    _, found = record(lambda r: r.linear(r.x, "a", 4) + r.linear(r.input("y", 2, 3, 8), "b", 4))
    assert kinds(found) == ["linear", "linear"]
    _, found = record(lambda r: r.linear(r.x, "a", 4) + F.linear(r.x, r.input("w", 4, 8)))
    assert sorted(kinds(found)) == ["linear", "linear"]


def test_joined_products_may_be_outputs():
    _, found = record(lambda r: (r.linear(r.x, "a", 4), r.linear(r.x, "b", 3)))
    assert kinds(found) == ["linear", "narrow", "narrow"]


def test_one_weight_on_one_input_twice():
    _, found = record(lambda r: (r.linear(r.x, "a", 4), r.linear(r.x, "a", 4)))
    assert found.ops[0].weight == Joined((P("a.w"), P("a.w")), (4, 4))


# -- heads -----------------------------------------------------------------------------------------------


def split(r: Recorder, x: TracedTensor, heads: int) -> TracedTensor:
    d = x.shape[-1] // heads
    return F.permute(F.reshape(x, (2, 3, heads, d)), (0, 2, 1, 3))


def attention(r: Recorder, **sizes: int) -> TracedTensor:
    q, k, v = (split(r, r.linear(r.x, name, size), size // 2) for name, size in sizes.items())
    return F.attention(q, k, v)


def test_projections_become_heads():
    _, found = record(lambda r: attention(r, q=8, k=8, v=8))
    assert kinds(found) == ["linear", "heads", "attention"]
    assert found.ops[1].attributes == {"shape": (2, 3, 4, 2), "parts": 3}
    assert found.ops[1].outputs == found.ops[2].inputs  # q, k, v in their order


def test_fewer_key_and_value_heads_are_split_one_by_one():
    _, found = record(lambda r: attention(r, q=8, k=4, v=4))
    assert "heads" not in kinds(found)


def whole(r: Recorder, *ranges: tuple[int, int | None], axis: int = -1) -> tuple[TracedTensor, ...]:
    """Parts of one product of width 8, each split into two heads."""
    product = r.linear(r.x, "a", 8)
    return tuple(split(r, F.narrow(product, axis, start, stop), 2) for start, stop in ranges)


@pytest.mark.parametrize(
    "ranges", [((0, 4), (4, 8)), ((4, 8), (0, 4)), ((0, 4), (-4, None)), ((-8, -4), (-4, None))]
)
def test_parts_side_by_side_in_any_order(ranges):
    _, found = record(lambda r: whole(r, *ranges))
    assert kinds(found) == ["linear", "heads"]
    _, found = record(lambda r: whole(r, *ranges, axis=2))
    assert kinds(found) == ["linear", "heads"]


@pytest.mark.parametrize(
    "build",
    [
        lambda r: whole(r, (0, 4), (0, 4)),  # the same part twice, and never the other
        lambda r: whole(r, (0, 4), (2, 6)),
        lambda r: whole(r, (0, 4)),  # one part alone
        lambda r: (p := r.linear(r.x, "a", 8), split(r, F.narrow(p, -1, 0, 4), 2), split(r, F.narrow(p, -1, 4, 8), 2)),
        lambda r: (
            p := r.linear(r.x, "a", 8), F.relu(p), split(r, F.narrow(p, -1, 0, 4), 2), split(r, F.narrow(p, -1, 4, 8), 2)
        )[1:],
        lambda r: tuple(split(r, F.narrow(r.linear(r.x, "a", 8), -1, s, s + 4), h) for s, h in ((0, 2), (4, 1))),
        lambda r: tuple(F.narrow(r.linear(r.x, "a", 8), -1, s, s + 4) for s in (0, 4)),
        lambda r: tuple(
            F.permute(F.reshape(F.narrow(r.linear(r.x, "a", 8), -1, s, s + 4), (2, 3, 2, 2)), (0, 2, 3, 1)) for s in (0, 4)
        ),
        lambda r: tuple(  # batch and positions are merged
            F.permute(F.reshape(F.narrow(r.linear(r.x, "a", 8), -1, s, s + 4), (1, 6, 2, 2)), (0, 2, 1, 3)) for s in (0, 4)
        ),
    ],
)  # fmt: skip
def test_parts_are_no_heads_where(build):
    _, found = record(build)
    assert "heads" not in kinds(found)


def test_positions_are_no_heads():
    """Parts along the axis of positions, each as wide as the product."""

    def build(r: Recorder) -> tuple[TracedTensor, ...]:
        product = r.linear(r.input("y", 2, 4, 8), "a", 8)
        parts = (F.narrow(product, 1, start, start + 2) for start in (0, 2))
        return tuple(F.permute(F.reshape(part, (2, 2, 4, 2)), (0, 2, 1, 3)) for part in parts)

    _, found = record(lambda r: (F.relu(r.x), *build(r)))
    assert "heads" not in kinds(found)


# -- activations and sums ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("activation", "name", "attributes"),
    [
        (F.gelu, "gelu", (("approximate", "none"),)),
        (lambda x: F.gelu(x, "tanh"), "gelu", (("approximate", "tanh"),)),
        (F.relu, "relu", ()), (F.silu, "silu", ()), (F.quick_gelu, "quick_gelu", ()), (F.tanh, "tanh", ()),
        (F.exp, "exp", ()), (F.sigmoid, "sigmoid", ()),
    ],
)  # fmt: skip
def test_an_activation_is_computed_with_the_product(activation, name, attributes):
    _, found = record(lambda r: activation(r.linear(r.x, "a", 4)))
    assert kinds(found) == ["linear"] and found.ops[0].activation == (name, attributes)


@pytest.mark.parametrize(
    "build",
    [
        lambda r: (p := r.linear(r.x, "a", 4), F.relu(p)),
        lambda r: F.relu(p := r.linear(r.x, "a", 4)) + F.tanh(p),
        lambda r: F.softmax(r.linear(r.x, "a", 4)),
        lambda r: F.relu(F.linear(r.x, r.input("w", 4, 8))),
        lambda r: F.relu(r.x),
    ],
)
def test_an_activation_stays_where(build):
    _, found = record(build)
    assert all(op.activation is None for op in found.ops)


def test_a_table_of_products_is_looked_up_in():
    """A lookup acts on each id; the product is not what it acts on."""
    r = Recorder()
    ids = r.program.inputs["ids"] = r.program.tensor((2, 3), "int64")
    table = F.linear(r.p("table", 7, 3), r.p("w", 4, 3))
    r.program.outputs = {"out": F.embedding(ids, table)}
    assert kinds(rewritten(r.program)) == ["linear", "embedding"]


@pytest.mark.parametrize("product_first", [False, True])
def test_a_residual_is_added_with_the_product(product_first):
    def build(r: Recorder) -> TracedTensor:
        other, product = F.relu(r.x), r.linear(r.x, "a", 8)
        return product + other if product_first else other + product

    program, found = record(build)
    assert kinds(found) == ["relu", "linear"]
    assert found.ops[1].residual == program.steps[0].outputs[0]
    assert found.ops[1].reads == (program.inputs["x"].id, found.ops[1].residual)


def test_of_two_products_one_takes_the_other():
    _, found = record(lambda r: r.linear(r.x, "a", 4) + r.linear(F.relu(r.x), "b", 4))
    assert kinds(found) == ["linear", "relu", "linear"] or kinds(found) == ["relu", "linear", "linear"]
    assert sum(op.residual is not None for op in found.ops) == 1


def test_a_parameter_may_be_the_residual():
    program, found = record(lambda r: r.linear(r.x, "a", 8) + r.p("table", 2, 3, 8))
    assert found.ops[0].residual == program.parameters["table"].id
    assert found.parameters == {program.parameters["table"].id: "table"}


@pytest.mark.parametrize(
    "build",
    [
        lambda r: (p := r.linear(r.x, "a", 8)) + p,
        lambda r: (p := r.linear(r.x, "a", 8), p + r.x),
        lambda r: F.tanh(p := r.linear(r.x, "a", 8)) * (p + r.x),
        lambda r: r.linear(r.x, "a", 8) + r.p("table", 3, 8),  # a sum that repeats the other
        lambda r: r.linear(r.x, "a", 8) + r.p("one", 2, 1, 8),
        lambda r: r.linear(r.input("y", 1, 3, 8), "a", 8) + r.x,  # a sum that repeats the product
        lambda r: r.linear(r.x, "a", 8) + 1.0,
        lambda r: r.linear(r.x, "a", 8) - r.x,
        lambda r: F.relu(r.linear(r.x, "a", 8)) + r.x,  # an activation stands between
    ],
)
def test_a_sum_stays_where(build):
    _, found = record(build)
    assert all(op.residual is None for op in found.ops)
    assert {"add", "subtract"} & set(kinds(found))


def test_another_dtype_is_not_added():
    recorder = Recorder()
    other = recorder.program.tensor((2, 3, 8), "float32")
    recorder.program.inputs["y"] = other
    recorder.program.outputs = {"out": recorder.linear(recorder.x, "a", 8) + other}
    assert [op.kind for op in rewritten(recorder.program).ops] == ["linear", "add"]


# -- together ----------------------------------------------------------------------------------------------


def test_a_block_becomes_seven_steps():
    """Two norms, joined projections, attention; the layer scale and both sums are inside products."""

    def build(r: Recorder) -> TracedTensor:
        n = norm(r)
        q, k, v = (split(r, r.linear(n, name, 8), 4) for name in "qkv")
        mixed = F.reshape(F.permute(F.attention(q, k, v), (0, 2, 1, 3)), (2, 3, 8))
        h = r.x + r.linear(mixed, "o", 8) * r.p("gamma", 8)
        n2 = F.layer_norm(h, r.p("g2", 8), r.p("s2", 8), eps=1e-5)
        return h + r.linear(F.gelu(r.linear(n2, "up", 16)), "down", 8)

    _, found = record(build)
    assert kinds(found) == [
        "layer_norm", "linear", "heads", "attention", "permute", "reshape", "linear", "layer_norm", "linear", "linear",
    ]  # fmt: skip
    assert found.parameters == {}


def test_weights_that_are_too_large_stay_as_they_are():
    def build(r: Recorder) -> tuple[TracedTensor, TracedTensor]:
        n = norm(r)
        return r.linear(n, "a", 4) * r.p("gain", 4), r.linear(n, "b", 4)

    recorder = Recorder()
    recorder.program.outputs = dict(zip("ab", build(recorder), strict=True))
    joined = rewritten(recorder.program, largest=64)  # 2 x (4 x 8) numbers
    assert kinds(joined) == ["layer_norm", "linear", "narrow", "narrow"]
    folded = rewritten(recorder.program, largest=63)  # the gain alone moves
    assert [op.weight for op in folded.ops] == [P("g"), Rows(P("a.w"), P("gain")), P("b.w")]
    plain = rewritten(recorder.program, largest=31)
    assert [(op.kind, op.weight) for op in plain.ops] == [
        ("layer_norm", P("g")), ("linear", P("a.w")), ("multiply", None), ("linear", P("b.w")),
    ]  # fmt: skip


def test_a_network_of_nothing():
    _, found = record(lambda r: r.x)
    assert found.ops == () and found.inputs["x"] == found.outputs["out0"]


def test_rewriting_takes_time_in_proportion():
    """20,000 gains one after another: a search through all steps for each would take minutes."""

    def build(r: Recorder) -> TracedTensor:
        x = r.x
        for _ in range(20_000):
            x = r.linear(x, "a", 8) * r.p("g", 8)
        return x

    recorder = Recorder()
    recorder.program.outputs = {"out": build(recorder)}
    assert len(rewritten(recorder.program).ops) == 20_000


# -- for small networks --------------------------------------------------------------------------------


def same(build: Callable[[Recorder], Any], change: Callable[[Rewritten], Rewritten]) -> Rewritten:
    """The rewritten program after a further change, found to compute the same."""
    recorder = Recorder()
    made = build(recorder)
    outputs = made if isinstance(made, tuple) else (made,)
    recorder.program.outputs = {f"out{i}": tensor for i, tensor in enumerate(outputs)}
    before = rewritten(recorder.program)
    after = change(before)
    rng = np.random.default_rng(1)
    given = {tensor: rng.standard_normal(before.shapes[tensor]) for tensor in before.inputs.values()}
    weights = {p: rng.standard_normal(t.shape) for p, t in recorder.program.parameters.items()}
    results = []
    for program in (before, after):
        values = dict(given) | {tensor: weights[path] for tensor, path in program.parameters.items()}
        for op in program.ops:
            run_op(op, program, weights, values)
        assert all(values[t].shape == tuple(program.shapes[t]) for t in values)
        results.append([values[tensor] for tensor in program.outputs.values()])
    for a, b in zip(*results, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)
    return after


def test_rows_stay_flat_between_products_norms_and_sums():
    def block(r: Recorder) -> TracedTensor:
        h = F.relu(r.linear(norm(r), "up", 16))
        return r.x + F.softmax(r.linear(h, "down", 8))

    found = same(block, flattened)
    assert kinds(found) == ["reshape", "layer_norm", "linear", "linear", "reshape", "softmax", "add"]
    assert [found.shapes[op.outputs[0]] for op in found.ops[:4]] == [(6, 8), (6, 8), (6, 16), (6, 8)]


def test_what_is_read_whole_gets_its_shape_back_once():
    def two(r: Recorder) -> tuple[TracedTensor, TracedTensor, TracedTensor]:
        y = r.linear(r.x, "a", 8)
        return y, F.softmax(y), F.permute(y, (0, 2, 1))

    assert kinds(same(two, flattened)) == ["reshape", "linear", "reshape", "softmax", "permute"]


def test_parts_of_rows_are_taken_flat():
    def gated(r: Recorder) -> TracedTensor:
        y = r.linear(r.x, "a", 8)
        return F.narrow(y, 2, 0, 4) * F.silu(F.narrow(y, 2, 4, 8))

    assert kinds(same(gated, flattened)) == [
        "reshape",
        "linear",
        "narrow",
        "narrow",
        "silu",
        "multiply",
        "reshape",
    ]


def test_sums_with_other_shapes_and_computed_norms_are_left_whole():
    def mixed(r: Recorder) -> TracedTensor:
        y = r.linear(r.x, "a", 8) + r.p("positions", 3, 8)
        return F.layer_norm(y, F.exp(r.p("g", 8)), None, eps=1e-5)

    assert kinds(same(mixed, flattened))[:4] == ["reshape", "linear", "reshape", "add"]


def test_parts_of_a_matrix_are_no_heads():
    """``[B, 2 * N]`` in two parts, each reshaped to ``[B, N, 1, 1]``: that is no split of rows into heads."""

    def build(r: Recorder) -> tuple[TracedTensor, TracedTensor]:
        y = r.input("y", 2, 8)
        a, b = r.linear(y, "a", 4), r.linear(y, "b", 4)
        return tuple(F.permute(F.reshape(part, (2, 4, 1, 1)), (0, 2, 1, 3)) for part in (a, b))  # type: ignore[return-value]

    _, found = record(build)
    assert "heads" not in kinds(found)


def test_one_reshape_stands_for_two():
    def merged(r: Recorder) -> TracedTensor:
        split = F.reshape(r.x, (2, 3, 2, 4))
        return r.linear(F.reshape(split, (2, 3, 8)), "a", 4)

    found = same(merged, flattened)
    assert kinds(found) == ["reshape", "linear", "reshape"]


def test_a_program_of_one_row_or_none_is_flattened_too():
    def of(*shape: int) -> Callable[[Recorder], TracedTensor]:
        return lambda r: r.linear(r.input("y", *shape), "a", 4)

    assert kinds(same(of(8), flattened)) == ["linear"]
    assert kinds(same(of(3, 8), flattened)) == ["linear"]
    assert kinds(same(of(0, 3, 8), flattened)) == ["reshape", "linear", "reshape"]


def repeated(program: Rewritten) -> Rewritten:
    return flattened(program, 3)


def test_a_single_row_is_computed_several_times():
    """What leaves the flat part is the first of the equal rows."""

    def row(r: Recorder) -> tuple[TracedTensor, TracedTensor]:
        x = r.input("row", 1, 1, 8)
        h = r.linear(F.layer_norm(x, r.p("g", 8), None, eps=1e-5), "up", 8)
        y = r.linear(F.relu(h), "down", 8) + x
        split = F.reshape(y, (1, 2, 4))
        return split, F.softmax(F.permute(y, (0, 2, 1)))

    found = same(row, repeated)
    assert kinds(found) == [
        "reshape", "expand", "layer_norm", "linear", "linear",
        "narrow", "reshape", "narrow", "reshape", "permute", "softmax",
    ]  # fmt: skip
    assert [found.shapes[op.outputs[0]][0] for op in found.ops[1:6]] == [3, 3, 3, 3, 1]


def test_several_rows_are_computed_once():
    def rows(r: Recorder) -> TracedTensor:
        return r.linear(r.x, "a", 4)

    assert same(rows, repeated) == same(rows, flattened)


def gelu_between(r: Recorder, approximate: str = "none") -> TracedTensor:
    return r.linear(F.gelu(r.linear(r.x, "up", 16), approximate=approximate), "down", 8)


def test_a_small_gelu_puts_its_factors_into_the_products():
    found = same(gelu_between, lambda program: split_gelus(program, lambda op: True))
    up, down = found.ops
    factor = math.sqrt(0.5)
    assert (up.weight, up.bias) == (Scaled(P("up.w"), factor), Scaled(P("up.b"), factor))
    assert (up.activation, down.weight) == (("split_gelu", ()), Scaled(P("down.w"), factor))
    assert down.bias == P("down.b")


def test_a_gelu_stays_where_it_is_not_exact_or_large_or_read_twice():
    def twice(r: Recorder) -> tuple[TracedTensor, TracedTensor]:
        g = F.gelu(r.linear(r.x, "up", 16), approximate="none")
        return r.linear(g, "down", 8), g

    def small(op: Op) -> bool:
        return op.weight == P("down.w")

    for build, which in (
        (lambda r: gelu_between(r, "tanh"), lambda op: True),
        (gelu_between, small),
        (gelu_between, lambda op: not small(op)),
        (twice, lambda op: True),
    ):
        found = same(build, lambda program, which=which: split_gelus(program, which))
        assert all(op.activation is None or op.activation[0] == "gelu" for op in found.ops)
        assert not any(isinstance(op.weight, Scaled) for op in found.ops)
