"""Training a ViT-B block (B=8, T=197, D=768, 12 heads) in float32: the derivative, and a step of AdamW.

python benchmarks/training_step.py [--quick]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from harness import LIMIT, Goal, Measured, Options, main, workload
from networks import Block, vit_block, weights_of

FAST, PLAIN = "isomorph prepared", "isomorph plain"
SAME = 1e-6
"""How far a gradient may be from the plain model's, in units of the largest gradient of all parameters."""
RATE = 1e-5


def _goals(ours: str) -> list[Goal]:
    return [
        Goal(f"at least 1.6 times {peer}", ours, (peer,), at_least=1.6) for peer in ("timm", "torch layer")
    ]


@workload("ViT-B block, forward and backward, float32, PyTorch", main=FAST, goals=_goals(FAST))
def torch_backward(options: Options) -> Measured:
    from torch_peers import limit

    measured, block = Measured(), vit_block(options)
    models, x = _torch_models(block, measured)
    derivatives = {name: _derivative(model, x) for name, model in models.items()}
    _check_gradients(models, derivatives, x, measured)
    calls: dict[str, Callable[[], Any]] = dict(derivatives)
    calls[LIMIT] = limit(block.products, block.attentions, backward=True)
    measured.time(calls, options.count(15, 2))
    return measured


@workload(
    "ViT-B block, training step with AdamW, float32, PyTorch", main=FAST, goals=_goals(FAST), quick=False
)
def torch_step(options: Options) -> Measured:
    from torch_peers import limit

    measured, block = Measured(), vit_block(options)
    models, x = _torch_models(block, measured)
    calls: dict[str, Callable[[], Any]] = {name: _step(model, x) for name, model in models.items()}
    calls[LIMIT] = limit(block.products, block.attentions, backward=True)
    measured.time(calls, options.count(15, 2))
    measured.notes.append("every entrant takes the fused AdamW")
    return measured


def _torch_models(block: Block, measured: Measured) -> tuple[dict[str, Any], Any]:
    """All entrants in training mode; ours of weights of their own, so that steps do not meet."""
    import torch

    from isomorph import prepare
    from torch_peers import block_peers, ours

    plan = block.plan
    weights = weights_of(plan)
    models = {FAST: prepare(ours(plan, weights), training=True), PLAIN: ours(plan, weights)}
    models |= block_peers(block, weights, measured)
    return {name: model.train() for name, model in models.items()}, torch.from_numpy(block.x)


def _derivative(model: Any, x: Any) -> Callable[[], None]:
    def call() -> None:
        model.zero_grad(set_to_none=True)
        model(x).square().mean().backward()

    return call


def _step(model: Any, x: Any) -> Callable[[], None]:
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, fused=True)

    def call() -> None:
        optimizer.zero_grad(set_to_none=True)
        model(x).square().mean().backward()
        optimizer.step()

    return call


def _check_gradients(models: Mapping[str, Any], calls: Mapping[str, Any], x: Any, measured: Measured) -> None:
    """Ours against the plain model's, and both against double precision."""
    import copy

    def gradients(model: Any) -> dict[str, Any]:
        return {path: p.grad.double().numpy() for path, p in model.named_parameters()}

    calls[FAST](), calls[PLAIN]()
    double = copy.deepcopy(models[PLAIN]).double()
    _derivative(double, x.double())()
    fast, plain, right = gradients(models[FAST]), gradients(models[PLAIN]), gradients(double)
    if fast.keys() != plain.keys():
        raise AssertionError("the prepared model has other parameters")
    largest = max(np.abs(g).max() for g in right.values())
    for name, one, other in (("prepared, plain", fast, plain), ("prepared, float64", fast, right), ("plain, float64", plain, right)):  # fmt: skip
        worst = max(np.abs(one[path] - other[path]).max() for path in other)
        measured.check(f"gradients of {name}, relative", worst / largest, SAME)


# -- JAX -----------------------------------------------------------------------------------------------

NNX, LINEN = "isomorph NNX", "isomorph Linen"


@workload(
    "ViT-B block, training step with AdamW, float32, JAX",
    main=NNX,
    processes=5,
    goals=[
        Goal(f"NNX: no slower than plain {peer}", NNX, (f"plain {peer}",), at_least=1.0)
        for peer in ("Linen", "NNX")
    ],
)
def jax_step(options: Options) -> Measured:
    import jax
    from flax import nnx

    import flax_peers
    import isomorph as iso

    measured, block = Measured(), vit_block(options)
    plan = block.plan
    weights = weights_of(plan)
    x = jax.numpy.asarray(block.x)
    plain = flax_peers.LinenBlock(block.H, block.D)
    peer = flax_peers.NNXBlock(block.H, block.D, nnx.Rngs(0))
    flax_peers.fill_nnx_block(peer, weights, "n0", block.H)
    module = iso.linen.build(plan)
    entrants: dict[str, tuple[Any, Any]] = {
        NNX: _functional(iso.nnx.build(plan, weights)),
        LINEN: (module.apply, iso.linen.variables(plan, weights)),
        "plain Linen": (plain.apply, {"params": flax_peers.linen_block_params(weights, "n0", block.H)}),
        "plain NNX": _functional(peer),
    }
    if options.quick:
        del entrants[LINEN], entrants["plain NNX"]
    steps = {name: _JaxStep(apply, parameters, x) for name, (apply, parameters) in entrants.items()}
    lengths = {name: step.length() for name, step in steps.items()}
    for name, length in lengths.items():
        difference = abs(length / lengths["plain Linen"] - 1)
        measured.check(f"{name}, length of the gradient, plain Linen's, relative", difference, 1e-5)
    calls = {name: (lambda step=step: jax.block_until_ready(step())) for name, step in steps.items()}
    calls[LIMIT] = flax_peers.limit(block.products, block.attentions, backward=True)
    measured.time(calls, options.count(9, 2))
    return measured


def _functional(model: Any) -> tuple[Any, Any]:
    from flax import nnx

    graph, state = nnx.split(model)
    return lambda state, x: nnx.merge(graph, state)(x), state


class _JaxStep:
    """A compiled step of AdamW whose parameters and moments are donated."""

    def __init__(self, apply: Callable[..., Any], parameters: Any, x: Any) -> None:
        import jax
        import optax

        optimizer = optax.adamw(RATE)
        self._parameters = jax.tree.map(jax.numpy.array, parameters)  # its own, to be donated
        self._moments, self._x = optimizer.init(self._parameters), x

        def loss(parameters: Any, x: Any) -> Any:
            return (apply(parameters, x) ** 2).mean()

        @partial(jax.jit, donate_argnums=(0, 1))
        def step(parameters: Any, moments: Any, x: Any) -> Any:
            value, gradients = jax.value_and_grad(loss)(parameters, x)
            updates, moments = optimizer.update(gradients, moments, parameters)
            return optax.apply_updates(parameters, updates), moments, value

        self._step = step
        self._length = jax.jit(lambda parameters, x: optax.global_norm(jax.grad(loss)(parameters, x)))

    def length(self) -> float:
        """Of the gradient by all parameters."""
        return float(self._length(self._parameters, self._x))

    def __call__(self) -> Any:
        self._parameters, self._moments, loss = self._step(self._parameters, self._moments, self._x)
        return loss


if __name__ == "__main__":
    main(__doc__)
