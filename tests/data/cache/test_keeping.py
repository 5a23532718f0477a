"""A file is found where there is a whole one, else made where there is room."""

from __future__ import annotations

import errno
import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lightkit.data.cache import keeping, pixel_file
from lightkit.data.cache.building import built
from lightkit.data.cache.keeping import Kept, kept_file
from lightkit.data.cache.layout import Layout, layout_of
from lightkit.data.cache.places import Place
from tests.data.cache.conftest import FindPhotos


@pytest.fixture
def laid(find_photos: FindPhotos) -> Layout:
    return layout_of(find_photos(*[(12, 16)] * 4), 8)


@pytest.fixture
def disk(tmp_path: Path) -> Place:
    return Place(tmp_path / "disk", "disk")


def kept(laid: Layout, *places: Place, limit_bytes: float | None = None) -> Kept:
    return kept_file(laid, places, limit_bytes=limit_bytes, lock_folder=None)


def test_the_second_time_it_is_found_and_nothing_is_decoded(
    laid: Layout, disk: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = kept(laid, disk)
    monkeypatch.setattr(keeping, "built", pytest.fail)
    second = kept(laid, disk)
    assert first.is_new
    assert not second.is_new
    assert first.file is not None
    assert second.file is not None
    assert first.file.inode == second.file.inode
    assert first.says.startswith(f"decoded once, shorter side 8 px, 0.0 MB on disk in {disk.folder} (")
    assert second.says == f"found decoded, shorter side 8 px, 0.0 MB on disk in {disk.folder}"


@pytest.mark.parametrize("damage", ["flipped bit", "cut", "version", "garbage"])
def test_a_broken_one_is_named_and_made_again(
    damage: str, laid: Layout, disk: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if damage == "version":
        with monkeypatch.context() as other:
            other.setattr(pixel_file, "VERSION", 99)
            kept(laid, disk)
    else:
        kept(laid, disk)
    path = disk.folder / laid.file_name
    content = path.read_bytes()
    flipped = content[:-300] + bytes([content[-300] ^ 16]) + content[-299:]
    damaged = {"flipped bit": flipped, "cut": content[:-1], "garbage": b"?" * len(content), "version": content}
    path.write_bytes(damaged[damage])
    again = kept(laid, disk)
    assert again.is_new
    assert [message for message in caplog.messages if message.startswith(f"data: {path} is broken (")]
    assert not kept(laid, disk).is_new


def test_the_next_place_serves_where_the_first_is_full(
    laid: Layout, disk: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = Place(tmp_path / "memory", "memory")
    disk.folder.mkdir()
    monkeypatch.setattr(Place, "make_room", lambda self, *_: self.kind == "disk")
    assert kept(laid, memory, disk).says.startswith("decoded once, shorter side 8 px, 0.0 MB on disk")


def test_the_next_place_serves_where_the_first_breaks_off(
    laid: Layout, disk: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks_off(layout: Layout, folder: Path, *, is_temporary: bool) -> object:
        if is_temporary:
            raise OSError(errno.ENOSPC, "No space left on device")
        return built(layout, folder, is_temporary=is_temporary)

    monkeypatch.setattr(keeping, "built", breaks_off)
    assert kept(laid, Place(tmp_path / "memory", "memory"), disk).file is not None


def test_no_room_says_how_much_there_is(laid: Layout, disk: Place, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    found = kept(laid, disk, Place(tmp_path / "file" / "folder", "disk"), limit_bytes=100)
    assert found.file is None
    assert found.says == (
        f"decoded they take 0.0 MB: there is room for 0.0 MB on disk in {disk.folder}; "
        f"{tmp_path / 'file' / 'folder'}: Not a directory"
    )


def test_a_whole_one_in_a_folder_that_cannot_be_written_is_used(laid: Layout, disk: Place) -> None:
    kept(laid, disk)
    (disk.folder / laid.file_name).chmod(0o400)
    disk.folder.chmod(0o500)
    found = kept(laid, disk)
    disk.folder.chmod(0o700)
    assert found.file is not None
    assert not found.is_new


def test_one_that_came_while_waiting_is_opened(laid: Layout, disk: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def while_waiting(*_: object, **__: object) -> Iterator[None]:
        disk.folder.mkdir()
        built(laid, disk.folder, is_temporary=False)
        yield

    monkeypatch.setattr(keeping, "only_one", while_waiting)
    found = kept(laid, disk)
    assert found.file is not None
    assert not found.is_new


def test_a_file_that_the_system_does_not_map_is_told(
    laid: Layout, disk: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    kept(laid, disk)

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(mmap, "mmap", refuse)
    found = kept(laid, disk)
    assert found.file is None
    assert "Cannot allocate memory" in found.says
    assert "cannot be used: Cannot allocate memory" in caplog.text
