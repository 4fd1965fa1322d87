"""``transformer_block@1``: what it computes, in the reference and in torch.

:func:`by_hand` writes the block out in NumPy, from its documentation and from nothing else; in the other tests
weights isolate one path, so that the right value is known.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import isomorph as iso
from isomorph.backends.available import load
from isomorph.operators.activation import ACTIVATIONS
from isomorph.operators.attention import Attention
from isomorph.operators.blocks import PreNormBlock
from isomorph.operators.feed_forward import FeedForward
from isomorph.testing import compare_gradients, compare_outputs, order_one_weights

torch = pytest.importorskip("torch")

BACKENDS = ("reference", "torch")
Array = np.ndarray[Any, Any]
Weights = dict[str, Array]

erf = np.vectorize(math.erf)
FORMULAS = {
    "gelu": lambda x: 0.5 * x * (1 + erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "relu": lambda x: np.maximum(x, 0),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "quick_gelu": lambda x: x / (1 + np.exp(-1.702 * x)),
}


def by_hand(
    x: Array, w: Weights, heads: int, *, activation: str = "gelu", norm: str = "layer_norm", causal: bool = False,
    layer_scale: bool = False, eps: float = 1e-5, mlp_ratio: int = 4,
) -> Array:  # fmt: skip
    """The documented block for one example after the other; ``w`` by the paths inside the node."""

    def normalized(name: str, z: Array) -> Array:
        if norm == "layer_norm":
            z = z - z.mean(-1, keepdims=True)
            return (
                z / np.sqrt((z * z).mean(-1, keepdims=True) + eps) * w[f"{name}.weight"] + w[f"{name}.bias"]
            )
        return z / np.sqrt((z * z).mean(-1, keepdims=True) + eps) * w[f"{name}.weight"]

    def affine(name: str, z: Array) -> Array:
        return z @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def attention(z: Array) -> Array:  # (T, D)
        T, D = z.shape
        d = D // heads
        q, k, v = (affine(f"attn.{name}_proj", z) for name in "qkv")
        joined = np.zeros((T, D))
        for h in range(heads):
            own = slice(h * d, (h + 1) * d)
            for t in range(T):
                seen = t + 1 if causal else T
                scores = k[:seen, own] @ q[t, own] / math.sqrt(d)
                shares = np.exp(scores - scores.max())
                joined[t, own] = shares / shares.sum() @ v[:seen, own]
        return affine("attn.o_proj", joined)

    gain1, gain2 = (w["gamma1"], w["gamma2"]) if layer_scale else (1.0, 1.0)
    out = np.zeros(x.shape)
    for b, example in enumerate(x):
        h = example + gain1 * attention(normalized("norm1", example))
        hidden = FORMULAS[activation](affine("ffn.up", normalized("norm2", h)))
        assert hidden.shape[-1] == mlp_ratio * x.shape[-1]
        out[b] = h + gain2 * affine("ffn.down", hidden)
    return out


def block(arguments: str, D: int, dtype: str = "float64") -> iso.Plan:
    return iso.resolve(f"transformer_block({arguments})", input=("B", "T", D), dtype=dtype)


def compute(backend: str, plan: iso.Plan, weights: Weights, x: Array, dtype: str = "float64") -> Array:
    """The output in evaluation mode; weights by the paths inside the node."""
    named = {f"n0.{path}": array for path, array in weights.items()}
    return load(backend).forward(plan, named, {"x": x}, dtype)[""]


def inner(weights: Weights) -> Weights:
    return {path.removeprefix("n0."): array for path, array in weights.items()}


def draw(*shape: int, seed: int = 7) -> Array:
    return np.random.default_rng(seed).standard_normal(shape)


def silent(D: int, norm: str = "layer_norm") -> Weights:
    """Weights of a block (mlp_ratio 1) whose branches add nothing: all zero but the norms' gains."""
    plan = block(f'1, mlp_ratio=1, norm="{norm}"', D)
    zeros = {p.path.removeprefix("n0."): np.zeros(p.shape) for p in plan.parameters}
    return zeros | {f"norm{i}.weight": np.ones(D) for i in (1, 2)}


