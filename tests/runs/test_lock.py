from __future__ import annotations

import errno
import json
import os
import queue
import random
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lightkit import runs
from lightkit.errors import ConfigError, LightkitError, RunLocked
from lightkit.runs.holders import read_holder
from lightkit.runs.process import describe_process, is_gone

forks = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


def _in_fork(act: Callable[[], object]) -> int:
    """Do something in a forked process; give how it ended, as `waitstatus_to_exitcode` does."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            act()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _names(root: Path) -> list[str]:
    """What is in the folder of the job."""
    return sorted(path.name for path in (root / "flowers").iterdir())


def _forge(root: Path, *, silent_s: float = 0.0, **changes: object) -> Path:
    """The lock that a process left which differs from this one, and was last heard of some time ago."""
    path = root / "flowers" / "lock.json"
    path.parent.mkdir(exist_ok=True)
    said = {**describe_process(), "started": "2026-01-02 03:04:05 UTC", "folder": None, "token": "11", "beat_s": 0.1}
    path.write_text(json.dumps({**said, **changes}))
    os.utime(path, (path.stat().st_atime, path.stat().st_mtime - silent_s))
    return path


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


def test_a_number_that_another_process_has_now_is_a_dead_holder(tmp_path: Path) -> None:
    _forge(tmp_path, process_started="1")
    with runs.Lock(tmp_path, "flowers"):
        pass


def test_a_lock_from_before_the_machine_started_anew_is_nobodys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lightkit.runs.process._machine", lambda: "this")
    _forge(tmp_path, boot="another", machine="this", beat_s=0.1, silent_s=0.4)
    with runs.Lock(tmp_path, "flowers"):
        pass


def test_a_clone_of_this_machine_is_believed_until_it_misses_three_beats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lightkit.runs.process._machine", lambda: "this")
    path = _forge(tmp_path, boot="another", machine="this", pid=4242, beat_s=15.0, silent_s=40.0)
    with pytest.raises(RunLocked, match=r"process 4242 on .* heard of 4\d s ago and counts as dead after 45 s\. Try"):
        runs.Lock(tmp_path, "flowers").acquire()
    assert runs.lock_holder(tmp_path, "flowers") is not None
    os.utime(path, (0, 0))
    assert runs.lock_holder(tmp_path, "flowers") is None


def test_machines_without_a_number_are_not_taken_for_one_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lightkit.runs.process._machine", lambda: None)
    _forge(tmp_path, boot="another", machine=None, silent_s=200.0)
    with pytest.raises(RunLocked, match="counts as dead after 300 s"):
        runs.Lock(tmp_path, "flowers").acquire()


ELSEWHERE = pytest.mark.parametrize(
    "changes", [{"host": "other-host"}, {"pid_namespace": "pid:[1]"}], ids=["host", "container"]
)


@ELSEWHERE
def test_a_holder_elsewhere_is_believed_for_as_long_as_its_heartbeat_is_young(
    changes: dict[str, object], tmp_path: Path
) -> None:
    path = _forge(tmp_path, pid=4242, silent_s=8.0, **changes)
    with pytest.raises(RunLocked, match=r"process 4242 on .* heard of 8 s ago and counts as dead after 10 s") as caught:
        runs.Lock(tmp_path, "flowers", stale_s=10.0).acquire()
    assert "run.stale_s" in str(caught.value)
    assert path.exists()


@ELSEWHERE
def test_a_holder_elsewhere_that_is_silent_for_too_long_is_dead(changes: dict[str, object], tmp_path: Path) -> None:
    _forge(tmp_path, pid=4242, silent_s=12.0, **changes)
    with runs.Lock(tmp_path, "flowers", stale_s=10.0) as lock:
        assert json.loads(lock.path.read_text())["pid"] == os.getpid()


def test_a_holder_that_beats_seldom_is_given_three_of_its_beats(tmp_path: Path) -> None:
    _forge(tmp_path, host="other-host", silent_s=1200.0, beat_s=500.0)
    with pytest.raises(RunLocked):
        runs.Lock(tmp_path, "flowers", stale_s=10.0).acquire()


def test_a_living_process_of_this_host_is_believed_without_a_heartbeat(tmp_path: Path) -> None:
    _forge(tmp_path, silent_s=3600.0)
    with pytest.raises(RunLocked, match=f"process {os.getpid()} on "):
        runs.Lock(tmp_path, "flowers", stale_s=10.0).acquire()


def test_a_machine_of_the_same_name_is_not_taken_for_this_one_after_a_new_start(tmp_path: Path) -> None:
    _forge(tmp_path, boot="another", machine="another")
    with pytest.raises(RunLocked, match="counts as dead after 300 s"):
        runs.Lock(tmp_path, "flowers").acquire()


def test_the_heartbeat_is_the_time_of_the_file_by_the_clock_of_its_server(tmp_path: Path) -> None:
    with runs.Lock(tmp_path, "flowers", stale_s=0.06) as lock:
        long_ago = lock.path.stat().st_mtime - 1000
        os.utime(lock.path, (long_ago, long_ago))
        deadline = time.monotonic() + 60
        while lock.path.stat().st_mtime == long_ago:
            assert time.monotonic() < deadline, "it does not beat"
        assert lock.path.stat().st_mtime > long_ago + 900


@pytest.mark.parametrize("content", ['{"pid"', "", "[]"], ids=["half", "empty", "another_kind"])
def test_a_lock_that_cannot_be_read_is_believed_until_it_is_stale(content: str, tmp_path: Path) -> None:
    path = _forge(tmp_path)
    path.write_text(content)
    with pytest.raises(RunLocked, match=r"lock\.json cannot be read.*After 10 s \(run\.stale_s\)"):
        runs.Lock(tmp_path, "flowers", stale_s=10.0).acquire()
    assert runs.lock_holder(tmp_path, "flowers", stale_s=10.0) is not None
    os.utime(path, (0, 0))
    assert runs.lock_holder(tmp_path, "flowers", stale_s=10.0) is None
    with runs.Lock(tmp_path, "flowers", stale_s=10.0):
        pass
    assert _names(tmp_path) == []


@forks
def test_the_end_of_a_forked_child_does_not_give_the_lock_back(tmp_path: Path) -> None:
    with runs.Lock(tmp_path, "flowers") as lock:
        assert _in_fork(lock.release) == 0
        assert lock.path.exists()


def test_a_folder_that_cannot_be_written_is_an_error_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"run\.root: cannot write the lock .*file/flowers/lock\.json: Not a dir"):
        runs.Lock(tmp_path / "file", "flowers").acquire()


NO_SPACE = pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT], ids=["disk", "quota"])


def _full(number: int) -> Callable[..., int]:
    def pwrite(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    return pwrite


@NO_SPACE
def test_a_full_disk_is_no_mistake_in_the_config(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "pwrite", _full(number))
    with pytest.raises(
        LightkitError, match=r"Cannot write the lock .*lock\.json: .*Free space, or set run\.root"
    ) as told:
        runs.Lock(tmp_path, "flowers").acquire()
    assert told.value.exit_code == 1
    assert _names(tmp_path) == []


def test_a_disk_that_takes_a_part_leaves_no_half_of_a_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pwrite = os.pwrite
    monkeypatch.setattr(os, "link", _no_link)
    monkeypatch.setattr(os, "pwrite", lambda file, content, at: pwrite(file, content[:10], at))
    assert not (tmp_path / "flowers").exists()
    with pytest.raises(LightkitError, match="Free space"):
        runs.Lock(tmp_path, "flowers").acquire()
    assert _names(tmp_path) == []


def test_a_lock_is_given_back_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with runs.Lock(tmp_path, "flowers"):
        monkeypatch.setattr(os, "pwrite", _full(errno.ENOSPC))
    assert _names(tmp_path) == []


def test_what_a_lock_says_may_become_shorter(tmp_path: Path) -> None:
    with runs.Lock(tmp_path, "flowers") as lock:
        lock.note_folder(tmp_path / ("long" * 500))
        lock.note_folder(tmp_path / "7")
        assert json.loads(lock.path.read_text())["folder"] == str(tmp_path / "7")


def test_a_lock_that_somebody_has_removed_comes_back_and_is_given_back(tmp_path: Path) -> None:
    lost: queue.SimpleQueue[str] = queue.SimpleQueue()
    with runs.Lock(tmp_path, "flowers", stale_s=0.06, lost=lost.put) as lock:
        lock.note_folder(tmp_path / "7")
        before = json.loads(lock.path.read_text())
        lock.path.unlink()
        deadline = time.monotonic() + 60
        while not lock.path.exists():
            assert time.monotonic() < deadline, "it does not come back"
        assert json.loads(lock.path.read_text()) == before
        while lock._file is None or os.fstat(lock._file).st_ino != lock.path.stat().st_ino:
            assert time.monotonic() < deadline, "it does not beat on the new one"
        lock.note_folder(tmp_path / "8")
        assert json.loads(lock.path.read_text())["folder"] == str(tmp_path / "8")
    assert lost.empty()
    assert _names(tmp_path) == []


def test_who_takes_a_lock_that_somebody_has_removed_has_it(tmp_path: Path) -> None:
    lost: queue.SimpleQueue[str] = queue.SimpleQueue()
    with runs.Lock(tmp_path, "flowers", stale_s=60.0, lost=lost.put) as lock:
        lock.path.unlink()
        path = _forge(tmp_path, host="other-host", pid=4242)
        words = lock._beaten()
        assert words is not None
        assert "process 4242 on other-host" in words
    assert json.loads(path.read_text())["pid"] == 4242


def test_a_lock_that_this_user_may_not_read_is_held_by_somebody(tmp_path: Path) -> None:
    (tmp_path / "flowers" / "lock.json").mkdir(parents=True)  # opening it fails for root, too
    assert runs.lock_holder(tmp_path, "flowers") == dict.fromkeys(("host", "pid", "started", "heartbeat", "folder"))


def test_a_lock_that_is_replaced_on_its_server_meanwhile_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, stale = _forge(tmp_path), [OSError(errno.ESTALE, "stale")]
    read: Callable[..., object] = Path.open

    def opened(path: Path, *how: str) -> object:
        if stale:
            raise stale.pop()
        return read(path, *how)

    monkeypatch.setattr(Path, "open", opened)
    holder = read_holder(path)
    assert (stale, holder and holder.token) == ([], "11")


def test_this_process_is_not_gone() -> None:
    assert is_gone(describe_process()) is False
    assert is_gone({**describe_process(), "pid": 2**22 + 1}) is True


# -- waiting, leaving it to others, losing it -------------------------------------------------------------------------


def test_who_waits_is_told_once_who_holds_it_and_then_gets_it(tmp_path: Path) -> None:
    path = _forge(tmp_path)
    told: list[str] = []

    def tell(words: str) -> None:
        told.append(words)
        path.unlink()

    with runs.Lock(tmp_path, "flowers", wait_s=60.0, tell=tell):
        assert path.exists()
    (words,) = told
    assert words.startswith(f"waits up to 60 s: Job 'flowers' is being run by process {os.getpid()} on ")


def test_who_has_waited_for_long_enough_ends_with_75(tmp_path: Path) -> None:
    path = _forge(tmp_path)
    with pytest.raises(RunLocked, match=rf"Its lock is {path}\. Waited 0\.3 s for it\.") as caught:
        runs.Lock(tmp_path, "flowers", wait_s=0.3).acquire()
    assert caught.value.exit_code == 75


@pytest.mark.parametrize(
    ("times", "says"),
    [
        ((-1.0, 300.0), r"run\.wait_s: expected a number of seconds, 0 or more, got -1\.0"),
        ((0.0, 0.0), r"run\.stale_s: expected a number of seconds, above 0, got 0\.0"),
        ((float("nan"), 300.0), r"run\.wait_s: expected"),
    ],
    ids=["negative", "zero", "nan"],
)
def test_a_time_that_is_none_is_a_mistake_in_the_config(times: tuple[float, float], says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=says):
        runs.Lock(tmp_path, "flowers", *times)


@forks
def test_a_process_that_inherits_a_lock_works_on_the_job_and_gives_nothing_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work() -> None:
        for name, value in left.items():
            monkeypatch.setenv(name, value)
        with runs.Lock(tmp_path, "flowers") as heir:
            heir.note_folder(tmp_path / "flowers" / "7")
        runs.Lock(tmp_path, "shoes").acquire()  # another job is its own

    with runs.Lock(tmp_path, "flowers") as lock:
        left = lock.bequeath()
        assert _in_fork(work) == 0
        said = json.loads(lock.path.read_text())
        assert (said["pid"], said["folder"], said["heir"]) == (os.getpid(), f"{tmp_path}/flowers/7", None)
    assert not lock.path.exists()
    monkeypatch.setenv(*next(iter(left.items())))
    with runs.Lock(tmp_path, "flowers") as lock:  # what was left is no more: this is a lock of its own
        assert json.loads(lock.path.read_text())["heir"] is None


def test_the_job_of_a_dead_holder_is_its_heirs_for_as_long_as_that_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _forge(tmp_path, pid=2**22 + 1)
    monkeypatch.setenv("_LIGHTKIT_LOCK", json.dumps({"path": str(path), "token": "11"}))
    with runs.Lock(tmp_path, "flowers"):
        monkeypatch.delenv("_LIGHTKIT_LOCK")
        with pytest.raises(RunLocked, match=f"process {os.getpid()} on "):
            runs.Lock(tmp_path, "flowers").acquire()
        holder = runs.lock_holder(tmp_path, "flowers")
        assert holder is not None
        assert holder["pid"] == os.getpid()
    assert runs.lock_holder(tmp_path, "flowers") is None
    with runs.Lock(tmp_path, "flowers"):
        pass


def test_who_has_lost_the_lock_learns_of_it_and_leaves_the_others_alone(tmp_path: Path) -> None:
    lost: queue.SimpleQueue[str] = queue.SimpleQueue()
    lock = runs.Lock(tmp_path, "flowers", stale_s=0.06, lost=lost.put)
    with lock:
        lock.path.rename(tmp_path / "flowers" / "gone")  # another host took it over while this one was suspended
        path = _forge(tmp_path, host="other-host", pid=4242)
        assert "process 4242 on other-host" in lost.get(timeout=60)
        before = path.stat().st_mtime
        lock.note_folder(Path("mine"))
    assert json.loads(path.read_text())["folder"] is None
    assert path.stat().st_mtime == before


def test_the_holder_of_a_job_is_told_to_programs(tmp_path: Path) -> None:
    assert runs.lock_holder(tmp_path, "flowers") is None
    with runs.Lock(tmp_path, "flowers") as lock:
        lock.note_folder(tmp_path / "7")
        holder = runs.lock_holder(tmp_path, "flowers")
        assert holder is not None
        assert set(holder) == {"host", "pid", "started", "heartbeat", "folder"}
        assert (holder["host"], holder["pid"]) == (socket.gethostname(), os.getpid())
        assert holder["heartbeat"].startswith("20")
        assert holder["folder"] == f"{tmp_path}/7"
    assert runs.lock_holder(tmp_path, "flowers") is None
    assert _names(tmp_path) == []


# -- kills and races --------------------------------------------------------------------------------------------------


OPERATIONS = ("open", "os.link", "os.rename", "os.remove", "os.utime", "os.mkdir")


def _dead(root: Path, *, num_claims: int = 0) -> None:
    """A dead holder's lock, and dead processes that were about to take it over, one after another."""
    _forge(root, pid=2**22 + 1, token="0")
    for number in range(num_claims):
        said = {**describe_process(), "pid": 2**22 + 2, "token": str(number + 1)}
        (root / "flowers" / f".lock.{number}.claim").write_text(json.dumps(said))


