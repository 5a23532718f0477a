"""Decoded photos are kept where there is room, shared by processes, and removed when unused."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import pickle
import re
import signal
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import pytest
from PIL import Image
from pytorch_lightning import Trainer
from pytorch_lightning.trainer.states import TrainerFn

from lightkit import runs
from lightkit.data import image_cache
from lightkit.data.image_cache import ResizedPhotos, open_rows, open_sources
from lightkit.data.image_dataset import PhotoPixels
from lightkit.images.image_index import Photo
from lightkit.images.preprocessing import preprocessing_of
from lightkit.images.splits import Split


class Choice(NamedTuple):
    """What was opened."""

    sources: dict[Split, Any]
    described: dict[str, Any]


Choose = Callable[..., Choice]


@pytest.fixture
def photos(tmp_path: Path) -> list[Photo]:
    """Five JPEGs of 24 times 20 pixels."""
    found = []
    for number in range(5):
        path = tmp_path / f"{number}.jpg"
        pixels = np.random.default_rng(number).integers(0, 255, (20, 24, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path)
        found.append(Photo(path, 0, runs.digest(path), 20, 24))
    return found


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[bool, Path]:
    """The folder of temporary files, and the one on disk."""
    found = {True: tmp_path / "memory", False: tmp_path / "disk" / "lightkit" / "decoded"}
    found[True].mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "disk"))
    monkeypatch.setattr(image_cache, "private_folder", lambda _: found[True])
    return found


@pytest.fixture
def choose(
    photos: list[Photo], folders: dict[bool, Path], caplog: pytest.LogCaptureFixture
) -> Choose:
    """Choose the sources of a fit with these photos, three of them for training."""
    caplog.set_level("INFO", logger="lightkit.data")
    splits: dict[Split, list[Photo]] = {"train": photos[:3], "val": photos[3:]}

    def chosen(**settings: Any) -> Choice:
        defaults = {
            "cache": "auto",
            "cache_size": None,
            "cache_limit_gb": None,
            "batch_size": 1,
            "trainer": fitting(),
        }
        return Choice(
            *open_sources(splits, preprocessing=preprocessing_of(14), **{**defaults, **settings})
        )

    return chosen


def fitting(function: TrainerFn = TrainerFn.FITTING, **settings: Any) -> Trainer:
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "accelerator": "cpu",
    }
    trainer = Trainer(**{"max_epochs": 3, **quiet, **settings})
    trainer.state.fn = function
    return trainer


def pixel_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.rows"))


@pytest.mark.parametrize(
    ("cache", "kept"), [("auto", "memory"), ("memory", "memory"), ("disk", "disk")]
)
def test_photos_are_decoded_once_and_one_line_says_so(
    cache: str, kept: str, choose: Choose, caplog: pytest.LogCaptureFixture
) -> None:
    choice = choose(cache=cache)
    assert {type(source) for source in choice.sources.values()} == {ResizedPhotos}
    assert choice.described == {"kept": kept, "size": 16}
    expected: dict[Split, int] = {"train": 3, "val": 2}
    for split, num in expected.items():
        assert len(choice.sources[split]) == num
        assert f"0 found decoded, {num} decoded once" in caplog.text
    again = choose(cache=cache)
    assert re.search(
        r"data: photos, shorter side 16 px: 3 found decoded, 0 decoded once .*, 0\.0 MB in ",
        caplog.text,
    )
    for split, source in choice.sources.items():
        for index in range(len(source)):
            cached, found = source.pixels(index).whole(), again.sources[split].pixels(index).whole()
            assert np.array_equal(np.asarray(cached), np.asarray(found))
            resized = ResizedPhotos(source.photos, 16).pixels(index).whole()
            assert np.array_equal(np.asarray(cached), np.asarray(resized))


def test_with_another_size_evaluation_reads_its_files(choose: Choose) -> None:
    sources = choose(cache_size=10).sources
    assert type(sources["val"]) is PhotoPixels
    assert sources["train"].pixels(0).size == (10, 12)


@pytest.mark.parametrize(
    ("training", "reason"),
    [
        ({"max_epochs": 1}, "this training reads 3 of 3"),
        ({"fast_dev_run": True}, "this training reads 0 of 3"),
        ({"overfit_batches": 2}, "this training reads 0 of 3"),
        ({"max_epochs": 3, "limit_train_batches": 0.25}, "this training reads 2 of 3"),
        (
            {"max_epochs": -1, "max_steps": 1, "accumulate_grad_batches": 2},
            "this training reads 2 of 3",
        ),
    ],
    ids=["one epoch", "fast_dev_run", "overfit", "a share", "few steps"],
)
def test_auto_keeps_nothing_where_a_training_reads_few_photos(
    training: dict[str, Any], reason: str, choose: Choose, caplog: pytest.LogCaptureFixture
) -> None:
    choice = choose(trainer=fitting(**training))
    assert choice.described == {"kept": "nowhere", "size": 16}
    assert reason in caplog.text


def test_without_room_photos_are_decoded_each_time(
    choose: Choose, caplog: pytest.LogCaptureFixture
) -> None:
    choice = choose(cache="disk", cache_limit_gb=1e-9)
    assert choice.described == {"kept": "nowhere", "size": 16}
    assert "raise data.init_args.cache_limit_gb" in caplog.text


def test_files_go_by_age_and_size_and_none_of_the_last_week(
    choose: Choose, folders: dict[bool, Path]
) -> None:
    choose(cache="disk", cache_size=16)
    used = pixel_files(folders[False])
    num_bytes, now_s = sum(file.stat().st_size for file in used), time.time()
    for name, days in {"old": 61, "last": 30, "first": 8}.items():
        file = folders[False] / f"{name}.rows"
        file.write_bytes(bytes(num_bytes))
        os.utime(file, (now_s - days * 86_400,) * 2)
    choose(cache="disk", cache_size=15, cache_limit_gb=num_bytes * 3 / 1e9)
    names = {file.stem for file in pixel_files(folders[False])}
    assert names & {"old", "last", "first"} == {"first"}
    assert all(file.exists() for file in used)
    assert len(names) == 4
    full = choose(cache="disk", cache_size=14, cache_limit_gb=num_bytes * 1.5 / 1e9)
    assert full.described["kept"] == "nowhere"
    assert all(file.exists() for file in used)


def test_a_file_in_memory_goes_with_its_maker_and_others_keep_what_they_have_mapped(
    choose: Choose, folders: dict[bool, Path]
) -> None:
    first, second = choose(cache="memory"), choose(cache="memory")
    assert len(pixel_files(folders[True])) == 2
    del first
    assert pixel_files(folders[True]) == []
    assert second.sources["train"].pixels(0).whole().height == 16


def test_files_in_memory_of_killed_processes_go_and_those_of_another_container_stay(
    choose: Choose, folders: dict[bool, Path]
) -> None:
    # numbers of processes say nothing: there is none here with the first, and this one has the
    # second
    alive, killed = [folders[True] / f"one-{process}.rows" for process in (2**22 + 1, os.getpid())]
    killed.touch()
    with alive.open("wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert choose(cache="memory").described["kept"] == "memory"
        assert [file.exists() for file in (alive, killed)] == [True, False]
    assert choose(cache="memory").described["kept"] == "memory"
    assert not alive.exists()


def open_in_memory(folder: Path, opened: Connection, *, forks: bool) -> None:
    """Make a file in memory in this process, and end with it, or a worker lives until a signal."""
    with patch.object(image_cache, "private_folder", lambda _: folder):
        rows = open_rows("decoded", "ab", np.array([4]), in_memory=True)
    rows[0] = np.ones(4, np.uint8)
    worker = None
    if forks and (worker := os.fork()) == 0:
        signal.pause()
    opened.send((rows.path.exists(), worker))
    if forks:
        signal.pause()


@pytest.mark.parametrize(
    "method",
    [
        "fork",
        pytest.param("forkserver", marks=pytest.mark.long),
        pytest.param("spawn", marks=pytest.mark.long),
    ],
)
def test_a_process_of_multiprocessing_leaves_no_file_in_memory_at_its_end(
    method: str, tmp_path: Path
) -> None:
    """Each stage of a retrain is such a process, as is each rank of Lightning's own launchers."""
    context = multiprocessing.get_context(method)
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(  # type: ignore[attr-defined]
        target=open_in_memory, args=(tmp_path, sender), kwargs={"forks": False}
    )
    process.start()
    assert receiver.recv() == (True, None)
    process.join(60)
    assert process.exitcode == 0
    assert pixel_files(tmp_path) == []


