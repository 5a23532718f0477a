from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lightkit import runs
from lightkit.errors import ConfigError, RunLocked
from lightkit.runs.lock import SHARED_LOCK, describe_process, is_gone

forks = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
DEAD_PID = 2**22 + 1


def run_in_fork(function: Callable[[], object]) -> int:
    """Call a function in a forked process.

    Return its exit code as `waitstatus_to_exitcode` does.
    """
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            function()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def list_names(root: Path) -> list[str]:
    return sorted(path.name for path in (root / "flowers").iterdir())


def write_lock(root: Path, *, silent_s: float = 0.0, **changes: object) -> Path:
    """Write the lock of a process other than this one, with a last heartbeat some time ago."""
    path = root / "flowers" / "lock.json"
    path.parent.mkdir(exist_ok=True)
    record = {"started": "2026-01-02 03:04:05 UTC", "folder": None, "token": "11"}
    path.write_text(json.dumps({**record, "processes": [{**describe_process(), **changes}]}))
    os.utime(path, (path.stat().st_atime, path.stat().st_mtime - silent_s))
    return path


def test_a_reused_process_number_is_a_dead_owner(tmp_path: Path) -> None:
    write_lock(tmp_path, process_started="1")
    with runs.Lock(tmp_path, "flowers"):
        pass


@pytest.mark.parametrize(
    "changes",
    [{"host": "other-host"}, {"kernel": "another boot"}],
    ids=["host", "boot_or_container"],
)
def test_an_owner_elsewhere_is_alive_until_its_lease_expires(
    changes: dict[str, object], tmp_path: Path
) -> None:
    write_lock(tmp_path, pid=4242, silent_s=8.0, **changes)
    with pytest.raises(
        RunLocked, match=r"process 4242 on .* heartbeat was 8 s ago; it counts as dead after 10 s"
    ):
        runs.Lock(tmp_path, "flowers", stale_s=10.0).acquire()
    with runs.Lock(tmp_path, "flowers", stale_s=7.0):
        holder = runs.lock_holder(tmp_path, "flowers")
        assert holder is not None
        assert [each["pid"] for each in holder["processes"]] == [os.getpid()]


def test_a_living_process_of_this_host_needs_no_heartbeat(tmp_path: Path) -> None:
    write_lock(tmp_path, silent_s=3600.0)
    with pytest.raises(RunLocked, match=f"process {os.getpid()} on "):
        runs.Lock(tmp_path, "flowers", stale_s=10.0).acquire()


def test_a_lock_that_cannot_be_read_is_an_error_and_held(tmp_path: Path) -> None:
    path = write_lock(tmp_path)
    path.write_text('{"pid"', encoding="utf-8")
    with pytest.raises(
        ConfigError, match=r"lock\.json cannot be read: .*\. Delete it if no process runs this job"
    ):
        runs.Lock(tmp_path, "flowers").acquire()
    assert runs.lock_holder(tmp_path, "flowers") == {}


@forks
def test_the_end_of_a_forked_child_does_not_release_the_lock(tmp_path: Path) -> None:
    with runs.Lock(tmp_path, "flowers") as lock:
        assert run_in_fork(lock.release) == 0
        assert lock.path.exists()


def test_a_folder_that_cannot_be_written_is_an_error_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        ConfigError, match=r"run\.root: cannot write the lock .*file/flowers/lock\.json: Not a dir"
    ):
        runs.Lock(tmp_path / "file", "flowers").acquire()


def test_this_process_is_not_gone() -> None:
    assert is_gone(describe_process()) is False
    assert is_gone({**describe_process(), "pid": DEAD_PID}) is True


@forks
def test_a_delegate_works_on_the_job_and_does_not_release_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work() -> None:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        with runs.Lock(tmp_path, "flowers") as delegate:
            delegate.note_folder(tmp_path / "flowers" / "7")
        runs.Lock(tmp_path, "shoes").acquire()  # another job is its own

    with runs.Lock(tmp_path, "flowers") as lock:
        variables = lock.delegate()
        assert run_in_fork(work) == 0
        holder = runs.lock_holder(tmp_path, "flowers")
        assert holder is not None
        assert (holder["processes"][0]["pid"], holder["folder"]) == (
            os.getpid(),
            f"{tmp_path}/flowers/7",
        )
    assert not lock.path.exists()


