"""Written source code computes what the plan computes, without isomorph, and reads as written by hand."""

from __future__ import annotations

import inspect
import json
import re
import runpy
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import isomorph as iso
from isomorph.display.page import resolve_example
from isomorph.initializers import Constant
from isomorph.operators import catalogue
from isomorph.operators.operator import Operator
from isomorph.primitives import Primitives
from isomorph.source_code import export_python, write_python
from isomorph.source_code.write import _words
from isomorph.testing import order_one_weights, sample_inputs, sample_sizes

torch = pytest.importorskip("torch")

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(path.stem for path in (ROOT / "examples").glob("*.net"))
_EXAMPLE_TESTS = runpy.run_path(str(ROOT / "tests" / "examples" / "test_examples.py"))

OPERATORS = [
    pytest.param(name, number, id=f"{name}-{number + 1}")
    for name, operator in catalogue.all_operators().items()
    for number in range(len(operator.examples))
]

# What the examples do not have: values that loops carry, ties inside blocks, frozen parts, every kind of
# visibility, names that the text needs for itself.
NETWORKS = {
    "two values carried and exchanged": """
        x = input("B", 4)
        a = linear(x, 4)
        b = linear(x, 4)
        for _ in range(3):
            c = add(a, b)
            a = tanh(b)
            b = linear(c, 4)
        add(a, b)""",
    "what a loop starts from is read again": """
        x = input("B", 4)
        h = linear(x, 4)
        a = h
        for _ in range(3):
            a = linear(a, 4)
            a = add(a, h)
        add(a, h)""",
    "loops in loops": """
        x = input("B", "T", 8)
        for _ in range(3):
            for _ in range(2):
                linear(8, name="lin")
                relu()
            transformer_block(2, name="blk")""",
    "shared layers": """
        x = input("B", "T", 8)
        encoder_block(2, 8, name="first")
        encoder_block(2, 8, name="second", tie={"attn.q_proj.weight": "first.attn.q_proj.weight",
            "attn.q_proj.bias": "first.attn.q_proj.bias", "attn.k_proj.weight": "first.attn.k_proj.weight",
            "ffn.up.weight": "first.ffn.up.weight", "norm1.weight": "first.norm1.weight"})
        linear(8, name="a")
        linear(8, name="b", tie={"weight": "a.weight"})
        linear(8, bias=False, name="c", tie={"weight": "a.weight"})""",
    "a table read and scored with": """
        ids = input("B", "T", dtype="int64")
        embedding(7, 4, name="tokens")
        for _ in range(2):
            linear(7, bias=False, name="head", tie={"weight": "tokens.weight"})
            linear(4, name="back")
        linear(7, name="score", tie={"weight": "tokens.weight"})""",
    "frozen parts": """
        x = input("B", "T", 8)
        linear(8, name="a", trainable=False)
        for _ in range(2):
            transformer_block(2, name="blk", layer_scale=True,
                              trainable={"attn": False, "gamma1": False, "ffn.up": False})
        linear(8, name="b", trainable={"bias": False})
        pos_embed(12, trainable=False)""",
    "who may attend to whom": """
        x = input("B", "T", 8)
        m = input("B", "T", dtype="bool")
        attention(x, 2, window_size=2)
        attention(2, window_size=2, mask=m)
        attention(2, causal=True, mask=m, kv_heads=1)
        attention(4, mask=m, logit_softcap=3.0, qk_norm="l2_norm")
        attention(2, causal=True, dropout=0.2, mask=m)
        attention(2, causal=True, head_dim=6, rope=True, rope_scaling="linear", rope_scale=2.0)""",
    "another sequence": """
        x = input("B", "T", 8)
        memory = input("B", "S", 12)
        mask = input("B", "S", dtype="bool")
        h = cross_attention(x, memory, 2, mask=mask)
        cross_attention(h, memory, 2, logit_softcap=2.0, dropout=0.1)""",
    "names that Python and the file use": """
        jax = input("B", "T", 8)
        torch = input("B", "T", 8)
        add(jax, torch)
        rms_norm(zero_centered=True)
        layer_norm(affine=False)
        rms_norm(affine=False)
        a, b = split(3, dim=2)
        h = concat(b, a, b, axis=2)
        s = softmax(h, 1)
        output(h=("B", "T", 13), s=("B", "T", 13))""",
    "f18 loops that compute nothing": """
        a = input("B", 4)
        b = linear(a, 4)
        identity(a)
        identity()
        h = scale(1.0)
        for _ in range(2):
            for _ in range(3):
                c = identity(h)
                h = identity(b)
                b = identity(c)
        for _ in range(2):
            for _ in range(3):
                h = linear(tanh(h), 4)
            dropout(h, 0.3)
            h = dropout(0.3)
        add(h, b)""",
    "f18 names that loops and tables use": """
        i = input("j", "k", 16)
        FREQUENCIES = input("j", "k", 16)
        causal_windowed_attention2 = input("j", "k", dtype="bool")
        h = sinusoidal_pos_embed(FREQUENCIES)
        for _ in range(3):
            h = attention(h, 2, causal=True, window_size=2)
            h = attention(h, 4, kv_heads=2, causal=True, window_size=2, mask=causal_windowed_attention2)
        n = flatten(h)
        m = add(h, i)
        output(m=("j", "k", 16), n=("j", "16*k"))""",
    "f18 names of modules that the text uses": """
        x = input("B", 8)
        for _ in range(2):
            linear(8, name="nn", trainable={"bias": False})
        relu()
        for _ in range(2):
            linear(8, name="nnx", trainable={"bias": False})
        relu()
        for _ in range(2):
            linear(8, name="range", trainable={"bias": False}, init={"weight": normal(std=0.1)})
        relu()
        for _ in range(2):
            linear(8, name="setattr", trainable={"weight": False})
        relu()
        for _ in range(2):
            linear(8, name="freeze", trainable={"bias": False})""",
    "f18 one of several in a loop is read elsewhere": """
        x = input("B", "T", 8)
        for _ in range(3):
            transformer_block(2, mlp_ratio=1, name="block")
        for _ in range(3):
            linear(8, name="a")
        linear(8, name="one", tie={"weight": "block1.attn.q_proj.weight"})
        linear(8, name="two", tie={"weight": "a1.weight"})""",
    "one class, several sizes": """
        x = input("B", "T", 16)
        attention(2, rope=True)
        attention(4, rope=True, causal=True)
        attention(4, kv_heads=2)
        feed_forward(8)
        feed_forward(12)
        transformer_block(2, mlp_ratio=2, eps=1e-3)
        transformer_block(4)
        linear(8)
        transformer_block(2)""",
}


