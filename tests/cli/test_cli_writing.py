"""What the writing of a result may touch, through the verbs and the functions that write."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import isomorph as iso
from isomorph.source_code import export_python
from isomorph.writing.marks import onnx_marked, seal, text_kind
from isomorph.writing.rule import Target, file_target

TEXT = 'x = input("B", 3)\nlinear(2)\n'
PLAN = iso.resolve(TEXT)
WEIGHTS = iso.initial_weights(PLAN)
NOTE = text_kind("note", (".txt",), "# {}")
FORCE = "  choose another name, or replace it: --force, in Python force=True"


def refusal(call, *arguments, **named) -> str:
    with pytest.raises(iso.IsomorphError) as caught:
        call(*arguments, **named)
    assert caught.value.code == "E_OUTPUT"
    return str(caught.value)


def contents(directory: Path) -> dict[str, bytes]:
    """Every regular file below, links left out."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and not path.is_symlink()
    }


@pytest.fixture
def net(tmp_path) -> Path:
    path = tmp_path / "k.net"
    path.write_text(TEXT)
    return path


@pytest.fixture
def model(tmp_path) -> Path:
    path = tmp_path / "m.safetensors"
    iso.save(path, PLAN, WEIGHTS)
    return path


# -- inputs --------------------------------------------------------------------------------------


@pytest.mark.parametrize("force", [[], ["--force"]])
@pytest.mark.parametrize("make", ["itself", "symlink", "hardlink"])
def test_an_input_is_never_overwritten(isomorph, tmp_path, force, make):
    """Whatever it is called, and whatever force says; here under a name that says the right format."""
    net = tmp_path / "k.svg"
    net.write_text(TEXT)
    out = net
    if make != "itself":
        out = tmp_path / "other.svg"
        out.symlink_to(net) if make == "symlink" else out.hardlink_to(net)
    which = "is read" if make == "itself" else f"is {net}, which is read"
    assert isomorph("draw", net, "-o", out, *force) == (
        2, "", f"E_OUTPUT: {out} {which}, and an input is never overwritten\n  choose another name\n",
    )  # fmt: skip
    assert net.read_text() == TEXT


def test_a_definition_is_no_place_for_a_picture_or_weights(isomorph, net, model):
    """The two commands that destroyed a definition."""
    before = contents(net.parent)
    assert isomorph("draw", net, "-o", net, "--force").err == (
        f"E_OUTPUT: the extension says the format: expected .svg or .mmd or .mermaid, got .net in {net}\n"
        f"  as in {net.with_suffix('.svg')}\n"
    )
    assert isomorph("convert", model, "--to", "nnx", "--out", net, "--force").err == (
        f"E_OUTPUT: the extension says the format: expected .safetensors, got .net in {net}\n"
        f"  as in {net.with_suffix('.safetensors')}\n"
    )
    assert isomorph("convert", model, "--to", "nnx", "--out", model, "--force").err == (
        f"E_OUTPUT: {model} is read, and an input is never overwritten\n  choose another name\n"
    )
    assert contents(net.parent) == before


def test_standard_input_is_an_input(tmp_path):
    net = tmp_path / "k.svg"
    net.write_text(TEXT)
    with net.open() as file:
        done = run("draw", "-", "-o", net, "--force", stdin=file)
    assert (done.returncode, net.read_text()) == (2, TEXT)
    assert done.stderr.decode() == (
        f"E_OUTPUT: {net} is standard input, which is read, and an input is never overwritten\n"
        "  choose another name\n"
    )


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_an_export_never_replaces_its_model(isomorph, model, tmp_path, link):
    for name in ("python", "hf", "onnx"):
        out = tmp_path / name
        out.mkdir()
        link(model, out / ("model.onnx" if name == "onnx" else "model.safetensors"))
        before = contents(tmp_path)
        if name == "python":
            assert isomorph("export", model, "--to", name, "-o", out, "--force").err == (
                f"E_OUTPUT: {out / 'model.safetensors'} is {model}, which is read, and an input is never "
                "overwritten\n  choose another name\n"
            )
        else:
            assert isomorph("export", model, "--to", name, "-o", out, "--force").status == 2
        assert contents(tmp_path) == before


