from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from lightkit.errors import ConfigError, DataError
from lightkit.images.inputs import open_path_table
from tests.data.tables.conftest import delete_by_vector, map_columns

PATHS = ["a.jpg", "deep/b.jpg"]


def write(path: Path, columns: Mapping[str, Sequence[Any]]) -> Path:
    """Write a table of the kind that its name ends in; without a suffix a Delta table."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".csv":
        rows = [columns.keys(), *zip(*columns.values(), strict=True)]
        path.write_text("".join(",".join(map(str, row)) + "\n" for row in rows), encoding="utf-8")
    elif path.suffix == ".parquet":
        parquet.write_table(pa.table(dict(columns)), path)
    else:
        deltalake = pytest.importorskip("deltalake", reason="needs the extra lightkit-train[delta]")
        deltalake.write_deltalake(path, pa.table(dict(columns)))
    return path


@pytest.fixture(params=["list.csv", "list.parquet", "delta"])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize(
    "columns",
    [
        {"label": ["x", "y"], "path": PATHS, "image": ["no", "no"]},
        {"label": ["x", "y"], "image": PATHS},
        {"file": PATHS, "filename": ["no", "no"], "text": ["x", "y"]},
        {"Filename": PATHS, "text": ["x", "y"]},
        {"number": [1, 2], "picture": PATHS, "share": [0.5, 1.5]},
    ],
    ids=["path", "image", "file", "capital", "only text"],
)
def test_the_column_of_paths_is_found_in_each_kind_of_table(
    tmp_path: Path, name: str, columns: Any
) -> None:
    assert list(open_path_table(write(tmp_path / name, columns))()) == [
        f"{tmp_path}/{path}" for path in PATHS
    ]


def test_a_table_without_a_column_of_paths_says_which_columns_it_has(
    tmp_path: Path, name: str
) -> None:
    table = write(tmp_path / name, {"pth": ["a"], "note": ["b"]})
    with pytest.raises(
        DataError,
        match=r"path, image, file or filename.*; it has 'pth', 'note'; did you mean 'path'\?",
    ):
        open_path_table(table)


def test_a_table_of_rows_is_reported_with_its_columns_and_a_text_of_it(
    tmp_path: Path, name: str
) -> None:
    table = write(tmp_path / name, {"size": [1.5, 2.5], "survived": ["yes", "no"]})
    with pytest.raises(DataError) as caught:
        open_path_table(table)
    assert (
        str(caught.value)
        == f"{table}: expected images: folders, files, or a table with their paths in a column"
        " named path, image, file or filename, or in its one column of text; it has 'size',"
        " 'survived', and 'survived' has 'yes', which is no path of an image."
    )


def test_one_column_of_text_may_name_files_without_a_suffix(tmp_path: Path, name: str) -> None:
    (tmp_path / "one").touch()
    table = write(tmp_path / name, {"number": [1, 2], "photo": ["one", "gone"]})
    assert list(open_path_table(table)()) == [f"{tmp_path}/one", f"{tmp_path}/gone"]


@pytest.mark.parametrize(
    "columns",
    [
        {"image": [b"one", b"two"], "label": ["x", "y"]},
        {"Image": [b"one", b"two"]},
        {"image": [b"one", b"two"], "label": ["x", "y"], "path": PATHS},
        {
            "image": [{"bytes": b"one", "path": "a.jpg"}, {"bytes": b"two", "path": "b.jpg"}],
            "label": [0, 1],
        },
    ],
    ids=["image", "capital", "paths of files that are elsewhere", "struct"],
)
@pytest.mark.parametrize("name", ["list.parquet", "delta"])
def test_a_table_of_images_is_reported_as_that(tmp_path: Path, name: str, columns: Any) -> None:
    table = write(tmp_path / name, columns)
    with pytest.raises(
        DataError,
        match=r"holds images themselves, as bytes in the column '[Ii]mage'.*lightkit predict",
    ):
        open_path_table(table)


def test_of_a_table_of_images_and_paths_the_paths_are_taken_where_they_lead_to_files(
    tmp_path: Path,
) -> None:
    (tmp_path / "a.jpg").touch()
    table = write(
        tmp_path / "list.parquet", {"image": [b"one", b"two"], "path": ["a.jpg", "b.jpg"]}
    )
    assert list(open_path_table(table)()) == [f"{tmp_path}/a.jpg", f"{tmp_path}/b.jpg"]


def test_relative_paths_count_from_the_folder_of_the_table(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tables").mkdir()
    for place in ("tables/a.jpg", "a.jpg", "b.jpg"):
        (tmp_path / place).touch()
    table = write(
        tmp_path / "tables" / name,
        {"path": ["a.jpg", "b.jpg", "c.jpg", "/d.jpg", "file:///e%20f.jpg"]},
    )
    folder = tmp_path / "tables"
    assert list(open_path_table(table)()) == [
        f"{folder}/a.jpg",
        "b.jpg",
        f"{folder}/c.jpg",
        "/d.jpg",
        "/e f.jpg",
    ]


def test_a_row_without_a_path_is_kept(tmp_path: Path) -> None:
    table = write(tmp_path / "list.parquet", {"path": ["a.jpg", None, ""]})
    assert [Path(path).name for path in open_path_table(table)()] == ["a.jpg", "", ""]


@pytest.mark.parametrize(
    ("text", "cells"),
    [
        (b"a.jpg\nb.jpg\n", ["a.jpg", "b.jpg"]),
        (b"\xef\xbb\xbfpath\na.jpg\n", ["a.jpg"]),
        (b"n;path\n1;a,b.jpg\n", ["a,b.jpg"]),
        (b"n\tpath\n1\ta b.jpg\n", ["a b.jpg"]),
        (b'path,n\n"a, ""b""\n.jpg",1\n', ['a, "b"\n.jpg']),
        (b"n,path\n1\n\n2,b.jpg\n", ["", "b.jpg"]),
        (b"path\n\xff.jpg\n", ["\udcff.jpg"]),
    ],
    ids=[
        "without head",
        "byte order mark",
        "semicolons",
        "tabs",
        "quoted",
        "short and empty rows",
        "no text",
    ],
)
def test_csv_files_of_many_habits_are_read(tmp_path: Path, text: bytes, cells: list[str]) -> None:
    (tmp_path / "list.csv").write_bytes(text)
    assert list(open_path_table(tmp_path / "list.csv")()) == [
        f"{tmp_path}/{cell}" if cell else "" for cell in cells
    ]


def test_a_delta_table_gives_the_rows_of_its_newest_version(tmp_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake", reason="needs the extra lightkit-train[delta]")
    table = write(tmp_path / "delta", {"path": ["old.jpg"]})
    deltalake.write_deltalake(table, pa.table({"path": ["a.jpg"]}), mode="overwrite")
    deltalake.write_deltalake(table, pa.table({"path": ["b.jpg"]}), mode="append")
    assert sorted(Path(path).name for path in open_path_table(table)()) == ["a.jpg", "b.jpg"]


def test_rows_that_a_deletion_vector_deletes_are_no_images(tmp_path: Path) -> None:
    table = write(
        tmp_path / "delta",
        {"number": [*range(9)], "path": [f"{number}.jpg" for number in range(9)]},
    )
    delete_by_vector(table, [1, 4, 8])
    assert [Path(path).stem for path in open_path_table(table)()] == ["0", "2", "3", "5", "6", "7"]


def test_a_delta_table_whose_columns_have_other_names_in_its_files_is_refused(
    tmp_path: Path,
) -> None:
    table = write(tmp_path / "delta", {"number": [1, 2], "path": PATHS})
    map_columns(table)
    with pytest.raises(
        DataError, match=r"uses columnMapping, which lightkit cannot read\. Copy it"
    ):
        open_path_table(table)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("list.parquet", b"PAR1 no"),
        ("list.parquet", b""),
        ("delta/_delta_log/00000000000000000000.json", b"{no"),
    ],
    ids=["parquet", "empty", "delta"],
)
def test_a_damaged_table_is_reported_in_a_line(tmp_path: Path, name: str, content: bytes) -> None:
    file = tmp_path / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    if name.startswith("delta"):
        pytest.importorskip("deltalake", reason="needs the extra lightkit-train[delta]")
    with pytest.raises(DataError, match=r"this table cannot be read \(.+\)\.$") as caught:
        open_path_table(tmp_path / name.partition("/")[0])
    assert "\n" not in str(caught.value)


def test_a_quotation_mark_that_is_never_closed_does_not_fill_the_memory(tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_text('path,n\n"a.jpg,1\n' + "b.jpg,1\n" * 200_000)
    with pytest.raises(DataError, match="field larger than field limit"):
        open_path_table(tmp_path / "list.csv")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            'path,n\na.jpg,1\n"b.jpg"x,2\nc.jpg,3\n',
            "line 3: .* in quotation marks, and the mark in",
        ),
        ('path,n\na.jpg,1\n"b.jpg,2\nc.jpg,3\n', "line 3: .* and none closes it"),
    ],
    ids=["behind", "open"],
)
def test_a_wrong_quotation_mark_is_an_error_with_its_line(
    tmp_path: Path, text: str, says: str
) -> None:
    (tmp_path / "list.csv").write_text(text)
    with pytest.raises(DataError, match=rf"list\.csv, {says}"):
        list(open_path_table(tmp_path / "list.csv")())


def test_without_deltalake_the_error_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "delta" / "_delta_log").mkdir(parents=True)
    importing = builtins.__import__

    def refuse(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "deltalake":
            raise ImportError(name)
        return importing(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(ConfigError, match=r"pip install 'lightkit-train\[delta\]'"):
        open_path_table(tmp_path / "delta")


@pytest.mark.parametrize(
    "text", ["a.jpg,daisy\nb.jpg,rose\n", "7,x/b.PNG\n8,c.png\n"], ids=["first", "last"]
)
def test_a_first_row_of_data_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "list.csv").write_text(text)
    with pytest.raises(
        DataError, match=r"list.csv: its first row is data; put a row with the columns' names"
    ):
        open_path_table(tmp_path / "list.csv")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32"])
def test_a_table_in_another_encoding_is_reported_as_that(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "list.csv").write_text("path\na.jpg\n", encoding=encoding)
    with pytest.raises(DataError, match=r"list.csv, line 1: this table is not in UTF-8\. Save"):
        open_path_table(tmp_path / "list.csv")
