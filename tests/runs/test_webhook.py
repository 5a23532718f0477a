"""HTTP messages against a real server: order, retries, limits of time, no address in any text."""

from __future__ import annotations

import logging
import os
import traceback
from collections.abc import Iterator
from functools import partial

import pytest

from lightkit.errors import ConfigError
from lightkit.runs.webhook import BackgroundSender, Deliver, DeliveryError, check_address, post
from tests.receiving import CANARY, Answer, Receiver, receiving

pytestmark = pytest.mark.slow  # real servers


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as found:
        yield found


def bodies(receiver: Receiver) -> list[str]:
    return [request.body.decode() for request in receiver.requests]


def message(receiver: Receiver, number: int = 0, timeout_s: float = 10.0) -> Deliver:
    return partial(post, receiver.url(), str(number).encode(), {}, timeout_s=timeout_s)


def test_a_message_arrives_as_it_is(receiver: Receiver) -> None:
    post(receiver.url(), "grüße".encode(), {"X-Team": "night"}, timeout_s=10)
    (request,) = receiver.requests
    assert (request.path, request.body.decode(), request.headers["x-team"]) == (
        "/hook/*",
        "grüße",
        "night",
    )
    assert request.headers["user-agent"] == "lightkit"


def test_the_log_of_the_library_beneath_does_not_show_the_address(
    receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        message(receiver)()
    assert CANARY not in caplog.text


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (Answer(404, b"no_service"), "the server answers 404"),
        (Answer(403, b"Bad: http://elsewhere"), "the server answers 403"),
        (Answer(302, headers={"Location": "http://127.0.0.1:1/away"}), "the server answers 302"),
        (Answer(500), "the server answers 500"),
        (Answer(0), "it cannot be sent (RemoteDisconnected)"),
        (Answer(-1), "it cannot be sent (TimeoutError)"),
    ],
    ids=["word", "address", "redirect", "failing", "closed", "silent"],
)
def test_a_refusal_is_described_without_the_address(
    receiver: Receiver, answer: Answer, reason: str
) -> None:
    receiver.answer = lambda _number: answer
    with pytest.raises(DeliveryError) as caught:
        message(receiver, timeout_s=0.5)()
    assert reason in str(caught.value)
    shown = "".join(traceback.format_exception(caught.value))
    assert not [secret for secret in (CANARY, "127.0.0.1", "elsewhere") if secret in shown]


def test_messages_arrive_in_order_and_again_after_a_failure(receiver: Receiver) -> None:
    receiver.answer = lambda number: Answer(500 if number == 0 else 200)
    sender = BackgroundSender("SlackNotifier", retries=2)
    for number in range(3):
        sender.put(message(receiver, number))
    receiver.wait_for(4)
    assert sender.close(30) == 0
    assert bodies(receiver) == ["0", "0", "1", "2"]


def test_a_lost_message_is_reported_once_without_its_address(
    receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    receiver.answer = lambda _number: Answer(404)
    sender = BackgroundSender("SlackNotifier")
    for number in range(3):
        sender.put(message(receiver, number))
    assert sender.close(30) == 3
    (record,) = [record for record in caplog.records if record.name == "lightkit.runs.webhook"]
    assert record.getMessage().startswith(
        "SlackNotifier: a message was not delivered: the server answers 404"
    )


def test_the_end_does_not_wait_for_a_server_that_never_answers(receiver: Receiver) -> None:
    receiver.answer = lambda _number: Answer(-1)
    sender = BackgroundSender("SlackNotifier")
    for number in range(300):
        sender.put(message(receiver, number, timeout_s=3600))
    receiver.wait_for(1)
    assert sender.close(0.2) == 300
    assert not receiver.over.is_set()  # it hangs to this moment


def test_a_closed_sender_starts_again_with_the_next_message(receiver: Receiver) -> None:
    sender = BackgroundSender("SlackNotifier")
    for number in range(2):
        sender.put(message(receiver, number))
        assert sender.close(30) == 0
    assert bodies(receiver) == ["0", "1"]


def test_a_process_that_is_forked_from_a_sender_sends_nothing(receiver: Receiver) -> None:
    sender = BackgroundSender("SlackNotifier")
    sender.put(message(receiver))
    receiver.wait_for(1)
    if (child := os.fork()) == 0:
        sender.put(message(receiver))
        os._exit(sender.close(30))
    assert os.waitpid(child, 0)[1] == 0
    assert len(receiver.requests) == 1


@pytest.mark.parametrize(
    "url",
    [
        "ftp://host/x",
        "elsewhere/path",
        "https:///elsewhere",
        "http://host:port/x",
        "https://[abc/secret",
        "http://host/a b",
    ],
)
def test_an_address_that_cannot_be_asked_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(ConfigError, match=r"^webhook_url: expected an address such as") as caught:
        check_address(url, "webhook_url")
    assert url not in str(caught.value)
