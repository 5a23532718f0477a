from __future__ import annotations

import re
from collections.abc import Sequence
from html.parser import HTMLParser
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
import pytest
from PIL import Image

from lightkit.prediction import table as table_module
from lightkit.prediction.table import Prediction, PredictionColumns, PredictionWriter


def predicted(index: int, path: str, *values: float) -> Prediction:
    return Prediction(index, path, np.array(values, dtype=np.float32), None)


class NoTable:
    """A table that nobody reads."""

    def add(self, row: Sequence[Any]) -> None:
        pass

    def close(self) -> None:
        pass


def sheet_of(columns: PredictionColumns) -> PredictionWriter:
    return PredictionWriter(Path("t.csv"), columns, NoTable())


def image_at(path: Path, colour: str = "red", size: tuple[int, int] = (400, 200)) -> str:
    Image.new("RGB", size, colour).save(path)
    return str(path)


def captions(page: str) -> list[str]:
    return re.findall(r"<small>([^<]*)</small>", page)


class _Addresses(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.tags: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.found += [
            value or "" for name, value in attrs if name in ("src", "href", "srcset", "action")
        ]


def test_the_least_certain_come_first(tmp_path: Path) -> None:
    sheet = sheet_of(PredictionColumns(["x", "y"]))
    for index, share in enumerate([0.9, 0.55, 0.1, 0.7]):
        sheet.add(predicted(index, f"{index}.jpg", share, 1 - share))
    assert captions(sheet.render_sheet()) == ["1.jpg", "3.jpg", "0.jpg", "2.jpg"]


def test_of_many_images_the_least_certain_are_kept_and_it_says_of_how_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(table_module, "_MAX_THUMBNAILS", 10)
    sheet = sheet_of(PredictionColumns(["x", "y"]))
    order = np.random.default_rng(0).permutation(2_000)
    for index, place in enumerate(order):
        share = 0.5 + place / 4_000
        sheet.add(predicted(index, f"{place}.jpg", share, 1 - share))
    page = sheet.render_sheet()
    assert captions(page) == [f"{place}.jpg" for place in range(10)]
    assert "The least certain 10 of 2,000 images, least certain first." in page


def test_a_page_needs_no_other_file_and_no_network_and_runs_nothing(tmp_path: Path) -> None:
    sheet = sheet_of(PredictionColumns(["x", "y"]))
    sheet.add(predicted(0, image_at(tmp_path / "a.png"), 0.5, 0.5))
    page = _Addresses(sheet.render_sheet())
    assert [address.partition(":")[0] for address in page.found] == ["data"]
    assert not {"script", "link", "iframe", "object"} & page.tags
    assert "url(" not in sheet.render_sheet()


def test_thumbnails_are_small_and_upright(tmp_path: Path) -> None:
    image = Image.new("RGB", (400, 200), "red")
    image.paste("blue", (0, 0, 200, 200))
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees clockwise to be seen
    image.save(tmp_path / "turned.jpg", exif=exif, quality=95)
    sheet = sheet_of(PredictionColumns(["x", "y"]))
    sheet.add(predicted(0, str(tmp_path / "turned.jpg"), 0.5, 0.5))
    (address,) = _Addresses(sheet.render_sheet()).found
    with urlopen(address) as stream:
        thumbnail = Image.open(BytesIO(stream.read()))
    assert thumbnail.size == (96, 192)
    top, bottom = (thumbnail.getpixel((48, row)) for row in (20, 170))
    assert isinstance(top, tuple)
    assert isinstance(bottom, tuple)
    assert top[2] > 200 > 50 > top[0]
    assert bottom[0] > 200 > 50 > bottom[2]


def test_names_are_escaped(tmp_path: Path) -> None:
    sheet = sheet_of(PredictionColumns(["<b>&", "y"]))
    sheet.add(predicted(0, '<script>alert("1")</script>.jpg', 0.9, 0.1))
    sheet.add(Prediction(1, "<i>\udcff.jpg", None, "<u>bad"))
    page = sheet.render_sheet()
    assert not {"script", "b", "i", "u"} & _Addresses(page).tags
    assert "&lt;b&gt;&amp;" in page
    assert r"&lt;i&gt;\udcff.jpg" in page
    assert page.encode("utf-8")


def test_bad_images_are_listed_at_the_end_up_to_a_number(tmp_path: Path) -> None:
    sheet = sheet_of(PredictionColumns(["x", "y"]))
    for index in range(100 + 20):
        sheet.add(Prediction(index, f"{index}.jpg", None, f"defect {index}"))
    sheet.add(predicted(999, "good.jpg", 0.9, 0.1))
    page = sheet.render_sheet()
    assert (
        page.index("good.jpg")
        < page.index("120 images were not predicted")
        < page.index("defect 0")
    )
    assert len(re.findall("<li>", page)) == 100
    assert f"The first {100} are listed." in page


def test_each_thumbnail_has_its_likeliest_classes() -> None:
    sheet = sheet_of(PredictionColumns(["x", "y", "z"], 2))
    sheet.add(predicted(0, "a.jpg", 0.125, 0.625, 0.25))
    spans = re.findall(r"<span>([^<]*)</span>", sheet.render_sheet())
    assert spans == ["y", "62.5%", "z", "25.0%"]


def test_of_a_model_without_classes_the_first_images_are_shown_with_their_values(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(table_module, "_MAX_THUMBNAILS", 2)
    sheet = sheet_of(PredictionColumns(None, num_values=2))
    for index in range(3):
        sheet.add(predicted(index, f"{index}.jpg", float(index), -1.5))
    page = sheet.render_sheet()
    assert captions(page) == ["0.jpg", "1.jpg"]
    assert "The first 2 of 3 images." in page
    assert "1 -1.5" in page


@pytest.mark.parametrize("num", [0, 1])
def test_a_page_of_few_images_says_so(num: int) -> None:
    sheet = sheet_of(PredictionColumns(["x", "y"]))
    for index in range(num):
        sheet.add(predicted(index, "a.jpg", 0.9, 0.1))
    assert (
        "1 image, least certain first." if num else "0 images, least certain first."
    ) in sheet.render_sheet()


def test_an_image_that_has_gone_meanwhile_leaves_its_caption() -> None:
    sheet = sheet_of(PredictionColumns(["x", "y"]))
    sheet.add(predicted(0, "gone.jpg", 0.9, 0.1))
    assert "no longer readable" in sheet.render_sheet()
    assert captions(sheet.render_sheet()) == ["gone.jpg"]
