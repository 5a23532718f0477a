"""Whether a decision of before still holds for a promotion."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from lightkit.commands.promote import decision_holds
from lightkit.registry.gate import GateSettings

SETTINGS = GateSettings("test/accuracy", min=0.8, name="net")


HOUR_AGO = (datetime.now(UTC) - timedelta(hours=1)).isoformat(timespec="seconds")
DAY_AGO = (datetime.now(UTC) - timedelta(hours=25)).isoformat(timespec="seconds")


INPUTS = {"config": "c", "data": "d", "code": "e"}
RECORD = {
    "checkpoint": {"sha256": "a"},
    "settings": {**SETTINGS.__dict__},
    "against": {"version": "1"},
    "time": HOUR_AGO,
    "inputs": INPUTS,
}
NOW: dict[str, Any] = {
    "name": "net",
    "sha256": "a",
    "baseline": "1",
    "inputs": INPUTS,
    "in_retrain": False,
}
MOVE = {"alias": "champion", "to": "1", "number": 1, "scores": {"challenger": 0.5}}


@pytest.mark.parametrize(
    ("changed", "holds"),
    [
        ({}, True),
        ({"checkpoint": {"sha256": "b"}}, False),
        ({"settings": {}}, False),
        ({"against": {"version": "2"}}, False),
        ({"against": None}, False),
        ({"time": DAY_AGO}, False),
        ({"inputs": {**INPUTS, "data": "f"}}, False),
        ({"inputs": {}}, False),
        ({"inputs": None}, False),
    ],
    ids=[
        "it holds",
        "another checkpoint",
        "other settings",
        "another champion",
        "no champion",
        "old",
        "other data",
        "unknown data",
        "by an earlier version",
    ],
)
def test_a_decision_holds_for_its_checkpoint_settings_champion_data_and_a_day(
    changed: dict[str, Any], holds: bool
) -> None:
    assert decision_holds({**RECORD, **changed}, SETTINGS, **NOW) == holds
    assert not decision_holds({}, SETTINGS, **NOW)


@pytest.mark.parametrize("in_retrain", [True, False], ids=["after the stage before", "by hand"])
def test_a_decision_on_data_that_cannot_be_compared_holds_within_a_retrain_alone(
    in_retrain: bool,
) -> None:
    now = {**NOW, "inputs": {}, "in_retrain": in_retrain}
    assert decision_holds({**RECORD, "inputs": {}}, SETTINGS, **now) == in_retrain
    assert not decision_holds(RECORD, SETTINGS, **now), "the data could be compared before"


@pytest.mark.parametrize("in_retrain", [True, False], ids=["after the stage before", "by hand"])
def test_a_decision_against_a_run_holds_within_a_retrain_alone(in_retrain: bool) -> None:
    settings = GateSettings("test/accuracy", min=0.8, name="net", baseline="other/latest")
    record = {
        **RECORD,
        "settings": {**settings.__dict__},
        "against": {"version": None, "run": "other/1"},
    }
    now = {**NOW, "baseline": None, "in_retrain": in_retrain}
    assert decision_holds(record, settings, **now) == in_retrain


@pytest.mark.parametrize(
    ("history", "newest", "holds"),
    [
        ([MOVE], MOVE, True),
        (None, None, True),
        ([], None, True),
        ([MOVE], {**MOVE, "to": "2", "number": 2}, False),
        (None, MOVE, False),
        ([MOVE, {**MOVE, "number": 2}], MOVE, False),
    ],
    ids=["the same", "none yet", "none of the alias", "another", "the first", "one is gone"],
)
def test_a_decision_by_drift_holds_as_long_as_no_other_model_is_promoted(
    history: Any, newest: Any, holds: bool
) -> None:
    settings = GateSettings(
        "test/accuracy", name="net", baseline=None, drift={"window": 3, "max_drop": 0.1}
    )
    record = {**RECORD, "settings": {**settings.__dict__}, "against": None, "history": history}
    now = {**NOW, "baseline": None, "newest_move": newest}
    assert decision_holds(record, settings, **now) == holds