def _cut_off(root: Path) -> None:
    """A lock whose machine went down while it was written, long ago."""
    path = _forge(root)
    path.write_text("{")
    os.utime(path, (0, 0))


PREPARED: dict[str, Callable[[Path], object]] = {
    "free": lambda root: (root / "flowers").mkdir(),
    "dead_holder": _dead,
    "dead_heirs_of_it": lambda root: _dead(root, num_claims=2),
    "silent_elsewhere": lambda root: _forge(root, host="other-host", silent_s=999.0),
    "cut_off": _cut_off,
}
prepared = pytest.mark.parametrize(
    "prepare",
    [
        pytest.param(prepare, id=name, marks=[] if name == "dead_holder" else pytest.mark.long)
        for name, prepare in PREPARED.items()
    ],
)


@forks
@prepared
def test_a_kill_between_any_two_operations_on_files_leaves_nothing_that_blocks(
    prepare: Callable[[Path], object], tmp_path: Path
) -> None:
    def killed_at(number: int, root: Path) -> None:
        done = 0

        def count(event: str, about: tuple[object, ...]) -> None:
            nonlocal done
            if event in OPERATIONS and str(root) in str(about):
                if done == number:
                    os.kill(os.getpid(), signal.SIGKILL)
                done += 1

        sys.addaudithook(count)  # called before each operation, and never removed: in a process of its own
        with runs.Lock(root, "flowers") as lock:
            lock.note_folder(root / "7")

    for number in range(200):
        root = tmp_path / str(number)
        root.mkdir()
        prepare(root)
        ended = _in_fork(lambda root=root, number=number: killed_at(number, root))  # type: ignore[misc]
        with runs.Lock(root, "flowers"):
            left = [name for name in _names(root) if name != "lock.json"]
        assert left == [], f"after {number} operations"
        assert _names(root) == []
        if ended == 0:
            break
        assert ended == -signal.SIGKILL
    assert number > 8, "the kills have not met the lock"