ARGUMENTS = [
    {},
    *({"activation": name} for name in ACTIVATIONS if name != "gelu"),
    {"norm": "rms_norm"},
    {"causal": True},
    {"layer_scale": True},
    {"eps": 0.3},
    {"eps": 0.3, "norm": "rms_norm"},
    {"mlp_ratio": 1},
    {"activation": "gelu_tanh", "causal": True},
    {"norm": "rms_norm", "causal": True, "layer_scale": True, "mlp_ratio": 3, "activation": "silu"},
]


def difference(backend: str, arguments: dict[str, Any], heads: int = 2, seed: int = 0) -> float:
    """``max |computed - by hand|`` at order-one weights, over ``max |by hand|``."""
    written = "".join(f", {name}={value!r}" for name, value in arguments.items())
    plan = block(f"{heads}{written}", 8)
    weights, x = inner(order_one_weights(plan, seed)), draw(2, 5, 8)
    right = by_hand(x, weights, heads, **arguments)
    return float(np.abs(compute(backend, plan, weights, x) - right).max() / np.abs(right).max())


@pytest.mark.parametrize("arguments", ARGUMENTS, ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_it_is_its_documentation_written_out(backend, arguments):
    assert difference(backend, arguments) < 1e-12


@pytest.mark.parametrize("heads", [1, 4, 8])
@pytest.mark.parametrize("backend", BACKENDS)
def test_heads(backend, heads):
    assert difference(backend, {}, heads) < 1e-12


# -- faults in the forward computation itself, which all backends share --------------------------------


def forward_with(change: str) -> Any:
    """The block's forward computation with one fault."""

    def forward(self: Any, m: Any, F: Any, x: Any) -> Any:
        first = m.attn(m.norm1(x))
        if change == "no attention branch":
            h = x
        elif change == "no residual":
            h = self.scaled(m, "gamma1", first)
        elif change == "post-norm":
            h = m.norm1(x + m.attn(x))
        elif change == "swapped norms":
            h = x + self.scaled(m, "gamma1", m.attn(m.norm2(x)))
        elif change == "swapped gains":
            h = x + self.scaled(m, "gamma2", first)
        elif change == "no gain":
            h = x + first
        else:
            h = x + self.scaled(m, "gamma1", first)
        if change == "no feed-forward branch":
            return h
        second = m.ffn(m.norm2(x if change == "parallel branches" else h))
        return h + self.scaled(m, "gamma1" if change == "swapped gains" else "gamma2", second)

    return forward


FAULTS = ["no attention branch", "no feed-forward branch", "no residual", "post-norm", "swapped norms",
          "swapped gains", "no gain", "parallel branches"]  # fmt: skip


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_rewritten_forward_is_right_without_a_fault(backend, monkeypatch):
    monkeypatch.setattr(PreNormBlock, "forward", forward_with("none"))
    assert difference(backend, {"layer_scale": True}) < 1e-12


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_fault_in_the_block_shows(backend, fault, monkeypatch):
    monkeypatch.setattr(PreNormBlock, "forward", forward_with(fault))
    assert difference(backend, {"layer_scale": True}) > 1e-3


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_fault_in_a_part_shows(backend, monkeypatch):
    """Swapped projections, heads split the other way, and an activation left out."""

    def swapped(self: Any, m: Any, F: Any, x: Any, context: Any) -> Any:
        d = self.head_width(self.sizes["D"])
        projections = (m.k_proj, m.q_proj, m.v_proj)
        return tuple(self.split_heads(F, project(x), self.heads, d) for project in projections)

    def strided(self: Any, F: Any, x: Any, heads: int, d: int) -> Any:
        B, T = x.shape[0], x.shape[1]
        return F.permute(F.reshape(x, (B, T, d, heads)), (0, 3, 1, 2))

    for owner, name, fault in (
        (Attention, "heads_of", swapped),
        (Attention, "split_heads", strided),
        (FeedForward, "forward", lambda self, m, F, x: m.down(m.up(x))),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, fault)
            assert difference(backend, {}) > 1e-3, name


@pytest.mark.parametrize(
    ("name", "given", "instead"),
    [
        ("eps", 0.3, 1e-5),
        ("causal", True, False),
        ("activation", "relu", "gelu"),
        ("norm", "rms_norm", "layer_norm"),
    ],
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_an_argument_that_does_not_reach_its_part_shows(backend, name, given, instead):
    """The block computed with the default in place of what was asked for."""
    plan = block(f"2, {name}={given!r}", 8)
    weights, x = inner(order_one_weights(plan)), draw(2, 5, 8)
    right = by_hand(x, weights, 2, **{name: given})
    other = block(f"2, {name}={instead!r}", 8)
    wrong = compute(backend, other, inner(order_one_weights(other)) | weights, x)
    assert np.abs(wrong - right).max() > 1e-3


# -- attention -------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [100.0, np.nan, np.inf])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_future_changes_nothing_earlier(backend, dtype, bad):
    plan = block('2, causal=True, norm="rms_norm"', 8, dtype)
    weights, x = inner(order_one_weights(plan)), draw(2, 70, 8).astype(dtype)
    before = compute(backend, plan, weights, x, dtype)
    for t in (1, 35, 69):
        changed = x.copy()
        changed[:, t:] = bad
        after = compute(backend, plan, weights, changed, dtype)
        np.testing.assert_array_equal(after[:, :t], before[:, :t])  # bit for bit
        assert (after[:, t:] != before[:, t:]).any(axis=-1).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_stack_of_causal_blocks_is_autoregressive(backend):
    text = "for _ in range(3):\n    transformer_block(2, causal=True)"
    plan = iso.resolve(text, input=("B", "T", 8), dtype="float64")
    weights, x = order_one_weights(plan), draw(1, 6, 8)
    whole = load(backend).forward(plan, weights, {"x": x}, "float64")[""]
    for t in range(1, 7):  # what a prefix gives is the prefix of what the whole gives
        prefix = load(backend).forward(plan, weights, {"x": x[:, :t]}, "float64")[""]
        np.testing.assert_allclose(prefix, whole[:, :t], rtol=0, atol=1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
def test_without_causal_every_position_sees_every_other(backend):
    plan = block("2", 8)
    weights, x = inner(order_one_weights(plan)), draw(1, 6, 8)
    before = compute(backend, plan, weights, x)
    for t in range(6):
        changed = x.copy()
        changed[:, t] = draw(8, seed=t)
        assert (compute(backend, plan, weights, changed) != before).any(axis=-1).all()
    order = [4, 0, 5, 2, 1, 3]  # and no position is special
    np.testing.assert_allclose(compute(backend, plan, weights, x[:, order]), before[:, order], atol=1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
def test_examples_of_a_batch_do_not_meet(backend):
    plan = block("2", 8)
    weights, x = inner(order_one_weights(plan)), draw(3, 5, 8)
    whole = compute(backend, plan, weights, x)
    for b in range(3):
        np.testing.assert_allclose(compute(backend, plan, weights, x[b : b + 1])[0], whole[b], atol=1e-12)


# -- activations -----------------------------------------------------------------------------------


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_each_activation(backend, activation):
    """x = 0 normalizes to the norm's bias, which identity maps carry through the activation alone."""
    grid = np.linspace(-8, 8, 64)
    weights = silent(64) | {"norm2.bias": grid, "ffn.up.weight": np.eye(64), "ffn.down.weight": np.eye(64)}
    plan = block(f'4, mlp_ratio=1, activation="{activation}"', 64)
    out = compute(backend, plan, weights, np.zeros((1, 1, 64)))[0, 0]
    tensor = torch.from_numpy(grid)
    peer = {
        "gelu": torch.nn.functional.gelu(tensor),
        "gelu_tanh": torch.nn.functional.gelu(tensor, approximate="tanh"),
        "relu": torch.relu(tensor),
        "silu": torch.nn.functional.silu(tensor),
        "quick_gelu": tensor * torch.sigmoid(1.702 * tensor),
    }[activation]
    np.testing.assert_allclose(out, peer.numpy(), rtol=1e-13, atol=1e-15)
    np.testing.assert_allclose(out, FORMULAS[activation](grid), rtol=1e-12, atol=1e-15)


# -- norms -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["norm1", "norm2"])
@pytest.mark.parametrize("norm", ["layer_norm", "rms_norm"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_epsilon_reaches_both_norms(backend, norm, which):
    """Rows [2, -2]: mean 0, mean square 4, so with eps = 12 they become x / sqrt(16) = [0.5, -0.5]."""
    weights = silent(2, norm=norm)
    if which == "norm1":  # equal weights, values as they are: attention is the mean over positions
        weights |= {"attn.v_proj.weight": np.eye(2), "attn.o_proj.weight": np.eye(2)}
    else:
        weights |= {"ffn.up.weight": np.eye(2), "ffn.down.weight": np.eye(2)}
    x = np.array([[[2.0, -2.0]]])
    for eps, branch in ((12.0, 0.5), (1e-12, 1.0)):
        plan = block(f'1, mlp_ratio=1, activation="relu", norm="{norm}", eps={eps!r}', 2)
        out = compute(backend, plan, weights, x)
        right = [[[2 + branch, -2 - (branch if which == "norm1" else 0)]]]  # relu drops the second
        np.testing.assert_allclose(out, right, rtol=1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
def test_layer_norm_re_centers_and_rms_norm_does_not(backend):
    x = np.array([[[5.0, 3.0]]])  # mean 4, deviation 1; mean square 17
    weights = silent(2) | {"attn.v_proj.weight": np.eye(2), "attn.o_proj.weight": np.eye(2)}
    out = compute(backend, block("1, mlp_ratio=1, eps=1e-30", 2), weights, x)
    np.testing.assert_allclose(out, [[[6.0, 2.0]]], rtol=1e-14)
    weights = {path: array for path, array in weights.items() if path not in ("norm1.bias", "norm2.bias")}
    out = compute(backend, block('1, mlp_ratio=1, eps=1e-30, norm="rms_norm"', 2), weights, x)
    np.testing.assert_allclose(out, [[[5 + 5 / 17**0.5, 3 + 3 / 17**0.5]]], rtol=1e-14)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_rms_norm_squares_in_float32(dtype):
    """300^2 = 90,000 is beyond float16 and 512 ones are beyond a sum in bfloat16; the row is still one's."""
    value, D = (300.0, 64) if dtype == "float16" else (1.0, 512)
    weights = {p.path: np.zeros(p.shape) for p in block('1, mlp_ratio=1, norm="rms_norm"', D).parameters} | {
        "n0.norm1.weight": np.ones(D),
        "n0.attn.v_proj.weight": np.eye(D),
        "n0.attn.o_proj.weight": np.eye(D),
    }
    model = iso.torch.build(block('1, mlp_ratio=1, norm="rms_norm"', D, dtype), weights)
    x = torch.full((1, 2, D), value, dtype=getattr(torch, dtype))
    out = model(x)
    assert out.dtype == x.dtype
    assert out.unique().tolist() == [value + 1]  # 301 and 2 have a place in either dtype


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
@pytest.mark.parametrize("norm", ["layer_norm", "rms_norm"])
def test_everything_is_in_the_compute_dtype(dtype, norm):
    """Every tensor that a part of the block hands on has the plan's dtype."""
    wanted = getattr(torch, dtype)
    model = iso.torch.build(block(f'2, norm="{norm}", layer_scale=True, dropout=0.1', 8, dtype))
    seen = []
    for part in model.modules():
        part.register_forward_hook(lambda part, inputs, out: seen.append(out.dtype))
    model(torch.ones(2, 3, 8, dtype=wanted))
    assert len(seen) >= 12
    assert set(seen) == {p.dtype for p in model.parameters()} == {wanted}


# -- layer scale -----------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_layer_scale_starts_the_block_near_the_identity(backend):
    x = draw(2, 5, 32)
    distances = []
    for start in (1e-5, 1e-3):
        plan = block(f"4, layer_scale=True, layer_scale_init={start!r}", 32)
        weights = inner(iso.initial_weights(plan, seed=1))
        distances.append(np.abs(compute(backend, plan, weights, x) - x).max())
    assert 0 < distances[0] < 1e-4
    assert distances[1] / distances[0] == pytest.approx(100, rel=0.01)
    off = block("4, layer_scale_init=1e-5", 32)
    assert np.abs(compute(backend, off, inner(iso.initial_weights(off, seed=1)), x) - x).max() > 0.1


@pytest.mark.parametrize("backend", BACKENDS)
def test_each_gain_scales_its_own_branch_by_feature(backend):
    plan = block("2, layer_scale=True", 8)
    weights, x = inner(order_one_weights(plan)), draw(2, 5, 8)
    nothing = {"gamma1": np.zeros(8), "gamma2": np.zeros(8)}
    np.testing.assert_array_equal(compute(backend, plan, weights | nothing, x), x)
    for gain in ("gamma1", "gamma2"):
        one = compute(backend, plan, weights | nothing | {gain: np.ones(8)}, x) - x
        some = np.arange(8.0)
        scaled = compute(backend, plan, weights | nothing | {gain: some}, x) - x
        np.testing.assert_allclose(scaled, some * one, rtol=1e-9, atol=1e-14)


# -- dropout ---------------------------------------------------------------------------------------


def torch_block(arguments: str, D: int, weights: Weights) -> Any:
    plan = block(arguments, D)
    return iso.torch.build(plan, {f"n0.{path}": array for path, array in weights.items()})


def test_dropout_acts_on_the_attention_weights():
    """Equal weights over T = 4 positions and values of one: a head's output is (kept weights) / (4 (1 - p)).

    So it is one of 0, 1/2, 1, 3/2, 2 and the same for all features of a head. Dropping values or outputs
    would give 0 or 2 only, feature by feature.
    """
    D, H, T = 8, 2, 4
    weights = silent(D) | {"attn.v_proj.bias": np.ones(D), "attn.o_proj.weight": np.eye(D)}
    model = torch_block(f"{H}, mlp_ratio=1, dropout=0.5", D, weights)
    x = torch.zeros(64, T, D, dtype=torch.float64)
    torch.manual_seed(0)
    branch = model(x).reshape(64, T, H, D // H)
    assert set(branch.unique().tolist()) == {0.0, 0.5, 1.0, 1.5, 2.0}
    assert (branch == branch[..., :1]).all()
    heads = branch[..., 0]  # (64, T, H)
    assert not torch.equal(heads[..., 0], heads[..., 1])  # a mask for each head,
    assert not torch.equal(heads[:, 0], heads[:, 1])  # query
    assert not torch.equal(heads[0], heads[1])  # and example,
    assert not torch.equal(model(x), model(x))  # anew in every call
    # 512 means of 4 coins, each of deviation 1/2: mean 1 within five deviations of the mean
    assert abs(heads.mean().item() - 1) < 5 * 0.5 / 512**0.5
    assert (model.eval()(x) == 1).all()


def test_dropout_acts_after_the_activation():
    """up gives 1, down is the identity plus 5: a feature is 5, or 5 + gelu(1) / (1 - p).

    Dropped before the activation it would be 5 + gelu(2) where it stayed; dropped after down, 0 or 10 + ...
    """
    D = 8
    weights = silent(D) | {
        "ffn.up.bias": np.ones(D),
        "ffn.down.weight": np.eye(D),
        "ffn.down.bias": np.full(D, 5.0),
    }
    model = torch_block("2, mlp_ratio=1, dropout=0.5", D, weights)
    x = torch.zeros(64, 4, D, dtype=torch.float64)
    gelu_1 = 0.5 * (1 + math.erf(1 / math.sqrt(2)))
    torch.manual_seed(0)
    out = model(x)
    assert out.unique().tolist() == pytest.approx([5.0, 5 + 2 * gelu_1], rel=1e-14)
    kept = out > 5
    assert abs(kept.double().mean().item() - 0.5) < 5 * 0.5 / kept.numel() ** 0.5
    assert not torch.equal(kept[0], kept[1])
    assert not torch.equal(kept[:, 0], kept[:, 1])
    assert not torch.equal(out, model(x))
    torch.testing.assert_close(model.eval()(x), torch.full_like(x, 5 + gelu_1), rtol=1e-14, atol=0)


def test_the_two_places_draw_separately():
    """With the other place in evaluation mode each still varies; with both, nothing does."""
    model = torch_block("2, dropout=0.5", 8, inner(order_one_weights(block("2, dropout=0.5", 8))))
    x = torch.from_numpy(draw(2, 5, 8))
    places = model.n0.attn.dropout, model.n0.ffn.dropout
    assert [place.p for place in places] == [0.5, 0.5]
    for place in places:
        model.train()
        place.eval()
        assert not torch.equal(model(x), model(x))
    for place in places:
        place.eval()
    assert torch.equal(model(x), model(x))


def test_evaluation_drops_nothing_and_draws_nothing():
    weights = inner(order_one_weights(block("2", 8)))
    dropping, plain = torch_block("2, dropout=0.5", 8, weights).eval(), torch_block("2", 8, weights)
    x, state = torch.from_numpy(draw(2, 5, 8)), torch.get_rng_state()
    assert torch.equal(dropping(x), plain(x))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("causal", [False, True])
def test_without_dropout_both_modes_are_the_same_and_nothing_is_drawn(causal):
    arguments = f"2, causal={causal}"
    model = torch_block(arguments, 8, inner(order_one_weights(block(arguments, 8))))
    x, state = torch.from_numpy(draw(2, 5, 8)), torch.get_rng_state()
    assert model.training
    training = model(x)
    assert torch.equal(model(x), training)
    assert torch.equal(model.eval()(x), training)
    assert torch.equal(torch.get_rng_state(), state)
    assert not [part for part in model.modules() if isinstance(part, torch.nn.Dropout)]


# -- correspondences -------------------------------------------------------------------------------

MODELS = {
    "GPT-2": (
        """
        ids = input("B", "T", dtype="int64")
        embedding(17, 8, name="wte")
        pos_embed(16)
        for _ in range(2):
            transformer_block(2, activation="gelu_tanh", causal=True, name="block")
        layer_norm()
        linear(17, bias=False, tie={"weight": "wte.weight"})
        """,
        {},
    ),
    "ViT": (
        """
        patch_embed(8, 2)
        cls_token()
        pos_embed(5)
        for _ in range(2):
            transformer_block(2, name="block")
        layer_norm()
        pool_tokens("first")
        linear(3)
        """,
        {"input": ("B", 3, 4, 4)},
    ),
    "LLaMA": (
        """
        ids = input("B", "T", dtype="int64")
        embedding(17, 8)
        for _ in range(2):
            transformer_block(2, norm="rms_norm", causal=True, name="block")
        rms_norm()
        linear(17, bias=False)
        """,
        {},
    ),
    "CaiT": (
        """
        patch_embed(8, 2)
        for _ in range(2):
            transformer_block(2, layer_scale=True, name="block")
        layer_norm()
        pool_tokens()
        linear(3)
        """,
        {"input": ("B", 3, 4, 4)},
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_four_recipes_run_forward_and_backward(name):
    text, contracts = MODELS[name]
    plan = iso.resolve(text, **contracts)
    harness = {"torch": load("torch")}
    compared = compare_outputs(plan, harness) + compare_gradients(plan, harness)
    assert len(compared) > len(plan.parameters)
    assert [str(comparison) for comparison in compared if not comparison.agrees] == []


@pytest.mark.parametrize("name", MODELS)
def test_the_four_recipes_learn(name):
    """Twenty steps on four fixed examples, from the initial weights: the loss falls, every parameter moves."""
    text, contracts = MODELS[name]
    model = iso.torch.build(iso.resolve(text, **contracts), seed=1)
    before = {path: p.detach().clone() for path, p in model.named_parameters()}
    generator = torch.Generator().manual_seed(0)
    if contracts:
        x = torch.randn(4, 3, 4, 4, generator=generator)
        targets = torch.tensor([0, 1, 2, 1])
    else:
        ids = torch.randint(0, 17, (4, 9), generator=generator)
        x, targets = ids[:, :-1], ids[:, 1:].reshape(-1)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(20):
        scores = model(x)
        loss = torch.nn.functional.cross_entropy(scores.reshape(-1, scores.shape[-1]), targets)
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert losses[-1] < 0.8 * losses[0]
    for path, parameter in model.named_parameters():
        assert not torch.equal(parameter, before[path]), path
