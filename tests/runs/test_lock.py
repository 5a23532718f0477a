from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lightkit import runs
from lightkit.errors import ConfigError, RunLocked
from lightkit.runs.process import describe_process, is_gone

HERE = Path(__file__).parents[2]

HOLDER = """
import sys
from pathlib import Path
from lightkit import runs
from lightkit.errors import RunLocked
sys.stdin.readline()
try:
    with runs.Lock(sys.argv[1], "flowers") as lock:
        lock.note_folder(Path("runs/flowers/7"))
        print("holds", flush=True)
        sys.stdin.readline()
except RunLocked as error:
    print(error, flush=True)
    sys.exit(error.exit_code)
"""


def _start(root: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", HOLDER, str(root)]
    return subprocess.Popen(command, cwd=HERE, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _say(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def _hear(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@contextmanager
def _held(root: Path) -> Iterator[subprocess.Popen[str]]:
    with _start(root) as holder:
        try:
            _say(holder)
            assert _hear(holder) == "holds"
            yield holder
        finally:
            holder.kill()


def _forge(root: Path, **changes: object) -> Path:
    """The lock that a process left which differs from this one."""
    lock = runs.Lock(root, "flowers")
    lock.acquire()
    lock.path.write_text(json.dumps({**json.loads(lock.path.read_text()), **changes}))
    return lock.path


def test_the_lock_is_there_during_the_block_and_says_who_holds_it(tmp_path: Path) -> None:
    with runs.Lock(tmp_path, "flowers") as lock:
        held = json.loads(lock.path.read_text())
        assert lock.path == tmp_path / "flowers" / "lock.json"
        assert (held["host"], held["pid"], held["folder"]) == (socket.gethostname(), os.getpid(), None)
        lock.note_folder(tmp_path / "flowers" / "7")
        assert json.loads(lock.path.read_text()) == {**held, "folder": str(tmp_path / "flowers" / "7")}
    assert not lock.path.exists()


def test_it_is_given_back_when_the_block_fails(tmp_path: Path) -> None:
    lock = runs.Lock(tmp_path, "flowers")
    with pytest.raises(ZeroDivisionError), lock:
        raise ZeroDivisionError
    assert not lock.path.exists()


def test_another_job_is_free(tmp_path: Path) -> None:
    with runs.Lock(tmp_path, "flowers"), runs.Lock(tmp_path, "shoes"):
        pass


@pytest.mark.slow
def test_a_second_start_learns_who_holds_it_since_when_and_where(tmp_path: Path) -> None:
    with _held(tmp_path) as holder:
        with pytest.raises(RunLocked) as caught, runs.Lock(tmp_path, "flowers"):
            pass
        said = str(caught.value)
        assert f"process {holder.pid} on {socket.gethostname()} since 20" in said
        assert "in runs/flowers/7" in said
        assert f"{tmp_path}/flowers/lock.json" in said
        assert caught.value.exit_code == 75
        _say(holder)
        assert holder.wait() == 0
    with runs.Lock(tmp_path, "flowers"):
        pass


@pytest.mark.slow
def test_the_lock_of_a_killed_holder_is_taken_over(tmp_path: Path) -> None:
    with _held(tmp_path) as holder:
        os.kill(holder.pid, signal.SIGKILL)
        os.waitid(os.P_PID, holder.pid, os.WEXITED | os.WNOWAIT)  # dead, and still in the process table
        with runs.Lock(tmp_path, "flowers") as lock:
            assert json.loads(lock.path.read_text())["pid"] == os.getpid()
        holder.wait()


@pytest.mark.slow
@pytest.mark.parametrize("dead", [False, True], ids=["free", "dead-holder"])
def test_of_eight_starters_at_once_one_wins(dead: bool, tmp_path: Path) -> None:
    if dead:
        with _held(tmp_path):
            pass
        assert (tmp_path / "flowers" / "lock.json").exists()
    starters = [_start(tmp_path) for _ in range(8)]
    try:
        for starter in starters:
            _say(starter)
        said = [_hear(starter) for starter in starters]
    finally:
        for starter in starters:
            with starter:
                starter.kill()
    assert said.count("holds") == 1, said
    assert [line for line in said if line != "holds" and "is being run by process" not in line] == []


def test_a_number_that_another_process_has_now_is_a_dead_holder(tmp_path: Path) -> None:
    _forge(tmp_path, process_started="1")
    with runs.Lock(tmp_path, "flowers"):
        pass


def test_a_lock_from_before_the_machine_started_anew_is_nobodys(tmp_path: Path) -> None:
    _forge(tmp_path, boot="another")
    with runs.Lock(tmp_path, "flowers"):
        pass


@pytest.mark.parametrize("changes", [{"host": "other-host"}, {"pid_namespace": "pid:[1]"}], ids=["host", "container"])
def test_of_another_host_nobody_can_tell_so_the_file_to_remove_is_named(
    changes: dict[str, object], tmp_path: Path
) -> None:
    path = _forge(tmp_path, pid=4242, **changes)
    with pytest.raises(RunLocked, match=rf"process 4242 on .* known to be dead, remove {path}"):
        runs.Lock(tmp_path, "flowers").acquire()
    path.unlink()
    with runs.Lock(tmp_path, "flowers"):
        pass


def test_a_lock_that_cannot_be_read_is_not_taken_over(tmp_path: Path) -> None:
    (tmp_path / "flowers").mkdir()
    (tmp_path / "flowers" / "lock.json").write_text('{"pid"')
    with pytest.raises(RunLocked, match=r"cannot be read.*remove that file"):
        runs.Lock(tmp_path, "flowers").acquire()


def test_the_end_of_a_forked_child_does_not_give_the_lock_back(tmp_path: Path) -> None:
    with runs.Lock(tmp_path, "flowers") as lock:
        _forged = {**json.loads(lock.path.read_text()), "pid": os.getppid()}
        lock.path.write_text(json.dumps(_forged))  # as a child sees it: the number is its parent's
        lock.release()
        assert lock.path.exists()


def test_a_folder_that_cannot_be_written_is_an_error_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"run\.root: cannot write the lock .*file/flowers/lock\.json: Not a dir"):
        runs.Lock(tmp_path / "file", "flowers").acquire()


def test_this_process_is_not_gone() -> None:
    assert is_gone(describe_process()) is False
    assert is_gone({**describe_process(), "pid": 2**22 + 1}) is True
