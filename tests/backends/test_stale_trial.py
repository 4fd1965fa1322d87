"""Random edits of models, in random order and number, with calls between: the prepared form gives what the model gives."""

from __future__ import annotations

import copy
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import cache
from types import MethodType
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

IDS = 'x = input("B", "T", dtype="int64")\n'
ROWS = 'x = input("B", "T", 8)\n'
NETWORKS = {
    "tied": IDS
    + 'embedding(7, 8, name="wte")\nlayer_norm()\nlinear(7, bias=False, tie={"weight": "wte.weight"})',
    "block": ROWS + "transformer_block(2, mlp_ratio=1, dropout=0.5, layer_scale=True)",
    "modern": ROWS + "rms_norm()\nattention(2, causal=True, rope=True, bias=False)\nrms_norm()\nlinear(5)",
    "plain": ROWS + "linear(8)\nlayer_norm()\ndropout(0.5)\ngelu()\nlinear(8)\nlinear(3)",
}
GENERATOR = np.random.default_rng(0)
FLOATS = GENERATOR.standard_normal((2, 3, 8)).astype(np.float32)
INTEGERS = GENERATOR.integers(0, 7, (2, 3))

Random = np.random.Generator
Edit = Callable[..., "Callable[[], Any] | None"]
"""Changes a model; gives what undoes it, unless that is only other values of parameters."""


def close(found: Any, right: Any, told: Any) -> None:
    found, right = np.asarray(found), np.asarray(right)
    if not np.isfinite(right).all():
        return
    scale = max(1.0, float(np.abs(right).max()))
    np.testing.assert_allclose(found, right, rtol=0, atol=1e-4 * scale, err_msg=str(told))


# -- PyTorch -----------------------------------------------------------------------------------------------


class Subject:
    """A model, prepared in every way, and how to bring it back to what it was.

    Attributes:
        model: the network.
        engine, other: two engines of it, of which the second is called less often.
        twin: the network for training.
        x: what they are called with.
    """

    def __init__(self, name: str) -> None:
        plan = iso.resolve(NETWORKS[name])
        self.model: Any = iso.torch.build(plan, order_one_weights(plan))
        self.x = torch.from_numpy(FLOATS if plan.values[plan.inputs[0][1]].dtype == "float32" else INTEGERS)
        self.engine, self.other = iso.prepare(self.model), iso.prepare(self.model)
        self.twin = iso.prepare(self.model, training=True)
        self.places = [
            (module._parameters, name, parameter, parameter.detach().clone())
            for module in self.model.modules()
            for name, parameter in module._parameters.items()
            if parameter is not None
        ]

    def restore(self) -> None:
        for place, name, parameter, value in self.places:
            place[name] = parameter
            parameter.data = value.clone()
            parameter.grad = None
            parameter.requires_grad_(True)

    def compare(self, told: Any, *, other: bool, twin: bool) -> None:
        mode = self.model.training
        self.model.eval()
        with torch.no_grad():
            right = self.model(self.x)
        self.model.train(mode)
        close(self.engine(self.x), right, told)
        if other:
            close(self.other(self.x), right, (*told, "other"))
        if twin:
            with torch.no_grad():
                close(self.twin.eval()(self.x), right, (*told, "twin"))


@cache
def subject(name: str) -> Subject:
    return Subject(name)


def one(random: Random, model: Any) -> Any:
    """A parameter."""
    parameters = list(model.parameters())
    return parameters[random.integers(len(parameters))]


def some(random: Random, model: Any, kind: type = nn.Module) -> Any:
    """A module of a kind, that is not the network itself."""
    modules = [module for module in model.modules() if module is not model and isinstance(module, kind)]
    return modules[random.integers(len(modules))] if modules else some(random, model)


def noise(random: Random, parameter: Any) -> Any:
    return torch.from_numpy(random.standard_normal(parameter.shape).astype(np.float32))


def counted(random: Random, model: Any) -> None:
    p = one(random, model)
    with torch.no_grad():
        p.mul_(1.5) if random.random() < 0.5 else p.copy_(noise(random, p))


def data(random: Random, model: Any) -> None:
    p = one(random, model)
    if random.random() < 0.5:
        p.data.add_(noise(random, p))
    else:
        p.data.view(-1)[random.integers(p.numel())] += 2


def other_data(random: Random, model: Any) -> None:
    p = one(random, model)
    p.data = noise(random, p)


def same_data_elsewhere(random: Random, model: Any) -> None:
    p = one(random, model)
    p.data = p.data.clone()


def turned_data(random: Random, model: Any) -> None:
    p = one(random, model)
    if p.ndim == 2 and p.shape[0] == p.shape[1]:
        p.data = p.data.t()


