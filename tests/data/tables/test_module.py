"""Training on a table: what a data module promises, in processes, interruptions and bad rows."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from pytorch_lightning import Callback, LightningModule, Trainer, seed_everything

from lightkit.data.tables.loader import TableImages
from lightkit.data.tables.module import Table
from lightkit.errors import ConfigError, DataError
from lightkit.images.image_file import UnreadableImageError

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*is deprecated:FutureWarning"),
]

ROOT = Path(__file__).parents[3]
WriteTable = Callable[..., Path]
NUM_TRAIN, NUM_BATCHES = 22, 6


def png(number: int, side: int = 8) -> bytes:
    pixels = np.random.default_rng(number).integers(0, 256, (side, side + 2, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format="PNG")
    return file.getvalue()


def images(
    num_val: int = 5, num_test: int = 3, *, broken: tuple[int, ...] = ()
) -> dict[str, list[Any]]:
    splits = ["train"] * NUM_TRAIN + ["val"] * num_val + ["test"] * num_test
    return {
        "image": [
            b"no image" if number in broken else png(number) for number in range(len(splits))
        ],
        "label": ["ab"[number % 2] for number in range(len(splits))],
        "split": splits,
    }


def numbers(num: int = 40) -> dict[str, list[Any]]:
    splits = [
        "val" if number % 4 == 0 else "test" if number % 4 == 1 else "train"
        for number in range(num)
    ]
    return {
        "x": [float(n) for n in range(num)],
        "y": [2.0 * n for n in range(num)],
        "split": splits,
    }


def table(path: Path, **options: Any) -> Table:
    given: dict[str, Any] = {
        "num_workers": 0,
        "batch_size": 4,
        "image_size": 8,
        "seed": 3,
        "shuffle_buffer": 8,
    }
    return Table(path=str(path), **{**given, **options})


class Recording(LightningModule):
    """A linear model that remembers every batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3 * 8 * 8, 2)
        self.seen: list[tuple[int, list[float]]] = []

    def training_step(self, batch: tuple[torch.Tensor, ...], batch_idx: int) -> torch.Tensor:
        assert batch[0].dtype == torch.float32
        self.seen.append((self.current_epoch, batch[0][:, 0, 0, 0].tolist()))
        return torch.nn.functional.cross_entropy(self.layer(batch[0].flatten(1)), batch[1])

    def validation_step(self, batch: tuple[torch.Tensor, ...], batch_idx: int) -> None:
        self.layer(batch[0].flatten(1))

    def predict_step(self, batch: tuple[torch.Tensor, ...], batch_idx: int) -> torch.Tensor:
        return batch[1]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-2)


def trainer_of(folder: Path, **options: Any) -> Trainer:
    return Trainer(
        default_root_dir=folder,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **{"max_epochs": 2, "enable_checkpointing": False, **options},
    )


class KilledError(Exception):
    pass


class KillingAt(Callback):
    def __init__(self, path: Path, *, epoch: int, batches: int) -> None:
        self.path, self.at = path, (epoch, batches)

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, *args: Any) -> None:
        if (
            trainer.current_epoch,
            trainer.fit_loop.epoch_loop.batch_progress.current.ready,
        ) == self.at:
            trainer.save_checkpoint(self.path)
            raise KilledError


def fitted(
    folder: Path, data: Table, *, checkpoint: Path | None = None, **options: Any
) -> Recording:
    seed_everything(1)
    module = Recording()
    trainer_of(folder, **options).fit(module, data, ckpt_path=checkpoint)
    return module


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after"),
    [pytest.param(0, 0, marks=pytest.mark.long), (2, 1)],
    ids=["no workers", "other workers"],
)
def test_a_kill_within_an_epoch_changes_nothing(
    tmp_path: Path, write_parquet: WriteTable, before: int, after: int
) -> None:
    path = write_parquet(images(), rows=5)
    straight = fitted(tmp_path, table(path, num_workers=before), max_epochs=2)
    killing = KillingAt(tmp_path / "last.ckpt", epoch=1, batches=2)
    with pytest.raises(KilledError):
        fitted(tmp_path, table(path, num_workers=before), callbacks=[killing])
    rest = fitted(tmp_path, table(path, num_workers=after), checkpoint=killing.path)
    assert rest.seen == straight.seen[NUM_BATCHES + 2 :]
    for name, weights in straight.state_dict().items():
        assert torch.equal(weights, rest.state_dict()[name]), name


