"""What Flax's users write instead: plain Linen and plain NNX, and GPT-2 with a cache in plain JAX; and the limit."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import jax
import numpy as np
from flax import linen as nn
from flax import nnx
from jax import lax
from jax import numpy as jnp

import isomorph as iso
from isomorph import prepare
from networks import EPS, Attention, Block, Decoder, Product

Array = np.ndarray[Any, Any]
Function = Callable[[Any], Any]


def blocked(functions: Mapping[str, Function], x: Array) -> dict[str, Callable[[], Any]]:
    """Calls on an array that is there already, each waiting for its result."""
    there = jax.block_until_ready(jnp.asarray(x))

    def call(function: Function) -> Callable[[], Any]:
        return lambda: jax.block_until_ready(function(there))

    return {name: call(function) for name, function in functions.items()}


# -- blocks --------------------------------------------------------------------------------------------


class LinenBlock(nn.Module):
    """A pre-norm block as one writes it in Linen, over ``[B, T, D]``."""

    H: int
    D: int
    dtype: Any = None
    tanh: bool = False

    @nn.compact
    def __call__(self, x: jax.Array, mask: jax.Array | None = None) -> jax.Array:
        y = nn.LayerNorm(epsilon=EPS, dtype=self.dtype)(x)
        attention = nn.MultiHeadDotProductAttention(num_heads=self.H, qkv_features=self.D, dtype=self.dtype)
        x = x + attention(y, mask=mask)
        z = nn.LayerNorm(epsilon=EPS, dtype=self.dtype)(x)
        h = nn.gelu(nn.Dense(4 * self.D, dtype=self.dtype)(z), approximate=self.tanh)
        return x + nn.Dense(self.D, dtype=self.dtype)(h)


class NNXBlock(nnx.Module):
    """The same in NNX."""

    def __init__(self, H: int, D: int, rngs: nnx.Rngs, *, dtype: Any = None, tanh: bool = False) -> None:
        told: dict[str, Any] = {"rngs": rngs, "dtype": dtype}
        self.norm1 = nnx.LayerNorm(D, epsilon=EPS, **told)
        self.attention = nnx.MultiHeadAttention(num_heads=H, in_features=D, decode=False, **told)
        self.norm2 = nnx.LayerNorm(D, epsilon=EPS, **told)
        self.up, self.down = nnx.Linear(D, 4 * D, **told), nnx.Linear(4 * D, D, **told)
        self.tanh = tanh

    def __call__(self, x: jax.Array, mask: jax.Array | None = None) -> jax.Array:
        x = x + self.attention(self.norm1(x), mask=mask)
        return x + self.down(nnx.gelu(self.up(self.norm2(x)), approximate=self.tanh))


def block_arrays(weights: Mapping[str, Array], node: str, H: int) -> dict[str, dict[str, Any]]:
    """A block's arrays by part, in Flax's axis order."""

    def array(path: str, shape: tuple[int, ...] | None = None) -> jax.Array:
        found = weights[f"{node}.{path}"].T
        return jnp.asarray(found if shape is None else found.reshape(shape))

    D = len(weights[f"{node}.norm1.weight"])
    found: dict[str, dict[str, Any]] = {
        name: {"scale": array(f"{name}.weight"), "bias": array(f"{name}.bias")} for name in ("norm1", "norm2")
    }
    for name, path in (("query", "q"), ("key", "k"), ("value", "v")):
        kernel, bias = f"attn.{path}_proj.weight", f"attn.{path}_proj.bias"
        found[name] = {"kernel": array(kernel, (D, H, D // H)), "bias": array(bias, (H, D // H))}
    found["out"] = {"kernel": array("attn.o_proj.weight", (H, D // H, D)), "bias": array("attn.o_proj.bias")}
    for name in ("up", "down"):
        found[name] = {"kernel": array(f"ffn.{name}.weight"), "bias": array(f"ffn.{name}.bias")}
    return found


def linen_block_params(weights: Mapping[str, Array], node: str, H: int) -> dict[str, Any]:
    """Parameters of :class:`LinenBlock`."""
    found = block_arrays(weights, node, H)
    return {
        "LayerNorm_0": found["norm1"],
        "MultiHeadDotProductAttention_0": {name: found[name] for name in ("query", "key", "value", "out")},
        "LayerNorm_1": found["norm2"],
        "Dense_0": found["up"],
        "Dense_1": found["down"],
    }


def fill_nnx_block(block: NNXBlock, weights: Mapping[str, Array], node: str, H: int) -> None:
    """Give an :class:`NNXBlock` our weights."""
    for name, arrays in block_arrays(weights, node, H).items():
        part = getattr(block.attention if name in ("query", "key", "value", "out") else block, name)
        for key, value in arrays.items():
            getattr(part, key)[...] = value


def prepared_blocks(
    plan: iso.Plan, weights: Mapping[str, Array], dtype: str | None = None
) -> dict[str, Function]:
    """Our engines of both Flax backends."""
    linen = iso.linen.build(plan).bind(iso.linen.variables(plan, weights))
    return {
        "isomorph prepared, NNX": prepare(iso.nnx.build(plan, weights), dtype),
        "isomorph prepared, Linen": prepare(linen, dtype),
    }


def jitted(model: nnx.Module) -> Function:
    """An NNX model under ``jax.jit``, split once."""
    graph, state = nnx.split(model)
    compiled = jax.jit(lambda state, x: nnx.merge(graph, state)(x))
    return partial(compiled, state)


def jitted_blocks(
    block: Block, plan: iso.Plan, weights: Mapping[str, Array], dtype: str | None = None
) -> dict[str, Function]:
    """The peers, and our plain models, under ``jax.jit``."""
    number = None if dtype is None else jnp.dtype(dtype)
    linen = LinenBlock(block.H, block.D, number)
    plain = NNXBlock(block.H, block.D, nnx.Rngs(0), dtype=number)
    fill_nnx_block(plain, weights, "n0", block.H)
    ours, variables = iso.linen.build(plan), iso.linen.variables(plan, weights)
    return {
        "plain Linen": partial(
            jax.jit(linen.apply), {"params": linen_block_params(weights, "n0", block.H)}
        ),
        "plain NNX": jitted(plain),
        "isomorph plain, NNX": jitted(evaluated(iso.nnx.build(plan, weights))),
        "isomorph plain, Linen": partial(jax.jit(ours.apply), variables),
    }  # fmt: skip


def evaluated(model: nnx.Module) -> nnx.Module:
    """The model in evaluation mode."""
    model.eval()
    return model


# -- GPT-2 ---------------------------------------------------------------------------------------------


class LinenGPT2(nn.Module):
    """GPT-2 as one writes it in Linen; the head scores with the table."""

    sizes: Decoder

    @nn.compact
    def __call__(self, ids: jax.Array) -> jax.Array:
        wte = nn.Embed(self.sizes.vocabulary, self.sizes.D, name="wte")
        wpe = self.param("wpe", nn.initializers.normal(0.02), (self.sizes.positions, self.sizes.D))
        x = wte(ids) + wpe[: ids.shape[1]]
        mask = nn.make_causal_mask(ids)
        for layer in range(self.sizes.layers):
            x = LinenBlock(self.sizes.H, self.sizes.D, tanh=True, name=f"h{layer}")(x, mask)
        return wte.attend(nn.LayerNorm(epsilon=EPS, name="norm")(x))


class NNXGPT2(nnx.Module):
    """The same in NNX."""

    def __init__(self, sizes: Decoder, rngs: nnx.Rngs) -> None:
        self.wte = nnx.Embed(sizes.vocabulary, sizes.D, rngs=rngs)
        self.wpe = nnx.Param(jnp.zeros((sizes.positions, sizes.D)))
        self.blocks = nnx.List([NNXBlock(sizes.H, sizes.D, rngs, tanh=True) for _ in range(sizes.layers)])
        self.norm = nnx.LayerNorm(sizes.D, epsilon=EPS, rngs=rngs)

    def __call__(self, ids: jax.Array) -> jax.Array:
        x = self.wte(ids) + self.wpe[: ids.shape[1]]
        mask = nnx.make_causal_mask(ids)
        for block in self.blocks:
            x = block(x, mask)
        return self.wte.attend(self.norm(x))


def jitted_gpt2(sizes: Decoder, weights: Mapping[str, Array]) -> dict[str, Function]:
    """The peers under ``jax.jit``."""
    norm = {"scale": jnp.asarray(weights["ln_f.weight"]), "bias": jnp.asarray(weights["ln_f.bias"])}
    wte, wpe = jnp.asarray(weights["wte.weight"]), jnp.asarray(weights["wpe.weight"])
    params: dict[str, Any] = {"wte": {"embedding": wte}, "wpe": wpe, "norm": norm}
    plain = NNXGPT2(sizes, nnx.Rngs(0))
    plain.wte.embedding[...], plain.wpe[...] = wte, wpe
    plain.norm.scale[...], plain.norm.bias[...] = norm["scale"], norm["bias"]
    for layer in range(sizes.layers):
        params[f"h{layer}"] = linen_block_params(weights, f"h{layer}", sizes.H)
        fill_nnx_block(plain.blocks[layer], weights, f"h{layer}", sizes.H)
    linen = partial(jax.jit(LinenGPT2(sizes).apply), {"params": params})
    return {"plain Linen": linen, "plain NNX": jitted(plain)}


# -- GPT-2 with a cache, in plain JAX --------------------------------------------------------------------


class PlainDecoder:
    """Greedy decoding as one writes it in JAX: weights as ``[in, out]``, a donated cache, everything compiled.

    Args:
        sizes: the network's.
        weights: in plan layout.
        capacity: positions that the cache has.
    """

    def __init__(self, sizes: Decoder, weights: Mapping[str, Array], capacity: int) -> None:
        self.sizes, self.capacity = sizes, capacity
        arrays = {path: jnp.asarray(array) for path, array in weights.items()}
        self.params = {
            "wte": arrays["wte.weight"], "wpe": arrays["wpe.weight"],
            "norm": (arrays["ln_f.weight"], arrays["ln_f.bias"]),
            "layers": [self._layer(arrays, f"h{layer}") for layer in range(sizes.layers)],
        }  # fmt: skip
        self._prefill = jax.jit(self._next, donate_argnums=1)
        self._step = jax.jit(self._next, donate_argnums=1)
        self._all = jax.jit(self._loop, static_argnums=4, donate_argnums=1)

    @staticmethod
    def _layer(arrays: Mapping[str, jax.Array], node: str) -> dict[str, Any]:
        def linear(*names: str) -> tuple[jax.Array, jax.Array]:
            kernels = [arrays[f"{node}.{name}.weight"].T for name in names]
            return jnp.concatenate(kernels, 1), jnp.concatenate([arrays[f"{node}.{n}.bias"] for n in names])

        return {
            "norm1": (arrays[f"{node}.norm1.weight"], arrays[f"{node}.norm1.bias"]),
            "norm2": (arrays[f"{node}.norm2.weight"], arrays[f"{node}.norm2.bias"]),
            "qkv": linear("attn.q_proj", "attn.k_proj", "attn.v_proj"), "out": linear("attn.o_proj"),
            "up": linear("ffn.up"), "down": linear("ffn.down"),
        }  # fmt: skip

    def cache(self) -> list[tuple[jax.Array, jax.Array]]:
        """Empty keys and values of every layer, ``[capacity, H, d]``."""
        shape = (self.capacity, self.sizes.H, self.sizes.D // self.sizes.H)
        return [(jnp.zeros(shape), jnp.zeros(shape)) for _ in range(self.sizes.layers)]

    def _next(self, params: Any, cache: Any, ids: jax.Array, offset: jax.Array) -> tuple[Any, jax.Array]:
        """Read ids ``[T]`` at ``offset``; the cache with them, and the id that comes next."""
        T = len(ids)
        x = params["wte"][ids] + lax.dynamic_slice_in_dim(params["wpe"], offset, T)  # [T, D]
        visible = jnp.arange(self.capacity) <= offset + jnp.arange(T)[:, None]  # [T, capacity]
        kept = []
        for layer, (keys, values) in zip(params["layers"], cache, strict=True):
            q, k, v = (
                part.reshape(T, self.sizes.H, -1)
                for part in jnp.split(_affine(_norm(x, layer["norm1"]), layer["qkv"]), 3, -1)
            )
            keys = lax.dynamic_update_slice_in_dim(keys, k, offset, 0)
            values = lax.dynamic_update_slice_in_dim(values, v, offset, 0)
            kept.append((keys, values))
            scores = jnp.einsum("thd,shd->hts", q, keys) * q.shape[-1] ** -0.5
            shares = jax.nn.softmax(jnp.where(visible, scores, -jnp.inf), -1)
            x = x + _affine(jnp.einsum("hts,shd->thd", shares, values).reshape(T, -1), layer["out"])
            h = jax.nn.gelu(_affine(_norm(x, layer["norm2"]), layer["up"]), approximate=True)
            x = x + _affine(h, layer["down"])
        return kept, jnp.argmax(params["wte"] @ _norm(x[-1], params["norm"]))

    def _loop(
        self, params: Any, cache: Any, ids: jax.Array, offset: jax.Array, n: int
    ) -> tuple[Any, jax.Array]:
        cache, first = self._next(params, cache, ids, offset)
        found = jnp.zeros(n, jnp.int32).at[0].set(first.astype(jnp.int32))

        def body(i: jax.Array, carry: Any) -> Any:
            cache, found = carry
            cache, new = self._next(
                params, cache, lax.dynamic_slice_in_dim(found, i - 1, 1), offset + len(ids) + i - 1
            )
            return cache, found.at[i].set(new.astype(jnp.int32))

        return lax.fori_loop(1, n, body, (cache, found))

    def by_steps(self, ids: Array, n: int) -> Array:
        """``n`` ids after a prompt ``[T]``: a compiled step in a Python loop."""
        cache, new = self._prefill(self.params, self.cache(), jnp.asarray(ids), jnp.int32(0))
        found = [new]
        for position in range(len(ids), len(ids) + n - 1):
            cache, new = self._step(self.params, cache, new[None], jnp.int32(position))
            found.append(new)
        return np.asarray(jnp.stack(found))

    def at_once(self, ids: Array, n: int) -> Array:
        """The same with the loop compiled too."""
        return np.asarray(self._all(self.params, self.cache(), jnp.asarray(ids), jnp.int32(0), n)[1])


def _norm(x: jax.Array, arrays: tuple[jax.Array, jax.Array]) -> jax.Array:
    centred = x - x.mean(-1, keepdims=True)
    variance = (centred * centred).mean(-1, keepdims=True)
    return centred * lax.rsqrt(variance + EPS) * arrays[0] + arrays[1]


def _affine(x: jax.Array, arrays: tuple[jax.Array, jax.Array]) -> jax.Array:
    return x @ arrays[0] + arrays[1]


# -- the limit -----------------------------------------------------------------------------------------

WIDE = {"xla_cpu_prefer_vector_width": 512}


def limit(
    products: Iterable[Product],
    attentions: Iterable[Attention],
    dtype: str = "float32",
    *,
    backward: bool = False,
) -> Callable[[], Any]:
    """All products and all attention of a workload in one compiled function, each in the fastest form at hand.

    Every product has a weight of its own. For each size the form is chosen once.

    Args:
        products, attentions: the sizes.
        dtype: of the operands.
        backward: the two further products of each, and the derivative of attention, too.
    """
    number = jnp.dtype(dtype)
    products = list(products)
    if backward:
        products += [Product(rows, outputs, inputs) for rows, inputs, outputs in products]
        products += [
            Product(outputs, rows, inputs) for rows, inputs, outputs in products[: len(products) // 2]
        ]
    keys = map(jax.random.key, range(10_000))
    chosen: dict[Any, int] = {}
    parts: list[tuple[Function, Any]] = []

    def draw(*shape: int) -> jax.Array:
        return jax.random.normal(next(keys), shape, jnp.float32).astype(number)

    for piece in (*products, *attentions):
        candidates = _product(piece, draw) if isinstance(piece, Product) else _attention(piece, draw)
        if backward and isinstance(piece, Attention):
            candidates = [(partial(_derived, function), given) for function, given in candidates]
        key, judged = piece, candidates
        if isinstance(piece, Product) and piece.streams and not backward:
            key = piece.streaming
            judged = candidates if key in chosen else _product(key, draw)
        if key not in chosen:
            chosen[key] = _fastest(judged)
        parts.append(candidates[chosen[key]])
    functions = [function for function, _ in parts]
    operands = [given for _, given in parts]

    def every(operands: Any) -> Any:
        return [function(given) for function, given in zip(functions, operands, strict=True)]

    best = min((None, WIDE), key=lambda options: _seconds(jax.jit(every, compiler_options=options), operands))
    compiled = jax.jit(every, compiler_options=best)
    return lambda: jax.block_until_ready(compiled(operands))


def _fastest(candidates: list[tuple[Function, Any]]) -> int:
    seconds = [_seconds(jax.jit(function), given) for function, given in candidates]
    return seconds.index(min(seconds))


def _seconds(function: Function, given: Any) -> float:
    """The shortest of a few calls; infinite where the compiler refuses."""
    shortest = math.inf
    try:
        jax.block_until_ready(function(given))
    except jax.errors.JaxRuntimeError:
        return shortest
    for _ in range(3):
        begun = time.perf_counter()
        jax.block_until_ready(function(given))
        shortest = min(shortest, time.perf_counter() - begun)
    return shortest


def _product(piece: Product, draw: Callable[..., jax.Array]) -> list[tuple[Function, Any]]:
    """``[rows, inputs]`` by ``[outputs, inputs]`` and by ``[inputs, outputs]``, summed in float32."""
    rows, inputs, outputs = piece
    x = draw(rows, inputs)

    def multiply(axis: int, operands: tuple[jax.Array, jax.Array]) -> jax.Array:
        return lax.dot_general(*operands, (((1,), (axis,)), ((), ())), preferred_element_type=jnp.float32)

    return [
        (partial(multiply, 1), (x, draw(outputs, inputs))),
        (partial(multiply, 0), (x, draw(inputs, outputs))),
    ]


def _derived(function: Function, given: tuple[jax.Array, ...]) -> Any:
    """A function's value and its derivatives."""
    value, pull = jax.vjp(function, given)
    return value, pull(jnp.ones_like(value))


def _attention(piece: Attention, draw: Callable[..., jax.Array]) -> list[tuple[Function, Any]]:
    """With keys as ``[B * H, d, T]``, and in the usual form with keys as ``[B * H, T, d]``."""
    B, H, T, d, causal = piece
    q, k, v = draw(B * H, T, d), draw(B * H, d, T), draw(B * H, T, d)
    visible = jnp.tril(jnp.ones((T, T), bool)) if causal else None

    def attend(equation: str, operands: tuple[jax.Array, ...]) -> jax.Array:
        q, k, v = operands
        scores = jnp.einsum(equation, q, k, preferred_element_type=jnp.float32) * d**-0.5
        if visible is not None:
            scores = jnp.where(visible, scores, -jnp.inf)
        e = jnp.exp(scores - scores.max(-1, keepdims=True))
        summed = jnp.einsum("nts,nsd->ntd", e.astype(v.dtype), v, preferred_element_type=jnp.float32)
        return summed / e.sum(-1, keepdims=True)

    usual = (q, jnp.swapaxes(k, 1, 2), v)
    return [(partial(attend, "ntd,nds->nts"), (q, k, v)), (partial(attend, "ntd,nsd->nts"), usual)]
