"""What a network's bound lets through, and what it does not: wrong networks fail, networks in float32 pass."""

import re
from pathlib import Path

import numpy as np
import pytest

import isomorph as iso
from isomorph.agreement.bounds import numeric_bound
from isomorph.agreement.probe import probe
from isomorph.agreement.samples import order_one_weights, sample_inputs, sample_sizes
from isomorph.agreement.verify import verify
from isomorph.backends.available import load
from isomorph.backends.reference import primitives
from isomorph.backends.reference.build import ReferenceNetwork

EXAMPLES = Path(__file__).parents[2] / "examples"
WIDTH, ROWS = 32, 100


def example(name, depth):
    """An example's definition at a width of 32, with tables of 100 rows and so many blocks."""
    text = (EXAMPLES / f"{name}.net").read_text()
    text = re.sub(r"\b(50257|30522|128256)\b", str(ROWS), text)
    text = re.sub(r"\b(2048|768|384|128|64)\b", str(WIDTH), text)
    text = text.replace("attention(\n        32,", "attention(\n        4,").replace(
        "kv_heads=8", "kv_heads=2"
    )
    text = re.sub(r"_block\(\s*(12|6|4),", "_block(4,", text).replace("swiglu(8192", "swiglu(64")
    for wide, narrow in (
        ("518, 518", "28, 28"),
        ("224, 224", "32, 32"),
        ("1370", "5"),
        ("1369", "4"),
        ("197", "5"),
    ):
        text = text.replace(wide, narrow)
    return iso.resolve(re.sub(r"range\(\d+\)", f"range({depth})", text))


class Altered:
    """NumPy's primitives with one fault; ``took`` says whether it had a chance to act."""

    def __init__(self, fault, at=0):
        self.fault, self.at, self.calls, self.took = fault, at, 0, False

    def __getattr__(self, name):
        return getattr(primitives, name)

    def _epsilon(self, eps):
        other = {"epsilon 1e-5": 1e-5, "epsilon 1e-6": 1e-6}.get(self.fault, eps)
        self.took |= other != eps
        return other

    def layer_norm(self, x, weight, bias, *, eps):
        return primitives.layer_norm(x, weight, bias, eps=self._epsilon(eps))

    def rms_norm(self, x, weight, *, eps, offset=0.0):
        return primitives.rms_norm(x, weight, eps=self._epsilon(eps), offset=offset)

    def gelu(self, x, approximate="none"):
        self.calls += 1
        if self.fault == "other gelu" and self.calls == self.at + 1:
            self.took, approximate = True, "none" if approximate == "tanh" else "tanh"
        return primitives.gelu(x, approximate)

    def cos_sin(self, length, frequencies, like):
        if self.fault == "base of rope":
            self.took = True
            frequencies = tuple(f * 1.01 ** (-i / len(frequencies)) for i, f in enumerate(frequencies))
        return primitives.cos_sin(length, frequencies, like)

    def attention(self, q, k, v, mask=None, **named):
        if self.fault == "scores over d":
            self.took, q = True, q / np.sqrt(q.shape[-1])
        return primitives.attention(q, k, v, mask, **named)


