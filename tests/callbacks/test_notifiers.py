"""The JSON of a message, and the last lines of an error."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from lightkit.callbacks import notifiers
from lightkit.callbacks.notifiers import WebhookNotifier, create_message, format_error_tail
from lightkit.errors import DataError


def test_a_message_has_all_fields_and_json_has_no_nan() -> None:
    message = create_message(
        "epoch", job="flowers", status="running", epoch=2, metrics={"train/loss": float("nan")}
    )
    deliver: Any = WebhookNotifier("https://host/x").compose(message)
    record = json.loads(deliver.args[1])
    assert record["metrics"] == {"train/loss": None}
    known = {
        name: value
        for name, value in record.items()
        if value not in (None, {}) and name not in ("time", "host")
    }
    assert known == {
        "schema": "lightkit.message/1",
        "kind": "epoch",
        "job": "flowers",
        "status": "running",
        "epoch": 2,
        "metrics": {"train/loss": None},
    }


def test_every_field_is_described() -> None:
    described = re.findall(r"^(\w+)  +\S", str(notifiers.__doc__), flags=re.MULTILINE)
    assert described == sorted(described, key=described.index)
    assert {*described} == {*create_message("end", job="flowers", status="done")}


def test_a_foreseen_error_is_reported_in_its_words() -> None:
    assert format_error_tail(DataError("photos are missing"), str) == "photos are missing"


def test_a_crash_is_reported_by_the_end_of_its_traceback_without_secrets() -> None:
    def fails(depth: int) -> None:
        if depth:
            fails(depth - 1)
        raise ValueError("the password is swordfish-9 and long " + "x" * 3000 + "swordfish-9!")

    with pytest.raises(ValueError, match="swordfish") as caught:
        fails(0)
    tail = format_error_tail(caught.value, lambda text: text.replace("swordfish-9", "***"))
    assert len(tail) <= 2500
    assert tail.endswith("x***!")
    assert "swordfish" not in tail


def test_of_many_lines_the_last_are_reported() -> None:
    tail = format_error_tail(RuntimeError("\n".join(map(str, range(40)))), str).splitlines()
    assert (len(tail), tail[-1]) == (15, "39")
    assert len(format_error_tail(DataError("\n".join(map(str, range(40)))), str).splitlines()) == 15
