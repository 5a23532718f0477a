"""Decoded images and features that are kept, workers, two ranks, and data without files."""

from __future__ import annotations

import contextlib
import json
import re
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from lightkit.data import ImageFolder
from tests.contract.data_cases import module_workspace, pictures_config, write_given_splits
from tests.contract.examples import MY_PROJECT
from tests.contract.workspace import (
    ForkServer,
    Workspace,
    assert_same_training,
    load_checkpoint,
    read_json,
    read_metrics,
)

CACHES: dict[str, dict[str, Any]] = {
    "auto without room": {"cache": "auto", "cache_limit_gb": 1e-9},
    "disk": {"cache": "disk"},
    "disk again": {"cache": "disk"},
    "memory": {"cache": "memory"},
    "files": {"cache": "none"},
    "two workers": {"cache": "none", "num_workers": 2},
}


def _mapped_files(pid: int) -> set[Path]:
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return {Path(line.split(maxsplit=5)[5]) for line in lines if "/lightkit-" in line}


class Trained:
    """Fits of one config that differ in how images are loaded.

    Args:
        workspace: Where they ran.
    """

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.runs: dict[str, Path] = {}
        self.err: dict[str, str] = {}
        self.pixels: dict[str, tuple[Path, int]] = {}
        self.in_memory: set[Path] = set()
        write_given_splits(workspace.folder / "pictures", per_class=(12, 4, 2))
        for name, init_args in CACHES.items():
            workspace.write(
                f"{name}.yaml",
                {**pictures_config(**init_args), "run": {"name": name.replace(" ", "-")}},
            )
            process = workspace.start("fit", "-c", f"{name}.yaml")
            if name == "memory":
                process.wait_for(partial(self._note_memory, process.pid))
            result = process.result().ok()
            self.runs[name] = next(
                path for path in workspace.runs if path.parent.name == name.replace(" ", "-")
            )
            self.err[name] = result.out + result.err
            for path in self.files():
                self.pixels[name] = (path, path.stat().st_ino)

    def _note_memory(self, pid: int) -> bool:
        with contextlib.suppress(FileNotFoundError):
            self.in_memory = _mapped_files(pid)
        return bool(self.in_memory)

    def files(self) -> list[Path]:
        """Files in the cache on disk that are as large as pixels are, the largest last."""
        folder = self.workspace.home / ".cache" / "lightkit" / "decoded"
        found = (
            [path for path in folder.glob("*") if path.stat().st_size > 10_000]
            if folder.is_dir()
            else []
        )
        return sorted(found, key=lambda path: path.stat().st_size)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, fork_server: ForkServer) -> Iterator[Trained]:
    with module_workspace(tmp_path_factory, fork_server) as workspace:
        yield Trained(workspace)


def _decoded(err: str) -> list[tuple[str, ...]]:
    return re.findall(
        r"data: photos, .* (\d+) found decoded, (\d+) decoded once .* in /.*/lightkit", err
    )


def test_photos_are_decoded_once_and_found_by_the_next_fit(trained: Trained) -> None:
    assert _decoded(trained.err["disk"]) == [("0", "24"), ("0", "8")]
    assert _decoded(trained.err["disk again"]) == [("24", "0"), ("8", "0")]
    assert trained.pixels["disk"] == trained.pixels["disk again"]


@pytest.mark.parametrize("other", ["disk again", "memory", "auto without room"])
def test_where_decoded_photos_are_kept_changes_no_number(other: str, trained: Trained) -> None:
    assert_same_training(trained.runs["disk"], trained.runs[other])


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("disk", "disk"),
        ("memory", "memory"),
        ("auto without room", "nowhere"),
        ("files", "nowhere"),
    ],
)
def test_the_manifest_says_where_decoded_photos_were_kept(
    name: str, kept: str, trained: Trained
) -> None:
    assert read_json(trained.runs[name] / "manifest.json")["data"]["cache"]["kept"] == kept


def test_photos_decoded_to_memory_are_gone_after_the_fit(trained: Trained) -> None:
    assert trained.in_memory
    assert not any(path.exists() for path in trained.in_memory)


def test_evaluation_from_decoded_photos_equals_that_from_the_files(trained: Trained) -> None:
    found = []
    for name in ("disk", "files"):
        result = trained.workspace.run(
            "validate", "-c", f"{name}.yaml", "--ckpt_path",
            str(trained.runs["files"] / "checkpoints" / "last.ckpt"),
            "--output", "json",
        )  # fmt: skip
        result.ok()
        found.append(re.findall(r'"val/loss": ([\d.e-]+)', result.out))
    assert found[0] == found[1] != []