def test_a_worker_that_outlives_its_killed_process_keeps_no_file_in_memory(
    choose: Choose, folders: dict[bool, Path]
) -> None:
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(
        target=open_in_memory, args=(folders[True], sender), kwargs={"forks": True}
    )
    process.start()
    _, worker = receiver.recv()
    try:
        (left,) = pixel_files(folders[True])
        choose(cache="memory")
        assert left.exists()
        process.kill()
        process.join(60)
        choose(cache="memory")
        assert not left.exists()
    finally:
        os.kill(worker, signal.SIGKILL)


@pytest.mark.parametrize(
    ("damage", "num_found"), [("a byte", 2), ("cut", 0), ("head", 2), ("empty", 0)]
)
def test_a_damaged_file_is_made_again(
    damage: str,
    num_found: int,
    choose: Choose,
    folders: dict[bool, Path],
    caplog: pytest.LogCaptureFixture,
) -> None:
    choose(cache="disk")
    path = max(pixel_files(folders[False]), key=lambda file: file.stat().st_size)
    content = path.read_bytes()
    path.write_bytes(
        {
            "a byte": content[:-7] + b"?" + content[-6:],
            "cut": content[:-9],
            "head": b"????" + content[4:],
            "empty": b"",
        }[damage]
    )
    choice = choose(cache="disk")
    assert f"{num_found} found decoded, {3 - num_found} decoded once" in caplog.text
    assert choice.described["kept"] == "disk"