def test_a_run_begun_by_force_keeps_its_definition_and_its_data(isomorph, net, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.json").write_text('{"plan": "", "training": {}}')
    for name in ("definition.net", "metrics.jsonl"):
        (run / name).write_text(TEXT)
    before = contents(tmp_path)
    for file, data in ((run / "definition.net", "digits"), (net, f"text:{run / 'metrics.jsonl'}")):
        result = isomorph("train", file, "--data", data, "--out", run, "--force")
        assert (result.status, result.err.splitlines()[0].partition("/")[0]) == (2, "E_OUTPUT: ")
        assert " is read, and an input is never overwritten" in result.err
        assert contents(tmp_path) == before


# -- what was not written here -----------------------------------------------------------------------


def test_a_foreign_file_is_replaced_with_force_alone(isomorph, net, model, tmp_path):
    svg, arrays, saved = tmp_path / "a.svg", tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    for path in (svg, arrays, saved):
        path.write_bytes(b"somebody's")
    verbs = {
        svg: ("picture", ["draw", net, "-o", svg]),
        arrays: ("file of converted weights", ["convert", model, "--to", "torch", "--out", arrays]),
    }
    for path, (noun, arguments) in verbs.items():
        assert isomorph(*arguments) == (
            2, "",
            f"E_OUTPUT: {path} is there already, and is no {noun} as it is written here, or was changed since\n"
            f"{FORCE}\n",
        )  # fmt: skip
        assert path.read_bytes() == b"somebody's"
        assert isomorph(*arguments, "--force").status == 0
        written = path.read_bytes()
        assert written != b"somebody's"
        assert isomorph(*arguments).status == 0  # its own, as often as one likes
        assert path.read_bytes() == written
    assert refusal(iso.save, saved, PLAN, WEIGHTS) == (
        f"E_OUTPUT: {saved} is there already, and is no model as it is written here, or was changed since\n{FORCE}"
    )
    iso.save(saved, PLAN, WEIGHTS, force=True)
    iso.save(saved, PLAN, WEIGHTS)


def test_a_verb_does_not_know_the_files_of_another_as_its_own(isomorph, model, tmp_path):
    """A trained model has the extension of converted weights; so have they that of a model."""
    other = tmp_path / "trained.safetensors"
    iso.save(other, PLAN, WEIGHTS)
    before = other.read_bytes()
    assert isomorph("convert", model, "--to", "torch", "--out", other).status == 2
    assert other.read_bytes() == before
    assert isomorph("convert", model, "--to", "torch").status == 0
    refusal(iso.save, tmp_path / "m.torch.safetensors", PLAN, WEIGHTS)


def test_an_edited_text_is_somebody_elses(isomorph, net, tmp_path):
    svg, source, pages = tmp_path / "a.svg", tmp_path / "out" / "model.py", tmp_path / "pages"
    isomorph("draw", net, "-o", svg)
    export_python(tmp_path / "out", PLAN)
    isomorph("docs", "--out", pages)
    again = {
        svg: lambda *force: isomorph("draw", net, "-o", svg, *force),
        source: lambda *force: isomorph("export", net, "--to", "python", "-o", tmp_path / "out", *force),
        pages / "linear.md": lambda *force: isomorph("docs", "--out", pages, *force),
    }
    for path, write in again.items():
        assert write().status == 0
        whole = path.read_bytes()
        for edited in (whole[:9] + b"\0" + whole[10:], whole + b" ", whole[:-1], b"\n" + whole):
            path.write_bytes(edited)
            before = contents(tmp_path)
            assert write().err.startswith(f"E_OUTPUT: {path} is there already, and is no ")
            assert contents(tmp_path) == before
        assert write("--force").status == 0
        assert path.read_bytes() == whole


def test_a_foreign_source_file_stops_an_export_before_anything_is_written(tmp_path):
    (tmp_path / "model.py").write_text("mine")
    assert refusal(export_python, tmp_path, PLAN, WEIGHTS) == (
        f"E_OUTPUT: {tmp_path / 'model.py'} is there already, and is no source code as it is written here, or was "
        f"changed since\n{FORCE}"
    )
    assert contents(tmp_path) == {"model.py": b"mine"}
    assert export_python(tmp_path, PLAN, WEIGHTS, force=True) == ["model.py", "model.safetensors"]
    compile((tmp_path / "model.py").read_text(), "model.py", "exec")


def test_an_empty_file_holds_nothing_to_lose(tmp_path):
    (tmp_path / "m.safetensors").touch()
    iso.save(tmp_path / "m.safetensors", PLAN, WEIGHTS)
    assert iso.load(tmp_path / "m.safetensors")[0] == PLAN


# -- extensions --------------------------------------------------------------------------------------


def test_the_extension_says_the_format_or_is_refused(isomorph, net, model, tmp_path):
    for name in ("x.png", "x", "x.html", ".svg"):
        assert isomorph("draw", net, "-o", tmp_path / name).err.startswith(
            "E_OUTPUT: the extension says the format: expected .svg or .mmd or .mermaid, got "
        )
    for name in ("x.mmd", "x.MERMAID"):
        assert isomorph("draw", net, "-o", tmp_path / name).status == 0
        assert (tmp_path / name).read_text().startswith("flowchart TB\n")
    assert isomorph("draw", net, "-o", tmp_path / "x.svg", "--format", "mermaid").err == (
        "E_OUTPUT: the extension says the format: expected .mmd or .mermaid, got .svg in "
        f"{tmp_path / 'x.svg'}\n  as in {tmp_path / 'x.mmd'}\n"
    )
    assert isomorph("draw", net, "-o", tmp_path / "bare", "--format", "svg").status == 0
    assert refusal(iso.save, tmp_path / "m.pt", PLAN, WEIGHTS).startswith(
        "E_OUTPUT: the extension says the format: expected .safetensors, got .pt in "
    )
    for to in ("hf", "onnx", "python"):
        out = tmp_path / "model.pt"
        assert isomorph("export", model, "--to", to, "-o", out).err == (
            f"E_OUTPUT: {out} looks like a file's name, and a directory is to be written\n"
            f"  for a directory of that name: {out}/\n"
        )
        assert not out.exists()
    assert not any((tmp_path / name).exists() for name in ("x.png", "x", "x.html", "m.pt"))


def test_an_import_makes_no_directory_with_the_name_of_a_file(isomorph, tmp_path):
    text = """
ids = input("B", "T", dtype="int64")
embedding(5, 4, name="words")
pos_embed(6)
transformer_block(2, causal=True, activation="gelu_tanh")
layer_norm()
linear(5, bias=False, tie={"weight": "words.weight"})
"""
    plan = iso.resolve(text)
    iso.export_checkpoint(tmp_path / "published", plan, iso.initial_weights(plan))
    source = tmp_path / "published"
    assert isomorph("import", source, "-o", tmp_path / "x.pt").err == (
        f"E_OUTPUT: {tmp_path / 'x.pt'} looks like a file's name, and a directory is to be written\n"
        f"  for a directory of that name: {tmp_path / 'x.pt'}/\n"
    )
    assert not (tmp_path / "x.pt").exists()
    for name in ("x.pt/", "gpt2-v1.5", "Qwen2.5-0.5B"):
        assert isomorph("import", source, "-o", f"{tmp_path}/{name}").status == 0
        assert sorted(os.listdir(f"{tmp_path}/{name}")) == ["model.net", "model.safetensors"]
    assert isomorph("import", source, "-o", "/dev/stdout").err.startswith("E_OUTPUT: /dev/stdout ")


# -- what is no file ---------------------------------------------------------------------------------


def run(*arguments, **named) -> subprocess.CompletedProcess[bytes]:
    code = "from isomorph.cli.main import main; main()"
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, **{"stderr": subprocess.PIPE, "stdout": subprocess.PIPE, **named})