def test_a_damaged_file_of_decoded_photos_is_made_again(trained: Trained) -> None:
    path, _ = trained.pixels["disk"]
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 255
    path.unlink()
    path.write_bytes(content)
    result = trained.workspace.run(
        "fit", "-c", "disk.yaml", "--run.name=damaged", "--run.resume=never"
    ).ok()
    assert _decoded(result.out + result.err) == [("23", "1"), ("8", "0")]
    (run,) = [path for path in trained.workspace.runs if path.parent.name == "damaged"]
    assert_same_training(trained.runs["disk"], run)


def test_the_number_of_workers_changes_no_weight(trained: Trained) -> None:
    assert_same_training(trained.runs["files"], trained.runs["two workers"])


def test_the_choice_of_workers_is_reported(workspace: Workspace) -> None:
    write_given_splits(workspace.folder / "pictures", per_class=(4, 2, 1))
    workspace.write("job.yaml", pictures_config(num_workers="auto", trainer={"fast_dev_run": True}))
    result = workspace.run("fit", "-c", "job.yaml").ok()
    choices = re.findall(
        r"data: .*(?:worker process|training process) .*load.*|data: the training process loads.*",
        result.err,
    )
    assert len(choices) == 1, result.err
    assert "core" in choices[0]
    assert "cpu" in choices[0]


def test_auto_decodes_each_time_where_a_training_reads_each_photo_once(
    workspace: Workspace,
) -> None:
    write_given_splits(workspace.folder / "pictures", per_class=(4, 2, 1))
    workspace.write("job.yaml", pictures_config(trainer={"max_epochs": 1}))
    result = workspace.run("fit", "-c", "job.yaml").ok()
    assert re.search(
        r"data: photos are decoded each time.*data\.init_args\.cache", result.out + result.err
    )
    assert read_json(workspace.only_run / "manifest.json")["data"]["cache"]["kept"] == "nowhere"


class Frozen:
    """Fits of a frozen backbone from features, from images, and from features, interrupted."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        workspace.write("my_project.py", MY_PROJECT)
        write_given_splits(workspace.folder / "pictures", per_class=(12, 4, 2))
        config = pictures_config(augment=False, cache="none", trainer={"max_epochs": 3})
        note = {"class_path": "my_data.NoteBatches"}
        self.shapes: dict[str, set[tuple[int, int]]] = {}
        for name in ("once", "each_step"):
            init_args = {"learning_rate": 0.01, "freeze": "backbone", "features": name}
            model = {"class_path": "ImageClassifier", "init_args": init_args}
            workspace.write(f"{name}.yaml", {**config, "model": model, "callbacks": {"note": note}})
            workspace.run("fit", "-c", f"{name}.yaml").ok()
            notes = [
                json.loads(line)
                for line in (workspace.folder / "batches.jsonl").read_text().splitlines()
            ]
            (workspace.folder / "batches.jsonl").unlink()
            self.shapes[name] = {(note["epoch"], len(note["shapes"][0])) for note in notes}
        sender = {
            "class_path": "my_project.SendSignal",
            "init_args": {"hook": "on_train_batch_start", "step": 5},
        }
        workspace.write("killed.yaml", {"callbacks": {"sender": sender}, "run": {"name": "killed"}})
        assert workspace.run("fit", "-c", "once.yaml", "-c", "killed.yaml").code == 75
        workspace.run("fit", "-c", "once.yaml", "-c", "killed.yaml").ok()

    def run(self, name: str) -> Path:
        """The run's folder."""
        (found,) = [path for path in self.workspace.runs if path.parent.name == name]
        return found


@pytest.fixture(scope="module")
def frozen(tmp_path_factory: pytest.TempPathFactory, fork_server: ForkServer) -> Iterator[Frozen]:
    with module_workspace(tmp_path_factory, fork_server) as workspace:
        yield Frozen(workspace)


def test_training_a_head_on_features_gives_the_numbers_of_training_on_images(
    frozen: Frozen,
) -> None:
    features, images = read_metrics(frozen.run("once")), read_metrics(frozen.run("each_step"))
    assert len(features) == len(images) == 3
    for name in ("train/loss", "val/loss", "val/accuracy"):
        assert [float(row[name]) for row in features] == pytest.approx(
            [float(row[name]) for row in images], rel=1e-4
        )


def test_callbacks_see_features_in_batches_and_images_where_that_is_asked(frozen: Frozen) -> None:
    assert frozen.shapes["each_step"] == {(epoch, 4) for epoch in range(3)}
    assert {(1, 2), (2, 2)} <= frozen.shapes["once"]


