"""The flower photos where they are, the drawn flowers where they are not, and which is said."""

from __future__ import annotations

import hashlib
import io
import logging
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lightkit.data import Flowers
from lightkit.errors import DataError
from lightkit.images.flower_photos import CLASSES

NAMES = [f"{kind}/{number}.jpg" for kind in CLASSES for number in range(24)]


@pytest.fixture(autouse=True)
def empty_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "place"
    place.mkdir()
    monkeypatch.chdir(place)
    monkeypatch.delenv("LIGHTKIT_DATA", raising=False)
    # the drawn set, small
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("lightkit.data.flowers._drawn_folder.__defaults__", (60,))
    monkeypatch.setattr(
        "lightkit.data.flowers._drawn_folder.__kwdefaults__", {"size": 16, "seed": 0}
    )
    return place


def source_and_root(caplog: pytest.LogCaptureFixture, **options: Any) -> tuple[str, str, str]:
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="lightkit.data"):
        data = Flowers(image_size=16, **options)
        data.setup("fit")
    notices = [
        record.getMessage() for record in caplog.records if record.getMessage().startswith("data: ")
    ]
    assert len(notices) == 1
    return data.describe()["source"], data.describe()["root"], notices[0]


def test_without_photos_the_drawn_flowers_are_used_with_one_notice(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source, root, notice = source_and_root(caplog)
    assert source == "drawn"
    assert root.startswith(str(tmp_path / "cache"))
    assert "drawn flowers" in notice
    assert "`lightkit fetch`" in notice
    assert "LIGHTKIT_DATA" in notice


def test_photos_in_the_default_folder_are_used(
    make_images: Any, empty_place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_images(*NAMES, root=empty_place / "data" / "flower_photos")
    assert source_and_root(caplog) == (
        "photos",
        "data/flower_photos",
        "data: the flower photos in data/flower_photos",
    )


@pytest.mark.parametrize("inside", [False, True], ids=["the folder itself", "its flower_photos"])
def test_the_variable_names_the_folder(
    make_images: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    inside: bool,
) -> None:
    root = make_images(*NAMES, root=tmp_path / "mine" / "flower_photos")
    monkeypatch.setenv("LIGHTKIT_DATA", str(root.parent if inside else root))
    assert source_and_root(caplog)[:2] == ("photos", str(root))


def test_the_argument_goes_before_the_variable(
    make_images: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("LIGHTKIT_DATA", str(tmp_path / "nowhere"))
    root = make_images(*NAMES)
    assert source_and_root(caplog, root=str(root))[:2] == ("photos", str(root))


@pytest.mark.parametrize("exists", [False, True])
def test_a_variable_that_leads_nowhere_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exists: bool
) -> None:
    monkeypatch.setenv("LIGHTKIT_DATA", str(tmp_path if exists else tmp_path / "nowhere"))
    with pytest.raises(DataError, match="no flower photos" if exists else "no such folder"):
        Flowers().setup("fit")


@pytest.fixture
def archive(make_images: Any, tmp_path: Path) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        tar.add(
            make_images(*NAMES, "LICENSE.png", root=tmp_path / "packed"), arcname="flower_photos"
        )
    return packed.getvalue()


def test_what_does_not_fit_on_the_disk_is_not_begun(
    archive: bytes, serve: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve({"flower_photos.tgz": archive})
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=len(archive) - 1))
    flowers = Flowers(
        root=str(tmp_path / "mine"),
        url=server.url("flower_photos.tgz"),
        sha256="0",
        size_bytes=None,
    )
    with pytest.raises(
        DataError, match=r"cannot write here \(the disk is full\).* Once there is room"
    ):
        flowers.fetch()
    assert not (tmp_path / "flower_photos.tgz.part").exists()


@pytest.mark.parametrize("named", ["default", "argument", "variable"])
def test_fetching_puts_the_photos_where_they_are_looked_for(
    archive: bytes,
    serve: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    named: str,
) -> None:
    server = serve({"flower_photos.tgz": archive}, cut_after=[len(archive) // 2])
    monkeypatch.setattr("lightkit.data.flowers.time.sleep", lambda seconds: None)
    if named == "variable":
        monkeypatch.setenv("LIGHTKIT_DATA", str(tmp_path / "mine"))
    options: dict[str, Any] = {
        "url": server.url("flower_photos.tgz"),
        "sha256": hashlib.sha256(archive).hexdigest(),
        "size_bytes": len(archive),
        **({"root": str(tmp_path / "my flowers")} if named == "argument" else {}),
    }
    for _ in range(2):
        Flowers(**options).fetch()
    assert [status for _, _, status in server.requests] == [200, 206]
    expected = {
        "default": "data/flower_photos",
        "argument": str(tmp_path / "my flowers"),
        "variable": str(tmp_path / "mine" / "flower_photos"),
    }[named]
    assert source_and_root(caplog, **options)[:2] == ("photos", expected)
    assert not list(Path(expected).parent.glob("*.tgz*"))