def read_fifo(path: Path, write) -> bytes:
    """What ``write`` writes to a pipe that somebody reads."""
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(path.read_bytes()))
    reader.start()
    write()
    reader.join(timeout=60)
    return read[0]


@pytest.mark.skipif(os.name == "nt", reason="there are no such pipes")
def test_a_pipe_stays_a_pipe_and_gets_the_bytes(isomorph, net, model, tmp_path):
    fifo = tmp_path / "pipe"
    os.mkfifo(fifo)
    assert read_fifo(fifo, lambda: iso.save(fifo, PLAN, WEIGHTS)) == model.read_bytes()
    isomorph("draw", net, "-o", tmp_path / "a.svg")
    read = read_fifo(fifo, lambda: isomorph("draw", net, "-o", fifo))
    assert read == (tmp_path / "a.svg").read_bytes()
    assert fifo.is_fifo()


@pytest.mark.skipif(os.name == "nt", reason="there are no such devices")
def test_a_device_stays_a_device(isomorph, net, tmp_path):
    """A link to one, so that nothing is broken where the rule is."""
    for device, status in (("/dev/null", 0), ("/dev/full", 2)):
        link = tmp_path / f"to{device.replace('/', '-')}"
        link.symlink_to(device)
        result = isomorph("draw", net, "-o", link)
        assert (result.status, result.out) == (status, "")
        assert Path(device).is_char_device()
        assert link.is_symlink()
        with_null = device == "/dev/null"
        if with_null:
            iso.save(link, PLAN, WEIGHTS)
        else:
            assert refusal(iso.save, link, PLAN, WEIGHTS) == (
                f"E_OUTPUT: cannot write {link}: No space left on device\n  there must be room for a second copy "
                "of the file: the old one stays until the new one is whole"
            )
    pty = pytest.importorskip("pty")
    leader, follower = pty.openpty()
    try:
        name = os.ttyname(follower)
        assert isomorph("draw", net, "-o", name).status == 0
        assert os.read(leader, 4) == b"<svg"
        assert os.path.exists(name) and not os.path.isfile(name)
    finally:
        os.close(leader)
        os.close(follower)


