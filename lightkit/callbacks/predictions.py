"""Predictions as a table in the run folder."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import BasePredictionWriter
from torch import Tensor

__all__ = ["PredictionTable"]


class PredictionTable(BasePredictionWriter):
    """Write what `predict_step` returns, one row a sample, batch by batch.

    A classifier's row has `path` where the data knows it, `label` and `probability`; any other tensor's row has its
    elements. What is no tensor goes to `predictions.pt`, a list with one item a batch, for `torch.load`. With several
    processes each writes its share to a file of its own, `predictions-rank=1.csv`. A table is there once it is
    complete: until then the one before it stays.

    Args:
        folder: Where `predictions.csv` is written.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(write_interval="batch")
        self.folder = folder
        self.path = folder / "predictions.csv"
        self._files = ExitStack()
        self._writer: Any = None
        self._num_rows = 0
        self._others: list[Any] = []
        self._names: Sequence[str] | None = None
        self._paths: Sequence[str] | None = None

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Open the table, aside, and ask the data once for what may take it long to list."""
        share = f"-rank={trainer.global_rank}" if trainer.world_size > 1 else ""
        self.path = self.folder / f"predictions{share}.csv"
        file = self._files.enter_context(self._aside.open("w", newline="", encoding="utf-8"))
        self._writer, self._num_rows, self._others = csv.writer(file), 0, []
        self._names = getattr(trainer.datamodule, "class_names", None)  # type: ignore[attr-defined]
        self._paths = getattr(trainer.datamodule, "predict_paths", None)  # type: ignore[attr-defined]

    def write_on_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        prediction: Any,
        batch_indices: Sequence[int] | None,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int,
    ) -> None:
        """Append a row for each sample of the batch."""
        if not isinstance(prediction, Tensor) or prediction.ndim == 0:
            self._others.append(prediction)
            return
        names, paths = self._names, self._paths
        rows = prediction.detach().float().cpu().reshape(len(prediction), -1)
        classes = names if names is not None and rows.shape[1] == len(names) else None
        if self._num_rows == 0:
            values = ["label", "probability"] if classes else [f"prediction_{i}" for i in range(rows.shape[1])]
            self._writer.writerow([*(["path"] if paths else []), *values])
        for offset, row in enumerate(rows):
            index = batch_indices[offset] if batch_indices else self._num_rows + offset
            path = [paths[index]] if paths else []
            values = [classes[int(row.argmax())], f"{float(row.max()):.6f}"] if classes else row.tolist()
            self._writer.writerow([*path, *values])
        self._num_rows += len(rows)

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Put the table in its place, or what fits into none."""
        self._files.close()
        if self._others:
            self._aside.unlink()
            self.path.unlink(missing_ok=True)  # an earlier table is not of these predictions
            self.path = self.path.with_suffix(".pt")
            torch.save(self._others, self._aside)
            self._others = []
        self._aside.replace(self.path)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Remove what was written so far: half a table looks like a whole one."""
        self._files.close()
        self._aside.unlink(missing_ok=True)

    @property
    def _aside(self) -> Path:
        return self.path.with_name(f".{self.path.name}.aside")
