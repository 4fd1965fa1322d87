"""The harness itself: faults that it must see, and the numbers it draws."""

from __future__ import annotations

import numpy as np
import pytest

import isomorph as iso
from isomorph import testing
from isomorph.agreement.check import idle_parameters
from isomorph.backends.available import BACKENDS, available, load
from isomorph.initializers import Constant
from isomorph.operators import catalogue

torch = pytest.importorskip("torch")
BLOCK = iso.resolve("transformer_block(2, layer_scale=True)", input=("B", 5, 8))


class Altered:
    """The torch backend with its weights or inputs changed first: a backend with a fault."""

    def __init__(self, weights=dict, inputs=dict):
        self.weights, self.inputs = weights, inputs

    def forward(self, plan, weights, inputs, dtype):
        return load("torch").forward(plan, self.weights(dict(weights)), self.inputs(dict(inputs)), dtype)

    def gradients(self, plan, weights, inputs, cotangents, dtype):
        return load("torch").gradients(
            plan, self.weights(dict(weights)), self.inputs(dict(inputs)), cotangents, dtype
        )


def failing(plan, harness):
    """What leaves its bounds with that harness: outputs, gradients."""
    outputs = testing.compare_outputs(plan, {"altered": harness})
    gradients = testing.compare_gradients(plan, {"altered": harness})
    return (
        [c.quantity for c in outputs if not c.agrees],
        [c.quantity for c in gradients if c.backend == "altered" and not c.agrees],
    )


def test_an_unaltered_backend_agrees():
    assert failing(BLOCK, Altered()) == ([], [])


@pytest.mark.parametrize(
    "path",
    [
        "attn.q_proj.bias", "attn.v_proj.bias", "attn.o_proj.bias", "ffn.up.bias", "ffn.down.bias",
        "norm1.bias", "norm2.bias", "gamma1", "gamma2", "ffn.down.weight", "attn.o_proj.weight",
    ],
)  # fmt: skip
def test_a_lost_bias_gain_or_branch_shows(path):
    outputs, gradients = failing(BLOCK, Altered(lambda w: w | {f"n0.{path}": w[f"n0.{path}"] * 0}))
    assert len(outputs) == 2, "at ordinary sizes and at B=1; an empty batch has nothing to compare"
    assert gradients


@pytest.mark.parametrize("path", ["norm1.weight", "norm2.weight"])
def test_a_lost_gain_shows(path):
    outputs, gradients = failing(BLOCK, Altered(lambda w: w | {f"n0.{path}": np.ones(8, "float32")}))
    assert outputs
    assert gradients


@pytest.mark.parametrize(("one", "other"), [("q", "v"), ("k", "v"), ("o", "v")])
def test_swapped_projections_show(one, other):
    def swap(w):
        a, b = (f"n0.attn.{name}_proj.weight" for name in (one, other))
        return w | {a: w[b], b: w[a]}

    outputs, gradients = failing(BLOCK, Altered(swap))
    assert outputs
    assert gradients


def test_a_lost_mask_shows():
    plan = iso.resolve('x = input("B", 5, 8)\nm = input("B", 5, dtype="bool")\npost_norm_block(2, mask=m)')
    outputs, gradients = failing(plan, Altered(inputs=lambda i: i | {"m": np.ones_like(i["m"])}))
    assert outputs
    assert gradients


def test_a_lost_key_bias_shows_where_it_matters():
    """Without rotary positions it adds one number to all scores of a query, which softmax takes away again."""
    for definition, matters in (("attention(2)", False), ("attention(2, rope=True)", True)):
        plan = iso.resolve(definition, input=("B", 5, 8))
        outputs, _ = failing(plan, Altered(lambda w: w | {"n0.k_proj.bias": w["n0.k_proj.bias"] * 0}))
        assert bool(outputs) is matters


# -- faults in a backend's own functions -------------------------------------------------------------

REACH = "attention(2, causal=True, window_size=2, bias=False)"
MASKED = 'x = input("B", 5, 8)\nm = input("B", 5, dtype="bool")\nattention(2, mask=m)'


def other_arguments(**changed):
    """A function that calls the real one with other keyword arguments."""
    return lambda real: lambda *args, **kwargs: real(*args, **(kwargs | changed))


def wrong_scale(real):
    """Scores divided by the head's width instead of its root."""
    return lambda q, k, v, mask=None, **options: real(q * q.shape[-1] ** -0.5, k, v, mask, **options)


def inverted_mask(real):
    return lambda q, k, v, mask=None, **options: real(q, k, v, None if mask is None else ~mask, **options)


def no_mask(real):
    return lambda q, k, v, mask=None, **options: real(q, k, v, None, **options)


