"""Which configs give the same model, so that an interrupted run goes on."""

from __future__ import annotations

import math
from typing import Any

import pytest

from lightkit.runs.resume import compare_configs

KEY = "trainer.limit_train_batches"


@pytest.mark.parametrize(
    ("saved", "now", "changed"),
    [
        (1, 1.0, [KEY]),  # one batch, and all of them
        (1, 1, []),
        (math.nan, float("nan"), []),
        ([math.nan], [float("nan")], []),
        (None, 1, [KEY]),
    ],
    ids=["whole-or-share", "same", "nan", "nan-in-a-list", "not-set"],
)
def test_a_value_differs_where_another_is_written(saved: Any, now: Any, changed: list[str]) -> None:
    values = [{"trainer": {"limit_train_batches": each}} for each in (saved, now)]
    assert compare_configs(*values) == changed


def test_a_key_that_an_earlier_version_did_not_have_is_null() -> None:
    saved = {"trainer": {"max_epochs": 1}}
    assert compare_configs(saved, {"trainer": {"max_epochs": 1, "limit_val_batches": None}}) == []