def test_a_living_delegate_of_a_dead_owner_holds_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_lock(tmp_path, pid=DEAD_PID)
    monkeypatch.setenv(SHARED_LOCK, "11")
    with runs.Lock(tmp_path, "flowers") as delegate:
        monkeypatch.delenv(SHARED_LOCK)
        with pytest.raises(RunLocked, match=f"process {os.getpid()} on "):
            runs.Lock(tmp_path, "flowers").acquire()
    assert delegate.path.exists()
    write_lock(tmp_path, pid=DEAD_PID)
    with runs.Lock(tmp_path, "flowers"):
        pass
    assert list_names(tmp_path) == []


# -- kills and races -------------------------------------------------------------------------------


OPERATIONS = ("open", "os.link", "os.rename", "os.remove", "os.utime", "os.mkdir")
PREPARED: dict[str, Callable[[Path], object]] = {
    "free": lambda root: (root / "flowers").mkdir(),
    "dead_owner": lambda root: write_lock(root, pid=DEAD_PID),
    "silent_elsewhere": lambda root: write_lock(root, host="other-host", silent_s=999.0),
}
prepared = pytest.mark.parametrize(
    "prepare",
    [
        pytest.param(prepare, id=name, marks=[] if name == "dead_owner" else pytest.mark.long)
        for name, prepare in PREPARED.items()
    ],
)


@forks
@prepared
def test_a_kill_between_any_two_operations_on_files_leaves_nothing_that_blocks(
    prepare: Callable[[Path], object], tmp_path: Path
) -> None:
    def kill_at(number: int, root: Path) -> None:
        done = 0

        def count(event: str, arguments: tuple[object, ...]) -> None:
            nonlocal done
            if event in OPERATIONS and str(root) in str(arguments):
                if done == number:
                    os.kill(os.getpid(), signal.SIGKILL)
                done += 1

        # called before each operation, and never removed: in a process of its own
        sys.addaudithook(count)
        with runs.Lock(root, "flowers") as lock:
            lock.note_folder(root / "7")

    for number in range(200):
        root = tmp_path / str(number)
        root.mkdir()
        prepare(root)
        code = run_in_fork(lambda root=root, number=number: kill_at(number, root))  # type: ignore[misc]
        with runs.Lock(root, "flowers"):
            staging, lock = list_names(root)
            assert (staging[:9], lock) == (".staging-", "lock.json"), f"after {number} operations"
        assert list_names(root) == []
        if code == 0:
            break
        assert code == -signal.SIGKILL
    assert number > 8, "the kills have not met the lock"


@forks
@prepared
def test_one_of_many_at_once_wins(prepare: Callable[[Path], object], tmp_path: Path) -> None:
    prepare(tmp_path)
    (go, go_in), (answer, answer_in), (end, end_in) = os.pipe(), os.pipe(), os.pipe()
    pids = [
        start_contender(tmp_path, seed, go, answer_in, end, (go_in, end_in)) for seed in range(12)
    ]
    os.close(go_in)  # all read the end of the file at the same time
    answers = b"".join(os.read(answer, 1) for _ in pids)
    os.close(end_in)
    for pid in pids:
        assert os.waitpid(pid, 0)[1] == 0
    for descriptor in (go, answer, answer_in, end):
        os.close(descriptor)
    assert sorted(answers) == sorted(b"1" + b"0" * 11)
    assert "lock.json" not in list_names(tmp_path)


def start_contender(
    root: Path, seed: int, go: int, answer: int, end: int, closed: tuple[int, ...]
) -> int:
    """Fork a process that tries for the lock at a signal, and holds it until all have tried."""
    if pid := os.fork():
        return pid
    code = 1
    dice = random.Random(seed)
    # Each operation on files is a moment in which the others may come in between.
    sys.addaudithook(
        lambda event, _: time.sleep(dice.choice((0, 0.001, 0.01))) if event in OPERATIONS else None
    )
    try:
        for descriptor in closed:
            os.close(descriptor)
        os.read(go, 1)
        try:
            with runs.Lock(root, "flowers"):
                os.write(answer, b"1")
                os.read(end, 1)
        except RunLocked:
            os.write(answer, b"0")
        code = 0
    finally:
        os._exit(code)
