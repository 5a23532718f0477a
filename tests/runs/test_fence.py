"""A process that has lost a job's lock changes nothing, wherever it was suspended."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from lightkit import runs
from lightkit.errors import RunLocked
from lightkit.runs import lock as lock_module
from lightkit.runs.clock import elapsed_s

forks = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
OPERATIONS = (
    "open",
    "os.link",
    "os.rename",
    "os.remove",
    "os.utime",
    "os.mkdir",
    "os.rmdir",
    "os.listdir",
    "os.scandir",
)
LOST = 75


def write_checkpoint(run: Path, text: str) -> None:
    def write(aside: Path) -> str:
        aside.write_text(text, encoding="utf-8")
        return hashlib.sha256(text.encode()).hexdigest()

    runs.write_aside(
        run / "checkpoints" / "best.ckpt", write, previous=run / "checkpoints" / "last-1.ckpt"
    )


WRITERS: dict[str, Callable[[Path, str], object]] = {
    "checkpoint": write_checkpoint,
    "row": lambda run, text: runs.MetricsTable(run / "metrics.csv").record(7, 70, {text: 1.0}),
    "summary": lambda run, text: runs.write_summary(run / "summary.json", runs.new_summary(text)),
    "event": (
        lambda run, text: runs.EventStream(run / "events.jsonl").write(
            "warning", message=text, source="s"
        )
    ),
    "latest": lambda run, text: runs.point_latest(runs.open_run(run)),
}


def read_files(run: Path) -> dict[str, object]:
    """Read all files of a run, of the events those that count."""
    found: dict[str, object] = {
        str(path): path.read_bytes() for path in run.rglob("*") if path.is_file()
    }
    found[str(run / "events.jsonl")] = [
        event["message"] for event in runs.read_events(run / "events.jsonl")
    ]
    return found


def fork(function: Callable[[], object]) -> int:
    """Call a function in a process of its own; 75 if it finds the lock lost."""
    if pid := os.fork():
        return pid
    code = 1
    try:
        function()
        code = 0
    except RunLocked:
        code = LOST
    finally:
        os._exit(code)


def suspend_at(number: int, root: Path) -> None:
    """Let this process stop itself before one of its operations on files.

    The hook is never removed.
    """
    done = 0

    def count(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal done
        if event in OPERATIONS and str(root) in str(arguments):
            if done == number:
                done += 1
                os.kill(os.getpid(), signal.SIGSTOP)
            done += 1

    sys.addaudithook(count)


def move_to_another_host(lock: Path) -> None:
    """Let a lock say that its holder is on another host, whose last heartbeat was long ago."""
    record = json.loads(lock.read_text(encoding="utf-8"))
    record["processes"][0]["host"] = "other-host"
    lock.write_text(json.dumps(record), encoding="utf-8")
    os.utime(lock, (1e9, 1e9))


@forks
@pytest.mark.parametrize(
    "has_ended", [True, False], ids=["the next has ended", "the next still runs"]
)
@pytest.mark.parametrize("kind", WRITERS)
def test_a_writer_that_was_suspended_at_any_operation_changes_no_file_of_the_next_holder(
    kind: str, has_ended: bool, tmp_path: Path
) -> None:
    write = WRITERS[kind]

    def write_suspended(run: Path, number: int) -> None:
        lock = runs.Lock(run.parent.parent, "flowers")
        lock.acquire()
        lock.note_folder(run)
        write(run, "before")
        suspend_at(number, run.parent)
        write(run, "late")
        # it was not suspended before: this is after the last operation
        os.kill(os.getpid(), signal.SIGSTOP)
        write(run, "later")

    number = 0
    while not is_changed_by(tmp_path / str(number), number, write_suspended, has_ended=has_ended):
        number += 1
    assert number > 0, "nothing was written"


def is_changed_by(
    root: Path, number: int, write_suspended: Callable[[Path, int], object], *, has_ended: bool
) -> bool:
    """Let a writer be suspended at an operation, and another process take the job over.

    Assert that it changes nothing.

    Returns:
        Whether the writer got to its end: it has no such operation, or has appended a line that
        does not count.
    """
    run = root / "flowers" / "20260102-030405-0000"
    run.mkdir(parents=True)
    writer = fork(lambda: write_suspended(run, number))
    try:
        _, status = os.waitpid(writer, os.WUNTRACED)
        assert os.WIFSTOPPED(status), f"ended with {status} before operation {number}"
        move_to_another_host(run.parent / "lock.json")

        following = runs.Lock(root, "flowers")
        following.acquire()
        for each in WRITERS.values():
            each(run, "following")
        if has_ended:
            following.release()
        files = read_files(run)
        names = sorted(run.parent.iterdir())

        os.kill(writer, signal.SIGCONT)
        _, status = os.waitpid(writer, os.WUNTRACED)
        is_last = os.WIFSTOPPED(status)
        if is_last:
            os.kill(writer, signal.SIGCONT)
            _, status = os.waitpid(writer, 0)
        assert os.waitstatus_to_exitcode(status) == LOST, f"suspended at operation {number}"
        assert read_files(run) == files, f"suspended at operation {number}"
        assert sorted(run.parent.iterdir()) == names, f"suspended at operation {number}"
    finally:
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(writer, signal.SIGKILL)
            os.waitpid(writer, 0)
    following.release()
    assert sorted(path.name for path in run.parent.iterdir()) == [run.name, "latest"]
    return is_last


def test_a_late_event_is_passed_over(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    events = [
        ("a", "1"),
        (None, "2"),
        ("b", "3"),
        ("a", "late"),
        (None, "4"),
        ("b", "5"),
        ("c", "6"),
        ("b", "late"),
    ]
    lines = [
        {"event": "warning", "message": text, **({"token": token} if token else {})}
        for token, text in events
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    assert [event["message"] for event in runs.read_events(file)] == ["1", "2", "3", "4", "5", "6"]


def test_files_are_written_as_before_once_the_lock_is_given_back(tmp_path: Path) -> None:
    run = tmp_path / "flowers" / "20260102-030405-0000"
    run.mkdir(parents=True)
    with runs.Lock(tmp_path, "flowers"):
        write_checkpoint(run, "held")
    write_checkpoint(run, "free")
    assert (run / "checkpoints" / "best.ckpt").read_text() == "free"
    assert sorted(path.name for path in run.parent.iterdir()) == [run.name]


@pytest.mark.parametrize("place", ["a link to another folder", "another disk"])
def test_a_folder_of_checkpoints_elsewhere_is_written(place: str, tmp_path: Path) -> None:
    run, elsewhere = tmp_path / "runs" / "flowers" / "1", tmp_path / "elsewhere"
    if place == "another disk":
        elsewhere = Path("/dev/shm") / f"lightkit-test-{os.getpid()}"
        if (
            not elsewhere.parent.is_dir()
            or elsewhere.parent.stat().st_dev == tmp_path.stat().st_dev
        ):
            pytest.skip("there is no other disk")
    run.mkdir(parents=True)
    elsewhere.mkdir()
    try:
        (run / "checkpoints").symlink_to(elsewhere)
        with runs.Lock(tmp_path / "runs", "flowers"):
            write_checkpoint(run, "held")
        assert (elsewhere / "best.ckpt").read_text() == "held"
        assert sorted(path.name for path in elsewhere.iterdir()) == [
            "best.ckpt",
            "best.ckpt.sha256",
        ]
    finally:
        for path in elsewhere.iterdir():
            path.unlink()
        elsewhere.rmdir()


def test_a_heartbeat_comes_soon_after_a_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[str] = []
    lock = runs.Lock(tmp_path, "flowers", stale_s=300.0, lost=lost.append)  # a heartbeat every 15 s
    lock.acquire()
    record = json.loads(lock.path.read_text(encoding="utf-8"))
    lock.path.write_text(json.dumps({**record, "token": "of another"}), encoding="utf-8")
    real_s = elapsed_s
    # as if the machine had been suspended
    monkeypatch.setattr(lock_module, "elapsed_s", lambda: real_s() + 400.0)
    deadline_s = time.monotonic() + 10
    while not lost and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert "Job 'flowers' is being run by process" in lost[0]
    lock.release()
    assert lock.path.exists(), "it is another's"


@pytest.mark.parametrize("reason", ["a gap", "events"])
def test_a_missing_lock_is_not_made_again_where_another_process_may_have_come(
    reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "flowers" / "20260102-030405-0000"
    run.mkdir(parents=True)
    lost: list[str] = []
    lock = runs.Lock(tmp_path, "flowers", stale_s=300.0, lost=lost.append)
    lock.acquire()
    events = runs.EventStream(run / "events.jsonl")
    events.write("start", run="flowers/1", stage="fit")
    lock.note_folder(run)
    events.write("resume", run="flowers/1", stage="fit")
    lock.path.unlink()
    lock.check()  # a person may have deleted it
    # Another one of an earlier version, which leaves the staging folder alone and writes no token,
    # has come and gone.
    if reason == "a gap":
        real_s = elapsed_s
        monkeypatch.setattr(lock_module, "elapsed_s", lambda: real_s() + 300.0)
    else:
        with events.path.open("a") as file:
            file.write('{"event": "resume", "run": "flowers/1", "stage": "fit"}\n')
    before = events.path.read_bytes()
    with pytest.raises(
        RunLocked, match="its lock is gone" if reason == "a gap" else "has the start of another"
    ):
        events.write("epoch", epoch=3)
    assert events.path.read_bytes() == before
    assert len(lost) >= 1
    lock.release()
    assert not lock.path.exists()
