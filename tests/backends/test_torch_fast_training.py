"""Networks prepared for training: the same parameters, the same gradients, other kernels."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

import isomorph as iso
from isomorph.testing import order_one_weights

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from isomorph.backends.torch import fast_training, kernels  # noqa: E402

TEXT = """
ids = input("B", "T", dtype="int64")
embedding(11, 16, name="wte")
transformer_block(2, causal=True, mlp_ratio=2, layer_scale=True, name="a")
transformer_block(2, dropout=0.5, name="b", trainable={"attn": False})
layer_norm(name="norm", trainable=False)
linear(11, bias=False, name="head", tie={"weight": "wte.weight"})
"""
IDS = torch.tensor([[1, 2, 3, 10], [4, 0, 6, 7]])


@pytest.fixture
def always(monkeypatch):
    """oneDNN's products whatever the sizes and the processor."""
    monkeypatch.setattr(fast_training, "_SMALL", 1)
    monkeypatch.setattr(fast_training, "usable", lambda: True)


def pair(text: str = TEXT, **told: Any) -> tuple[Any, Any]:
    """A model, and a network for training from a copy of it."""
    plan = iso.resolve(text)
    model = iso.torch.build(plan, order_one_weights(plan))
    return model, iso.prepare(copy.deepcopy(model), training=True, **told)


def gradients(network: Any, *inputs: Any) -> dict[str, Any]:
    network.zero_grad()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        out = network(*inputs)
        (out * torch.linspace(-1, 1, out.numel()).reshape(out.shape)).sum().backward()
    return {path: p.grad for path, p in network.named_parameters()}


def agree(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Within 1e-6 of the largest gradient in the node: that of a key's bias is zero but for rounding."""
    assert list(found) == list(expected)
    largest: dict[str, float] = {}
    for path, right in expected.items():
        node = path.partition(".")[0]
        largest[node] = max(largest.get(node, 0.0), 0.0 if right is None else float(right.abs().max()))
    for path, right in expected.items():
        if right is None:
            assert found[path] is None, path
        else:
            assert float((found[path] - right).abs().max()) <= 1e-6 * largest[path.partition(".")[0]], path


def test_gradients_are_the_same(always):
    model, network = pair()
    assert isinstance(network.a.attn.q_proj, fast_training.FastLinear)
    agree(gradients(network, IDS), gradients(model, IDS))  # dropout too: both draw the same
    assert network.norm.weight.grad is None and network.b.attn.q_proj.weight.grad is None
    assert network.head.weight is network.wte.weight  # tied: one gradient


@pytest.mark.parametrize("shape", [(5, 8), (2, 3, 8), (1, 8), (0, 8), (2, 0, 8)])
@pytest.mark.parametrize("bias", [True, False])
def test_the_operator_by_itself(shape, bias, always):
    """y = x W' + b, dL/dx = g W, dL/dW = g' x, dL/db = the sum of g's rows."""
    rng = torch.Generator().manual_seed(0)
    x, w, b = (torch.randn(s, generator=rng, requires_grad=True) for s in (shape, (6, 8), (6,)))
    g = torch.randn((*shape[:-1], 6), generator=rng)
    y = torch.ops.isomorph.linear(x, w, b if bias else None)
    torch.testing.assert_close(y, x @ w.t() + (b if bias else 0))
    y.backward(g)
    rows = g.flatten(0, -2)
    torch.testing.assert_close(x.grad, g @ w)
    torch.testing.assert_close(w.grad, rows.t() @ x.flatten(0, -2))
    assert not bias or torch.allclose(b.grad, rows.sum(0), atol=1e-5)


def test_what_pytorch_checks_of_an_operator(always):
    """Fake tensors, schema, autograd registration."""
    x, w, b = (torch.randn(s, requires_grad=True) for s in ((2, 3, 8), (6, 8), (6,)))
    torch.library.opcheck(torch.ops.isomorph.linear.default, (x, w, b))
    torch.library.opcheck(torch.ops.isomorph.linear.default, (x, w, None))
    torch.library.opcheck(
        torch.ops.isomorph.linear_backward.default,
        (torch.randn(2, 3, 6), x.detach(), w.detach(), True, False),
    )


@pytest.mark.parametrize("frozen", ["input", "weight", "bias", "weight and bias"])
def test_what_needs_no_gradient_gets_none(frozen, always):
    x, w, b = torch.randn(3, 8), torch.randn(6, 8), torch.randn(6)
    for tensor, names in ((x, "input"), (w, "weight"), (b, "bias")):
        tensor.requires_grad_(names not in frozen)
    torch.ops.isomorph.linear(x, w, b).sum().backward()
    for tensor in (x, w, b):
        assert (tensor.grad is not None) == tensor.requires_grad
    if b.requires_grad:
        assert b.grad.tolist() == [3.0] * 6  # three rows of ones


def test_non_contiguous_inputs_and_gradients(always):
    x = torch.randn(8, 5).t().requires_grad_()
    w = torch.randn(6, 8, requires_grad=True)
    g = torch.randn(1, 6).expand(5, 6)
    torch.ops.isomorph.linear(x, w, None).backward(g)
    torch.testing.assert_close(x.grad, g @ w)
    torch.testing.assert_close(w.grad, g.t() @ x)


def test_second_derivatives(always):
    x, w, b = (torch.randn(s, requires_grad=True) for s in ((4, 8), (6, 8), (6,)))

    def penalty(function: Any) -> Any:
        (gradient,) = torch.autograd.grad(function(x, w, b).tanh().sum(), x, create_graph=True)
        return torch.autograd.grad(gradient.square().sum(), (x, w, b))

    for found, right in zip(penalty(torch.ops.isomorph.linear), penalty(nn.functional.linear), strict=True):
        torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-4)


