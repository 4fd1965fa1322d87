"""What PyTorch's users run instead: timm, HNDL, torch's own layer, transformers, ``torch.compile``; and the limit."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

import isomorph as iso
import peers
from harness import Measured
from isomorph.backends.torch import eight_bits, kernels
from networks import EPS, Attention, Block, Decoder, Product

Tensor = torch.Tensor
Array = np.ndarray[Any, Any]

_NAMES = {  # timm's and torch's, ours
    "norm1": "norm1", "norm2": "norm2", "attn.proj": "attn.o_proj", "mlp.fc1": "ffn.up", "mlp.fc2": "ffn.down",
    "self_attn.out_proj": "attn.o_proj", "linear1": "ffn.up", "linear2": "ffn.down",
}  # fmt: skip


def ours(plan: iso.Plan, weights: Mapping[str, Array]) -> nn.Module:
    """The plain model, in evaluation mode."""
    return iso.torch.build(plan, weights).eval()


def block_peers(
    block: Block, weights: Mapping[str, Array], measured: Measured, node: str = "n0"
) -> dict[str, nn.Module]:
    """The same block in every library that is there, with the weights of our node, in evaluation mode."""
    held = {
        path.removeprefix(f"{node}."): torch.from_numpy(array)
        for path, array in weights.items()
        if path.startswith(f"{node}.")
    }
    found: dict[str, nn.Module] = {}
    for name, build in (("timm", _timm), ("torch layer", _layer), ("HNDL", _hndl)):
        try:
            found[name] = build(block, held).eval()
        except ImportError as error:
            measured.left_out(name, error)
    return found


def _timm(block: Block, held: Mapping[str, Tensor]) -> nn.Module:
    with peers.stubbed_torchvision():
        from timm.models.vision_transformer import Block as TimmBlock

        model = TimmBlock(block.D, block.H, qkv_bias=True, norm_layer=partial(nn.LayerNorm, eps=EPS))
    return _loaded(model, held)


def _layer(block: Block, held: Mapping[str, Tensor]) -> nn.Module:
    model = nn.TransformerEncoderLayer(
        block.D, block.H, 4 * block.D, dropout=0.0, activation="gelu", layer_norm_eps=EPS, batch_first=True,
        norm_first=True,
    )  # fmt: skip
    return _loaded(model, held)


def _loaded(model: nn.Module, held: Mapping[str, Tensor]) -> nn.Module:
    qkv = {end: torch.cat([held[f"attn.{p}_proj.{end}"] for p in "qkv"]) for end in ("weight", "bias")}
    state = model.state_dict()
    for key in state:
        module, _, end = key.rpartition(".")
        state[key] = (
            held[f"{_NAMES[module]}.{end}"] if module in _NAMES else qkv[end.removeprefix("in_proj_")]
        )
    model.load_state_dict(state)
    return model


def _hndl(block: Block, held: Mapping[str, Tensor]) -> nn.Module:
    import hndl.torch

    model = hndl.torch.network(
        f"transformer_block({block.H})",
        input_shape=("B", block.T, block.D),
        output_shape=("B", block.T, block.D),
        device="cpu",
    )
    keys = [key for key in model.state_dict() if not key.startswith("_")]
    model.load_state_dict(
        {key: held[".".join(key.split(".")[-2 - ("_proj" in key or "ffn" in key) :])] for key in keys}
    )
    return model


def transformers_gpt2(plan: iso.Plan, weights: Mapping[str, Array]) -> nn.Module:
    """``GPT2LMHeadModel`` from the checkpoint that our weights are exported to."""
    import transformers

    with tempfile.TemporaryDirectory() as directory:
        iso.export_checkpoint(directory, plan, weights)
        return transformers.GPT2LMHeadModel.from_pretrained(directory).eval()


class PlainGPT2(nn.Module):
    """GPT-2 as one writes it in plain PyTorch: one product for query, key and value, and fused attention."""

    def __init__(self, sizes: Decoder, weights: Mapping[str, Array]) -> None:
        super().__init__()
        D, self.H = sizes.D, sizes.H
        self.wte, self.wpe = nn.Embedding(sizes.vocabulary, D), nn.Embedding(sizes.positions, D)
        self.blocks = nn.ModuleList(
            nn.ModuleDict({
                "norm1": nn.LayerNorm(D, EPS), "qkv": nn.Linear(D, 3 * D), "o_proj": nn.Linear(D, D),
                "norm2": nn.LayerNorm(D, EPS), "up": nn.Linear(D, 4 * D), "down": nn.Linear(4 * D, D),
            })
            for _ in range(sizes.layers)
        )  # fmt: skip
        self.norm = nn.LayerNorm(D, EPS)
        self.eval().load_state_dict(self._state(weights))

    def _state(self, weights: Mapping[str, Array]) -> dict[str, Tensor]:
        held = {path: torch.from_numpy(array) for path, array in weights.items()}
        state = {}
        for key in self.state_dict():
            if key.startswith("blocks."):
                _, layer, part, end = key.split(".")
                at = {"up": "ffn.", "down": "ffn.", "o_proj": "attn."}.get(part, "")
                names = [f"attn.{p}_proj" for p in "qkv"] if part == "qkv" else [at + part]
                state[key] = torch.cat([held[f"h{layer}.{name}.{end}"] for name in names])
            else:
                state[key] = held[key.replace("norm.", "ln_f.")]
        return state

    def forward(self, ids: Tensor) -> Tensor:
        B, T = ids.shape
        x = self.wte(ids) + self.wpe.weight[:T]  # [B, T, D]
        for part in self.blocks:
            q, k, v = (
                p.view(B, T, self.H, -1).transpose(1, 2)  # [B, H, T, d]
                for p in part["qkv"](part["norm1"](x)).chunk(3, -1)
            )
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + part["o_proj"](y.transpose(1, 2).reshape(B, T, -1))
            x = x + part["down"](functional.gelu(part["up"](part["norm2"](x)), approximate="tanh"))
        return functional.linear(self.norm(x), self.wte.weight)  # [B, T, V]


def compiled(
    name: str, model: nn.Module, inputs: tuple[Any, ...], measured: Measured
) -> dict[str, Callable[..., Any]]:
    """``torch.compile`` of a model by the name of the entrant, or nothing where it does not work."""
    function: Any = torch.compile(model)
    try:
        with torch.inference_mode():
            function(*inputs)
    except Exception as error:  # no compiler here, or a model that it cannot take
        measured.left_out(name, error)
        return {}
    return {name: function}


def inferring(function: Callable[..., Any], *inputs: Any) -> Callable[[], Any]:
    """A call without gradients."""

    def call() -> Any:
        with torch.inference_mode():
            return function(*inputs)

    return call


# -- the limit -----------------------------------------------------------------------------------------

Piece = Callable[[], Any]
Makers = list[Callable[[], Piece]]
"""Ways to a piece of work; making one may pack a weight."""
CHOOSING_SECONDS = 1.0
"""After so long the choice among kernels is made."""


def synchronize() -> None:
    """Wait for what was asked of a GPU, if there is one in use."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def fastest(makers: Makers, tries: int = 5) -> int:
    """Which of them makes the piece with the shortest call, by turns; those that raise are passed over."""
    best: dict[int, tuple[float, Piece]] = {}
    for index, make in enumerate(makers):
        try:
            piece = make()
            piece()
        except (RuntimeError, NotImplementedError, AttributeError):
            continue
        best[index] = math.inf, piece
    started = time.perf_counter()
    for turn in range(tries):
        if turn and time.perf_counter() - started > CHOOSING_SECONDS:
            break
        for index, (shortest, piece) in best.items():
            begun = time.perf_counter()
            piece()
            synchronize()
            best[index] = min(shortest, time.perf_counter() - begun), piece
    return min(best, key=lambda index: best[index][0])


