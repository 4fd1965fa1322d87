"""A run's directory has one owner, which is known, and which nobody waits for."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from isomorph.errors import IsomorphError
from isomorph.training import ownership
from isomorph.training.checkpoint import RunDirectory
from isomorph.training.ownership import LOCK, Ownership

HOLDER = """
import sys, time
from pathlib import Path
from isomorph.training.ownership import Ownership
with Ownership(Path(sys.argv[1])):
    print("owned", flush=True)
    sys.stdin.read()
"""


def holder(directory: Path) -> subprocess.Popen[str]:
    """A process that owns the directory until its input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(directory)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "owned\n"
    return process


def refusal(directory: Path) -> str:
    with pytest.raises(IsomorphError) as error, Ownership(directory):
        pass
    return str(error.value)


HINT = "\n  wait until it ends or stop it; --out takes another place"


def test_a_second_process_is_refused_and_told_who_has_the_directory(tmp_path):
    with holder(tmp_path / "run") as process:
        expected = f"E_CHECKPOINT: {tmp_path}/run is in use: process {process.pid} trains there{HINT}"
        assert refusal(tmp_path / "run") == expected
        os.kill(process.pid, signal.SIGSTOP)  # a paused owner is an owner
        assert refusal(tmp_path / "run") == expected
        os.kill(process.pid, signal.SIGCONT)
        process.communicate("")
    with Ownership(tmp_path / "run"):
        pass


def test_the_lock_ends_with_its_process_however_it_ends(tmp_path):
    with holder(tmp_path / "run") as process:
        process.kill()
    assert (tmp_path / "run" / LOCK).exists()
    with Ownership(tmp_path / "run"):
        pass
    assert list((tmp_path / "run").iterdir()) == []


def test_threads_of_one_process_keep_each_other_out(tmp_path):
    messages = []
    with Ownership(tmp_path / "run"):
        thread = threading.Thread(target=lambda: messages.append(refusal(tmp_path / "run")))
        thread.start()
        thread.join()
    assert messages == [
        f"E_CHECKPOINT: {tmp_path}/run is in use: this process ({os.getpid()}) trains there{HINT}"
    ]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:os.fork")  # where JAX was loaded before; the child computes nothing
@pytest.mark.filterwarnings("ignore:This process")  # the same from Python 3.12 on
def test_a_forked_worker_neither_owns_the_directory_nor_keeps_it_from_the_next(tmp_path):
    ready, done = os.pipe(), os.pipe()
    with Ownership(tmp_path / "run") as owner:
        child = os.fork()
        if not child:  # outlives its parent's ownership
            try:
                owner.confirm()
            except IsomorphError:
                os.write(ready[1], b"refused")
            os.read(done[0], 1)
            os._exit(0)
        assert os.read(ready[0], 7) == b"refused"
        owner.confirm()
    with Ownership(tmp_path / "run"):
        pass
    os.write(done[1], b"x")
    os.waitpid(child, 0)
    for descriptor in (*ready, *done):
        os.close(descriptor)


@pytest.mark.parametrize("how", ["removed", "replaced", "overwritten", "moved"])
def test_a_directory_that_is_taken_from_its_owner_is_not_written_to(tmp_path, how):
    directory = tmp_path / "run"
    with Ownership(directory) as owner:
        owner.confirm()
        lock = directory / LOCK
        if how == "removed":
            lock.unlink()
        elif how == "replaced":
            lock.unlink()
            lock.write_bytes(b"")
        elif how == "overwritten":  # by another process where there are no locks
            lock.write_text("{}")
        else:
            directory.rename(tmp_path / "elsewhere")
            directory.mkdir()
        with pytest.raises(IsomorphError) as error:
            owner.confirm()
        assert str(error.value) == (
            f"E_CHECKPOINT: {directory} no longer belongs to this run: its {LOCK} was removed or replaced while it ran\n"
            "  nothing more was stored; if no other process trains there, --resume continues from the last checkpoint"
        )
    assert lock.exists() == (how in ("replaced", "overwritten"))  # what is another's stays


def test_of_processes_that_start_together_from_nothing_one_owns_the_directory(tmp_path):
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom isomorph.errors import IsomorphError\n"
        "from isomorph.training.ownership import Ownership\n"
        "sys.stdin.read()\n"
        "for round in range(30):\n"
        "    try:\n"
        "        with Ownership(Path(sys.argv[1]) / 'a' / 'b') as owner:\n"
        "            mark = Path(sys.argv[1]) / 'mark'\n"
        "            mark.touch(exist_ok=False)\n"  # two owners would meet here
        "            owner.confirm()\n"
        "            mark.unlink()\n"
        "    except IsomorphError as error:\n"
        "        assert 'is in use' in error.message, error\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    processes = [subprocess.Popen(command, stdin=subprocess.PIPE) for _ in range(3)]
    for process in processes:
        assert process.stdin is not None
        process.stdin.close()
    assert [process.wait() for process in processes] == [0, 0, 0]
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_directory_in_which_nothing_was_stored_is_not_left_behind(tmp_path):
    with Ownership(tmp_path / "a" / "b"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_without_locks_it_is_said_and_the_earlier_owner_stores_nothing_more(tmp_path, monkeypatch):
    def unsupported(descriptor, operation):
        raise OSError(95, "Operation not supported")

    if ownership.fcntl is not None:
        monkeypatch.setattr(ownership.fcntl, "flock", unsupported)
    first, second, warnings = RunDirectory(tmp_path), RunDirectory(tmp_path), []
    with first.own(warnings.append):
        assert warnings == [
            f"{tmp_path} is on a file system without locks: no second process may train there"
        ]
        first.confirm()
        with second.own(warnings.append):
            second.confirm()
            with pytest.raises(IsomorphError, match="no longer belongs to this run"):
                first.confirm()


def test_what_lies_under_the_locks_name_is_not_followed_or_waited_for(tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("precious")
    for make in (
        lambda path: path.symlink_to(precious),
        lambda path: path.symlink_to("nowhere"),
        os.mkfifo,
        os.mkdir,
    ):
        directory = tmp_path / str(id(make))
        directory.mkdir()
        make(directory / LOCK)
        with (
            pytest.raises(IsomorphError, match=r"^E_CHECKPOINT: cannot write to"),
            RunDirectory(directory).own(),
        ):
            pass
    assert precious.read_text() == "precious"
    (tmp_path / "dangling").symlink_to("nowhere/deeper")
    with pytest.raises(IsomorphError) as error, RunDirectory(tmp_path / "dangling").own():
        pass
    assert error.value.message == f"cannot write to {tmp_path}/dangling: No such file or directory"


def test_a_run_that_is_not_owned_stores_nothing(tmp_path):
    with pytest.raises(IsomorphError, match=r"is not owned: use own\(\) first"):
        RunDirectory(tmp_path).save(1, {})
    assert list(tmp_path.iterdir()) == []


def test_an_owner_that_cannot_say_who_it_is_lets_go(tmp_path, monkeypatch):
    def full(descriptor, content):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(IsomorphError) as error, RunDirectory(tmp_path).own():
            pass
    assert error.value.message == f"cannot write to {tmp_path}: No space left on device"
    with RunDirectory(tmp_path).own():
        pass
