"""Whatever changes what a model gives changes what its prepared form gives, however it was done."""

from __future__ import annotations

import copy
import pickle
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest

import isomorph as iso
from isomorph.testing import order_one_weights

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")
from flax import nnx  # noqa: E402
from torch import nn  # noqa: E402

from isomorph.backends.torch import kernels  # noqa: E402

TEXT = 'embedding(7, 8, name="wte")\ntransformer_block(2, name="block")\nlayer_norm(name="norm")\nlinear(3, name="head")'
IDS = torch.tensor([[1, 2, 3], [4, 0, 6]])


def made() -> tuple[Any, Any]:
    plan = iso.resolve(TEXT, input=("B", "T"), input_dtype="int64")
    model = iso.torch.build(plan, order_one_weights(plan)).eval()
    return model, iso.prepare(model)


def close(engine: Any, model: Any) -> None:
    torch.testing.assert_close(engine(IDS), model(IDS).detach(), rtol=1e-5, atol=5e-5)


# -- writes that PyTorch does not count -------------------------------------------------------------------


def fused_step_that_clears_gradients(model: Any) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.3, fused=True)
    optimizer.register_step_post_hook(lambda optimizer, arguments, keywords: optimizer.zero_grad())
    model(IDS).square().sum().backward()
    optimizer.step()


def data_in_place(model: Any) -> None:
    model.head.weight.data.add_(1)


def one_number_of_data(model: Any) -> None:
    model.head.weight.data[1, 2] += 3


def data_drawn_again(model: Any) -> None:
    model.block.ffn.up.weight.data.normal_()


def one_bias(model: Any) -> None:
    model.head.bias.data.sub_(2)


def without_gradients(model: Any) -> None:
    with torch.no_grad():
        model.head.weight.copy_(model.head.weight.flip(1))


def set_to_another_memory(model: Any) -> None:
    with torch.no_grad():
        model.head.weight.set_(torch.randn(3, 8))


def two_weights_swapped(model: Any) -> None:
    torch.utils.swap_tensors(model.block.attn.q_proj.weight, model.block.attn.v_proj.weight)


def data_exchanged(model: Any) -> None:
    q, k = model.block.attn.q_proj.weight, model.block.attn.k_proj.weight
    q.data, k.data = k.data, q.data


def data_transposed(model: Any) -> None:
    model.block.attn.q_proj.weight.data = model.block.attn.q_proj.weight.data.t()


def through_a_detached_alias(model: Any) -> None:
    model.state_dict()["head.weight"].mul_(2)


def through_numpy_begun_now(model: Any) -> None:
    model.head.weight.detach().numpy()[...] *= 2


def through_dlpack_begun_now(model: Any) -> None:
    np.from_dlpack(model.head.weight.detach())  # handing memory out is seen as a change
    torch.from_dlpack(model.head.weight.detach()).mul_(2)


WRITES = [
    fused_step_that_clears_gradients, data_in_place, one_number_of_data, data_drawn_again, one_bias,
    without_gradients, set_to_another_memory, two_weights_swapped, data_exchanged, data_transposed,
    through_a_detached_alias, through_numpy_begun_now, through_dlpack_begun_now,
]  # fmt: skip


@pytest.mark.parametrize("write", WRITES)
def test_every_write_is_seen(write):
    model, engine = made()
    for _ in range(2):
        before = engine(IDS)
        write(model)
        close(engine, model)
        assert not torch.allclose(engine(IDS), before, atol=1e-4)
        state = engine._state
        engine(IDS)
        assert engine._state is state


def test_a_vector_of_parameters_that_is_edited():
    model, engine = made()
    vector = nn.utils.parameters_to_vector(model.parameters()).detach()
    for _ in range(3):
        nn.utils.vector_to_parameters(vector, model.parameters())
        close(engine, model)
        vector.mul_(1.2)  # the parameters are views of it
        close(engine, model)


@pytest.mark.parametrize("write", [data_in_place, fused_step_that_clears_gradients])
def test_every_engine_of_a_model_sees_a_write(write):
    """Looking at a write on behalf of one engine does not hide it from another."""
    model, first = made()
    second = iso.prepare(model)
    write(model)
    close(first, model)
    close(second, model)
    write(model)
    third = iso.prepare(model)
    for engine in (second, first, third):
        close(engine, model)


READING = {
    "text": 'ids = input("B", "T", dtype="int64")\nembedding(9, 64)\npos_embed(16)\n'
    "transformer_block(4, causal=True)\nattention(4, causal=True, kv_heads=2)\nlinear(9)",
    "image": 'x = input("B", 3, 16, 16)\npatch_embed(64, 8)\npos_embed(4)\ntransformer_block(4)\nmean(1)\nlinear(5)',
}


