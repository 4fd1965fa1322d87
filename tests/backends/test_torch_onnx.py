"""ONNX files in onnxruntime against the float64 reference, at sizes they were not captured at."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import isomorph as iso
from isomorph.agreement import onnx as comparing
from isomorph.agreement.bounds import numeric_bound
from isomorph.display.page import resolve_example
from isomorph.operators import catalogue
from isomorph.testing import order_one_weights, sample_inputs

torch = pytest.importorskip("torch")
onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

from isomorph.backends.torch import onnx as exporting  # noqa: E402
from isomorph.backends.torch import (  # noqa: E402
    onnx_graph,
    primitives,
)
from isomorph.backends.torch.onnx_file import SPLICED_BYTES  # noqa: E402

EXAMPLES = Path(__file__).parents[2] / "examples"

# For one symbol after the other: all 1; different ones; examples without elements; no examples.
TRIED = ((1, 1, 1, 1), (3, 5, 4, 2), (2, 0, 0, 0), (0, 5, 4, 2))


def sizes_of(plan: iso.Plan) -> list[dict[str, int]]:
    """What is tried, moved into the bounds of the symbols, without repetition."""
    found: list[dict[str, int]] = []
    for numbers in TRIED:
        sizes = {}
        for symbol, number in zip(plan.symbols, numbers, strict=False):
            low, high = plan.bounds.get(symbol, (0, None))
            sizes[symbol] = max(low, number if high is None else min(number, high))
        if sizes not in found:
            found.append(sizes)
    return found


def session_of(path: str | Path) -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def check(plan: iso.Plan, directory: Path, sizes: list[dict[str, int]] | None = None) -> Any:
    """Export with weights of order one, run at every size, compare with the reference."""
    weights = order_one_weights(plan)
    written = iso.torch.export_onnx(directory / "model.onnx", plan, weights, compare=False)
    session = session_of(written.path)
    assert [end.name for end in session.get_inputs()] == [name for name, _ in plan.inputs]
    assert [end.name for end in session.get_outputs()] == [name or "output" for name, _ in plan.outputs]
    for chosen in sizes_of(plan) if sizes is None else sizes:
        inputs = sample_inputs(plan, chosen)
        truth = numeric_bound(plan, weights, inputs, dtype=plan.dtype)
        for (name, expected), found in zip(truth.outputs.items(), session.run(None, inputs), strict=True):
            assert found.shape == expected.shape, (chosen, name)
            assert found.dtype == plan.dtype
            apart = np.max(np.abs(found.astype(np.float64) - expected), initial=0.0)
            assert apart <= truth.total, (chosen, name)
    return written


def refused(directory: Path, plan: iso.Plan, **options: Any) -> str:
    with pytest.raises(iso.IsomorphError) as caught:
        iso.torch.export_onnx(directory / "model.onnx", plan, order_one_weights(plan), **options)
    assert list(directory.iterdir()) == []
    return str(caught.value)


# -- every operator, every example -------------------------------------------------------------

# Many operators in few networks, since an export takes the better part of a second.
TOGETHER = {
    "elementwise": """
        x = input("B", "T", 8)
        h = gelu(x)
        h = add(h, gelu(x, approximate="tanh"))
        h = add(quick_gelu(h), silu(x))
        h = mul(h, sigmoid(tanh(x)))
        h = add(softmax(relu(h)), scale(x, 0.5))
        identity(dropout(h))
        layer_norm()
        rms_norm(zero_centered=True)
        feed_forward(12)
        swiglu(10)
        linear(8)
    """,
    "sequence": """
        ids = input("B", "T", dtype="int64")
        embedding(11, 8)
        pos_embed(9)
        sinusoidal_pos_embed()
        cls_token()
        attention(4, causal=True, rope=True, kv_heads=2)
        h = transformer_block(2, layer_scale=True, norm="rms_norm", causal=True)
        first, rest = split(h, 6, dim=2)
        h = concat(rest, first, axis=2)
        both = concat(h, h, axis=0)
        h = mean(transpose(reshape(h, -1, 2, 4), 2, 3), 3)
        pooled = pool_tokens(h, "max")
        scores = flatten(linear(h, 3))
        output(both=("2*B", "T+1", 8), pooled=("B", 4), scores=("B", "3*T+3"))
    """,
    "masked": """
        x = input("B", "T", 8)
        memory = input("B", "S", 6)
        mask = input("B", "S", dtype="bool")
        seen = input("B", "T", dtype="bool")
        h = encoder_block(x, 2, 5)
        h = post_norm_block(h, 4, hidden=12, mask=seen)
        h = cross_attention(h, memory, 2, mask=mask, logit_softcap=5.0)
        attention(h, 2, mask=seen, causal=True, window_size=2)
    """,
}
ALONE = sorted(
    name
    for name in catalogue.all_operators()
    if not any(re.search(rf"\b{name}\(", text) for text in TOGETHER.values())
)


@pytest.mark.parametrize("name", TOGETHER)
def test_networks_of_many_operators_at_any_size(name: str, tmp_path: Path) -> None:
    """Export fixed the batch and the length (pytorch#122321), 0 and 1 above all (#151582)."""
    check(iso.resolve(TOGETHER[name]), tmp_path)


@pytest.mark.parametrize("name", ALONE)
def test_every_other_operator(name: str, tmp_path: Path) -> None:
    plans = [resolve_example(example) for example in catalogue.all_operators()[name].examples]
    check(max(plans, key=lambda plan: len(plan.symbols)), tmp_path)


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", catalogue.all_operators())
def test_every_example_of_every_operator(name: str, dtype: str, tmp_path: Path) -> None:
    for example in catalogue.all_operators()[name].examples:
        check(resolve_example(example, dtype=dtype), tmp_path)


# Tables, widths, images and their patches of the examples, as small as heads of 2 features allow.
SMALLER = {
    "50257": 97, "30522": 97, "128256": 97, "1000": 7,
    "768": 24, "384": 12, "2048": 64, "8192": 40,
    "224": 32, "518": 28, "197": 5, "1370": 5, "1369": 4,
}  # fmt: skip


def shrunk(name: str) -> iso.Plan:
    text = (EXAMPLES / f"{name}.net").read_text()
    text = re.sub(r"(?<![\w.])\d+(?![\w.])", lambda number: str(SMALLER.get(number[0], number[0])), text)
    return iso.resolve(re.sub(r"range\(\d+\)", "range(1)", text))


@pytest.mark.parametrize("name", sorted(path.stem for path in EXAMPLES.glob("*.net")))
def test_every_example_file_made_small(name: str, tmp_path: Path) -> None:
    check(shrunk(name), tmp_path)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["mlp", "digits_vit", "byte_gpt", "gpt2", "vit_b16", "bert"])
