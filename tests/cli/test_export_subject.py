"""What is found out about a model before anything is written: its samples, and whether they are what they say."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from pytorch_lightning import LightningDataModule, LightningModule
from torch import Tensor
from torch.utils.data import DataLoader

from lightkit.cli.export_options import ExportOptions
from lightkit.cli.export_subject import Exportable, subject_of
from lightkit.errors import ConfigError, ExportError
from lightkit.images.preprocessing import Preprocessing

DONE = Preprocessing(8, (8, 8), (0.5,) * 3, (0.25,) * 3)


class _Stills:
    """Pictures of noise, in two classes."""

    labels = [0] * 8 + [1] * 8

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, at: int) -> tuple[Image.Image, int]:
        noise = np.random.default_rng(at).integers(0, 256, (10, 12, 3), dtype=np.uint8)
        return Image.fromarray(noise), self.labels[at]


class StillsData(LightningDataModule):
    """Prepares the pictures in one way, and may say another."""

    def __init__(self, said: Preprocessing = DONE) -> None:
        super().__init__()
        self.preprocessing = said

    def untransformed(self, _: str) -> _Stills:
        return _Stills()

    def val_dataloader(self) -> DataLoader[Any]:
        rows: Any = [(torch.from_numpy(DONE(image)), label) for image, label in map(_Stills().__getitem__, range(16))]
        return DataLoader(rows, batch_size=8)


class FlatNet(LightningModule):
    """Logits of two classes."""

    output_kind = "logits"

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(192, 2)

    def forward(self, image: Tensor) -> Tensor:
        logits: Tensor = self.layer(image.flatten(1))
        return logits


class DroppingNet(FlatNet):
    """Its dropout stays on."""

    def forward(self, image: Tensor) -> Tensor:
        return super().forward(torch.nn.functional.dropout(image, 0.5))


class NanNet(FlatNet):
    """Gives nothing else than NaN."""

    def forward(self, image: Tensor) -> Tensor:
        return super().forward(image) / 0.0 * 0.0


def found(module: LightningModule, data: LightningDataModule | None, **options: Any) -> Exportable:
    session: Any = SimpleNamespace(ckpt_path=None, base=None, options={})
    return subject_of(session, module, data, ExportOptions(**options))


def test_a_preprocessing_that_the_loader_does_is_told_with_samples_of_every_class() -> None:
    ready = found(FlatNet(), StillsData(), num_samples=4)
    assert ready.subject.metadata.preprocessing == DONE
    assert ready.drawn.samples.images is None
    assert torch.cat([batch[1] for batch in ready.drawn.samples.batches]).tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize("is_in_graph", [False, True], ids=["beside", "in_graph"])
@pytest.mark.parametrize(
    "said",
    [Preprocessing(8, (8, 8), (0.0,) * 3, (0.25,) * 3), Preprocessing(8, (8, 8), (0.5,) * 3, (1.0,) * 3)],
    ids=["mean", "std"],
)
def test_a_preprocessing_that_the_loader_does_not_do_is_refused(said: Preprocessing, is_in_graph: bool) -> None:
    with pytest.raises(ConfigError, match=r"data: its `preprocessing` is not what its loader does: val/\d{5} differs"):
        found(FlatNet(), StillsData(said), num_samples=2, with_preprocessing=is_in_graph)


@pytest.mark.parametrize("module", [DroppingNet(), NanNet()], ids=["random", "nan"])
def test_a_model_that_nothing_can_be_held_against_is_refused_before_a_file_is_written(module: FlatNet) -> None:
    with pytest.raises(ExportError, match=r"Net itself gives (something else each time|NaN): 'output' "):
        found(module, StillsData(), num_samples=2)
