"""Where a folder's photos come from, before a fit and from its start on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lightkit.data import ImageFolder
from lightkit.data.frozen_features import Features
from lightkit.data.image_folder import PhotoSources

PLAIN = [f"{name}/{number}.png" for name in ("rose", "tulip") for number in range(30)]  # 10 pixels high, 12 wide


@pytest.fixture
def data(make_images: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ImageFolder:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    return ImageFolder(str(make_images(*PLAIN)), image_size=8, cache="disk", seed=0)


def test_before_a_fit_photos_are_read_from_their_files(data: ImageFolder) -> None:
    sources = PhotoSources(Features())
    assert (sources.are_final, sources.are_cached, sources.described) == (False, False, {})
    assert sources.of("train", data.catalogue.splits["train"]).pixels(0).size == (10, 12)


def test_from_the_start_of_a_fit_they_come_from_what_is_kept(data: ImageFolder) -> None:
    sources, photos = PhotoSources(Features()), data.catalogue.splits["train"]
    sources.begin(data)
    assert (sources.are_final, sources.are_cached) == (True, True)
    assert sources.described == {"cache": {"kept": "disk", "size": 9}}
    kept = sources.of("train", photos).pixels(0)
    assert kept.size == (9, 10)
    photos[0].path.unlink()
    np.testing.assert_array_equal(sources.of("train", photos).pixels(0).whole(), kept.whole())


def test_a_fit_does_not_keep_the_test_split(data: ImageFolder) -> None:
    sources = PhotoSources(Features())
    sources.begin(data)
    assert sources.of("test", data.catalogue.splits["test"]).pixels(0).size == (10, 12)