def wrong_networks(plan, weights, depth):
    """(name, altered primitives, altered weights) of each fault that the network can have."""
    for fault in ("epsilon 1e-5", "epsilon 1e-6", "base of rope", "scores over d"):
        yield fault, Altered(fault), weights
    for block in {0, depth // 2, depth - 1}:
        yield f"other gelu in block {block}", Altered("other gelu", block), weights
    biases = [path for path in weights if path.endswith("bias") and "k_proj" not in path]  # a key's cancels
    for path in biases if depth < 12 else biases[:: max(1, len(biases) // 12)]:
        yield f"no {path}", Altered(""), {**weights, path: np.zeros_like(weights[path])}
    outputs = [path for path in weights if path.endswith("o_proj.weight")]
    for path in outputs if depth < 12 else [outputs[0], outputs[depth // 2], outputs[-1]] if outputs else []:
        swapped, head = weights[path].copy(), WIDTH // 4
        swapped[:, : 2 * head] = np.roll(swapped[:, : 2 * head], head, axis=1)
        yield f"heads of {path}", Altered(""), {**weights, path: swapped}


def passing(plan, weights, inputs, depth):
    """The wrong networks that are within the bound, with difference and bound."""
    truth = numeric_bound(plan, weights, inputs)
    within, caught = [], 0
    for fault, altered, wrong in wrong_networks(plan, weights, depth):
        network = ReferenceNetwork(plan, wrong, altered)
        outputs = network.run(network.contracts.bind((), inputs))
        if altered.fault and not altered.took:
            continue
        largest = max(
            np.abs(outputs[name] - truth.outputs[name]).max() / bound
            for name, bound in truth.by_output.items()
        )
        caught += largest > 1
        within += [(fault, largest)] if largest <= 1 else []
    assert caught
    return within


NETWORKS = ("llama", "bert", "gpt2", "dinov2", "vit_b16", "byte_gpt", "digits_vit", "mlp")


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.trial(sample=1, whole=3)
def test_a_wrong_example_fails_at_any_depth(name, trial):
    for depth in (2, 12, 48)[: trial.tries]:
        plan = example(name, depth)
        weights, inputs = probe(plan, sample_sizes(plan)[0], trial.seed)
        assert passing(plan, weights, inputs, depth) == [], depth


def imported(family, depth, directory):
    """A model of transformers of width 32, its weights of the sizes that training leaves, as it is imported.

    Initial weights tell little: with N(0, 0.02) at this width gelu reads 0.1, where its forms are 1e-7 apart.
    """
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    wide = {
        "hidden_size": WIDTH,
        "num_hidden_layers": depth,
        "num_attention_heads": 4,
        "intermediate_size": 64,
    }
    name, sizes = {
        "llama": (
            "LlamaForCausalLM",
            {**wide, "vocab_size": ROWS, "num_key_value_heads": 2, "rms_norm_eps": 1e-5},
        ),
        "gpt2": ("GPT2LMHeadModel", {"vocab_size": ROWS, "n_embd": WIDTH, "n_layer": depth, "n_head": 4}),
        "bert": ("BertModel", {**wide, "vocab_size": ROWS}),
        "vit": ("ViTForImageClassification", {**wide, "image_size": 32, "patch_size": 16}),
    }[family]
    kind = getattr(transformers, name)
    torch.manual_seed(0)
    model = kind(kind.config_class(**sizes))
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter.normal_(1.0 if path.endswith("weight") else 0.0, 0.1)
            elif any(part in path for part in ("emb", "wte", "wpe", "token")):
                parameter.normal_(std=0.05)
            else:
                writes = any(part in path for part in ("o_proj", "down_proj", "c_proj", "output.dense"))
                parameter.normal_(std=(0.3 if writes else 1.0) * parameter.shape[-1] ** -0.5)
    model.save_pretrained(directory)
    return iso.import_checkpoint(directory)


@pytest.mark.parametrize("family", ["llama", "gpt2", "bert", "vit"])
@pytest.mark.trial(sample=1, whole=3)
def test_a_wrong_imported_model_fails_at_any_depth(family, tmp_path, trial):
    for depth in (2, 12, 48)[: trial.tries]:
        plan, weights = imported(family, depth, tmp_path / str(depth))
        inputs = sample_inputs(plan, sample_sizes(plan)[0], trial.seed)
        assert passing(plan, weights, inputs, depth) == [], depth


BLOCKS = (
    'transformer_block({H}, causal={c}, activation="{a}", layer_scale={s})',
    "post_norm_block({H})",
    "encoder_block({H}, {F})",
    "h = identity()\nrms_norm(h)\na = attention({H}, causal={c}, rope=True, kv_heads={K}, bias={s})\n"
    "h = add(h, a)\nrms_norm(h)\ng = swiglu({F})\nh = add(h, g)",
    "linear({F})\ngelu()\nlinear({D})",
    "h = identity()\nlinear(h, {D})\nlayer_norm()\nt = silu()\nadd(t, h)",
)


def random_network(rng):
    """A stack of 0 to 48 blocks, mostly of one kind, between ids or vectors and an output of any size."""
    width, heads = int(rng.choice([8, 16, 32, 48])), int(rng.choice([1, 2, 4]))
    depth = int(
        rng.choice([0, 1, 2, 3, 4, 6, 12, 24, 48], p=[0.1, 0.25, 0.15, 0.15, 0.1, 0.1, 0.05, 0.05, 0.05])
    )
    lines = [f'input("B", "T", {width})']
    if rng.random() < 0.4:
        lines = ['input("B", "T", dtype="int64")', f"embedding(17, {width})", "pos_embed(8)"]
    main = rng.integers(len(BLOCKS))
    for _ in range(depth):
        block = BLOCKS[main if rng.random() < 0.8 else rng.integers(len(BLOCKS))]
        lines.append(
            block.format(
                H=heads, D=width, F=rng.choice([8, 24, 64]), K=rng.choice([1, heads]), c=rng.random() < 0.5,
                s=rng.random() < 0.5, a=rng.choice(["relu", "gelu", "gelu_tanh", "silu", "quick_gelu"]),
            )
        )  # fmt: skip
    lines.append(
        str(rng.choice(["identity()", "layer_norm()", "rms_norm()", "softmax()", "tanh()", "sigmoid()"]))
    )
    lines.append(
        str(
            rng.choice(
                ["identity()", "mean(1)", "mean(-1)", "linear(1)", "linear(40)", 'pool_tokens("first")']
            )
        )
    )
    return iso.resolve("\n".join(lines))


def random_problem(seed):
    """A network, its weights (drawn, initial, or far too large or small) and its inputs."""
    rng = np.random.default_rng([seed, 77])
    plan = random_network(rng)
    sizes = sample_sizes(plan)[int(rng.choice([0, 0, 1]))]
    weights = (order_one_weights, iso.initial_weights)[int(rng.random() < 0.25)](plan, seed)
    if rng.random() < 0.25:
        scale = np.float32(10 ** rng.uniform(-2, 1.3))
        weights = {path: array * scale for path, array in weights.items()}
    inputs = sample_inputs(plan, sizes, seed)
    if rng.random() < 0.3:
        scale = np.float32(10 ** rng.uniform(-3, 3))
        inputs = {
            name: array * scale if array.dtype == np.float32 else array for name, array in inputs.items()
        }
    return plan, weights, inputs


@pytest.mark.trial(sample=8, whole=1000)
def test_float32_keeps_within_the_bound_of_random_networks(trial):
    """The whole takes JAX along in one network of ten, for compiling is most of its time."""
    pytest.importorskip("torch")
    for number in range(trial.tries):
        seed = trial.seed * 100_000 + number
        plan, weights, inputs = random_problem(seed)
        truth = numeric_bound(plan, weights, inputs)
        if max(node.largest for node in truth.nodes) > 1e18:
            continue  # a norm's squares are beyond the range of float32, which no bound of rounding speaks of
        names = ["torch"]
        if number % 10 == 9:
            pytest.importorskip("flax")
            names += ["nnx", "linen"]
        for backend in names:
            outputs = load(backend).forward(plan, weights, inputs, "float32")
            for name, bound in truth.by_output.items():
                difference = np.abs(outputs[name] - truth.outputs[name]).max()
                assert difference <= bound, (seed, backend, plan.definition)


@pytest.mark.trial(sample=4, whole=300)
def test_gradients_in_float32_keep_within_the_bound_of_random_networks(trial):
    pytest.importorskip("torch")
    for number in range(trial.tries):
        seed = trial.seed * 100_000 + number
        plan, weights, _ = random_problem(seed)
        found = verify(plan, weights, backends=["torch"], seed=seed)
        assert found.agrees, (seed, [row for row in found.rows if not row.agrees], plan.definition)


@pytest.mark.parametrize("path", ["n0.attn.q_proj.weight", "n0.norm1.bias", "n0.ffn.up.weight", "n0.gamma1"])
def test_a_gradient_off_by_a_ten_thousandth_is_noticed(monkeypatch, path):
    from isomorph.backends.torch import harness

    true = harness.gradients

    def wrong(plan, weights, inputs, cotangents, dtype):
        found = true(plan, weights, inputs, cotangents, dtype)
        if dtype == "float32":
            found.parameters[path] *= 1 + 1e-4
        return found

    monkeypatch.setattr(harness, "gradients", wrong)
    plan = iso.resolve("transformer_block(2, layer_scale=True)", input=("B", 3, 8))
    row = verify(plan, backends=["torch"]).rows[1]
    assert (row.agrees, row.where) == (False, path)
