from __future__ import annotations

import csv
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from lightkit.errors import ConfigError, DataError, LightkitError
from lightkit.prediction.table import Prediction, write_predictions
from lightkit.task import REGRESSION, UNDECLARED


def good(index: int, *values: float) -> Prediction:
    return Prediction(index, f"{index}.jpg", np.array(values or (0.2, 0.8), dtype=np.float32), None)


def bad(index: int) -> Prediction:
    return Prediction(index, f"{index}.jpg", None, f"defect {index}")


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def names_in(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))  # noqa: PTH208


@pytest.mark.parametrize("name", ["t.csv", "t.parquet", "t.jsonl"])
def test_files_appear_together_when_all_is_written(tmp_path: Path, name: str) -> None:
    with write_predictions(
        tmp_path / name, class_names=["x", "y"], contact_sheet=tmp_path / "s.html"
    ) as writer:
        writer.add(good(0))
        assert not {name, "s.html"} & {*names_in(tmp_path)}
    assert names_in(tmp_path) == ["s.html", name]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, DataError])
def test_an_exception_leaves_what_was_there_before(
    tmp_path: Path, kind: type[BaseException]
) -> None:
    (tmp_path / "t.csv").write_text("before")

    def interrupted() -> None:
        sheet = tmp_path / "s.html"
        with write_predictions(
            tmp_path / "t.csv", class_names=["x", "y"], contact_sheet=sheet
        ) as writer:
            writer.add(good(0))
            raise kind

    with pytest.raises(kind):
        interrupted()
    assert names_in(tmp_path) == ["t.csv"]
    assert (tmp_path / "t.csv").read_text() == "before"


def test_bad_images_are_rows_and_counted_and_the_first_few_kept(tmp_path: Path) -> None:
    with write_predictions(tmp_path / "t.csv", class_names=["x", "y"]) as writer:
        for index in range(20):
            writer.add(bad(index) if index % 2 else good(index))
    assert (writer.num, writer.num_bad) == (20, 10)
    assert [prediction.index for prediction in writer.bad] == list(range(1, 20, 2))
    rows = rows_of(tmp_path / "t.csv")
    assert [row["path"] for row in rows] == [f"{index}.jpg" for index in range(20)]
    assert [row["error"] for row in rows[:4]] == ["", "defect 1", "", "defect 3"]
    assert [row["label"] for row in rows[:2]] == ["y", ""]


def test_a_probability_that_is_no_number_is_no_prediction(tmp_path: Path) -> None:
    with write_predictions(tmp_path / "t.csv", class_names=["x", "y"]) as writer:
        writer.add(good(0, np.nan, 0.5))
    assert writer.num_bad == 1
    (row,) = rows_of(tmp_path / "t.csv")
    assert (row["label"], row["error"]) == ("", "the model's output has values that are not finite")


def test_a_value_that_is_no_number_is_no_prediction_and_one_of_unknown_meaning_is(
    tmp_path: Path,
) -> None:
    for task, error in (
        (REGRESSION, "the model's output has values that are not finite"),
        (UNDECLARED, ""),
    ):
        with write_predictions(
            tmp_path / "t.csv", class_names=None, num_values=1, task=task
        ) as writer:
            writer.add(good(0, np.inf))
            writer.add(good(1, -2.5))
        rows = rows_of(tmp_path / "t.csv")
        assert [row["error"] for row in rows] == [error, ""]
        assert [row["prediction_0"] for row in rows] == ["" if error else "inf", "-2.5"]


def test_a_class_that_is_a_negative_number_is_written_as_one(tmp_path: Path) -> None:
    with write_predictions(tmp_path / "t.csv", class_names=["-1", "=1"]) as writer:
        writer.add(good(0, 0.75, 0.25))
    (row,) = rows_of(tmp_path / "t.csv")
    assert (row["label"], row["label_2"]) == ("-1", "'=1")


def test_bad_images_before_the_first_good_one_of_a_model_without_classes_keep_their_place(
    tmp_path: Path,
) -> None:
    with write_predictions(tmp_path / "t.csv", class_names=None, num_values=2) as writer:
        for prediction in (bad(0), bad(1), good(2), bad(3)):
            writer.add(prediction)
    rows = rows_of(tmp_path / "t.csv")
    assert list(rows[0]) == ["path", "prediction_0", "prediction_1", "error"]
    assert [row["path"] for row in rows] == ["0.jpg", "1.jpg", "2.jpg", "3.jpg"]


def test_a_table_of_bad_images_alone_is_written(tmp_path: Path) -> None:
    with write_predictions(tmp_path / "t.csv", class_names=None) as writer:
        writer.add(bad(0))
    assert rows_of(tmp_path / "t.csv") == [{"path": "0.jpg", "error": "defect 0"}]


def test_standard_output_gets_csv_and_no_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with write_predictions(Path("-"), class_names=["x", "y"], top_k=1) as writer:
        writer.add(good(0))
    printed = capsys.readouterr().out
    assert printed == "path,label,probability,error\n0.jpg,y,0.800000,\n"
    assert names_in(tmp_path) == []


def test_a_folder_that_cannot_be_is_reported_before_anything_is_predicted(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    writer = write_predictions(
        tmp_path / "file" / "t.csv", class_names=None, contact_sheet=tmp_path / "s.html"
    )
    with pytest.raises(ConfigError, match="file: no file can be written there"), writer:
        pytest.fail("it began")
    assert names_in(tmp_path) == ["file"]


def test_the_folder_of_an_output_is_made(tmp_path: Path) -> None:
    with write_predictions(tmp_path / "a" / "b" / "t.csv", class_names=None):
        pass
    assert names_in(tmp_path / "a" / "b") == ["t.csv"]


def test_a_link_stays_and_what_it_leads_to_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "t.csv").symlink_to("there/real.csv")
    with write_predictions(tmp_path / "t.csv", class_names=["x", "y"]) as writer:
        writer.add(good(0))
    assert (tmp_path / "t.csv").is_symlink()
    assert len(rows_of(tmp_path / "there" / "real.csv")) == 1
    assert names_in(tmp_path) == ["t.csv", "there"]


@pytest.fixture
def small_disk() -> Iterator[None]:
    """Lets files grow to 4 kB, as a full disk would."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("num", [150, 20_000], ids=["at-the-end", "in-the-middle"])
@pytest.mark.parametrize("name", ["t.csv", "t.jsonl", "t.parquet"])
@pytest.mark.usefixtures("small_disk")
def test_a_full_disk_is_reported_with_the_file_and_nothing_is_left(
    tmp_path: Path, name: str, num: int
) -> None:
    def written() -> None:
        with write_predictions(tmp_path / name, class_names=["x", "y"]) as writer:
            for index in range(num):
                writer.add(
                    Prediction(
                        index,
                        f"{index * 2654435761}" * 3,
                        np.array([0.1, 0.9], dtype=np.float32),
                        None,
                    )
                )

    with pytest.raises(
        LightkitError,
        match=rf"{name}: the predictions cannot be written there \(.*[Ff]ile too large",
    ):
        written()
    assert names_in(tmp_path) == []


@pytest.mark.usefixtures("small_disk")
def test_so_is_a_page_that_does_not_fit_and_its_table_does_not_appear(tmp_path: Path) -> None:
    def written() -> None:
        with write_predictions(
            tmp_path / "t.csv", class_names=["x", "y"], contact_sheet=tmp_path / "s.html"
        ) as writer:
            for index in range(20):
                writer.add(good(index))

    with pytest.raises(
        LightkitError, match=r"s.html: the predictions cannot be written there \(File too large"
    ):
        written()
    assert names_in(tmp_path) == []
