"""What all benchmarks share: measuring by turns, checks and goals in the same run, fresh processes, a command line.

A workload is one function that measures and checks; :func:`workload` registers it with its title and with what it
must reach. Run a module alone, as in ``python benchmarks/decode.py --quick``, or everything with ``make bench``.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import peers

LIMIT = "products and attention alone"
"""The entrant that computes nothing but the matrix products and the attention of a workload, each by the best kernel."""
OURS = "isomorph"
"""Names of our own entrants begin so; those of limits begin with "products"; all others are peers."""
SAMPLE_SECONDS = 2e-3
"""A shorter call is repeated until a sample takes this long."""
WARMUP_SECONDS = 0.1
LONG_SECONDS = 0.5
"""One call of this length is warm-up enough."""

Call = Callable[[], object]


@dataclass(frozen=True)
class Options:
    """How thoroughly to measure.

    Attributes:
        quick: reduced repeats.
        tiny: the smallest sizes and repeats, to see that everything runs; no goal is judged.
        threads: of PyTorch; JAX takes all processors that the process may use.
        rounds, processes: override a workload's own number.
    """

    quick: bool = False
    tiny: bool = False
    threads: int = 0
    rounds: int | None = None
    processes: int | None = None

    def count(self, full: int, quick: int) -> int:
        """Rounds of a workload."""
        return self.rounds or (2 if self.tiny else quick if self.quick else full)


@dataclass
class Check:
    """A difference that was looked at in the same run, and what it may be."""

    what: str
    difference: float
    bound: float

    @property
    def passed(self) -> bool:
        """Whether it is within its bound; NaN is not."""
        return self.difference <= self.bound


@dataclass
class Measured:
    """What a workload found.

    Attributes:
        samples: milliseconds by entrant: one per round, or the median of each process.
        checks: correctness.
        values: other numbers by name, such as a perplexity.
        notes: what a reader should know.
        failures: what of our own did not run.
    """

    samples: dict[str, list[float]] = field(default_factory=dict)
    checks: list[Check] = field(default_factory=list)
    values: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def check(self, what: str, difference: float, bound: float) -> None:
        self.checks.append(Check(what, float(difference), float(bound)))

    def time(self, calls: Mapping[str, Call], rounds: int) -> None:
        """Measure the entrants by turns; one that raises is left out and noted."""
        ready: dict[str, tuple[Call, int]] = {}
        for name, call in calls.items():
            try:
                ready[name] = call, _repeats(call)
            except Exception as error:
                self.left_out(name, error)
        found: dict[str, list[float]] = {name: [] for name in ready}
        gc.collect()
        gc.disable()
        try:
            for _ in range(rounds):
                for name, (call, repeats) in ready.items():
                    begun = time.perf_counter()
                    for _ in range(repeats):
                        call()
                    found[name].append((time.perf_counter() - begun) * 1e3 / repeats)
        finally:
            gc.enable()
        self.samples.update(found)

    def left_out(self, name: str, error: BaseException) -> None:
        """Note that an entrant does not take part."""
        text = f"{name} did not run: {type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"
        (self.failures if name.startswith(OURS) else self.notes).append(text)
        if name.startswith(OURS):
            traceback.print_exception(error)

    def median(self, name: str) -> float | None:
        """Of an entrant's samples, or the value of that name."""
        if self.samples.get(name):
            return statistics.median(self.samples[name])
        return self.values.get(name)

    def peers(self) -> list[str]:
        return [name for name in self.samples if not name.startswith((OURS, "products "))]


def _goes_on(begun: float, calls: int) -> bool:
    return time.perf_counter() - begun < WARMUP_SECONDS and calls < 1000


def _repeats(call: Call) -> int:
    """How many calls make a sample; calling it for that warms it up."""
    shortest, begun, calls = math.inf, time.perf_counter(), 0
    while calls < 1 or (calls < 2 and shortest < LONG_SECONDS) or _goes_on(begun, calls):
        started = time.perf_counter()
        call()
        shortest, calls = min(shortest, time.perf_counter() - started), calls + 1
    return max(1, math.ceil(SAMPLE_SECONDS / max(shortest, 1e-9)))


