"""How long a training is, as its config says it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from lightkit.cli.context import RunContext
from lightkit.cli.full_validation import open_context
from lightkit.cli.length import Length
from lightkit.runs.signals import SignalWatch
from tests.cli.conftest import House


@pytest.fixture
def session(house: House) -> RunContext:
    """That of a fit in this process alone."""
    return _session()


def _session(*words: str) -> RunContext:
    with SignalWatch() as watch:
        return open_context("fit", ["-c", "small.yaml", *words], watch)


@pytest.mark.parametrize(
    ("values", "alone", "one_of_two", "uncounted"),
    [
        ({}, 101, 51, None),
        ({"limit_train_batches": None, "overfit_batches": 0.0}, 101, 51, None),
        ({"limit_train_batches": 5000}, 101, 51, 5000),
        ({"limit_train_batches": 80}, 80, 51, 80),
        ({"limit_train_batches": 8}, 8, 8, 8),
        ({"limit_train_batches": 0.5}, 50, 25, None),
        ({"limit_train_batches": 0.5, "overfit_batches": 3}, 3, 3, 3),
        ({"limit_train_batches": 8, "max_steps": 2, "accumulate_grad_batches": 3}, 6, 6, 6),
    ],
    ids=["all", "by default", "a number too large", "more than half", "a number", "a part", "the same", "steps"],
)
def test_each_process_takes_its_batches_of_the_data_up_to_the_limit_of_its_trainer(
    house: House, values: dict[str, Any], alone: int, one_of_two: int, uncounted: int | None
) -> None:
    for session, counted in ((_session(), alone), (_session("--accelerator.num_processes=2"), one_of_two)):
        length = Length(session, {"max_epochs": 1, **values})
        assert (length.num_steps(101), length.num_steps(None)) == (counted, uncounted)


@pytest.mark.parametrize(
    ("max_time", "seconds"),
    [(None, None), ("00:00:01:00", 60), ({"hours": 1, "minutes": 30}, 5400), (timedelta(days=2), 172_800)],
    ids=["none", "text", "mapping", "timedelta"],
)
def test_the_time_of_a_training_is_read_as_lightning_reads_it(
    session: RunContext, max_time: Any, seconds: float | None
) -> None:
    assert Length(session, {"max_time": max_time}).most_s == seconds