def test_a_photo_that_has_changed_since_the_scan_is_not_in_the_file(
    choose: Choose, photos: list[Photo]
) -> None:
    Image.new("RGB", (24, 20)).save(photos[0].path)
    source = choose(cache="disk").sources["train"]
    assert isinstance(source, ResizedPhotos)
    assert source.rows is not None
    assert [source.rows[index] is None for index in range(3)] == [True, False, False]
    assert np.asarray(source.pixels(0).whole()).max() == 0


def test_a_job_that_looks_for_damaged_rows_takes_none_from_another_that_has_repaired_it(
    folders: dict[bool, Path],
) -> None:
    sizes = np.full(3, 4)
    first, second = (open_rows("features", "0" * 40, sizes) for _ in range(2))
    for index in range(3):
        first[index] = np.full(4, index, np.uint8)
    first._row(1)[:] = 9
    assert first.find_missing() == second.find_missing() == [1]
    first[1] = np.ones(4, np.uint8)
    assert second.find_missing() == []
    first._row(1)[:] = 9
    assert second.find_missing() == [1]
    assert first[1] is not None


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_worker_that_is_spawned_reads_rows_whose_maker_has_ended(tmp_path: Path) -> None:
    with patch.object(image_cache, "private_folder", lambda _: tmp_path):
        rows = open_rows("decoded", "ab", np.array([4]), in_memory=True)
    rows[0] = np.arange(4, dtype=np.uint8)
    rows.path.unlink()  # as its maker does at its end, while this process still has it
    again = pickle.loads(pickle.dumps(rows))
    assert again[0].tolist() == [0, 1, 2, 3]