def lines_of(text: str) -> str:
    return inspect.cleandoc(text)


def network_of(name: str) -> iso.Plan:
    return iso.resolve(lines_of(NETWORKS[name]))


def small_example(name: str) -> iso.Plan:
    return _EXAMPLE_TESTS["plan_of"](name, *_EXAMPLE_TESTS["SMALL"].get(name, ()))


def run_text(text: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "model"}
    exec(compile(text, "model.py", "exec"), names)
    return names


def filled(plan: iso.Plan, weights: Mapping[str, np.ndarray]) -> Any:
    """The written PyTorch model in float64 with some weights."""
    model = run_text(write_python(plan))["Model"]().double()
    state = {**weights, **{path: weights[owner] for path, owner in plan.ties.items()}}
    assert set(model.state_dict()) == set(state)
    model.load_state_dict({path: torch.tensor(array).double() for path, array in state.items()})
    return model


def tensors(inputs: Mapping[str, np.ndarray], dtype: Any) -> list[Any]:
    found = [torch.tensor(array) for array in inputs.values()]
    return [one.to(dtype) if one.is_floating_point() else one for one in found]


def named(plan: iso.Plan, outputs: Any) -> dict[str, np.ndarray]:
    several = outputs if isinstance(outputs, dict) else {plan.outputs[0][0]: outputs}
    assert list(several) == [name for name, _ in plan.outputs]
    return {name: np.asarray(y.detach() if hasattr(y, "detach") else y) for name, y in several.items()}


