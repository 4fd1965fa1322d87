"""``verify``: the table, JSON, exit status 1 on disagreement."""

import json
import os
import re

import pytest

import isomorph as iso
from isomorph.agreement import verify as verifying
from isomorph.backends.torch import harness
from isomorph.display import memory
from isomorph.plan.resolve import resolve_file

pytest.importorskip("torch")


def test_prints_a_table_and_agrees(isomorph, block):
    result = isomorph("verify", block, "--input", "B,T,32", "--backend", "torch", "--size", "T=3")
    assert result.status == 0
    assert "float32 against the float64 reference (drawn weights, B=2, T=3)" in result.out
    rows = [line for line in result.out.splitlines() if "│ torch" in line]
    assert len(rows) == 2
    assert "Gradients against torch's in float64." in " ".join(result.out.split())
    assert " output " in rows[0]
    assert "gradients, worst: n0." in rows[1]
    assert all(row.rstrip("│ ").endswith("ok") for row in rows)


@pytest.mark.parametrize("columns", [60, 80])
def test_the_table_is_readable_in_a_narrow_terminal(isomorph, tmp_path, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("FORCE_COLOR", "1")  # a terminal, as far as the console knows
    monkeypatch.setenv("TERM", "xterm")
    path = tmp_path / "k.net"
    path.write_text(
        'input("B", 3)\na, b = split(linear(6, name="a_rather_long_name"), 2)\n'
        'output(a=("B", 2), b=("B", 4))\n'
    )
    result = isomorph("verify", path, "--backend", "torch")
    assert result.status == 0
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in result.out.splitlines()]
    assert max(map(len, lines)) <= columns
    header = next(line for line in lines if "backend" in line)
    assert header.split() == ["backend", "quantity", "difference", "bound", "ratio"]
    rows = [line.split() for line in lines if line.startswith("torch  ")]
    assert [row[-1] for row in rows] == ["ok"] * 3
    assert [row[1:-4] for row in rows] == [["output", "a"], ["output", "b"], ["gradients"]]
    assert any(
        re.fullmatch(r"torch, worst of gradients: a_rather_long_name\.(weight|bias)", line) for line in lines
    )


def test_json_and_quiet(isomorph, block):
    arguments = ("verify", block, "--input", "B,8,32", "--backend", "torch")
    found = json.loads(isomorph(*arguments, "--json").out)
    assert found["agrees"] is True
    assert [row["quantity"] for row in found["rows"]] == ["output", "gradients"]
    assert isomorph(*arguments, "--quiet") == (0, "", "")


def test_a_saved_model_is_verified_with_its_weights(isomorph, tmp_path):
    plan = iso.resolve("linear(2)", input=("B", 3))
    iso.save(tmp_path / "m.safetensors", plan, iso.initial_weights(plan))
    result = isomorph("verify", tmp_path / "m.safetensors", "--backend", "torch")
    assert result.status == 0
    assert "(saved weights, B=2)" in result.out


def test_disagreement_has_status_1(isomorph, block, monkeypatch):
    true = harness.forward

    def wrong(*arguments, **named):
        return {name: array + 1e-3 for name, array in true(*arguments, **named).items()}

    monkeypatch.setattr(harness, "forward", wrong)
    result = isomorph("verify", block, "--input", "B,8,32", "--backend", "torch")
    assert result.status == 1
    assert "DIFFERS" in result.out
    assert result.err.endswith("disagreement beyond the bound: torch output\n")


def test_an_unknown_size_or_backend_is_told(isomorph, block):
    sized = isomorph("verify", block, "--input", "B,8,32", "--size", "T=3")
    assert (sized.status, sized.err) == (
        2, "E_ARGUMENT: the network has no symbol 'T'; its symbols: B\n"
    )  # fmt: skip
    backend = isomorph("verify", block, "--input", "B,8,32", "--backend", "tensor")
    assert (backend.status, backend.err.splitlines()[0]) == (2, "E_BACKEND: there is no backend 'tensor'")


def test_a_negative_seed_is_refused(isomorph, block):
    result = isomorph("verify", block, "--input", "B,8,32", "--seed", -1)
    assert result == (2, "", "E_ARGUMENT: seed must be an int >= 0, got -1\n")


def test_a_network_too_large_for_the_memory_is_refused_at_once(isomorph, tmp_path, monkeypatch):
    path = tmp_path / "large.net"
    path.write_text('input("B", 10000)\nfor _ in range(10):\n    linear(10000, bias=False)\n')
    monkeypatch.setattr(verifying, "available_bytes", lambda: 5 << 30)
    # 10 * 10,000**2 parameters of 40 bytes, and ten outputs of 2 * 10,000 elements of 24 bytes:
    # 40,000,000,000 + 4,800,000 bytes = 37.26 * 2**30.
    assert isomorph("verify", path) == (
        2,
        "",
        "E_RESOURCE: comparing 1,000,000,000 parameters with a float64 reference needs about 37.3 GiB, and "
        "5.0 GiB of memory are available\n"
        "  verify a smaller network: fewer repeated blocks or a narrower width test the same operators\n",
    )
    assert verifying.verification_bytes(resolve_file(path), {"B": 2}) == 40_004_800_000


def test_the_available_memory_is_that_of_this_machine():
    found = memory.available_bytes()
    assert found is not None
    assert 0 < found <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
