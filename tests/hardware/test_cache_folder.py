"""The folder for what can be made again.

Where the user says, else where they may write, else nowhere.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from lightkit.errors import DataError
from lightkit.hardware.cache_folder import cache_folder, make_once, preferred_cache_folder


def test_it_is_where_xdg_cache_home_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "new" / "cache"))
    assert cache_folder() == tmp_path / "new" / "cache" / "lightkit"
    assert (tmp_path / "new" / "cache" / "lightkit").is_dir()


@pytest.mark.parametrize("chosen", ["", "relative/cache"], ids=["unset", "relative"])
def test_without_an_absolute_xdg_cache_home_it_is_in_the_home(
    chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", chosen)
    monkeypatch.setenv("HOME", "/somebody")
    assert preferred_cache_folder() == Path("/somebody/.cache/lightkit")


def test_where_it_cannot_be_written_a_temporary_folder_is_the_users_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = cache_folder()
    assert folder == tmp_path / f"lightkit-{os.getuid()}"
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_link_that_somebody_has_put_in_its_place_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / f"lightkit-{os.getuid()}").symlink_to(tmp_path / "elsewhere")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert cache_folder() is None


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Folders that `make` has filled."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return []


def make(built: list[Path]) -> Path:
    """Make a folder of two files once."""

    def build(folder: Path) -> None:
        built.append(folder)
        (folder / "codes").mkdir()
        (folder / "codes" / "0.npy").write_bytes(bytes(range(256)) * 20_000)  # of several parts
        (folder / "plan.json").write_text("{}", encoding="utf-8")

    return make_once("rows", build)


def become_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def become_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "cut": lambda path: os.truncate(path, path.stat().st_size - 1),
    "empty": lambda path: path.write_bytes(b""),
    "zeros": lambda path: path.write_bytes(b"\0" * path.stat().st_size),
    "a bit": flip_a_bit,
    "gone": Path.unlink,
    "folder": become_folder,
    "pipe": become_pipe,
}


@pytest.mark.parametrize("kind", DAMAGES)
@pytest.mark.parametrize("name", ["codes/0.npy", "plan.json"])
def test_a_folder_that_is_damaged_is_made_again_with_a_warning(
    name: str, kind: str, built: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    folder = make(built)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert make(built) == folder
    assert len(built) == 1, "it is made once"

    DAMAGES[kind](folder / name)
    assert make(built) == folder
    assert len(built) == 2
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert f"{folder} is damaged ({name} is not as it was written): it is made again" in caplog.text


def test_a_process_reads_each_file_once_and_again_after_a_change(
    built: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make(built)
    opened: list[str] = []
    read: Callable[..., object] = Path.open

    def note(path: Path, *words: str, **settings: str) -> object:
        opened.append(path.name)
        return read(path, *words, **settings)

    monkeypatch.setattr(Path, "open", note)
    assert make(built) == folder
    assert "0.npy" not in opened

    os.utime(folder / "codes" / "0.npy")
    assert make(built) == folder
    assert opened.count("0.npy") == 1
    assert len(built) == 1, "it is as it was written"


@pytest.mark.parametrize("content", ["", "[]", "{", '{"plan.json": 3}'])
def test_a_list_that_cannot_be_read_is_a_damage(content: str, built: list[Path]) -> None:
    (make(built) / ".files.json").write_text(content, encoding="utf-8")
    make(built)
    assert len(built) == 2


def test_a_folder_of_an_earlier_version_is_taken_as_it_is(built: list[Path]) -> None:
    (make(built) / ".files.json").unlink()
    make(built)
    assert len(built) == 1


def test_a_folder_whose_files_were_all_deleted_is_made_again(built: list[Path]) -> None:
    for path in (make(built)).rglob("*"):
        if path.is_file() and path.name != ".files.json":
            path.unlink()
    make(built)
    assert len(built) == 2


@pytest.mark.skipif(
    not Path("/proc/self/schedstat").exists(), reason="needs a file that always changes"
)
def test_what_does_not_stay_as_it_was_written_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def build(folder: Path) -> None:
        (folder / "input").symlink_to("/proc/self/schedstat")

    with pytest.raises(DataError, match=r"rows: it does not stay as it was written \(input is not"):
        make_once("rows", build)