def apart(got: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> float:
    """The largest difference over the largest expected value, at least 1."""
    worst = 0.0
    for name, array in expected.items():
        assert got[name].shape == array.shape
        scale = max(1.0, float(np.abs(array).max(initial=0.0)))
        worst = max(worst, float(np.abs(got[name] - array).max(initial=0.0)) / scale)
    return worst


def check_torch(plan: iso.Plan) -> None:
    """float64 against the reference at every sample size, float32 against the torch backend."""
    weights = order_one_weights(plan)
    model = filled(plan, weights).eval()
    frozen = {path for path, parameter in model.named_parameters() if not parameter.requires_grad}
    assert frozen == {parameter.path for parameter in plan.parameters if not parameter.trainable}
    assert len(list(model.parameters())) == len(plan.parameters)
    for sizes in sample_sizes(plan):
        inputs = sample_inputs(plan, sizes)
        expected = named(plan, iso.reference.build(plan, weights)(**inputs))
        assert apart(named(plan, model(*tensors(inputs, torch.float64))), expected) <= 1e-10
    backend = iso.torch.build(plan, weights).eval()
    model, given = model.float(), tensors(sample_inputs(plan, sample_sizes(plan)[0]), torch.float32)
    assert apart(named(plan, model(*given)), named(plan, backend(*given))) <= 2e-6 * len(plan.nodes)


def check_nnx(plan: iso.Plan, directory: Path) -> None:
    jnp = pytest.importorskip("jax.numpy")
    pytest.importorskip("flax")
    weights = order_one_weights(plan)
    iso.save(directory / "model.safetensors", plan, weights)
    model = run_text(write_python(plan, "nnx"))["load"](str(directory / "model.safetensors"))
    inputs = sample_inputs(plan, sample_sizes(plan)[0])
    expected = named(plan, iso.reference.build(plan, weights)(**inputs))
    got = named(plan, model(*[jnp.asarray(array) for array in inputs.values()]))
    assert apart(got, expected) <= 4e-6 * len(plan.nodes)


# -- numbers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "number"), OPERATORS)
def test_every_operator_in_torch(name: str, number: int) -> None:
    check_torch(resolve_example(catalogue.all_operators()[name].examples[number]))


@pytest.mark.parametrize(("name", "number"), OPERATORS)
def test_every_operator_in_nnx(name: str, number: int, tmp_path: Path) -> None:
    check_nnx(resolve_example(catalogue.all_operators()[name].examples[number]), tmp_path)


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_in_torch(name: str) -> None:
    check_torch(network_of(name))


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_in_nnx(name: str, tmp_path: Path) -> None:
    check_nnx(network_of(name), tmp_path)


def test_an_operator_whose_names_are_those_of_the_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a package: its class, arguments, sizes, parameters, tensors and lengths."""
    monkeypatch.setitem(catalogue.declared, "strange", Operator)  # so that it is as before afterwards
    del catalogue.declared["strange"]

    @iso.operator("strange", shape="torch[B, _IN, RNGS] -> out[B, _IN, RNGS]", category="test")
    class Model(iso.Operator):
        """Name everything as the text does."""

        training: float = iso.argument(2.0, doc="A factor.")
        nn: float = iso.argument(2.0, doc="A summand.")
        rngs: int = iso.argument(1, doc="A summand that has the name of a size.")
        examples = (iso.Example("Of any width.", "strange()", ("B", "T", 4)),)

        def parameters(self, RNGS: int) -> dict[str, iso.Parameter]:
            return {"heads": iso.Parameter((RNGS,), Constant(0.5), ("embed",))}

        def forward(self, m: Any, F: Any, torch: Any) -> Any:
            jax = F.tanh(torch * self.training + float(self.rngs))
            getattr = jax + self.nn
            setattr = F.reshape(getattr, (*getattr.shape[:2], 1, m.heads.shape[0]))
            return F.reshape(setattr, jax.shape) * m.heads + jax

    plan = iso.resolve(
        'x = input("B", "T", 4)\nh = strange(x, name="torch", training=3.0)\nh = strange(h, rngs=2)\n'
        "h = linear(h, 6)\nstrange(h, nn=3.0)"
    )
    check_torch(plan)
    check_nnx(plan, tmp_path)


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_made_small(name: str, tmp_path: Path) -> None:
    check_torch(small_example(name))
    check_nnx(small_example(name), tmp_path)


@pytest.mark.parametrize("name", ["gpt2", "bert", "llama"])
def test_gradients_are_those_of_the_torch_backend(name: str) -> None:
    plan = small_example(name)
    weights = order_one_weights(plan)
    backend = iso.torch.build(plan, weights).double().eval()
    given = tensors(sample_inputs(plan, sample_sizes(plan)[0]), torch.float64)
    gradients = []
    for model in (filled(plan, weights).eval(), backend):
        outputs = model(*given)
        total = sum(y.square().sum() for y in (outputs.values() if isinstance(outputs, dict) else [outputs]))
        total.backward()
        gradients.append({path: parameter.grad for path, parameter in model.named_parameters()})
    assert gradients[0].keys() == gradients[1].keys()
    for path, expected in gradients[1].items():
        bound = 1e-10 * max(1.0, float(expected.abs().max()))
        assert float((gradients[0][path] - expected).abs().max()) <= bound, path


def test_nnx_models_train_and_compile_with_shared_layers(tmp_path: Path) -> None:
    jax = pytest.importorskip("jax")
    nnx = pytest.importorskip("flax.nnx")
    plan = network_of("shared layers")
    weights = order_one_weights(plan)
    iso.save(tmp_path / "model.safetensors", plan, weights)
    model = run_text(write_python(plan, "nnx"))["load"](str(tmp_path / "model.safetensors"))
    x = sample_inputs(plan, {"B": 2, "T": 3})["x"]
    gradient = nnx.grad(lambda m: (m(jax.numpy.asarray(x)) ** 2).sum())(model)
    backend = iso.torch.build(plan, weights).double()
    backend(torch.tensor(x).double()).square().sum().backward()
    expected = backend.get_parameter("a.weight").grad.numpy()
    got = np.asarray(gradient["a"]["weight"][...])  # all three uses count, as in PyTorch
    assert np.abs(got - expected).max() <= 1e-4 * np.abs(expected).max()
    compiled = nnx.jit(lambda m, x: m(x))(model, jax.numpy.asarray(x))
    assert np.abs(np.asarray(compiled) - np.asarray(model(jax.numpy.asarray(x)))).max() <= 1e-4


@pytest.mark.parametrize("framework", ["torch", "nnx"])
def test_dropout_acts_in_training_mode_only(framework: str, tmp_path: Path) -> None:
    plan = iso.resolve("attention(2, dropout=0.5)\nfeed_forward(64, dropout=0.5)", input=("B", "T", 8))
    names = run_text(write_python(plan, framework))
    x = np.ones((2, 5, 8), np.float32)
    if framework == "torch":
        model, x = names["Model"](), torch.tensor(x)
    else:
        nnx = pytest.importorskip("flax.nnx")
        model = names["Model"](rngs=nnx.Rngs(0))

    def differs() -> bool:
        return bool((model(x) != model(x)).any())

    model.train()
    assert differs()
    model.eval()
    assert not differs()


def test_a_mask_hides_what_is_not_finite_and_may_hide_everything() -> None:
    plan = iso.resolve(
        'x = input("B", "T", 4)\nc = input("B", "S", 4)\nm = input("B", "S", dtype="bool")\n'
        "cross_attention(x, c, 2, bias=False, mask=m)"
    )
    model = filled(plan, order_one_weights(plan))
    x, context = torch.ones(2, 3, 4).double(), torch.ones(2, 2, 4).double()
    context[0, 1], context[1] = torch.nan, torch.inf
    mask = torch.tensor([[True, False], [False, False]])
    y = model(x, context, mask)
    assert y.isfinite().all() and (y[0] != 0).all()
    assert (y[1] == 0).all()  # nothing to attend: zeros, which a projection without a bias keeps


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_the_dtype_is_the_plans(dtype: str) -> None:
    plan = iso.resolve("rms_norm(zero_centered=True)\ntransformer_block(2)", input=("B", "T", 8), dtype=dtype)
    model = run_text(write_python(plan))["Model"]()
    kind = getattr(torch, dtype)
    assert {parameter.dtype for parameter in model.parameters()} == {kind}
    assert model(torch.ones(1, 2, 8, dtype=kind)).dtype == kind
    nnx = pytest.importorskip("flax.nnx")
    if dtype != "float64":
        other = run_text(write_python(plan, "nnx"))["Model"](rngs=nnx.Rngs(0))
        found = {leaf.dtype.name for leaf in _leaves(nnx.state(other, nnx.Param))}
        assert found == {dtype}


def _leaves(state: Any) -> list[Any]:
    import jax

    return jax.tree.leaves(state)


def test_initial_values_follow_the_definition() -> None:
    plan = iso.resolve(
        'linear(64, init={"weight": normal(std=0.02), "bias": 0.5}, name="a")\npos_embed(512, name="p")\n'
        'transformer_block(2, layer_scale=True, name="b")\nlinear(64, init={"weight": truncated_normal(std=3.0)}, '
        'name="c")',
        input=("B", "T", 64),
    )
    torch.manual_seed(0)
    state = run_text(write_python(plan))["Model"]().state_dict()
    assert (state["a.bias"] == 0.5).all() and (state["b.gamma1"] == np.float32(1e-5)).all()
    # 4,096 and 32,768 draws: their deviation is within 5 percent of its own by far more than 5 sigma.
    for path, std in (("a.weight", 0.02), ("p.weight", 0.02), ("c.weight", 3.0)):
        assert float(state[path].std()) == pytest.approx(std, rel=0.05)
    assert float(state["c.weight"].abs().max()) <= 2 * 3.0 / 0.8796


# -- text ------------------------------------------------------------------------------------------


def texts() -> dict[str, str]:
    plans = {f"{name}_{i}": resolve_example(example) for name, operator in catalogue.all_operators().items()
             for i, example in enumerate(operator.examples)}  # fmt: skip
    plans |= {f"network_{i}": network_of(name) for i, name in enumerate(NETWORKS)}
    plans |= {f"example_{name}": iso.resolve_file(ROOT / "examples" / f"{name}.net") for name in EXAMPLES}
    return {
        f"{name}_{framework}": write_python(plan, framework)
        for name, plan in plans.items()
        for framework in ("torch", "nnx")
    }


def test_every_text_is_as_ruff_leaves_it(tmp_path: Path) -> None:
    pytest.importorskip("ruff")
    for name, text in texts().items():
        assert "import isomorph" not in text and "from isomorph" not in text
        (tmp_path / f"{name}.py").write_text(text)
    for command in (["format", "--check"], ["check"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--isolated", "--no-cache", str(tmp_path)],
            capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout


GOLDEN = '''\
"""A network of 1,504 parameters in PyTorch, written by isomorph.

Use:

    from model import load

    y = load("model.safetensors")(ids)
"""

import torch
import torch.nn.functional as F
from torch import nn


class PositionEmbedding(nn.Module):
    """Add a learned vector to every position."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16, 8) * 0.02)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        T = x.shape[1]
        return x + self.weight[:T]  # (B, T, 8)


class Attention(nn.Module):
    """Multi-head self-attention (Vaswani et al., 2017)."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj = nn.Linear(8, 8)
        self.k_proj = nn.Linear(8, 8)
        self.v_proj = nn.Linear(8, 8)
        self.o_proj = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        B, T, _ = x.shape
        q = self.q_proj(x).reshape(B, T, 2, 4).transpose(1, 2)  # (B, 2, T, 4)
        k = self.k_proj(x).reshape(B, T, 2, 4).transpose(1, 2)  # (B, 2, T, 4)
        v = self.v_proj(x).reshape(B, T, 2, 4).transpose(1, 2)  # (B, 2, T, 4)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)  # (B, 2, T, 4)
        return self.o_proj(out.transpose(1, 2).reshape(B, T, 8))  # (B, T, 8)


class FeedForward(nn.Module):
    """Two affine maps with a nonlinearity between, applied to every position alone."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(8, 16)
        self.down = nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = F.gelu(self.up(x), approximate="tanh")  # (B, T, 16)
        return self.down(h)  # (B, T, 8)


class TransformerBlock(nn.Module):
    """Pre-norm transformer block: residual self-attention followed by a residual
    feed-forward.
    """

    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(8, eps=1e-5)
        self.attn = Attention()
        self.norm2 = nn.LayerNorm(8, eps=1e-5)
        self.ffn = FeedForward()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.norm1(x))  # (B, T, 8)
        return x + self.ffn(self.norm2(x))  # (B, T, 8)


