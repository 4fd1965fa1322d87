"""A ViT-B block in PyTorch beside timm, HNDL and torch's own layer: forward and training step, by turns.

    python benchmarks/torch_block.py [--rounds 15] [--threads 2]

All run the same weights on the same input (B=8, T=197, D=768, 12 heads, float32), and their outputs are
compared before anything is timed. The peers live in an environment of their own, set up on first use.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import peers

peers.enter()
peers.stub_torchvision()

import hndl.torch  # noqa: E402
import torch  # noqa: E402
from timm.models.vision_transformer import Block  # noqa: E402
from turns import by_turns, report  # noqa: E402

import isomorph as iso  # noqa: E402
import isomorph.torch  # noqa: E402

B, T, D, HEADS, EPS = 8, 197, 768, 12, 1e-5


def models() -> dict[str, torch.nn.Module]:
    """The same block four times, with isomorph's weights."""
    plan = iso.resolve(f"transformer_block({HEADS}, eps={EPS})", input=("B", T, D))
    ours = isomorph.torch.build(plan)
    held = {path.removeprefix("n0."): value for path, value in ours.state_dict().items()}
    qkv = {end: torch.cat([held[f"attn.{p}_proj.{end}"] for p in "qkv"]) for end in ("weight", "bias")}
    timm = Block(D, HEADS, qkv_bias=True, norm_layer=partial(torch.nn.LayerNorm, eps=EPS))
    layer = torch.nn.TransformerEncoderLayer(
        D, HEADS, 4 * D, dropout=0.0, activation="gelu", layer_norm_eps=EPS, batch_first=True, norm_first=True
    )
    names = {  # timm's, torch's, ours
        "norm1": "norm1", "norm2": "norm2", "attn.proj": "attn.o_proj", "mlp.fc1": "ffn.up", "mlp.fc2": "ffn.down",
        "self_attn.out_proj": "attn.o_proj", "linear1": "ffn.up", "linear2": "ffn.down",
    }  # fmt: skip
    for model in (timm, layer):
        state = model.state_dict()
        for key in state:
            module, _, end = key.rpartition(".")
            if module in names:
                state[key] = held[f"{names[module]}.{end}"]
            else:
                state[key] = qkv["bias" if "bias" in end else "weight"]
        model.load_state_dict(state)
    peer = hndl.torch.network(
        f"transformer_block({HEADS})", input_shape=("B", T, D), output_shape=("B", T, D), device="cpu"
    )
    keys = [key for key in peer.state_dict() if not key.startswith("_")]
    peer.load_state_dict(
        {key: held[".".join(key.split(".")[-2 - ("_proj" in key or "ffn" in key) :])] for key in keys}
    )
    return {"isomorph": ours, "timm": timm, "HNDL": peer, "torch layer": layer}


def training_step(model: torch.nn.Module, x: torch.Tensor) -> Callable[[], Any]:
    """Forward, backward and a step of AdamW."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        model(x).square().mean().backward()
        optimizer.step()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    x = torch.randn(B, T, D)
    entrants = models()
    with torch.inference_mode():
        expected = entrants["isomorph"].eval()(x)
        for name, model in entrants.items():
            difference = (model.eval()(x) - expected).abs().max().item()
            assert difference < 1e-4, f"{name} differs by {difference}"

        def forward(model: torch.nn.Module) -> Callable[[], Any]:
            return lambda: model(x)

        times = by_turns({name: forward(model) for name, model in entrants.items()}, arguments.rounds)
    report(f"forward, B={B}, T={T}, D={D}, float32, {arguments.threads} threads", times, "isomorph")
    steps = {name: training_step(model.train(), x) for name, model in entrants.items()}
    report("training step (AdamW)", by_turns(steps, arguments.rounds), "isomorph")


if __name__ == "__main__":
    main()