@dataclass(frozen=True)
class Goal:
    """What a workload must reach.

    Attributes:
        text: in words.
        ours: the entrant or value that it is about.
        against: entrants; the ratio is that of the fastest of them to ours. ``("peers",)`` for all peers. Without
            any the goal is about our own median or value.
        at_least, at_most: the bound.
        each: judged by the worst process instead of the median of all.
    """

    text: str
    ours: str
    against: tuple[str, ...] = ()
    at_least: float | None = None
    at_most: float | None = None
    each: bool = False

    def value(self, measured: Measured, *, by_process: bool) -> float | None:
        """The ratio or number that is judged; None when an entrant is missing."""
        if not self.against:
            return measured.median(self.ours)
        names = measured.peers() if self.against == ("peers",) else list(self.against)
        if self.ours not in measured.samples or not names or any(n not in measured.samples for n in names):
            return None
        ratios = []
        for name in names:
            theirs, own = measured.samples[name], measured.samples[self.ours]
            if by_process:
                pairs = [t / o for t, o in zip(theirs, own, strict=True)]
                ratios.append(min(pairs) if self.each else statistics.median(pairs))
            else:
                ratios.append(statistics.median(theirs) / statistics.median(own))
        return min(ratios)

    def reached(self, value: float | None) -> bool:
        if value is None:
            return False
        above = self.at_least is None or value >= self.at_least
        return above and (self.at_most is None or value <= self.at_most)


@dataclass(frozen=True)
class Workload:
    """A registered benchmark.

    Attributes:
        title: unique.
        measure: the function.
        main: the entrant that the others are compared with in the table.
        goals: what it must reach.
        processes: in how many fresh processes the full run measures it; 0 for this one.
        alone: whether the quick run starts a process for it too.
        quick: whether it is in the quick run.
    """

    title: str
    measure: Callable[[Options], Measured]
    main: str
    goals: tuple[Goal, ...]
    processes: int
    alone: bool
    quick: bool

    def count(self, options: Options) -> int:
        """Fresh processes with these options."""
        if not self.processes or options.processes:
            return self.processes and (options.processes or 0)
        return int(self.alone) if options.quick or options.tiny else self.processes


WORKLOADS: list[Workload] = []


def workload(
    title: str,
    *,
    main: str,
    goals: Iterable[Goal] = (),
    processes: int = 0,
    alone: bool = False,
    quick: bool = True,
) -> Callable[[Callable[[Options], Measured]], Callable[[Options], Measured]]:
    """Register a function as a benchmark."""

    def register(measure: Callable[[Options], Measured]) -> Callable[[Options], Measured]:
        WORKLOADS.append(Workload(title, measure, main, tuple(goals), processes, alone, quick))
        return measure

    return register


# -- running -------------------------------------------------------------------------------------------


def outcome(work: Workload, measured: Measured, options: Options) -> dict[str, Any]:
    """A JSON record of a workload: entrants, checks, goals."""
    entrants = []
    processes = work.count(options)
    main = measured.median(work.main)
    for name, samples in measured.samples.items():
        middle = statistics.median(samples)
        low, _, high = (
            statistics.quantiles(samples, n=4, method="inclusive") if len(samples) > 1 else (middle,) * 3
        )
        if processes:
            low, high = min(samples), max(samples)
        entrants.append(
            {"name": name, "median_ms": middle, "low_ms": low, "high_ms": high, "samples": len(samples),
             "ratio": middle / main if main else None}
        )  # fmt: skip
    goals = []
    for goal in work.goals:
        value = goal.value(measured, by_process=processes > 0)
        left_out = options.quick and value is None  # the quick run has fewer entrants
        judged = None if options.tiny or left_out else goal.reached(value)
        goals.append({"text": goal.text, "ours": goal.ours, "value": value, "reached": judged,
                      "at_least": goal.at_least, "at_most": goal.at_most})  # fmt: skip
    return {
        "workload": work.title,
        "main": work.main,
        "processes": processes,
        "entrants": entrants,
        "values": measured.values,
        "checks": [{**asdict(check), "passed": check.passed} for check in measured.checks],
        "goals": goals,
        "notes": list(dict.fromkeys(measured.notes)),
        "failures": list(dict.fromkeys(measured.failures)),
    }


