"""What the tests of the data share: a user's callbacks and models, configs on small pictures."""

from __future__ import annotations

import contextlib
import csv
import io
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.contract.examples import PICTURES
from tests.contract.workspace import ForkServer, Workspace

SHARED = Path(__file__).parents[2].parent / "shared" / "data"

MY_DATA = '''\
"""Callbacks and a model of a user who looks at the data."""

import json
from pathlib import Path

import torch
from pytorch_lightning import Callback, LightningModule


class Lose(Callback):
    """Deletes files, and overwrites others with text, before an epoch.

    Args:
        delete: Patterns of the files to delete.
        spoil: Patterns of the files to overwrite.
        epoch: The epoch, counted from 0.
        before_predict: Patterns of the files to delete before predictions.
    """

    def __init__(
        self,
        delete: list[str] = (),
        spoil: list[str] = (),
        epoch: int = 1,
        before_predict: list[str] = (),
    ):
        self.delete, self.spoil, self.epoch, self.before_predict = (
            delete,
            spoil,
            epoch,
            before_predict,
        )

    def on_predict_start(self, trainer, module):
        for pattern in self.before_predict:
            for path in Path().glob(pattern):
                path.unlink()

    def on_train_epoch_start(self, trainer, module):
        if trainer.current_epoch == self.epoch:
            for pattern in self.delete:
                for path in Path().glob(pattern):
                    path.unlink()
            for pattern in self.spoil:
                for path in Path().glob(pattern):
                    path.write_text("no picture")


class NoteBatches(Callback):
    """Writes the shapes of the tensors of each training batch, and the weights, to
    batches.jsonl."""

    def on_train_batch_start(self, trainer, module, batch, index):
        note = {"epoch": trainer.current_epoch, "shapes": [list(part.shape) for part in batch]}
        if len(batch) > 2:
            note["weights"] = batch[2].tolist()
        with open("batches.jsonl", "a") as file:
            file.write(json.dumps(note) + chr(10))


class Plain(LightningModule):
    """A classifier of pictures that takes images and labels."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 2)

    def training_step(self, batch, index):
        return torch.nn.functional.cross_entropy(self.layer(batch[0].mean((2, 3))), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)
'''


def pictures_config(
    *, trainer: Mapping[str, Any] | None = None, **init_args: Any
) -> dict[str, Any]:
    """`PICTURES` with other arguments of ImageFolder and of the trainer."""
    data = {
        "class_path": "ImageFolder",
        "init_args": {**PICTURES["data"]["init_args"], **init_args},
    }
    return {**PICTURES, "data": data, "trainer": {**PICTURES["trainer"], **(trainer or {})}}


def write_given_splits(folder: Path, *, per_class: tuple[int, int, int] = (16, 4, 3)) -> Path:
    """Write PNG files of noise below train/, val/ and test/, of the classes `reds` and `blues`."""
    random = np.random.default_rng(11)
    for split, count in zip(("train", "val", "test"), per_class, strict=True):
        for channel, name in ((0, "reds"), (2, "blues")):
            for index in range(count):
                path = folder / split / name / f"{index}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                pixels = random.integers(0, 160, (40, 40, 3), dtype=np.uint8)
                pixels[..., channel] += 90
                Image.fromarray(pixels).save(path)
    return folder


def png(number: int, *, side: int = 12) -> bytes:
    """Encode noise that is different for each number."""
    pixels = np.random.default_rng(number).integers(0, 256, (side, side + 2, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format="PNG")
    return file.getvalue()


def read_bad_images(path: Path) -> list[dict[str, str]]:
    """Read a list of bad images."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@contextlib.contextmanager
def module_workspace(
    tmp_path_factory: pytest.TempPathFactory,
    fork_server: ForkServer,
    fill: Callable[[Workspace], Any] | None = None,
) -> Iterator[Workspace]:
    """A working directory for the tests of a module, with `my_data.py`."""
    workspace = Workspace(tmp_path_factory.mktemp("data") / "work", fork_server)
    workspace.write("my_data.py", MY_DATA)
    try:
        if fill is not None:
            fill(workspace)
        yield workspace
    finally:
        workspace.close()