@pytest.mark.parametrize(
    "options",
    [
        {"limit_train_batches": 2, "limit_val_batches": 1},
        {"val_check_interval": 3, "num_sanity_val_steps": 2},
        {"reload_dataloaders_every_n_epochs": 1},
        {"fast_dev_run": True},
    ],
    ids=["limits", "validation within the epoch", "reloaded loaders", "fast_dev_run"],
)
def test_lightning_trains_without_a_warning(
    tmp_path: Path, write_parquet: WriteTable, options: dict[str, Any]
) -> None:
    module = fitted(tmp_path, table(write_parquet(images(), rows=5)), **options)
    per_epoch = options.get("limit_train_batches", NUM_BATCHES)
    assert len(module.seen) == (1 if "fast_dev_run" in options else 2 * per_epoch)


@pytest.mark.filterwarnings("ignore:You requested to overfit:UserWarning")
def test_overfit_batches_gives_the_same_batches_again(
    tmp_path: Path, write_parquet: WriteTable
) -> None:
    seen = fitted(tmp_path, table(write_parquet(images(), rows=5)), overfit_batches=2).seen
    assert [len(values) for _, values in seen] == [4, 4, 4, 4]


def test_predictions_stand_in_the_order_of_the_paths(
    tmp_path: Path, write_parquet: WriteTable
) -> None:
    data = table(write_parquet(images(num_test=6), rows=5))
    found = trainer_of(tmp_path).predict(Recording(), data)
    assert [label for batch in found or [] for label in batch] == [1, 0, 1, 0, 1, 0]
    assert [path.rpartition(", ")[2] for path in data.predict_paths] == [
        f"row {row}" for row in range(27, 33)
    ]


def test_a_row_to_predict_that_cannot_be_read_is_an_error(
    tmp_path: Path, write_parquet: WriteTable
) -> None:
    data = table(write_parquet(images(num_test=6, broken=(28,)), rows=5))
    with pytest.raises(UnreadableImageError, match="row 28"):
        trainer_of(tmp_path).predict(Recording(), data)


def test_the_manifest_reports_what_was_read(write_delta: WriteTable) -> None:
    path = write_delta(images())
    write_delta(images(), mode="append")
    said = table(path, version=0).describe()
    assert {
        name: said[name]
        for name in ("source", "root", "format", "version", "left_out", "class_names")
    } == {
        "source": "table",
        "root": str(path),
        "format": "delta",
        "version": 0,
        "left_out": 0,
        "class_names": ["a", "b"],
    }
    assert said["counts"] == {"train": 22, "val": 5, "test": 3}
    newest = table(path).describe()
    assert newest["version"] == 1
    assert newest["counts"]["train"] == 44
    assert (
        newest["fingerprint"]
        != said["fingerprint"]
        == table(path, version=0).describe()["fingerprint"]
    )


def test_classes_are_those_of_the_checkpoint(write_parquet: WriteTable) -> None:
    path = write_parquet(images())
    data = table(path)
    state = data.state_dict()
    assert state["class_names"] == ["a", "b"]
    other = table(path)
    other.setup("test")
    other.load_state_dict({**state, "class_names": ["0", "a", "b"]})
    assert other.class_names == ["0", "a", "b"]
    assert {label for _, labels in other.test_dataloader() for label in labels.tolist()} == {1, 2}


