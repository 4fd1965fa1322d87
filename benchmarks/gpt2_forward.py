"""The forward pass of GPT-2 small, logits at every position, B=4, T=512, float32, in both frameworks.

python benchmarks/gpt2_forward.py [--quick]
"""

from __future__ import annotations

from typing import Any

from harness import LIMIT, Goal, Measured, Options, main, workload
from networks import Array, gpt2, truth, weights_of

PREPARED, PLAIN = "isomorph prepared", "isomorph plain"


def reference_part(ids: Array, options: Options) -> Array:
    """The ids whose scores are compared with the float64 reference, which is slow."""
    return ids[:1, : 64 if options.quick else None]


@workload(
    "GPT-2 small forward, float32, PyTorch",
    main=PREPARED,
    goals=[Goal("at least 1.5 times the fastest PyTorch peer", PREPARED, ("peers",), at_least=1.5)],
)
def torch_forward(options: Options) -> Measured:
    import torch

    from isomorph import prepare
    from torch_peers import PlainGPT2, compiled, inferring, limit, ours, transformers_gpt2

    measured, sizes = Measured(), gpt2(options)
    plan = sizes.plan
    weights = weights_of(plan)
    ids, right = torch.from_numpy(sizes.ids), truth(plan, weights, reference_part(sizes.ids, options))
    model, peer = ours(plan, weights), transformers_gpt2(plan, weights)

    def scores(ids: torch.Tensor) -> torch.Tensor:
        return peer(ids, use_cache=False).logits

    plain = PlainGPT2(sizes, weights)
    entrants: dict[str, Any] = {
        PREPARED: prepare(model),
        PLAIN: model,
        "transformers": scores,
        "plain torch": plain,
    }
    if not (options.tiny or options.quick):
        entrants |= compiled("torch.compile of plain torch", plain, (ids,), measured)
    calls = {name: inferring(function, ids) for name, function in entrants.items()}
    for name, call in calls.items():
        measured.check(f"{name}, float64 reference", right.difference(call()), right.bound)
    calls[LIMIT] = limit(sizes.products, sizes.attentions)
    measured.notes.append(f"B={sizes.B}, T={sizes.T}")
    measured.time(calls, options.count(9, 2))
    return measured


NNX, LINEN = "isomorph prepared, NNX", "isomorph prepared, Linen"


@workload(
    "GPT-2 small forward, float32, JAX",
    main=NNX,
    processes=3,
    goals=[
        Goal(f"{name}: at least 1.2 times the fastest JAX peer", name, ("peers",), at_least=1.2)
        for name in (NNX, LINEN)
    ],
)
def jax_forward(options: Options) -> Measured:
    import isomorph as iso
    from flax_peers import blocked, evaluated, jitted, jitted_gpt2, limit, prepared_blocks

    measured, sizes = Measured(), gpt2(options)
    plan = sizes.plan
    weights = weights_of(plan)
    right = truth(plan, weights, reference_part(sizes.ids, options))
    entrants = prepared_blocks(plan, weights) | jitted_gpt2(sizes, weights)
    if options.quick:
        del entrants[LINEN], entrants["plain NNX"]
    else:
        entrants["isomorph plain, NNX"] = jitted(evaluated(iso.nnx.build(plan, weights)))
    calls = blocked(entrants, sizes.ids)
    for name, call in calls.items():
        measured.check(f"{name}, float64 reference", right.difference(call()), right.bound)
    calls[LIMIT] = limit(sizes.products, sizes.attentions)
    measured.notes.append(f"B={sizes.B}, T={sizes.T}")
    measured.time(calls, options.count(4, 2))
    return measured


if __name__ == "__main__":
    main(__doc__)
