"""Several ranks, and very many images: the table of one process, in bounded memory."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.cli.commands import ended, needs_horovod, run, started, wait_for, workplace

pytestmark = pytest.mark.slow

MODULES = '''\
"""A model without training: the mean of each channel, as probabilities."""

import time
from pathlib import Path

import torch
from pytorch_lightning import LightningDataModule, LightningModule

from lightkit.data.transforms import preprocessing_of


class Means(LightningModule):
    output_kind = "logits"
    class_names = ["red", "green", "blue"]

    def forward(self, images):
        return images.mean(dim=(2, 3))


class Waiting(Means):
    def predict_step(self, batch, batch_idx):
        if batch_idx == 1:
            Path("in the middle").touch()
            time.sleep(3600)
        return self(batch)


class Images(LightningDataModule):
    preprocessing = preprocessing_of(16)
    batch_size = 2
'''
JOB: dict[str, Any] = {
    "model": "means.Means",
    "data": "means.Images",
    "trainer": {"accelerator": "cpu", "logger": False},
}
RANKS: dict[str, dict[str, Any]] = {
    "ddp": {"accelerator": {"num_processes": 2, "strategy": "ddp"}},
    "horovod": {"accelerator": {"strategy": "horovod", "gpus": 0}, "launch": {"processes": 2}},
}


def place(folder: Path, config: dict[str, Any], *, num_images: int) -> Path:
    """A working directory with that many images, the fourth of them no image."""
    workplace(folder, {**JOB, **config})
    (folder / "means.py").write_text(MODULES, encoding="utf-8")
    (folder / "new").mkdir()
    for number in range(num_images):
        pixels = np.random.default_rng(number).integers(0, 256, (20, 24, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / "new" / f"{number:02}.png")
    if num_images > 3:
        (folder / "new" / "03.png").write_bytes(b"torn")
    return folder


def told(folder: Path) -> str:
    """The table, and nothing beside it."""
    assert not [path for path in folder.rglob("*") if path.name.startswith(".predictions")]
    return (folder / "predictions.csv").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("strategy", "num_images"),
    [("ddp", 13), ("ddp", 1), pytest.param("horovod", 13, marks=needs_horovod)],
    ids=["ddp", "ddp-more-ranks-than-images", "horovod"],
)
def test_two_ranks_write_the_table_of_one(tmp_path: Path, strategy: str, num_images: int) -> None:
    alone = place(tmp_path / "alone", {"trainer": {**JOB["trainer"], "accelerator": "cpu"}}, num_images=num_images)
    several = place(tmp_path / "several", {"trainer": {"logger": False}, **RANKS[strategy]}, num_images=num_images)
    for folder in (alone, several):
        end = run(folder, "predict", "-c", "job.yaml", "new")
        assert end.code == 0, end.err
        assert end.out.count(f"images {num_images}") == 1
    table = told(several)
    assert table == told(alone)
    rows = table.splitlines()[1:]
    assert [row.split(",")[0] for row in rows] == [f"new/{number:02}.png" for number in range(num_images)]
    assert [row.rpartition(",")[2] != "" for row in rows] == [number == 3 for number in range(num_images)]


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL], ids=["terminated", "killed"])
def test_a_predict_that_is_ended_in_the_middle_leaves_no_table(tmp_path: Path, signum: int) -> None:
    folder = place(tmp_path, {"model": "means.Waiting"}, num_images=9)
    with started(folder, "predict", "-c", "job.yaml", "new") as process:
        assert wait_for((folder / "in the middle").exists, process), process.communicate()
        process.send_signal(signum)
        end = ended(process)
    assert end.code == (143 if signum == signal.SIGTERM else -signum)
    assert not (folder / "predictions.csv").exists()
    if signum == signal.SIGTERM:  # a killed one cannot tidy up
        assert not [path for path in folder.rglob("*") if path.name.startswith(".predictions")]


GROWTH = """\
import resource, sys
from pathlib import Path
import numpy as np
import torch
from PIL import Image
from lightkit.callbacks.listed_predictions import ListedPredictions
from lightkit.data.listed import ListedImages
from pytorch_lightning import LightningModule, Trainer

class Means(LightningModule):
    class_names = [str(number) for number in range(1200)]
    def predict_step(self, batch):
        return batch.mean(dim=(2, 3)).repeat(1, 400)

def predict(words):
    writer = ListedPredictions(Path("out.csv"), contact_sheet=Path("out.html"))
    data = ListedImages(words, np_chw, folder=Path("."), batch_size=64)
    Trainer(accelerator="cpu", logger=False, enable_progress_bar=False, enable_checkpointing=False,
            enable_model_summary=False, callbacks=[writer], default_root_dir=".").predict(
        Means(), datamodule=data, return_predictions=False)

def np_chw(image):
    return np.asarray(image, dtype=np.float32).transpose(2, 0, 1)

predict(["few"])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
predict(["many"])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, sum(1 for _ in open("out.csv")))
"""


def test_memory_does_not_grow_with_the_number_of_images(tmp_path: Path) -> None:
    Image.new("RGB", (16, 16), "red").save(tmp_path / "one.png")
    for name, number in (("few", 500), ("many", 4_000)):
        (tmp_path / name).mkdir()
        for at in range(number):
            (tmp_path / name / f"{at:05}-{'of a name that takes memory ' * 4}.png").hardlink_to(tmp_path / "one.png")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", GROWTH], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    shutil.rmtree(tmp_path / "many")
    assert done.returncode == 0, done.stderr
    growth_kib, num_lines = map(int, done.stdout.split())
    assert num_lines == 4_001
    values = 4_000 * 1_200 * 4 / 1024  # KiB, of the numbers alone if all rows were kept
    assert growth_kib < values / 2
