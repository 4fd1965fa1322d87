"""Built torch networks: names, inputs, contracts, and what torch's users do with modules."""

import copy
import inspect
import pickle
import weakref

import pytest
import torch
from torch import nn

import isomorph as iso
from isomorph.torch import build

BLOCK = "linear(16)\ntransformer_block(2, mlp_ratio=2, layer_scale=True)\nlinear()"
TOKENS = """
ids = input("B", "T", dtype="int64")
embedding(11, 8, name="wte")
pos_embed(6)
attention(2, causal=True, rope=True, name="attention")
linear(11, bias=False, tie={"weight": "wte.weight"}, name="head")
"""


def block_plan(**keywords):
    return iso.resolve(BLOCK, input=("B", 6, 8), output=("B", 6, 8), **keywords)


def draw(*shape, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def ids(B=2, T=5):
    return torch.randint(0, 11, (B, T), generator=torch.Generator().manual_seed(0))


def error_of(function, *arguments, **keywords):
    with pytest.raises(iso.IsomorphError) as caught:
        function(*arguments, **keywords)
    return str(caught.value)


# -- names and parts -------------------------------------------------------------------------------


def test_layer_scale_and_rms_norm_change_the_keys():
    scaled = build(iso.resolve("transformer_block(4, layer_scale=True)", input=("B", 8, 32)))
    plain = build(iso.resolve('transformer_block(4, norm="rms_norm")', input=("B", 8, 32)))
    assert {"n0.gamma1", "n0.gamma2"} <= set(scaled.state_dict())
    assert [k for k in plain.state_dict() if "norm" in k or "gamma" in k] == [
        "n0.norm1.weight",
        "n0.norm2.weight",
    ]


def test_it_runs_its_nodes_in_order():
    model = build(block_plan())
    x = draw(3, 6, 8)
    assert type(model.n0) is nn.Linear
    assert torch.equal(model(x), model.n2(model.n1(model.n0(x))))
    assert model(x).shape == (3, 6, 8)


def test_print_shows_the_table():
    model = build(block_plan())
    assert str(model) == str(model.plan)
    assert "(q_proj): Linear(in_features=16, out_features=16, bias=True)" in repr(model)


def test_it_starts_in_training_mode_and_leaves_the_random_state_alone():
    before = torch.get_rng_state()
    model = build(block_plan())
    assert model.training
    assert model.n1.training
    assert torch.equal(torch.get_rng_state(), before)


def test_a_seed_decides_the_weights():
    one, same, other = (build(block_plan(), seed=seed).state_dict() for seed in (1, 1, 2))
    drawn = iso.initial_weights(block_plan(), seed=1)
    for path, value in one.items():
        assert torch.equal(value, same[path])
        assert torch.equal(value, torch.from_numpy(drawn[path]))
    assert not torch.equal(one["n0.weight"], other["n0.weight"])


def test_on_the_meta_device_nothing_is_drawn():
    room = {"max_parameter_bytes": 1 << 42}  # for 2 TB
    plan = iso.resolve("linear(1000000)", input=("B", 1000000), dtype="bfloat16", limits=room)
    model = build(plan, device="meta")
    assert {(p.device.type, p.dtype) for p in model.parameters()} == {("meta", torch.bfloat16)}


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_the_plans_dtype_is_kept(dtype):
    plan = iso.resolve(
        'attention(2, rope=True, qk_norm="rms_norm", logit_softcap=4.0)\ntransformer_block(2)\nsoftmax()',
        input=("B", "T", 8),
        dtype=dtype,
    )
    model = build(plan)
    assert {p.dtype for p in model.parameters()} == {getattr(torch, dtype)}
    assert model(draw(2, 3, 8, dtype=getattr(torch, dtype))).dtype == getattr(torch, dtype)


# -- inputs and outputs ----------------------------------------------------------------------------

TWO = """
features = input("B", 4)
gate = input("B", 4)
hidden = mul(features, gate)
score = linear(2)
output(score=("B", 2), hidden=("B", 4))
"""


def test_inputs_by_position_and_by_name_outputs_in_order():
    model = build(iso.resolve(TWO))
    a, b = draw(3, 4), draw(3, 4, seed=1)
    result = model(a, b)
    assert list(result) == ["score", "hidden"]
    assert torch.equal(result["hidden"], a * b)
    for other in (model(a, gate=b), model(gate=b, features=a)):
        assert torch.equal(other["score"], result["score"])
    assert list(inspect.signature(model.forward).parameters) == ["features", "gate"]


def test_several_results_and_an_optional_input():
    model = build(
        iso.resolve(
            'x = input("B", "T", 8)\nm = input("B", "T", dtype="bool")\n'
            "a, b = split(3, dim=2)\nh = concat(b, a, axis=2)\nattention(2, mask=m)"
        )
    )
    x, mask = draw(2, 5, 8), torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    swapped = torch.cat([x[..., 3:], x[..., :3]], -1)
    attention = next(part for name, part in model.named_children() if hasattr(part, "q_proj"))
    assert torch.equal(model(x, mask), attention(swapped, mask))
    dirty = swapped.clone()
    assert torch.equal(model(x, m=mask)[1, :3], attention(dirty, mask)[1, :3])


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.zeros(6, 8), "expected [B, 6, 8] float32, got [6, 8] float32: its rank must be 3"),
        (torch.zeros(2, 5, 8), "expected [B, 6, 8] float32, got [2, 5, 8] float32: axis 1 must be 6"),
        (
            torch.zeros(2, 6, 8, dtype=torch.int64),
            "expected [B, 6, 8] float32, got [2, 6, 8] int64: it must have a floating-point dtype",
        ),
        (
            torch.zeros(2, 6, 8, dtype=torch.float64),
            "expected float32, the network's dtype, got float64\n"
            "  convert one of them, as in x.to(dtype) or model.to(dtype), or use torch.autocast",
        ),
        ([[1.0]], "expected a torch.Tensor, got 'list'"),
    ],
)
def test_contract_errors_name_the_input(x, message):
    assert error_of(build(block_plan()), x) == f"E_RUNTIME: input x: {message}"


