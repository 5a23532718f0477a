"""PetastormTable reads with petastorm what Table reads, on the versions that it works with."""

from __future__ import annotations

import gc
import io
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from pytorch_lightning import Trainer

from lightkit.data import PetastormTable, Table
from lightkit.errors import ConfigError, DataError
from lightkit.models import ImageClassifier

pytest.importorskip(
    "petastorm", reason="needs petastorm, which works with pyarrow 14 at most: make test-tpu"
)

# Where petastorm fails or is stopped it leaves its files open, which shows in a later test.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:.*0\\.parquet:pytest.PytestUnraisableExceptionWarning"),
]

SIZE = 32


@pytest.fixture(autouse=True)
def cache_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield
    gc.collect()  # here, and not within a test of another file


def jpeg_of(number: int) -> bytes:
    pixels = np.random.default_rng(number).integers(0, 255, (40, 50, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG")
    return buffer.getvalue()


def write_images(
    folder: Path, *, num_rows: int = 24, num_files: int = 3, bad: tuple[int, ...] = ()
) -> str:
    """Write row groups of three rows, each with its number as its weight."""
    folder.mkdir(parents=True)
    for file in range(num_files):
        numbers = list(range(num_rows))[
            file * num_rows // num_files : (file + 1) * num_rows // num_files
        ]
        columns = {
            "image": pa.array(
                [b"no image" if number in bad else jpeg_of(number) for number in numbers],
                pa.binary(),
            ),
            "label": [f"class{number % 3}" for number in numbers],
            "number": [float(number) for number in numbers],
        }
        pq.write_table(pa.table(columns), folder / f"part-{file}.parquet", row_group_size=3)
    return str(folder)


def petastorm_table(train: str, **given: Any) -> PetastormTable:
    settings = {"image_size": SIZE, "batch_size": 5, "weight": "number", "seed": 3, **given}
    return PetastormTable(train, **settings)


def numbers_in(batches: list[Any]) -> list[int]:
    """The rows of batches with weights, blank ones left out."""
    return [int(weight) for _, _, weights in batches for weight in weights.tolist()]


@pytest.mark.parametrize("pool", ["thread", "dummy"])
def test_evaluation_has_the_pixels_and_labels_of_table(tmp_path: Path, pool: str) -> None:
    train, val = write_images(tmp_path / "train"), write_images(tmp_path / "val", num_rows=20)
    own = petastorm_table(train, val=val, reader_pool_type=pool)
    other = Table(
        train=train, val=val, image_size=SIZE, batch_size=5, weight="number", num_workers=0, seed=3
    )
    own.setup("fit")
    other.setup("fit")
    assert own.class_names == other.class_names == ["class0", "class1", "class2"]
    found, expected = list(own.val_dataloader()), list(other.val_dataloader())
    assert len(found) == len(expected) == 4
    for mine, theirs in zip(found, expected, strict=True):
        for one, another in zip(mine, theirs, strict=True):
            assert one.dtype == another.dtype
            assert torch.equal(one, another)


@pytest.mark.parametrize("pool", ["thread", "dummy"])
def test_an_epoch_of_training_has_each_row_once_in_another_order_than_the_last(
    tmp_path: Path, pool: str
) -> None:
    data = petastorm_table(
        write_images(tmp_path / "train"), reader_pool_type=pool, shuffling_queue_capacity=8
    )
    data.setup("fit")
    loader = data.train_dataloader()
    orders = []
    for epoch in range(2):
        loader.sampler.set_epoch(epoch)
        orders.append(numbers_in(list(loader)))
        assert sorted(orders[-1]) == list(range(24))
    assert orders[0] != orders[1]
    loader.sampler.set_epoch(0)
    assert numbers_in(list(loader)) == orders[0]


def ranks_of(
    data: PetastormTable, num_ranks: int, monkeypatch: pytest.MonkeyPatch
) -> list[list[Any]]:
    """Give the training batches of each rank."""
    found = []
    for rank in range(num_ranks):
        trainer = Trainer(
            accelerator="cpu", logger=False, enable_checkpointing=False, barebones=False
        )
        monkeypatch.setattr(Trainer, "global_rank", rank)
        monkeypatch.setattr(Trainer, "world_size", num_ranks)
        data.trainer = trainer
        found.append(list(data.train_dataloader()))
    data.trainer = None
    return found


@pytest.mark.parametrize("num_ranks", [2, 3, 5])
def test_ranks_share_all_rows_without_overlap_in_equally_many_batches(
    tmp_path: Path, num_ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = petastorm_table(write_images(tmp_path / "train", num_rows=25))
    data.setup("fit")
    batches = ranks_of(data, num_ranks, monkeypatch)
    assert len({len(of_rank) for of_rank in batches}) == 1
    of_ranks = [numbers_in(of_rank) for of_rank in batches]
    assert len({len(rows) for rows in of_ranks}) == 1
    # those with fewer begin again
    assert sorted(row for rows in of_ranks for row in {*rows}) == list(range(25))


def test_more_ranks_than_row_groups_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = petastorm_table(write_images(tmp_path / "train", num_rows=4, num_files=1))
    data.setup("fit")
    with pytest.raises(
        DataError, match=r"divides whole row groups, and here are 2 for 3 processes"
    ):
        ranks_of(data, 3, monkeypatch)


def test_rows_that_cannot_be_decoded_are_replaced_and_noted(tmp_path: Path) -> None:
    data = petastorm_table(write_images(tmp_path / "train", bad=(4, 9)))
    data.setup("fit")
    rows = numbers_in(list(data.train_dataloader()))
    assert len(rows) == 24
    assert set(rows) == {*range(24)} - {4, 9}  # each has a row of its row group in its place
    reasons = {defect.reason for defect in data.defects.take_noted()}
    assert reasons == {"not an image in any format that Pillow knows"}


def test_too_many_of_them_end_the_training_after_its_epoch(tmp_path: Path) -> None:
    data = petastorm_table(write_images(tmp_path / "train", bad=(4, 9)))
    data.setup("fit")
    list(data.train_dataloader())
    with pytest.raises(DataError, match=r"2 of the 24 rows could not be read any more, more than"):
        data.teardown("fit")


def test_a_reader_that_is_not_read_to_its_end_leaves_no_thread(tmp_path: Path) -> None:
    before = threading.active_count()
    data = petastorm_table(write_images(tmp_path / "train"))
    data.setup("fit")
    batches = iter(data.train_dataloader())
    next(batches)
    assert threading.active_count() > before
    del batches
    assert threading.active_count() == before


def test_a_delta_table_is_refused(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "train")
    (tmp_path / "train" / "_delta_log").mkdir()
    with pytest.raises(ConfigError, match=r"data\.init_args\.train: .* is no folder of Parquet"):
        petastorm_table(folder)


def test_a_column_that_petastorm_cannot_read_is_reported(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    labels = pa.array(["a", "b"], pa.large_string())
    table = pa.table({"image": pa.array([jpeg_of(0), jpeg_of(1)], pa.binary()), "label": labels})
    pq.write_table(table, tmp_path / "train" / "0.parquet")
    data = petastorm_table(str(tmp_path / "train"), weight=None)
    data.setup("fit")
    with pytest.raises(DataError, match=r"train: petastorm cannot read on .*label.*Table"):
        next(iter(data.train_dataloader()))


def test_numbers_are_batches_of_features_and_values(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    columns = {"x": [1.0, 2.0, 3.0, 4.0], "y": [[0.0, 1.0]] * 4, "z": [0.5, 1.5, 2.5, 3.5]}
    pq.write_table(pa.table(columns), tmp_path / "train" / "0.parquet")
    data = PetastormTable(str(tmp_path / "train"), features=["x", "y"], label="z", batch_size=4)
    data.setup("fit")
    inputs, values = next(iter(data.train_dataloader()))
    assert inputs.dtype == values.dtype == torch.float32
    assert sorted(inputs.tolist()) == [[x, 0.0, 1.0] for x in (1.0, 2.0, 3.0, 4.0)]
    assert torch.equal(values, inputs[:, :1] - 0.5)
    data.teardown("fit")


@pytest.mark.slow
@pytest.mark.parametrize("pool", ["thread", "dummy"])
def test_a_classifier_trains_from_it(tmp_path: Path, pool: str) -> None:
    train, val = write_images(tmp_path / "train"), write_images(tmp_path / "val")
    data = petastorm_table(train, val=val, reader_pool_type=pool)
    model = ImageClassifier(num_classes=3, backbone="mobilenet_v3_small")
    trainer = Trainer(
        accelerator="cpu", max_epochs=2, logger=False, enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(model, data)
    assert trainer.global_step == 10
    assert float(trainer.callback_metrics["val/loss"]) > 0


@pytest.mark.parametrize("pool", ["thread", "dummy"])
def test_rows_of_weight_0_are_not_left_out(tmp_path: Path, pool: str) -> None:
    folder = tmp_path / "train"
    folder.mkdir()
    weights = [0.0, 1.0] * 6
    columns = {
        "image": [jpeg_of(number) for number in range(12)],
        "label": ["a", "b"] * 6,
        "number": weights,
    }
    pq.write_table(pa.table(columns), folder / "a.parquet", row_group_size=1)
    data = petastorm_table(str(folder), reader_pool_type=pool)
    data.setup("fit")
    loader = data.train_dataloader()
    assert sorted(numbers_in(list(loader))) == sorted(map(int, weights))
    assert data.defects.take_noted() == []