def test_example_files_as_they_are(name: str, tmp_path: Path) -> None:
    plan = iso.resolve_file(EXAMPLES / f"{name}.net")
    written = iso.torch.export_onnx(tmp_path / "model.onnx", plan, iso.initial_weights(plan))
    assert len(written.comparisons) == 2


# -- names, axes, contents ---------------------------------------------------------------------


def test_axes_have_the_names_of_the_plan(tmp_path: Path) -> None:
    """T is bounded from both sides; T+1 and T+S are found from it, and 2*B is solved for B."""
    plan = iso.resolve(
        'x = input("B", "T", 4)\ny = input("2*B", "S", 4)\nz = input("2*B", "T+S+1", 4)\n'
        "h = cls_token(pos_embed(x, 9))\n"
        "h = concat(h, h, axis=0)\n"
        "joined = add(concat(h, y), z)\n"
        "last = mean(x, 1)\n"
        'output(joined=("2*B", "T+S+1", 4), last=("B", 4))'
    )
    sizes = [{"B": b, "T": t, "S": s} for b, t, s in [(1, 1, 1), (3, 5, 4), (2, 1, 0), (0, 9, 2)]]
    written = check(plan, tmp_path, sizes)
    assert written.inputs == {
        "x": "[B, T, 4] float32", "y": "[2*B, S, 4] float32", "z": "[2*B, T+S+1, 4] float32"
    }  # fmt: skip
    assert written.outputs == {"joined": "[2*B, T+S+1, 4] float32", "last": "[B, 4] float32"}
    session = session_of(written.path)
    ends = [*session.get_inputs(), *session.get_outputs()]
    assert {end.name: end.shape for end in ends} == {
        "x": ["B", "T", 4],
        "y": ["2*B", "S", 4],
        "z": ["2*B", "T+S+1", 4],
        "joined": ["2*B", "T+S+1", 4],
        "last": ["B", 4],
    }
    assert session.get_modelmeta().custom_metadata_map == {
        "isomorph.definition": plan.definition,
        "isomorph.bounds": "T >= 1, T <= 9",
    }


