"""A model of lightkit's on a folder of 27 images, alone or on ranks.

Python -m tests.distributed.counting FOLDER.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from pytorch_lightning import Trainer

from lightkit.data import ImageFolder
from lightkit.models import ImageClassifier
from tests.distributed import nets

SIZES = {"train": 4, "val": 27}


class Judge(ImageClassifier):
    """Exchanges a number in each step, and would wait for a rank that has fewer batches."""

    def validation_step(self, batch: Any) -> None:
        super().validation_step(batch)
        loss = torch.nn.functional.cross_entropy(self(batch[0]), batch[1])
        self.log("val/own", loss, on_step=True, on_epoch=True, sync_dist=True)


def images(root: Path) -> Path:
    random = np.random.default_rng(5)
    for split, num in SIZES.items():
        for index in range(num):
            path = root / split / "ab"[index % 2] / f"{index}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(random.integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(path)
    return root


def counted(trainer: Trainer, root: Path, *, batch_size: int) -> dict[str, float]:
    """Give what is logged of the validation images; the shares of two ranks are 14 and 13."""
    torch.manual_seed(3)
    data = ImageFolder(str(root), image_size=32, batch_size=batch_size, seed=0)
    logged = trainer.validate(Judge(), datamodule=data, verbose=False)[0]
    return {name: value for name, value in logged.items() if not name.endswith("_step")}


class WriteLogged(Judge):
    """Writes what each rank has logged into a file."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def on_validation_end(self) -> None:
        found = {name: float(value) for name, value in self.trainer.callback_metrics.items()}
        (self.folder / f"rank-{self.global_rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    folder = Path(sys.argv[1])
    root = images(folder / "images")
    (folder / "alone.json").write_text(
        json.dumps(counted(nets.trainer_of(ranks=1), root, batch_size=26))
    )
    torch.manual_seed(3)
    trainer = Trainer(**nets.QUIET, accelerator="cpu", devices=2, strategy="ddp_fork")
    trainer.validate(
        WriteLogged(folder), datamodule=ImageFolder(str(root), image_size=32, batch_size=13, seed=0)
    )
