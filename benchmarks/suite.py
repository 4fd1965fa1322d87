"""Every benchmark, each module in a process of its own, and the page about it.

python benchmarks/suite.py            # writes RESULTS.md
python benchmarks/suite.py --quick    # reduced repeats; prints, and writes .cache/bench/quick.md
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import peers
import report
from harness import WORKLOADS, Options, run_all

MODULES = (
    "vit_block",
    "gpt2_forward",
    "training_step",
    "small_block",
    "decode",
    "quality",
    "preparing",
    "resolve",
)


GROUPS = ("PyTorch and all else", "JAX")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--tiny", action="store_true", help="the smallest sizes, to see that everything runs")
    parser.add_argument("--modules", nargs="*", default=MODULES, choices=MODULES)
    parser.add_argument("--group", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    peers.enter()
    if options.group is not None:
        sys.exit(
            not group(options.group, options.modules, Options(options.quick, options.tiny), options.json)
        )
    kind = "tiny" if options.tiny else "quick" if options.quick else ""
    whole = set(options.modules) == set(MODULES)
    records = report.RECORDS.with_name(f"{kind or ('records' if whole else 'part')}.jsonl")
    records.parent.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(peers.ROOT / ".cache" / "inductor"))
    records.write_text(json.dumps(report.machine()) + "\n")
    begun, sound = time.perf_counter(), True
    for command in commands(kind, options.modules):
        sound = not subprocess.run([*command, f"--json={records}"], check=False).returncode and sound
    target = report.RESULTS if not kind and whole else records.with_suffix(".md")
    target.write_text(report.page(*report.read(records), f"make bench{'-' + kind if kind else ''}"))
    print(f"wrote {target} after {time.perf_counter() - begun:.0f} s")
    if not sound:
        sys.exit("something did not run or is wrong: see above")


def commands(kind: str, modules: Sequence[str]) -> list[list[str]]:
    """A process for each module; in the quick run one for each framework, which is loaded once."""
    if not kind:
        return [[sys.executable, str(Path(__file__).with_name(f"{module}.py"))] for module in modules]
    told = [f"--{kind}", "--modules", *modules]
    return [[sys.executable, __file__, *told, f"--group={index}"] for index in range(len(GROUPS))]


def group(index: int, modules: Sequence[str], options: Options, records: Path) -> bool:
    """All workloads of one framework in this process."""
    for module in modules:
        import_module(module)
    chosen = [work for work in WORKLOADS if ("JAX" in work.title) == bool(index)]
    return run_all([work for work in chosen if work.quick or not options.quick], options, records)


if __name__ == "__main__":
    main()
