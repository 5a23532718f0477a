"""Slack, any server and a dead-man's switch are told how a run goes.

Nobody waits for them, and no address is kept.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.contract.examples import MY_PROJECT, SMALL
from tests.contract.workspace import ForkServer, Result, Workspace, read_json
from tests.ports import free_port
from tests.receiving import CANARY, Answer, Receiver, receiving

CONFIGS = Path(__file__).parents[2] / "configs" / "notify"
SLACK, WEBHOOK, HEARTBEAT = (
    ("-c", str(CONFIGS / f"{name}.yaml")) for name in ("slack", "webhook", "heartbeat")
)
EVERYBODY = (*SLACK, *WEBHOOK, *HEARTBEAT)
JOB = ("-c", "small.yaml", *EVERYBODY, "--run.name=job")


needs_apprise = pytest.mark.skipif(
    importlib.util.find_spec("apprise") is None,
    reason="needs the extra apprise: pip install 'lightkit-train[apprise]'",
)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A server on 127.0.0.1 that keeps what it is sent."""
    with receiving() as found:
        yield found


def addresses(receiver: Receiver) -> dict[str, str]:
    """Give the variables that the layers take their addresses from."""
    names = {"SLACK_WEBHOOK_URL": "slack", "WEBHOOK_URL": "hook", "HEARTBEAT_URL": "beat"}
    return {variable: receiver.url(name) for variable, name in names.items()}


def messages_of(receiver: Receiver) -> list[tuple[Any, ...]]:
    """Read kind, status, stage and exit code of what the webhook was sent."""
    return [tuple(request.json[key] for key in ("kind", "status", "stage",
                                                "exit_code")) for request in
            receiver.of("hook")]  # fmt: skip


def headlines(receiver: Receiver) -> list[str]:
    """Read the first lines of what Slack was sent."""
    return [request.json["text"] for request in receiver.of("slack")]


def signs(receiver: Receiver) -> list[str]:
    """Read what the dead-man's switch was told, below its own address."""
    return [request.path.removeprefix("/beat/*") for request in receiver.of("beat")]


@dataclass(frozen=True)
class Notified:
    """A fit and its test, and what was sent meanwhile.

    Args:
        workspace: Where they ran.
        fit: What the fit printed.
        test: What the test printed.
        during_fit: What was sent by the fit.
        during_test: What was sent by the test.
    """

    workspace: Workspace
    fit: Result
    test: Result
    during_fit: Receiver
    during_test: Receiver


@pytest.fixture(scope="module")
def notified(
    tmp_path_factory: pytest.TempPathFactory, fork_server: ForkServer
) -> Iterator[Notified]:
    """A fit of two epochs that MLflow tracks, and its test, which everybody is notified of.

    Read only.
    """
    workspace = Workspace(tmp_path_factory.mktemp("notified") / "work", fork_server)
    workspace.write("my_project.py", MY_PROJECT)
    workspace.write("small.yaml", SMALL)
    with receiving() as first, receiving() as second:
        fit = workspace.run(
            "fit", *JOB, "--trainer.logger=null", "--logger.mlflow={}", environ=addresses(first)
        ).ok()
        test = workspace.run("test", "--run", "latest", environ=addresses(second)).ok()
    yield Notified(workspace, fit, test, first, second)
    workspace.close()


def test_a_webhook_gets_start_epochs_and_end(notified: Notified) -> None:
    assert messages_of(notified.during_fit) == [
        ("start", "running", "fit", None),
        ("epoch", "running", "fit", None),
        ("epoch", "running", "fit", None),
        ("end", "done", "fit", 0),
    ]
    assert messages_of(notified.during_test) == [
        ("start", "running", "test", None),
        ("end", "done", "test", 0),
    ]


def test_a_message_names_its_run_its_metrics_and_where_mlflow_shows_them(
    notified: Notified,
) -> None:
    run = notified.workspace.only_run
    *_, epoch, end = (request.json for request in notified.during_fit.of("hook"))
    assert {message["schema"] for message in (epoch, end)} == {"lightkit.message/1"}
    assert (end["job"], end["run"], end["folder"]) == ("job", run.name, str(run))
    assert (epoch["epoch"], epoch["max_epochs"], epoch["step"]) == (1, 2, 12)
    assert epoch["metrics"]["val/loss"] == pytest.approx(
        read_json(run / "summary.json")["metrics"]["last"]["val/loss"], rel=1e-5
    )
    assert end["mlflow_command"].startswith("mlflow ui")
    assert [*notified.during_test.of("hook")[-1].json["metrics"]] == ["test/loss"]


