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


@pytest.mark.parametrize(
    "text", ["", "epoch,step,a\n", "epoch,step,a\n0,"], ids=["empty", "header", "torn"]
)
def test_a_half_made_file_has_no_rows(text: str, tmp_path: Path) -> None:
    (tmp_path / "m.csv").write_text(text)
    assert runs.MetricsTable(tmp_path / "m.csv").rows == []


def write_epochs(folder: Path, count: int) -> runs.MetricsTable:
    table = runs.MetricsTable(folder / "metrics.csv")
    events = runs.EventStream(folder / "events.jsonl")
    for epoch in range(count):
        row = {"a": 0.1 + 0.2 * epoch, "b": math.nan if epoch == 1 else -1.0, "c": math.inf}
        events.write("epoch", epoch=epoch, step=12 * (epoch + 1), metrics=row, seconds=1.0)
        table.record(epoch, 12 * (epoch + 1), row)
    return table


def test_at_each_length_the_rows_are_those_of_the_events(tmp_path: Path) -> None:
    table = write_epochs(tmp_path, 9)
    whole = table.path.read_bytes()
    for length in range(len(whole) + 1):
        table.path.write_bytes(whole[:length])
        rows = runs.MetricsTable(table.path).rows
        assert [(row["epoch"], row["step"], row["a"]) for row in rows] == [
            (row["epoch"], row["step"], row["a"]) for row in table.rows
        ], length
        assert all(math.isnan(row["b"]) == (row["epoch"] == 1) for row in rows)


@pytest.mark.parametrize("has_events", [True, False], ids=["events", "table-alone"])
def test_a_part_of_the_last_number_is_no_number(
    has_events: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = runs.MetricsTable(tmp_path / "metrics.csv")
    for epoch in range(2):
        row = {"a": 12.5 + epoch}
        if has_events:
            events = runs.EventStream(tmp_path / "events.jsonl")
            events.write("epoch", epoch=epoch, step=epoch + 1, metrics=row, seconds=1.0)
        table.record(epoch, epoch + 1, row)
    whole = table.path.read_text()
    assert whole.endswith("1,2,13.5\n")
    table.path.write_text(whole.removesuffix("3.5\n"))
    values = [row["a"] for row in runs.MetricsTable(table.path).rows]
    assert values == ([12.5, 13.5] if has_events else [12.5])
    assert "metrics.csv is damaged" in caplog.text


def test_a_digit_that_changed_is_that_of_the_event(tmp_path: Path) -> None:
    table = write_epochs(tmp_path, 4)
    whole = table.path.read_text()
    for at, letter in enumerate(whole):
        if letter.isdigit():
            table.path.write_text(f"{whole[:at]}9{whole[at + 1 :]}")
            rows = runs.MetricsTable(table.path).rows
            assert [row["epoch"] for row in rows] == [0, 1, 2, 3], at
            assert [row["a"] for row in rows] == [row["a"] for row in table.rows], at


def test_rows_without_an_event_are_kept(tmp_path: Path) -> None:
    table = write_epochs(tmp_path, 4)
    events = tmp_path / "events.jsonl"
    events.write_bytes(events.read_bytes()[: events.stat().st_size // 2])
    assert str(runs.MetricsTable(table.path).rows) == str(table.rows)
    events.unlink()
    assert str(runs.MetricsTable(table.path).rows) == str(table.rows)


def test_what_was_trained_again_is_not_kept(tmp_path: Path) -> None:
    table = write_epochs(tmp_path, 4)
    runs.EventStream(tmp_path / "events.jsonl").write(
        "epoch", epoch=2, step=37, metrics={"a": 7.0}, seconds=1.0
    )
    assert [(row["epoch"], row["a"]) for row in runs.MetricsTable(table.path).rows][2:] == [
        (2, 7.0)
    ]
    assert len(runs.MetricsTable(table.path).rows) == 3


def test_a_table_that_is_being_written_is_not_damaged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_epochs(tmp_path, 4)
    runs.EventStream(tmp_path / "events.jsonl").write(
        "epoch", epoch=4, step=60, metrics={"a": 7.0}, seconds=1.0
    )
    assert len(runs.MetricsTable(tmp_path / "metrics.csv").rows) == 5
    assert not caplog.records


@pytest.mark.parametrize("cell", ["x", "4" * 400 + "x", '"', "\xff", "1,2"])
def test_what_is_no_number_is_warned_of(
    cell: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "metrics.csv").write_text(
        f"epoch,step,a\n0,10,1.5\n1,20,{cell}\n", encoding="latin-1"
    )
    assert runs.MetricsTable(tmp_path / "metrics.csv").rows == [{"epoch": 0, "step": 10, "a": 1.5}]
    assert "metrics.csv is damaged: rows that cannot be read are left out" in caplog.text