def test_a_table_within_another_is_reported(
    write_parquet: WriteTable, caplog: pytest.LogCaptureFixture
) -> None:
    write_parquet(numbers(8), "nf/a.parquet")
    folder = write_parquet(numbers(4), "nf/val/b.parquet")
    data = Table(
        train=str(folder / "nf"),
        val=str(folder / "nf" / ".." / "nf" / "val"),
        features="x",
        label="y",
        num_workers=0,
    )
    data.setup("fit")
    assert data.describe()["counts"] == {"train": 12, "val": 4, "test": 0}
    assert sum(len(batch[0]) for batch in data.train_dataloader()) == 12
    (record,) = caplog.records
    assert "data.init_args.train and data.init_args.val read the same rows" in record.getMessage()


def test_the_samples_of_a_loader_have_names_and_pixels(write_parquet: WriteTable) -> None:
    data = table(write_parquet(images(), rows=5))
    data.setup("fit")
    loader = data.val_dataloader()
    assert not isinstance(loader, list)
    source: Any = loader.dataset.source
    assert [source.name(number).rpartition(", ")[2] for number in (0, 4)] == ["row 22", "row 26"]
    assert source.pixels(0).whole().size == (10, 8)


def test_untransformed_gives_images_and_labels_by_number(write_parquet: WriteTable) -> None:
    source = table(write_parquet(images(), rows=5)).untransformed("train")
    assert isinstance(source, TableImages)
    for number in (3, 21, 0):
        image, label = source[number]
        assert np.array_equal(np.asarray(image), np.asarray(Image.open(io.BytesIO(png(number)))))
        assert label == number % 2
    assert len(source) == NUM_TRAIN
    with pytest.raises(IndexError):
        source[NUM_TRAIN]


def test_evaluation_is_normalised_as_the_preprocessing_says(
    tmp_path: Path, write_parquet: WriteTable
) -> None:
    data = table(write_parquet(images(), rows=5))
    data.setup("validate")
    loader = data.val_dataloader()
    assert not isinstance(loader, list)
    batch = next(iter(loader))
    assert batch[0].dtype == torch.uint8
    data.trainer = trainer_of(tmp_path)
    found = data.on_after_batch_transfer(batch, 0)[0]
    preprocessing = data.preprocessing
    assert preprocessing is not None
    expected = [preprocessing(data.untransformed("val")[number][0]) for number in range(4)]
    assert np.array_equal(found.numpy(), np.stack(expected))


