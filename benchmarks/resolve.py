"""Resolving long definitions: 1,000 lines beside HNDL, and how the time grows to 10,000.

    python benchmarks/resolve.py [--quick]

Every line is a ``transformer_block`` of its own heads, ratio and name, and no two texts are alike.
"""

from __future__ import annotations

import itertools
import random
import statistics
from collections.abc import Callable, Iterator
from typing import Any

import isomorph as iso
from harness import Measured, Options, main, workload

INPUT = ("B", 16, 96)
HEADS = (1, 2, 3, 4, 6, 8, 12, 16, 24)
OURS, TEN = "isomorph", "isomorph, ten times the lines"


def definition(lines: int, seed: int) -> str:
    """Lines of varied heads, ratios and names."""
    draw = random.Random(seed)
    return "\n".join(
        f'transformer_block({draw.choice(HEADS)}, mlp_ratio={draw.randint(1, 8)}, name="layer{i}_{seed}")'
        for i in range(lines)
    )


def texts(lines: int) -> Iterator[str]:
    """Definitions that were never resolved before, in memory beforehand."""
    made = [definition(lines, seed) for seed in range(60)]
    return itertools.chain(made, (definition(lines, seed) for seed in itertools.count(60)))


@workload("resolving 1,000 lines", main=OURS)
def resolving(options: Options) -> Measured:
    measured = Measured()
    lines = 20 if options.tiny else 1000

    def ours(lines: int) -> Callable[[], Any]:
        given = texts(lines)
        return lambda: iso.resolve(next(given), input=INPUT)

    plan = iso.resolve(definition(lines, 0), input=INPUT)
    measured.check("nodes that are missing", lines - len(plan.nodes), 0)
    calls = {OURS: ours(lines)}
    try:
        import hndl

        given = texts(lines)
        calls["HNDL"] = lambda: hndl.resolve(next(given), input_shape=INPUT, output_shape=INPUT)
    except ImportError as error:
        measured.left_out("HNDL", error)
    measured.time(calls, options.count(15, 5))
    longer = Measured()
    longer.time({TEN: ours(10 * lines)}, options.count(5, 2))  # HNDL does not take so many
    measured.samples |= longer.samples
    measured.values["times as long for ten times the lines"] = statistics.median(longer.samples[TEN]) / (
        statistics.median(measured.samples[OURS])
    )
    return measured


if __name__ == "__main__":
    main(__doc__)
