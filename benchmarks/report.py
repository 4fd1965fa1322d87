"""Records of benchmarks as tables: on the screen, in RESULTS.md, and in docs/performance.md.

python benchmarks/report.py            # writes RESULTS.md again from the records of the last full run
python benchmarks/report.py --docs     # and the table of docs/performance.md
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import sys
from collections.abc import Iterable, Mapping
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
RECORDS = ROOT / ".cache" / "bench" / "records.jsonl"
RESULTS = HERE / "RESULTS.md"
DOCS = ROOT / "docs" / "performance.md"
LIMIT_WORD = "limit"
MARKS = ("<!-- figures -->", "<!-- end of figures -->")
PACKAGES = ("torch", "jax", "jaxlib", "flax", "transformers", "timm", "hndl", "numpy", "isomorph")

Record = Mapping[str, Any]


# -- words ---------------------------------------------------------------------------------------------


def duration(milliseconds: float) -> str:
    """Three digits and a unit."""
    if milliseconds < 1:
        return f"{milliseconds * 1e3:.3g} us"
    if milliseconds < 1e4:
        return f"{milliseconds:.3g} ms" if milliseconds < 1e3 else f"{milliseconds:,.0f} ms"
    return f"{milliseconds / 1e3:.3g} s"


def number(value: float | None) -> str:
    return "not measured" if value is None else f"{value:.4g}"


def verdict(goal: Record) -> str:
    return {True: "yes", False: "NO", None: "not judged"}[goal["reached"]]


def _difference(check: Record) -> str:
    return f"{check['difference']:.2e} (at most {check['bound']:.2e})"


# -- the screen ----------------------------------------------------------------------------------------


def show(record: Record) -> None:
    """Print one record."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 150
    console.print(record["workload"], style="bold")
    table = Table()
    table.add_column("")
    for name in ("median", "from", "to", f"time / {record['main']}"):
        table.add_column(name, justify="right", no_wrap=True)
    for entrant in record["entrants"]:
        ratio = "" if entrant["ratio"] is None else f"{entrant['ratio']:.2f}"
        times = (duration(entrant[key]) for key in ("median_ms", "low_ms", "high_ms"))
        table.add_row(entrant["name"], *times, ratio)
    if record["entrants"]:
        console.print(table)
    for name, value in record["values"].items():
        console.print(f"  {name}: {value:.4g}")
    for check in record["checks"]:
        style = None if check["passed"] else "bold red"
        console.print(
            f"  {'ok' if check['passed'] else 'WRONG'}: {check['what']}: {_difference(check)}", style=style
        )
    for goal in record["goals"]:
        style = "bold red" if goal["reached"] is False else None
        console.print(f"  {goal['text']}: {number(goal['value'])}, reached: {verdict(goal)}", style=style)
    for note in record["notes"]:
        console.print(f"  {note}", style="dim", markup=False)
    for failure in record["failures"]:
        console.print(f"  {failure}", style="bold red", markup=False)
    console.print(f"  took {record['seconds']:.0f} s\n", style="dim")


# -- the machine ---------------------------------------------------------------------------------------


