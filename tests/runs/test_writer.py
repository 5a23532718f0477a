from __future__ import annotations

import multiprocessing
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from lightkit import runs
from lightkit.runs.writer import WRITER

MAIN = threading.current_thread().name


@pytest.fixture
def writer() -> Iterator[runs.Writer]:
    writer = runs.Writer()
    yield writer
    writer.end()
    assert WRITER not in {thread.name for thread in threading.enumerate()}


def note(told: list[str], what: str) -> None:
    told.append(f"{what} in {threading.current_thread().name}")


def fail(error: BaseException) -> None:
    raise error


def test_it_writes_at_once_before_it_begins_and_after_its_end(writer: runs.Writer) -> None:
    told: list[str] = []
    writer.put(lambda: note(told, "first"))
    writer.begin()
    writer.end()
    writer.put(lambda: note(told, "last"))
    assert told == [f"first in {MAIN}", f"last in {MAIN}"]
    with pytest.raises(OSError, match="full"):
        writer.put(lambda: fail(OSError("full")))


def test_a_thread_writes_in_the_order_in_which_it_was_asked(writer: runs.Writer) -> None:
    told: list[str] = []
    writer.begin()
    writer.begin()
    for number in range(100):
        writer.put(lambda number=number: note(told, str(number)))  # type: ignore[misc]
    writer.drain()
    assert told == [f"{number} in {WRITER}" for number in range(100)]


def test_nobody_waits_until_it_is_asked_for(writer: runs.Writer) -> None:
    told: list[str] = []
    may_write = threading.Event()
    writer.begin()
    writer.put(may_write.wait)
    writer.put(lambda: note(told, "late"))
    writer.check()
    assert told == []
    may_write.set()
    assert writer.end() is None
    assert told == [f"late in {WRITER}"]


def test_what_a_job_asks_for_is_part_of_it(writer: runs.Writer) -> None:
    told: list[str] = []
    writer.begin()

    def outer() -> None:
        writer.put(lambda: note(told, "inner"))
        note(told, "outer")

    writer.put(outer)
    writer.put(lambda: note(told, "next"))
    writer.drain()
    assert told == [f"{what} in {WRITER}" for what in ("inner", "outer", "next")]


def test_what_fails_is_raised_once_where_it_is_asked_for(writer: runs.Writer) -> None:
    writer.begin()
    writer.put(lambda: fail(OSError("the first")))
    writer.put(lambda: fail(OSError("the second")))
    with pytest.raises(OSError, match="the first"):
        writer.drain()
    writer.check()
    assert writer.end() is None


def test_the_end_gives_what_nobody_has_asked_for(writer: runs.Writer) -> None:
    writer.begin()
    error = OSError("full")
    writer.put(lambda: fail(error))
    assert writer.end() is error
    assert writer.end() is None


def test_of_two_that_ask_at_the_same_moment_one_is_given_what_has_failed() -> None:
    both_ask = threading.Barrier(2)

    class Asked(runs.Writer):
        def _taken(self) -> BaseException | None:
            both_ask.wait()
            return super()._taken()

    writer, error = Asked(), OSError("full")
    writer.begin()
    writer.put(lambda: fail(error))
    writer.wait()
    given: list[BaseException | None] = []
    asking = [threading.Thread(target=lambda: given.append(writer.end())) for _ in range(2)]
    for each in asking:
        each.start()
    for each in asking:
        each.join()
    assert sorted(given, key=lambda each: each is None) == [error, None]


def test_what_counts_on_all_before_it_is_given_up_after_a_failure(writer: runs.Writer) -> None:
    told: list[str] = []
    writer.begin()
    writer.put(lambda: note(told, "whole"), otherwise=lambda: note(told, "given up"))
    writer.put(lambda: fail(OSError("full")))
    writer.put(lambda: note(told, "an event"))
    writer.put(lambda: note(told, "whole"), otherwise=lambda: note(told, "given up"))
    with pytest.raises(OSError, match="full"):
        writer.drain()
    writer.put(lambda: note(told, "whole"), otherwise=lambda: note(told, "given up"))
    writer.end()
    assert told == [f"{what} in {WRITER}" for what in ("whole", "an event", "given up", "given up")]
    writer.begin()
    writer.put(lambda: note(told, "again"), otherwise=lambda: note(told, "given up"))
    writer.drain()
    assert told[-1] == f"again in {WRITER}"