def turned_back(real):
    def tables(*args):
        cos, sin = real(*args)
        return cos, -sin

    return tables


def interleaved(real):
    """Queries' heads in turn, h % K, instead of one after the other, h // (H / K)."""

    def attention(q, k, v, mask=None, **options):
        H, K = q.shape[1], k.shape[1]
        order = [h % K for h in range(H)]
        return real(q, k[:, order], v[:, order], mask, **options)

    return attention


FAULTS = [
    ("attention", wrong_scale, "attention(2)"),
    ("attention", other_arguments(causal=False), "attention(2, causal=True)"),
    ("attention", other_arguments(causal=True), "attention(2)"),
    ("attention", other_arguments(window=3), REACH),
    ("attention", other_arguments(softcap=0.0), "attention(2, logit_softcap=2.0)"),
    ("attention", interleaved, "attention(4, kv_heads=2)"),
    ("attention", no_mask, MASKED),
    ("attention", inverted_mask, MASKED),
    ("cos_sin", turned_back, "attention(2, rope=True)"),
    ("cos_sin", turned_back, "sinusoidal_pos_embed()"),
    ("rms_norm", other_arguments(eps=1e-5), "rms_norm()"),
    ("rms_norm", other_arguments(offset=0.0), "rms_norm(zero_centered=True)"),
    ("l2_normalize", other_arguments(eps=1e-5), 'attention(2, qk_norm="l2_norm")'),
    ("gelu", lambda real: lambda x, approximate="none": real(x, "tanh"), "gelu()"),
    ("gelu", lambda real: lambda x, approximate="none": real(x, "tanh"), "transformer_block(2)"),
    ("gelu", lambda real: lambda x, approximate="none": real(x), 'gelu(approximate="tanh")'),
    ("silu", lambda real: lambda x: x * (1.702 * x).sigmoid(), "silu()"),
    ("quick_gelu", lambda real: lambda x: x * (1.7 * x).sigmoid(), "quick_gelu()"),
    ("concatenate", lambda real: lambda tensors, axis: real(tensors[::-1], axis), "cls_token()"),
    ("permute", lambda real: lambda x, axes: x if axes == (0, 2, 3, 1) else real(x, axes), "patch_embed(4, 1)"),
    ("mean", lambda real: lambda x, axis, keepdim=False: real(x, axis, keepdim) * 0.999, "pool_tokens()"),
]  # fmt: skip
ROUNDED = ("rms_norm", "l2_normalize", "gelu")
"""What float32 may hide: there the comparison in float64 has to see it."""


def resolved(definition):
    """A plan of the definition, on an input that suits it."""
    shape = ("B", 3, 2, 3) if "patch" in definition else ("B", 5, 8)
    return iso.resolve(definition, input=None if "input(" in definition else shape)


def disagreements(plan, dtype):
    """Quantities outside their bounds in the torch backend as it is now."""
    compared = testing.compare_outputs(plan, {"torch": load("torch")}, dtype=dtype)
    return [c.quantity for c in compared if not c.agrees]


@pytest.mark.parametrize(("primitive", "fault", "definition"), FAULTS)
def test_a_faulty_primitive_shows(monkeypatch, primitive, fault, definition):
    from isomorph.backends.torch import primitives

    plan = resolved(definition)
    assert disagreements(plan, "float64") == disagreements(plan, "float32") == []
    monkeypatch.setattr(primitives, primitive, fault(getattr(primitives, primitive)))
    assert disagreements(plan, "float64")
    assert disagreements(plan, "float32") or primitive in ROUNDED


# -- faults in a backend's modules -------------------------------------------------------------------


class Nothing(torch.nn.Module):
    """In the place of a branch that was lost."""

    def forward(self, x, *rest):
        return torch.zeros_like(x)


def replaced(path, part):
    return lambda model: model.set_submodule(f"n0.{path}", part)


def setting(path, name, value):
    return lambda model: setattr(model.get_submodule(f"n0.{path}"), name, value)


def swapped(one, other):
    def mutate(model):
        first, second = (model.get_submodule(f"n0.{path}") for path in (one, other))
        model.set_submodule(f"n0.{one}", second)
        model.set_submodule(f"n0.{other}", first)

    return mutate