def test_a_rate_of_features_is_named_so_and_one_of_images_is_not(frozen: Frozen) -> None:
    rates = {
        name: read_json(frozen.run(name) / "summary.json")["throughput"]
        for name in ("once", "each_step")
    }
    assert rates["once"]["features_per_s"] == rates["once"]["samples_per_s"] > 0
    assert "features_per_s" not in rates["each_step"]
    for name, is_of_features in (("once", True), ("each_step", False)):
        frozen.workspace.run("report", str(frozen.run(name)), "-o", f"{name}.html").ok()
        page = (frozen.workspace.folder / f"{name}.html").read_text(encoding="utf-8")
        assert ("features/s, which were computed once" in page) == is_of_features
        assert (" samples/s" in page) != is_of_features


def test_a_killed_training_on_features_goes_on_to_the_same_weights(frozen: Frozen) -> None:
    assert_same_training(frozen.run("once"), frozen.run("killed"))


COMPUTED = re.compile(r"features of the frozen backbone: (\d+) images, (\d+) found, (\d+) computed")


def _computed(err: str) -> list[tuple[int, ...]]:
    return [tuple(map(int, found)) for found in COMPUTED.findall(err)]


def test_features_are_found_on_disk_by_the_next_fit(frozen: Frozen) -> None:
    for extra, expected in (
        (["--model.learning_rate=0.02"], [(24, 24, 0), (8, 8, 0)]),
        (["--data.image_size=40"], [(24, 0, 24), (8, 0, 8)]),
    ):
        result = frozen.workspace.run(
            "fit", "-c", "once.yaml", "--run.name=next", "--run.resume=never", *extra
        ).ok()
        assert sorted(_computed(result.err), reverse=True) == expected, result.err


@pytest.mark.parametrize("num_workers", [0, 1])
def test_features_that_a_killed_fit_has_computed_are_not_computed_again(
    num_workers: int, workspace: Workspace
) -> None:
    write_given_splits(workspace.folder / "pictures", per_class=(100, 1, 1))
    config = pictures_config(augment=False, cache="none", num_workers=num_workers, image_size=160)
    model = {
        "class_path": "ImageClassifier",
        "init_args": {"backbone": "resnet18", "freeze": "backbone"},
    }
    workspace.write(
        "job.yaml", {**config, "model": model, "trainer": {**config["trainer"], "max_epochs": 1}}
    )

    def has_computed() -> bool:
        files = workspace.home.glob(".cache/lightkit/features/*.rows")
        crcs = [np.frombuffer(path.read_bytes()[: 4 * 200], np.uint32) for path in files]
        return any(32 <= np.count_nonzero(found) < 200 for found in crcs)

    process = workspace.start("fit", "-c", "job.yaml", "--trainer.limit_val_batches=0")
    process.wait_for(has_computed)
    process.signal_group(signal.SIGKILL)
    process.wait()
    result = workspace.run("fit", "-c", "job.yaml", "--trainer.limit_val_batches=0").ok()
    num, num_found, num_computed = _computed(result.err)[-1]
    assert num == num_found + num_computed == 200
    assert num_found >= 32
    assert num_computed


def test_a_checkpoint_of_a_training_on_features_is_that_of_a_training_on_images(
    frozen: Frozen,
) -> None:
    states = [
        load_checkpoint(frozen.run(name) / "checkpoints" / "last.ckpt")
        for name in ("once", "each_step")
    ]
    shapes = [
        {key: tuple(value.shape) for key, value in state["state_dict"].items()} for state in states
    ]
    assert shapes[0] == shapes[1]


def test_features_that_cannot_be_kept_are_reported(workspace: Workspace) -> None:
    write_given_splits(workspace.folder / "pictures", per_class=(4, 2, 1))
    init_args = {"freeze": "backbone", "features": "once"}
    config = pictures_config(augment=True, cache="none", trainer={"max_epochs": 1})
    workspace.write(
        "job.yaml", {**config, "model": {"class_path": "ImageClassifier", "init_args": init_args}}
    )
    result = workspace.run("fit", "-c", "job.yaml").ok()
    assert re.search(r"warning: .*model\.init_args\.features.*augment", result.err)


