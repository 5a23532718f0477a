"""Rows of tables of every kind, in one form; odd input is an error with its line."""

from __future__ import annotations

import gzip
import io
import random
import sys
from collections.abc import Mapping
from contextlib import suppress
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from lightkit.errors import DataError
from lightkit.rows.parquet_table import open_table
from lightkit.rows.reader import check_rows, open_rows
from lightkit.rows.values import ColumnType, TypeGuess, read_columns

TYPES: Mapping[str, ColumnType] = {"a": "number", "b": "category"}


def read(
    place: Path | str, types: Mapping[str, ColumnType] = TYPES, **options: Any
) -> dict[str, list[Any]]:
    """Read all columns of some types, and refuse cells that are none."""
    found: dict[str, list[Any]] = {name: [] for name in types}
    for batch in open_rows(str(place)).read(list(types), **options):
        rows, defects = read_columns(batch.rows, types)
        check_rows(batch, defects)
        for name, cells in rows.to_pydict().items():
            found[name] += cells
    return found


def write(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    return path


ODD = {
    "mark": (
        "t.csv",
        b'\xef\xbb\xbfa,b\r\n1,x\r\n\r\n 4 ,"x\ny"\r\n',
        {"a": [1.0, 4.0], "b": ["x", "x\ny"]},
    ),
    "semicolons": ("t.csv", b"b;a\nx;1.5\n", {"a": [1.5], "b": ["x"]}),
    "missing": ("t.csv", b"a,b\nNaN,\n?,NA\n,None\n", {"a": [None] * 3, "b": [None, "NA", "None"]}),
    "signs": ("t.tsv", b"a\tb\n+7\tx\n1e3\tx\n.5\tx\n", {"a": [7.0, 1000.0, 0.5], "b": ["x"] * 3}),
    "gzip": ("t.csv.gz", gzip.compress(b"a,b\n1,x\n"), {"a": [1.0], "b": ["x"]}),
    "json": ("t.jsonl", b'{"a":1,"b":true}\n\n{"b":3}\n', {"a": [1.0, None], "b": ["true", "3"]}),
}


@pytest.mark.parametrize(("name", "content", "cells"), ODD.values(), ids=ODD)
def test_each_kind_of_text_is_read_alike(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    content: bytes,
    cells: dict[str, list[Any]],
) -> None:
    path = write(tmp_path, name, content)
    assert read(path) == cells
    assert read(path, with_lines=True, batch_rows=1) == cells
    if not name.endswith(".gz"):
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(content)))
        assert read("-") == cells


FAULTS = {
    "ragged": (
        "t.csv",
        b'a,b\n1,x\n4,"x\ny"\n4\n',
        r"t\.csv, line 5: this row has 1 cells; expected 2",
    ),
    "empty": ("t.csv", b"", r"t\.csv: this table is empty"),
    "header alone": ("t.csv", b"a,b\n", r"t\.csv: this table has no rows"),
    "utf-16": (
        "t.csv",
        "a,b\n1,2\n".encode("utf-16"),
        r"t\.csv, line 1: this table is not in UTF-8",
    ),
    "latin-1": ("t.csv", b"a,b\n1,x\n2,\xe4\n", r"t\.csv, line 3: this table is not in UTF-8"),
    "huge": (
        "t.csv",
        b"a,b\n1,x\n1," + b"x" * 1_100_000 + b"\n",
        r"t\.csv, line 3: .*field larger than",
    ),
    "open": ("t.csv", b'a,b\n1,x\n"2,x\n', r"t\.csv, line 3: this table cannot be read"),
    "open at the end": (
        "t.csv",
        b'a,b\n1,x\n2,"x\n',
        r"t\.csv, line 3: this table cannot be read .* none closes it",
    ),
    "after a quote": (
        "t.csv",
        b'a,b\n1,x\n2,"r"x\n3,x\n',
        r't\.csv, line 3: this table cannot be read .*as in "17"" screen"',
    ),
    "blank after a quote": (
        "t.csv",
        b'a,b\n1,"x\ny"\n2,"r" \n3,x\n',
        r"t\.csv, line 4: this table cannot be read",
    ),
    "mixed": (
        "t.csv",
        b'a,b\n1,"x\ny"\nfour,x\n',
        r"t\.csv, line 4: column 'a' has 'four', expected a finite number",
    ),
    "infinite": ("t.csv", b"a,b\n1,x\n-inf,x\n", r"t\.csv, line 3: column 'a' has '-inf'"),
    "twice": ("t.csv", b"a,a\n1,2\n", r"line 1: two columns have the name 'a'"),
    "column": ("t.csv", b"A,b\n1,2\n", r"the table has no column 'a'"),
    "no json": ("t.jsonl", b'{"a":1,"b":2}\n{"a":1\n', r"t\.jsonl, line 2: this line is no JSON"),
    "no object": ("t.jsonl", b'[{"a":1,"b":2}]\n', r"t\.jsonl, line 1: expected an object"),
    "list": ("t.jsonl", b'{"a":[1],"b":2}\n', r"t\.jsonl, line 1: column 'a' has '\[1\]'"),
    "spreadsheet": ("t.xlsx", b"PK", r"a \.xlsx file is not read .*; expected CSV"),
}


