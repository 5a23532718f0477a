"""How much room there is, what goes for more of it, and where nothing may be put."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from lightkit.data.cache import places as places_module
from lightkit.data.cache.locks import use
from lightkit.data.cache.places import Place, lock_folder, places

MB = 1_000_000
Files = Callable[..., Place]


@pytest.fixture
def with_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Files:
    """Gives a place with files of the given lengths, the oldest first, and so much free room."""

    def make(kind: str, *lengths: int, free: int, available: int = 1000 * MB) -> Place:
        folder = tmp_path / kind
        folder.mkdir()
        for number, length in enumerate(lengths):
            with (folder / f"{9 - number}.pixels").open("wb") as file:
                file.truncate(length)
            os.utime(folder / f"{9 - number}.pixels", (number, number))

        def disk_usage(_: Path) -> SimpleNamespace:
            taken = sum(file.stat().st_size for file in folder.glob("*.pixels"))
            return SimpleNamespace(free=places_module._LEFT_FREE_BYTES + free + sum(lengths) - taken)

        monkeypatch.setattr(shutil, "disk_usage", disk_usage)
        monkeypatch.setattr(places_module, "available_memory_bytes", lambda: available)
        return Place(folder, kind)  # type: ignore[arg-type]

    return make


@pytest.mark.parametrize(
    ("kind", "free", "available", "limit", "expected"),
    [
        ("memory", 900 * MB, 1000 * MB, None, 250 * MB),
        ("memory", 64 * MB, 1000 * MB, None, 64 * MB),
        ("memory", 900 * MB, 1000 * MB, 600 * MB, 600 * MB),
        ("memory", 900 * MB, 300 * MB, 600 * MB, 300 * MB),
        ("disk", 900 * MB, 10 * MB, None, 450 * MB),
        ("disk", 900 * MB, 10 * MB, 600 * MB, 600 * MB),
        ("disk", 100 * MB, 10 * MB, 600 * MB, 100 * MB),
    ],
    ids=["a quarter", "small shm", "limit", "limit above memory", "half", "disk's limit", "limit above disk"],
)
def test_the_room_is_a_share_of_what_is_free(
    kind: str, free: int, available: int, limit: float | None, expected: int, with_files: Files
) -> None:
    assert with_files(kind, free=free, available=available).room_bytes(limit) == expected


def test_files_in_memory_count_against_its_limit(with_files: Files) -> None:
    assert with_files("memory", 50 * MB, free=900 * MB).room_bytes(120 * MB) == 70 * MB


@pytest.mark.parametrize(
    ("num_bytes", "limit", "left"),
    [(30 * MB, 100 * MB, ["9", "8", "7"]), (50 * MB, 100 * MB, ["8", "7"]), (75 * MB, 100 * MB, ["7"])],
    ids=["fits", "one goes", "two go"],
)
def test_what_was_unused_longest_goes_first(num_bytes: int, limit: float, left: list[str], with_files: Files) -> None:
    place = with_files("disk", 20 * MB, 20 * MB, 20 * MB, free=900 * MB)
    assert place.make_room(num_bytes, limit)
    assert sorted((file.stem for file in place.folder.iterdir()), reverse=True) == left


def test_a_full_disk_makes_the_oldest_go_too(with_files: Files) -> None:
    place = with_files("disk", 20 * MB, 20 * MB, free=10 * MB)
    assert place.make_room(15 * MB, 200 * MB)
    assert [file.stem for file in place.folder.iterdir()] == ["8"]


def test_a_file_in_use_stays(with_files: Files) -> None:
    place = with_files("disk", 40 * MB, 40 * MB, free=900 * MB)
    descriptor = os.open(place.folder / "9.pixels", os.O_RDONLY)
    use(descriptor)
    assert place.make_room(50 * MB, 100 * MB)
    assert [file.stem for file in place.folder.iterdir()] == ["9"]
    assert not place.make_room(70 * MB, 100 * MB)
    os.close(descriptor)


def test_nothing_goes_for_what_would_not_fit_anyway(with_files: Files) -> None:
    place = with_files("disk", 20 * MB, free=900 * MB)
    assert not place.make_room(101 * MB, 100 * MB)
    assert len(list(place.folder.iterdir())) == 1


@pytest.mark.parametrize(("kind", "left"), [("memory", ["wanted.pixels"]), ("disk", ["other.pixels", "wanted.pixels"])])
def test_what_the_dead_have_left_goes(kind: str, left: list[str], tmp_path: Path) -> None:
    for name in ("wanted.pixels", "other.pixels", ".other.pixels.ab12.part"):
        (tmp_path / name).write_bytes(b"")
    Place(tmp_path, kind).clean(keep="wanted.pixels")  # type: ignore[arg-type]
    assert sorted(file.name for file in tmp_path.iterdir()) == left


def test_places_by_what_is_asked_for(own_folders: Path) -> None:
    own, uid = own_folders, os.getuid()
    memory = [Place(own / root / f"lightkit-{uid}", "memory") for root in ("shm", "tmp")]
    disk = Place(own / "home" / "lightkit" / "decoded", "disk")
    assert places("memory") == memory
    assert places("disk") == [disk]
    assert places("auto") == [memory[0], disk]
    assert lock_folder() == memory[0].folder


def test_without_shared_memory_the_temporary_files_serve(own_folders: Path) -> None:
    (own_folders / "shm").rmdir()
    assert [place.folder.parent.name for place in places("memory")] == ["tmp"]
    assert [place.kind for place in places("auto")] == ["disk"]


@pytest.mark.parametrize("trap", ["link", "open to all", "file"])
def test_a_folder_that_others_can_write_to_is_not_used(trap: str, own_folders: Path) -> None:
    folder = own_folders / "shm" / f"lightkit-{os.getuid()}"
    if trap == "link":
        folder.symlink_to(own_folders / "home", target_is_directory=True)
    elif trap == "file":
        folder.touch()
    else:
        folder.mkdir()
        folder.chmod(0o777)
    assert [place.folder.parent.name for place in places("memory")] == ["tmp"]


def test_a_home_that_cannot_be_written_sends_to_the_temporary_files(
    own_folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (own_folders / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(own_folders / "file"))
    assert [place.folder for place in places("disk")] == [
        own_folders / "file" / "lightkit" / "decoded",
        own_folders / "tmp" / f"lightkit-{os.getuid()}" / "decoded",
    ]
