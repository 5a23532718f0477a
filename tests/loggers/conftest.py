"""A small training, and a callback that calls loggers as the command line's recorder does."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader, TensorDataset

from lightkit import runs


class Net(pl.LightningModule):
    def __init__(self, lr: float = 0.01, stage: dict[str, int] | None = None) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.layer = torch.nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)  # type: ignore[no-any-return]

    def _loss(self, batch: list[torch.Tensor]) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(self(batch[0]), batch[1])

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        loss = self._loss(batch)
        self.log("train_loss", loss, on_step=True, on_epoch=True)
        self.log("hidden", loss, logger=False)
        return loss

    def validation_step(self, batch: list[torch.Tensor], index: int) -> None:
        self.log("val_loss", self._loss(batch))

    def test_step(self, batch: list[torch.Tensor], index: int) -> None:
        self.log("test/loss", self._loss(batch))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.hparams["lr"])


class CallLoggers(pl.Callback):
    """Calls the optional methods of loggers when the package's docstring says so."""

    def _call(self, trainer: pl.Trainer, name: str, module: pl.LightningModule) -> None:
        for logger in trainer.loggers:
            getattr(logger, name, lambda *_: None)(trainer, module)

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._call(trainer, "record_fit_start", pl_module)

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._call(trainer, "record_fit_end", pl_module)


def loader() -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(7)
    data = TensorDataset(
        torch.randn(32, 4, generator=generator), torch.randint(2, (32,), generator=generator)
    )
    return DataLoader(data, batch_size=8)


def train(folder: Path, logger: Any, *callbacks: pl.Callback, **settings: Any) -> pl.Trainer:
    """Fit a small network for a few epochs."""
    ckpt_path, module = settings.pop("ckpt_path", None), settings.pop("module", None) or Net()
    trainer = pl.Trainer(
        **{
            "accelerator": "cpu",
            "max_epochs": 3,
            "logger": logger,
            "default_root_dir": folder,
            "callbacks": [CallLoggers(), *callbacks],
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "log_every_n_steps": 2,
            **settings,
        }
    )
    with warnings.catch_warnings():
        # 2026-11: Lightning 2.6.6 advises more workers and shorter log intervals, and calls what
        # torch 2.15 deprecates.
        warnings.simplefilter("ignore")
        trainer.fit(
            module,
            loader(),
            loader(),
            ckpt_path=ckpt_path,
            weights_only=False if ckpt_path else None,
        )
    return trainer


@pytest.fixture(name="train")
def _train() -> Callable[..., pl.Trainer]:
    return train


@pytest.fixture(name="net")
def _net() -> type[Net]:
    return Net


@pytest.fixture(name="loader")
def _loader() -> Callable[[], DataLoader[Any]]:
    return loader


@pytest.fixture
def run(tmp_path: Path) -> Iterator[runs.Run]:
    """An active run."""
    folder = tmp_path / "runs" / "daisies" / "20261120-101112-ab12"
    folder.mkdir(parents=True)
    with runs.activate(
        runs.Run(folder=folder, name="daisies", id=folder.name, root=tmp_path / "runs")
    ) as active:
        yield active


@pytest.fixture(scope="session")
def _tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MLflow's tables, which take a second to make, made once."""
    from mlflow.tracking import MlflowClient

    path = tmp_path_factory.mktemp("tables") / "mlflow.db"
    MlflowClient(f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def mlflow_run(run: runs.Run, _tables: Path) -> runs.Run:
    """An active run whose database has its tables."""
    shutil.copyfile(_tables, run.root / "mlflow.db")
    return run
