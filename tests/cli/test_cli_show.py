"""``show`` and ``check``: tables, contracts from the command line, models, JSON."""

import io
import json
import sys
from types import SimpleNamespace

import pytest

import isomorph as iso
from isomorph.backends.training_config import TrainingConfig
from isomorph.cli.show import of_bytes, scaled
from isomorph.training.checkpoint import RunDirectory
from isomorph.training.data import Fingerprint

BLOCK = """\
Network: [B, 8, 32] -> [B, 8, 32]  dtype=float32
index  name  operation          input shapes  output shapes
0      n0    transformer_block  x=[B, 8, 32]  out=[B, 8, 32]

Parameters: 12,704
"""


def test_shows_the_table_the_parameters_and_the_cost(isomorph, block):
    result = isomorph("show", block, "--input", "B,8,32")
    assert result.status == 0
    assert result.out.startswith(BLOCK + "\nFLOPs: ")
    # 12,704 parameters of 4 bytes are 49.6 KiB.
    assert "for one forward pass at B=1\nMemory: 49.6 KiB parameters, " in result.out


def test_the_documents_third_example(isomorph, tmp_path):
    path = tmp_path / "three.net"
    path.write_text("linear(16)\ntransformer_block(2, mlp_ratio=2, layer_scale=True)\nlinear()\n")
    result = isomorph("show", path, "--input", "[B, 6, 8]", "--output", "B,6,8")
    assert result.out.startswith(
        "Network: [B, 6, 8] -> [B, 6, 8]  dtype=float32\n"
        "index  name  operation          input shapes  output shapes\n"
        "0      n0    linear             x=[B, 6, 8]   out=[B, 6, 16]\n"
        "1      n1    transformer_block  x=[B, 6, 16]  out=[B, 6, 16]\n"
        "2      n2    linear             x=[B, 6, 16]  out=[B, 6, 8]\n"
        "\n"
        "Parameters: 2,536\n"
    )


def test_expands_the_stages_inside_a_block(isomorph, block):
    out = isomorph("show", block, "--input", "B,T,32", "--expand").out
    assert out.endswith(
        "stage           operation   output shape\n"
        "n0.norm1        layer_norm  [B, T, 32]\n"
        "n0.attn.q_proj  linear      [B, T, 32]\n"
        "n0.attn         reshape     [B, T, 4, 8]\n"
        "n0.attn.k_proj  linear      [B, T, 32]\n"
        "n0.attn         reshape     [B, T, 4, 8]\n"
        "n0.attn.v_proj  linear      [B, T, 32]\n"
        "n0.attn         reshape     [B, T, 4, 8]\n"
        "n0.attn         scores      [B, 4, T, T]\n"
        "n0.attn         attention   [B, 4, T, 8]\n"
        "n0.attn         reshape     [B, T, 32]\n"
        "n0.attn.o_proj  linear      [B, T, 32]\n"
        "n0              add         [B, T, 32]  residual\n"
        "n0.norm2        layer_norm  [B, T, 32]\n"
        "n0.ffn.up       linear      [B, T, 128]\n"
        "n0.ffn          gelu        [B, T, 128]\n"
        "n0.ffn.down     linear      [B, T, 32]\n"
        "n0              add         [B, T, 32]  residual\n"
    )


def test_costs_have_a_row_per_node_and_a_total(isomorph, tmp_path):
    path = tmp_path / "two.net"
    path.write_text('linear(5, bias=False, name="a")\nrelu(name="b")\n')
    out = isomorph("show", path, "--input", "B,3", "--size", "B=10", "--costs").out
    # 2 * 10 * 3 * 5 = 300 operations and 50 numbers of 4 bytes; then one operation and 4 bytes for each.
    assert out.endswith(
        "name   operation  parameters  FLOPs  activations  keys and values\n"
        "a      linear             15    300        200 B              0 B\n"
        "b      relu                0     50        200 B              0 B\n"
        "total                     15    350        400 B              0 B\n"
    )