@forks
@prepared
@pytest.mark.parametrize("has_links", [True, False], ids=["links", "no_links"])
def test_of_many_at_once_one_wins(
    has_links: bool, prepare: Callable[[Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No guard of the kernel's is in use, as on a network disk: what decides is which file appears."""
    if not has_links:
        monkeypatch.setattr(os, "link", _no_link)
    for turn in range(2):
        root = tmp_path / str(turn)
        root.mkdir()
        prepare(root)
        (go, go_in), (said, say), (end, end_in) = os.pipe(), os.pipe(), os.pipe()
        pids = [_starter(root, seed, go, say, end, (go_in, end_in)) for seed in range(12)]
        os.close(go_in)  # all read the end of the file at the same time
        answers = b"".join(os.read(said, 1) for _ in pids)
        os.close(end_in)
        for pid in pids:
            assert os.waitpid(pid, 0)[1] == 0
        for descriptor in (go, said, say, end):
            os.close(descriptor)
        assert sorted(answers) == sorted(b"1" + b"0" * 11)
        assert "lock.json" not in _names(root)


def _no_link(*_: object, **__: object) -> None:
    raise PermissionError(errno.EPERM, "there are no hard links here")


def _starter(root: Path, seed: int, go: int, say: int, end: int, closed: tuple[int, ...]) -> int:
    """Fork a process that tries for the lock once told to, and holds it until all have tried."""
    if pid := os.fork():
        return pid
    code = 1
    dice = random.Random(seed)
    # Each operation on files is a moment in which the others may come in between.
    sys.addaudithook(lambda event, _: time.sleep(dice.choice((0, 0.001, 0.01))) if event in OPERATIONS else None)
    try:
        for descriptor in closed:
            os.close(descriptor)
        os.read(go, 1)
        try:
            with runs.Lock(root, "flowers"):
                os.write(say, b"1")
                os.read(end, 1)
        except RunLocked:
            os.write(say, b"0")
        code = 0
    finally:
        os._exit(code)
