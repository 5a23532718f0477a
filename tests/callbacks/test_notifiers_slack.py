"""What Slack is sent."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightkit.callbacks import SlackNotifier
from lightkit.callbacks.notifiers import KINDS, Message
from lightkit.callbacks.notifiers import create_message as made

WHERE: dict[str, Any] = {"host": "night", "time": "2026-11-22T03:00:00+00:00"}


def sent(message: Message, **arguments: Any) -> dict[str, Any]:
    deliver: Any = SlackNotifier("https://host/x", **arguments).compose(message)
    body: dict[str, Any] = json.loads(deliver.args[1])
    return body


def texts(body: dict[str, Any]) -> list[str]:
    return [block["text"]["text"] for block in body["blocks"]]


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (
            made("start", job="flowers", status="running", stage="fit", epoch=0, step=0,
                 folder="/r/1", **WHERE),
            ["*flowers: fit begins*", "/r/1 · night"],
        ),
        (
            made("start", job="flowers", status="running", stage="fit", epoch=2, step=9, **WHERE),
            ["*flowers: fit goes on*", "night"],
        ),
        (
            made(
                "epoch",
                job="flowers",
                status="running",
                epoch=4,
                max_epochs=20,
                metrics={"val/loss": 0.51234, "lr": 0.001, "odd": None},
                best={"monitor": "val/loss", "value": 0.5},
                seconds=3725.4,
                mlflow_url="http://mlflow:5000/#/experiments/1/runs/ab",
                mlflow_command="mlflow ui",
                **WHERE,
            ),
            [
                "*flowers: epoch 4 (5 of 20) is done*",
                "```val/loss  0.5123\nlr        0.001\nodd       -```",
                "best val/loss: 0.5",
                "<http://mlflow:5000/#/experiments/1/runs/ab|run in MLflow> · night · 62 min",
            ],
        ),
        (
            made("end", job="flowers", status="done", stage="test", metrics={"test/loss": 2},
                 seconds=61, **WHERE),
            ["*flowers: test is done*", "```test/loss  2```", "night · 61 s"],
        ),
        (
            made("end", job="flowers", status="preempted", stage="fit", error="signal 15",
                    mlflow_command="mlflow ui", **WHERE),
            ["*flowers: fit was interrupted; the same command goes on with it*",
             "`mlflow ui` · night"],
        ),
        (
            made("failure", job="a<b>&c", status="failed", stage="fit", exit_code=3,
                 error="no <photos> & ```x```",
                    **WHERE),
            [
                "*a&lt;b&gt;&amp;c: fit has failed with exit code 3*",
                "```no &lt;photos&gt; &amp; '''x'''```",
                "night",
            ],
        ),
        (
            made(
                "gate",
                job="flowers",
                status="failed",
                error="test/f1 is 0.7",
                metrics={"test/f1": 0.7},
                gate={"baseline": None},
                **WHERE,
            ),
            [
                "*flowers: the gate says no*",
                "```test/f1  0.7```",
                "```test/f1 is 0.7```",
                "night"
            ],
        ),
        (
            made(
                "gate",
                job="flowers",
                status="failed",
                error="test/f1 of <roses> is 0.5, expected at least 0.6",
                gate={
                    "baseline": "champion (version 3)",
                    "checks": [
                        {"name": "test/f1", "challenger": 0.7, "asks": "at least 0.6",
                         "passed": True},
                        {"name": "test/f1 of <roses>", "challenger": 0.5, "asks": "at least 0.6",
                         "passed": False},
                        {"name": "test/f1 of late", "challenger": None, "asks": "at most 0.1 worse",
                         "passed": False},
                    ],
                },
                **WHERE,
            ),
            [
                "*flowers: the gate says no*",
                "against champion (version 3)",
                "```FAILED  test/f1 of &lt;roses&gt; 0.5, asked: at least 0.6\n"
                "FAILED  test/f1 of late -, asked: at most 0.1 worse\n"
                "passed  test/f1 0.7, asked: at least 0.6```",
                "night",
            ],
        ),
        (
            made("gate", job="flowers", status="passed", gate={},
                    **WHERE),
            ["*flowers: the gate says yes*", "night"],
        ),
    ],
    ids=["start", "resume", "epoch", "end", "preempted", "failure", "gate-no", "gate-checks",
         "gate-yes"],
)  # fmt: skip
def test_each_kind_reads_as_it_should(message: Message, expected: list[str]) -> None:
    body = sent(message)
    assert texts(body) == expected
    assert body["text"] == expected[0].strip("*")


@pytest.mark.parametrize(
    ("mention", "begins"),
    [
        ("channel", "<!channel> *job:"),
        ("here", "<!here> *job:"),
        ("U012AB3CD", "<@U012AB3CD> *job:"),
        (None, "*job:"),
    ],
)
def test_a_failure_calls_whom_it_should(mention: str | None, begins: str) -> None:
    failure = made("failure", job="job", status="failed", stage="fit", error="x")
    assert texts(sent(failure, mention=mention))[0].startswith(begins)
    assert texts(sent(made("end", job="job", status="done"), mention=mention))[0].startswith("*job")


def test_a_link_cannot_be_closed_by_what_is_in_it() -> None:
    message = made(
        "end", job="j", status="done", mlflow_url="http://h/#/experiments/1|x>/runs/<a&b", **WHERE
    )
    assert (
        texts(sent(message))[-1]
        == "<http://h/#/experiments/1%7Cx&gt;/runs/&lt;a&amp;b|run in MLflow> · night"
    )


@given(
    kind=st.sampled_from(KINDS),
    job=st.text(max_size=400),
    error=st.text(alphabet=st.sampled_from("a&<>`\n é\ud800"), max_size=2500),
    names=st.lists(st.text(min_size=1, max_size=300), max_size=40, unique=True),
    folder=st.text(max_size=5000),
)
@settings(derandomize=True)
def test_no_text_is_longer_than_slack_takes(
    kind: Any, job: str, error: str, names: list[str], folder: str
) -> None:
    metrics = dict.fromkeys(names, 0.5)
    gate = {"checks": [{"name": name, "asks": error} for name in names], "baseline": job}
    body = sent(
        made(
            kind,
            job=job,
            status="failed",
            error=error * 3,
            metrics=metrics,
            gate=gate,
            folder=folder,
        )
    )
    assert len(body["text"]) <= 40_000
    assert len(body["blocks"]) <= 50
    for text in texts(body):
        assert 0 < len(text) <= 3000
        assert text.count("```") in (0, 2)
        outside = text.replace("&amp;", "").replace("&lt;", "").replace("&gt;", "")
        assert not {"&", "<", ">"} & {*outside}