def exchanged_data(random: Random, model: Any) -> None:
    p, q = one(random, model), one(random, model)
    if p.shape == q.shape:
        p.data, q.data = q.data, p.data


def swapped(random: Random, model: Any) -> None:
    p, q = one(random, model), one(random, model)
    if p.shape == q.shape and p is not q:
        p.grad = q.grad = None
        try:
            torch.utils.swap_tensors(p, q)
        except RuntimeError:  # somebody holds a reference to it that is weak
            return


def set_elsewhere(random: Random, model: Any) -> None:
    p = one(random, model)
    with torch.no_grad():
        p.set_(noise(random, p))


def by_vector(random: Random, model: Any) -> None:
    vector = nn.utils.parameters_to_vector([p.contiguous() for p in model.parameters()]).detach()
    nn.utils.vector_to_parameters(vector, model.parameters())
    subject_vectors.append(vector)


subject_vectors: list[Any] = []


def by_vector_again(random: Random, model: Any) -> None:
    if subject_vectors:
        subject_vectors[-1].mul_(1.2)


def by_step(random: Random, model: Any) -> None:
    kind = random.integers(4)
    options: dict[str, Any] = {"fused": True} if kind < 2 else {"foreach": bool(kind == 2)}
    make = torch.optim.AdamW if random.random() < 0.5 else torch.optim.SGD
    optimizer = make([p for p in model.parameters() if p.is_contiguous()], lr=0.2, **options)
    if random.random() < 0.7:
        optimizer.register_step_post_hook(lambda optimizer, arguments, keywords: optimizer.zero_grad())
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    optimizer.step()


def by_numpy(random: Random, model: Any) -> None:
    one(random, model).detach().numpy()[...] *= 1.5


def by_dlpack(random: Random, model: Any) -> None:
    torch.from_dlpack(one(random, model).detach()).mul_(1.5)


def by_alias(random: Random, model: Any) -> None:
    state = model.state_dict()
    state[list(state)[random.integers(len(state))]].mul_(1.5)


def by_state(random: Random, model: Any) -> None:
    state = {path: value * 1.3 for path, value in model.state_dict().items()}
    model.load_state_dict(state, assign=bool(random.random() < 0.5))


def by_numpy_state(random: Random, model: Any) -> None:
    """Memory of NumPy's, which cannot be marked."""
    state = {path: torch.from_numpy(value.numpy().copy()) for path, value in model.state_dict().items()}
    model.load_state_dict(state, assign=True)


def shared_memory(random: Random, model: Any) -> None:
    model.share_memory()


def another_parameter(random: Random, model: Any) -> None:
    module = some(random, model)
    for name, p in list(module._parameters.items()):
        if p is not None:
            setattr(module, name, nn.Parameter(noise(random, p)))


def in_inference(random: Random, model: Any) -> None:
    with torch.inference_mode():
        one(random, model).mul_(1.5)


def nothing(random: Random, model: Any) -> None:
    kind = random.integers(5)
    if kind == 0:
        model.train(bool(random.random() < 0.5))
    elif kind == 1:
        model.requires_grad_(bool(random.random() < 0.5))
    elif kind == 2:
        model.note = random.random()
    elif kind == 3:
        torch.func.functional_call(model, {}, subject_inputs(model))
    else:
        copy.deepcopy(model)


def subject_inputs(model: Any) -> Any:
    floating = model.plan.values[model.plan.inputs[0][1]].dtype == "float32"
    return torch.from_numpy(FLOATS if floating else INTEGERS)


VALUES: list[Edit] = [
    counted, data, data, other_data, same_data_elsewhere, turned_data, exchanged_data, swapped, set_elsewhere, by_vector,
    by_vector_again, by_step, by_step, by_numpy, by_dlpack, by_alias, by_state, by_numpy_state, shared_memory,
    another_parameter, in_inference, nothing, nothing,
]  # fmt: skip


def hook(random: Random, model: Any) -> Any:
    kind = random.integers(3)
    module = some(random, model)
    if kind == 0:
        return module.register_forward_hook(lambda module, given, out: out * 2).remove
    if kind == 1:
        return module.register_forward_pre_hook(lambda module, given: tuple(
            x * 2 if x is not None and x.is_floating_point() else x for x in given)).remove  # fmt: skip
    return nn.modules.module.register_module_forward_hook(
        lambda module, given, out: out + 1 if isinstance(module, nn.Linear) else None
    ).remove


def hooks_exchanged(random: Random, model: Any) -> Any:
    module = some(random, model)
    held, module._forward_hooks = module._forward_hooks, OrderedDict()
    if random.random() < 0.7:
        module._forward_hooks[0] = lambda module, given, out: out * 2
    return lambda: setattr(module, "_forward_hooks", held)