def test_slack_gets_start_and_end_and_each_tenth_epoch(notified: Notified) -> None:
    assert headlines(notified.during_fit) == ["job: fit begins", "job: fit is done"]
    assert "mlflow ui" in notified.during_fit.of("slack")[-1].body.decode()


def test_a_dead_mans_switch_gets_start_and_success(notified: Notified) -> None:
    assert signs(notified.during_fit) == ["/start", ""]
    assert signs(notified.during_test) == ["/start", ""]


def test_no_address_is_printed_logged_or_saved(notified: Notified) -> None:
    files = [path for path in notified.workspace.folder.rglob("*") if path.is_file()]
    assert any(path.name == "mlflow.db" for path in files)
    assert [path for path in files if CANARY.encode() in path.read_bytes()] == []
    assert CANARY not in "".join(
        (notified.fit.out, notified.fit.err, notified.test.out, notified.test.err)
    )


def test_a_crash_is_reported_by_its_last_lines(workspace: Workspace, receiver: Receiver) -> None:
    crash = ("--model=my_project.FailsInStep", "--model.step=8")
    result = workspace.run("fit", *JOB, *crash, environ=addresses(receiver))
    assert result.code == 1
    assert [kind for kind, *_ in messages_of(receiver)] == ["start", "epoch", "failure"]
    assert messages_of(receiver)[-1] == ("failure", "failed", "fit", 1)
    assert receiver.of("hook")[-1].json["error"].endswith("ValueError: batches are out of stock")
    assert signs(receiver) == ["/start", "/fail"]
    assert b"batches are out of stock" in receiver.of("beat")[-1].body


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--data=ImageFolder", "--data.root=photos"], 3, "photos"),
        (["--model.hiden=3"], 2, "hiden"),
        (["--model=my_project.FailsInInit"], 1, "hidden layers are out of stock"),
    ],
    ids=["data", "config", "model"],
)
def test_what_fails_before_there_is_a_trainer_is_reported(
    workspace: Workspace, receiver: Receiver, words: list[str], code: int, says: str
) -> None:
    assert workspace.run("fit", *JOB, *words, environ=addresses(receiver)).code == code
    assert messages_of(receiver) == [("failure", "failed", "fit", code)]
    assert says in receiver.of("hook")[0].json["error"]
    assert len(headlines(receiver)) == 1
    assert signs(receiver)[-1] == "/fail"


def test_an_error_at_a_terminal_is_reported_there_alone(
    workspace: Workspace, receiver: Receiver
) -> None:
    terminal, screen = os.openpty()
    try:
        process = workspace.start(
            "fit", *JOB, "--trainer.max_epoch=3", stderr=screen, environ=addresses(receiver)
        )
        assert process.wait() == 2
        assert b"max_epoch" in os.read(terminal, 4096)
    finally:
        os.close(screen)
        os.close(terminal)
    assert (messages_of(receiver), headlines(receiver)) == ([], [])


