"""``train``: lines where nobody watches, results, a polite stop, and what is refused."""

import io
import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from rich.console import Console

from isomorph.cli.progress import Bar
from isomorph.training import loop

pytest.importorskip("torch")


@pytest.fixture
def arguments(tmp_path):
    """A small network, its data, and a place for the run."""
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "data.npz", x=rng.standard_normal((50, 3)), y=rng.integers(0, 2, 50))
    (tmp_path / "net.net").write_text('input("B", 3)\nlinear(2)\noutput("B", 2)\n')
    return [
        "train", tmp_path / "net.net", "--data", f"npz:{tmp_path}/data.npz", "--out", tmp_path / "run",
        "--batch-size", 5, "--warmup", 2,
    ]  # fmt: skip


def test_tells_how_it_goes_on_stderr_and_how_it_went_on_stdout(isomorph, arguments, tmp_path):
    result = isomorph(*arguments, "--steps", 40, "--evaluate-every", 20)
    assert result.status == 0
    lines = result.out.splitlines()
    assert lines[0].startswith("Test accuracy: ")
    assert " of 10 examples (loss " in lines[0]
    assert lines[1].startswith("Trained in ")
    assert lines[2] == f"{tmp_path}/run holds model.safetensors, metrics.jsonl and curve.png."
    told = result.err.splitlines()
    assert told[0] == "arrays of data.npz: 36 train, 4 validation, 10 test; 8 parameters"
    assert told[1].startswith("step      2 of 40  loss ")
    assert sum("validation loss" in line for line in told) == 2


def test_quiet_and_json(isomorph, arguments):
    quiet = isomorph(*arguments, "--steps", 2, "--quiet")
    assert quiet.err == ""
    assert quiet.out.startswith("Test accuracy: ")
    found = json.loads(isomorph(*arguments, "--steps", 2, "--json", "--force").out)
    assert (found["step"], found["stopped"], found["test_count"]) == (2, False, 10)


def test_a_resumed_run_needs_no_settings_again(isomorph, arguments, tmp_path):
    isomorph(*arguments, "--steps", 3, "--seed", 9)
    again = isomorph(*arguments, "--resume")
    assert again.status == 0
    assert again.out.splitlines()[1] == "This run had ended before."
    other = isomorph(*arguments, "--resume", "--seed", 8)
    assert (other.status, other.err.splitlines()[1]) == (2, "  seed: 9 there, 8 here")
    refused = isomorph(*arguments)
    assert (refused.status, refused.err.splitlines()[0]) == (
        2, f"E_CHECKPOINT: {tmp_path}/run holds a finished run",
    )  # fmt: skip


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_stops(isomorph, arguments, monkeypatch, tmp_path, number):
    before = signal.getsignal(number)
    write = loop.MetricsFile.write

    def interrupted(self, record) -> None:
        write(self, record)
        if record["step"] == 4:
            os.kill(os.getpid(), number)

    with monkeypatch.context() as patch:
        patch.setattr(loop.MetricsFile, "write", interrupted)
        result = isomorph(*arguments, "--steps", 10, "--quiet")
    assert (result.status, result.out) == (128 + number, "")
    assert result.err == "stopped after step 4 of 10; the same command with --resume continues\n"
    assert signal.getsignal(number) is before
    assert [path.name for path in (tmp_path / "run").glob("checkpoint-*")] == [
        "checkpoint-00000004.safetensors"
    ]
    resumed = isomorph(*arguments, "--resume")
    assert resumed.status == 0
    assert "; resuming after step 4" in resumed.err


