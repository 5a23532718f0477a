"""Unpacking leaves the whole folder or nothing, and nothing anywhere else."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from lightkit.data.archives import unpack
from lightkit.errors import DataError


def archive_of(path: Path, *members: tarfile.TarInfo) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for member in members:
            tar.addfile(member, io.BytesIO(b"x" * member.size))
    return path


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, target, 3 if kind == tarfile.REGTYPE else 0
    info.mode = 0o755 if kind == tarfile.DIRTYPE else 0o644
    return info


GOOD = (member("photos", tarfile.DIRTYPE), member("photos/daisy", tarfile.DIRTYPE), member("photos/daisy/1.jpg"))


def test_the_folder_of_the_archive_becomes_the_target(tmp_path: Path) -> None:
    archive = archive_of(tmp_path / "a.tgz", *GOOD)
    assert unpack(archive, tmp_path / "new" / "target", member="photos") == tmp_path / "new" / "target"
    assert (tmp_path / "new" / "target" / "daisy" / "1.jpg").read_bytes() == b"xxx"
    assert [entry.name for entry in (tmp_path / "new").iterdir()] == ["target"]


@pytest.mark.parametrize(
    "bad",
    [
        member("../outside"),
        member("photos/../../outside"),
        member("/tmp/lightkit-outside"),
        member("photos/link", tarfile.SYMTYPE, "../../outside"),
        member("photos/link", tarfile.SYMTYPE, "/etc/passwd"),
        member("photos/link", tarfile.SYMTYPE, "daisy/1.jpg"),
        member("photos/link", tarfile.LNKTYPE, "photos/daisy/1.jpg"),
        member("photos/link", tarfile.LNKTYPE, "../outside"),
        member("photos/device", tarfile.CHRTYPE),
        member("photos/block", tarfile.BLKTYPE),
        member("photos/pipe", tarfile.FIFOTYPE),
    ],
    ids=[
        "parent", "inner parent", "absolute", "symlink out", "absolute symlink", "symlink", "hard link",
        "hard link out", "character device", "block device", "pipe",
    ],
)  # fmt: skip
def test_a_member_that_could_reach_outside_stops_it(tmp_path: Path, bad: tarfile.TarInfo) -> None:
    folder = tmp_path / "inside"
    with pytest.raises(DataError, match="a member that does not belong there: ") as caught:
        unpack(archive_of(tmp_path / "a.tgz", *GOOD, bad), folder / "target", member="photos")
    assert bad.name in str(caught.value)
    assert list(folder.iterdir()) == []
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["a.tgz", "inside"]
    assert not Path("/tmp/lightkit-outside").exists()


@pytest.mark.parametrize("damage", ["cut", "garbled", "no archive"])
def test_a_broken_archive_is_told(tmp_path: Path, damage: str) -> None:
    archive = archive_of(tmp_path / "a.tgz", *GOOD)
    whole = archive.read_bytes()
    garbled = whole[:40] + bytes(byte ^ 255 for byte in whole[40:60]) + whole[60:]
    archive.write_bytes({"cut": whole[: len(whole) // 2], "garbled": garbled, "no archive": b"hello"}[damage])
    with pytest.raises(DataError, match=r"this archive is broken \(.*\)\. Delete it and fetch it again"):
        unpack(archive, tmp_path / "target", member="photos")
    assert list(tmp_path.iterdir()) == [archive]


def test_an_archive_of_something_else_is_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no folder flower_photos in this archive"):
        unpack(archive_of(tmp_path / "a.tgz", *GOOD), tmp_path / "target", member="flower_photos")


def test_files_that_are_there_already_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "mine").write_text("mine")
    with pytest.raises(DataError, match="there are files here already"):
        unpack(archive_of(tmp_path / "a.tgz", *GOOD), tmp_path / "target", member="photos")
    assert (tmp_path / "target" / "mine").read_text() == "mine"


def test_a_python_without_safe_unpacking_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(tarfile, "data_filter")
    with pytest.raises(DataError, match=r"cannot unpack archives safely .* newest patch release"):
        unpack(archive_of(tmp_path / "a.tgz", *GOOD), tmp_path / "target", member="photos")
