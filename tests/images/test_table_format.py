"""Files that are no table which is read, and what each is."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightkit.images.table_format import explain_other_format


def write(folder: Path, *names: str) -> Path:
    for name in names:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"PAR1" if name.startswith("parquet") else b"a,b\n1,2\n")
    return folder


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a.csv", "CSV"),
        ("a.TXT", "CSV"),
        ("a.ods", "a spreadsheet"),
        ("a.npy", "a .npy file"),
        ("a", "a plain file"),
    ],
)
def test_a_file_of_another_kind_is_named_as_such(tmp_path: Path, name: str, kind: str) -> None:
    file = write(tmp_path, name) / name
    assert str(explain_other_format(file)).startswith(
        f"{file} is {kind}, which is not read; expected a Delta table"
    )


@pytest.mark.parametrize("name", ["parquet", "parquet.csv", "a.parquet", "a.pq", "missing.csv"])
def test_a_file_that_may_be_parquet_is_left_to_the_reader(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    if name != "missing.csv":
        write(tmp_path, name)
    assert explain_other_format(file) is None


@pytest.mark.parametrize(
    ("names", "named"),
    [
        (["b.csv", "a.xlsx", "notes.md"], "a.xlsx"),
        (["notes.md"], None),
        ([], None),
        (["a.csv", "deep/part.parquet"], None),
        (["a.csv", "b.pq"], None),
        (["a.csv", "_delta_log/0.json"], None),
        (["deep/a.csv"], None),
    ],
    ids=["first by name", "notes", "empty", "parquet below", "pq", "delta", "csv below"],
)
def test_a_folder_is_no_table_where_it_has_files_of_another_kind_alone(
    tmp_path: Path, names: list[str], named: str | None
) -> None:
    said = explain_other_format(write(tmp_path, *names))
    assert (None if said is None else said.partition(" is ")[0]) == (
        None if named is None else str(tmp_path / named)
    )