class Clock:
    """The writer's clock, which goes on where a test says so."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("lightkit.runs.writer.time", clock)
    return clock


class Hung:
    """A writer whose thread is in the middle of a job that does not end by itself."""

    def __init__(self, writer: runs.Writer, told: list[str]) -> None:
        self._writer, self._told = writer, told
        self._hangs, begun = threading.Event(), threading.Event()

        def hang() -> None:
            begun.set()
            self._hangs.wait()
            writer.put(lambda: note(told, "checkpoint in place"))

        writer.begin()
        writer.put(hang)
        begun.wait()
        (self._thread,) = (each for each in threading.enumerate() if each.name == WRITER)

    def go_on(self) -> None:
        self._hangs.set()
        self._thread.join()


def test_who_cannot_wait_writes_the_records_that_are_left_and_gives_checkpoints_up(
    writer: runs.Writer, clock: Clock
) -> None:
    told: list[str] = []
    hung = Hung(writer, told)
    writer.put(lambda: note(told, "event"))
    writer.put(lambda: note(told, "checkpoint"), otherwise=lambda: note(told, "given up"))
    writer.put(lambda: note(told, "later event"))
    assert writer.end(within_s=0.01) is None
    writer.put(lambda: note(told, "end"))
    hung.go_on()
    assert told == [f"{what} in {MAIN}" for what in ("event", "given up", "later event", "end")]


def test_who_cannot_wait_does_nothing_more_when_the_time_is_over(writer: runs.Writer, clock: Clock) -> None:
    told: list[str] = []
    hung = Hung(writer, told)
    writer.put(lambda: setattr(clock, "now_s", 0.01))
    writer.put(lambda: note(told, "too late"), otherwise=lambda: note(told, "too late to be given up"))
    writer.put(lambda: note(told, "too late"))
    writer.end(within_s=0.01)
    hung.go_on()
    assert told == []


@pytest.mark.parametrize("hangs", [True, False], ids=["hung", "done"])
def test_after_an_end_in_haste_only_who_has_ended_it_writes(hangs: bool, writer: runs.Writer) -> None:
    told: list[str] = []
    writer.begin()
    hung = Hung(writer, told) if hangs else None
    writer.end(within_s=0.01)

    def go_on_training() -> None:
        writer.begin()
        writer.put(lambda: note(told, "event"))
        writer.put(lambda: note(told, "checkpoint"), otherwise=lambda: note(told, "given up"))
        writer.drain()

    trainer = threading.Thread(target=go_on_training, name="training")
    trainer.start()
    trainer.join()
    if hung is not None:
        hung.go_on()
    writer.put(lambda: note(told, "end"))
    assert told == ["given up in training", f"end in {MAIN}"]


def test_who_needs_what_came_before_is_told_of_a_failure_as_often_as_it_asks(writer: runs.Writer) -> None:
    writer.begin()
    writer.put(lambda: fail(OSError("full")))
    writer.wait()
    for _ in range(2):
        with pytest.raises(OSError, match="full"):
            writer.check(again=True)
    writer.check()
    assert writer.end() is None
    writer.check(again=True)
    writer.begin()
    writer.drain()
    writer.check(again=True)


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
def test_a_fork_writes_at_once_and_leaves_alone_what_its_parent_has_to_write(
    writer: runs.Writer, tmp_path: Path
) -> None:
    events = runs.EventStream(tmp_path / "events.jsonl", writer=writer)
    goes_on = threading.Event()
    writer.begin()
    writer.put(goes_on.wait)
    events.write("warning", message="parent", source="test")

    def child() -> None:
        events.write("warning", message="child", source="test")
        writer.drain()

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join()
    assert process.exitcode == 0
    assert [event["message"] for event in runs.read_events(events.path)] == ["child"]
    goes_on.set()
    writer.drain()
    assert [event["message"] for event in runs.read_events(events.path)] == ["child", "parent"]


def test_a_copy_has_nothing_to_write(writer: runs.Writer) -> None:
    goes_on, told = threading.Event(), list[str]()
    writer.begin()
    writer.put(goes_on.wait)
    copy: runs.Writer = pickle.loads(pickle.dumps(writer))
    copy.put(lambda: note(told, "copy"))
    assert told == [f"copy in {MAIN}"]
    goes_on.set()


def test_an_event_has_the_time_at_which_it_happened(writer: runs.Writer, tmp_path: Path) -> None:
    events, goes_on = runs.EventStream(tmp_path / "events.jsonl", writer=writer), threading.Event()
    writer.begin()
    writer.put(goes_on.wait)
    happened = [events.write("warning", message=str(number), source="test") for number in range(3)]
    assert not events.path.exists()
    goes_on.set()
    writer.drain()
    assert list(runs.read_events(events.path)) == happened


def test_a_row_is_written_as_it_was(writer: runs.Writer, tmp_path: Path) -> None:
    table, goes_on = runs.MetricsTable(tmp_path / "metrics.csv", writer=writer), threading.Event()
    copies: list[str] = []
    writer.begin()
    writer.put(goes_on.wait)
    for epoch in range(2):
        table.record(epoch, 10 * epoch, {"a": 0.5})
        writer.put(lambda: copies.append(table.path.read_text()))
    table.truncate(after_epoch=0)
    goes_on.set()
    writer.drain()
    first = "epoch,step,a\n0,0,0.5\n"
    assert [*copies, table.path.read_text()] == [first, first + "1,10,0.5\n", first]