def measure(work: Workload, options: Options) -> Measured:
    """Run a workload here, or in fresh processes whose medians are then the samples."""
    processes = work.count(options)
    if not processes:
        set_threads(options)
        return work.measure(options)
    merged = Measured()
    worst: dict[str, Check] = {}
    for _ in range(processes):
        found = _in_fresh_process(work, options)
        for name, samples in found.samples.items():
            merged.samples.setdefault(name, []).append(statistics.median(samples))
        for check in found.checks:
            known = worst.get(check.what)
            if known is None or not check.difference <= known.difference:
                worst[check.what] = check
        for name, value in found.values.items():
            merged.values[name] = max(value, merged.values.get(name, -math.inf))
        merged.notes += found.notes
        merged.failures += found.failures
    merged.checks = list(worst.values())
    complete = max(map(len, merged.samples.values()), default=0)
    for name in [name for name, samples in merged.samples.items() if len(samples) < complete]:
        del merged.samples[name]  # it failed in some process, which is noted
    return merged


def _in_fresh_process(work: Workload, options: Options) -> Measured:
    script = sys.modules[work.measure.__module__].__file__
    command = [sys.executable, str(script), "--worker", work.title, "--options", json.dumps(asdict(options))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{work.title}: a process ended with {done.returncode}\n{done.stderr[-4000:]}")
    data = json.loads(done.stdout.splitlines()[-1])
    return Measured(**{**data, "checks": [Check(**check) for check in data["checks"]]})


def set_threads(options: Options) -> None:
    """Let PyTorch use the processors of this process, if it is loaded or will be."""
    count = options.threads or len(os.sched_getaffinity(0))
    os.environ["OMP_NUM_THREADS"] = str(count)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(count)


def run(work: Workload, options: Options) -> dict[str, Any]:
    """A workload's record; a failure is a record too."""
    begun = time.perf_counter()
    try:
        measured = measure(work, options)
    except Exception as error:
        traceback.print_exc()
        measured = Measured(failures=[f"{type(error).__name__}: {error}"[:2000]])
    return {**outcome(work, measured, options), "seconds": time.perf_counter() - begun}


def sound(record: Mapping[str, Any]) -> bool:
    """Whether everything of ours ran and every check passed."""
    return not record["failures"] and all(check["passed"] for check in record["checks"])


def main(description: str | None = None) -> None:
    """The command line of a module of workloads."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="reduced repeats")
    parser.add_argument("--tiny", action="store_true", help="the smallest sizes, to see that it runs")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--processes", type=int, help="fresh processes of each JAX workload")
    parser.add_argument("--threads", type=int, default=0, help="of PyTorch; all processors by default")
    parser.add_argument("--only", default="", help="workloads whose title contains this")
    parser.add_argument("--json", type=Path, help="append records to this file, a line each")
    parser.add_argument("--here", action="store_true", help="in this environment, with the peers that it has")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--options", help=argparse.SUPPRESS)
    given = parser.parse_args()
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(peers.ROOT / ".cache" / "inductor"))
    if given.worker is not None:
        _work(given.worker, Options(**json.loads(given.options)))
        return
    if not given.here:
        peers.enter()
    options = Options(given.quick, given.tiny, given.threads, given.rounds, given.processes)
    chosen = [work for work in WORKLOADS if given.only.lower() in work.title.lower()]
    sys.exit(not run_all(chosen, options, given.json))


def run_all(works: Iterable[Workload], options: Options, file: Path | None) -> bool:
    """Run workloads, print each and append its record to a file; whether all of it is sound."""
    from report import show  # it needs rich

    correct = True
    for work in works:
        record = run(work, options)
        correct = correct and sound(record)
        if file:
            with file.open("a") as records:
                records.write(json.dumps(record) + "\n")
        show(record)
    return correct


def _work(title: str, options: Options) -> None:
    """Measure one workload here and print what was found as the last line."""
    set_threads(options)
    (work,) = (work for work in WORKLOADS if work.title == title)
    print(json.dumps(asdict(work.measure(options))))