def test_calls_that_do_not_fit():
    model = build(block_plan())
    takes = "the network takes 1 input (x)"
    assert error_of(model) == f"E_RUNTIME: missing input x; {takes}"
    assert error_of(model, 1, 2) == f"E_RUNTIME: {takes}, got 2 by position"
    assert error_of(model, y=1) == f"E_RUNTIME: unexpected input 'y'; {takes}"


def test_one_network_serves_every_length_up_to_its_table():
    model = build(iso.resolve(TOKENS)).eval()
    for B, T in ((2, 1), (1, 6), (2, 0), (0, 3)):
        assert model(ids(B, T)).shape == (B, T, 11)
    assert error_of(model, ids(1, 7)) == (
        "E_RUNTIME: input ids: expected [B, T] int64, got [1, 7] int64: T=7 must be at most 6"
    )


def test_an_error_inside_a_node_says_where():
    model = build(iso.resolve(TOKENS))
    with pytest.raises(iso.IsomorphError) as caught:
        model(torch.tensor([[1, 11]]))
    assert str(caught.value) == "E_RUNTIME: id 11 is outside a table of 11 rows\n  ids run from 0 to 10"
    assert caught.value.__notes__ == [
        'in node wte, embedding\n  <definition>:3:1\n  3 | embedding(11, 8, name="wte")\n    | ^'
    ]
    model.wte = nn.Embedding(11, 9)
    with pytest.raises(RuntimeError) as caught:  # torch's own error, with the place added
        model(ids())
    assert caught.value.__notes__[0].startswith("in node n1, pos_embed\n  <definition>:4:1\n")


# -- parameters ------------------------------------------------------------------------------------


