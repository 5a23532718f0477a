"""A database of MLflow with its tables, and models of the kinds that people log."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import mlflow
import pytest
import torch
from torch import nn


@pytest.fixture(scope="session")
def _tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MLflow's tables, which take a second to make, made once."""
    path = tmp_path_factory.mktemp("tables") / "mlflow.db"
    mlflow.MlflowClient(f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def database(tmp_path: Path, _tables: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a database in ``runs``, where MLflow's own functions log too.

    Its run root is ``runs``.
    """
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    (tmp_path / "runs").mkdir()
    shutil.copyfile(_tables, tmp_path / "runs" / "mlflow.db")
    monkeypatch.chdir(tmp_path)
    uri, before = f"sqlite:///{tmp_path}/runs/mlflow.db", mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(uri)
    mlflow.create_experiment("tests", artifact_location=str(tmp_path / "runs" / "mlflow-artifacts"))
    mlflow.set_experiment("tests")
    yield uri
    mlflow.set_tracking_uri(before)


class SmallResNet(nn.Module):
    """A residual network for 28x28 pictures, as in articles on FashionMNIST.

    Args:
        channels: 1 for grey pictures, 3 for coloured ones.
    """

    def __init__(self, channels: int = 1) -> None:
        super().__init__()
        self.stem = nn.Conv2d(channels, 4, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.block = nn.Conv2d(4, 4, 3, padding=1)
        self.head = nn.Linear(4, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.stem(x)))
        x = torch.relu(x + self.block(x))
        pooled: torch.Tensor = self.head(x.mean((2, 3)).flatten(1))
        return pooled


@pytest.fixture
def resnet() -> Callable[[int], SmallResNet]:
    """Makes a network in eval mode with the same weights each time."""

    def make(channels: int) -> SmallResNet:
        torch.manual_seed(5)
        return SmallResNet(channels).eval()

    return make
