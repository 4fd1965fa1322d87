"""Inputs that a call may leave out, masks of integers, and the names that transformers gives to inputs."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import isomorph as iso
import isomorph.linen
import isomorph.nnx
import isomorph.reference
import isomorph.torch

TEXT = """
ids = input("B", "T", dtype="int64")
mask = input("B", "T", dtype="bool", optional=True)
segments = input("B", "T", dtype="int64", optional=True)
h = embedding(ids, 11, 8)
s = embedding(segments, 2, 8)
h = add(h, s)
attention(h, 2, mask=mask)
mean(1)
"""
IDS = np.array([[1, 2, 3, 4], [5, 6, 0, 0]])
MASK = np.array([[1, 1, 1, 1], [1, 1, 0, 0]])


@pytest.fixture(scope="module")
def plan():
    return iso.resolve(TEXT)


@pytest.fixture(scope="module")
def weights(plan):
    return iso.initial_weights(plan, 3)


def run(backend, plan, weights, *inputs, **named):
    """The network's answer as NumPy, its inputs given in the backend's own kind."""
    if backend == "torch":
        put = lambda x: None if x is None else torch.as_tensor(x)  # noqa: E731
        model = isomorph.torch.build(plan, weights).eval()
        return model(*map(put, inputs), **{k: put(v) for k, v in named.items()}).detach().numpy()
    if backend == "nnx":
        model = isomorph.nnx.build(plan, weights)
        model.eval()
        return np.asarray(model(*inputs, **named))
    if backend == "linen":
        variables = isomorph.linen.variables(plan, weights)
        return np.asarray(isomorph.linen.build(plan).apply(variables, *inputs, **named))
    return isomorph.reference.build(plan, weights)(*inputs, **named)


BACKENDS = ["reference", "torch", "nnx", "linen"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_left_out_hides_nothing_and_is_id_0(backend, plan, weights):
    ones, zeros = np.ones((2, 4), bool), np.zeros((2, 4), np.int64)
    whole = run(backend, plan, weights, IDS, ones, zeros)
    for inputs, named in (
        ((IDS,), {}),
        ((IDS, None, None), {}),
        ((IDS, None), {"segments": zeros}),
        ((), {"ids": IDS, "mask": ones}),
    ):
        np.testing.assert_array_equal(run(backend, plan, weights, *inputs, **named), whole)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_mask_of_integers_shows_what_is_not_0(backend, plan, weights):
    expected = run(backend, plan, weights, IDS, MASK.astype(bool))
    shown = run(backend, plan, weights, IDS)
    for dtype in (np.int64, np.int32, np.uint8):
        np.testing.assert_array_equal(run(backend, plan, weights, IDS, MASK.astype(dtype)), expected)
    assert np.abs(expected[1] - shown[1]).max() > 1e-3  # the mask does hide something
    with pytest.raises(iso.IsomorphError, match=r"input mask: expected \[B, T\] bool, got \[2, 4\] float32"):
        run(backend, plan, weights, IDS, MASK.astype(np.float32))


@pytest.mark.parametrize("backend", BACKENDS)
def test_transformers_names_are_understood(backend, plan, weights):
    named = {"input_ids": IDS, "attention_mask": MASK, "token_type_ids": IDS % 2}
    expected = run(backend, plan, weights, IDS, MASK.astype(bool), IDS % 2)
    np.testing.assert_array_equal(run(backend, plan, weights, **named), expected)
    with pytest.raises(iso.IsomorphError, match="input ids is given twice, by position and by name"):
        run(backend, plan, weights, IDS, input_ids=IDS)
    with pytest.raises(iso.IsomorphError, match="unexpected input 'position_ids'"):
        run(backend, plan, weights, IDS, position_ids=IDS)


def test_an_imported_model_takes_what_its_peer_takes(tmp_path):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=30, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=12,
    )  # fmt: skip
    peer = transformers.BertModel(config, add_pooling_layer=False).eval()
    peer.save_pretrained(tmp_path)
    plan, weights = iso.import_checkpoint(tmp_path)
    model = isomorph.torch.build(plan, weights).eval()
    for named in (
        {"input_ids": torch.as_tensor(IDS)},
        {"input_ids": torch.as_tensor(IDS), "attention_mask": torch.as_tensor(MASK)},
    ):
        with torch.no_grad():
            expected = peer(**named).last_hidden_state
            result = model(**named)
        shown = named.get("attention_mask", torch.ones(2, 4)).bool()
        torch.testing.assert_close(result[shown], expected[shown], rtol=0, atol=2e-6)


def test_an_optional_input_is_written_shown_and_saved(plan):
    assert 'mask = input("B", "T", dtype="bool", optional=True)' in plan.definition
    assert (
        str(plan).splitlines()[0].startswith("Network: ids=[B, T], mask?=[B, T], segments?=[B, T] -> [B, 8]")
    )
    again = iso.Plan.from_json(plan.to_json())
    assert again == plan and again.optional == ("mask", "segments")


def test_every_length_is_seen_while_a_compiler_traces(plan, weights):
    import jax

    model = isomorph.torch.build(plan, weights).eval()
    length = torch.export.Dim("length", min=2, max=64)
    program = torch.export.export(
        model, (torch.zeros(2, 5, dtype=torch.int64),), dynamic_shapes={"ids": {1: length}}
    )
    expected = model(torch.as_tensor(IDS))
    torch.testing.assert_close(program.module()(torch.as_tensor(IDS)), expected)
    network = isomorph.nnx.build(plan, weights)
    network.eval()
    compiled = jax.jit(lambda ids: network(ids))(IDS)
    np.testing.assert_allclose(np.asarray(compiled), expected.detach().numpy(), atol=1e-6)


@pytest.mark.parametrize(
    ("lines", "code", "message"),
    [
        ('x = input("B", 4, optional=True)', "E_DTYPE", "input x: an optional input has dtype bool, int64, int32, got float32"),
        (
            'ids = input("B", "T", dtype="int64")\nmask = input("B", "S", dtype="bool", optional=True)',
            "E_UNRESOLVED", "input mask is optional, and no other input has an axis S",
        ),
        ('ids = input("B", "T", dtype="int64", optional=1)', "E_ARGUMENT", "optional is True or False, got 1"),
        ('ids = input("B", "T", optional=True, optional=True)', "E_ARGUMENT", "got 'optional'"),
        (
            'ids = input("B", "T", dtype="int64", optimal=True)',
            "E_ARGUMENT", "input takes sizes, one dtype and optional=True, got 'optimal'",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_optional(lines, code, message):
    with pytest.raises(iso.IsomorphError) as caught:
        iso.resolve(f"{lines}\nlinear(4)")
    assert caught.value.code == code and message in caught.value.message