@pytest.mark.parametrize(("name", "content", "says"), FAULTS.values(), ids=FAULTS)
def test_odd_input_is_an_error_with_its_line(
    tmp_path: Path, name: str, content: bytes, says: str
) -> None:
    path = write(tmp_path, name, content)
    with pytest.raises(DataError, match=says):
        read(path)
    with pytest.raises(DataError, match=says):
        read(path, with_lines=True)


def test_rows_are_the_same_wherever_a_block_and_a_batch_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ["x", "", 'say ""hi""', "one\ntwo", "a,b", "ä", "\r\n", " 7 "]
    lines = "".join(
        f'{at},"{texts[at % len(texts)]}"\r\n' + "\r\n" * (at % 5 == 0) for at in range(90)
    )
    path = write(tmp_path, "t.csv", f"a,b\r\n{lines}".encode())
    expected = read(path)
    assert expected["a"] == [float(at) for at in range(90)]
    # without a text, or of blanks
    assert [cell for cell in expected["b"] if cell is None] == [None] * 23
    for size in (48, 64, 100, 1000):
        monkeypatch.setattr("lightkit.rows.reader._BLOCK_BYTES", size)
        for batch_rows in (1, 7, 100):
            assert (
                read(path, batch_rows=batch_rows)
                == read(path, batch_rows=batch_rows, with_lines=True)
                == expected
            )
            named = [
                name
                for batch in open_rows(str(path)).read(batch_rows=batch_rows)
                for name in batch.name_rows()
            ]
            by_line = open_rows(str(path)).read(batch_rows=batch_rows, with_lines=True)
            assert named == [name for batch in by_line for name in batch.name_rows()]
            assert len(named) == 90


def test_quotation_marks_have_one_rule_with_and_without_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_rows(path: Path, *, with_lines: bool) -> list[dict[str, str]] | str:
        try:
            batches = list(open_rows(str(path)).read(with_lines=with_lines))
        except DataError as error:
            return str(error)
        return [row for batch in batches for row in batch.rows.to_pylist()]

    right = ["1", "", '"1"', '""', '"a""b"', '"x\ny"', 'a"b', ' "a"', '"\r\n"', '""""']
    wrong = ['"a"x', '"a" ', '"', '"a""']
    choose = random.Random(7)
    num_right = 0
    num_wrong = 0
    for _ in range(300):
        num_columns = choose.randint(1, 3)
        cells = right if choose.random() < 0.7 else [*right, *wrong]
        end = choose.choice(["\n", "\r\n", "\r"])
        rows = [choose.choices(cells, k=num_columns) for _ in range(choose.randint(1, 4))]
        lines = end.join(",".join(row) for row in [["a", "b", "c"][:num_columns], *rows])
        path = write(tmp_path, "t.csv", f"{lines}{choose.choice(['', end])}".encode())
        monkeypatch.setattr(
            "lightkit.rows.reader._BLOCK_BYTES", choose.choice([*range(64, 72), 1 << 20])
        )
        found = read_rows(path, with_lines=False)
        assert found == read_rows(path, with_lines=True), path.read_bytes()
        num_right += isinstance(found, list)
        num_wrong += isinstance(found, str)
    assert num_right > 100
    assert num_wrong > 20