MUTATIONS = {
    "no attention": replaced("attn", Nothing()),
    "no feed-forward": replaced("ffn", Nothing()),
    "no norm1": replaced("norm1", torch.nn.Identity()),
    "no norm2": replaced("norm2", torch.nn.Identity()),
    **{f"no bias in {path}": setting(path, "bias", None)
       for path in ("attn.q_proj", "attn.v_proj", "attn.o_proj", "ffn.up", "ffn.down", "norm1", "norm2")},
    **{f"no gain in {path}": setting(path, "weight", None) for path in ("norm1", "norm2")},
    **{f"{one} and {other} swapped": swapped(one, other) for one, other in (
        ("attn.q_proj", "attn.v_proj"), ("attn.v_proj", "attn.o_proj"), ("attn.q_proj", "attn.k_proj"),
        ("norm1", "norm2"))},
    "another epsilon in norm1": setting("norm1", "eps", 1e-6),
    "another epsilon in norm2": setting("norm2", "eps", 1e-6),
}  # fmt: skip


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_faulty_module_shows(monkeypatch, mutation):
    from isomorph.backends.torch import harness

    real = harness.build

    def build(plan, weights):
        model = real(plan, weights)
        MUTATIONS[mutation](model)
        return model

    monkeypatch.setattr(harness, "build", build)
    assert disagreements(BLOCK, "float64")
    assert disagreements(BLOCK, "float32") or "epsilon" in mutation


def test_check_operator_compares_in_float64_too():
    """A fault that float32 hides: the norm's epsilon in one backend."""

    def forward(self, m, F, x):
        return F.layer_norm(x, None, None, eps=1e-5 if "reference" in getattr(F, "__name__", "") else 9e-6)

    with pytest.raises(iso.IsomorphError) as caught:
        testing.check_operator(
            declare(forward=forward, examples=(iso.Example("One.", "harness_test_double()", ("B", 64)),))
        )
    assert [h for h in caught.value.hints if h.startswith("example 1, torch, output at B=2 in float64: ")]
    assert not [hint for hint in caught.value.hints if "output at B=2:" in hint]


def test_nan_and_a_wrong_shape_agree_with_nothing():
    plan = iso.resolve("identity()", input=("B", 2))

    class Wrong:
        def __init__(self, change):
            self.change = change

        def forward(self, plan, weights, inputs, dtype):
            return {"": self.change(inputs["x"])}

    for change in (lambda x: x * np.nan, lambda x: x.reshape(-1), lambda x: x[..., :1]):
        found = testing.compare_outputs(plan, {"wrong": Wrong(change)})
        assert not found[0].agrees
    assert all(c.agrees for c in testing.compare_outputs(plan, {"right": Wrong(lambda x: x)}))


def test_order_one_weights():
    plan = iso.resolve("embedding(2000, 16)\nlinear(2000)\nrms_norm()", input=("B", "T"), input_dtype="int64")
    weights = testing.order_one_weights(plan, seed=3)
    assert {path: w.dtype.name for path, w in weights.items()} == dict.fromkeys(weights, "float32")
    deviations = {path: float(w.std()) for path, w in weights.items()}
    # Tables and vectors N(0, 1); a matrix of 16 inputs N(0, 1/16).
    expected = {"n0.weight": 1, "n1.weight": 0.25, "n1.bias": 1, "n2.weight": 1}
    assert deviations == pytest.approx(expected, rel=0.1)
    again = testing.order_one_weights(plan, seed=3)
    assert all(np.array_equal(weights[path], again[path]) for path in weights)
    assert not np.array_equal(weights["n1.bias"], testing.order_one_weights(plan, seed=4)["n1.bias"])
    assert not np.array_equal(weights["n1.bias"], weights["n2.weight"])


def test_sample_inputs_suit_the_plan():
    plan = iso.resolve(
        """
        ids = input("B", "T", dtype="int64")
        m = input("B", "T", dtype="bool")
        h = embedding(ids, 3, 4)
        attention(h, 2, mask=m)
        """
    )
    inputs = testing.sample_inputs(plan, {"B": 20, "T": 30}, seed=1)
    assert inputs["ids"].shape == inputs["m"].shape == (20, 30)
    assert set(np.unique(inputs["ids"])) == {0, 1, 2}
    assert inputs["m"].dtype == bool
    assert 0.6 < inputs["m"].mean() < 0.8


def test_sample_sizes_respect_bounds():
    plan = iso.resolve("pos_embed(3)\npool_tokens()", input=("B", "T", 2))
    assert testing.sample_sizes(plan) == [{"B": 2, "T": 3}, {"B": 1, "T": 1}, {"B": 0, "T": 1}]


def declare(**overrides):
    """A registered operator, sound but for the overrides."""
    body = {
        "__doc__": "Twice the input.",
        "examples": (iso.Example("Twice.", "harness_test_double()", ("B", 2)),),
        "forward": lambda self, m, F, x: x * 2.0,
        **overrides,
    }
    shape = body.pop("pattern", "x[B, ...] -> out[B, ...]")
    cls = type("Double", (iso.Operator,), {"__annotations__": {}, **body})
    return iso.operator("harness_test_double", shape=shape, category="testing")(cls)