class Model(nn.Module):
    """The whole network.

    ids: [B, T] int64
    -> [B, T, 20] float32
    T <= 16
    """

    def __init__(self) -> None:
        super().__init__()
        self.wte = nn.Embedding(20, 8)
        nn.init.normal_(self.wte.weight, std=0.02)
        self.wpe = PositionEmbedding()
        for i in range(2):
            setattr(self, f"h{i}", TransformerBlock())
        self.ln_f = nn.LayerNorm(8, eps=1e-5)
        self.lm_head = nn.Linear(8, 20, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.wte(ids)  # (B, T, 8)
        x = self.wpe(x)  # (B, T, 8)
        for i in range(2):
            x = getattr(self, f"h{i}")(x)  # (B, T, 8)
        x = self.ln_f(x)  # (B, T, 8)
        return self.lm_head(x)  # (B, T, 20)


def load(path: str = "model.safetensors") -> Model:
    """The model with the weights of a file, in evaluation mode."""
    from safetensors.torch import load_file

    weights = load_file(path)
    weights["lm_head.weight"] = weights["wte.weight"]
    model = Model()
    model.load_state_dict(weights)
    return model.eval()
'''

SMALL_GPT = """\
ids = input("B", "T", dtype="int64")
embedding(20, 8, name="wte", init={"weight": normal(std=0.02)})
pos_embed(16, name="wpe")
for _ in range(2):
    transformer_block(2, mlp_ratio=2, activation="gelu_tanh", causal=True, name="h")
layer_norm(name="ln_f")
linear(20, bias=False, name="lm_head", tie={"weight": "wte.weight"})
"""


def test_a_whole_file() -> None:
    plan = iso.resolve(SMALL_GPT)
    # Two tables, 2 blocks of 4 maps 8 x 8 and two of 8 x 16, their biases and two norms, and the last norm.
    block = 4 * (64 + 8) + 2 * 128 + 16 + 8 + 4 * 8
    assert plan.parameter_count == 20 * 8 + 16 * 8 + 2 * block + 16 == 1504
    assert write_python(plan) == GOLDEN


def test_what_differs_between_instances_is_an_argument() -> None:
    plan = iso.resolve("transformer_block(2)\ntransformer_block(4)", input=("B", "T", 16))
    text = write_python(plan)
    assert "def __init__(self, heads: int) -> None:" in text
    assert "self.n0 = TransformerBlock(heads=2)" in text and "self.n1 = TransformerBlock(heads=4)" in text
    assert "16 // self.heads" in text


def test_only_the_features_that_are_used_are_written() -> None:
    def text(call: str) -> str:
        return write_python(
            iso.resolve(f'x = input("B", "T", 8)\nm = input("B", "T", dtype="bool")\n{call}')
            if "m)" in call
            else iso.resolve(f'x = input("B", "T", 8)\n{call}')
        )

    assert "def masked_attention(" in text("attention(2, mask=m)")
    assert "window" not in text("attention(2, mask=m)") and "tanh" not in text("attention(2, mask=m)")
    windowed = text("attention(2, window_size=3)")
    assert "mask:" not in windowed and "def windowed_attention(" in windowed
    assert "def " not in text("linear(3)").split("class Model")[0]


def test_every_primitive_has_a_text() -> None:
    names = {name for name in vars(Primitives) if not name.startswith("_")}
    for framework in ("torch", "nnx"):
        # ``positions`` are rows of a table: ``narrow``.
        assert names - {"positions"} <= set(_words(framework).primitives)


def test_an_operator_that_asks_for_a_run_time_size() -> None:
    plan = iso.resolve("linear(4)", input=("B", "T", 4))
    operator = type(plan.nodes[0].operator)
    original = operator.forward

    def forward(self: Any, m: Any, F: Any, x: Any) -> Any:
        return original(self, m, F, x) if x.shape[1] > 3 else x

    operator.forward = forward
    try:
        with pytest.raises(iso.IsomorphError) as caught:
            write_python(plan)
    finally:
        operator.forward = original
    assert str(caught.value) == (
        "E_BACKEND: cannot write linear (n0) at a size known at run time alone as source code\n"
        "  its computation asks for whether T is above or below 3\n"
        "  resolve the definition with a number there"
    )


def test_an_unknown_framework() -> None:
    with pytest.raises(iso.IsomorphError) as caught:
        write_python(iso.resolve("relu()", input=("B", 4)), "tensorflow")
    assert str(caught.value) == (
        "E_ARGUMENT: there is no framework 'tensorflow' to write for\n  frameworks: torch, nnx"
    )


# -- directories -----------------------------------------------------------------------------------

RUN = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "isomorph":
            raise ImportError("isomorph is not here")

sys.meta_path.insert(0, Blocked())
sys.path.insert(0, sys.argv[1])
import json
import numpy as np
from model import load
ids = np.array(json.loads(sys.argv[2]))
if sys.argv[3] == "torch":
    import torch
    y = load(sys.argv[1] + "/model.safetensors")(torch.tensor(ids)).detach().numpy()
else:
    y = load(sys.argv[1] + "/model.safetensors")(ids)
assert not any(name.split(".")[0] == "isomorph" for name in sys.modules)
print(json.dumps(np.asarray(y).tolist()))
"""


@pytest.mark.parametrize("framework", ["torch", "nnx"])
def test_a_directory_runs_where_isomorph_is_not(framework: str, tmp_path: Path) -> None:
    if framework == "nnx":
        pytest.importorskip("flax")
    plan = iso.resolve(SMALL_GPT)
    weights = order_one_weights(plan)
    assert export_python(tmp_path, plan, weights, framework) == ["model.py", "model.safetensors"]
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(tmp_path), "[[3, 1, 19, 0, 7]]", framework],
        capture_output=True, text=True, check=True, cwd=tmp_path,
    )  # fmt: skip
    expected = iso.reference.build(plan, weights)(np.array([[3, 1, 19, 0, 7]]))
    assert np.abs(np.array(json.loads(done.stdout)) - expected).max() <= 1e-5 * np.abs(expected).max()
    loaded, again = iso.load(tmp_path / "model.safetensors")
    assert loaded == plan and all((again[path] == array).all() for path, array in weights.items())


def test_what_the_documentation_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "exporting.md").read_text()
    (code,) = [b for b in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "write_python" in b]
    (shown,) = [b for b in re.findall(r"```text\n(.*?)```", page, re.DOTALL) if "def forward" in b]
    monkeypatch.chdir(tmp_path)
    exec(code, {})
    assert shown in (tmp_path / "OUT" / "model.py").read_text()


def test_a_definition_has_no_weights_to_write(tmp_path: Path) -> None:
    assert export_python(tmp_path / "out", iso.resolve(SMALL_GPT)) == ["model.py"]
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["model.py"]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from isomorph.cli.export import run

    definition = tmp_path / "gpt.net"
    definition.write_text(SMALL_GPT)
    out = tmp_path / "out"
    run(str(definition), "python", str(out), force=False, json=False, quiet=False, framework="nnx")
    assert capsys.readouterr().out == f"{out / 'model.py'}: from model import Model\n"
    plan = iso.resolve(SMALL_GPT)
    iso.save(tmp_path / "gpt.safetensors", plan, iso.initial_weights(plan))
    run(str(tmp_path / "gpt.safetensors"), "python", str(out), force=False, json=True, quiet=False)
    assert json.loads(capsys.readouterr().out) == {
        "directory": str(out), "to": "python", "framework": "torch", "files": ["model.py", "model.safetensors"],
    }  # fmt: skip
    source, _, seal = (out / "model.py").read_text()[:-1].rpartition("\n")
    assert source + "\n" == write_python(plan)
    assert seal.startswith("# isomorph ")  # by which the file is known again