def test_json_holds_what_the_table_holds(isomorph, block):
    result = isomorph("show", block, "--input", "B,8,32", "--expand", "--json")
    shown = json.loads(result.out)
    assert shown["parameter_count"] == 12_704
    assert shown["inputs"] == [{"name": "x", "shape": ["B", 8, 32], "dtype": "float32"}]
    assert shown["nodes"][0]["operation"] == "transformer_block@1"
    assert shown["nodes"][0]["arguments"]["heads"] == 4
    assert shown["total"]["parameter_bytes"] == 4 * 12_704
    assert shown["stages"][7] == {
        "path": "n0.attn", "operation": "scores", "shape": ["B", 4, 8, 8], "note": "",
    }  # fmt: skip


def test_frozen_parameters_are_counted(isomorph, tmp_path):
    path = tmp_path / "frozen.net"
    path.write_text("linear(5)\nlinear(2, trainable=False)\n")
    assert "\nParameters: 32\nFrozen: 12\n" in isomorph("show", path, "--input", "B,3").out


def test_several_contracts_are_named(isomorph, tmp_path):
    path = tmp_path / "masked.net"
    path.write_text("attention(x, 2, mask=m)\n")
    arguments = ("--input", "x=B,T,8", "--input", "m=B,T", "--input-dtype", "m=bool", "--dtype", "float64")
    result = isomorph("show", path, *arguments)
    assert result.out.splitlines()[0] == (
        "Network: x=[B, T, 8], m=[B, T] -> [B, T, 8]  dtype=float64  input_dtype=m:bool"
    )
    wrong = isomorph("show", path, "--input", "x=B,T,8", "--input", "B,T")
    assert (
        wrong.err
        == "E_ARGUMENT: --input is given several times, so each needs a name, got 'B,T'\n  --input NAME=...\n"
    )
    twice = isomorph("show", path, "--input", "x=B,T,8", "--input", "x=B,T")
    assert twice.err.startswith("E_ARGUMENT: --input is given twice for one name, got 'x=B,T'\n")


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--input", "B,,8", "E_ARGUMENT: a shape is written as B,8,32, got 'B,,8'\n  sizes between commas\n"),
        ("--size", "T", "E_ARGUMENT: --size is written as T=16, got 'T'\n"),
        ("--size", "T=-1", "E_ARGUMENT: --size is written as T=16, got 'T=-1'\n"),
    ],
)
def test_refuses_what_it_cannot_read(isomorph, block, option, value, message):
    arguments = ["--input", "B,8,32"] if option == "--size" else []
    assert isomorph("show", block, *arguments, option, value) == (2, "", message)


def test_reads_standard_input(isomorph, monkeypatch):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"transformer_block(4)\n")))
    assert isomorph("show", "-", "--input", "B,8,32").out.startswith(BLOCK)


def test_a_missing_file_is_told(isomorph):
    assert isomorph("show", "/no/such.net") == (
        2, "",
        "E_ARGUMENT: cannot read the definition /no/such.net: No such file or directory\n"
        "  give the path of a .net file\n",
    )  # fmt: skip


def test_a_saved_model_and_a_runs_directory_are_networks_too(isomorph, tmp_path):
    plan = iso.resolve("transformer_block(4)", input=("B", 8, 32))
    iso.save(tmp_path / "model.safetensors", plan, iso.initial_weights(plan))
    assert isomorph("show", tmp_path / "model.safetensors").out.startswith(BLOCK)
    assert isomorph("show", tmp_path).out.startswith(BLOCK)
    refused = isomorph("show", tmp_path, "--input", "B,8,32")
    assert refused.status == 2
    assert "is a saved model, whose contracts and dtype are in it" in refused.err