@pytest.mark.skipif(not os.path.exists("/dev/stdout"), reason="standard output has no name")
def test_standard_output_is_written_where_it_stands(net, tmp_path):
    picture = run("draw", net, "-o", "/dev/stdout").stdout  # into a pipe, and nothing else with it
    assert picture.startswith(b"<svg") and picture.endswith(b"-->\n")
    log = tmp_path / "log"
    log.write_bytes(b"what was there\n")
    with log.open("ab") as file:
        assert run("draw", net, "-o", "/dev/stdout", stdout=file).returncode == 0
    assert log.read_bytes() == b"what was there\n" + picture
    with net.open("ab") as file:  # the definition itself
        assert run("draw", net, "-o", "/dev/stdout", stdout=file).returncode == 2
    assert net.read_text() == TEXT


@pytest.mark.skipif(os.name == "nt", reason="there are no such sockets")
def test_directories_and_sockets_are_refused(isomorph, net, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the name of a socket may have about 100 characters
    (tmp_path / "d.svg").mkdir()
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind("s.svg")
        for name, what in (("d.svg", "a directory"), ("s.svg", "a socket")):
            for force in ([], ["--force"]):
                assert isomorph("draw", net, "-o", name, *force).err == (
                    f"E_OUTPUT: {name} is {what}; expected the name of a file for the picture\n"
                    "  choose another name\n"
                )
    assert refusal(export_python, net, PLAN) == (
        f"E_OUTPUT: {net} is no directory, and several files are to be written\n"
        "  choose a directory, which is made where there is none"
    )


@pytest.mark.skipif(os.name == "nt", reason="there are no such pipes")
def test_no_file_of_a_directory_takes_the_place_of_a_pipe(isomorph, net, tmp_path):
    (tmp_path / "out").mkdir()
    os.mkfifo(tmp_path / "out" / "model.py")
    assert isomorph("export", net, "--to", "python", "-o", tmp_path / "out", "--force").err == (
        f"E_OUTPUT: {tmp_path / 'out' / 'model.py'} is a pipe or a device; expected the name of a file for the "
        "source code\n  choose another name\n"
    )
    assert (tmp_path / "out" / "model.py").is_fifo()


# -- names that cannot be written ------------------------------------------------------------------------


def test_a_file_name_of_300_characters(isomorph, net, model, tmp_path, monkeypatch):
    """As a result and as an input, of every verb: never a traceback."""
    monkeypatch.chdir(tmp_path)
    long = "a" * 300
    too_long = "File name too long\n  choose a shorter name\n"
    assert (
        isomorph("draw", net, "-o", f"{long}.svg").err
        == f"E_OUTPUT: cannot write {long[:197]}...: {too_long}"
    )
    assert (
        refusal(iso.save, long, PLAN, WEIGHTS) + "\n" == f"E_OUTPUT: cannot write {long[:197]}...: {too_long}"
    )
    for arguments in (
        ["convert", model, "--to", "nnx", "--out", f"{long}.safetensors"],
        ["export", model, "--to", "python", "-o", long],
        ["export", model, "--to", "hf", "-o", long],
        ["docs", "--out", long],
        ["train", net, "--data", "digits", "--out", long],
    ):
        assert isomorph(*arguments).err.startswith("E_OUTPUT: cannot write "), arguments[0]
    reading = ["show", "check", "draw", "verify", "train", "convert", "generate", "export"]
    needed = {
        "train": ["--data", "digits"], "convert": ["--to", "nnx"], "generate": ["--ids", "1"], "export": ["-o", "x"],
    }  # fmt: skip
    for verb in reading:
        for name in (long, f"{long}.net", f"{long}.safetensors", f"no/{long}"):
            assert isomorph(verb, name, *needed.get(verb, [])).status == 2
    assert isomorph("import", long, "-o", "x").status == 2
    assert sorted(os.listdir(tmp_path)) == ["k.net", "m.safetensors"]


def test_a_name_as_long_as_the_system_takes(tmp_path):
    name = "a" * (255 - len(".safetensors")) + ".safetensors"
    for _ in range(2):
        iso.save(tmp_path / name, PLAN, WEIGHTS)
    assert os.listdir(tmp_path) == [name]


def test_places_where_nothing_can_be_written(net, tmp_path):
    (tmp_path / "loop.txt").symlink_to("loop.txt")
    (tmp_path / "lost.txt").symlink_to("no/where.txt")
    for name, message in {
        "no/a.txt": "No such file or directory\n  make its directory first",
        "lost.txt": "No such file or directory\n  make its directory first",
        "k.net/a.txt": "Not a directory\n  what stands before the last / must be a directory",
        "loop.txt": "Too many levels of symbolic links\n  it is a link that leads back to itself: choose another name",
    }.items():
        path = tmp_path / name
        assert refusal(file_target, path, NOTE, "a path") == f"E_OUTPUT: cannot write {path}: {message}"
    assert refusal(file_target, f"{tmp_path}/new.txt/", NOTE, "a path", bare=True) == (
        f"E_OUTPUT: cannot write {tmp_path}/new.txt/: Is a directory\n  choose another name"
    )
    with pytest.raises(iso.IsomorphError, match="E_ARGUMENT: a path holds a NUL character"):
        file_target("a\0b", NOTE, "a path")
    assert contents(tmp_path) == {"k.net": TEXT.encode()}


def test_a_link_to_nowhere_gives_its_file(tmp_path):
    (tmp_path / "link.safetensors").symlink_to("new.safetensors")
    iso.save(tmp_path / "link.safetensors", PLAN, WEIGHTS)
    assert (tmp_path / "link.safetensors").is_symlink()
    assert iso.load(tmp_path / "new.safetensors")[0] == PLAN


def test_a_failed_write_leaves_the_old_file_and_no_directory(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    export_python(tmp_path / "old", PLAN, WEIGHTS)
    before = contents(tmp_path)
    monkeypatch.setattr(os, "fsync", full)
    refusal(export_python, tmp_path / "old", PLAN, WEIGHTS, "nnx")
    refusal(export_python, tmp_path / "new" / "er", PLAN, WEIGHTS)
    assert contents(tmp_path) == before
    assert os.listdir(tmp_path) == ["old"]


# -- how files are known -------------------------------------------------------------------------------


def test_a_sealed_text_is_known_until_it_is_changed(tmp_path):
    path = tmp_path / "a.txt"
    for text in ("", "one", "one\ntwo\n", "é\n"):
        path.write_bytes(seal(text, "# {}"))
        assert NOTE.is_own(str(path))
        path.write_bytes(seal(text, "# {}").replace(b"\n", b"\r\n"))
        assert not NOTE.is_own(str(path))
    for other in (b"", b"\n", b"# isomorph\n", b"# isomorph " + b"0" * 32 + b"\n", b"\0" * 1000):
        path.write_bytes(other)
        assert not NOTE.is_own(str(path))


def test_an_onnx_file_is_known_by_its_metadata(tmp_path):
    onnx = pytest.importorskip("onnx")
    path, is_own = str(tmp_path / "m.onnx"), onnx_marked("isomorph.definition")
    graph = onnx.helper.make_graph([], "g", [], [])
    for key, known in (("isomorph.definition", True), ("author", False)):
        made = onnx.helper.make_model(graph)
        onnx.helper.set_model_props(made, {"a": "b", key: "linear(2)"})
        onnx.save(made, path)
        assert is_own(path) is known
    for other in (b"", b"PK\3\4 isomorph.definition", b"\x7a\x15\x0a\x13isomorph.definition", b"\xff" * 99):
        Path(path).write_bytes(other)
        assert not is_own(path)


def test_a_target_says_whether_it_streams(tmp_path):
    assert not Target(str(tmp_path / "a.txt"), NOTE).streams
    assert Target(os.devnull, NOTE).streams


# -- encodings -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("encoding", "arguments"),
    [("latin-1", ["docs", "attention"]), ("ascii", ["show", "NET", "--expand"]), ("ascii", ["check", "NET"])],
)
def test_no_encoding_of_the_terminal_ends_in_a_traceback(tmp_path, encoding, arguments):
    """A name that is no text in it either; what the encoding has stays as it is, the rest is escaped."""
    net = tmp_path / "k\u2192.net"
    net.write_text(TEXT)
    given = [net if one == "NET" else one for one in arguments]
    plain = run(*given, env={**os.environ, "PYTHONIOENCODING": "utf-8"})
    done = run(*given, env={**os.environ, "PYTHONIOENCODING": encoding})
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout == plain.stdout.decode().encode(encoding, "backslashreplace")


@pytest.mark.skipif(sys.platform != "linux", reason="names are text elsewhere")
def test_a_file_name_that_is_no_text(tmp_path):
    out = os.fsdecode(os.fsencode(tmp_path) + b"/\xff.svg")
    net = tmp_path / "k.net"
    net.write_text(TEXT)
    done = run("draw", net, "-o", out, env={**os.environ, "PYTHONIOENCODING": "utf-8"})
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.startswith(os.fsencode(tmp_path) + b"/\\udcff.svg: ")


def test_the_users_choice_of_what_is_not_encoded_is_kept():
    done = run("docs", "attention", env={**os.environ, "PYTHONIOENCODING": "ascii:replace"})
    assert done.returncode == 0
    assert b"\\u" not in done.stdout and b"?" in done.stdout
