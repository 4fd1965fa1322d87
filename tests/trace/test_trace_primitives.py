"""Traced primitives: shapes as NumPy makes them, operations and longest sums by hand."""

import numpy as np
import pytest

from isomorph.backends.reference import primitives as numpy_primitives
from isomorph.errors import IsomorphError
from isomorph.primitives import Primitives, Recording
from isomorph.trace.program import Program

F = Recording()

# primitive, input shapes, options, operations, longest sum
CASES = [
    ("linear", [(2, 3, 4), (5, 4)], {}, 2 * 6 * 5 * 4, 4),
    ("linear", [(2, 3, 4), (5, 4), (5,)], {}, 2 * 6 * 5 * 4 + 30, 4),
    ("conv1d", [(2, 3, 8), (5, 3, 4)], {"stride": 2}, 2 * 3 * (2 * 5 * 12), 12),
    ("conv1d", [(1, 2, 4), (3, 2, 3), (3,)], {"padding": 1}, 3 * 4 * (2 * 6 + 1), 6),
    ("conv2d", [(2, 3, 8, 6), (5, 3, 2, 2)], {"stride": 2}, 2 * 12 * (2 * 5 * 12), 12),
    ("conv2d", [(1, 1, 3, 4), (1, 1, 2, 2), (1,)], {}, 6 * (2 * 4 + 1), 4),
    ("layer_norm", [(2, 3, 4), (4,), (4,)], {"eps": 1e-5}, 24 * 7, 4),
    ("layer_norm", [(2, 3, 4), None, None], {"eps": 1e-5}, 24 * 5, 4),
    ("rms_norm", [(2, 3, 4), (4,)], {"eps": 1e-5}, 24 * 4, 4),
    ("l2_normalize", [(2, 3, 4)], {"eps": 1e-5}, 24 * 3, 4),
    # 2 batches, 4 heads, 3 queries, 5 keys, width 8: 4 * 120 * 8 for the products, 5 * 120 for the softmax
    ("attention", [(2, 4, 3, 8), (2, 2, 5, 8), (2, 2, 5, 8)], {}, 3840 + 600, 8),
    ("attention", [(2, 4, 3, 8), (2, 2, 9, 8), (2, 2, 9, 8)], {"causal": True}, 216 * 32 + 216 * 5, 9),
    ("attention", [(2, 4, 3, 8), (2, 2, 5, 8), (2, 2, 5, 8)], {"softcap": 2.0}, 3840 + 600 + 360, 8),
    ("relu", [(2, 3)], {}, 6, 1),
    ("silu", [(2, 3)], {}, 30, 1),
    ("gelu", [(2, 3)], {}, 30, 1),
    ("gelu", [(2, 3)], {"approximate": "tanh"}, 54, 1),
    ("quick_gelu", [(2, 3)], {}, 36, 1),
    ("tanh", [(2, 3)], {}, 6, 1),
    ("exp", [(2, 3)], {}, 6, 1),
    ("sigmoid", [(2, 3)], {}, 24, 1),
    ("softmax", [(2, 7, 3)], {"axis": 1}, 42 * 5, 7),
    ("reshape", [(2, 6)], {"shape": (2, 3, 2)}, 0, 1),
    ("permute", [(2, 3, 4)], {"axes": (2, 0, 1)}, 0, 1),
    ("narrow", [(2, 5)], {"axis": -1, "start": 1, "stop": -1}, 0, 1),
    ("narrow", [(2, 5)], {"axis": 1, "start": -2, "stop": None}, 0, 1),
    ("expand", [(2, 1, 3)], {"shape": (2, 4, 3)}, 0, 1),
    ("positions", [(7, 3)], {"length": 4}, 0, 1),
    ("mean", [(2, 5, 3)], {"axis": 1}, 30, 5),
    ("mean", [(2, 5, 3)], {"axis": -1, "keepdim": True}, 30, 3),
    ("max", [(2, 5, 3)], {"axis": 1}, 30, 1),
    ("cumsum", [(2, 5, 3)], {"axis": 1}, 30, 5),
    ("max", [(2, 5, 3)], {"axis": 1, "keepdim": True}, 30, 1),
]


@pytest.mark.parametrize(("name", "shapes", "options", "flops", "reduction"), CASES)
def test_a_step(name, shapes, options, flops, reduction):
    program = Program()
    inputs = [None if shape is None else program.tensor(shape, "float32") for shape in shapes]
    made = getattr(F, name)(*inputs, **options)
    (step,) = program.steps
    assert (step.primitive, step.flops, step.reduction) == (name, flops, reduction)
    assert step.inputs == tuple(t.id for t in inputs if t is not None)
    assert step.outputs == (made.id,)
    assert step.view == (name in ("reshape", "permute", "narrow", "expand", "positions"))
    arrays = [None if shape is None else np.ones(shape) for shape in shapes]
    assert made.shape == getattr(numpy_primitives, name)(*arrays, **options).shape
    assert made.dtype == "float32"


def test_every_primitive_is_traced():
    described = {name for name in vars(Primitives) if not name.startswith("_")}
    moving = {"embedding", "concatenate", "cos_sin", "select", "masked_pool", "take_at"}
    covered = {case[0] for case in CASES} | moving
    assert covered == described
    assert all(callable(getattr(module, name)) for module in (F, numpy_primitives) for name in described)


def test_embedding_has_its_tables_dtype():
    program = Program()
    made = F.embedding(program.tensor((2, 3), "int64"), program.tensor((7, 4), "bfloat16"))
    assert (made.shape, made.dtype, program.flops) == ((2, 3, 4), "bfloat16", 0)


