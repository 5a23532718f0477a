"""Which measurement wins."""

from __future__ import annotations

import math

import pytest

from lightkit.tuning.choosing import choose, deviation_of, judged
from lightkit.tuning.variant import Measurement, Variant

BASE = Measurement(Variant(), step_s=1.0, least_s=0.9, losses=(2.0, 1.0))


def lower(**fields: object) -> Measurement:
    return Measurement(Variant("bf16-mixed"), **{"step_s": 0.5, "least_s": 0.45, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "wins"),
    [
        ({}, True),
        ({"step_s": 0.98}, False),
        ({"least_s": 0.89}, False),
        ({"refused": "planted"}, False),
        ({"step_s": None, "least_s": None}, False),
    ],
    ids=["clearly faster", "median within noise", "its fastest step is none", "refused", "not measured"],
)
def test_the_baseline_gives_way_to_what_is_clearly_faster(fields: dict[str, object], wins: bool) -> None:
    assert (choose([BASE, lower(**fields)]) is not BASE) == wins


def test_the_fastest_of_several_wins() -> None:
    fastest = Measurement(Variant("bf16-mixed", "channels_last"), step_s=0.3, least_s=0.3)
    assert choose([BASE, lower(), fastest]) is fastest


@pytest.mark.parametrize(
    ("losses", "refused"),
    [
        ((2.0, 1.04), None),
        ((2.0, 1.2), "its loss of step 2 is 1.2 where the baseline's is 1: 20.0% off, 15% is accepted"),
        ((2.1, 1.0), "its loss of step 1 is 2.1 where the baseline's is 2: 5.0% off, 1% is accepted"),
        ((2.0, math.nan), "its loss, or the baseline's, is not finite"),
        ((math.inf,), "its loss, or the baseline's, is not finite"),
        ((), "no loss to compare with float32's"),
    ],
    ids=["near", "off", "off_from_the_start", "nan", "infinite", "none"],
)
def test_losses_are_compared_step_by_step(losses: tuple[float, ...], refused: str | None) -> None:
    assert judged(lower(losses=losses), BASE.losses).refused == refused


def test_a_baseline_that_diverges_itself_can_be_compared_with_nothing() -> None:
    assert deviation_of((1.0,), (math.nan,)) == math.inf
    assert deviation_of((), (1.0,)) is None