def test_gradients_of_each_example_by_vmap(always):
    plan = iso.resolve("linear(6)\ntanh()\nlinear(2)", input=("B", 8))
    model = iso.torch.build(plan, order_one_weights(plan))
    network = iso.prepare(model, training=True)
    x = torch.randn(5, 8)

    def each(module: Any) -> dict[str, Any]:
        values = {path: p.detach() for path, p in module.named_parameters()}

        def loss(values: Any, x: Any) -> Any:
            return torch.func.functional_call(module, values, (x[None],)).square().sum()

        return torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(values, x)

    agree(each(network), each(model))


def test_checkpointing_gives_the_same_gradients(always):
    model, network = pair(checkpointing=True)
    seen = []
    handle = network.a.register_forward_pre_hook(lambda *_: seen.append(torch.is_grad_enabled()))
    found = gradients(network, IDS)
    handle.remove()
    assert len(seen) == 2  # forward, and anew for the backward pass
    agree(found, gradients(model, IDS))
    with torch.no_grad():
        torch.testing.assert_close(network.eval()(IDS), model.eval()(IDS))
    masked = 'x = input("B", "T", 8)\nattention(x, 2)\nlinear(3)'  # an input that is absent
    plain, recomputing = pair(masked, checkpointing=True)
    x = torch.randn(2, 3, 8)
    agree(gradients(recomputing, x), gradients(plain, x))


def test_it_is_the_models_own_parameters(always):
    plan = iso.resolve(TEXT)
    model = iso.torch.build(plan)
    network = iso.prepare(model, training=True)
    assert list(network.state_dict()) == list(model.state_dict())
    for path, parameter in model.named_parameters():
        assert network.get_parameter(path) is parameter
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    before = {path: p.detach().clone() for path, p in model.named_parameters()}
    network(IDS).square().sum().backward()
    optimizer.step()
    for path, parameter in model.named_parameters():
        assert torch.equal(parameter, before[path]) != parameter.requires_grad
    network.load_state_dict({path: value * 0 for path, value in model.state_dict().items()})
    assert not any(p.any() for p in model.parameters())
    model.a.gamma1 = nn.Parameter(torch.ones(16))
    model.a.attn.q_proj.weight = nn.Parameter(torch.ones(16, 16))
    assert network.a.gamma1 is model.a.gamma1
    assert network.a.attn.q_proj.weight is model.a.attn.q_proj.weight
    assert iso.torch.weights(network).keys() == iso.torch.weights(model).keys()


def test_it_has_a_mode_of_its_own(always):
    model, network = pair()
    model = iso.torch.build(iso.resolve(TEXT))
    network = iso.prepare(model.eval(), training=True)
    assert not network.training
    network.train()
    assert all(part.training for part in network.modules())
    assert not any(part.training for part in model.modules())


