"""Whom commands tell how they begin and end, with real trainings and a real server."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from lightkit import runs
from lightkit.cli.joining import INHERITED
from lightkit.cli.notifying import Audience
from lightkit.errors import DataError, Interrupted
from lightkit.launch import LAUNCH
from lightkit.runs.dead_man import HELD
from tests.cli.conftest import House
from tests.receiving import CANARY, Answer, Receiver, receiving

pytestmark = pytest.mark.slow  # real trainings and servers


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    with receiving() as found:
        for name in ("slack", "hook", "beat"):
            monkeypatch.setenv(f"NIGHT_{name.upper()}", found.url(name))
        yield found


@pytest.fixture
def night(house: House, receiver: Receiver) -> House:
    """A working directory with a config that tells everybody."""
    told = {
        "callbacks": {
            "slack": {"init_args": {"webhook_url": "${oc.env:NIGHT_SLACK}", "retries": 0}},
            "webhook": {"init_args": {"webhook_url": "${oc.env:NIGHT_HOOK}", "retries": 0}},
        },
        "run": {"heartbeat_url": "${oc.env:NIGHT_BEAT}"},
    }
    house.write("told.yaml", yaml.safe_dump(told))
    return house


WORDS = ("-c", "small.yaml", "-c", "told.yaml")


def signs(receiver: Receiver) -> list[str]:
    return [request.path.removeprefix("/beat/*") for request in receiver.of("beat")]


def kinds(receiver: Receiver) -> list[tuple[Any, ...]]:
    found = [request.json for request in receiver.of("hook")]
    return [(message["kind"], message["status"], message["stage"], message["exit_code"]) for message in found]


def headlines(receiver: Receiver) -> list[str]:
    return [request.json["text"] for request in receiver.of("slack")]


def assert_kept_secret(folder: Path, *texts: str) -> None:
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert len(files) > 5
    assert [path for path in files if CANARY.encode() in path.read_bytes()] == []
    assert [text for text in texts if CANARY in text] == []


def test_a_fit_and_its_test_are_told_and_no_address_is_kept(night: House, receiver: Receiver) -> None:
    fit = night("fit", *WORDS, "--logger.mlflow", "{}", "--logger.csv", "{}")
    assert fit.code == 0, fit.err
    assert kinds(receiver) == [
        ("start", "running", "fit", None),
        ("epoch", "running", "fit", None),
        ("end", "done", "fit", 0),
    ]
    assert headlines(receiver) == ["told: fit begins", "told: fit is done"]  # each tenth epoch, of which there is one
    assert signs(receiver) == ["/start", ""]
    end = receiver.of("hook")[-1].json
    assert (end["job"], end["run"], end["folder"]) == ("told", night.runs[-1].name, str(night.runs[-1].absolute()))
    assert end["mlflow_command"].startswith("mlflow ui --backend-store-uri sqlite:///runs/mlflow.db")
    receiver.requests.clear()
    test = night("test", "--run", "latest")
    assert test.code == 0, test.err
    assert kinds(receiver) == [("start", "running", "test", None), ("end", "done", "test", 0)]
    assert signs(receiver) == ["/start", ""]
    assert_kept_secret(night.folder, fit.out, fit.err, test.out, test.err)


def test_a_crash_is_told_once_by_its_last_lines(night: House, receiver: Receiver) -> None:
    with pytest.raises(ValueError, match="out of stock"):
        night("fit", *WORDS, "--model=my_models.Failing")
    assert kinds(receiver) == [("start", "running", "fit", None), ("failure", "failed", "fit", 1)]
    assert receiver.of("hook")[-1].json["error"].endswith("ValueError: batches are out of stock")
    assert headlines(receiver)[-1] == "told: fit has failed with exit code 1"
    assert signs(receiver) == ["/start", "/fail"]
    assert receiver.of("beat")[-1].body == b"ValueError: batches are out of stock"
    assert HELD not in os.environ


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--data=ImageFolder", "--data.root=photos"], 3, "photos"),
        (["--model.hiden=3"], 2, "hiden"),
        (["--model=my_models.Broken"], 1, "hidden layers are out of stock"),
    ],
    ids=["data", "config", "model"],
)
def test_what_fails_before_there_is_a_trainer_is_told_too(
    night: House, receiver: Receiver, words: list[str], code: int, says: str
) -> None:
    try:
        done = night("fit", *WORDS, *words).code
    except ValueError:
        done = 1
    assert done == code
    assert kinds(receiver) == [("failure", "failed", "fit", code)]
    assert says in receiver.of("hook")[0].json["error"]
    assert receiver.of("hook")[0].json["job"] == "told"
    assert headlines(receiver) == [f"told: fit has failed with exit code {code}"]
    assert signs(receiver)[-1] == "/fail"
    assert says in receiver.of("beat")[-1].body.decode()


def test_a_mistake_at_a_terminal_is_told_there_alone(
    night: House, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert night("fit", *WORDS, "--trainer.max_epoch=3").code == 2
    assert receiver.requests == []
    assert night("fit", *WORDS, "--model.hiden=3").code == 2  # known once the model's class has been imported
    assert (kinds(receiver), headlines(receiver)) == ([], [])
    assert signs(receiver) == ["/start", "/fail"]


def test_a_job_that_is_held_begins_and_says_no_more(night: House, receiver: Receiver) -> None:
    with runs.Lock(Path("runs"), "told"):
        assert night("fit", *WORDS).code == 75
    assert signs(receiver) == ["/start"]
    assert kinds(receiver) == []
    assert headlines(receiver) == []


def test_a_trial_is_no_sign_of_life(night: House, receiver: Receiver) -> None:
    assert night("fit", *WORDS, "--trainer.fast_dev_run=true").code == 0
    assert night("fit", *WORDS, "--print_config").code == 0
    assert receiver.requests == []


def test_a_deep_check_sends_nothing(night: House, receiver: Receiver) -> None:
    done = night("check", *WORDS, "--deep")
    assert done.code == 0, done.err
    assert receiver.requests == []


def test_a_stage_of_a_larger_command_leaves_the_switch_to_it(
    night: House, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(HELD, "1")
    assert night("fit", *WORDS).code == 0
    assert signs(receiver) == []
    assert len(kinds(receiver)) == 3
    assert os.environ[HELD] == "1"


def test_an_address_that_is_none_is_shown_with_its_place_alone(night: House) -> None:
    done = night("fit", "-c", "small.yaml", f"--run.heartbeat_url=host/{CANARY}")
    assert done.code == 2
    assert "run.heartbeat_url: expected an address such as https://host/path" in done.err
    assert CANARY not in done.err
    assert night.runs == []


def test_addresses_said_in_a_file_are_not_kept_and_needed_no_more(night: House, receiver: Receiver) -> None:
    night.write("said.yaml", f"callbacks: {{webhook: {{init_args: {{webhook_url: '{receiver.url('hook')}'}}}}}}")
    done = night("fit", "-c", "small.yaml", "-c", "said.yaml", f"--run.heartbeat_url={receiver.url('beat')}")
    assert done.code == 0, done.err
    assert len(kinds(receiver)) == 3
    receiver.requests.clear()
    test = night("test", "--run", "latest")
    assert test.code == 0, test.err
    assert receiver.requests == []
    assert "WebhookNotifier sends nothing: its webhook_url is null" in test.err
    (night.folder / "said.yaml").unlink()
    assert_kept_secret(night.folder, done.out, done.err, test.out, test.err)


def test_a_server_that_fails_changes_nothing_but_a_warning(night: House, receiver: Receiver) -> None:
    receiver.answer = lambda _number: Answer(404)
    done = night("fit", *WORDS)
    assert done.code == 0
    assert done.err.count("SlackNotifier: a message was not delivered: the server answers 404") == 1
    assert done.err.count("WebhookNotifier: a message was not delivered: the server answers 404") == 1
    assert done.err.count("run.heartbeat_url: a message was not delivered: the server answers 404") == 1
    assert_kept_secret(night.folder, done.out, done.err)


def test_a_signal_before_there_is_a_trainer_loads_no_notifier(night: House, receiver: Receiver) -> None:
    def interrupted() -> int:
        raise Interrupted(15)

    with pytest.raises(Interrupted):
        Audience("fit", list(WORDS)).around(interrupted)
    assert receiver.requests == []


@pytest.mark.parametrize("variable", [INHERITED, LAUNCH])
def test_a_rank_of_others_tells_no_failure_of_its_own(
    night: House, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "{}")
    audience = Audience("fit", [*WORDS])

    def fails() -> int:
        raise DataError("photos are missing")

    with pytest.raises(DataError):
        audience.around(fails)
    assert receiver.requests == []


def test_the_end_of_several_ranks_is_told_in_the_words_of_the_screen(night: House, receiver: Receiver) -> None:
    audience = Audience("fit", [*WORDS])
    audience.words = "error: rank 1: batches are out of stock"
    assert audience.around(lambda: 1) == 1
    assert kinds(receiver) == [("failure", "failed", "fit", 1)]
    assert receiver.of("hook")[0].json["error"] == "error: rank 1: batches are out of stock"
    receiver.requests.clear()
    assert [Audience("fit", [*WORDS]).around(partial(int, code)) for code in (0, 6, 75)] == [0, 6, 75]
    assert receiver.requests == []


def test_a_notifier_of_ones_own_is_told_as_well(night: House, receiver: Receiver) -> None:
    night.write(
        "my_tellers.py",
        '''\
from lightkit.callbacks.notifying import Notifier
from lightkit.runs.posting import Post


class Pager(Notifier):
    """Sends a word."""

    def __init__(self, webhook_url: str, word: str = "?", times: int = 1):
        super().__init__(webhook_url, retries=0)
        self.word, self.times = word, times

    def post_of(self, message, url):
        return Post(url, f"{self.word * self.times} {message.kind}".encode())
''',
    )
    pager = {"class_path": "my_tellers.Pager", "init_args": {"webhook_url": "${oc.env:NIGHT_HOOK}", "word": "ho"}}
    night.write("pager.yaml", yaml.safe_dump({"callbacks": {"pager": pager}}))
    words = ("-c", "small.yaml", "-c", "pager.yaml", "--callbacks.pager.times=2")
    assert night("fit", *words).code == 0
    assert night("fit", *words, "--model.hiden=3").code == 2
    sent = [request.body.decode() for request in receiver.of("hook")]
    assert sent == ["hoho start", "hoho epoch", "hoho end", "hoho failure"]