@pytest.mark.parametrize("target", ["class", "value"])
def test_features_come_as_numbers_with_classes_or_values(
    write_parquet: WriteTable, target: str
) -> None:
    columns = {**numbers(), "y": list(range(40))} if target == "class" else numbers()
    columns["val"] = [[float(n), -float(n)] for n in range(40)]
    if target == "class":
        columns["y"] = [number // 4 % 2 for number in range(40)]
    data = table(
        write_parquet(columns), features=["x", "val"], label="y", weight="x", target=target
    )
    data.setup("fit")
    batches = list(data.train_dataloader())
    inputs, labels, weights = (torch.cat(parts) for parts in zip(*batches, strict=True))
    assert inputs.shape == (20, 3)
    assert (inputs[:, 0] == -inputs[:, 2]).all()
    assert torch.equal(weights, inputs[:, 0])
    assert (labels.shape, labels.dtype) == (
        ((20,), torch.int64) if target == "class" else ((20, 1), torch.float32)
    )
    if target == "value":
        assert torch.equal(labels, 2 * inputs[:, :1])
        assert (data.num_classes, data.preprocessing) == (0, None)
    with pytest.raises(DataError, match="no images"):
        data.untransformed("val")


def test_a_broken_image_is_replaced_and_noted(write_parquet: WriteTable) -> None:
    data = table(write_parquet(images(broken=(7,)), rows=5))
    data.setup("fit")
    assert sum(len(batch[0]) for batch in data.train_dataloader()) == NUM_TRAIN
    (defect,) = data.defects.take_noted()
    assert defect.name.endswith("part-0.parquet, row 7")


@pytest.mark.parametrize(
    ("allowed", "epochs"), [(0.04, 1), (0.05, 2)], ids=["too many", "few enough"]
)  # 1 of 22 is 0.045
def test_an_epoch_that_lacked_too_many_rows_ends_the_training_after_its_checkpoint(
    tmp_path: Path, write_parquet: WriteTable, allowed: float, epochs: int
) -> None:
    data = table(write_parquet(images(broken=(7,)), rows=5), max_bad_fraction=allowed)
    options: dict[str, Any] = {"enable_checkpointing": True, "max_epochs": 2}
    if epochs == 1:
        with pytest.raises(
            DataError, match=r"1 of the 22 rows .*max_bad_fraction \(0\.04\) allows"
        ):
            fitted(tmp_path, data, **options)
    else:
        fitted(tmp_path, data, **options)
    assert [path.name for path in tmp_path.rglob("*.ckpt")] == [
        f"epoch={epochs - 1}-step={6 * epochs}.ckpt"
    ]


def test_the_last_epoch_is_checked_as_well(tmp_path: Path, write_parquet: WriteTable) -> None:
    data = table(write_parquet(images(broken=(7,)), rows=5), max_bad_fraction=0.04)
    with pytest.raises(DataError, match="1 of the 22 rows"):
        fitted(tmp_path, data, max_epochs=1)


def test_on_bad_image_error_decodes_all_before_training(
    tmp_path: Path, write_parquet: WriteTable
) -> None:
    data = table(write_parquet(images(broken=(7, 24)), rows=5), on_bad_image="error")
    with pytest.raises(
        DataError, match=r"(?s)2 of 30 rows .*part-0\.parquet, row 7: .*part-0\.parquet, row 24: "
    ):
        fitted(tmp_path, data)


def test_nulls_are_left_out_and_listed_before_training(write_parquet: WriteTable) -> None:
    columns = images()
    columns["image"][2] = None
    columns["label"][4] = None
    path = write_parquet(columns, rows=5)
    data = table(path, max_bad_fraction=0.1)
    data.setup("fit")
    assert [defect.name.rpartition(", ")[2] for defect in data.defects.found] == ["row 2", "row 4"]
    assert data.describe()["left_out"] == 2
    assert sum(len(batch[0]) for batch in data.train_dataloader()) == NUM_TRAIN - 2
    for refused in (table(path), table(path, on_bad_image="error")):
        with pytest.raises(
            DataError, match=r"2 of 30 rows of the table cannot be used.*data\.init_args\.filter"
        ):
            refused.setup("fit")


def test_of_very_many_bad_rows_the_message_says_how_many_are_listed(
    write_parquet: WriteTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_parquet(
        {"x": [float("nan")] * 1200 + [0.0] * 800, "label": [0, 1] * 1000}, rows=2000
    )
    with pytest.raises(DataError) as caught:
        table(path, features="x", label="label").setup("fit")
    assert (len(lines := str(caught.value).splitlines()), lines[-1]) == (22, "  and 1180 more")
    run = SimpleNamespace(folder=tmp_path / "job" / "run")
    run.folder.mkdir(parents=True)
    monkeypatch.setattr("lightkit.images.image_index.runs.current", lambda: run)
    with pytest.raises(
        DataError, match=r"  and 1195 more; the first 1,000 are listed in .*bad_images\.csv$"
    ):
        table(path, features="x", label="label").setup("fit")
    assert len((tmp_path / "job" / "bad_images.csv").read_text().splitlines()) == 1001


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, r"data\.init_args\.path: expected a table"),
        ({"path": "a", "val": "b"}, r"path \('a'\) and data\.init_args\.val are both set"),
        ({"train": "a", "version": 3}, r"data\.init_args\.version: 3 is a state of one table"),
        ({"path": "a", "batch_size": 0}, r"data\.init_args\.batch_size: expected 1 or more, got 0"),
        (
            {"path": "a", "shuffle_buffer": 0},
            r"data\.init_args\.shuffle_buffer: expected 1 or more, got 0",
        ),
        (
            {"path": "a", "num_workers": -1},
            r"data\.init_args\.num_workers: expected 0 or more, got -1",
        ),
        (
            {"path": "a", "max_bad_fraction": 2},
            r"data\.init_args\.max_bad_fraction: expected a number from 0 to 1",
        ),
        ({"path": "a", "val_fraction": 1.0}, r"data\.init_args\.val_fraction"),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, Mapping) else "",
)
def test_arguments_that_cannot_be_meant_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Table(**options)