def test_a_line_end_in_a_cell_is_whole_wherever_a_block_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, "t.csv", b'a,b\n1,"first\r\nsecond"\n2,x\n')
    for size in range(12, 40):
        monkeypatch.setattr("lightkit.rows.reader._BLOCK_BYTES", size)
        with suppress(DataError):  # of a row that is larger than two blocks
            assert read(path)["b"] == ["first\r\nsecond", "x"]
    assert read(path, {"b": "category"})["b"] == ["first\r\nsecond", "x"]


def test_two_labels_that_change_places_make_another_fingerprint(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    rows = {"a": [1.0, 2.0, 3.0, 4.0], "b": ["x", "y", "x", "y"]}
    parquet.write_table(pa.table(rows), path)
    first = open_rows(str(path)).fingerprint
    before = (path.stat().st_size, open_table(str(path)).fingerprint)
    copy = write(tmp_path, "copy/t.parquet", path.read_bytes())
    parquet.write_table(pa.table({**rows, "b": ["y", "x", "x", "y"]}), path)
    # neither size nor footer says it
    assert (path.stat().st_size, open_table(str(path)).fingerprint) == before
    assert open_rows(str(path)).fingerprint != first
    assert open_rows(str(copy)).fingerprint == first


def test_files_of_a_folder_are_one_table(tmp_path: Path) -> None:
    write(tmp_path, "t/1.csv", b"a,b\n1,x\n")
    write(tmp_path, "t/2.csv", b"b,a\ny,two\n")
    table = open_rows(str(tmp_path / "t"))
    guess = TypeGuess()
    for batch in table.read(["a"]):
        guess.add(batch.rows.column(0))
    assert guess.kind == "category"  # not a number in one file and a text in the other
    assert read(tmp_path / "t", {"a": "category", "b": "category"}) == {
        "a": ["1", "two"],
        "b": ["x", "y"],
    }
    write(tmp_path, "t/3.csv", b"a,c\n1,x\n")
    with pytest.raises(DataError, match=r"1\.csv has no c, which .*3\.csv has"):
        open_rows(str(tmp_path / "t"))


def test_a_folder_without_a_table_is_reported_with_what_it_has_and_where_it_was_named(
    tmp_path: Path,
) -> None:
    for name in ("photos/1.jpg", "photos/2.JPG", "photos/notes"):
        write(tmp_path, name, b"")
    with pytest.raises(DataError) as caught:
        open_rows(str(tmp_path / "photos"), setting="FILE of lightkit predict")
    assert (
        str(caught.value)
        == f"{tmp_path}/photos: this folder has no table (FILE of lightkit predict), but 2 .jpg, 1"
        " plain; expected CSV (.csv, .tsv, .txt), JSON lines (.jsonl, .ndjson), Parquet, or a"
        " Delta table."
    )
    (tmp_path / "empty").mkdir()
    with pytest.raises(
        DataError,
        match=r"empty: this folder has no table \(data\.init_args\.path\), but no files; ",
    ):
        open_rows(str(tmp_path / "empty"))


def test_parquet_has_the_values_of_the_same_text(tmp_path: Path) -> None:
    columns = {
        "a": pa.array([1.0, None, float("nan")]),
        "b": pa.array([3.0, None, 4.5]),
        "c": pa.array(["x", None, "y"]).dictionary_encode(),
    }
    parquet.write_table(pa.table(columns), tmp_path / "t.parquet")
    types: dict[str, ColumnType] = {"a": "number", "b": "category", "c": "category"}
    expected = {"a": [1.0, None, None], "b": ["3", None, "4.5"], "c": ["x", None, "y"]}
    assert read(tmp_path / "t.parquet", types) == expected
    write(tmp_path, "t.csv", b"a,b,c\n1,3,x\n,,\nnan,4.5,y\n")
    assert read(tmp_path / "t.csv", types) == expected


TYPED = {
    "number": (["1", "", "-2e3", "inf"], "number"),
    "date": (["2026-01-31", "", "2026-01-31T10:00:00+02:00"], "date"),
    "category": (["1", "x"], "category"),
    "nothing": (["", ""], None),
}


@pytest.mark.parametrize(("cells", "kind"), TYPED.values(), ids=TYPED)
def test_the_type_of_a_column_is_that_of_all_its_cells(cells: list[str], kind: str | None) -> None:
    guess = TypeGuess()
    for cell in cells:
        guess.add(pa.array([cell], pa.string()))
    assert guess.kind == kind


def test_a_date_that_is_before_or_after_all_years_in_utc_is_none() -> None:
    cells = ["0001-01-01T00:00:00+02:00", "9999-12-31T23:59:59-05:00", "0001-01-01T00:00:00"]
    rows, defects = read_columns(pa.record_batch({"d": cells}), {"d": "date"})
    assert [defect.row for defect in defects] == [0, 1]
    assert rows["d"].to_pylist()[2].year == 1
    guess = TypeGuess()
    guess.add(pa.array(cells))
    assert guess.kind == "category"


def test_a_category_of_floating_point_has_the_text_of_a_csv() -> None:
    texts = pa.array(["0.1", "2.5", "3", None], pa.string())
    half = pa.array(np.array([0.1, 2.5, 3, np.nan], np.float16))
    for kind in (pa.float32(), pa.float64(), pa.decimal128(5, 2), pa.decimal256(50, 20), half.type):
        column = half if kind == half.type else texts.cast(kind)
        rows, _ = read_columns(pa.record_batch({"c": column}), {"c": "category"})
        assert rows["c"].to_pylist() == ["0.1", "2.5", "3", None], kind


@pytest.mark.parametrize("kind", ["string", "large_string", "string_view", "dictionary"])
def test_text_of_each_type_of_arrow_is_text(kind: str) -> None:
    texts = pa.array(["1", "x", None])
    column = texts.dictionary_encode() if kind == "dictionary" else texts.cast(kind)
    rows, defects = read_columns(pa.record_batch({"c": column}), {"c": "number"})
    assert rows["c"].to_pylist() == [1, None, None]
    assert [defect.row for defect in defects] == [1]
    guess = TypeGuess()
    guess.add(column)
    assert guess.kind == "category"


def test_two_identifiers_in_decimal_numbers_are_two_categories() -> None:
    """A float64 holds whole numbers up to 2**53, and both would be 9007199254740992."""
    cells = [Decimal("9007199254740993.00"), Decimal("9007199254740992.00"), Decimal("-0.50")]
    column = pa.array(cells, pa.decimal128(20, 2))
    rows, _ = read_columns(pa.record_batch({"c": column}), {"c": "category"})
    assert rows["c"].to_pylist() == ["9007199254740993", "9007199254740992", "-0.5"]
    guess = TypeGuess()
    guess.add(column)
    assert len(guess.values) == 3


def test_a_moment_is_one_category_in_any_unit_and_zone() -> None:
    noon = [datetime(2026, 1, 31), datetime(2026, 1, 31, 12), datetime(2026, 1, 31, 12, 0, 0, 5000)]
    expected = ["2026-01-31", "2026-01-31 12:00:00", "2026-01-31 12:00:00.005"]
    for kind in (pa.timestamp("ms"), pa.timestamp("us"), pa.timestamp("ns", "Europe/Berlin")):
        rows, _ = read_columns(pa.record_batch({"d": pa.array(noon, kind)}), {"d": "category"})
        assert rows["d"].to_pylist() == expected, kind
    nanoseconds = pa.array([1769854800000000123], pa.int64()).cast(pa.timestamp("ns"))
    rows, _ = read_columns(pa.record_batch({"d": nanoseconds}), {"d": "category"})
    assert rows["d"].to_pylist() == ["2026-01-31 10:20:00.000000123"]
    for day in (pa.array([date(2026, 1, 31)]), pa.array([noon[0]], pa.timestamp("s"))):
        rows, _ = read_columns(pa.record_batch({"d": day}), {"d": "category"})
        assert rows["d"].to_pylist() == ["2026-01-31"]


def test_a_date_with_a_zone_is_one_in_utc() -> None:
    batch = pa.record_batch({"d": ["2026-01-31T10:00:00+02:00", "2026-01-31 08:00:00"]})
    rows, defects = read_columns(batch, {"d": "date"})
    assert not defects
    first, second = rows["d"].to_pylist()
    assert first == second