def test_a_second_signal_stops_at_once(tmp_path, arguments):
    """The first is answered at once, and the second, here another one, ends the process."""
    code = (
        "import os, signal, sys, time\n"
        "from isomorph.training import loop\n"
        "def write(self, record):\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    time.sleep(0.01)\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    time.sleep(60)\n"
        "loop.MetricsFile.write = write\n"
        "from isomorph.cli.main import main\n"
        "main()\n"
    )
    command = [sys.executable, "-c", code, *map(str, arguments), "--steps", "10"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == -signal.SIGTERM
    assert done.stderr.splitlines()[-1] == "stopping after this step; again to stop at once"
    assert not (tmp_path / "run" / "model.safetensors").exists()


def test_an_empty_directory_name_deletes_nothing(isomorph, arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("config.json", "metrics.jsonl"):
        (tmp_path / name).write_text("precious")
    arguments[arguments.index("--out") + 1] = ""
    result = isomorph(*arguments, "--force")
    assert (result.status, result.err) == (2, "E_ARGUMENT: --out is empty: ''\n")
    arguments[arguments.index("--out") + 1] = "."
    result = isomorph(*arguments, "--force")
    assert (result.status, result.err.splitlines()[0]) == (
        2,
        "E_CHECKPOINT: . holds files that a run would replace, but no run made them: config.json is no run's "
        "configuration",
    )
    assert (tmp_path / "metrics.jsonl").read_text() == "precious"


def test_refuses(isomorph, arguments, tmp_path):
    both = isomorph(*arguments, "--resume", "--force")
    assert both.err == "E_ARGUMENT: --resume keeps the run that is there and --force deletes it: give one\n"
    zero = isomorph(*arguments, "--steps", 0)
    assert (zero.status, zero.err) == (2, "E_ARGUMENT: training setting steps must be >= 1, got 0\n")
    isomorph(*arguments, "--steps", 1)
    arguments[1] = tmp_path / "run" / "model.safetensors"
    model = isomorph(*arguments)
    assert "is a saved model; training starts from a definition" in model.err


def test_bits_per_byte_are_told_for_text(isomorph, tmp_path):
    (tmp_path / "net.net").write_text(
        'input("B", "T", dtype="int64")\nembedding(256, 2)\nlinear()\noutput("B", "T", 256)\n'
    )
    (tmp_path / "text").write_bytes(b"abc" * 200)
    result = isomorph(
        "train", tmp_path / "net.net", "--data", f"text:{tmp_path}/text", "--out", tmp_path / "run",
        "--steps", 1, "--length", 8, "--batch-size", 16, "--json",
    )  # fmt: skip
    loss = json.loads(result.out)["test_loss"]
    result = isomorph(
        "train",
        tmp_path / "net.net",
        "--data",
        f"text:{tmp_path}/text",
        "--out",
        tmp_path / "run",
        "--resume",
    )
    assert f"(loss {loss:.4f}, {loss / np.log(2):.3f} bits per byte)" in result.out


# -- signals, from the first line --------------------------------------------------------------

STARTING = """
import builtins, importlib, os, signal, sys, time
place, number = sys.argv.pop(1), int(sys.argv.pop(1))

def hang(*arguments):
    os.kill(os.getpid(), number)
    time.sleep(60)  # the signal acts here

if place == "import":
    class Finder:
        def find_spec(self, name, path=None, target=None):
            if name == "numpy":
                hang()
    sys.meta_path.insert(0, Finder())
elif place == "data":
    import isomorph.training.sources
    isomorph.training.sources.read_bytes = hang
else:
    import isomorph.training.loop
    isomorph.training.loop.load_trainer = hang
from isomorph.cli.main import main
main()
"""


@pytest.mark.parametrize("place", ["import", "data", "framework"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_acts_before_the_first_step(tmp_path, arguments, place, number):
    command = [sys.executable, "-c", STARTING, place, str(int(number)), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (-number, "", "")


def test_a_signal_that_is_ignored_stays_ignored(isomorph, arguments, monkeypatch):
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    write = loop.MetricsFile.write

    def interrupted(self, record) -> None:
        write(self, record)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(loop.MetricsFile, "write", interrupted)
    try:
        assert isomorph(*arguments, "--steps", 3, "--quiet").status == 0
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_run_on_changed_data_is_refused_in_a_terminal_too(isomorph, arguments, tmp_path):
    isomorph(*arguments, "--steps", 3)
    content = (tmp_path / "data.npz").read_bytes()
    rng = np.random.default_rng(1)
    np.savez(tmp_path / "data.npz", x=rng.standard_normal((50, 3)), y=rng.integers(0, 2, 50))
    result = isomorph(*arguments, "--resume")
    assert (result.status, result.err.splitlines()[0]) == (
        2,
        f"E_CHECKPOINT: {tmp_path}/run holds a run that was given other data: 'npz:{tmp_path}/data.npz' "
        "was changed since",
    )
    (tmp_path / "data.npz").write_bytes(content)
    assert isomorph(*arguments, "--resume").status == 0


def test_a_damaged_configuration_is_told_and_can_be_cleared(isomorph, arguments, tmp_path):
    isomorph(*arguments, "--steps", 1)
    config = tmp_path / "run" / "config.json"
    config.write_bytes(config.read_bytes()[:100])
    assert isomorph(*arguments, "--resume").err.startswith(
        f"E_CHECKPOINT: the run cannot be resumed: {config} is damaged: "
    )
    assert isomorph(*arguments, "--steps", 1, "--force").status == 0


@pytest.mark.parametrize(
    ("columns", "speed", "bar"), [(60, False, False), (80, True, False), (100, True, True)]
)
def test_progress_fits_the_terminal(columns, speed, bar):
    console = Console(
        width=columns, force_terminal=True, color_system=None, file=io.StringIO(), legacy_windows=False
    )
    shown = Bar(console)
    shown.bar.update(shown.task, total=12_000, completed=345)
    shown.validation, shown.unit = "  val 0.994", "image"
    shown.step({"step": 345, "loss": 0.1234, "accuracy": 0.987})
    console.print(shown.bar.get_renderable())
    (line,) = console.file.getvalue().splitlines()
    assert len(line) <= columns
    assert "345/12000 loss 0.1234  acc 0.987  val 0.994" in line
    assert ("images/s" in line, line[0] == "╸") == (speed, bar)
    assert "…" not in line