TWO_RANKS = '''\
"""Writes the samples of each rank of two, of three epochs, for a folder and for a table."""

import json
import sys

import torch
from pytorch_lightning import LightningModule, Trainer

from lightkit.data import ImageFolder, Table


class Note(LightningModule):
    def __init__(self, name):
        super().__init__()
        self.name, self.notes = name, []
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch, index):
        weights = batch[2].tolist() if len(batch) > 2 else [1] * len(batch[0])
        samples = [round(x, 4) for x in batch[0].flatten(1).double().mean(1).tolist()]
        kept = [sample for sample, weight in zip(samples, weights) if weight]
        self.notes.append([self.current_epoch, len(batch[0]), kept])
        return self.layer(batch[0].flatten(1).mean(1, keepdim=True)).mean()

    def on_train_end(self):
        with open(f"{self.name}-{self.global_rank}.json", "w") as file:
            json.dump(self.notes, file)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


shared = dict(batch_size=4, num_workers=0, seed=1, image_size=16)
given = {
    "folder": lambda: ImageFolder("pictures", augment=False, cache="none", **shared),
    "table": lambda: Table("table", features="x", label="y", shuffle_buffer=8, **shared),
}
for name, make in given.items():
    Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp_fork",
        max_epochs=3,
        logger=False,
        limit_val_batches=0,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    ).fit(Note(name), make())
'''


@pytest.fixture(scope="module")
def two_ranks(
    tmp_path_factory: pytest.TempPathFactory, fork_server: ForkServer
) -> Iterator[Workspace]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with module_workspace(tmp_path_factory, fork_server) as workspace:
        write_given_splits(workspace.folder / "pictures", per_class=(11, 1, 1))
        (workspace.folder / "table").mkdir()
        splits = ["train"] * 22 + ["val"]
        columns = {
            "x": [float(x) for x in range(23)],
            "y": [float(x) for x in range(23)],
            "split": splits,
        }
        pq.write_table(pa.table(columns), workspace.folder / "table" / "a.parquet")
        workspace.write("two_ranks.py", TWO_RANKS)
        workspace.run(script="two_ranks.py").ok()
        yield workspace


@pytest.mark.parametrize("name", ["folder", "table"])
def test_each_sample_is_in_one_batch_of_one_rank_in_each_epoch(
    name: str, two_ranks: Workspace
) -> None:
    ranks = [read_json(two_ranks.folder / f"{name}-{rank}.json") for rank in (0, 1)]
    epochs = [
        sorted(sample for notes in ranks for at, _, kept in notes if at == epoch for sample in kept)
        for epoch in range(3)
    ]
    assert len(epochs[0]) == len(set(epochs[0])) == 22
    assert epochs[0] == epochs[1] == epochs[2]
    orders = [[kept for at, _, kept in ranks[0] if at == epoch] for epoch in range(3)]
    assert orders[0] != orders[1] != orders[2]


@pytest.mark.parametrize("name", ["folder", "table"])
def test_ranks_have_equally_many_batches_of_nearly_the_same_size(
    name: str, two_ranks: Workspace
) -> None:
    sizes = [
        [size for _, size, _ in read_json(two_ranks.folder / f"{name}-{rank}.json")]
        for rank in (0, 1)
    ]
    assert len(sizes[0]) == len(sizes[1])
    assert all(abs(one - other) <= 1 for one, other in zip(*sizes, strict=True))


def test_photos_decoded_to_memory_by_a_killed_fit_go_at_the_next_start(
    workspace: Workspace,
) -> None:
    write_given_splits(workspace.folder / "pictures", per_class=(10, 3, 1))
    hold = {"callbacks": {"hold": {"class_path": "my_project.Hold"}}}
    workspace.write("job.yaml", {**pictures_config(cache="memory"), **hold})
    (workspace.folder / "hold").write_text("3", encoding="utf-8")
    process = workspace.start("fit", "-c", "job.yaml")
    process.wait_for((workspace.folder / "held").exists)
    kept = _mapped_files(process.pid)
    process.signal_group(signal.SIGKILL)
    process.wait()
    assert any(path.exists() for path in kept)
    (workspace.folder / "hold").unlink()
    workspace.run("fit", "-c", "job.yaml", "--run.name=next").ok()
    assert not any(path.exists() for path in kept)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory, fork_server: ForkServer) -> Iterator[Workspace]:
    with module_workspace(tmp_path_factory, fork_server) as workspace:
        config = pictures_config(trainer={"max_epochs": 1})
        init_args = {
            "num_images": 40,
            "drawn_size": 24,
            "image_size": 16,
            "num_workers": 0,
            "cache": "none",
        }
        workspace.write(
            "job.yaml", {**config, "data": {"class_path": "DrawnFlowers", "init_args": init_args}}
        )
        for _ in range(2):
            workspace.run("fit", "-c", "job.yaml", "--run.resume=never").ok()
        yield workspace


