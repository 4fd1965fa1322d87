"""A prepared model never computes with what its model no longer is."""

from __future__ import annotations

import copy
import pickle
import sys
import threading
import time
import warnings
from typing import Any

import numpy as np
import pytest

import isomorph as iso
from isomorph.testing import order_one_weights

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")
from flax import nnx  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.utils import parametrize, prune  # noqa: E402

TEXT = 'embedding(7, 8, name="wte")\ntransformer_block(2, name="block")\nlayer_norm(name="norm")\nlinear(3, name="head")'


def made(*, bias: bool = True) -> tuple[Any, Any]:
    plan = iso.resolve(TEXT, input=("B", "T"), input_dtype="int64")
    model = iso.torch.build(plan, order_one_weights(plan))
    return model, iso.prepare(model)


IDS = torch.tensor([[1, 2, 3], [4, 0, 6]])


def same(engine: Any, model: Any) -> None:
    """The engine gives what the model gives now; the model's mode stays."""
    mode = model.training
    expected = model.eval()(IDS).detach()
    model.train(mode)
    torch.testing.assert_close(engine(IDS), expected, rtol=1e-5, atol=2e-5)


def in_place(model: Any) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)


def one_row(model: Any) -> None:
    with torch.no_grad():
        model.block.attn.q_proj.weight[0] = 2.0


def through_initialization(model: Any) -> None:
    nn.init.ones_(model.block.norm1.weight)


def stepping(make: Any) -> Any:
    def step(model: Any) -> None:
        optimizer = make(model.parameters())
        model(IDS).square().sum().backward()
        optimizer.step()

    return step


def state_dict(model: Any) -> None:
    model.load_state_dict({path: value * 2 for path, value in model.state_dict().items()})


def state_dict_assigned(model: Any) -> None:
    model.load_state_dict({path: value * 2 for path, value in model.state_dict().items()}, assign=True)


def load_weights(model: Any) -> None:
    iso.torch.load_weights(model, {path: -value for path, value in iso.torch.weights(model).items()})


def another_parameter(model: Any) -> None:
    model.head.weight = nn.Parameter(torch.ones(3, 8))


def another_layer_of_the_same_kind(model: Any) -> None:
    model.block.attn.o_proj = nn.Linear(8, 8)


def other_data(model: Any) -> None:
    model.block.ffn.up.weight.data = torch.randn(32, 8)


def other_data_twice(model: Any) -> None:
    for _ in range(2):
        model.head.weight.data = torch.randn(3, 8)


def swapped(model: Any) -> None:
    torch.utils.swap_tensors(model.head.weight, nn.Parameter(torch.ones(3, 8)))


def vector(model: Any) -> None:
    flat = nn.utils.parameters_to_vector(model.parameters())
    nn.utils.vector_to_parameters(flat * 0.5, model.parameters())


def told(model: Any) -> None:
    """What PyTorch does not count, and how to tell it."""
    model.head.weight.data.mul_(3)
    torch.autograd.graph.increment_version(model.head.weight)