@pytest.mark.parametrize("onednn", [False, True])
@pytest.mark.parametrize("prepared", [None, "bfloat16", "int8"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("network", READING)
def test_reading_a_model_is_no_change(monkeypatch, network, dtype, prepared, onednn):
    """Whichever kernels read it: what was derived is derived once."""
    if onednn and kernels.onednn() is None:
        pytest.skip("this PyTorch packs nothing")
    monkeypatch.setattr(kernels, "prefers_onednn", lambda *_: onednn)
    monkeypatch.setattr(kernels, "_gains", {})
    monkeypatch.setattr(kernels, "_gains_from_more_rows", lambda *_: True)  # thousands of matrices so small
    model = iso.torch.build(iso.resolve(READING[network])).to(dtype)
    x = torch.tensor([[1, 2, 3]]) if network == "text" else torch.ones(1, 3, 16, 16, dtype=dtype)
    engine = iso.prepare(model, prepared)
    state = engine._state
    for _ in range(2):
        engine(x)
        if network == "text":
            iso.generate(engine, [1, 2, 3], 2)
            iso.generate(model, [1, 2, 3], 2)
        model(x).sum().backward()
        engine(x)
        assert engine._state is state


def test_marking_leaves_a_model_as_it_was():
    model, _ = made()
    places = [parameter.data_ptr() for parameter in model.parameters()]
    engine = iso.prepare(model)
    engine(IDS)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(IDS).sum().backward()
    optimizer.step()
    close(engine, model)
    assert [parameter.data_ptr() for parameter in model.parameters()] == places
    close(engine, copy.deepcopy(model))


def foreign() -> dict[str, Any]:
    """Memory that PyTorch did not allocate, by name."""
    plan = iso.resolve(TEXT, input=("B", "T"), input_dtype="int64")
    weights = order_one_weights(plan)
    return {
        "numpy": {path: torch.from_numpy(array) for path, array in weights.items()},
        "shared": {path: torch.from_numpy(array).clone().share_memory_() for path, array in weights.items()},
    }


@pytest.mark.parametrize("kind", ["numpy", "shared"])
@pytest.mark.parametrize(
    "write", [data_in_place, fused_step_that_clears_gradients, one_number_of_data, data_exchanged]
)
def test_memory_of_somebody_else_is_compared(kind, write):
    model, _ = made()
    model.load_state_dict(foreign()[kind], assign=True)
    engine = iso.prepare(model)
    for _ in range(2):
        engine(IDS)
        write(model)
        close(engine, model)


def test_what_cannot_be_seen_is_told():
    model, engine = made()
    view = model.head.weight.detach().numpy()
    engine(IDS)  # marks the memory again, while NumPy holds it
    view *= 2
    engine.refresh()
    close(engine, model)


# -- other functions --------------------------------------------------------------------------------------


def test_a_forward_put_where_another_attribute_was_taken_away():
    model, engine = made()
    engine(IDS)
    del model.head.in_features
    model.head.forward = lambda x: nn.functional.linear(x, model.head.weight) * 3
    with pytest.warns(RuntimeWarning, match="since head has a forward of its own;"):
        close(engine, model)


@pytest.mark.parametrize("name", ["_forward_hooks", "_forward_pre_hooks"])
def test_other_dictionaries_of_hooks(name):
    model, engine = made()
    engine(IDS)
    setattr(model.head, name, OrderedDict())
    close(engine, model)
    getattr(model.head, name)[0] = (
        (lambda module, given, out: out * 2)
        if name == "_forward_hooks"
        else (lambda module, given: (given[0] * 2,))
    )
    with pytest.warns(RuntimeWarning, match="since head has a hook;"):
        close(engine, model)
    setattr(model.head, name, OrderedDict())
    close(engine, model)
    assert not engine._state.departure


@pytest.mark.parametrize("name", ["_parameters", "_modules"])
def test_other_dictionaries_of_parts(name):
    model, engine = made()
    engine(IDS)
    owner = model.head if name == "_parameters" else model
    setattr(owner, name, dict(getattr(owner, name)))
    close(engine, model)
    with torch.no_grad():
        model.head.weight.mul_(2)
    close(engine, model)
    model.head.weight = nn.Parameter(torch.ones(3, 8))
    close(engine, model)


@pytest.mark.parametrize("name", ["forward", "__call__"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_function_put_on_a_class(monkeypatch, name, when):
    model, engine = made()
    engine(IDS)
    plain = nn.Linear.forward
    with monkeypatch.context() as patch:
        function = (
            (lambda self, x: plain(self, x) * 2)
            if name == "forward"
            else (lambda self, x: self.forward(x) * 2)
        )
        patch.setattr(nn.Linear, name, function, raising=False)
        if when == "before":
            engine = iso.prepare(model)
        with pytest.warns(
            RuntimeWarning, match="since the class Linear computes with a function that was put on it;"
        ):
            close(engine, model)
    close(engine, model)
    assert not engine._state.departure


def test_a_network_for_training_sees_what_it_shares(monkeypatch):
    model, _ = made()
    fast = iso.prepare(model, training=True).eval()
    for write in WRITES:
        write(model)
        torch.testing.assert_close(fast(IDS), model(IDS), rtol=1e-5, atol=5e-5)
    plain = nn.Linear.forward
    monkeypatch.setattr(nn.Linear, "forward", lambda self, x: plain(self, x) * 2)
    torch.testing.assert_close(fast(IDS), model(IDS), rtol=1e-5, atol=5e-5)


@pytest.mark.parametrize("kind", ["numpy", "shared"])
def test_data_turned_where_it_lies(kind):
    """Of one address and one count, and another matrix."""
    model, _ = made()
    model.load_state_dict(foreign()[kind], assign=True)
    engine = iso.prepare(model)
    engine(IDS)
    data_transposed(model)
    close(engine, model)


def test_attributes_that_decide_nothing():
    """A counter of one's own costs a look and nothing is prepared anew."""
    model, engine = made()
    engine(IDS)
    state = engine._state
    for step in range(3):
        model.step = step
        model.head.note = torch.ones(2) * step
        close(engine, model)
    assert engine._state is state


# -- NNX ---------------------------------------------------------------------------------------------------


def made_nnx() -> tuple[Any, Any]:
    text = 'layer_norm(name="norm")\nlinear(8, bias=False, name="up")\nrms_norm(name="rms")\nlinear(3, name="head")'
    plan = iso.resolve(text, input=("B", 8))
    model = iso.nnx.build(plan, order_one_weights(plan))
    return model, iso.prepare(model)


X = np.random.default_rng(0).standard_normal((2, 8)).astype(np.float32)


def halved(arrays: Any, **_: Any) -> Any:
    return tuple(None if array is None else array / 2 for array in arrays)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda m: setattr(m.head, "promote_dtype", halved), "head has another promote_dtype"),
        (lambda m: setattr(m.head, "preferred_element_type", np.dtype("float16")), "head has another preferred_element_type"),
        (lambda m: setattr(m.head, "precision", jax.lax.DotAlgorithmPreset.BF16_BF16_F32), "head has another precision"),
        (lambda m: (setattr(m.up, "bias", nnx.Param(jax.numpy.ones(8))), setattr(m.up, "use_bias", True)), "up has another bias"),
        (lambda m: setattr(m.head.kernel, "value", np.ones((8, 3), np.float32)), "head.weight holds an array of NumPy, which may be written into unseen"),
    ],
    ids=["promote_dtype", "preferred_element_type", "precision", "bias", "numpy"],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_other_settings_of_an_nnx_layer(change, reason):
    model, engine = made_nnx()
    x = jax.numpy.asarray(X)
    for _ in range(2):
        engine(x)
    change(model)
    with pytest.warns(RuntimeWarning, match=f"since {reason};"):
        np.testing.assert_allclose(engine(x), model(x), atol=2e-5)


@pytest.mark.parametrize("kind", [nnx.Linear, type(made_nnx()[0])])
def test_a_function_put_on_a_class_of_nnx(monkeypatch, kind):
    model, engine = made_nnx()
    x = jax.numpy.asarray(X)
    for _ in range(2):
        engine(x)
    plain = kind.__call__
    with monkeypatch.context() as patch:
        patch.setattr(kind, "__call__", lambda self, x: plain(self, x) * 2)
        with pytest.warns(RuntimeWarning, match=f"since the class {kind.__name__} computes with a function"):
            np.testing.assert_allclose(engine(x), model(x), atol=2e-5)
    np.testing.assert_allclose(engine(x), model(x), atol=2e-5)
    assert not engine.departure


# -- copies ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("framework", ["torch", "nnx", "linen"])
@pytest.mark.parametrize(
    "way", [copy.deepcopy, lambda engine: pickle.loads(pickle.dumps(engine))], ids=["deepcopy", "pickle"]
)
def test_a_copied_engine_has_a_copied_model(framework, way):
    plan = iso.resolve("linear(8)\nlayer_norm()\nlinear(3)", input=("B", 8))
    weights = order_one_weights(plan)
    if framework == "linen":
        model: Any = iso.linen.build(plan).bind(iso.linen.variables(plan, weights))
    else:
        model = getattr(iso, framework).build(plan, weights)
    x: Any = torch.from_numpy(X) if framework == "torch" else X
    engine = iso.prepare(model, "bfloat16")
    copied = way(engine)
    before = np.asarray(engine(x))
    np.testing.assert_array_equal(np.asarray(copied(x)), before)
    if framework == "torch":
        model.n0.weight.data.mul_(2)
    elif framework == "nnx":
        model.n0.kernel[...] *= 2
    np.testing.assert_array_equal(np.asarray(copied(x)), before)
    assert framework == "linen" or not np.allclose(np.asarray(engine(x)), before)