def test_drawn_flowers_are_drawn_once_into_the_users_cache(drawn: Workspace) -> None:
    first, second = (read_json(run / "manifest.json")["data"] for run in drawn.runs)
    assert first["source"] == "drawn"
    assert sum(first["counts"].values()) == 40
    assert len(first["class_names"]) == 5
    assert Path(first["root"]).is_relative_to(drawn.home / ".cache")
    assert first["fingerprint"] == second["fingerprint"]
    assert_same_training(*drawn.runs)


def test_a_regressor_learns_fahrenheit_and_celsius(workspace: Workspace) -> None:
    config = {
        "seed_everything": 7,
        "model": {"class_path": "Regressor"},
        "data": {"class_path": "Temperatures"},
    }
    trainer = {"accelerator": "cpu", "max_epochs": 6, "logger": False}
    workspace.write("job.yaml", {**config, "trainer": trainer})
    workspace.run("fit", "-c", "job.yaml").ok()
    errors = [float(row["val/mae"]) for row in read_metrics(workspace.only_run)]
    assert errors[-1] < 1 < errors[0], "degrees; the values are spread over some 200"
    assert read_json(workspace.only_run / "manifest.json")["data"]["counts"] == {
        "train": 1000,
        "val": 250,
        "test": 250,
    }


def test_an_epoch_has_each_training_image_once(tmp_path: Path) -> None:
    for split, count in (("train", 20), ("val", 4)):
        for number in range(count):
            path = tmp_path / split / ("reds", "blues")[number % 2] / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (40, 40), (10 * number, 0, 0)).save(path)
    data = ImageFolder(str(tmp_path), image_size=32, batch_size=6, num_workers=0, augment=False)
    data.prepare_data()
    data.setup("fit")
    for _ in range(2):
        loader: Any = data.train_dataloader()
        reds = [int(image[0, 16, 16]) for images, _ in loader for image in images]
        assert sorted(reds) == [10 * number for number in range(20)]


OWN_SAMPLER = '''\
"""A sampler of one's own, and every third sample augmented in the process itself."""

import torch
from pytorch_lightning import LightningDataModule, LightningModule
from torch.utils.data import DataLoader, SubsetRandomSampler


class Samples:
    def __len__(self):
        return 100

    def __getitem__(self, index):
        noise = torch.randn(1) if index % 3 == 0 else torch.zeros(1)
        return noise, index


class Data(LightningDataModule):
    def __init__(self, num_workers: int = 0):
        super().__init__()
        self.num_workers = num_workers

    def prepare_data(self):
        torch.rand(3)  # on rank 0 alone

    def load(self, indices):
        sampler = SubsetRandomSampler(indices)
        return DataLoader(Samples(), batch_size=5, sampler=sampler, num_workers=self.num_workers)

    def train_dataloader(self):
        return self.load(range(80))

    def val_dataloader(self):
        return self.load(range(80, 100))

    test_dataloader = val_dataloader


class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen = []

    def validation_step(self, batch, batch_idx):
        self.log("val/index", batch[1].double().mean(), sync_dist=True)

    def test_step(self, batch, batch_idx):
        self.log("test/index", batch[1].double().mean(), sync_dist=True)

    def training_step(self, batch, batch_idx):
        self.seen += batch[1].tolist()
        return self.layer(batch[0]).mean()

    def on_train_end(self):
        with open(f"seen-{self.global_rank}.json", "w") as file:
            file.write(str(self.seen))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)
'''


@pytest.mark.long
@pytest.mark.parametrize("num_workers", [0, 1], ids=["in-process", "worker"])
def test_an_own_sampler_gives_each_sample_to_one_rank_in_each_epoch(
    num_workers: int, workspace: Workspace
) -> None:
    workspace.write("own.py", OWN_SAMPLER)
    workspace.write(
        "job.yaml",
        "model: own.Model\n"
        f"data: {{class_path: own.Data, init_args: {{num_workers: {num_workers}}}}}\n"
        "trainer: {max_epochs: 4, accelerator: cpu, devices: 2, strategy: ddp}\n",
    )
    run = workspace.fit("-c", "job.yaml")
    ranks = [read_json(workspace.folder / f"seen-{rank}.json") for rank in (0, 1)]
    epochs = [[*ranks[0][at : at + 40], *ranks[1][at : at + 40]] for at in range(0, 160, 40)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(80))] * 4
    assert len({tuple(epoch) for epoch in epochs}) == 4
    # the mean of the numbers from 80 to 99; an index that counts twice, or never, moves it
    assert {float(row["val/index"]) for row in read_metrics(run)} == {89.5}
    workspace.run("test", "--run", "latest").ok()
    assert read_json(run / "summary.json")["stages"]["test"] == {"test/index": 89.5}
