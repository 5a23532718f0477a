"""What is sent by the real process: beside servers that hang, and when it is stopped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import SMALL, Ended, events, fit, workplace
from tests.receiving import CANARY, Answer, Receiver, receiving

pytestmark = pytest.mark.slow  # real processes

NOTIFIERS: dict[str, Any] = {
    "slack": {"init_args": {"webhook_url": "${oc.env:NIGHT_SLACK}", "every_n_epochs": 1}},
    "webhook": {"init_args": {"webhook_url": "${oc.env:NIGHT_HOOK}"}},
}
TELLING: dict[str, Any] = {
    **SMALL,
    "callbacks": NOTIFIERS,
    "run": {"heartbeat_url": "${oc.env:NIGHT_BEAT}"},
}


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as found:
        yield found


def told(folder: Path, receiver: Receiver, *words: str, config: dict[str, Any] | None = None) -> Ended:
    """Fit to the end with everybody listening; no address is in any file or line."""
    environ = {f"NIGHT_{name.upper()}": receiver.url(name) for name in ("slack", "hook", "beat")}
    done = fit(workplace(folder, {**TELLING, **(config or {})}), *words, environ=environ, timeout_s=240)
    assert CANARY not in done.out + done.err
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert [path for path in files if CANARY.encode() in path.read_bytes()] == []
    return done


def kinds(receiver: Receiver) -> list[tuple[Any, ...]]:
    found = [request.json for request in receiver.of("hook")]
    return [(message["kind"], message["status"], message["exit_code"]) for message in found]


def test_servers_that_never_answer_neither_slow_nor_end_a_training(tmp_path: Path, receiver: Receiver) -> None:
    receiver.answer = lambda _number: Answer(-1)
    patient = {name: {"init_args": {**entry["init_args"], "timeout_s": 3600.0}} for name, entry in NOTIFIERS.items()}
    done = told(tmp_path, receiver, config={"callbacks": patient})
    assert not receiver.over.is_set()  # so that nothing has been answered to the end
    assert done.code == 0, done.err
    assert [len(receiver.of(name)) for name in ("slack", "hook")] == [1, 1]  # the start, whose answer never came
    assert [event["status"] for event in events(tmp_path, "end")] == ["done"]
    for name in ("SlackNotifier", "WebhookNotifier"):
        says = f"warning: {name}: 5 messages were not delivered: the server was too slow at the end"
        assert done.err.count(says) == 1, done.err
    assert done.err.count("warning: run.heartbeat_url: ") == 1


def test_a_job_that_is_stopped_and_goes_on_is_told_so(tmp_path: Path, receiver: Receiver) -> None:
    knock = {"class_path": "mine.Knock", "init_args": {"at": "train", "step": 8}}
    callbacks = {**NOTIFIERS, "knock": knock}
    stopped = told(tmp_path, receiver, config={"callbacks": callbacks})
    assert stopped.code == 75, stopped.err
    assert kinds(receiver)[0] == ("start", "running", None)
    assert kinds(receiver)[-1] == ("end", "preempted", 75)
    assert [request.path for request in receiver.of("beat")] == ["/beat/*/start"]
    receiver.requests.clear()
    again = told(tmp_path, receiver, config={"callbacks": callbacks})
    assert again.code == 0, again.err
    assert receiver.of("slack")[0].json["text"] == "job: fit goes on"
    assert kinds(receiver)[-1] == ("end", "done", 0)
    assert [request.path for request in receiver.of("beat")] == ["/beat/*/start", "/beat/*"]


def test_of_two_ranks_one_tells_and_a_lost_one_is_told_once(tmp_path: Path, receiver: Receiver) -> None:
    trouble = {"class_path": "mine.Trouble", "init_args": {"kind": "raise", "rank": 1, "step": 2}}
    config = {
        "callbacks": {**NOTIFIERS, "trouble": trouble},
        "trainer": {**SMALL["trainer"], "devices": 2, "strategy": "ddp"},
    }
    lost = told(tmp_path, receiver, config=config)
    assert lost.code == 1, lost.err
    assert kinds(receiver) == [("start", "running", None), ("failure", "failed", 1)]
    assert "this rank is out of stock" in receiver.of("hook")[-1].json["error"]
    assert len(receiver.of("slack")) == 2
    assert [request.path for request in receiver.of("beat")] == ["/beat/*/start", "/beat/*/fail"]
