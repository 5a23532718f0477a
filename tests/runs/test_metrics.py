from __future__ import annotations

import math
from pathlib import Path

import pytest

from lightkit import runs


def test_an_epoch_is_one_row_with_its_metrics_sorted(tmp_path: Path) -> None:
    table = runs.MetricsTable(tmp_path / "new" / "metrics.csv")
    table.record(0, 10, {"val/loss": 0.5, "train/loss": 1.0, "epoch": 9.0})
    assert table.path.read_text() == "epoch,step,train/loss,val/loss\n0,10,1.0,0.5\n"


def test_a_new_metric_is_a_new_column_and_earlier_rows_leave_it_empty(tmp_path: Path) -> None:
    table = runs.MetricsTable(tmp_path / "metrics.csv")
    table.record(0, 10, {"b": 1.0})
    table.record(1, 20, {"a": 2.0})
    assert table.path.read_text() == "epoch,step,a,b\n0,10,,1.0\n1,20,2.0,\n"


def test_the_row_of_the_same_epoch_is_replaced(tmp_path: Path) -> None:
    table = runs.MetricsTable(tmp_path / "metrics.csv")
    table.record(0, 10, {"a": 1.0, "gone": 1.0})
    table.record(0, 11, {"a": 2.0})
    assert table.path.read_text() == "epoch,step,a\n0,11,2.0\n"


def test_the_next_process_goes_on_in_the_same_table(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    first = runs.MetricsTable(path)
    for epoch in range(4):
        first.record(epoch, 10 * epoch, {"a": 0.1 + 0.2 * epoch})
    second = runs.MetricsTable(path)
    assert second.rows == first.rows
    second.record(2, 20, {"a": 7.0})
    assert path.read_text() == "epoch,step,a\n0,0,0.1\n1,10,0.30000000000000004\n2,20,7.0\n"


def test_nan_and_infinity_are_kept_as_such(tmp_path: Path) -> None:
    runs.MetricsTable(tmp_path / "m.csv").record(0, 1, {"a": math.nan, "b": -math.inf})
    (row,) = runs.MetricsTable(tmp_path / "m.csv").rows
    assert math.isnan(row["a"])
    assert row["b"] == -math.inf


@pytest.mark.parametrize("text", ["", "epoch,step,a\n", "epoch,step,a\n0,"], ids=["empty", "header", "torn"])
def test_a_half_made_file_has_no_rows(text: str, tmp_path: Path) -> None:
    (tmp_path / "m.csv").write_text(text)
    assert runs.MetricsTable(tmp_path / "m.csv").rows == []
