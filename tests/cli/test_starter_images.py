"""`lightkit init --data` knows images in class folders and in tables, also next to other files."""

from __future__ import annotations

import io
from pathlib import Path

import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet

from lightkit.cli.command_line import Invocation
from lightkit.cli.command_table import parse
from lightkit.commands.init import init


def draw(width: int = 80) -> Image.Image:
    return Image.new("RGB", (width, 70))


def compose(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the config that is written for a folder."""
    monkeypatch.chdir(folder.parent)
    invocation: Invocation = parse(["init", "--data", folder.name])
    assert init(invocation) == 0
    return (folder.parent / f"{folder.name}.yaml").read_text(encoding="utf-8")


@pytest.mark.parametrize("below", [".", "country=de"])
def test_a_table_next_to_class_folders_is_left_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, below: str
) -> None:
    for name in ("daisy", "rose"):
        folder = tmp_path / "photos" / name
        folder.mkdir(parents=True)
        for number in range(6):
            draw().save(folder / f"{number}.png")
    table = tmp_path / "photos" / below
    table.mkdir(exist_ok=True)
    parquet.write_table(pa.table({"a": [1.0, 2.0], "y": [0, 1]}), table / "t.parquet")
    text = compose(tmp_path / "photos", monkeypatch)
    assert "12 images in 2 classes" in text
    assert "class_path: ImageFolder" in text


def test_a_table_in_folders_of_partitions_is_one_of_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("de", "fr"):
        folder = tmp_path / "sales" / f"country={name}"
        folder.mkdir(parents=True)
        cells = {"a": [number / 7 for number in range(40)], "y": [0, 1] * 20}
        parquet.write_table(pa.table(cells), folder / "x.parquet")
    text = compose(tmp_path / "sales", monkeypatch)
    assert "80 rows with 1 number, 1 category" in text


def test_an_unknown_width_of_an_image_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = io.BytesIO()
    draw().save(file, "PNG")
    (tmp_path / "shots").mkdir()
    cells = {
        "image": [file.getvalue()] * 6,
        "label": ["p", "q"] * 3,
        "width": [80, None, 80, 80, 80, 80],
        "height": [70] * 6,
    }
    parquet.write_table(pa.table(cells), tmp_path / "shots" / "x.parquet")
    text = compose(tmp_path / "shots", monkeypatch)
    assert "the shorter side of the images is 70 pixels (median)" in text