def limit(
    products: Iterable[Product],
    attentions: Iterable[Attention],
    dtype: str = "float32",
    *,
    backward: bool = False,
    device: str = "cpu",
) -> Callable[[], Any]:
    """All products and all attention of a workload, one after another, each by the best kernel at hand.

    Every product has a weight of its own, as in the network. For each size the kernel is chosen once.

    Args:
        products, attentions: the sizes.
        dtype: of the operands; ``int8`` for weights of eight bits and bfloat16 elsewhere.
        backward: the two further products of each, and the derivative of attention, too.
        device: where.
    """
    number = torch.bfloat16 if dtype == "int8" else getattr(torch, dtype)
    chosen: dict[Any, int] = {}
    pieces: list[Piece] = []

    def choose(key: Any, makers: Makers, judged: Callable[[], Makers] | None = None) -> None:
        if key not in chosen:
            chosen[key] = fastest(makers if judged is None else judged())
        pieces.append(makers[chosen[key]]())

    with torch.no_grad(), torch.device(device):
        for product in products:
            if dtype == "int8":
                choose(
                    product.streaming, _eight_bits(product), lambda one=product: _eight_bits(one.streaming)
                )
                continue
            x, weight = _operands(product, number)
            if product.streams and not backward:
                large = product.streaming
                choose(large, _product(x, weight), lambda large=large: _product(*_operands(large, number)))
            else:
                choose(product, _product(x, weight))
            if backward:
                gradient = torch.randn(product.rows, product.outputs).to(number)
                choose((product, "by x"), _product(gradient, weight.t().contiguous()))
                choose((product, "by weight"), _of_weight(gradient, x, weight))
    with torch.device(device):
        for sizes in attentions:
            choose(sizes, _attention(sizes, number, backward))

    def call() -> None:
        for piece in pieces:
            piece()

    return inferring(call) if not backward else call