def test_hooks_act_in_both(always):
    model = iso.torch.build(iso.resolve(TEXT))
    network = iso.prepare(model, training=True)
    seen = []
    model.a.attn.q_proj.register_forward_hook(lambda module, given, out: seen.append(type(module)))
    model(IDS)
    network(IDS)
    assert seen == [nn.Linear, fast_training.FastLinear]
    assert isinstance(network.a.attn.q_proj, nn.Linear)  # as tools that look for linears see it


def test_layers_of_somebody_else_stay(always):
    model = iso.torch.build(iso.resolve(TEXT))
    model.a.attn.o_proj = nn.Sequential(nn.Linear(16, 16))
    nn.utils.parametrize.register_parametrization(model.a.ffn.up, "weight", nn.Tanh())
    network = iso.prepare(model, training=True)
    assert type(network.a.ffn.up) is type(model.a.ffn.up)
    agree(gradients(network.eval(), IDS), gradients(model.eval(), IDS))


def test_copies_and_pickles(always):
    model, network = pair()
    for copied in (copy.deepcopy(network), pickle.loads(pickle.dumps(network))):
        agree(gradients(copied, IDS), gradients(model, IDS))
    assert isinstance(copied.a.attn.q_proj, fast_training.FastLinear)


def test_autocast_and_other_dtypes_are_pytorchs_own(always, monkeypatch):
    model, network = pair()
    monkeypatch.setattr(torch.ops.isomorph, "linear", None)  # nothing may call it
    with torch.autocast("cpu", torch.bfloat16):
        agree(gradients(network, IDS), gradients(model, IDS))
    for dtype in (torch.float64, torch.bfloat16):
        agree(gradients(network.to(dtype), IDS), gradients(model.to(dtype), IDS))


def test_small_products_are_pytorchs_own(monkeypatch):
    monkeypatch.setattr(fast_training, "usable", lambda: True)
    model, network = pair()
    for (path, found), right in zip(
        gradients(network, IDS).items(), gradients(model, IDS).values(), strict=True
    ):
        assert right is None or torch.equal(found, right), path


@pytest.mark.filterwarnings("ignore:`torch.jit")  # of the compiler's own modules
def test_compiled_as_the_plain_one_is(always):
    model, network = pair('x = input("B", 16)\nlinear(16)\ngelu()\nlinear(4)')
    x = torch.randn(3, 16)
    compiled = torch.compile(network, backend="aot_eager", fullgraph=True)
    compiled(x).square().sum().backward()
    model(x).square().sum().backward()
    agree(
        {p: v.grad for p, v in network.named_parameters()}, {p: v.grad for p, v in model.named_parameters()}
    )


def test_equal_steps_give_equal_bits(always):
    def run() -> list[Any]:
        model = iso.torch.build(iso.resolve(TEXT))
        network = iso.prepare(model, training=True)
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], fused=True)
        torch.manual_seed(0)
        for _ in range(3):
            optimizer.zero_grad()
            network(IDS).square().mean().backward()
            optimizer.step()
        return [p.detach().clone() for p in model.parameters()]

    assert all(torch.equal(a, b) for a, b in zip(run(), run(), strict=True))


def test_other_processors_take_pytorchs_own(monkeypatch):
    """A rule and no measurement: equal runs give equal bits."""
    fast_training.usable.cache_clear()
    try:
        monkeypatch.setattr(fast_training, "vendor", lambda: "GenuineIntel")
        monkeypatch.setattr(kernels, "onednn", lambda: pytest.fail("nothing is probed"))
        model, network = pair()
        assert type(network.a.attn.q_proj) is nn.Linear
        agree(gradients(network, IDS), gradients(model, IDS))
    finally:
        fast_training.usable.cache_clear()


@pytest.mark.parametrize(
    ("of_weights", "reason"),
    [
        (lambda g, x, w, b: (torch.zeros(5, 8), torch.zeros(5)), "they compute something else"),
        (None, "'NoneType' object is not callable"),
    ],
)
def test_derivatives_that_are_missing_or_wrong_are_said_once(monkeypatch, of_weights, reason):
    fast_training.usable.cache_clear()
    try:
        monkeypatch.setattr(fast_training, "vendor", lambda: "AuthenticAMD")
        monkeypatch.setattr(torch.ops.aten, "mkldnn_linear_backward_weights", of_weights)
        with pytest.warns(RuntimeWarning) as caught:
            _, network = pair()
        _, network = pair()
        assert [str(one.message) for one in caught] == [
            f"isomorph: oneDNN's derivatives are not usable here ({reason}); PyTorch's usual ones are taken"
        ]
        assert type(network.a.attn.q_proj) is nn.Linear
    finally:
        fast_training.usable.cache_clear()