def test_an_input_of_arithmetic_alone(tmp_path: Path) -> None:
    check(iso.resolve("relu()", input=("B", "2*T-3", 2)), tmp_path, [{"B": 1, "T": 2}, {"B": 3, "T": 6}])
    check(iso.resolve("relu()", input=("B", "T+S", 2)), tmp_path)


def test_names_of_the_exporters_own_values_are_free(tmp_path: Path) -> None:
    """Without renaming, val_3 is a constant of the exporter's too, and the file is no valid graph."""
    plan = iso.resolve('val_1 = input("B", "T", 4)\nval_3 = cls_token(val_1)\noutput(val_3=("B", "T+1", 4))')
    check(plan, tmp_path)


def test_weights_are_stored_once_under_their_paths(tmp_path: Path) -> None:
    plan = iso.resolve(
        'ids = input("B", "T", dtype="int64")\nembedding(300, 16, name="words")\nlinear(16)\n'
        'linear(300, bias=False, name="head", tie={"weight": "words.weight"})'
    )
    written = check(plan, tmp_path)
    weights = order_one_weights(plan)
    stored = {one.name: onnx.numpy_helper.to_array(one) for one in onnx.load(written.path).graph.initializer}
    assert {name: array.shape for name, array in stored.items() if array.size > 4} == {
        "words.weight": (300, 16), "n1.weight": (16, 16), "n1.bias": (16,)
    }  # fmt: skip
    for name in weights:
        np.testing.assert_array_equal(stored[name], weights[name])


def test_nothing_of_this_machine_is_in_the_file(tmp_path: Path) -> None:
    written = check(iso.resolve("transformer_block(2)", input=("B", "T", 8)), tmp_path)
    assert str(Path(iso.__file__).parent).encode() not in Path(written.path).read_bytes()


def test_half_precision(tmp_path: Path) -> None:
    """The largest of a half-precision axis comes as float32 from PyTorch's exporter."""
    text = 'rms_norm()\nattention(2, rope=True, kv_heads=1)\nlayer_norm()\npool_tokens("max")\nlinear(3)'
    check(iso.resolve(text, input=("B", "T", 8), dtype="float16"), tmp_path)


def test_what_was_compared_is_told(tmp_path: Path) -> None:
    """Two choices of sizes, neither the one of the capture; the difference is found again here."""
    plan = iso.resolve("linear(3)\ntanh()", input=("B", "T", 5))
    weights = iso.initial_weights(plan, seed=1)
    written = iso.torch.export_onnx(tmp_path / "m.onnx", plan, weights)
    assert [one.sizes for one in written.comparisons] == [{"B": 2, "T": 5}, {"B": 1, "T": 1}]
    assert onnx_graph.capture_sizes(plan) == {"B": 7, "T": 11}
    session = session_of(tmp_path / "m.onnx")
    for one in written.comparisons:
        x = sample_inputs(plan, one.sizes)["x"]
        expected = iso.reference.build(plan, weights)(x)
        assert one.difference == np.max(np.abs(session.run(None, {"x": x})[0] - expected)) > 0
        assert one.difference <= one.bound == numeric_bound(plan, weights, [x]).total
    assert str(comparing.Comparison({"B": 2}, 0.25, 0.5)) == "difference 0.25, allowed 0.5 at B=2"
    assert str(comparing.Comparison({}, 0.25, 0.5)) == "difference 0.25, allowed 0.5"


DEEP = """
ids = input("B", "T", dtype="int64")
h = embedding(300, 16, name="tokens")
for _ in range(6):
    rms_norm(h, name="attention_norm")
    attended = attention(4, kv_heads=2, causal=True, bias=False, rope=True, name="attention")
    h = add(h, attended)
    rms_norm(h, name="ffn_norm")
    gated = swiglu(32, name="ffn")
    h = add(h, gated)
rms_norm(h, name="norm")
linear(300, bias=False, name="head", tie={"weight": "tokens.weight"})
"""