def test_frozen_parameters_need_no_gradient():
    model = build(
        iso.resolve(
            "linear(4, trainable=False)\n"
            'transformer_block(2, trainable={"attn": False, "attn.o_proj": True})\n'
            "linear(4)",
            input=("B", 3, 4),
        )
    )
    trained = {path for path, parameter in model.named_parameters() if parameter.requires_grad}
    assert not any(path.startswith(("n0.", "n1.attn.q", "n1.attn.k", "n1.attn.v")) for path in trained)
    assert {"n1.attn.o_proj.weight", "n1.norm1.weight", "n2.weight"} <= trained
    model(draw(2, 3, 4)).sum().backward()
    assert model.n0.weight.grad is None


def test_a_tied_parameter_is_one_object_with_one_gradient():
    model = build(iso.resolve(TOKENS))
    assert type(model.head) is nn.Linear
    assert model.head.weight is model.wte.weight
    assert len(list(model.parameters())) == len(list(model.state_dict()))
    model(ids()).square().sum().backward()
    apart = build(iso.resolve(TOKENS.replace(', tie={"weight": "wte.weight"}', "")))
    apart.load_state_dict({**model.state_dict(), "head.weight": model.wte.weight})
    apart(ids()).square().sum().backward()
    both = apart.wte.weight.grad + apart.head.weight.grad
    torch.testing.assert_close(model.wte.weight.grad, both)


TIED = """
ids = input("B", "T", dtype="int64")
embedding(11, 8, name="wte")
linear(8, bias=False, name="first", tie={"weight": "late.weight"})
encoder_block(2, 8, name="a")
encoder_block(2, 8, name="b", tie={"attn.q_proj.weight": "a.attn.q_proj.weight", "ffn.up.bias": "a.ffn.up.bias"})
linear(8, bias=False, name="late")
linear(11, name="head", tie={"weight": "wte.weight"})
"""


