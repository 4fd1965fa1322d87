"""The networks of the benchmarks: definitions, weights, inputs, and the float64 answers; no framework."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

import isomorph as iso
from harness import Options
from isomorph.agreement.bounds import numeric_bound

Array = np.ndarray[Any, Any]
EPS = 1e-5


class Product(NamedTuple):
    """``[rows, inputs] @ [inputs, outputs]``."""

    rows: int
    inputs: int
    outputs: int

    @property
    def streams(self) -> bool:
        """Whether it waits for its weight to come from memory: it has few rows, and the weight is large."""
        return self.rows <= 8 and self.inputs * self.outputs >= 1 << 18

    @property
    def streaming(self) -> Product:
        """One of as many rows whose weight is too large for many a cache, 64 MB of bfloat16."""
        return Product(self.rows, 1 << 10, 1 << 15)


class Attention(NamedTuple):
    """Of ``[B, H, T, d]``."""

    B: int
    H: int
    T: int
    d: int
    causal: bool = False


class Block(NamedTuple):
    """A block of a vision transformer and its input's sizes."""

    B: int
    T: int
    D: int
    H: int

    @property
    def plan(self) -> iso.Plan:
        return iso.resolve(f"transformer_block({self.H}, eps={EPS})", input=("B", "T", self.D))

    @property
    def x(self) -> Array:
        return np.random.default_rng(1).standard_normal((self.B, self.T, self.D)).astype(np.float32)

    @property
    def products(self) -> list[Product]:
        """Query, key and value at once, output projection, and the two of the feed-forward part."""
        rows, D = self.B * self.T, self.D
        sizes = ((D, 3 * D), (D, D), (D, 4 * D), (4 * D, D))
        return [Product(rows, i, o) for i, o in sizes]

    @property
    def attentions(self) -> list[Attention]:
        return [Attention(self.B, self.H, self.T, self.D // self.H)]


class Decoder(NamedTuple):
    """A GPT-2 and its input's sizes."""

    B: int
    T: int
    layers: int
    D: int
    H: int
    vocabulary: int
    positions: int

    @property
    def plan(self) -> iso.Plan:
        """As in ``examples/gpt2.net``."""
        return iso.resolve(f"""
            ids = input("B", "T", dtype="int64")
            embedding({self.vocabulary}, {self.D}, name="wte", init={{"weight": normal(std=0.02)}})
            pos_embed({self.positions}, name="wpe")
            for _ in range({self.layers}):
                transformer_block({self.H}, activation="gelu_tanh", causal=True, eps={EPS}, name="h")
            layer_norm(eps={EPS}, name="ln_f")
            linear({self.vocabulary}, bias=False, name="lm_head", tie={{"weight": "wte.weight"}})
            output("B", "T", {self.vocabulary})
        """)

    @property
    def ids(self) -> Array:
        return np.random.default_rng(1).integers(0, self.vocabulary, (self.B, self.T))

    @property
    def products(self) -> list[Product]:
        rows = self.B * self.T
        block = Block(self.B, self.T, self.D, self.H)
        return [*block.products * self.layers, Product(rows, self.D, self.vocabulary)]

    @property
    def attentions(self) -> list[Attention]:
        return [Attention(self.B, self.H, self.T, self.D // self.H, causal=True)] * self.layers


def vit_block(options: Options) -> Block:
    return Block(2, 5, 32, 4) if options.tiny else Block(8, 197, 768, 12)


def small_block(options: Options) -> Block:
    return Block(1, 8, 32, 4)


def gpt2(options: Options, B: int = 4, T: int = 512) -> Decoder:
    """GPT-2 small; in the quick run the batch is 1 and the text is short."""
    if options.quick:
        B, T = 1, min(T, 128)
    if options.tiny:
        return Decoder(min(B, 2), min(T, 8), 2, 32, 4, 97, 128)
    return Decoder(B, T, 12, 768, 12, 50257, 1024)


def weights_of(plan: iso.Plan) -> dict[str, Array]:
    """Initial weights, with gains and biases moved from their special values so that losing one shows."""
    rng = np.random.default_rng(0)
    weights = {}
    for path, array in iso.initial_weights(plan, seed=0).items():
        moved = array.ndim == 1 and path not in plan.ties
        noise = 0.1 * rng.standard_normal(array.shape) if moved else 0.0
        weights[path] = (array + noise).astype(np.float32)
    return weights


class Truth(NamedTuple):
    """The reference's float64 output, for a part of the input that comes first, and float32's bound."""

    output: Array
    bound: float

    def _error(self, result: Any) -> Array:
        part = result[tuple(slice(size) for size in self.output.shape)]
        return np.asarray(part, np.float64) - self.output

    def difference(self, result: Any) -> float:
        """The largest one; NaN where something is not a number."""
        return float(np.abs(self._error(result)).max())

    def relative(self, result: Any) -> float:
        """The difference's norm over the output's."""
        return float(np.linalg.norm(self._error(result)) / np.linalg.norm(self.output))


NARROW = 0.03
"""What the norm of a bfloat16 or int8 result's error may be, in units of the result's norm."""


def truth(plan: iso.Plan, weights: dict[str, Array], x: Array) -> Truth:
    """The reference's answer; a causal network's answer at the first positions needs no more of its input."""
    reference = numeric_bound(plan, weights, (x,))
    (output,) = reference.outputs.values()
    return Truth(output, reference.total)
