"""Images that somebody names: each once among the ranks, in order, and none stops the others."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from lightkit.data.listed import ListedImages, _Batches
from lightkit.errors import ConfigError, DataError
from lightkit.images.early import EarlyImages, begin_early
from lightkit.images.preprocessing import preprocessing_of
from lightkit.prediction.table import Prediction
from tests.data.conftest import MakeImages
from tests.data.torchvision_reference import eval_transform


def images_in(*words: object, **settings: Any) -> ListedImages:
    """What is listed, for batches of two."""
    given = {"preprocessing": preprocessing_of(16), "batch_size": 2, **settings}
    images = ListedImages([str(word) for word in words], **given)
    images.setup()
    return images


def taken(
    images: ListedImages, rank: int = 0, num_ranks: int = 1
) -> list[tuple[torch.Tensor, list[Prediction]]]:
    """The batches of a rank, with the images in each."""
    return [(batch, images.entries.popleft()) for batch in _Batches(images, rank, num_ranks)]


def test_a_batch_holds_what_the_data_modules_make_of_the_same_files(
    make_images: MakeImages, tmp_path: Path
) -> None:
    folder = make_images("a.png", "b.png", "c.png")
    batches = taken(images_in(folder))
    assert [len(batch) for batch, _ in batches] == [2, 1]
    transform = eval_transform(16)
    expected = [
        transform(Image.open(folder / name).convert("RGB")) for name in ("a.png", "b.png", "c.png")
    ]
    assert torch.equal(torch.cat([batch for batch, _ in batches]), torch.stack(expected))


@pytest.mark.parametrize(
    "num_ready", [0, 3, 6], ids=["none in time", "some in time", "all in time"]
)
def test_images_that_were_read_early_are_the_same_to_the_last_bit_and_errors_too(
    make_images: MakeImages, tmp_path: Path, num_ready: int
) -> None:
    folder = make_images(*(f"{letter}.jpg" for letter in "acdef"))
    (folder / "b.jpg").write_bytes(b"this is text")
    late = taken(images_in(folder))
    early = EarlyImages([str(folder)], preprocessing_of(16))
    try:
        for path in early.list_paths()[:num_ready]:
            early.wait_for(path)
        found = taken(images_in(folder, early=early))
    finally:
        early.close()
    assert len(found) == len(late)
    for (batch, entries), (expected, expected_entries) in zip(found, late, strict=True):
        assert torch.equal(batch, expected)
        assert entries == expected_entries
    assert [entry.defect is None for _, entries in found for entry in entries] == [
        True,
        False,
        True,
        True,
        True,
        True,
    ]


def test_images_that_were_prepared_otherwise_early_are_not_taken(make_images: MakeImages) -> None:
    folder = make_images("a.png")
    early = EarlyImages([str(folder)], preprocessing_of(32))
    try:
        early.wait_for(early.list_paths()[0])
        ((batch, _),) = taken(images_in(folder, early=early))
    finally:
        early.close()
    assert batch.shape[-1] == 16


def test_an_image_beyond_pillows_limit_is_left_to_the_reader_of_all(
    make_images: MakeImages, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_images("a.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1)
    early = EarlyImages([str(folder)], preprocessing_of(16))
    try:
        (path,) = early.list_paths()
        early.wait_for(path)
        assert early.take(path) is None
    finally:
        early.close()


def test_tables_and_standard_input_are_not_read_early(
    make_images: MakeImages, tmp_path: Path
) -> None:
    folder = make_images("a.png")
    (tmp_path / "list.csv").write_text("path\na.png\n", encoding="utf-8")
    for words in (["-"], [str(tmp_path / "list.csv")], [str(folder), "-"]):
        assert begin_early(words, preprocessing_of(16)) is None


@pytest.mark.parametrize("num_images", [1, 2, 5, 8, 13], ids="{} images".format)
@pytest.mark.parametrize("num_ranks", [1, 2, 3, 7], ids="{} ranks".format)
def test_each_image_is_on_one_rank_and_all_ranks_have_equally_many_batches(
    make_images: MakeImages, tmp_path: Path, num_images: int, num_ranks: int
) -> None:
    images = images_in(make_images(*(f"{number:02}.png" for number in range(num_images))))
    shares = [taken(images, rank, num_ranks) for rank in range(num_ranks)]
    assert len({len(share) for share in shares}) == 1
    assert all(len(batch) for share in shares for batch, _ in share)
    indices = [[entry.index for _, entries in share for entry in entries] for share in shares]
    assert all(own == sorted(own) for own in indices)
    assert sorted(index for own in indices for index in own) == list(range(num_images))


def test_an_image_that_cannot_be_read_is_reported_and_not_in_the_batch(
    make_images: MakeImages, tmp_path: Path
) -> None:
    folder = make_images("a.png", "c.png", "d.png")
    (folder / "b.png").write_bytes(b"this is text")
    (first, entries), (second, _) = taken(images_in(folder))
    assert (len(first), len(second)) == (1, 2)
    assert [Path(entry.path).name for entry in entries] == ["a.png", "b.png"]
    assert entries[0].defect is None
    assert entries[1].defect is not None
    assert "not an image" in entries[1].defect


def test_a_batch_of_bad_images_alone_has_one_blank_row(tmp_path: Path) -> None:
    for name in ("a.png", "b.png", "c.png"):
        (tmp_path / name).write_bytes(b"")
    batches = taken(images_in(*(tmp_path / name for name in ("a.png", "b.png", "c.png"))))
    assert [batch.shape for batch, _ in batches] == [(1, 3, 16, 16)] * 2
    assert [entry.defect is None for _, entries in batches for entry in entries] == [False] * 3


def test_odd_images_of_the_wild_are_read_or_reported(odd_images: Path, tmp_path: Path) -> None:
    entries = [entry for _, each in taken(images_in(odd_images)) for entry in each]
    bad = {Path(entry.path).name for entry in entries if entry.defect}
    assert {"badwidth.bmp", "shortfile.bmp", "truncated_jpeg.jpg"} <= bad
    assert "hopper.jpg" not in bad
    assert len(entries) > 3 * len(bad)


@pytest.mark.parametrize(
    "name", [b"two\nlines.png", b"not \xff text.png", "Gänseblümchen, süß.png".encode()]
)
def test_a_name_of_any_bytes_comes_through_the_list(
    make_images: MakeImages, tmp_path: Path, name: bytes
) -> None:
    folder = make_images("plain.png")
    (folder / "plain.png").rename(folder / os.fsdecode(name))
    ((_, (entry,)),) = taken(images_in(folder))
    assert os.fsencode(Path(entry.path).name) == name
    assert entry.defect is None


def test_what_comes_after_the_list_is_not_in_it_and_what_goes_is_a_bad_image(
    make_images: MakeImages, tmp_path: Path
) -> None:
    folder = make_images("a.png", "b.png")
    images = images_in(folder)
    make_images("0.png")
    (folder / "a.png").unlink()
    ((batch, entries),) = taken(images)
    assert [Path(entry.path).name for entry in entries] == ["a.png", "b.png"]
    assert [entry.defect is None for entry in entries] == [False, True]
    assert len(batch) == 1


def test_a_word_that_names_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        images_in(tmp_path / "nowhere")


def test_arrays_of_different_shapes_are_refused(make_images: MakeImages, tmp_path: Path) -> None:
    folder = make_images("a.png")
    Image.new("RGB", (20, 20)).save(folder / "b.png")
    with pytest.raises(ConfigError, match=r"different shapes \(\(10, 12, 3\) and \(20, 20, 3\)\)"):
        taken(images_in(folder, preprocessing=np.asarray))
