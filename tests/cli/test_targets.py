"""Where predictions of images go, and what is never written over; models made by hand, no torch."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from lightkit.artefacts.metadata import TensorSpec
from tests.cli.conftest import House
from tests.prediction.conftest import PREPROCESSING, MakeOnnx, colours, make_onnx

__all__ = ["colours", "make_onnx"]  # fixtures

LIST = "path\ncolours/noise.png\n"


@pytest.fixture
def lists(house: House, colours: Path) -> House:
    """A house with a list of images in several places."""
    for name in ("predictions.csv", "list.csv"):
        house.write(name, LIST)
    (house.folder / "link.csv").symlink_to("list.csv")
    return house


@pytest.mark.parametrize(
    ("words", "file"),
    [
        (["predictions.csv"], "predictions.csv"),
        (["./list.csv", "--output", "list.csv"], "list.csv"),
        (["colours", "link.csv", "--output=list.csv"], "list.csv"),
        (["list.csv", "--output=link.csv"], "list.csv"),
        (["pred*.csv"], "predictions.csv"),
    ],
    ids=["default", "another-spelling", "read-through-a-link", "written-through-a-link", "pattern"],
)
def test_a_list_of_images_is_not_written_over(lists: House, words: list[str], file: str) -> None:
    lists.write("model.onnx", "opening this would be another error")
    done = lists("predict", "--model", "model.onnx", *words)
    assert done.code == 2, done.err
    assert "the predictions would replace" in done.err
    assert (lists.folder / file).read_text() == LIST


def test_neither_is_a_list_on_standard_input(lists: House, monkeypatch: pytest.MonkeyPatch) -> None:
    with (lists.folder / "predictions.csv").open(encoding="utf-8") as file:
        monkeypatch.setattr(sys, "stdin", file)
        assert lists("predict", "--model", "model.onnx", "-").code == 2


def test_nor_the_model_behind_a_link(lists: House, make_onnx: MakeOnnx) -> None:
    model = make_onnx()
    (lists.folder / "m.csv").symlink_to(model.name)
    assert lists("predict", "--model", str(model), "colours", "--output", "m.csv").code == 2


def test_a_checkpoint_of_a_run_does_not_get_so_far_either(lists: House) -> None:
    done = lists("predict", "predictions.csv")
    assert (done.code, "the predictions would replace" in done.err) == (2, True)


def test_no_folder_is_made_where_there_are_no_images(house: House, make_onnx: MakeOnnx) -> None:
    done = house("predict", "--model", str(make_onnx()), "gone", "--output=new/t.csv", "--contact-sheet=more/s.html")
    assert done.code == 3
    assert not (house.folder / "new").exists()
    assert not (house.folder / "more").exists()


def test_names_that_a_terminal_would_obey_are_told_as_escapes(house: House, make_onnx: MakeOnnx, colours: Path) -> None:
    (colours / "\x1b[2Jbad\ntable\u202e.png").write_bytes(b"no image")
    done = house("predict", "--model", str(make_onnx()), "colours", "--output", "o\x1b[1m.csv")
    assert done.code == 0
    assert r"bad    colours/\x1b[2Jbad\ntable\u202e.png: not an image" in done.out
    assert r"table  o\x1b[1m.csv" in done.out
    assert "\x1b" not in done.out


def test_standard_input_is_no_file_that_could_be_replaced(
    house: House, make_onnx: MakeOnnx, colours: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"colours/noise.png\n")))
    house.write("predictions.csv", "of the last time\n")
    assert house("predict", "--model", str(make_onnx()), "-").code == 0


def test_a_file_that_is_not_what_was_exported_labels_nothing(house: House, make_onnx: MakeOnnx, colours: Path) -> None:
    model = make_onnx()
    record = {"artefacts": {model.name: {"sha256": "0" * 64}}}
    model.with_name("export.json").write_text(json.dumps(record))
    done = house("predict", "--model", str(model), "colours")
    assert done.code == 3
    assert "model.onnx: this is not what was exported" in done.err


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {
                "inputs": (TensorSpec("x", "float32", (None, 3, 4, 4)),),
                "preprocessing": replace(PREPROCESSING, resize=4, crop=(4, 4)),
            },
            "model.onnx: its model cannot be run on these images (",
        ),
        ({"inputs": (TensorSpec("x", "int7", (None, 3, 8, 8)),)}, "model.onnx: its input has the type 'int7'"),
        ({"class_names": ("a", "b")}, "model.onnx: the model gives 3 values an image, and its metadata name 2 classes"),
        ({"preprocessing": replace(PREPROCESSING, resize=cast("int", "big"))}, "resize: expected a whole number"),
        ({"outputs": (TensorSpec("output", "float32", cast("Any", (None, "3"))),)}, "shape: expected a list of"),
    ],
    ids=["shape", "dtype", "classes", "preprocessing", "sizes"],
)
def test_metadata_that_do_not_fit_the_graph_are_told_in_a_line(
    house: House, make_onnx: MakeOnnx, colours: Path, changes: dict[str, Any], says: str
) -> None:
    done = house("predict", "--model", str(make_onnx(**changes)), "colours")
    assert done.code == 3
    assert says in done.err
    assert done.err.count("\n") == 1
    assert not (house.folder / "predictions.csv").exists()


def test_the_end_of_a_files_name_may_be_in_capitals(house: House, make_onnx: MakeOnnx, colours: Path) -> None:
    assert house("predict", "--model", str(make_onnx("M.ONNX")), "colours").code == 0
