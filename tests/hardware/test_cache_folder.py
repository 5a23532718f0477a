"""The folder for what can be made again.

Where the user says, else where they may write, else nowhere.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lightkit.hardware.cache_folder import cache_folder, preferred_cache_folder


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