def test_each_kind_of_node_is_captured_once_and_no_weight_is_copied(tmp_path: Path, monkeypatch: Any) -> None:
    """Table, norm, attention, addition, feed-forward and head: six kinds among 39 nodes."""
    plan = iso.resolve(DEEP)
    assert len(plan.nodes) == 1 + 6 * 6 + 2
    kinds, models = [], []
    layer, write = onnx_graph.layer, exporting.write
    monkeypatch.setattr(onnx_graph, "layer", lambda operator: kinds.append(operator.name) or layer(operator))
    monkeypatch.setattr(exporting, "write", lambda model, *rest: models.append(model) or write(model, *rest))
    weights = {path: array.astype(np.float32) for path, array in order_one_weights(plan).items()}
    for array in weights.values():
        array.setflags(write=False)  # as one that is mapped from a file
    written = iso.torch.export_onnx(tmp_path / "model.onnx", plan, weights)
    assert sorted(kinds) == ["add", "attention", "embedding", "linear", "rms_norm", "swiglu"]
    stored = {name: value.const_value.numpy() for name, value in models[0].graph.initializers.items()}
    for path in ("tokens.weight", "attention3.q_proj.weight", "ffn5.down.weight"):
        assert np.shares_memory(stored[path], weights[path]), path
    assert "head.weight" not in stored
    session = session_of(written.path)
    inputs = sample_inputs(plan, {"B": 2, "T": 9})
    truth = numeric_bound(plan, weights, inputs)
    assert np.max(np.abs(session.run(None, inputs)[0] - truth.outputs[""])) <= truth.total


def test_equal_nodes_between_other_tensors(tmp_path: Path) -> None:
    """One kind used on an input, on itself, twice on one tensor, and published twice; one that passes its input on."""
    text = """
        x = input("B", "T", 8)
        a = linear(x, 8)
        b = linear(linear(a, 8), 8, name="again", tie={"weight": "n0.weight"})
        c = add(b, b)
        d = add(identity(identity(a)), identity(c))
        e = identity(x)
        f = linear(x, 8, name="third", tie={"weight": "n0.weight", "bias": "n0.bias"})
        output(a=("B", "T", 8), c=("B", "T", 8), d=("B", "T", 8), e=("B", "T", 8), f=("B", "T", 8))"""
    check(iso.resolve(text), tmp_path)


# -- writing -----------------------------------------------------------------------------------

SMALL = iso.resolve("linear(40)\nlinear(3)", input=("B", 30))


@pytest.fixture(scope="module")
def captured_parts() -> tuple[Any, Any]:
    """The kinds of the small network's nodes, captured once for all tests of writing."""
    kinds, of_node = onnx_graph._kinds(SMALL)
    return (kinds, of_node), onnx_graph._captured(SMALL, kinds)