CHANGES = [
    in_place, one_row, through_initialization, state_dict, state_dict_assigned, load_weights, another_parameter,
    another_layer_of_the_same_kind, other_data, other_data_twice, swapped, vector, told,
    stepping(lambda p: torch.optim.SGD(p, lr=0.1)),
    stepping(lambda p: torch.optim.SGD(p, lr=0.1, fused=True)),
    stepping(lambda p: torch.optim.AdamW(p, lr=0.1, foreach=True)),
    stepping(lambda p: torch.optim.AdamW(p, lr=0.1, foreach=False)),
    stepping(lambda p: torch.optim.AdamW(p, lr=0.1, fused=True)),
    stepping(lambda p: torch.optim.Adagrad(p, lr=0.1, fused=True)),
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_changed_weights_are_noticed(change):
    model, engine = made()
    before = engine(IDS)
    change(model)
    same(engine, model)
    assert not torch.allclose(engine(IDS), before)
    state = engine._state
    engine(IDS)
    assert engine._state is state  # and only once


def test_a_change_of_the_mode_or_of_gradients_changes_nothing():
    model, engine = made()
    state = engine._state
    model.eval().requires_grad_(False)
    model(IDS)
    model.train().requires_grad_(True)
    model(IDS).sum().backward()
    model.zero_grad()
    same(engine, model)
    assert engine._state is state


# -- other layers ----------------------------------------------------------------------------------------


class Adapted(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.dropout = inner, nn.Dropout(0.5)

    def forward(self, x: Any) -> Any:
        return self.dropout(self.inner(x)) - x


def adapter(model: Any) -> Any:
    held = model.block.attn.o_proj
    model.block.attn.o_proj = Adapted(held)
    return lambda: setattr(model.block.attn, "o_proj", held)


def hook(model: Any) -> Any:
    return model.block.ffn.up.register_forward_hook(lambda module, given, out: out * 2).remove


def hook_before(model: Any) -> Any:
    return model.register_forward_pre_hook(lambda module, given: tuple(x.clamp(max=2) for x in given)).remove


def hook_of_all(model: Any) -> Any:
    return nn.modules.module.register_module_forward_hook(
        lambda module, given, out: out + 1 if type(module) is nn.LayerNorm else None
    ).remove


class Doubled(nn.Module):
    def forward(self, weight: Any) -> Any:
        return weight * 2


def parametrization(model: Any) -> Any:
    parametrize.register_parametrization(model.head, "weight", Doubled())
    return lambda: parametrize.remove_parametrizations(model.head, "weight", leave_parametrized=True)


def pruning(model: Any) -> Any:
    prune.l1_unstructured(model.head, "weight", amount=0.5)
    return lambda: prune.remove(model.head, "weight")


def own_forward(model: Any) -> Any:
    plain = model.head.forward
    model.head.forward = lambda x: plain(x) * 3
    return lambda: delattr(model.head, "forward")


def other_eps(model: Any) -> Any:
    model.norm.eps = 1.0
    return lambda: setattr(model.norm, "eps", 1e-5)


def no_bias(model: Any) -> Any:
    held = model.head.bias
    model.head.bias = None
    return lambda: setattr(model.head, "bias", held)


def other_class(model: Any) -> Any:
    class Negative(nn.Linear):
        def forward(self, input: Any) -> Any:
            return -super().forward(input)

    model.head.__class__ = Negative
    return lambda: setattr(model.head, "__class__", nn.Linear)


def cast_in_part(model: Any) -> Any:
    model.head.double()
    model.head.register_forward_pre_hook(lambda module, given: tuple(x.double() for x in given))
    return None


REASONS = {
    adapter: "block.attn.o_proj is Adapted and not Linear",
    hook: "block.ffn.up has a hook",
    hook_before: "the network has a hook",
    hook_of_all: "all modules have a hook",
    parametrization: "head is ParametrizedLinear and not Linear",
    pruning: "head has a hook",
    own_forward: "head has a forward of its own",
    other_eps: "norm has other settings",
    no_bias: "head has other parameters",
    other_class: "head is Negative and not Linear",
    cast_in_part: "head has a hook",
}


def test_how_a_layer_prints_itself_is_none_of_its_settings(recwarn):
    model, engine = made()
    model.norm.extra_repr = lambda: "the last norm"
    same(engine, model)
    assert not recwarn.list


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("change", REASONS)
def test_other_layers_are_called_and_that_is_said_once(change, when):
    model, engine = made()
    model.train()
    if when == "after":
        engine(IDS)
    undo = change(model)
    if when == "before":
        engine = iso.prepare(model)
    with pytest.warns(RuntimeWarning) as caught:
        found = engine(IDS)
    assert [str(warning.message) for warning in caught] == [
        f"isomorph: the prepared model calls the model itself, since {REASONS[change]}; "
        "it is faster again when that is undone"
    ]
    assert caught[0].filename == __file__
    assert not found.requires_grad
    assert all(module.training for module in model.modules())
    same(engine, model)  # and nothing more is said: warnings are errors here
    with torch.no_grad():
        model.wte.weight.mul_(2)
    same(engine, model)
    if undo is not None:
        undo()
        same(engine, model)
        assert not engine._state.departure


def test_ties_that_came_apart():
    text = 'embedding(7, 8, name="wte")\nlinear(7, bias=False, name="head", tie={"weight": "wte.weight"})'
    plan = iso.resolve(text, input=("B", "T"), input_dtype="int64")
    model = iso.torch.build(plan)
    engine = iso.prepare(model)
    engine(IDS)
    model.head.weight = nn.Parameter(torch.ones(7, 8))
    with pytest.warns(RuntimeWarning, match=r"head\.weight and wte\.weight are no longer tied"):
        found = engine(IDS)
    torch.testing.assert_close(found, model(IDS).detach())


def test_parameters_that_do_not_count_their_changes():
    plan = iso.resolve(TEXT, input=("B", "T"), input_dtype="int64")
    with torch.inference_mode():
        model = iso.torch.build(plan)
    engine = iso.prepare(model)
    with torch.inference_mode(), pytest.warns(RuntimeWarning, match="made in inference mode"):
        engine(IDS)
    with torch.inference_mode():
        model.head.weight.mul_(2)
        torch.testing.assert_close(engine(IDS), model.eval()(IDS))


class Wrapped(torch.Tensor):
    """A kind of tensor with a product of its own, as quantised weights are."""


def test_parameters_of_another_kind():
    model, engine = made()
    engine(IDS)
    model.head.weight = nn.Parameter(model.head.weight.detach().as_subclass(Wrapped))
    with pytest.warns(RuntimeWarning, match=r"head\.weight is a Wrapped and no torch\.nn\.Parameter"):
        engine(IDS)


def test_identity_in_place_of_dropout_is_the_same():
    plan = iso.resolve("dropout(0.5)\nlinear(4)", input=("B", 4))
    model = iso.torch.build(plan)
    engine = iso.prepare(model)
    model.n0 = nn.Identity()
    x = torch.randn(2, 4)
    torch.testing.assert_close(engine(x), model(x).detach())
    assert not engine._state.departure


def test_a_wrapped_or_copied_model():
    model, _ = made()
    same(iso.prepare(torch.compile(model, backend="eager")), model)
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        engine = iso.prepare(copied)
        in_place(model)
        same(engine, copied)


def test_generation_after_another_layer():
    text = (
        'ids = input("B", "T", dtype="int64")\nembedding(9, 8)\npos_embed(32)\n'
        'transformer_block(2, causal=True, name="block")\nlinear(9)'
    )
    plan = iso.resolve(text)
    model = iso.torch.build(plan, order_one_weights(plan))
    engine = iso.prepare(model)
    plain = iso.generate(engine, [1, 2], 6).tolist()
    assert plain == iso.generate(model, [1, 2], 6).tolist()
    iso.torch.load_weights(model, {path: -value for path, value in order_one_weights(plan, 5).items()})
    changed = iso.generate(model, [1, 2], 6).tolist()
    assert iso.generate(engine, [1, 2], 6).tolist() == changed != plain
    model.block.attn.o_proj = Adapted(model.block.attn.o_proj).eval()
    with pytest.warns(RuntimeWarning, match="is Adapted and not Linear"):
        found = iso.generate(engine, [1, 2], 6).tolist()
    assert found == iso.generate(model, [1, 2], 6).tolist()


# -- NNX ---------------------------------------------------------------------------------------------------


def made_nnx() -> tuple[Any, Any]:
    plan = iso.resolve(
        'layer_norm(name="norm")\nlinear(8, name="up")\nrms_norm(name="rms")\nlinear(3, name="head")',
        input=("B", 8),
    )
    model = iso.nnx.build(plan, order_one_weights(plan))
    return model, iso.prepare(model)


X = np.random.default_rng(0).standard_normal((2, 8)).astype(np.float32)


def by_item(model: Any) -> None:
    model.head.kernel[...] = model.head.kernel[...] * 2


def by_value(model: Any) -> None:
    model.rms.weight.set_value(model.rms.weight[...] + 1)


def by_update(model: Any) -> None:
    nnx.update(model, jax.tree.map(lambda a: a * 1.5, nnx.state(model)))


def by_weights(model: Any) -> None:
    iso.nnx.load_weights(model, {path: -value for path, value in iso.nnx.weights(model).items()})


def by_variable(model: Any) -> None:
    model.head.bias = nnx.Param(jax.numpy.ones(3))


def by_layer(model: Any) -> None:
    model.head = nnx.Linear(8, 3, rngs=nnx.Rngs(1))


def by_optimizer(model: Any) -> None:
    optax = pytest.importorskip("optax")
    optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)
    optimizer.update(model, nnx.grad(lambda m: (m(X) ** 2).sum())(model))


@pytest.mark.parametrize(
    "change", [by_item, by_value, by_update, by_weights, by_variable, by_layer, by_optimizer]
)
@pytest.mark.parametrize("kind", [np.asarray, jax.numpy.asarray], ids=["numpy", "jax"])
def test_changed_variables_are_noticed(change, kind):
    model, engine = made_nnx()
    x = kind(X)
    before = engine(x)
    np.testing.assert_array_equal(
        engine(x), before
    )  # the second call of a shape is begun before it is looked
    change(model)
    np.testing.assert_allclose(engine(x), model(x), atol=2e-5)
    assert not np.allclose(engine(x), before)
    state = engine._state
    engine(x)
    assert engine._state is state
    assert not state.departure


class Negative(nnx.Linear):
    def __call__(self, x: Any) -> Any:
        return -super().__call__(x)


def test_other_layers_of_nnx_are_called_and_that_is_said_once():
    model, engine = made_nnx()
    engine(X)
    held = model.head
    for change, reason in (
        (lambda: setattr(model, "head", Negative(8, 3, rngs=nnx.Rngs(0))), "head is Negative and not Linear"),
        (lambda: setattr(model, "head", nnx.Linear(8, 4, rngs=nnx.Rngs(0))), "head.weight is not there as the plan has it"),
        (lambda: setattr(model.norm, "epsilon", 1.0), "norm has another epsilon"),
        (lambda: setattr(model.up, "dtype", jax.numpy.bfloat16), "up has another dtype"),
        (lambda: setattr(model.up, "dtype", None) or nnx.update(model.up, jax.tree.map(lambda a: a.astype("bfloat16"), nnx.state(model.up))),
         "its parameters have several dtypes"),
    ):  # fmt: skip
        change()
        with pytest.warns(RuntimeWarning) as caught:
            found = engine(X)
        assert [str(one.message) for one in caught] == [
            f"isomorph: the prepared model calls the model itself, since {reason}; it is faster again when that is undone"
        ]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            np.testing.assert_array_equal(engine(X), found)
        np.testing.assert_allclose(np.asarray(found), np.asarray(model(X)), atol=2e-5)
        if model.head is not held:
            model.head = held
            assert not engine.current().departure
        elif model.norm.epsilon == 1.0:
            model.norm.epsilon = 1e-5


def test_weights_that_a_training_step_donated_are_followed():
    model, engine = made_nnx()
    x = jax.numpy.asarray(X)
    for _ in range(2):
        engine(x)
    state = nnx.state(model)
    step = jax.jit(lambda state: jax.tree.map(lambda p: p * 2, state), donate_argnums=0)
    nnx.update(model, step(state))  # the arrays that the engine was derived from are gone
    np.testing.assert_allclose(np.asarray(engine(x)), np.asarray(model(x)), atol=2e-4)


def test_threads_may_call_while_another_changes_the_model():
    model, engine = made_nnx()
    x = jax.numpy.asarray(X)
    states = [nnx.state(model), jax.tree.map(lambda a: a * 1.5, nnx.state(model))]
    right = []
    for state in states:
        nnx.update(model, state)
        right.append(np.asarray(engine(x)))
    over, wrong = threading.Event(), []

    def call() -> None:
        while not over.is_set():
            try:
                engine(x)
            except Exception as error:
                wrong.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    threads = [threading.Thread(target=call) for _ in range(3)]
    try:
        for thread in threads:
            thread.start()
        for turn in range(60):
            nnx.update(model, states[turn % 2])
            time.sleep(0.005)
    finally:
        over.set()
        for thread in threads:
            thread.join()
        sys.setswitchinterval(interval)
    assert wrong == []
    np.testing.assert_array_equal(np.asarray(engine(x)), right[1])


def test_a_compiled_function_keeps_the_weights_that_it_was_traced_with():
    model, engine = made_nnx()
    compiled = jax.jit(lambda x: engine(x))
    first = compiled(X)
    by_update(model)
    np.testing.assert_array_equal(compiled(X), first)
    np.testing.assert_allclose(jax.jit(lambda x: engine(x))(X), engine(X), atol=1e-5)


def test_a_model_that_is_being_traced_is_called_itself():
    model, _ = made_nnx()

    @nnx.jit
    def inside(model: Any, x: Any) -> Any:
        with pytest.warns(RuntimeWarning, match="is being traced"):
            return iso.prepare(model)(x)

    np.testing.assert_allclose(inside(model, X), model(X), atol=1e-5)
