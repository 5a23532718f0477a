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


@pytest.mark.parametrize(
    ("changed", "holds"),
    [
        ({}, True),
        ({"checkpoint": {"sha256": "b"}}, False),
        ({"settings": {}}, False),
        ({"against": {"version": "2"}}, False),
        ({"against": None}, False),
        ({"time": DAY_AGO}, False),
    ],
    ids=["it holds", "another checkpoint", "other settings", "another champion", "no champion", "old"],
)
def test_a_decision_holds_for_its_checkpoint_its_settings_and_a_day(changed: dict[str, Any], holds: bool) -> None:
    settings = {**SETTINGS.__dict__}
    record = {"checkpoint": {"sha256": "a"}, "settings": settings, "against": {"version": "1"}, "time": HOUR_AGO}
    assert decision_holds({**record, **changed}, SETTINGS, name="net", sha256="a", baseline="1") == holds
    assert not decision_holds({}, SETTINGS, name="net", sha256="a", baseline=None)
