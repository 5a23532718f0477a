"""`lightkit notify-test`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import House
from tests.ports import free_port
from tests.receiving import CANARY, Answer, Receiver, receiving

CONFIGS = Path(__file__).parents[2] / "configs"
LAYERS = [word for name in ("slack", "webhook", "heartbeat") for word in ("-c", str(CONFIGS / f"notify/{name}.yaml"))]


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    with receiving() as found:
        monkeypatch.setenv("SLACK_WEBHOOK_URL", found.url("slack"))
        monkeypatch.setenv("WEBHOOK_URL", found.url("hook"))
        monkeypatch.setenv("HEARTBEAT_URL", found.url("beat"))
        yield found


@pytest.mark.slow  # a real server
def test_one_message_of_each_kind_goes_through_each_layer(house: House, receiver: Receiver) -> None:
    done = house("notify-test", "-c", "small.yaml", *LAYERS)
    assert (done.code, done.err) == (0, "")
    assert done.out == (
        "slack              start    ok\n"
        "slack              epoch    ok\n"
        "slack              end      ok\n"
        "slack              failure  ok\n"
        "slack              gate     ok\n"
        "webhook            start    ok\n"
        "webhook            epoch    ok\n"
        "webhook            end      ok\n"
        "webhook            failure  ok\n"
        "webhook            gate     ok\n"
        "run.heartbeat_url  start    ok\n"
        "run.heartbeat_url  failure  ok\n"
        "run.heartbeat_url  end      ok\n"
    )
    assert [request.path for request in receiver.of("beat")] == ["/beat/*/start", "/beat/*/fail", "/beat/*"]
    sent = [json.loads(request.body) for request in receiver.of("hook")]
    assert [message["kind"] for message in sent] == ["start", "epoch", "end", "failure", "gate"]
    assert {message["job"] for message in sent} == {"heartbeat (test of lightkit notify-test)"}
    assert house.runs == []


@pytest.mark.slow  # a real server
def test_what_did_not_arrive_is_told_without_the_address(
    house: House, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLACK_WEBHOOK_URL", f"http://127.0.0.1:{free_port()}/{CANARY}")
    receiver.answer = lambda number: Answer(403, b"invalid_token") if not number else Answer()
    done = house("notify-test", "-c", "small.yaml", *LAYERS, "--kind=failure", "--quiet")
    assert (done.code, done.out) == (1, "")
    assert done.err == (
        "slack              failure  not delivered: the connection is refused\n"
        "webhook            failure  not delivered: the server answers 403 (invalid_token)\n"
    )
    assert [request.path for request in receiver.requests] == ["/hook/*", "/beat/*/fail"]


@pytest.mark.slow  # a real server
def test_events_and_kinds_choose_what_is_sent(house: House, receiver: Receiver) -> None:
    done = house("notify-test", *LAYERS[:2], "--callbacks.slack.events=[failure,end]", "--kind=start,failure")
    assert (done.code, done.out) == (0, "slack  failure  ok\n")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["-c", "small.yaml"], "notify-test: nobody is told anything of this kind. Add configs/notify/slack.yaml"),
        (
            ["-c", "small.yaml", "--kind=gates"],
            "--kind: expected start, epoch, end, failure, gate, got 'gates'; did you",
        ),
        (["-c", "small.yaml", "now"], "notify-test: unexpected argument 'now'"),
        (
            ["-c", "small.yaml", "--kinds=gate"],
            "notify-test: unexpected argument '--kinds=gate'; did you mean '--kind'?",
        ),
        (["-c", "nowhere.yaml"], "nowhere.yaml"),
        (LAYERS[:2], "SLACK_WEBHOOK_URL"),
        (
            ["--callbacks.slack.webhook_url=host/xoxb-canary-5aT4q"],
            "callbacks.slack: webhook_url of SlackNotifier: expec",
        ),
        (["--callbacks.slack.webhook_url=https://host/xoxb-canary-5aT4q", "--callbacks.slack.retries=x"], "retries"),
        (["--callbacks.slack.class_path=slack"], "slack.class_path: 'slack' is no class; leave it out of callbacks.sl"),
        (["--run.heartbeat_url=host/xoxb-canary-5aT4q"], "run.heartbeat_url: expected an address"),
    ],
    ids=["nobody", "kind", "word", "option", "file", "variable", "address", "argument", "class", "switch"],
)
def test_mistakes_end_with_2(house: House, words: list[str], says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLACK_WEBHOOK_URL", raising=False)
    done = house("notify-test", *words)
    assert done.code == 2, done
    assert says in done.err
    assert CANARY not in done.err
    assert "Traceback" not in done.err
    assert done.out == ""


def test_help_names_its_options(house: House) -> None:
    done = house("notify-test", "--help")
    assert done.code == 0
    assert {"--kind", "--quiet", "--run", "-c"} <= {*done.out.split()}
