"""A file that has not changed is not read again; one that may have is."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

import pytest

from lightkit.errors import DataError
from lightkit.images import file_digests as module
from lightkit.images.file_digests import UNREADABLE, FileDigest, file_digests
from lightkit.images.flower_photos import CLASSES, flower_photos


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Two files, looked at an hour after they were made."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    later_ns = time.time_ns() + 3600 * 10**9
    monkeypatch.setattr("lightkit.images.file_digests.time.time_ns", lambda: later_ns)
    paths = [tmp_path / "a.bin", tmp_path / "b.bin"]
    for path in paths:
        path.write_bytes(path.name.encode() * 1000)
    return [str(path) for path in paths]


def read(found: list[FileDigest]) -> list[bool]:
    return [each.was_read for each in found]


def test_digests_are_those_of_the_content_and_are_kept(files: list[str]) -> None:
    found = list(file_digests(files))
    assert [each.digest for each in found] == [hashlib.sha256(Path(path).read_bytes()).hexdigest() for path in files]
    assert [each.size_bytes for each in found] == [5000, 5000]
    assert read(found) == [True, True]
    again = list(file_digests(reversed(files)))
    assert read(again) == [False, False]
    assert [each.digest for each in again] == [each.digest for each in reversed(found)]


def test_a_touched_file_is_read_again(files: list[str]) -> None:
    list(file_digests(files))
    os.utime(files[0], (1, 1))
    found = list(file_digests(files))
    assert read(found) == [True, False]
    assert found[0].digest == hashlib.sha256(Path(files[0]).read_bytes()).hexdigest()


def test_a_file_of_the_same_size_and_time_is_told_by_its_change_time(files: list[str]) -> None:
    list(file_digests(files))
    status = Path(files[0]).stat()
    Path(files[0]).write_bytes(b"other" * 1000)
    os.utime(files[0], ns=(status.st_atime_ns, status.st_mtime_ns))
    assert read(list(file_digests(files))) == [True, False]


def test_a_file_that_was_changed_just_before_is_read_again(files: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    changed_ns = max(Path(files[0]).stat().st_mtime_ns, Path(files[0]).stat().st_ctime_ns)
    monkeypatch.setattr("lightkit.images.file_digests.time.time_ns", lambda: changed_ns + 10**9)
    list(file_digests(files[:1]))
    assert read(list(file_digests(files[:1]))) == [True]


def test_what_is_no_file_has_no_digest(files: list[str], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    others = [str(tmp_path / "gone"), str(tmp_path), str(tmp_path / "pipe"), "null\0in it"]
    assert {each.digest for each in file_digests(others)} == {UNREADABLE}


def test_thousands_come_in_order(files: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_AT_A_TIME", 3)
    one, other = [each.digest for each in file_digests(files)]
    assert [each.digest for each in file_digests(iter([files[0], files[1]] * 10))] == [one, other] * 10


def test_an_index_that_cannot_be_kept_only_costs_time(files: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "cache_folder", lambda: None)
    first = list(file_digests(files))
    assert [each.digest for each in first] == [each.digest for each in file_digests(files)]


def test_the_photos_are_where_the_variable_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert flower_photos({}) is None
    for folder in ("data/flower_photos", "mine/flower_photos"):
        for name in CLASSES:
            (tmp_path / folder / name).mkdir(parents=True)
    assert flower_photos({}) == Path("data/flower_photos")
    for named in ("mine", "mine/flower_photos"):
        assert flower_photos({"LIGHTKIT_DATA": named}) == Path("mine/flower_photos")
    with pytest.raises(DataError, match="LIGHTKIT_DATA=other: no such folder"):
        flower_photos({"LIGHTKIT_DATA": "other"})