def test_a_split_without_a_row_is_reported(write_parquet: WriteTable) -> None:
    data = table(write_parquet(images(num_val=5, num_test=0)), test_fraction=0.0)
    with pytest.raises(DataError, match=r"no row is in the test split\. Set data\.init_args\.test"):
        data.setup("test")
    assert data.predict_paths[0].endswith("row 22")


def test_tables_may_be_given_for_each_split(write_parquet: WriteTable) -> None:
    columns = {name: values for name, values in images().items() if name != "split"}
    folder = write_parquet(columns, "a/part.parquet")
    write_parquet({name: values[:6] for name, values in columns.items()}, "b/part.parquet")
    data = Table(train=str(folder / "a"), val=str(folder / "b"), num_workers=0)
    assert data.describe()["counts"] == {"train": 30, "val": 6, "test": 0}
    assert data.describe()["root"] == {"train": str(folder / "a"), "val": str(folder / "b")}


def test_tables_of_splits_that_are_the_same_have_the_same_rows_and_it_is_reported_once(
    write_parquet: WriteTable, caplog: pytest.LogCaptureFixture
) -> None:
    folder = write_parquet(numbers(10), rows=4)
    write_parquet(numbers(6), "other/part.parquet")
    data = Table(
        train=str(folder / "part-0.parquet"), val=str(folder / "part-0.parquet"),
        test=str(folder / "other"), features="x", label="y", filter=[["x", ">=", 3]], num_workers=0,
    )  # fmt: skip
    for stage in ("fit", "test"):
        data.setup(stage)
    batches: dict[str, Any] = {
        "train": data.train_dataloader(), "val": data.val_dataloader(),
        "test": data.test_dataloader()
    }  # fmt: skip
    found = {
        split: sorted(x.item() for batch in loader for x in batch[0])
        for split, loader in batches.items()
    }
    assert found == {"train": list(range(3, 10)), "val": list(range(3, 10)), "test": [3, 4, 5]}
    (record,) = caplog.records
    assert "data.init_args.train and data.init_args.val read the same rows" in record.getMessage()


def test_images_without_labels_or_splits_are_all_for_training(write_parquet: WriteTable) -> None:
    path = write_parquet({"image": [png(number) for number in range(6)]}, rows=4)
    data = table(path, label=None, val_fraction=0.0, test_fraction=0.0)
    data.setup("fit")
    assert data.describe()["counts"] == {"train": 6, "val": 0, "test": 0}
    assert sum(len(batch[0]) for batch in data.train_dataloader()) == 6


MEMORY = """
import resource, sys
from lightkit.data import Table

def epoch(workers, **columns):
    data = Table(
        sys.argv[1],
        num_workers=workers,
        batch_size=8,
        shuffle_buffer=100,
        val_fraction=0,
        test_fraction=0,
        label=None,
        **columns,
    )
    data.setup("fit")
    return sum(len(batch[0]) for batch in data.train_dataloader())

rows = {
    epoch(workers, **columns)
    for workers in (0, 1)
    for columns in ({"image_size": 8}, {"features": "numbers"})
}
peaks = [
    resource.getrusage(who).ru_maxrss / 1024
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
]
print(*rows, *peaks)
"""


