"""A jitted ViT-B block in both Flax backends beside a plain Linen block written by hand.

    python benchmarks/flax_block.py [--processes 5] [--rounds 9]

`transformer_block(12)` at B=8, T=197, D=768, float32: forward, and forward with gradients. The peer is what
one writes in Linen: `nn.LayerNorm`, `nn.MultiHeadDotProductAttention`, two `nn.Dense` and exact GELU. All
three run by turns in one process; where the compiler's buffers fall changes from process to process, so
several fresh ones are started and the median over them is printed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

B, T, D, HEADS = 8, 197, 768, 12


def functions() -> dict[str, dict[str, Callable[[], Any]]]:
    """By kind of call and by contender: a compiled call on arrays that are there already."""
    import jax
    from flax import linen as nn
    from flax import nnx

    import isomorph as iso

    class PlainBlock(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            y = nn.LayerNorm(epsilon=1e-5)(x)
            x = x + nn.MultiHeadDotProductAttention(num_heads=HEADS, qkv_features=D)(y)
            z = nn.LayerNorm(epsilon=1e-5)(x)
            h = nn.Dense(4 * D)(z)
            h = nn.gelu(h, approximate=False)
            return x + nn.Dense(D)(h)

    x = jax.random.normal(jax.random.key(0), (B, T, D))
    plan = iso.resolve(f"transformer_block({HEADS})", input=("B", "T", D))
    plain, linen = PlainBlock(), iso.linen.build(plan)
    graph, state = nnx.split(iso.nnx.build(plan))
    contenders: dict[str, tuple[Callable[..., Any], Any]] = {
        "plain Linen": (plain.apply, plain.init(jax.random.key(1), x)),
        "isomorph Linen": (linen.apply, iso.linen.variables(plan)),
        "isomorph NNX": (lambda state, x: nnx.merge(graph, state)(x), state),
    }
    found: dict[str, dict[str, Callable[[], Any]]] = {"forward": {}, "forward and backward": {}}
    for name, (apply, parameters) in contenders.items():
        forward = jax.jit(apply)

        def loss(parameters: Any, x: jax.Array, apply: Callable[..., Any] = apply) -> jax.Array:
            return (apply(parameters, x) ** 2).sum()

        backward = jax.jit(jax.grad(loss, argnums=(0, 1)))
        found["forward"][name] = lambda f=forward, p=parameters: jax.block_until_ready(f(p, x))
        found["forward and backward"][name] = lambda f=backward, p=parameters: jax.block_until_ready(f(p, x))
    return found


def measure(rounds: int) -> dict[str, dict[str, float]]:
    """Median milliseconds by kind and contender, in this process."""
    results = {}
    for kind, calls in functions().items():
        times: dict[str, list[float]] = {name: [] for name in calls}
        for call in calls.values():
            call()
        for _ in range(rounds):
            for name, call in calls.items():
                begun = time.perf_counter()
                call()
                times[name].append(1e3 * (time.perf_counter() - begun))
        results[kind] = {name: statistics.median(found) for name, found in times.items()}
    return results


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--processes", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(measure(options.rounds)))
        return
    command = [sys.executable, __file__, "--worker", "--rounds", str(options.rounds)]
    runs = []
    for _ in range(options.processes):
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        runs.append(json.loads(done.stdout.splitlines()[-1]))
    for kind, contenders in runs[0].items():
        print(f"{kind}, median over {len(runs)} processes")
        plain = [run[kind]["plain Linen"] for run in runs]
        for name in contenders:
            own = [run[kind][name] for run in runs]
            ratio = statistics.median(p / o for p, o in zip(plain, own, strict=True))
            print(f"  {name:16}{statistics.median(own):8.1f} ms   {ratio:5.2f} times as fast as plain Linen")


if __name__ == "__main__":
    main()