def own_forward(random: Random, model: Any) -> Any:
    module = some(random, model)
    plain, taken = type(module).forward, {}
    for name in ("in_features", "num_embeddings"):
        if random.random() < 0.7 and name in module.__dict__ and "forward" not in module.__dict__:
            taken[name] = module.__dict__.pop(name)
            break
    module.forward = MethodType(lambda self, *given: plain(self, *given) * 3, module)  # of either mode

    def undo() -> None:
        module.__dict__.pop("forward", None)
        module.__dict__.update(taken)

    return undo


def on_class(random: Random, model: Any) -> Any:
    kind = type(some(random, model))
    name = "forward" if random.random() < 0.7 else "_call_impl"
    plain, own = getattr(kind, name), vars(kind).get(name)
    setattr(kind, name, lambda self, *given, **named: plain(self, *given, **named) * 2)
    return lambda: setattr(kind, name, own) if own is not None else delattr(kind, name)


def other_layer(random: Random, model: Any) -> Any:
    places = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent._modules.items()
        if isinstance(child, nn.Linear | nn.Dropout)
        and "out_features" in child.__dict__ | {"out_features": 0}
    ]
    if not places:
        return None
    parent, name, child = places[random.integers(len(places))]
    if isinstance(child, nn.Dropout):
        layer: Any = nn.Identity()
    elif random.random() < 0.5:
        layer = nn.Linear(child.weight.shape[1], child.weight.shape[0], child.bias is not None)
    else:
        layer = nn.Sequential(child, nn.ReLU())
    parent._modules[name] = layer
    return lambda: parent._modules.__setitem__(name, child)


def other_eps(random: Random, model: Any) -> Any:
    module = some(random, model, nn.LayerNorm)
    if "eps" not in vars(module):
        return None
    held, module.eps = module.eps, 0.5
    return lambda: setattr(module, "eps", held)


def other_dictionary(random: Random, model: Any) -> Any:
    module = some(random, model)
    name = ("_parameters", "_modules", "_buffers")[random.integers(3)]
    held = getattr(module, name)
    setattr(module, name, dict(held))
    return lambda: setattr(module, name, held)


class Doubled(nn.Module):
    def forward(self, weight: Any) -> Any:
        return weight * 2


def parametrized(random: Random, model: Any) -> Any:
    module = some(random, model, nn.Linear)
    if "weight" not in module._parameters or hasattr(module, "parametrizations"):
        return None
    held, kind = module._parameters["weight"], type(module)
    if random.random() < 0.5:
        prune.l1_unstructured(module, "weight", amount=0.5)

        def undo() -> None:
            prune.remove(module, "weight")
            module._parameters["weight"] = held

    else:
        parametrize.register_parametrization(module, "weight", Doubled())

        def undo() -> None:
            del module._modules["parametrizations"]
            module.__class__ = kind
            module._parameters["weight"] = held

    return undo


def no_bias(random: Random, model: Any) -> Any:
    module = some(random, model, nn.Linear)
    held = module._parameters.get("bias")
    if held is None:
        return None
    module.bias = None
    return lambda: module._parameters.__setitem__("bias", held)


PARTS: list[Edit] = [
    hook, hooks_exchanged, own_forward, on_class, other_layer, other_eps, other_dictionary, parametrized, no_bias,
]  # fmt: skip


@pytest.fixture
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.trial(sample=25, whole=4000)
def test_whatever_is_done_to_a_model_in_pytorch(trial, quiet):
    for index in range(trial.tries):
        random = np.random.default_rng([trial.seed, index])
        name = list(NETWORKS)[random.integers(len(NETWORKS))]
        tried, told, undone = subject(name), [index, name], []
        subject_vectors.clear()
        parts = random.random() < 0.5
        try:
            for _ in range(random.integers(1, 5)):
                edit = (PARTS if parts and random.random() < 0.5 else VALUES)[:]
                chosen = edit[random.integers(len(edit))]
                told.append(chosen.__name__)
                try:
                    undo = chosen(random, tried.model)
                except (
                    RuntimeError,
                    AttributeError,
                    KeyError,
                    iso.IsomorphError,
                ):  # PyTorch has no such edit of what others left
                    told.append("refused")
                    continue
                if undo is not None:
                    undone.append(undo)
                if random.random() < 0.6:
                    tried.compare(told, other=random.random() < 0.3, twin=not parts)
            tried.compare(told, other=True, twin=not parts)
        finally:
            for undo in reversed(undone):
                undo()
            tried.restore()
        if random.random() < 0.3:
            tried.compare([*told, "restored"], other=True, twin=True)


