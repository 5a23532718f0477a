"""What the folder of a recorded model holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch

from lightkit.loggers.saved_model import FirstBatch, save_model

pytestmark = [
    pytest.mark.slow,  # mlflow takes 2 s to import
    # 2026-11: mlflow 3.17 says so to SQLAlchemy 2.1 while it is imported, which then fails for good.
    # 2026-11: mlflow 3.17 says so of type hints of its own, while it is imported.
    pytest.mark.filterwarnings("ignore:.*Any type hint is inferred as AnyType:UserWarning"),
    pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy:DeprecationWarning"),
]

SECRET = "canary-7f3a"


class Keyed(pl.LightningModule):
    def __init__(self, key: str, nested: dict[str, Any], inner: pl.LightningModule | None = None) -> None:
        super().__init__()
        self.save_hyperparameters(ignore="inner")
        self.inner = inner
        self.layer = torch.nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)  # type: ignore[no-any-return]


def mask(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: mask(child) for key, child in value.items()}
    return "${env:KEY}" if value == SECRET else value


def holds_secret(folder: Path) -> list[str]:
    files = [file for file in sorted(folder.rglob("*")) if file.is_file()]
    assert files
    return [file.name for file in files if SECRET.encode() in file.read_bytes()]


def test_a_recorded_model_holds_no_secret_and_the_module_keeps_it(tmp_path: Path) -> None:
    module = Keyed(SECRET, {"deep": SECRET}, Keyed(SECRET, {}))
    weights = module.layer.weight
    save_model(module, tmp_path / "plain", first_batch=FirstBatch(module))
    assert holds_secret(tmp_path / "plain") == ["model.pth"]
    save_model(module, tmp_path / "model", first_batch=FirstBatch(module), mask=mask)
    assert holds_secret(tmp_path / "model") == []
    assert module.layer.weight is weights
    assert module.hparams == {"key": SECRET, "nested": {"deep": SECRET}}
    assert module.hparams_initial == module.hparams
    loaded = torch.load(tmp_path / "model" / "data" / "model.pth", weights_only=False)
    assert loaded.hparams.key == "${env:KEY}"
    assert loaded.hparams.nested == {"deep": "${env:KEY}"}
    assert type(loaded.hparams) is type(module.hparams)