class Around(nn.Module):
    """A network inside a module of a user's."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.body, self.top = build(iso.resolve(TIED), seed=seed), nn.Linear(11, 2)

    def forward(self, ids):
        return self.top(self.body(ids))


def test_a_tied_parameter_has_one_key_and_no_entries_share_memory(tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    model = build(iso.resolve(TIED), seed=1)
    state = model.state_dict()
    assert set(state) == {parameter.path for parameter in model.plan.parameters}
    assert {path: value.data_ptr() for path, value in state.items()} == {
        path: model.get_parameter(path).data_ptr() for path in state
    }
    assert state._metadata.keys() == nn.Module.state_dict(model)._metadata.keys()
    assert set(Around(0).state_dict()) == {f"body.{path}" for path in state} | {"top.weight", "top.bias"}
    safetensors.save_file(state, tmp_path / "model.safetensors")
    other = build(model.plan, seed=2)
    other.load_state_dict(safetensors.load_file(tmp_path / "model.safetensors"))
    assert torch.equal(other(ids()), model(ids()))
    # A layer that was replaced is no longer tied, and is not left out.
    model.head = nn.Linear(8, 11)
    assert "head.weight" in model.state_dict()


@pytest.mark.parametrize("assign", [False, True])
@pytest.mark.parametrize("keys", ["one", "both", "the other"])
def test_either_key_or_both_are_loaded_strictly(keys, assign):
    source = Around(1)
    state, ties = source.state_dict(), source.body.plan.ties
    tied = {f"body.{path}": state[f"body.{owner}"] for path, owner in ties.items()}
    if keys != "one":
        state |= tied
    if keys == "the other":
        for owner in ties.values():
            state.pop(f"body.{owner}", None)
    inside = {path.removeprefix("body."): value for path, value in state.items() if path.startswith("body.")}
    around, alone = Around(2), build(source.body.plan, seed=3)
    assert str(around.load_state_dict(state, assign=assign)) == "<All keys matched successfully>"
    assert str(alone.load_state_dict(inside, assign=assign)) == "<All keys matched successfully>"
    assert torch.equal(around(ids()), source(ids()))
    assert torch.equal(alone(ids()), source.body(ids()))
    for network in (around.body, alone):
        assert all(
            network.get_parameter(path) is network.get_parameter(owner) for path, owner in ties.items()
        )
        assert len(list(network.named_parameters())) == len(network.plan.parameters)


def test_what_is_missing_or_differs_is_said_of_the_owner():
    model = Around(0)
    state = model.state_dict()
    del state["body.wte.weight"]
    found = Around(1).load_state_dict(state, strict=False)
    assert (found.missing_keys, found.unexpected_keys) == (["body.wte.weight"], [])
    with pytest.raises(RuntimeError, match=r'Missing key\(s\) in state_dict: "body\.wte\.weight"\. $'):
        Around(1).load_state_dict(state)
    state["body.wte.weight"], state["body.head.weight"] = torch.zeros(11, 8), torch.ones(11, 8)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(iso.IsomorphError, match=r"^E_WEIGHTS: head\.weight is tied to wte\.weight, but"):
        model.body.load_state_dict({path[5:]: value for path, value in state.items() if path[:5] == "body."})
    assert all(torch.equal(value, before[path]) for path, value in model.state_dict().items())


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_are_whole_and_separate(copied):
    model = build(iso.resolve(TOKENS)).eval()
    twin = copied(model)
    assert twin.plan == model.plan
    assert isinstance(twin, type(model))
    assert not twin.training
    assert twin.head.weight is twin.wte.weight
    assert torch.equal(twin(ids()), model(ids()))
    with torch.no_grad():
        twin.wte.weight.zero_()
    assert model.wte.weight.any()
    assert list(inspect.signature(twin.forward).parameters) == ["ids"]


def test_load_state_dict_is_strict():
    model, other = build(block_plan(), seed=0), build(block_plan(), seed=1)
    state = other.state_dict()
    model.load_state_dict(state)
    assert torch.equal(model(draw(1, 6, 8)), other(draw(1, 6, 8)))
    state["n0.extra"] = state.pop("n0.weight")
    with pytest.raises(RuntimeError, match=r"Missing key.*n0\.weight.*\s.*Unexpected key.*n0\.extra"):
        model.load_state_dict(state)


# -- casts -----------------------------------------------------------------------------------------


def test_double_and_bfloat16_change_what_it_takes():
    model = build(block_plan())
    x = draw(2, 6, 8)
    for dtype in (torch.float64, torch.bfloat16, torch.float32):
        model.to(dtype)
        assert model(x.to(dtype)).dtype == dtype
        other = torch.float16 if dtype != torch.float16 else torch.float32
        assert "the network's dtype, got float16" in error_of(model, x.to(other))
    exact = build(block_plan(dtype="float64"))
    rounded = build(block_plan()).double()  # float32 weights, computed with in float64
    torch.testing.assert_close(rounded(x.double()), exact(x.double()), rtol=0, atol=1e-6)


def test_autocast():
    model = build(block_plan())
    x = draw(2, 6, 8)
    with torch.autocast("cpu", torch.bfloat16):
        for given in (x, x.bfloat16()):
            out = model(given)
            assert out.dtype == torch.bfloat16  # as nn.Linear does
            torch.testing.assert_close(out.float(), model.float()(x).float(), rtol=0.05, atol=0.05)


def test_replacing_a_layer_takes_effect():
    model = build(block_plan())
    model.n2 = nn.Identity()
    assert model(draw(2, 6, 8)).shape == (2, 6, 16)
    model.n0 = nn.Linear(8, 16, dtype=torch.float64)  # no longer the plan's: torch judges for itself
    with pytest.raises(RuntimeError):
        model(draw(2, 6, 8, dtype=torch.float64))


def test_intermediate_results_are_let_go():
    model = build(iso.resolve("relu()\ngelu()\ntanh()\nidentity()", input=("B", 4)))
    alive = []

    seen = []

    class Watched(nn.Module):
        def forward(self, x):
            alive.append(sum(reference() is not None for reference in seen))
            out = torch.relu(x)
            seen.append(weakref.ref(out))
            return out

    for name in ("n0", "n1", "n2", "n3"):
        setattr(model, name, Watched())
    with torch.no_grad():
        model(draw(1, 4))
    assert alive == [0, 1, 1, 1]  # only the input of the node that runs