@pytest.fixture
def captured(captured_parts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exports of the small network write what was captured, instead of capturing it again."""
    kinds, graph = captured_parts
    monkeypatch.setattr(onnx_graph, "_kinds", lambda plan: kinds)
    monkeypatch.setattr(onnx_graph, "_captured", lambda plan, kinds: graph)


def runs_as(path: Path, seed: int) -> bool:
    """Whether the file computes what the small network with these weights does."""
    x = np.ones((2, 30), np.float32)
    expected = iso.reference.build(SMALL, iso.initial_weights(SMALL, seed))(x)
    return np.allclose(session_of(path).run(None, {"x": x})[0], expected, rtol=0, atol=1e-5)


def test_what_checks_a_file_reads_it_without_its_weights(tmp_path: Path, monkeypatch: Any) -> None:
    """The checker and onnxruntime open a small model, whose large arrays are the bytes in the file that was written."""
    weights = iso.initial_weights(SMALL, 1)
    large = {path for path, array in weights.items() if array.nbytes >= SPLICED_BYTES}
    assert large == {"n0.weight"}
    opened: list[tuple[int, Any]] = []

    def look(path: str) -> None:
        model = onnx.load(path, load_external_data=False)
        opened.append((Path(path).stat().st_size, model))
        if len(opened) == 1:
            onnx.load_external_data_for_model(model, str(Path(path).parent))

    check_model, session = onnx.checker.check_model, onnxruntime.InferenceSession
    monkeypatch.setattr(onnx.checker, "check_model", lambda path: look(path) or check_model(path))
    monkeypatch.setattr(
        onnxruntime,
        "InferenceSession",
        lambda path, *rest, **named: look(path) or session(path, *rest, **named),
    )
    written = iso.torch.export_onnx(tmp_path / "model.onnx", SMALL, weights)
    monkeypatch.undo()
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]
    size = sum(weights[path].nbytes for path in large)
    (checked, loaded), (run, outlined) = opened
    assert (
        checked == run < Path(written.path).stat().st_size - size + 100 * len(large)
    )  # bytes to say where one lies
    external = {one.name for one in outlined.graph.initializer if one.data_location == one.EXTERNAL}
    assert external == large
    whole = onnx.load(written.path)
    for one in (loaded, whole):
        arrays = {one.name: onnx.numpy_helper.to_array(one) for one in one.graph.initializer}
        for path in large:
            np.testing.assert_array_equal(arrays[path], weights[path], strict=True)
    for one in (outlined, whole):
        del one.graph.initializer[:]
    assert outlined == whole


@pytest.mark.usefixtures("captured")
def test_weights_beside_the_model(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    first = iso.torch.export_onnx(
        path, SMALL, iso.initial_weights(SMALL, 1), compare=False, external_bytes=1000
    )
    assert first.data is not None
    assert re.fullmatch(r"model\.onnx\.[0-9a-f]{16}\.data", Path(first.data).name)
    assert Path(first.data).stat().st_size >= 40 * 30 * 4 + 40 * 3 * 4  # the weights; biases are small
    assert runs_as(path, 1)
    (tmp_path / "model.onnx.data").write_bytes(b"somebody else's")
    second = iso.torch.export_onnx(
        path, SMALL, iso.initial_weights(SMALL, 2), compare=False, external_bytes=1000
    )
    assert runs_as(path, 2)
    assert sorted(tmp_path.iterdir()) == sorted([path, Path(second.data), tmp_path / "model.onnx.data"])
    third = iso.torch.export_onnx(path, SMALL, iso.initial_weights(SMALL, 3), compare=False)
    assert third.data is None
    assert runs_as(path, 3)
    assert sorted(tmp_path.iterdir()) == [path, tmp_path / "model.onnx.data"]


@pytest.mark.usefixtures("captured")
@pytest.mark.parametrize("step", [0, 1])
def test_a_model_is_whole_whenever_the_process_ends(step: int, tmp_path: Path, monkeypatch: Any) -> None:
    """Ended before the weights get their name, and between them and the model."""
    path = tmp_path / "model.onnx"
    iso.torch.export_onnx(path, SMALL, iso.initial_weights(SMALL, 1), compare=False, external_bytes=1000)
    steps = iter(range(10))
    replace = exporting.os.replace

    def ended(source: Path, target: Path) -> None:
        if next(steps) == step:
            raise KeyboardInterrupt
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(exporting.os, "replace", ended)
        with pytest.raises(KeyboardInterrupt):
            iso.torch.export_onnx(
                path, SMALL, iso.initial_weights(SMALL, 2), compare=False, external_bytes=1000
            )
    assert runs_as(path, 1)
    iso.torch.export_onnx(path, SMALL, iso.initial_weights(SMALL, 3), compare=False, external_bytes=1000)
    assert runs_as(path, 3)
    assert len(list(tmp_path.iterdir())) == 2  # and what the ended one left is gone


# -- errors ------------------------------------------------------------------------------------


def test_dtypes_that_onnxruntime_does_not_compute_in(tmp_path: Path) -> None:
    hint = '\n  resolve the definition with dtype="float32"; the weights are rounded to it'
    assert refused(tmp_path, iso.resolve("relu()", input=("B", 3), dtype="bfloat16")) == (
        "E_ARGUMENT: a network of dtype bfloat16 is not exported to ONNX: "
        "onnxruntime multiplies no bfloat16 matrices on a CPU" + hint
    )
    assert refused(tmp_path, iso.resolve("relu()", input=("B", 3), dtype="float64")) == (
        "E_ARGUMENT: a network of dtype float64 is not exported to ONNX: onnxruntime has no float64 error "
        "function, and PyTorch's exporter writes constants in float32" + hint
    )


def test_an_input_that_is_an_output(tmp_path: Path) -> None:
    plan = iso.resolve('x = input("B", 3)\na = relu(x)\noutput(a=("B", 3), x=("B", 3))')
    assert refused(tmp_path, plan) == (
        "E_ARGUMENT: x is an input and an output, and ONNX knows a tensor by one name\n"
        "  give the output a name of its own, as in x_out = identity(x)"
    )
    check(iso.resolve('x = input("B", 3)\na = relu(x)\ny = x\noutput(a=("B", 3), y=("B", 3))'), tmp_path)


def test_a_symbol_without_room(tmp_path: Path) -> None:
    assert refused(tmp_path, iso.resolve("pos_embed(1)", input=("B", "T", 3))) == (
        "E_ARGUMENT: T must be from 0 to 1, which torch.export does not keep open\n"
        "  an open size may be 2 and another one at least; give a number in place of T"
    )
    check(iso.resolve("pos_embed(2)", input=("B", "T", 3)), tmp_path)


@pytest.mark.parametrize("missing", ["onnx", "onnxscript", "onnxruntime"])
def test_a_missing_package(missing: str, tmp_path: Path, monkeypatch: Any) -> None:
    find = exporting.find_spec
    monkeypatch.setattr(exporting, "find_spec", lambda name: None if name == missing else find(name))
    assert refused(tmp_path, SMALL) == (
        f"E_BACKEND: exporting to ONNX needs onnx, onnxscript, onnxruntime; not installed: {missing}\n"
        '  pip install "isomorph[onnx]"'
    )


def test_wrong_weights_and_wrong_places(tmp_path: Path) -> None:
    with pytest.raises(iso.IsomorphError) as caught:
        iso.torch.export_onnx(tmp_path / "m.onnx", SMALL, {})
    assert caught.value.code == "E_WEIGHTS"
    with pytest.raises(iso.IsomorphError) as caught:
        iso.torch.export_onnx(tmp_path / "no" / "m.onnx", SMALL, order_one_weights(SMALL))
    assert str(caught.value) == (
        f"E_OUTPUT: cannot write {tmp_path / 'no' / 'm.onnx'}: No such file or directory\n"
        "  make its directory first"
    )
    with pytest.raises(iso.IsomorphError) as caught:
        iso.torch.export_onnx(tmp_path, "linear(3)", {})
    assert caught.value.code == "E_ARGUMENT"
    assert list(tmp_path.iterdir()) == []


def test_a_computation_that_depends_on_values(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(primitives, "relu", lambda x: x if x.sum() > 0 else -x)
    message = refused(tmp_path, iso.resolve("relu()", input=("B", 3)))
    assert message.startswith("E_BACKEND: PyTorch cannot write this network as ONNX: ")
    assert message.endswith("\n  the exception this one comes from has the whole story")


def test_a_computation_that_depends_on_the_size(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(primitives, "relu", lambda x: x.reshape(7, 11, 3))
    message = refused(tmp_path, iso.resolve("relu()", input=("B", "T", 3)))
    assert message.startswith("E_BACKEND: ")
    monkeypatch.setattr(primitives, "relu", lambda x: torch.zeros(18, 3))
    assert refused(tmp_path, iso.resolve("relu()", input=("T+S", 3))) == (
        "E_BACKEND: axis 0 of output should be T+S, and torch.export made it 18\n"
        "  an operator's computation depends on the size it is captured at"
    )


def test_a_computation_that_changes_the_dtype(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(primitives, "relu", lambda x: x.double())
    assert refused(tmp_path, iso.resolve("relu()", input=("B", 3))) == (
        "E_BACKEND: output should be float32, and PyTorch's exporter made it float64"
    )


def test_a_file_that_computes_something_else_is_not_written(tmp_path: Path, monkeypatch: Any) -> None:
    """The reference is given another weight: 3 in place of 2."""
    plan = iso.resolve("linear(1, bias=False)", input=(1, 1))
    x = sample_inputs(plan, {})["x"]
    other = {"n0.weight": np.array([[3.0]])}
    monkeypatch.setattr(
        comparing,
        "numeric_bound",
        lambda plan, weights, *given, **options: numeric_bound(plan, other, *given, **options),
    )
    with pytest.raises(iso.IsomorphError) as caught:
        iso.torch.export_onnx(tmp_path / "m.onnx", plan, {"n0.weight": np.array([[2.0]])})
    # The product of one number: |2 x - 3 x| apart. x and the product are moved by eps / 2 each at most.
    difference = abs(float(x[0, 0]))
    bound = numeric_bound(plan, {"n0.weight": np.array([[3.0]])}, [x]).total
    assert 8 * 2.0**-24 <= bound / (3 * difference) <= 8 * 2.0**-23
    assert str(caught.value) == (
        "E_BACKEND: onnxruntime does not compute what the reference computes: "
        f"difference {difference:.3g}, allowed {bound:.3g}\n  nothing was written"
    )
    assert list(tmp_path.iterdir()) == []
