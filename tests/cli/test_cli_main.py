"""What all verbs share: help, version, errors, pipes, and what is loaded when."""

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

from isomorph.backends.training_config import TrainingConfig
from isomorph.cli import main as cli


def python(code: str, **options) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, **options)


def test_help_lists_every_verb_and_loads_nothing_heavy():
    done = python(
        "import sys; sys.argv = ['isomorph', '--help']\n"
        "from isomorph.cli.main import main\n"
        "try: main()\n"
        "except SystemExit as end: assert end.code == 0\n"
        "heavy = {'torch', 'jax', 'numpy', 'rich', 'safetensors', 'sklearn', 'matplotlib'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    assert done.returncode == 0, done.stderr
    for verb in ("show", "check", "verify", "train", "docs"):
        assert f"\n  {verb} " in done.stdout
    assert "..." not in done.stdout.partition("Commands:")[2]  # no summary is cut off


def test_show_loads_no_framework(block):
    done = python(
        f"import sys; sys.argv = ['isomorph', 'show', {str(block)!r}, '--input', 'B,8,32']\n"
        "from isomorph.cli.main import main\n"
        "try: main()\n"
        "except SystemExit as end: assert end.code == 0\n"
        "assert not {'torch', 'jax'} & set(sys.modules)\n"
    )
    assert done.returncode == 0, done.stderr


def test_python_m_is_the_same_program():
    command = [sys.executable, "-m", "isomorph", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "isomorph 0.1.0\n", "")


def test_version(isomorph):
    assert isomorph("--version") == (0, "isomorph 0.1.0\n", "")


def test_no_arguments_show_help(isomorph):
    result = isomorph()
    assert "Usage: isomorph" in result.out + result.err


def test_an_error_is_shown_as_it_is_without_a_traceback(isomorph, tmp_path):
    path = tmp_path / "bad.net"
    path.write_text("transformer_block(3)\n")
    assert isomorph("show", path, "--input", "B,8,32") == (
        2,
        "",
        "E_CONSTRAINT: heads=3 does not divide the model width D=32\n"
        f"  {path}:1:19\n"
        "  1 | transformer_block(3)\n"
        "    |                   ^\n"
        "  D=32 comes from input x[B, 8, 32]\n"
        "  heads that divide 32: 1, 2, 4, 8, 16, 32\n",
    )


def test_a_bug_shows_its_traceback(monkeypatch):
    def fail(**named: str) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(cli, "app", fail)
    with pytest.raises(RuntimeError, match="a bug"):
        cli.main()


@pytest.mark.parametrize("arguments", [("nope",), ("show",), ("show", "--nope"), ("train", "a.net")])
def test_misuse_has_status_2(isomorph, arguments):
    result = isomorph(*arguments)
    assert result.status == 2
    assert "Error: " in result.err


def test_a_broken_pipe_is_silent(tmp_path):
    path = tmp_path / "long.net"
    path.write_text('input("B", 3)\nfor _ in range(5000):\n    tanh()\n')
    command = [sys.executable, "-c", "from isomorph.cli.main import main; main()", "show", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        process.wait(timeout=60)


def test_help_states_the_real_defaults():
    defaults = TrainingConfig(data="").to_dict()
    stated = {}
    for name, parameter in inspect.signature(cli.train, eval_str=True).parameters.items():
        for option in getattr(parameter.annotation, "__metadata__", ()):
            match = re.search(r"\[(.+)\]\.$", getattr(option, "help", None) or "")
            if match:
                stated[name] = match[1]
    assert len(stated) >= 12
    assert stated == {name: f"{defaults[name]:g}" if isinstance(defaults[name], float) else str(defaults[name])
                      for name in stated}  # fmt: skip


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("layers", [1, 5000])  # within one buffer, and beyond
def test_output_that_cannot_be_written_is_told(tmp_path, layers):
    path = tmp_path / "net.net"
    path.write_text(f'input("B", 3)\nfor _ in range({layers}):\n    tanh()\n')
    command = [sys.executable, "-c", "from isomorph.cli.main import main; main()", "show", str(path)]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr == b"isomorph: cannot write the output: No space left on device\n"
