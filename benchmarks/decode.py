"""Greedy decoding with GPT-2 small, batch 1: 16 ids are read and 64 added; time per added id.

python benchmarks/decode.py [--quick]
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

import isomorph as iso
from harness import LIMIT, Goal, Measured, Options, main, workload
from isomorph.backends.large_pages import PAYS
from networks import NARROW, Array, Decoder, gpt2, truth, weights_of

PROMPT = 16
EIGHT_BITS = 0.06
"""Like ``NARROW``, for weights of eight bits."""
FLOAT32, BFLOAT16, INT8 = (f"isomorph prepared, {dtype}" for dtype in ("float32", "bfloat16", "int8"))
GENERATE = "transformers.generate, float32"


def added(options: Options) -> int:
    """How many ids are added."""
    return 4 if options.tiny else 16 if options.quick else 64


def per_id(measured: Measured, calls: dict[str, Callable[[], Any]], n: int, rounds: int) -> None:
    """Measure, and give times per added id."""
    measured.time(calls, rounds)
    measured.samples = {name: [ms / n for ms in samples] for name, samples in measured.samples.items()}
    for name in measured.samples:
        middle = measured.median(name)
        assert middle is not None
        measured.notes.append(f"{name}: {1e3 / middle:.1f} ids a second")


def settle(engines: Iterable[Any], ids: Any, options: Options) -> None:
    """Generate for so long that prepared models keep their weights in large pages from then on."""
    for engine in () if options.tiny or options.quick else engines:
        iso.generate(engine, ids, 1 + PAYS)


def stepping(sizes: Decoder) -> Decoder:
    """The sizes of a single step in the middle of the added ids."""
    return sizes._replace(T=1)


def check_ids(
    measured: Measured, calls: dict[str, Callable[[], Any]], names: list[str], right: Array
) -> None:
    """How many of the added ids differ; float32 of different kernels may differ only where two scores are a tie."""
    for name in names:
        found = np.asarray(calls[name]()).reshape(-1)[-len(right) :]
        measured.check(f"{name}, ids that are not {GENERATE}'s", float((found != right).sum()), 0)


@workload(
    "decode GPT-2 small, batch 1, PyTorch",
    main=FLOAT32,
    goals=[
        Goal(f"{kind}: at least {need} times transformers.generate in float32", name, (GENERATE,), at_least=need)
        for kind, name, need in (("float32", FLOAT32, 1.9), ("bfloat16", BFLOAT16, 4.0), ("int8 weights", INT8, 5.0))
    ],
)  # fmt: skip
def torch_decode(options: Options) -> Measured:
    import torch

    from isomorph import prepare
    from torch_peers import limit, ours, transformers_gpt2

    measured, sizes, n = Measured(), gpt2(options, 1, PROMPT), added(options)
    plan = sizes.plan
    weights = weights_of(plan)
    ids = torch.from_numpy(sizes.ids)
    model = ours(plan, weights)
    prepared = {FLOAT32: prepare(model), BFLOAT16: prepare(model, "bfloat16"), INT8: prepare(model, "int8")}
    right = truth(plan, weights, sizes.ids)
    for name, engine in prepared.items():
        bound = {FLOAT32: 1e-5, BFLOAT16: NARROW, INT8: EIGHT_BITS}[name]
        measured.check(f"{name}, relative, float64 reference", right.relative(engine(ids).float()), bound)

    def generating(model: Any) -> Callable[[], Any]:
        return lambda: iso.generate(model, ids, n)

    published = transformers_gpt2(plan, weights)

    def peer(dtype: torch.dtype) -> Callable[[], Any]:
        found: Any = copy.deepcopy(published).to(dtype)
        told = {"max_new_tokens": n, "min_new_tokens": n, "do_sample": False, "pad_token_id": 0}
        return lambda: found.generate(ids, attention_mask=torch.ones_like(ids), **told)

    calls = {name: generating(engine) for name, engine in prepared.items()}
    settle(prepared.values(), ids, options)
    calls[GENERATE] = peer(torch.float32)
    if not options.quick:
        calls |= {
            "isomorph plain": generating(model),
            "transformers.generate, bfloat16": peer(torch.bfloat16),
        }
    expected = np.asarray(calls[GENERATE]()).reshape(-1)[-n:]
    check_ids(measured, calls, [name for name in (FLOAT32, "isomorph plain") if name in calls], expected)
    step = stepping(sizes)
    alone = {dtype: limit(step.products, [], dtype) for dtype in ("float32", "bfloat16", "int8")}
    calls |= {
        f"products alone, {dtype}": lambda one=one: [one() for _ in range(n)] for dtype, one in alone.items()
    }
    per_id(measured, calls, n, options.count(5, 2))
    return measured


NNX = "isomorph prepared, NNX, float32"
LOOPS = ("plain JAX, a compiled step in a loop", "plain JAX, a compiled loop")


@workload(
    "decode GPT-2 small, batch 1, float32, JAX",
    main=NNX,
    processes=3,
    goals=[Goal("at least 1.15 times the faster of two plain jitted JAX loops", NNX, LOOPS, at_least=1.15)],
)
def jax_decode(options: Options) -> Measured:
    from flax_peers import PlainDecoder, limit, prepare

    measured, sizes, n = Measured(), gpt2(options, 1, PROMPT), added(options)
    plan = sizes.plan
    weights = weights_of(plan)
    (prompt,) = sizes.ids
    model = iso.nnx.build(plan, weights)
    plain = PlainDecoder(sizes, weights, PROMPT + n)
    calls: dict[str, Callable[[], Any]] = {
        NNX: lambda: iso.generate(fast, prompt, n),
        "isomorph prepared, NNX, bfloat16": lambda: iso.generate(narrow, prompt, n),
        "isomorph plain, NNX": lambda: iso.generate(model, prompt, n),
        LOOPS[0]: lambda: plain.by_steps(prompt, n),
        LOOPS[1]: lambda: plain.at_once(prompt, n),
    }
    fast, narrow = prepare(model), prepare(model, "bfloat16")
    if options.quick:
        del calls["isomorph prepared, NNX, bfloat16"], calls["isomorph plain, NNX"], calls[LOOPS[1]]
    right = truth(plan, weights, sizes.ids)
    for name, engine, bound in ((NNX, fast, 1e-5), ("isomorph prepared, NNX, bfloat16", narrow, NARROW)):
        if name not in calls:
            continue
        found = engine(np.asarray(sizes.ids, np.int32))
        measured.check(f"{name}, relative, float64 reference", right.relative(found), bound)
    expected = np.asarray(calls[LOOPS[0]]()).reshape(-1)
    for name in calls.keys() - {LOOPS[0], "isomorph prepared, NNX, bfloat16"}:
        found = np.asarray(calls[name]()).reshape(-1)[-n:]
        measured.check(f"{name}, ids that are not the plain loop's", float((found != expected).sum()), 0)
    settle((fast, narrow), prompt, options)
    step = stepping(sizes)
    one = limit(step.products, [])
    calls[LIMIT] = lambda: [one() for _ in range(n)]
    per_id(measured, calls, n, options.count(5, 2))
    return measured


if __name__ == "__main__":
    main(__doc__)
