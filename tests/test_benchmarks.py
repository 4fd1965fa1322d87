"""The benchmarks measure what they say: ratios, goals and tables; and their smallest workloads run."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
MODULES = (
    "decode", "gpt2_forward", "preparing", "quality", "resolve", "small_block", "training_step", "vit_block",
)  # fmt: skip


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module of the benchmarks by name."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=BENCHMARKS, capture_output=True, text=True, check=False
    )


def measured(module: Any) -> Any:
    """Three rounds of four entrants: medians 2, 6, 5 and 1."""
    return module("harness").Measured(
        samples={
            "isomorph": [2.0, 1.0, 4.0],
            "one": [6.0, 5.0, 8.0],
            "two": [5.0, 5.0, 20.0],
            "products and attention alone": [1.0, 1.0, 1.0],
        },
        values={"memory": 1.25},
    )


def test_a_ratio_is_that_of_the_medians_of_the_fastest_peer_and_ours(module):
    goal = module("harness").Goal("", "isomorph", ("peers",), at_least=2.5)
    value = goal.value(measured(module), by_process=False)
    assert value == 5 / 2  # the limit is no peer, or it would be 1 / 2
    assert goal.reached(value) and not goal.reached(2.49)


def test_over_processes_it_is_the_median_of_their_ratios_or_the_worst(module):
    Goal = module("harness").Goal
    found = measured(module)  # ratios of one: 3, 5, 2
    assert Goal("", "isomorph", ("one",)).value(found, by_process=True) == 3
    assert Goal("", "isomorph", ("one",), each=True).value(found, by_process=True) == 2


def test_a_goal_without_peers_is_about_the_value_itself(module):
    goal = module("harness").Goal("", "memory", at_most=1.3)
    assert goal.value(measured(module), by_process=False) == 1.25
    assert goal.reached(1.25) and not goal.reached(1.31)


def test_what_was_not_measured_is_not_reached(module):
    goal = module("harness").Goal("", "isomorph", ("absent",), at_least=1.0)
    assert goal.value(measured(module), by_process=False) is None
    assert not goal.reached(None)


def test_entrants_take_turns_and_one_that_raises_is_left_out(module):
    calls: list[str] = []
    found = module("harness").Measured()

    def entrant(name: str) -> Any:
        def call() -> None:
            calls.append(name)
            if name == "broken":
                raise RuntimeError("no kernel\nand more")
            module("time").sleep(0.003)  # longer than a sample takes at least, so that a round is one call

        return call

    found.time({name: entrant(name) for name in ("isomorph", "broken", "peer")}, rounds=3)
    assert calls[-6:] == ["isomorph", "peer"] * 3
    assert {name: len(samples) for name, samples in found.samples.items()} == {"isomorph": 3, "peer": 3}
    assert min(min(samples) for samples in found.samples.values()) >= 3
    assert found.notes == ["broken did not run: RuntimeError: no kernel"] and not found.failures


def test_nan_passes_no_check(module):
    assert not module("harness").Check("", float("nan"), 1.0).passed


def test_the_page_and_the_documentation_get_the_table_of_goals(module):
    report = module("report")
    records = [
        {
            "workload": "block", "main": "isomorph", "processes": 0, "values": {}, "failures": [], "notes": ["a note"],
            "entrants": [
                {"name": "isomorph", "median_ms": 0.05, "low_ms": 0.04, "high_ms": 0.06, "ratio": 1.0},
                {"name": "peer", "median_ms": 1250.0, "low_ms": 1200.0, "high_ms": 15000.0, "ratio": 25000.0},
                {"name": "products alone", "median_ms": 0.04, "low_ms": 0.04, "high_ms": 0.04, "ratio": 0.8},
            ],
            "checks": [{"what": "isomorph, float64", "difference": 1e-6, "bound": 2e-5, "passed": True}],
            "goals": [
                {"text": "at least 2 times peer", "ours": "isomorph", "value": 2.345, "reached": True, "at_least": 2},
                {"text": "at least 3 times peer", "ours": "isomorph", "value": None, "reached": False, "at_least": 3},
                {"text": "0.9 of the limit", "ours": "isomorph", "value": 0.8, "reached": False, "at_least": 0.9},
            ],
        }
    ]  # fmt: skip
    table = (
        "| Workload | Must reach | Measured | At the limit | Reached |\n"
        "| --- | --- | ---: | ---: | --- |\n"
        "| block | at least 2 times peer | 2.345 | 2.931 | yes |\n"  # 2.345 * 0.05 / 0.04
        "| block | at least 3 times peer | not measured |  | NO |\n"
        "| block | 0.9 of the limit | 0.8 |  | NO |"
    )
    assert report.goals_table(records) == table
    machine = report.machine()
    page = report.page(machine, records, "make bench")
    assert table in page
    assert (
        "| isomorph | 50 us | 40 us to 60 us | 1.00 |\n| peer | 1,250 ms | 1,200 ms to 15 s | 25000.00 |"
        in page
    )
    assert "- isomorph, float64: 1.00e-06 (at most 2.00e-05)" in page
    filled = report.fill(f"before\n{report.MARKS[0]}\nold\n{report.MARKS[1]}\nafter\n", machine, records)
    assert filled.startswith(f"before\n{report.MARKS[0]}\nMeasured on ") and "old" not in filled
    assert filled.endswith(f"{table}\n{report.MARKS[1]}\nafter\n")


def test_the_page_about_speed_has_room_for_the_table(module):
    report = module("report")
    text = report.DOCS.read_text()
    assert all(text.count(mark) == 1 for mark in report.MARKS)


def test_every_module_registers_its_workloads_and_loads_no_framework():
    code = (
        f"import sys, {', '.join(MODULES)}, harness, suite\n"
        "titles = [work.title for work in harness.WORKLOADS]\n"
        "assert len(titles) == len(set(titles)), titles\n"
        f"assert set(suite.MODULES) == set({MODULES!r})\n"
        "assert not {'torch', 'jax', 'transformers'} & set(sys.modules)\n"
        "print(len(titles))"
    )
    done = run("-c", code)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 15


def test_the_smallest_workload_runs_and_is_right(tmp_path):
    pytest.importorskip("torch")
    file = tmp_path / "records.jsonl"
    done = run("small_block.py", "--tiny", "--here", "--only=pytorch", f"--json={file}")
    assert done.returncode == 0, done.stdout + done.stderr
    (record,) = (json.loads(line) for line in file.read_text().splitlines())
    names = [entrant["name"] for entrant in record["entrants"]]
    assert names[:2] == ["isomorph prepared", "isomorph plain"]
    assert {"torch layer", "products and attention alone"} <= set(names)
    assert all(check["passed"] for check in record["checks"]) and len(record["checks"]) >= 3
    assert [goal["reached"] for goal in record["goals"]] == [None]  # nothing is judged at these sizes


@pytest.mark.slow
def test_the_script_for_a_gpu_runs_on_a_cpu():
    pytest.importorskip("torch")
    done = run("device.py", "--device=cpu", "--tiny", "--parts", "forward, bfloat16")
    assert done.returncode == 0, done.stdout + done.stderr
    machine, part, last = (json.loads(line) for line in done.stdout.splitlines())
    assert machine["device"] and part["part"] == "forward, bfloat16" and not part["failures"]
    assert last == {"skipped": [], "correct": True}


def test_what_the_page_about_speed_shows_runs(module):
    pytest.importorskip("torch")
    (code,) = re.findall(r"```python\n(.*?)```", module("report").DOCS.read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    x = names["torch"].ones(1, 3, 32)
    assert names["torch"].allclose(names["fast"](x), names["model"](x), rtol=0, atol=1e-5)
    assert names["y"].shape == (2, 8, 32)