@pytest.fixture(autouse=True)
def _forget():
    yield
    catalogue.declared.pop("harness_test_double", None)


def test_a_sound_operator_from_outside():
    report = testing.check_operator(declare())
    assert report.failures == []
    assert str(report).splitlines()[0] == f"harness_test_double@1: {', '.join(available())}"
    # 4 * 2**-23 * sqrt(1) * max(1, 0), for an empty batch and a reduction of length 1
    assert "example 1, torch, output at B=0: difference 0, allowed 4.77e-07" in str(report)


@pytest.mark.parametrize(
    ("overrides", "fault"),
    [
        ({"__doc__": None}, "its docstring must begin with a sentence"),
        ({"examples": ()}, "it has no example"),
        (
            {"examples": (iso.Example("Once.", "relu()", ("B", 2)),)},
            "example 1 does not call it",
        ),
        ({"forward": iso.Operator.forward}, "it has no forward computation"),
        ({"bounds": {"T": "most"}}, "bound T names most, which is no argument"),
    ],
)
def test_an_incomplete_declaration(overrides, fault):
    with pytest.raises(iso.IsomorphError) as caught:
        testing.check_operator(declare(**overrides))
    assert caught.value.code == "E_OPERATOR"
    assert caught.value.message == "harness_test_double@1 is not declared completely"
    assert fault in caught.value.hints


def test_a_disagreeing_backend_is_told_with_numbers():
    def forward(self, m, F, x):
        return x * (2.0 if "reference" in getattr(F, "__name__", "") else 2.5)

    with pytest.raises(iso.IsomorphError) as caught:
        testing.check_operator(declare(forward=forward))
    assert caught.value.code == "E_OPERATOR"
    assert caught.value.message == ("harness_test_double@1 does not compute what the reference computes")
    assert any(hint.startswith("example 1, torch, output at B=2: difference ") for hint in caught.value.hints)


def test_a_shape_rule_that_forward_breaks():
    with pytest.raises(iso.IsomorphError, match="its shape rule says"):
        testing.check_operator(declare(forward=lambda self, m, F, x: F.mean(x, 1, True)))


def test_unknown_operators_and_backends():
    with pytest.raises(iso.IsomorphError, match="there is no operator 'linaer'"):
        testing.check_operator("linaer")
    with pytest.raises(iso.IsomorphError, match="there is no backend 'touch'") as caught:
        testing.check_operator("relu", ["touch"])
    assert caught.value.code == "E_BACKEND"
    assert caught.value.hints == ("did you mean torch?",)


def test_a_backend_that_is_not_installed(monkeypatch):
    missing = BACKENDS["torch"]._replace(requires=("no_such_framework",))
    monkeypatch.setitem(BACKENDS, "torch", missing)
    assert "torch" not in available()
    with pytest.raises(iso.IsomorphError) as caught:
        load("torch")
    assert str(caught.value) == (
        "E_BACKEND: the backend 'torch' needs no_such_framework, which is not installed\n"
        '  pip install "isomorph[torch]"'
    )


@pytest.mark.parametrize("wrong", [5, None, iso.Operator, object])
def test_what_is_no_operator(wrong):
    with pytest.raises(iso.IsomorphError) as caught:
        testing.check_operator(wrong)
    assert (caught.value.code, caught.value.message) == (
        "E_ARGUMENT", f"expected an operator or its name, got {wrong!r}",
    )  # fmt: skip


def test_what_an_example_raises_says_in_which():
    def forward(self, m, F, x):
        raise ZeroDivisionError("of the author's own")

    with pytest.raises(ZeroDivisionError) as caught:
        testing.check_operator(declare(forward=forward))
    assert caught.value.__notes__[-1] == "in example 1 of harness_test_double@1"


def test_a_parameter_that_nothing_depends_on():
    ones = iso.Parameter((1,), Constant(1.0))

    def forward(self, m, F, x):
        F.tanh(m.shift)  # looked at, and dropped
        return x * m.gain

    with pytest.raises(iso.IsomorphError) as caught:
        testing.check_operator(
            declare(forward=forward, parameters=lambda self: {"gain": ones, "shift": ones, "bias": ones})
        )
    assert str(caught.value) == (
        "E_OPERATOR: harness_test_double@1 declares parameters that no example's outputs depend on\n"
        "  bias\n"
        "  shift"
    )
    plan = iso.resolve("attention(2)", input=("B", 3, 4))  # the key's bias has no effect, and is used
    assert not any(idle_parameters(plan, type(plan.nodes[0].operator)).values())
