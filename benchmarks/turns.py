"""Contestants by turns: A B C A B C ..., medians, spreads and ratios."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable


def by_turns(
    contestants: dict[str, Callable[[], object]], rounds: int, warmup: int = 2
) -> dict[str, list[float]]:
    """Milliseconds of every round for each contestant, each called once a round in the same order."""
    for _ in range(warmup):
        for call in contestants.values():
            call()
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, call in contestants.items():
            start = time.perf_counter()
            call()
            times[name].append((time.perf_counter() - start) * 1e3)
    return times


def report(title: str, times: dict[str, list[float]], ours: str) -> None:
    """A line for each contestant: median, quartiles, and its median over ours."""
    print(f"\n{title}")
    base = statistics.median(times[ours])
    for name, values in times.items():
        low, median, high = statistics.quantiles(values, n=4)
        print(f"  {name:32} {median:9.2f} ms  ({low:.2f} to {high:.2f})  {median / base:5.2f} of {ours}")
