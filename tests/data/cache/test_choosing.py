"""Whether decoded images are kept, and what is said of it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pytorch_lightning import Trainer
from pytorch_lightning.trainer.states import TrainerFn

from lightkit.data.cache import places as places_module
from lightkit.data.cache.choosing import Choice, cached_sources
from lightkit.data.cache.source import CachedSource, ResizedSource
from lightkit.data.photos import Photo
from lightkit.data.pixels import PhotoPixels, PixelSource
from lightkit.data.splits import Split
from lightkit.data.transforms import preprocessing_of
from lightkit.images.preprocessing import resized
from tests.data.cache.conftest import FindPhotos

pytestmark = pytest.mark.usefixtures("own_folders")

Ask = Callable[..., Choice]


@pytest.fixture
def splits(find_photos: FindPhotos) -> dict[Split, list[Photo]]:
    photos = find_photos(*[(20, 24)] * 5)
    return {"train": photos[:3], "val": photos[3:]}


@pytest.fixture
def ask(splits: dict[Split, list[Photo]], caplog: pytest.LogCaptureFixture) -> Ask:
    caplog.set_level("INFO", logger="lightkit.data")
    defaults = {"cache": "auto", "cache_size": None, "cache_limit_gb": None, "batch_size": 1, "trainer": fitting()}

    def asked(**settings: Any) -> Choice:
        files = {split: PhotoPixels(photos) for split, photos in splits.items()}
        return cached_sources(splits, files, preprocessing=preprocessing_of(14), **{**defaults, **settings})

    return asked


def fitting(function: TrainerFn = TrainerFn.FITTING, **settings: Any) -> Trainer:
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "accelerator": "cpu"}
    trainer = Trainer(**{"max_epochs": 3, **quiet, **settings})
    trainer.state.fn = function
    return trainer


def little_room(monkeypatch: pytest.MonkeyPatch, *kinds: str) -> None:
    room = places_module.Place.room_bytes
    monkeypatch.setattr(
        places_module.Place, "room_bytes", lambda self, limit: 100 if self.kind in kinds else room(self, limit)
    )


@pytest.mark.parametrize(
    ("cache", "where"),
    [("auto", "in memory"), ("memory", "in memory"), ("disk", "on disk in {home}/lightkit/decoded")],
    ids=["auto", "memory", "disk"],
)
def test_it_is_kept_and_one_line_says_so(
    cache: str, where: str, ask: Ask, own_folders: Path, caplog: pytest.LogCaptureFixture
) -> None:
    choice = ask(cache=cache)
    assert [type(source) for source in choice.sources.values()] == [CachedSource, CachedSource]
    assert choice.described == {"kept": "disk" if cache == "disk" else "memory", "size": 16}
    (line,) = caplog.messages
    said = f"data: 5 photos decoded once, shorter side 16 px, 0.0 MB {where.format(home=own_folders / 'home')}"
    assert re.sub(r" \([0-9.]+ s\)$", "", line) == said


def test_both_splits_share_one_file(ask: Ask) -> None:
    sources = ask().sources
    assert set(sources) == {"train", "val"}
    assert len({id(source.file) for source in sources.values() if isinstance(source, CachedSource)}) == 1


def test_with_another_size_evaluation_reads_its_files(ask: Ask) -> None:
    sources = ask(cache_size=10).sources
    assert set(sources) == {"train"}
    assert sources["train"].pixels(0).size == (10, 12)


@pytest.mark.parametrize(
    "settings",
    [
        {"cache": "none"},
        {"trainer": {"function": TrainerFn.TESTING}},
        {"cache": "disk", "trainer": {"function": TrainerFn.PREDICTING}},
    ],
    ids=["none", "test", "predict"],
)
def test_the_files_themselves_are_read(settings: dict[str, Any], ask: Ask, own_folders: Path) -> None:
    if settings.get("trainer"):
        settings = {**settings, "trainer": fitting(**settings["trainer"])}
    choice = ask(**settings)
    assert choice.sources == {}
    assert choice.described == {"kept": "nowhere", "size": None}
    assert not list(own_folders.rglob("*.pixels"))


@pytest.mark.parametrize(
    ("training", "why"),
    [
        ({"max_epochs": 1}, "this training reads 3 of 3"),
        ({"fast_dev_run": True}, "fast_dev_run tries a few"),
        ({"overfit_batches": 2}, "overfit_batches reads a few"),
        ({"max_epochs": 3, "limit_train_batches": 1}, "this training reads 3 of 3"),
        ({"max_epochs": 3, "limit_train_batches": 0.25}, "this training reads 2 of 3"),
        ({"max_epochs": -1, "max_steps": 1, "accumulate_grad_batches": 2}, "this training reads 2 of 3"),
    ],
    ids=["one epoch", "fast_dev_run", "overfit", "few batches", "a share", "few steps"],
)
def test_auto_keeps_nothing_of_what_is_read_once_and_says_so(
    training: dict[str, Any], why: str, ask: Ask, own_folders: Path, caplog: pytest.LogCaptureFixture
) -> None:
    choice = ask(trainer=fitting(**training))
    assert [record.getMessage() for record in caplog.records if record.name == "lightkit.data"] == [
        f"data: photos are decoded each time, as {why}; data.init_args.cache: disk keeps them for later runs"
    ]
    assert (choice.described, choice.is_final) == ({"kept": "nowhere", "size": 16}, False)
    assert not list(own_folders.rglob("*.pixels"))


@pytest.mark.parametrize(
    "training",
    [
        {"max_epochs": 2, "limit_train_batches": 2},
        {"max_epochs": 100, "limit_train_batches": 1},
        {"max_epochs": 1, "max_steps": 9, "limit_train_batches": 1.0, "cache": "disk"},
        {"max_epochs": -1},
    ],
    ids=["few batches, two epochs", "one batch, many epochs", "asked for", "without end"],
)
def test_it_is_kept_where_photos_are_read_more_than_once(training: dict[str, Any], ask: Ask) -> None:
    cache = training.pop("cache", "auto")
    assert ask(cache=cache, trainer=fitting(**training)).kept != "nowhere"


@pytest.mark.parametrize("cache", ["auto", "memory", "disk"])
@pytest.mark.parametrize("max_epochs", [None, 1, 3], ids=["no trainer", "one epoch", "three epochs"])
@pytest.mark.parametrize("has_room", [True, False], ids=["room", "no room"])
def test_training_crops_are_cut_from_the_same_pixels_wherever_those_are_kept(
    cache: str,
    max_epochs: int | None,
    has_room: bool,
    ask: Ask,
    splits: dict[Split, list[Photo]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not has_room:
        little_room(monkeypatch, "memory", "disk")
    trainer = None if max_epochs is None else fitting(max_epochs=max_epochs)
    source = ask(cache=cache, cache_size=10, trainer=trainer).sources["train"]
    files = PhotoPixels(splits["train"])
    for index in range(3):
        np.testing.assert_array_equal(source.pixels(index).whole(), resized(files.pixels(index).whole(), 10))


def test_settings_without_effect_are_told(ask: Ask, caplog: pytest.LogCaptureFixture) -> None:
    ask(cache="none", cache_size=10, cache_limit_gb=1.0)
    assert caplog.messages == [
        "data.init_args.cache_size and data.init_args.cache_limit_gb: no effect with data.init_args.cache: none"
    ]


def test_disk_that_is_asked_for_is_used_for_one_epoch_too(ask: Ask) -> None:
    assert ask(cache="disk", trainer=fitting(max_epochs=1)).kept == "disk"


def test_auto_goes_to_the_disk_where_memory_is_short(
    ask: Ask, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    little_room(monkeypatch, "memory")
    assert ask().kept == "disk"
    assert "on disk in" in caplog.text


def test_auto_keeps_nothing_where_there_is_no_room(
    ask: Ask, own_folders: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    little_room(monkeypatch, "memory", "disk")
    assert ask().described == {"kept": "nowhere", "size": 16}
    assert caplog.messages == [
        "data: photos are decoded in every epoch; decoded they take 0.0 MB: there is room for 0.0 MB in memory; "
        f"there is room for 0.0 MB on disk in {own_folders / 'home' / 'lightkit' / 'decoded'}"
    ]
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


@pytest.mark.parametrize("cache", ["memory", "disk"])
def test_without_room_for_what_is_asked_the_numbers_stay(
    cache: str, ask: Ask, own_folders: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    expected = ask(cache=cache, cache_size=10).sources["train"]
    monkeypatch.setenv("XDG_CACHE_HOME", str(own_folders / "other home"))  # what is there already would be used
    monkeypatch.setattr(places_module, "_SHARED_MEMORY", own_folders / "none")
    little_room(monkeypatch, "memory", "disk")
    slower = ask(cache=cache, cache_size=10).sources["train"]
    assert type(slower) is ResizedSource
    for index in range(3):
        np.testing.assert_array_equal(slower.pixels(index).whole(), expected.pixels(index).whole())
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warning.startswith("data.init_args.cache: decoded they take 0.0 MB: ")
    assert "gives the same numbers slower" in warning


def test_the_limit_holds(ask: Ask, caplog: pytest.LogCaptureFixture) -> None:
    assert ask(cache_limit_gb=5e-6).kept == "nowhere"
    assert "there is room for 0.0 MB in memory" in caplog.text


def test_images_of_extreme_shape_alone_are_read_from_their_files(find_photos: FindPhotos) -> None:
    photos = find_photos((1, 90))
    options: dict[str, Any] = {"cache_size": None, "cache_limit_gb": None, "preprocessing": preprocessing_of(14)}
    files: dict[Split, PixelSource] = {"train": PhotoPixels(photos)}
    choice = cached_sources({"train": photos}, files, cache="disk", batch_size=1, trainer=None, **options)
    assert choice.kept == "nowhere"
    assert choice.sources["train"].pixels(0).size == (1, 90)


def test_memory_that_a_killed_run_left_goes_at_the_next_start(ask: Ask, own_folders: Path) -> None:
    folder = own_folders / "shm" / f"lightkit-{os.getuid()}"
    folder.mkdir(mode=0o700)
    (folder / "other.pixels").touch()
    ask(cache="disk")
    assert list(folder.iterdir()) == []
