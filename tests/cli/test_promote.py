"""Whether a decision of before still holds for a promotion."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from lightkit.commands.promote import explain_stale_decision
from lightkit.registry.gate import GateSettings

SETTINGS = GateSettings("test/accuracy", min=0.8, name="net")


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({}, None),
        ({"checkpoint": {"sha256": "b"}}, "gate.json is of another checkpoint"),
        ({"settings": {}}, "gate.json is of other settings"),
        ({"age": timedelta(hours=25)}, "gate.json is older than a day, and the data may have changed"),
        ({"time": "yesterday"}, "gate.json is older than a day, and the data may have changed"),
        ({"time": None}, "gate.json is older than a day, and the data may have changed"),
    ],
    ids=["it holds", "another checkpoint", "other settings", "old", "of no time", "without a time"],
)
def test_a_decision_holds_for_its_checkpoint_its_settings_and_a_day(changed: dict[str, Any], says: str | None) -> None:
    moment = datetime.now(timezone.utc) - changed.pop("age", timedelta(hours=1))
    record = {"checkpoint": {"sha256": "a"}, "settings": {**SETTINGS.__dict__}, "time": moment.isoformat(), **changed}
    assert explain_stale_decision(record, SETTINGS, name="net", sha256="a") == says
    assert explain_stale_decision({}, SETTINGS, name="net", sha256="a") == "there is no gate.json yet"
