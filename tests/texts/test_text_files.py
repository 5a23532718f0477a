"""Text files in one folder a class: encodings, splits, and what is wrong with them."""

from __future__ import annotations

import codecs
import logging
from pathlib import Path

import pytest

from lightkit.errors import DataError
from lightkit.texts.text_files import is_text_folder, read_folder, read_text


def write(root: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return root


def test_a_folder_a_class_is_read_in_the_order_of_names(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {"b/2.txt": b"two", "a/deep/1.TXT": b"one", "b/notes.md": b"no", ".git/x.txt": b"no"},
    )
    rows = list(read_folder(root, encoding="auto"))
    assert [(Path(row.place).name, row.text, row.label, row.split) for row in rows] == [
        ("1.TXT", "one", "a", None),
        ("2.txt", "two", "b", None),
    ]
    assert is_text_folder(root)
    assert not is_text_folder(write(tmp_path / "photos", {"a/1.jpg": b""}))


def test_folders_of_splits_name_the_splits(tmp_path: Path) -> None:
    root = write(tmp_path, {"train/a/1.txt": b"one", "Testing/a/2.txt": b"two"})
    assert sorted((row.text, row.split) for row in read_folder(root, encoding="auto")) == [
        ("one", "train"),
        ("two", "test"),
    ]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("naïve £5".encode(), "naïve £5"),
        (codecs.BOM_UTF8 + "naïve £5".encode(), "naïve £5"),
        ("naïve £5".encode("utf-16"), "naïve £5"),
        ("naïve £5".encode("utf-32"), "naïve £5"),
        ("naïve £5 “so”".encode("cp1252"), "naïve £5 “so”"),
        (b"\x81 \xa35", "\x81 £5"),
        (b"", ""),
    ],
    ids=["UTF-8", "BOM", "UTF-16", "UTF-32", "Windows-1252", "Latin-1", "empty"],
)
def test_the_encoding_of_a_file_is_found(tmp_path: Path, content: bytes, text: str) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(content)
    assert read_text(path, encoding="auto")[0] == text


def test_a_file_in_another_encoding_is_read_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = write(tmp_path, {"a/1.txt": b"one", "a/2.txt": "£2".encode("latin-1")})
    with caplog.at_level(logging.WARNING):
        assert [row.text for row in read_folder(root, encoding="auto")] == ["one", "£2"]
    assert "1 of the files are not in UTF-8" in caplog.text
    assert "2.txt" in caplog.text


def test_an_encoding_that_is_asked_for_is_an_error_where_it_is_wrong(tmp_path: Path) -> None:
    root = write(tmp_path, {"a/1.txt": b"one\ntwo \xa3\n"})
    with pytest.raises(
        DataError, match=r"1\.txt, line 2: this text is not in utf-8 \(byte a3\).*encoding"
    ):
        list(read_folder(root, encoding="utf-8"))
    assert [row.text for row in read_folder(root, encoding="latin-1")] == ["one\ntwo £\n"]


def test_utf_16_without_a_mark_is_an_error_and_read_where_it_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "t.txt"
    path.write_bytes("a rose".encode("utf-16-le"))
    with pytest.raises(
        DataError, match=r"t\.txt: this text has bytes of 0, .*data\.init_args\.encoding"
    ):
        read_text(path, encoding="auto")
    assert read_text(path, encoding="utf-16-le")[0] == "a rose"


def test_a_class_without_texts_is_an_error(tmp_path: Path) -> None:
    root = write(tmp_path, {"a/1.txt": b"one", "b/1.md": b"x"})
    with pytest.raises(DataError, match=r"b: this class has no \.txt files"):
        list(read_folder(root, encoding="auto"))