@pytest.mark.parametrize("devices", [1, pytest.param(2, marks=pytest.mark.long)])
def test_a_run_that_is_interrupted_and_goes_on_is_reported_as_that(
    workspace: Workspace, receiver: Receiver, devices: int
) -> None:
    sender = {
        "class_path": "my_project.SendSignal",
        "init_args": {"hook": "on_train_batch_start", "step": 8 // devices},
    }
    workspace.write(
        "signal.yaml", {"callbacks": {"sender": sender}, "trainer": {"devices": devices}}
    )
    words = ("fit", *JOB, "-c", "signal.yaml")
    assert workspace.run(*words, environ=addresses(receiver)).code == 75
    assert messages_of(receiver)[-1] == ("end", "preempted", "fit", 75)
    assert signs(receiver) == ["/start"], "a job that never comes back is missed"
    workspace.run(*words, environ=addresses(receiver)).ok()
    assert "job: fit goes on" in headlines(receiver)
    assert messages_of(receiver)[-1] == ("end", "done", "fit", 0)
    assert signs(receiver) == ["/start", "/start", ""]


@pytest.mark.parametrize(
    "words",
    [("fit", *JOB, "--trainer.fast_dev_run=true"), ("check", *JOB)],
    ids=["fast_dev_run", "check"],
)
def test_a_trial_sends_no_message(
    workspace: Workspace, receiver: Receiver, words: tuple[str, ...]
) -> None:
    workspace.run(*words, environ=addresses(receiver)).ok()
    assert receiver.requests == []


@pytest.mark.parametrize(
    ("answer", "num_sent"),
    [(Answer(404), 8), (Answer(302, headers={"Location": "/elsewhere"}), 8), (Answer(-1), 3)],
    ids=["refuses", "redirects", "never answers"],
)
def test_a_server_that_does_not_take_messages_costs_no_training_and_one_warning(
    workspace: Workspace, receiver: Receiver, answer: Answer, num_sent: int
) -> None:
    receiver.answer = lambda _number: answer
    result = workspace.run("fit", *JOB, environ=addresses(receiver)).ok()
    assert read_json(workspace.only_run / "summary.json")["status"] == "done"
    assert len(receiver.requests) == num_sent, "none is sent twice"
    for name in ("SlackNotifier", "WebhookNotifier", "run.heartbeat_url"):
        assert result.err.count(f"warning: {name}: ") == 1, result.err
    assert CANARY not in result.out + result.err


@pytest.mark.parametrize(
    "answer", [Answer(503), Answer(429, headers={"Retry-After": "1"})], ids=["failing", "busy"]
)
def test_what_may_pass_is_sent_again(
    workspace: Workspace, receiver: Receiver, answer: Answer
) -> None:
    receiver.answer = lambda number: answer if number == 0 else Answer()
    words = (
        "-c",
        "small.yaml",
        *WEBHOOK,
        "--callbacks.webhook.events=[start]",
        "--trainer.max_epochs=1",
    )
    result = workspace.run("fit", *words, environ=addresses(receiver)).ok()
    assert [kind for kind, *_ in messages_of(receiver)] == ["start", "start"]
    assert "WebhookNotifier" not in result.err


def test_the_decision_of_a_gate_is_reported(finished: Workspace, receiver: Receiver) -> None:
    words = ("--gate.metric=test/loss", "--gate.mode=min", "--gate.max=0")
    assert (
        finished.run("gate", "latest", *SLACK, *WEBHOOK, *words, environ=addresses(receiver)).code
        == 4
    )
    assert messages_of(receiver) == [("gate", "failed", "gate", 4)]
    assert receiver.of("hook")[0].json["gate"] == read_json(finished.only_run / "gate.json")
    assert headlines(receiver) == ["small: the gate says no"]


def test_an_address_that_is_said_in_a_file_is_not_kept(
    workspace: Workspace, receiver: Receiver
) -> None:
    workspace.write(
        "said.yaml",
        {"callbacks": {"webhook": {"init_args": {"webhook_url": receiver.url("hook")}}}},
    )
    workspace.run("fit", "-c", "small.yaml", "-c", "said.yaml").ok()
    assert len(messages_of(receiver)) == 4
    tested = workspace.run("test", "--run", "latest").ok()
    assert len(messages_of(receiver)) == 4
    assert "webhook_url is null" in tested.err
    kept = [
        path
        for path in workspace.only_run.rglob("*")
        if path.is_file() and CANARY.encode() in path.read_bytes()
    ]
    assert kept == []


@needs_apprise
def test_apprise_sends_the_messages_to_its_services_and_no_address_is_kept(
    workspace: Workspace, receiver: Receiver
) -> None:
    urls = [receiver.url(name).replace("http://", "json://") for name in ("first", "second")]
    workspace.write(
        "said.yaml", {"callbacks": {"notify": {"urls": urls}}, "trainer": {"max_epochs": 1}}
    )
    result = workspace.run("fit", "-c", "small.yaml", "-c", "said.yaml", "--run.name=job").ok()
    for name in ("first", "second"):
        messages = [request.json for request in receiver.of(name)]
        assert [message["title"] for message in messages] == ["job: fit begins", "job: fit is done"]
        assert "val/loss" in messages[-1]["message"]
    tested = workspace.run("test", "--run", "latest").ok()
    assert "urls is null" in tested.err
    assert CANARY not in result.out + result.err + tested.out + tested.err
    kept = [
        path
        for path in workspace.only_run.rglob("*")
        if path.is_file() and CANARY.encode() in path.read_bytes()
    ]
    assert kept == []


@needs_apprise
def test_notify_test_names_a_service_of_apprise_that_does_not_take_its_message(
    workspace: Workspace,
) -> None:
    url = f"json://127.0.0.1:{free_port()}/{CANARY}"
    workspace.write("said.yaml", {"callbacks": {"notify": {"urls": [url]}}})
    result = workspace.run("notify-test", "-c", "small.yaml", "-c", "said.yaml", "--kind=end")
    assert (result.code, result.out) == (1, "")
    assert "notify  end      not delivered: 1 of 1 services did not take it" in result.err
    assert CANARY not in result.err
    workspace.write(
        "said.yaml", {"callbacks": {"notify": {"urls": [f"unknown-service://{CANARY}"]}}}
    )
    result = workspace.run("notify-test", "-c", "small.yaml", "-c", "said.yaml")
    assert result.code == 2
    assert "entry 0 is not an address that apprise knows" in result.err
    assert CANARY not in result.err


def test_notify_test_sends_one_message_of_each_kind(
    workspace: Workspace, receiver: Receiver
) -> None:
    result = workspace.run(
        "notify-test", "-c", "small.yaml", *EVERYBODY, environ=addresses(receiver)
    ).ok()
    kinds = ["start", "epoch", "end", "failure", "gate"]
    rows = [tuple(line.split()) for line in result.out.splitlines()]
    assert rows == [
        *[(name, kind, "ok") for name in ("slack", "webhook") for kind in kinds],
        *[("run.heartbeat_url", kind, "ok") for kind in ("start", "failure", "end")],
    ]
    assert [kind for kind, *_ in messages_of(receiver)] == kinds
    assert len(headlines(receiver)) == 5
    assert signs(receiver) == ["/start", "/fail", ""]
    assert not (workspace.folder / "runs").exists()


def test_notify_test_ends_with_1_and_reports_what_did_not_arrive_without_the_address(
    workspace: Workspace, receiver: Receiver
) -> None:
    away = f"http://127.0.0.1:{free_port()}/{CANARY}"
    words = (
        "notify-test",
        "-c",
        "small.yaml",
        *SLACK,
        *WEBHOOK,
        "--kind=failure",
        "--quiet",
        "--callbacks.slack.retries=0",
    )
    result = workspace.run(*words, environ={**addresses(receiver), "SLACK_WEBHOOK_URL": away})
    assert (result.code, result.out) == (1, "")
    (line,) = result.err.splitlines()
    assert line.startswith("slack ")
    assert "Refused" in line
    assert CANARY not in line
    assert [kind for kind, *_ in messages_of(receiver)] == ["failure"]


def test_events_choose_what_is_reported_and_mention_whom_a_failure_calls(
    workspace: Workspace, receiver: Receiver
) -> None:
    chosen = ("--callbacks.slack.events=[failure,end]", "--callbacks.slack.mention=channel")
    result = workspace.run(
        "notify-test", "-c", "small.yaml", *SLACK, *chosen, environ=addresses(receiver)
    ).ok()
    assert [line.split()[1] for line in result.out.splitlines()] == ["failure", "end"]
    bodies = [request.body for request in receiver.of("slack")]
    assert ["!channel" in body.decode() for body in bodies] == [True, False]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["notify-test", "-c", "small.yaml"], "lightkit:notify/slack"),
        (["notify-test", "-c", "small.yaml", "--kind=gates"], "did you mean 'gate'"),
        (["notify-test", *SLACK], "SLACK_WEBHOOK_URL"),
        (["fit", "-c", "small.yaml", f"--run.heartbeat_url=host/{CANARY}"], "run.heartbeat_url"),
        (["notify-test", "-c", "small.yaml", f"--callbacks.slack.webhook_url=host/{CANARY}"],
         "webhook_url"),
        (["fit", "-c", "small.yaml", "--callbacks.slack.webhook_url=http://host",
          "--callbacks.slack.events=[begin]"],
         "begin"),
    ],
    ids=["nobody to tell", "kind", "variable", "switch", "address", "event"],
)  # fmt: skip
def test_an_error_in_the_notifications_is_reported_without_the_address(
    workspace: Workspace, words: list[str], says: str
) -> None:
    result = workspace.run(*words)
    assert result.code == 2, result.err
    assert says in result.err
    assert CANARY not in result.err
    assert "Traceback" not in result.err


@pytest.mark.long
def test_of_two_ranks_one_sends_messages(workspace: Workspace, receiver: Receiver) -> None:
    fails = {
        "class_path": "my_project.FailOnRank",
        "init_args": {"kind": "raise", "rank": 1, "step": 2},
    }
    workspace.write(
        "ranks.yaml", {"callbacks": {"fails": fails}, "trainer": {"devices": 2, "strategy": "ddp"}}
    )
    assert (
        workspace.run(
            "fit", *JOB, "-c", "ranks.yaml", environ=addresses(receiver), timeout_s=240
        ).code
        == 1
    )
    assert messages_of(receiver) == [
        ("start", "running", "fit", None),
        ("failure", "failed", "fit", 1),
    ]
    assert "this rank is out of stock" in receiver.of("hook")[-1].json["error"]
    assert len(headlines(receiver)) == 2
    assert signs(receiver) == ["/start", "/fail"]
