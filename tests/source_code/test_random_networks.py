"""Whatever resolves is written as source that compiles, runs and computes the same, in both frameworks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest

import isomorph as iso
from isomorph.source_code import write_python
from isomorph.testing import order_one_weights, sample_inputs, sample_sizes

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")
nnx = pytest.importorskip("flax.nnx")

from test_python import apart, filled, named, run_text, tensors  # noqa: E402

from isomorph.backends.jax.harness import compiled_quickly  # noqa: E402

# Names that Python, the text's imports, its functions, its loops and its modules use for themselves.
NAMES = (
    "i", "j", "torch", "nn", "F", "jax", "jnp", "nnx", "np", "lax", "rngs", "len", "range", "getattr", "setattr",
    "super", "tuple", "dict", "reduce", "Model", "load", "TIED", "FREQUENCIES", "h", "x", "x2", "y", "rotate",
    "normalize", "cos_sin", "causal_attention", "causal_attention2", "freeze", "Frozen", "model",
    "Attention", "T", "D", "module", "print", "int", "heads", "dim", "weight", "bias", "B", "_2", "x_",
)  # fmt: skip
SYMBOLS = (
    "B",
    "T",
    "S",
    "i",
    "j",
    "torch",
    "jnp",
    "range",
    "getattr",
    "x",
    "heads",
    "H",
    "q",
    "F",
    "out",
    "len",
)
NODES = ("h", "i", "nn", "jax", "torch", "range", "x", "print", "block", "lin_2", "model", "module", "freeze")

ANY = (
    "identity({})", "identity({})", "scale({}, 1.0)", "scale({}, 0.5)", "dropout({}, 0.0)", "dropout({}, 0.3)",
    "relu({})", "gelu({})", 'gelu({}, approximate="tanh")', "quick_gelu({})", "silu({})", "tanh({})", "sigmoid({})",
    "softmax({})", "softmax({}, 1)", "cumsum({})", "scale(cumsum({}, 1), 0.2)", "layer_norm({})", "layer_norm({}, affine=False)", "rms_norm({})",
    "rms_norm({}, zero_centered=True)", "rms_norm({}, affine=False)", "l2_norm({})", "layer_scale({})",
    "linear({}, 8)", "linear({}, 8, bias=False)", "feed_forward({}, 6)", 'feed_forward({}, 5, activation="relu")',
    "swiglu({}, 5)", "add({}, {})", "mul({}, {})",
    "linear(concat({}, {}, axis=-1), 8)", "concat(*split({}, 3, dim=-1), axis=-1)",
    "transpose(transpose({}, -1, 1), 1, -1)",
)  # fmt: skip
SEQUENCES = (
    "attention({}, 2)", "attention({}, 4, causal=True, rope=True)", "attention({}, 2, kv_heads=1, qk_norm=\"rms_norm\")",
    "attention({}, 2, window_size=2, logit_softcap=3.0)", "attention({}, 2, causal=True, dropout=0.2, bias=False)",
    "attention({}, 2, mask=mask, rope=True, rope_theta=100.0)", "attention({}, 2, mask=mask, causal=True)",
    "cross_attention({}, {}, 2)", "cross_attention({}, {}, 2, mask=mask)", "transformer_block({}, 2)",
    "transformer_block({}, 4, causal=True, norm=\"rms_norm\", mlp_ratio=1)", "encoder_block({}, 2, 6)",
    "transformer_block({}, 2, layer_scale=True, eps=1e-3, mlp_ratio=1)", "post_norm_block({}, 2, hidden=6, mask=mask)",
    "transpose(conv1d(transpose({}, 1, 2), 8, 3, padding=1), 1, 2)", "pos_embed({}, 9)", "sinusoidal_pos_embed({})", "reshape(flatten(linear({}, 8)), T, 8)",
)  # fmt: skip
POOLED = (
    "take_at({}, ids, 2)", "take_at({}, ids, -1)", "pool_tokens(cls_token({}))", "mean(register_tokens({}, 2), 1)", "mean({}, 1)", "pool_tokens({})", 'pool_tokens({}, "max", mask=mask)', 'pool_tokens({}, "last")',
    'pool_tokens({}, "first", mask=mask)',
)  # fmt: skip
FROZEN = ("", "", "", ", trainable=False")


class Writer:
    """Writes a random definition: two sequences, ids and a mask, statements and loops on them, some outputs."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.named: set[str] = set()
        self.owner = ""

    def text(self) -> str:
        random = self.random
        batch, length = random.sample(SYMBOLS, 2)
        self.sizes = f'"{batch}", ' + random.choice((f'"{length}"', f'"{length}"', "6"))
        one, other, self.mask, self.ids, self.third, total, pooled = random.sample(NAMES, 7)
        self.sequences = (one, other)
        body: list[str] = []
        for _ in range(random.randint(1, 4)):
            body += self.loop("", 2) if random.random() < 0.6 else [self.statement()]
        first = f"{one} = input({self.sizes}, 8)"
        if random.random() < 0.3:
            first = f"{one} = embedding({self.ids}, 5, 8)"
        published = {total: f"{self.sizes}, 8"}
        body.append(f"{total} = add({one}, {other})")
        if random.random() < 0.5:
            body.append(self.statement(random.choice(POOLED), target=pooled))
            published[pooled] = f'"{batch}", 8'
        if random.random() < 0.2:
            published[random.choice(self.sequences)] = f"{self.sizes}, 8"
        inputs = [
            f'{self.ids} = input({self.sizes}, dtype="int64")',
            first,
            f"{other} = input({self.sizes}, 8)",
        ]
        inputs.append(f'{self.mask} = input({self.sizes}, dtype="bool")')
        read = "\n".join((first, *body))
        if not re.search(rf"embedding\({self.ids}, |take_at\(\w+, {self.ids}, ", read):
            inputs.remove(inputs[0])
        if f"mask={self.mask}" not in read:
            inputs.pop()
        lines = sorted(inputs, key=lambda line: "input" not in line) + body
        if len(published) > 1 or random.random() < 0.2:
            outputs = [f"{name}=({sizes})" for name, sizes in published.items()]
            lines.append(f"output({', '.join(outputs)})")
        return "\n".join(lines)

    def statement(self, pattern: str = "", target: str = "") -> str:
        """A call that replaces its first sequence, so that all that is made is read."""
        random = self.random
        pattern = pattern or random.choice(ANY + SEQUENCES)
        pattern = pattern.replace("mask=mask", f"mask={self.mask}").replace(" ids,", f" {self.ids},")
        if "T, 8" in pattern:
            pattern = pattern.replace("T, 8", "6, 8") if self.sizes.endswith("6") else "identity({})"
        given = [random.choice(self.sequences) for _ in range(pattern.count("{}"))]
        if "split" in pattern:
            cut = f"{self.third}, {given[0]} = split({given[0]}, 3, dim=-1)\n"
            return cut + f"{given[0]} = concat({given[0]}, {self.third}, axis=-1)"
        call = pattern.format(*given)[:-1]
        if call.count("(") == 1:
            free = [name for name in NODES if name not in self.named]
            if free and random.random() < 0.4:
                name = random.choice(free)
                self.named.add(name)
                call += f', name="{name}"'
            if pattern.startswith("linear({}, 8") and self.owner and random.random() < 0.5:
                call += f', tie={{"weight": "{self.owner}.weight"}}'
            else:
                call += random.choice(FROZEN)
        return f"{target or given[0]} = {call})"

    def loop(self, indent: str, depth: int) -> list[str]:
        random = self.random
        lines = [f"{indent}for _ in range({random.randint(2, 4)}):"]
        inner = indent + "    "
        for _ in range(random.randint(1, 3)):
            if depth > 1 and random.random() < 0.2:
                lines += self.loop(inner, depth - 1)
            elif random.random() < 0.3:
                one, other = self.sequences
                exchanged = ((self.third, one), (one, other), (other, self.third))
                lines += [f"{inner}{name} = identity({value})" for name, value in exchanged]
            else:
                lines += [inner + line for line in self.statement().split("\n")]
        if depth == 2 and not self.owner and random.random() < 0.5:
            self.owner = "table1"  # of a loop's second turn
            self.named.add("table")
            lines.append(f'{inner}{self.sequences[0]} = linear({self.sequences[0]}, 8, name="table")')
        return lines


