from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyarrow import parquet

from lightkit.errors import ConfigError
from lightkit.prediction.table import (
    STANDARD_OUTPUT,
    TABLES,
    Prediction,
    PredictionColumns,
    check_output_path,
)

ODD = 'a,"b"\n\r;\t é\udcff.jpg'
PREDICTIONS = [
    Prediction(0, ODD, np.array([0.1, 0.9], dtype=np.float32), None),
    Prediction(1, "b.jpg", None, "broken,\nbadly"),
    Prediction(2, "c.jpg", np.array([1, 1e-9], dtype=np.float32), None),
]
SOUND = ODD.replace("\udcff", r"\udcff")


def written(path: Path, columns: PredictionColumns) -> Path:
    table = TABLES[path.suffix](path, columns.names)
    for prediction in PREDICTIONS:
        table.add(columns.row(prediction))
    table.close()
    return path


def test_csv_is_read_back_with_odd_names_and_six_decimals(tmp_path: Path) -> None:
    with written(tmp_path / "t.csv", PredictionColumns(["x", "y"])).open(
        newline="", encoding="utf-8"
    ) as file:
        head, *rows = csv.reader(file)
    assert head == ["path", "label", "probability", "label_2", "probability_2", "error"]
    assert rows == [
        [SOUND, "y", "0.900000", "x", "0.100000", ""],
        ["b.jpg", "", "", "", "", "broken,\nbadly"],
        ["c.jpg", "x", "1.000000", "y", "0.000000", ""],
    ]


def test_csv_of_a_model_without_classes_keeps_each_number_exactly(tmp_path: Path) -> None:
    with written(tmp_path / "t.csv", PredictionColumns(None, num_values=2)).open(
        newline="", encoding="utf-8"
    ) as file:
        rows = list(csv.DictReader(file))
    assert np.float32(rows[2]["prediction_1"]) == np.float32(1e-9)
    assert rows[0]["prediction_0"] == "0.1"


def test_json_lines_hold_one_object_a_line(tmp_path: Path) -> None:
    lines = (
        written(tmp_path / "t.jsonl", PredictionColumns(["x", "y"], 1))
        .read_text(encoding="utf-8")
        .split("\n")
    )
    assert [json.loads(line) for line in lines[:-1]] == [
        {"path": SOUND, "label": "y", "probability": 0.9, "error": None},
        {"path": "b.jpg", "label": None, "probability": None, "error": "broken,\nbadly"},
        {"path": "c.jpg", "label": "x", "probability": 1.0, "error": None},
    ]


def test_json_has_null_for_a_number_that_is_none(tmp_path: Path) -> None:
    columns = PredictionColumns(None, num_values=2)
    table = TABLES[".jsonl"](tmp_path / "t.jsonl", columns.names)
    table.add(columns.row(Prediction(0, "a", np.array([np.nan, np.inf], dtype=np.float32), None)))
    table.close()
    assert json.loads((tmp_path / "t.jsonl").read_text())["prediction_0"] is None


def test_parquet_has_texts_and_float32(tmp_path: Path) -> None:
    table = parquet.read_table(written(tmp_path / "t.parquet", PredictionColumns(["x", "y"], 1)))
    assert [str(kind) for kind in table.schema.types] == ["string", "string", "float", "string"]
    assert table.to_pydict() == {
        "path": [SOUND, "b.jpg", "c.jpg"],
        "label": ["y", None, "x"],
        "probability": [float(np.float32(0.9)), None, 1.0],
        "error": [None, "broken,\nbadly", None],
    }


def test_parquet_is_written_in_pieces_of_a_few_thousand_rows(tmp_path: Path) -> None:
    columns = PredictionColumns(["x", "y"], 1)
    table = TABLES[".parquet"](tmp_path / "t.parquet", columns.names)
    for number in range(10_000):
        table.add(columns.row(Prediction(number, str(number), PREDICTIONS[0].values, None)))
    table.close()
    with parquet.ParquetFile(tmp_path / "t.parquet") as file:
        assert file.num_row_groups == 3
        assert file.read().column("path").to_pylist() == [str(number) for number in range(10_000)]


@pytest.mark.parametrize(
    ("word", "options", "says"),
    [
        ("t.xlsx", {}, r"--output t.xlsx: expected a file that ends in .csv, .parquet or .jsonl"),
        ("t", {}, r"--output t: expected a file that ends in"),
        ("folder.csv", {}, r"--output folder.csv: this is a folder"),
        (
            "s.pdf",
            {"option": "--sheet", "suffixes": (".html",)},
            r"--sheet s.pdf: expected a file that ends in .html",
        ),
        (
            "-",
            {"option": "--sheet", "suffixes": (".html",)},
            r"--sheet -: expected a file that ends in .html",
        ),
    ],
    ids=["suffix", "none", "folder", "sheet", "sheet to standard output"],
)
def test_a_place_that_cannot_be_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: str, options: Any, says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=says):
        check_output_path(word, **options)


def test_a_place_is_found_right_before_its_folder_is_made(tmp_path: Path) -> None:
    assert check_output_path(str(tmp_path / "a" / "b" / "t.JSONL")).name == "t.JSONL"
    assert not (tmp_path / "a").exists()
    assert check_output_path("-") == STANDARD_OUTPUT