def peaks_of(path: Path) -> tuple[int, list[float]]:
    """Rows of an epoch, and greatest memory in MiB of a process that reads them and its worker."""
    command = [sys.executable, "-W", "ignore", "-c", MEMORY, str(path)]
    # which keep memory
    environ = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    ended = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=250, cwd=ROOT, env=environ
    )
    assert ended.returncode == 0, ended.stderr
    rows, *peaks = map(float, ended.stdout.split())
    return int(rows), peaks


@pytest.mark.long
def test_memory_does_not_grow_with_the_table(tmp_path: Path) -> None:
    buffer, each = 100, 120_000  # rows; bytes of an image, and of as many numbers
    random = np.random.default_rng(0)
    numbers = [random.random(each // 4, dtype=np.float32) for _ in range(buffer)]
    columns = pa.table(
        {"image": [png(number, side=200) for number in range(buffer)], "numbers": numbers}
    )
    found = {}
    for times in (2, 20):
        path = tmp_path / f"{times}.parquet"
        with pq.ParquetWriter(
            path, columns.schema, compression="none", use_dictionary=False
        ) as file:
            for _ in range(times):
                file.write_table(columns)
        assert path.stat().st_size > 2 * times * buffer * each
        num_rows, found[times] = peaks_of(path)
        assert num_rows == times * buffer
    # of the table; imports and indexing alone differ by some 40 MiB
    grown_mib = 18 * buffer * 2 * each / 2**20
    for small, large in zip(found[2], found[20], strict=True):
        assert large - small < 0.2 * grown_mib
        assert large / small < 1.1


PROCESSES = """
import json, sys, warnings
from pathlib import Path
from types import SimpleNamespace
import torch
from pytorch_lightning import Trainer, seed_everything
from lightkit.data import Table
from lightkit.models import Regressor

folder, devices = Path(sys.argv[1]), int(sys.argv[2])
warnings.simplefilter("ignore")
def trainer():
    seed_everything(0)
    return Trainer(
        accelerator="cpu",
        devices=devices,
        strategy="ddp_fork" if devices > 1 else "auto",
        max_epochs=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
class Data(Table):
    def teardown(self, stage):
        super().teardown(stage)
        metrics = {name: value.item() for name, value in self.trainer.callback_metrics.items()}
        saved = folder / f"{devices}-{self.trainer.state.fn.value}-{self.trainer.global_rank}.json"
        saved.write_text(json.dumps({"metrics": metrics, "epoch": self.trainer.current_epoch}))
data = Data(
    str(folder / "table"),
    features="x",
    label="y",
    batch_size=4,
    num_workers=0,
    shuffle_buffer=8,
    seed=1,
)
for stage in ("validate", "test", "fit"):
    seed_everything(0)
    getattr(trainer(), stage)(Regressor(), data)
"""


@pytest.mark.long
def test_two_processes_measure_what_one_does_and_train_on_uneven_shares(
    tmp_path: Path, write_parquet: WriteTable
) -> None:
    columns = numbers(41)
    columns["split"] = [
        "test" if number == 0 else split for number, split in enumerate(columns["split"])
    ]
    columns["split"] = [
        "train" if split == "test" and number else split
        for number, split in enumerate(columns["split"])
    ]
    write_parquet(columns, rows=100)  # one row group for two processes; one row to test for two
    for devices in (1, 2):
        command = [sys.executable, "-c", PROCESSES, str(tmp_path), str(devices)]
        ended = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=250, cwd=ROOT
        )
        assert ended.returncode == 0, ended.stderr
    for stage in ("validate", "test", "fit"):
        alone = json.loads((tmp_path / f"1-{stage}-0.json").read_text())
        for rank in (0, 1):
            found = json.loads((tmp_path / f"2-{stage}-{rank}.json").read_text())
            assert found["epoch"] == alone["epoch"]
            if stage != "fit":
                assert alone["metrics"]
                assert found["metrics"] == pytest.approx(alone["metrics"], rel=1e-5)