def check(plan: iso.Plan, framework: str, directory: Path) -> None:
    """What the text computes, in float64, against the reference: at two choices of sizes in PyTorch, at one in NNX."""
    weights = order_one_weights(plan)
    if framework == "torch":
        model = filled(plan, weights).eval()

        def apply(inputs: Mapping[str, Any]) -> Any:
            return model(*tensors(inputs, torch.float64))

    else:
        iso.save(directory / "model.safetensors", plan, weights)
        loaded = run_text(write_python(plan, "nnx"))["load"](str(directory / "model.safetensors"))
        graph, state = nnx.split(loaded)
        compiled = compiled_quickly(lambda state, given: _values(nnx.merge(graph, state)(*given)))
        names = [name for name, _ in plan.outputs]

        def apply(inputs: Mapping[str, Any]) -> Any:
            found = compiled(state, list(inputs.values()))  # without names, which JAX would sort
            return dict(zip(names, found, strict=True)) if len(names) > 1 else found[0]

    for sizes in sample_sizes(plan)[: 2 if framework == "torch" else 1]:
        inputs = sample_inputs(plan, sizes)
        expected = named(plan, iso.reference.build(plan, weights)(**inputs))
        assert apart(named(plan, apply(inputs)), expected) <= 1e-8


def _values(outputs: Any) -> list[Any]:
    return list(outputs.values()) if isinstance(outputs, dict) else [outputs]


@pytest.mark.trial(sample=8, whole=500)
def test_random_networks_are_written_in_both_frameworks(trial, tmp_path: Path) -> None:
    """One in five in NNX, which takes longer to compile than all the others to run."""
    for number in range(trial.seed, trial.seed + trial.tries):
        text = Writer(number).text()
        try:
            plan = iso.resolve(text, dtype="float64")
            check(plan, "torch", tmp_path)
            if number % 5 == 3:
                with jax.enable_x64(True):
                    check(plan, "nnx", tmp_path)
        except Exception as error:
            error.add_note(f"network {number}:\n{text}")
            raise