def test_checks_every_file_and_tells_all_errors(isomorph, block, tmp_path):
    bad = tmp_path / "bad.net"
    bad.write_text("transformer_blok(4)\n")
    result = isomorph("check", block, bad, block, "--input", "B,8,32")
    line = f"{block}: [B, 8, 32] -> [B, 8, 32], 12,704 parameters\n"
    assert (result.status, result.out) == (2, 2 * line)
    assert result.err.startswith("E_OPERATOR: there is no operator 'transformer_blok'\n")
    assert isomorph("check", block, "--input", "B,8,32", "--quiet") == (0, "", "")
    found = json.loads(isomorph("check", block, bad, "--input", "B,8,32", "--json").out)
    assert [(one["ok"], one.get("code")) for one in found] == [(True, None), (False, "E_OPERATOR")]


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.00 KiB"), (12_700, "12.4 KiB"), (150 << 20, "150 MiB")],
)
def test_bytes_are_written_for_people(count, text):
    assert of_bytes(count) == text


@pytest.mark.parametrize(("count", "text"), [(999, "999"), (1234, "1.23 k"), (319_000_000_000, "319 G")])
def test_counts_are_written_for_people(count, text):
    assert scaled(count, 1000, "") == text


def test_an_error_without_a_place_names_its_file(isomorph, tmp_path, block):
    other = tmp_path / "other.net"
    other.write_text("linear(4)\n")
    hint = '--input B,8,32, or begin the definition with input("B", 8, 32)'
    assert isomorph("check", block, other) == (
        2, "", "".join(f"{path}: E_BINDING: no input is declared\n  {hint}\n" for path in (block, other)),
    )  # fmt: skip
    found = json.loads(isomorph("check", block, "--json").out)
    assert found == [
        {
            "file": str(block), "ok": False, "code": "E_BINDING", "message": "no input is declared",
            "line": None, "column": None, "hints": [hint],
        }
    ]  # fmt: skip
    found = json.loads(isomorph("check", block, "--input", "B,8,30", "--json").out)
    assert (found[0]["message"], found[0]["line"], found[0]["column"]) == (
        "heads=4 does not divide the model width D=30", 1, 19
    )  # fmt: skip


def test_an_unfinished_run_says_how_to_go_on(isomorph, tmp_path):
    assert isomorph("show", tmp_path).err == (
        f"E_CHECKPOINT: {tmp_path} is a directory without a model.safetensors\n"
        "  give a definition (.net), a saved model, or the directory of a finished run\n"
    )
    run = RunDirectory(tmp_path)
    with run.own():
        run.open(iso.resolve('input("B", 3)\nlinear(2)'), TrainingConfig("digits"), resume=False, force=False)
        run.begin(Fingerprint.of(b""))
        run.save(1200, {})
    result = isomorph("show", tmp_path)
    assert (result.status, result.err) == (
        2,
        f"E_CHECKPOINT: {tmp_path} holds an unfinished run, saved after step 1,200, and no model yet\n"
        f"  isomorph train with --resume continues it; its network is {tmp_path}/definition.net\n",
    )


@pytest.mark.parametrize(
    ("size", "message"),
    [
        ("T=99999999999999999999", "--size T has at most 18 digits, got 'T=99999999999999999999'"),
        ("T", "--size is written as T=16, got 'T'"),
        ("T=-1", "--size is written as T=16, got 'T=-1'"),
    ],
)
def test_sizes_that_cannot_be_read(isomorph, block, size, message):
    result = isomorph("show", block, "--input", "B,T,32", "--size", size)
    assert (result.status, result.err) == (2, f"E_ARGUMENT: {message}\n")


def test_an_empty_path_is_refused(isomorph, block):
    assert isomorph("show", "").err == "E_ARGUMENT: FILE is empty: ''\n"
    assert isomorph("draw", block, "--input", "B,8,32", "--out", "").err == "E_ARGUMENT: --out is empty: ''\n"
    assert isomorph("docs", "--out", "").err == "E_ARGUMENT: --out is empty: ''\n"