def test_the_processor_says_who_made_it():
    assert fast_training.vendor() == "" or fast_training.vendor().isprintable()


def test_a_network_for_training_can_be_prepared_for_inference(always):
    model, network = pair()
    engine = iso.prepare(network)
    torch.testing.assert_close(engine(IDS), model.eval()(IDS).detach(), rtol=1e-5, atol=1e-4)
    again = iso.prepare(network, training=True)
    agree(gradients(again, IDS), gradients(model.train(), IDS))


def message(*arguments: Any, **named: Any) -> str:
    with pytest.raises(iso.IsomorphError) as caught:
        iso.prepare(*arguments, **named)
    return str(caught.value)


def test_what_is_refused():
    pytest.importorskip("flax")
    plan = iso.resolve("linear(4)", input=("B", 4))
    model = iso.torch.build(plan)
    assert message(model, checkpointing=True) == (
        "E_ARGUMENT: checkpointing is for training\n  prepare(model, training=True, checkpointing=True)"
    )
    assert message(model, "bfloat16", training=True) == (
        "E_ARGUMENT: a network for training computes in its own dtype, got dtype='bfloat16'\n"
        "  use torch.autocast around the forward pass"
    )
    bound = iso.linen.build(plan).bind(iso.linen.variables(plan, iso.initial_weights(plan)))
    for other, name in ((iso.nnx.build(plan), "nnx"), (bound, "linen")):
        assert message(other, training=True) == (
            f"E_ARGUMENT: training=True is for models of PyTorch, got one of {name}\n"
            "  compile its training step as a whole, its state donated: jax.jit(step, donate_argnums=0)"
        )


def test_numbers_of_the_trainer(always, tmp_path):
    """Three steps of the trainer take the plain model's steps, by AdamW written out."""
    from isomorph.backends.torch.training import Trainer
    from isomorph.backends.trainer import Batch
    from isomorph.backends.training_config import TrainingConfig

    plan = iso.resolve("linear(8)\nrelu()\nlinear(3)", input=("B", 4))
    weights = order_one_weights(plan)
    config = TrainingConfig("digits", backend="torch", weight_decay=0.0, clip=0.0)
    trainer = Trainer(plan, weights, config)
    rng = np.random.default_rng(0)
    batch = Batch({"x": rng.standard_normal((6, 4)).astype(np.float32)}, rng.integers(0, 3, 6))
    model = iso.torch.build(plan, weights).double()
    first = [torch.zeros_like(p) for p in model.parameters()]
    second = [torch.zeros_like(p) for p in model.parameters()]
    for step in range(3):
        trainer.step(step, [batch], 0.01)
        model.zero_grad()
        scores = model(torch.from_numpy(batch.inputs["x"]).double())
        nn.functional.cross_entropy(scores, torch.from_numpy(batch.targets)).backward()
        for p, m, v in zip(model.parameters(), first, second, strict=True):
            m.mul_(config.beta1).add_(p.grad, alpha=1 - config.beta1)
            v.mul_(config.beta2).add_(p.grad**2, alpha=1 - config.beta2)
            mean, square = m / (1 - config.beta1 ** (step + 1)), v / (1 - config.beta2 ** (step + 1))
            with torch.no_grad():
                p.sub_(0.01 * mean / (square.sqrt() + config.epsilon))
    for path, array in trainer.weights().items():
        np.testing.assert_allclose(array, model.get_parameter(path).detach().numpy(), atol=2e-6)


@pytest.mark.skipif(kernels.onednn() is None, reason="this PyTorch packs nothing")
def test_a_network_for_training_leaves_an_engine_beside_it_prepared(always):
    """It shares the weights, and reading them is no change of them."""
    model = iso.torch.build(iso.resolve("linear(8)\ngelu()\nlinear(3)", input=("B", 4)))
    trained, engine, x = iso.prepare(model, training=True), iso.prepare(model), torch.ones(5, 4)
    state, expected = engine._state, model(x)
    result = trained(x)
    result.sum().backward()
    torch.testing.assert_close(result, expected)
    engine(x)
    assert engine._state is state