# -- NNX ---------------------------------------------------------------------------------------------------


def nnx_layers(model: Any, kind: Any) -> list[Any]:
    return [
        module for _, module in nnx.iter_modules(model) if isinstance(module, kind) and module is not model
    ]


def nnx_variables(model: Any) -> list[Any]:
    return [variable for _, variable in nnx.to_flat_state(nnx.state(model, nnx.Param))] and [
        value
        for _, module in nnx.iter_modules(model)
        for value in vars(module).values()
        if isinstance(value, nnx.Param)
    ]


def nnx_value(random: Random, model: Any) -> None:
    variables = nnx_variables(model)
    variable = variables[random.integers(len(variables))]
    kind = random.integers(4)
    if kind == 0:
        variable[...] = variable[...] * 1.5
    elif kind == 1:
        variable.set_value(variable[...] + 1)
    elif kind == 2:
        nnx.update(model, jax.tree.map(lambda a: a * 1.2, nnx.state(model, nnx.Param)))
    else:
        variable.set_value(jax.numpy.array(variable[...]))  # the same numbers elsewhere


def nnx_numpy(random: Random, model: Any) -> None:
    variables = nnx_variables(model)
    variable = variables[random.integers(len(variables))]
    array = np.asarray(variable.get_raw_value()).copy()
    variable.set_raw_value(array) if hasattr(variable, "set_raw_value") else variable.set_value(array)
    array *= 1.5


def nnx_other_variable(random: Random, model: Any) -> Any:
    layers = nnx_layers(model, nnx.Linear)
    layer = layers[random.integers(len(layers))]
    held = layer.kernel
    layer.kernel = nnx.Param(held[...] * 2)
    return lambda: setattr(layer, "kernel", held)


def nnx_setting(random: Random, model: Any) -> Any:
    layers = nnx_layers(model, nnx.Linear)
    layer = layers[random.integers(len(layers))]
    plain = layer.promote_dtype
    name, value = (
        ("promote_dtype", lambda arrays, dtype: tuple(None if a is None else a / 2 for a in plain(arrays, dtype=dtype))),
        ("dot_general", lambda *given, **named: jax.lax.dot_general(*given, **named) * 2),
        ("use_bias", layer.use_bias),
    )[random.integers(3)]  # fmt: skip
    held = getattr(layer, name)
    setattr(layer, name, value)
    return lambda: setattr(layer, name, held)


def nnx_epsilon(random: Random, model: Any) -> Any:
    layers = nnx_layers(model, nnx.LayerNorm)
    if not layers:
        return None
    layer = layers[random.integers(len(layers))]
    held, layer.epsilon = layer.epsilon, 0.5
    return lambda: setattr(layer, "epsilon", held)


def nnx_on_class(random: Random, model: Any) -> Any:
    layers = nnx_layers(model, nnx.Module)
    kind: Any = type(layers[random.integers(len(layers))])
    plain = kind.__call__
    kind.__call__ = lambda self, *given, **named: plain(self, *given, **named) * 2
    return lambda: setattr(kind, "__call__", plain)


def nnx_mode(random: Random, model: Any) -> None:
    model.train() if random.random() < 0.5 else model.eval()


NNX: list[Edit] = [
    nnx_value, nnx_value, nnx_value, nnx_numpy, nnx_other_variable, nnx_setting, nnx_epsilon, nnx_on_class, nnx_mode,
]  # fmt: skip


@cache
def nnx_subject(name: str) -> tuple[Any, Any, Any, Any]:
    plan = iso.resolve(NETWORKS[name].replace("dropout=0.5, ", "").replace("dropout(0.5)\n", ""))
    model = iso.nnx.build(plan, order_one_weights(plan))
    return model, iso.prepare(model), FLOATS, [(v, v.get_raw_value()) for v in nnx_variables(model)]


@pytest.mark.trial(sample=4, whole=1000)
def test_whatever_is_done_to_a_model_in_nnx(trial, quiet):
    for index in range(trial.tries):
        random = np.random.default_rng([trial.seed, index])
        name = ("plain", "modern", "block")[random.integers(3)] if trial.tries > 10 else "plain"
        model, engine, x, values = nnx_subject(name)
        told, undone = [index, name], []
        try:
            for _ in range(random.integers(1, 4)):
                chosen = NNX[random.integers(len(NNX))]
                told.append(chosen.__name__)
                undo = chosen(random, model)
                if undo is not None:
                    undone.append(undo)
                if random.random() < 0.4:
                    close(engine(x), model(x), told)
            close(engine(x), model(x), told)
        finally:
            for undo in reversed(undone):
                undo()
            for variable, value in values:
                variable.set_value(value)
