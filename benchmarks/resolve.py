"""How long it takes to resolve long definitions, beside HNDL, by turns in fresh processes.

    python benchmarks/resolve.py [--rounds 5] [--without-peer]

Every line is a ``transformer_block`` of its own heads, ratio and name. Each process resolves a text of
its size once (cold: modules loaded by a tiny definition before, nothing remembered), then nine more texts,
no two alike. Prints milliseconds and ratios; compare ratios, not machines.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
from pathlib import Path

import peers

INPUT = ("B", 16, 96)
HEADS = (1, 2, 3, 4, 6, 8, 12, 16, 24)

WORKER = """
import json, sys, time
resolve = {resolve}
texts = json.load(sys.stdin)
resolve("linear(96)")
times = []
for text in texts:
    start = time.perf_counter()
    resolve(text)
    times.append((time.perf_counter() - start) * 1e3)
print(json.dumps(times))
"""
OURS = f"(lambda t: __import__('isomorph').resolve(t, input={INPUT!r}))"
HNDL = f"(lambda t: __import__('hndl').resolve(t, input_shape={INPUT!r}, output_shape={INPUT!r}))"


def definition(lines: int, seed: int) -> str:
    """Lines of varied heads, ratios and names."""
    draw = random.Random(seed)
    return "\n".join(
        f'transformer_block({draw.choice(HEADS)}, mlp_ratio={draw.randint(1, 8)}, name="layer{i}_{seed}")'
        for i in range(lines)
    )


def measure(interpreter: Path | str, resolve: str, texts: list[str]) -> list[float]:
    """Milliseconds for each text, in a fresh process."""
    done = subprocess.run(
        [str(interpreter), "-c", WORKER.format(resolve=resolve)],
        input=json.dumps(texts), capture_output=True, text=True, check=True,
    )  # fmt: skip
    return json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="processes per contestant and size")
    parser.add_argument("--without-peer", action="store_true", help="measure isomorph alone")
    arguments = parser.parse_args()
    contestants = {"isomorph": (sys.executable, OURS)}
    if not arguments.without_peer:
        contestants["HNDL"] = (peers.python(), HNDL)
    medians: dict[tuple[str, int], float] = {}
    print(f"{'lines':>6}  {'':10}  {'first (ms)':>10}  {'median (ms)':>11}  {'us per line':>11}")
    for lines, texts in ((1_000, 10), (10_000, 4)):
        first: dict[str, list[float]] = {name: [] for name in contestants}
        later: dict[str, list[float]] = {name: [] for name in contestants}
        for turn in range(arguments.rounds):
            batch = [definition(lines, 100 * turn + i) for i in range(texts)]
            for name, (interpreter, resolve) in contestants.items():
                if name == "HNDL" and lines > 1_000:
                    continue  # beyond what it takes
                times = measure(interpreter, resolve, batch if name != "HNDL" else batch[:3])
                first[name].append(times[0])
                later[name] += times[1:]
        for name in contestants:
            if not later[name]:
                continue
            medians[name, lines] = statistics.median(later[name])
            print(
                f"{lines:6}  {name:10}  {statistics.median(first[name]):10.1f}  {medians[name, lines]:11.1f}"
                f"  {medians[name, lines] / lines * 1e3:11.1f}"
            )
    print(
        f"10,000 lines take {medians['isomorph', 10_000] / medians['isomorph', 1_000]:.1f} times 1,000 lines"
    )
    if "HNDL" in contestants:
        print(
            f"HNDL takes {medians['HNDL', 1_000] / medians['isomorph', 1_000]:.1f} times as long at 1,000 lines"
        )


if __name__ == "__main__":
    main()
