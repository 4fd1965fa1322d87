"""The forward pass of a ViT-B block (B=8, T=197, D=768, 12 heads) in every framework and dtype.

python benchmarks/vit_block.py [--quick]
"""

from __future__ import annotations

from typing import Any

from harness import LIMIT, Goal, Measured, Options, main, workload
from networks import NARROW, truth, vit_block, weights_of

PREPARED, PLAIN = "isomorph prepared", "isomorph plain"


@workload(
    "ViT-B block, float32, PyTorch",
    main=PREPARED,
    goals=[
        Goal("at least 2.0 times the fastest PyTorch peer", PREPARED, ("peers",), at_least=2.0),
        Goal("at least 0.90 of the measured limit", PREPARED, (LIMIT,), at_least=0.90),
    ],
)
def torch_float32(options: Options) -> Measured:
    import torch

    from isomorph import prepare
    from torch_peers import block_peers, compiled, inferring, limit, ours

    measured, block = Measured(), vit_block(options)
    plan = block.plan
    weights = weights_of(plan)
    x, right = torch.from_numpy(block.x), truth(plan, weights, block.x)
    model = ours(plan, weights)
    entrants: dict[str, Any] = {
        PREPARED: prepare(model),
        PLAIN: model,
        **block_peers(block, weights, measured),
    }
    if not (options.tiny or options.quick):
        entrants |= compiled("torch.compile of timm", entrants.get("timm", model), (x,), measured)
        entrants |= compiled("torch.compile of torch layer", entrants["torch layer"], (x,), measured)
    calls = {name: inferring(function, x) for name, function in entrants.items()}
    for name, call in calls.items():
        measured.check(f"{name}, float64 reference", right.difference(call()), right.bound)
    calls[LIMIT] = limit(block.products, block.attentions)
    measured.time(calls, options.count(25, 4))
    return measured


NARROWED = "isomorph prepared, bfloat16"


@workload(
    "ViT-B block, bfloat16, PyTorch",
    main=NARROWED,
    goals=[
        Goal("at least 1.9 times our float32 engine", NARROWED, (PREPARED,), at_least=1.9),
        Goal("at least 1.2 times the fastest eager bfloat16", NARROWED, ("timm", "torch layer", "HNDL"), at_least=1.2),
    ],
)  # fmt: skip
def torch_bfloat16(options: Options) -> Measured:
    import torch

    from isomorph import prepare
    from torch_peers import block_peers, compiled, inferring, limit, ours

    measured, block = Measured(), vit_block(options)
    plan = block.plan
    weights = weights_of(plan)
    x, right = torch.from_numpy(block.x), truth(plan, weights, block.x)
    narrow = x.bfloat16()
    model = ours(plan, weights)
    calls = {
        NARROWED: inferring(prepare(model, "bfloat16"), x),
        PREPARED: inferring(prepare(model), x),
        "isomorph plain, .bfloat16()": inferring(ours(plan, weights).bfloat16(), narrow),
    }
    eager = {name: peer.bfloat16() for name, peer in block_peers(block, weights, measured).items()}
    calls |= {name: inferring(peer, narrow) for name, peer in eager.items()}
    if not (options.tiny or options.quick) and "timm" in eager:
        for name, function in compiled("torch.compile of timm", eager["timm"], (narrow,), measured).items():
            calls[name] = inferring(function, narrow)
    for name, call in calls.items():
        measured.check(f"{name}, relative, float64 reference", right.relative(call().float()), NARROW)
    calls[LIMIT] = limit(block.products, block.attentions, "bfloat16")
    measured.time(calls, options.count(25, 4))
    return measured


NNX, LINEN = "isomorph prepared, NNX", "isomorph prepared, Linen"
PLAIN_LINEN = "plain Linen"


@workload(
    "ViT-B block, float32, JAX",
    main=NNX,
    processes=5,
    goals=[
        goal
        for name in (NNX, LINEN)
        for goal in (
            Goal(f"{name}: at least 1.4 times plain jitted Linen", name, (PLAIN_LINEN,), at_least=1.4),
            Goal(f"{name}: in no process under 1.1 times", name, (PLAIN_LINEN,), at_least=1.1, each=True),
        )
    ],
)
def jax_float32(options: Options) -> Measured:
    from flax_peers import blocked, jitted_blocks, limit, prepared_blocks

    measured, block = Measured(), vit_block(options)
    plan = block.plan
    weights = weights_of(plan)
    right = truth(plan, weights, block.x)
    entrants = prepared_blocks(plan, weights) | jitted_blocks(block, plan, weights)
    if options.quick:
        entrants = {name: f for name, f in entrants.items() if not name.startswith("isomorph plain")}
    calls = blocked(entrants, block.x)
    for name, call in calls.items():
        measured.check(f"{name}, float64 reference", right.difference(call()), right.bound)
    calls[LIMIT] = limit(block.products, block.attentions)
    measured.time(calls, options.count(15, 4))
    return measured


@workload(
    "ViT-B block, bfloat16, JAX",
    main=f"{NNX}, bfloat16",
    processes=5,
    goals=[
        Goal(f"{name}: at least 1.5 times our float32 engine", f"{name}, bfloat16", (name,), at_least=1.5)
        for name in (NNX, LINEN)
    ],
)
def jax_bfloat16(options: Options) -> Measured:
    from flax_peers import blocked, jitted_blocks, limit, prepared_blocks

    measured, block = Measured(), vit_block(options)
    plan = block.plan
    weights = weights_of(plan)
    right = truth(plan, weights, block.x)
    entrants = {f"{name}, bfloat16": f for name, f in prepared_blocks(plan, weights, "bfloat16").items()}
    entrants |= prepared_blocks(plan, weights)
    narrow = jitted_blocks(block, plan, weights, "bfloat16")
    entrants |= {f"{name}, bfloat16": f for name, f in narrow.items() if not name.startswith("isomorph")}
    if options.quick:
        entrants = {name: f for name, f in entrants.items() if not name.startswith(LINEN)}
    calls = blocked(entrants, block.x)
    for name, call in calls.items():
        measured.check(f"{name}, relative, float64 reference", right.relative(call()), NARROW)
    calls[LIMIT] = limit(block.products, block.attentions, "bfloat16")
    measured.time(calls, options.count(15, 4))
    return measured


if __name__ == "__main__":
    main(__doc__)
