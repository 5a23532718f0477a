"""Messages on their way: in order, again where that helps, and never to be waited for."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator

import pytest

from lightkit.runs.courier import Courier
from lightkit.runs.posting import Post
from tests.receiving import CANARY, Answer, Receiver, receiving

pytestmark = pytest.mark.slow  # real servers


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as found:
        yield found


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """What was logged, also where an earlier test has kept it from pytest."""
    own = logging.getLogger("lightkit")
    own.propagate = True
    caplog.set_level(logging.INFO, "lightkit")
    return caplog


def courier(**settings: float) -> Courier:
    return Courier("SlackNotifier", timeout_s=settings.get("timeout_s", 10.0), retries=2, pause_s=0.01)


def bodies(receiver: Receiver) -> list[str]:
    return [request.body.decode() for request in receiver.requests]


def test_messages_arrive_in_order_also_where_some_are_sent_again(receiver: Receiver) -> None:
    receiver.answer = lambda number: Answer(500 if number in (0, 3, 4) else 200)
    ours = courier()
    for number in range(4):
        ours.put(Post(receiver.url(), str(number).encode()))
    assert ours.close(60) == 0
    assert bodies(receiver) == ["0", "0", "1", "2", "2", "2", "3"]


def test_nobody_waits_for_a_server_that_never_answers(receiver: Receiver, told: pytest.LogCaptureFixture) -> None:
    receiver.answer = lambda _number: Answer(-1)
    ours = courier(timeout_s=3600)
    for number in range(300):
        ours.put(Post(receiver.url(), str(number).encode()))
    receiver.wait_for(1)
    assert ours.close(0.2) == 300
    assert not receiver.over.is_set()  # it hangs to this moment, for an hour if need be
    (record,) = told.records
    assert record.getMessage() == "SlackNotifier: 300 messages were not delivered: the server was too slow at the end"


def test_the_newest_are_kept_where_too_many_wait(receiver: Receiver) -> None:
    receiver.answer = lambda number: Answer(-1) if not number else Answer()
    ours = courier(timeout_s=3600)
    ours.put(Post(receiver.url(), b"hangs"))
    receiver.wait_for(1)
    for number in range(150):
        ours.put(Post(receiver.url(), str(number).encode()))
    receiver.over.set()
    assert ours.close(60) >= 50
    assert bodies(receiver)[-100:] == [str(number) for number in range(50, 150)]


def test_a_server_that_stays_away_is_told_once_without_its_address(
    receiver: Receiver, told: pytest.LogCaptureFixture
) -> None:
    receiver.answer = lambda _number: Answer(500)
    ours = courier()
    for number in range(5):
        ours.put(Post(receiver.url(), str(number).encode()))
    assert ours.close(60) == 5
    assert bodies(receiver) == ["0", "0", "0", "1", "2", "3", "4"]  # after a loss once each, until one arrives
    said = [(record.levelname, record.getMessage()) for record in told.records]
    assert said == [
        ("WARNING", "SlackNotifier: a message was not delivered: the server answers 500"),
        ("INFO", "SlackNotifier: 5 of 5 messages were not delivered"),
    ]
    assert CANARY not in told.text


def test_a_pause_ends_where_the_time_does(receiver: Receiver) -> None:
    receiver.answer = lambda _number: Answer(429, headers={"Retry-After": "60"})
    ours = courier()
    ours.put(Post(receiver.url(), b"x"))
    receiver.wait_for(1)
    assert ours.close(5) == 1  # pytest would end a pause of a minute for it
    assert len(receiver.requests) == 1


def test_news_of_epochs_give_way_to_the_end(receiver: Receiver) -> None:
    receiver.answer = lambda number: Answer(-1) if number == 0 else Answer()
    ours = courier(timeout_s=3600)
    ours.put(Post(receiver.url(), b"hangs"))
    receiver.wait_for(1)
    for number in range(3):
        ours.put(Post(receiver.url(), f"epoch {number}".encode(), is_superseded=True))
    ours.put(Post(receiver.url(), b"end"))
    ours._retries = 0
    ours.begin_close(60)
    assert ours._worker is not None
    ours._worker.half_s = 60.0  # its first half is over

    def let_go() -> None:
        while len(ours._queue) > 1:  # the news of epochs and the end
            time.sleep(0.01)
        receiver.over.set()

    server = threading.Thread(target=let_go, daemon=True)
    server.start()
    assert ours.close(60) >= 3
    server.join(60)
    assert bodies(receiver)[-1] == "end"
    assert not any(body.startswith("epoch") for body in bodies(receiver))


def test_it_goes_on_after_a_close(receiver: Receiver) -> None:
    ours = courier()
    for number in range(2):
        ours.put(Post(receiver.url(), str(number).encode()))
        assert ours.close(60) == 0
    assert bodies(receiver) == ["0", "1"]
    assert ours.close(60) == 0


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_forked_process_sends_nothing(receiver: Receiver) -> None:
    ours = courier()
    ours.put(Post(receiver.url(), b"parent"))
    receiver.wait_for(1)
    if (child := os.fork()) == 0:
        ours.put(Post(receiver.url(), b"child"))
        os._exit(7 if ours.close(5) == 0 else 8)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert ours.close(60) == 0
    assert bodies(receiver) == ["parent"]


def test_a_defect_while_sending_ends_nothing(receiver: Receiver, told: pytest.LogCaptureFixture) -> None:
    ours = courier()
    ours.put(Post(receiver.url(), None))  # type: ignore[arg-type]
    ours.put(Post(receiver.url(), b"next", {"X": 5}))  # type: ignore[dict-item]
    ours.put(Post(receiver.url(), b"last"))
    assert ours.close(60) <= 2
    assert bodies(receiver)[-1] == "last"
    assert CANARY not in told.text
