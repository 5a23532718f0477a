"""How long a training is, as its config says it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from lightkit.cli.length import Length
from lightkit.cli.session import Session, open_session
from lightkit.runs.signals import SignalWatch
from tests.cli.conftest import House


@pytest.fixture
def session(house: House) -> Session:
    """That of a fit in this process alone."""
    with SignalWatch() as watch:
        return open_session("fit", ["-c", "small.yaml"], watch)


@pytest.mark.parametrize(
    ("values", "counted", "uncounted"),
    [
        ({}, 100, None),
        ({"limit_train_batches": None, "overfit_batches": 0.0}, 100, None),
        ({"limit_train_batches": 5000}, 100, 5000),
        ({"limit_train_batches": 8}, 8, 8),
        ({"limit_train_batches": 0.5}, 50, None),
        ({"limit_train_batches": 0.5, "overfit_batches": 3}, 3, 3),
    ],
    ids=["all", "by default", "a number too large", "a number", "a part", "the same"],
)
def test_the_trainer_takes_batches_up_to_its_limit(
    session: Session, values: dict[str, Any], counted: int, uncounted: int | None
) -> None:
    length = Length(session, values)
    assert (length.num_taken(100), length.num_taken(None)) == (counted, uncounted)


@pytest.mark.parametrize(
    ("max_time", "seconds"),
    [(None, None), ("00:00:01:00", 60), ({"hours": 1, "minutes": 30}, 5400), (timedelta(days=2), 172_800)],
    ids=["none", "text", "mapping", "timedelta"],
)
def test_the_time_of_a_training_is_read_as_lightning_reads_it(
    session: Session, max_time: Any, seconds: float | None
) -> None:
    assert Length(session, {"max_time": max_time}).most_s == seconds
