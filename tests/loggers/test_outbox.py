from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from lightkit.loggers.outbox import Outbox, Record, Refused, Unreachable


class Post:
    """A receiver that can be away, or refuse what it is told to."""

    def __init__(self) -> None:
        self.arrived: list[Any] = []
        self.sizes: list[int] = []
        self.away = threading.Event()
        self.tried = threading.Semaphore(0)
        self.refuses: list[Any] = []

    def deliver(self, records: list[Record]) -> None:
        self.tried.release()
        if self.away.is_set():
            raise Unreachable("connection refused")
        items = [item for record in records for item in record["items"]]
        if any(item in self.refuses for item in items):
            raise Refused("INVALID_PARAMETER_VALUE")
        self.sizes.append(len(records))
        self.arrived += items


@pytest.fixture
def post() -> Post:
    return Post()


def _outbox(post: Post, journal: Path, *, first_pause_s: float = 0.01, longest_pause_s: float = 0.05) -> Outbox:
    pauses_s = {"first_pause_s": first_pause_s, "longest_pause_s": longest_pause_s}
    return Outbox(post.deliver, journal, server="the tracker", **pauses_s)


def _metrics(*items: int) -> Record:
    return {"kind": "metrics", "items": list(items)}


def test_records_arrive_in_order_and_leave_no_journal(post: Post, tmp_path: Path) -> None:
    outbox = _outbox(post, tmp_path / "journal")
    for number in range(500):
        outbox.put(_metrics(number) if number % 7 else {"kind": "tags", "items": [number]})
    assert outbox.drain(60) == 0
    assert post.arrived == list(range(500))
    assert list(tmp_path.iterdir()) == []


def test_nobody_waits_for_a_receiver_that_is_away(post: Post, tmp_path: Path) -> None:
    post.away.set()
    outbox = _outbox(post, tmp_path / "journal", first_pause_s=60, longest_pause_s=60)
    began = time.monotonic()
    outbox.put(_metrics(0))
    assert post.tried.acquire(timeout=60)
    for number in range(1, 200):
        outbox.put(_metrics(number))
        assert time.monotonic() - began < 60, "it has waited for a pause"
    assert len((tmp_path / "journal").read_text().splitlines()) == 200
    post.away.clear()
    assert outbox.drain(60) == 0
    assert post.arrived == list(range(200))


def test_what_waits_for_a_receiver_arrives_once_it_is_back(
    post: Post, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    post.away.set()
    outbox = _outbox(post, tmp_path / "journal")
    for number in range(200):
        outbox.put(_metrics(number))
    assert all(post.tried.acquire(timeout=60) for _ in range(3))
    assert len((tmp_path / "journal").read_text().splitlines()) == 200
    post.away.clear()
    assert outbox.drain(60) == 0
    assert post.arrived == list(range(200))
    assert caplog.text.count("the tracker is out of reach (connection refused)") == 1
    assert max(post.sizes) > 1  # a row of metrics travels together


def test_what_does_not_arrive_is_kept_for_the_next_process(post: Post, tmp_path: Path) -> None:
    post.away.set()
    outbox = _outbox(post, tmp_path / "journal")
    outbox.put(_metrics(1))
    outbox.put(_metrics(2))
    assert outbox.drain(0.1) == outbox.unsent == 2
    assert [json.loads(line)["items"] for line in (tmp_path / "journal").read_text().splitlines()] == [[1], [2]]

    with (tmp_path / "journal").open("a") as file:
        file.write('{"kind": "metr')  # the end of a killed process
    post.away.clear()
    later = _outbox(post, tmp_path / "journal")
    later.put(_metrics(3))
    assert later.drain(60) == 0
    assert post.arrived == [1, 2, 3]


def test_a_sending_that_outlasts_the_wait_is_not_waited_for(tmp_path: Path) -> None:
    let_go = threading.Event()
    outbox = Outbox(lambda _: bool(let_go.wait(30)), tmp_path / "journal", server="the tracker")  # type: ignore[arg-type]
    outbox.put(_metrics(1))
    assert outbox.drain(0.1) == 1
    let_go.set()
    assert outbox.unsent == 1
    assert (tmp_path / "journal").exists()


def test_records_can_follow_after_a_drain(post: Post, tmp_path: Path) -> None:
    outbox = _outbox(post, tmp_path / "journal")
    for number in range(3):
        outbox.put(_metrics(number))
        assert outbox.drain(60) == 0
    assert post.arrived == [0, 1, 2]


@pytest.mark.parametrize("kind", ["metrics", "params"])
def test_only_the_refused_item_is_dropped(
    post: Post, tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    post.away.set()
    post.refuses = [3, 5]
    outbox = _outbox(post, tmp_path / "journal")
    outbox.put(_metrics(1))
    outbox.put({"kind": kind, "items": [2, 3, 4, 5]})
    outbox.put(_metrics(6))
    post.away.clear()
    assert outbox.drain(60) == 0
    assert post.arrived == [1, 2, 4, 6]
    assert outbox.dropped == 2
    dropped = [line for line in caplog.messages if "dropped" in line]
    assert dropped == [f"the tracker refused {kind} (items=[3]), which is dropped: INVALID_PARAMETER_VALUE"]


def test_a_defect_in_sending_is_told_and_does_not_stop_the_rest(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    arrived: list[Any] = []

    def deliver(records: list[Record]) -> None:
        if records[0]["items"] == [1]:
            raise ZeroDivisionError("a defect")
        arrived.extend(records[0]["items"])

    outbox = Outbox(deliver, tmp_path / "journal", server="the tracker")
    outbox.put({"kind": "tags", "items": [1]})
    outbox.put({"kind": "tags", "items": [2]})
    assert outbox.drain(60) == 0
    assert arrived == [2]
    assert "ZeroDivisionError: a defect" in caplog.text


def test_a_folder_that_cannot_be_written_stops_nothing(
    post: Post, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    outbox = _outbox(post, tmp_path / "file" / "journal")
    outbox.put(_metrics(1))
    assert outbox.drain(60) == 0
    assert post.arrived == [1]
    assert "cannot be written" in caplog.text
