"""The JSON of a message, and the last lines of an error."""

from __future__ import annotations

import json
import re

import pytest

from lightkit.callbacks import notifiers
from lightkit.callbacks.notifiers import Message, as_json, format_error_tail
from lightkit.errors import DataError

GOLDEN = (
    '{"schema": "lightkit.message/1", "kind": "epoch", "job": "flowers", "status": "running", "run": "20261122-0300", '
    '"folder": "/runs/flowers/20261122-0300", "stage": "fit", "exit_code": null, "epoch": 2, "max_epochs": 10, '
    '"step": 18, "metrics": {"val/loss": 0.5, "train/loss": null}, "best": {"monitor": "val/loss", "value": 0.5}, '
    '"seconds": 1.5, "error": null, "mlflow_url": "http://mlflow:5000/#/experiments/1/runs/ab", '
    '"mlflow_command": null, "gate": null, "host": "night", "time": "2026-11-22T03:00:00+00:00"}'
)


def test_a_message_is_one_json_object_with_all_fields() -> None:
    message = Message(
        "epoch",
        job="flowers",
        status="running",
        run="20261122-0300",
        folder="/runs/flowers/20261122-0300",
        stage="fit",
        epoch=2,
        max_epochs=10,
        step=18,
        metrics={"val/loss": 0.5, "train/loss": float("nan")},
        best={"monitor": "val/loss", "value": 0.5},
        seconds=1.5,
        mlflow_url="http://mlflow:5000/#/experiments/1/runs/ab",
        host="night",
        time="2026-11-22T03:00:00+00:00",
    )
    assert as_json(message).decode() == GOLDEN


def test_every_field_is_described() -> None:
    described = re.findall(r"^(\w+)  +\S", str(notifiers.__doc__), flags=re.MULTILINE)
    assert described == sorted(described, key=described.index)
    assert {*described} == {*json.loads(GOLDEN)}


def test_a_foreseen_error_is_told_in_its_words() -> None:
    assert format_error_tail(DataError("photos are missing")) == "photos are missing"


def test_a_crash_is_told_by_the_end_of_its_traceback_without_secrets() -> None:
    def fails(depth: int) -> None:
        if depth:
            fails(depth - 1)
        raise ValueError("the password is swordfish-9 and long " + "x" * 3000 + "swordfish-9!")

    with pytest.raises(ValueError, match="swordfish") as caught:
        fails(0)
    told = format_error_tail(caught.value, lambda text: text.replace("swordfish-9", "***"))
    assert len(told) <= 2500
    assert told.endswith("x***!")
    assert "swordfish" not in told


def test_of_many_lines_the_last_are_told() -> None:
    told = format_error_tail(RuntimeError("\n".join(map(str, range(40))))).splitlines()
    assert (len(told), told[-1]) == (15, "39")
    assert len(format_error_tail(DataError("\n".join(map(str, range(40))))).splitlines()) == 15
