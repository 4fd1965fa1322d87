"""A block so small (B=1, T=8, D=32, 4 heads) that what surrounds its arithmetic decides.

python benchmarks/small_block.py [--quick]
"""

from __future__ import annotations

from typing import Any

from harness import LIMIT, Goal, Measured, Options, main, workload
from networks import small_block, truth, weights_of

PREPARED, PLAIN = "isomorph prepared", "isomorph plain"


@workload(
    "small block, float32, PyTorch",
    main=PREPARED,
    goals=[
        Goal(
            "at least 2.1 times the fastest PyTorch peer, run-time checks included",
            PREPARED,
            ("peers",),
            at_least=2.1,
        )
    ],
)
def torch_small(options: Options) -> Measured:
    import torch

    from isomorph import prepare
    from torch_peers import block_peers, inferring, limit, ours

    measured, block = Measured(), small_block(options)
    plan = block.plan
    weights = weights_of(plan)
    x, right = torch.from_numpy(block.x), truth(plan, weights, block.x)
    model = ours(plan, weights)
    entrants: dict[str, Any] = {
        PREPARED: prepare(model),
        PLAIN: model,
        **block_peers(block, weights, measured),
    }
    for name, function in entrants.items():
        measured.check(f"{name}, float64 reference", right.difference(inferring(function, x)()), right.bound)
    calls = {name: (lambda function=function: function(x)) for name, function in entrants.items()}
    calls[LIMIT] = limit(block.products, block.attentions)
    with torch.inference_mode():  # entered once, so that its cost is in no call
        measured.time(calls, options.count(200, 50))
    return measured


NNX, LINEN = "isomorph prepared, NNX", "isomorph prepared, Linen"


@workload(
    "small block, float32, JAX",
    main=NNX,
    processes=5,
    goals=[
        Goal(f"{name}: at least 1.4 times plain jitted Linen", name, ("plain Linen",), at_least=1.4)
        for name in (NNX, LINEN)
    ],
)
def jax_small(options: Options) -> Measured:
    from flax_peers import blocked, jitted_blocks, limit, prepared_blocks

    measured, block = Measured(), small_block(options)
    plan = block.plan
    weights = weights_of(plan)
    right = truth(plan, weights, block.x)
    calls = blocked(prepared_blocks(plan, weights) | jitted_blocks(block, plan, weights), block.x)
    for name, call in calls.items():
        measured.check(f"{name}, float64 reference", right.difference(call()), right.bound)
    calls[LIMIT] = limit(block.products, block.attentions)
    measured.time(calls, options.count(200, 50))
    return measured


if __name__ == "__main__":
    main(__doc__)