def machine() -> dict[str, Any]:
    """The processor, its cores, memory, versions, and what else was running."""
    text = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    model = re.search(r"model name\s*: (.*)", text)
    flags = re.search(r"flags\s*: (.*)", text)
    known = set(flags[1].split()) if flags else set()
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return {
        "processor": model[1] if model else platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "instructions": [f for f in ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile") if f in known],
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": versions,
        "load_before": round(os.getloadavg()[0], 2),
        "date": date.today().isoformat(),
    }  # fmt: skip


# -- the page ------------------------------------------------------------------------------------------


def goals_table(records: Iterable[Record]) -> str:
    """What every workload must reach, whether it does, and what it would be at the measured limit."""
    lines = [
        "| Workload | Must reach | Measured | At the limit | Reached |",
        "| --- | --- | ---: | ---: | --- |",
    ]
    lines += [
        f"| {record['workload']} | {goal['text']} | {number(goal['value'])} | {at_limit(record, goal)} "
        f"| {verdict(goal)} |"
        for record in records
        for goal in record["goals"]
    ]
    return "\n".join(lines)


def at_limit(record: Record, goal: Record) -> str:
    """The goal's ratio if ours took no longer than its products and attention alone; empty where that says nothing."""
    medians = {entrant["name"]: entrant["median_ms"] for entrant in record["entrants"]}
    limits = [name for name in medians if name.startswith("products ")]
    if len(limits) > 1:  # one for each dtype
        limits = [name for name in limits if goal.get("ours", "").endswith(name.rpartition(", ")[2])]
    ours = medians.get(goal.get("ours", ""))
    if goal["value"] is None or goal.get("at_least") is None or not limits or ours is None:
        return ""
    return "" if LIMIT_WORD in goal["text"] else number(goal["value"] * ours / medians[limits[0]])


def section(record: Record) -> str:
    """One workload."""
    spread = f"least to most of {record['processes']} processes" if record["processes"] else "quartiles"
    lines = [f"## {record['workload']}", ""]
    if record["entrants"]:
        lines += [
            f"| | Median | Spread ({spread}) | Time / {record['main']} |",
            "| --- | ---: | ---: | ---: |",
        ]
    for entrant in record["entrants"]:
        ratio = "" if entrant["ratio"] is None else f"{entrant['ratio']:.2f}"
        low, high = duration(entrant["low_ms"]), duration(entrant["high_ms"])
        lines.append(f"| {entrant['name']} | {duration(entrant['median_ms'])} | {low} to {high} | {ratio} |")
    lines.append("")
    lines += [f"- {name}: {value:.4g}" for name, value in record["values"].items()]
    for check in record["checks"]:
        passed = "" if check["passed"] else "**wrong** "
        lines.append(f"- {passed}{check['what']}: {_difference(check)}")
    for goal in record["goals"]:
        lines.append(
            f"- must reach: {goal['text']}; measured {number(goal['value'])}; reached: {verdict(goal)}"
        )
    lines += [f"- {note}" for note in (*record["notes"], *record["failures"])]
    return "\n".join(lines) + "\n"


def page(found: Mapping[str, Any], records: list[Record], command: str) -> str:
    """RESULTS.md as a whole."""
    versions = ", ".join(f"{name} {number}" for name, number in found["versions"].items())
    judged = [goal for record in records for goal in record["goals"]]
    missed = [goal for goal in judged if goal["reached"] is not True]
    return "\n".join(
        (
            "# Results",
            "",
            f"Written by `{command}` on {found['date']}. Entrants take turns in one process (A B C A B C ...), each JAX "
            "workload in several fresh ones; every line is checked for correctness in the same run. Only ratios carry "
            "over to another machine.",
            "",
            f"- Processor: {found['processor']}, {found['cores']} cores, {', '.join(found['instructions'])}; "
            f"{found['memory_gib']} GiB",
            f"- System: {found['system']}; Python {found['python']}; {versions}",
            f"- Load before the run: {found['load_before']}",
            f"- Goals reached: {len(judged) - len(missed)} of {len(judged)}",
            "",
            goals_table(records),
            "",
            *(section(record) for record in records),
        )
    )


def read(path: Path) -> tuple[dict[str, Any], list[Record]]:
    """The machine and the records of a run."""
    first, *rest = (json.loads(line) for line in path.read_text().splitlines())
    return first, rest


def fill(text: str, found: Mapping[str, Any], records: list[Record]) -> str:
    """A page of the documentation with the table between its marks."""
    begin, end = (text.index(mark) for mark in MARKS)
    about = (
        f"Measured on {found['processor']} ({found['cores']} cores, {', '.join(found['instructions'])}) with PyTorch "
        f"{found['versions'].get('torch', '?')} and JAX {found['versions'].get('jax', '?')}:"
    )
    return f"{text[:begin]}{MARKS[0]}\n{about}\n\n{goals_table(records)}\n{text[end:]}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--docs", action="store_true", help="fill the table of docs/performance.md")
    parser.add_argument("--records", type=Path, default=RECORDS)
    options = parser.parse_args()
    if not options.records.exists():
        sys.exit(f"{options.records} is missing: run make bench first")
    found, records = read(options.records)
    RESULTS.write_text(page(found, records, "make bench"))
    print(f"wrote {RESULTS}")
    if options.docs:
        DOCS.write_text(fill(DOCS.read_text(), found, records))
        print(f"wrote {DOCS}")


if __name__ == "__main__":
    main()
