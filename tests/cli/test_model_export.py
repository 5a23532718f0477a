"""Restoring: the weights are those of the digest that is reported with them."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch
from pytorch_lightning import LightningModule

from lightkit.cli.model_loading import load_model
from lightkit.export.bare_trainer import build_bare_trainer


class OneLine(LightningModule):
    """A model of one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    trainer = build_bare_trainer()
    trainer.strategy.connect(OneLine())
    trainer.save_checkpoint(tmp_path / "best.ckpt")
    return tmp_path / "best.ckpt"


def test_the_digest_is_that_of_the_file_that_was_loaded(checkpoint: Path) -> None:
    module = OneLine()
    source = load_model(module, None, checkpoint)

    assert source["sha256"] == hashlib.sha256(checkpoint.read_bytes()).hexdigest()
    assert not module.training


def test_an_untrained_model_has_no_digest() -> None:
    assert load_model(OneLine(), None, None) == {}