def test_concatenate():
    program = Program()
    a, b = program.tensor((2, 3, 4), "float32"), program.tensor((2, 1, 4), "float32")
    assert F.concatenate((a, b), 1).shape == (2, 4, 4)
    assert program.steps[0].inputs == (0, 1)
    assert not program.steps[0].view
    with pytest.raises(ValueError, match=r"concatenate along axis -1: .* do not fit"):
        F.concatenate((a, b), -1)


def test_select_moves_data_alone():
    program = Program()
    x, mask = program.tensor((2, 3, 4), "float32"), program.tensor((2, 3), "bool")
    made = F.select(x, mask)
    (step,) = program.steps
    assert (step.primitive, step.flops, step.reduction, step.view) == ("select", 0, 1, False)
    assert (step.inputs, made.shape, made.dtype) == ((x.id, mask.id), (2, 3, 4), "float32")


@pytest.mark.parametrize(("mode", "flops", "reduction"), [("mean", 24, 3), ("max", 24, 1), ("last", 0, 1)])
def test_masked_pool(mode, flops, reduction):
    program = Program()
    x, mask = program.tensor((2, 3, 4), "float32"), program.tensor((2, 3), "bool")
    made = F.masked_pool(x, mask, mode)
    (step,) = program.steps
    assert (step.primitive, step.flops, step.reduction, step.view) == ("masked_pool", flops, reduction, False)
    assert (step.inputs, made.shape, step.attributes) == ((x.id, mask.id), (2, 4), {"mode": mode})


def test_take_at_moves_data_alone():
    program = Program()
    x, ids = program.tensor((2, 3, 4), "float32"), program.tensor((2, 3), "int64")
    made = F.take_at(x, ids, 7)
    (step,) = program.steps
    assert (step.primitive, step.flops, step.reduction, step.view) == ("take_at", 0, 1, False)
    assert (step.inputs, made.shape, made.dtype) == ((x.id, ids.id), (2, 4), "float32")
    assert step.attributes == {"token": 7}
    with pytest.raises(ValueError, match=r"take_at: \(2, 3, 4\), \(3, 2\) do not fit"):
        F.take_at(x, program.tensor((3, 2), "int64"), 7)
    with pytest.raises(IsomorphError):
        F.take_at(program.tensor((2, 0, 4), "float32"), program.tensor((2, 0), "int64"), 7)


def test_cos_sin_makes_two_tables():
    program = Program()
    cos, sin = F.cos_sin(5, (1.0, 0.1), program.tensor((1,), "bfloat16"))
    assert (cos.shape, sin.shape, cos.dtype) == ((5, 2), (5, 2), "bfloat16")
    (step,) = program.steps
    assert (step.inputs, step.outputs, step.flops) == ((), (cos.id, sin.id), 30)


def test_arithmetic_is_recorded():
    program = Program()
    x, row = program.tensor((2, 3, 4), "float32"), program.tensor((4,), "float32")
    made = [x + row, row - x, x * x, 1 + x, 2.0 - x, x - 2.0, 3 * x, x * 3, x + 0.5]
    assert all(tensor.shape == (2, 3, 4) for tensor in made)
    assert [(s.primitive, s.inputs, s.attributes, s.flops) for s in program.steps] == [
        ("add", (0, 1), {}, 24),
        ("subtract", (1, 0), {}, 24),
        ("multiply", (0, 0), {}, 24),
        ("add", (0,), {"left": 1}, 24),
        ("subtract", (0,), {"left": 2.0}, 24),
        ("subtract", (0,), {"right": 2.0}, 24),
        ("multiply", (0,), {"left": 3}, 24),
        ("multiply", (0,), {"right": 3}, 24),
        ("add", (0,), {"right": 0.5}, 24),
    ]
    with pytest.raises(ValueError, match=r"do not broadcast"):
        x + program.tensor((3,), "float32")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p: F.linear(p.tensor((2, 3), "float32"), p.tensor((5, 4), "float32")), "linear: "),
        (lambda p: F.reshape(p.tensor((2, 3), "float32"), (5,)), "reshape: "),
        (lambda p: F.expand(p.tensor((2, 3), "float32"), (2, 6)), "expand: "),
        (lambda p: F.attention(*[p.tensor((1, h, 2, 4), "float32") for h in (3, 2, 2)]), "attention: "),
        (lambda p: F.conv1d(p.tensor((1, 2, 2), "float32"), p.tensor((1, 2, 3), "float32")), "conv1d: "),
        (
            lambda p: F.conv2d(p.tensor((1, 2, 4, 4), "float32"), p.tensor((1, 3, 2, 2), "float32")),
            "conv2d: ",
        ),
        (lambda p: F.select(p.tensor((2, 3, 4), "float32"), p.tensor((3, 2), "bool")), "select: "),
        (
            lambda p: F.masked_pool(p.tensor((2, 3, 4), "float32"), p.tensor((3, 2), "bool"), "max"),
            "masked_pool: ",
        ),
    ],
)
def test_shapes_that_do_not_fit_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call(Program())


@pytest.mark.parametrize("name", ["mean", "max"])
def test_no_elements_to_reduce(name):
    with pytest.raises(IsomorphError, match=rf"E_RUNTIME: {name} over axis 1 of a tensor \[2, 0, 3\]"):
        getattr(F, name)(Program().tensor((2, 0, 3), "float32"), 1)


def test_a_range_outside_an_axis():
    with pytest.raises(IsomorphError, match=r"elements -1: are outside axis 1 of a tensor \[2, 0, 3\]"):
        F.narrow(Program().tensor((2, 0, 3), "float32"), 1, -1, None)