def _operands(product: Product, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    rows, inputs, outputs = product
    row = torch.randn(inputs).to(dtype)  # one for all: drawing numbers takes longer than measuring
    return row.repeat(rows, 1), row.repeat(outputs, 1)


def _product(x: Tensor, w: Tensor) -> Makers:
    """Kernels for ``x @ w.T``: ``[rows, inputs], [outputs, inputs]``."""

    def transposed() -> Piece:
        turned = w.t().contiguous()
        return lambda: torch.mm(x, turned)

    def packed() -> Piece:
        operators = kernels.onednn() if x.device.type == "cpu" else None
        if operators is None:
            raise NotImplementedError
        weight, linear = operators.pack(w, len(x)), operators.linear
        kernels.keep_at_hand(weight)
        return lambda: linear(x, weight, None, "none", [], "")

    def repeated() -> Piece:
        if len(x) > 1 or x.dtype != torch.bfloat16:
            raise NotImplementedError
        return _product(x.repeat(6, 1), w)[2]()

    return [lambda: lambda: functional.linear(x, w), transposed, packed, repeated]


def _eight_bits(product: Product) -> Makers:
    """Kernels for a weight of eight bits: of half precision as it is, and of two bytes for each number."""
    rows, inputs, outputs = product
    w = torch.randint(-127, 128, (inputs,), dtype=torch.int8).repeat(outputs, 1)
    step = torch.rand(outputs).to(torch.bfloat16)

    def as_it_is() -> Piece:
        x = torch.randn(rows, inputs).to(torch.bfloat16)
        return lambda: torch.ops.aten._weight_int8pack_mm(x, w, step)

    def integers() -> Piece:
        weight = eight_bits.packed(w, step)
        kernels.keep_at_hand(weight.packed)
        x = torch.randint(0, 256, (max(4, 2 * rows), inputs), dtype=torch.uint8)
        told = (None, 1.0, 0, torch.float32, "none", [], "")
        return lambda: torch.ops.onednn.qlinear_pointwise(x, 1.0, 128, *weight, *told)

    return [as_it_is, integers]


def _of_weight(gradient: Tensor, x: Tensor, w: Tensor) -> Makers:
    """Kernels for ``gradient.T @ x``: ``[rows, outputs], [rows, inputs]``."""

    def by_onednn() -> Any:
        return torch.ops.aten.mkldnn_linear_backward_weights(gradient.to_mkldnn(), x.to_mkldnn(), w, True)

    return [lambda: lambda: torch.mm(gradient.t(), x), lambda: by_onednn]


def _attention(sizes: Attention, dtype: torch.dtype, backward: bool) -> Makers:
    B, H, T, d, causal = sizes
    q, k, v = (torch.randn(B, H, T, d).to(dtype).requires_grad_(backward) for _ in range(3))
    cotangent = torch.randn(B, H, T, d).to(dtype)

    def fused() -> Any:
        return functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

    def by_products() -> Any:
        return ((q @ k.transpose(-1, -2)) * d**-0.5).softmax(-1) @ v

    def made(function: Piece) -> Callable[[], Piece]:
        if not backward:
            return lambda: function
        return lambda: lambda: torch.autograd.grad(function(), (q, k, v), cotangent)

    return [made(fused)] if causal else [made(fused), made(by_products)]
