"""Predictions as a table in the run folder."""

from __future__ import annotations

import csv
import hmac
import io
import secrets
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import torch
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import BasePredictionWriter
from torch import Tensor

from lightkit.errors import DataError

__all__ = ["PredictionTable"]

_SEAL_BYTES = 32  # of SHA-256


class _Place(NamedTuple):
    """Where a row, or what was predicted for a batch, belongs among those of all processes.

    Args:
        loader: Number of the loader.
        sample: Its index in the dataset, for a batch that of its first; -1 where the loader does not tell.
        turn: Number of the batch on its process.
        rank: The process.
    """

    loader: int
    sample: int
    turn: int
    rank: int


class PredictionTable(BasePredictionWriter):
    """Write what `predict_step` returns, one row a sample, batch by batch.

    A classifier's row has `path` where the data knows it, `label` and `probability`; any other tensor's row has its
    elements. What is no tensor goes to `predictions.pt`, a list with one item a batch, for `torch.load`. Several
    processes make one table together, in the order of the data, each sample once; where a loader does not tell which
    samples it gives, their shares come one batch after another. A table is there once it is complete: until then the
    one before it stays.

    Args:
        folder: Where `predictions.csv` is written; all processes must see it.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(write_interval="batch")
        self.folder = folder
        self.path = folder / "predictions.csv"
        self._rank: int | None = None
        self._files = ExitStack()
        self._writer: Any = None
        self._num_rows = 0
        self._others: list[tuple[_Place, Any]] = []
        self._names: Sequence[str] | None = None
        self._paths: Sequence[str] | None = None
        self._key = b""

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Open the table, aside, and ask the data once for what may take it long to list."""
        self._rank = trainer.global_rank if trainer.world_size > 1 else None
        self.path = self.folder / "predictions.csv"
        if self._rank is not None:
            self._key = trainer.strategy.broadcast(secrets.token_bytes())
        self._share(".pt").unlink(missing_ok=True)  # of a process that was killed
        file = self._files.enter_context(self._share(".csv").open("w", newline="", encoding="utf-8"))
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
        indices = list(batch_indices or ())
        if not isinstance(prediction, Tensor) or prediction.ndim == 0:
            first = min(indices, default=-1)
            self._others.append((_Place(dataloader_idx, first, batch_idx, self._rank or 0), prediction))
            return
        names, paths = self._names, self._paths
        rows = prediction.detach().float().cpu().reshape(len(prediction), -1)
        classes = names if names is not None and rows.shape[1] == len(names) else None
        if self._num_rows == 0:
            values = ["label", "probability"] if classes else [f"prediction_{i}" for i in range(rows.shape[1])]
            self._write(_Place._fields, [*(["path"] if paths else []), *values])
        if not indices and self._rank is None:
            indices = list(range(self._num_rows, self._num_rows + len(rows)))
        for offset, row in enumerate(rows):
            index = indices[offset] if indices else -1
            path = [paths[index] if index >= 0 else ""] if paths else []
            values = [classes[int(row.argmax())], f"{float(row.max()):.6f}"] if classes else row.tolist()
            self._write(_Place(dataloader_idx, index, batch_idx, self._rank or 0), [*path, *values])
        self._num_rows += len(rows)

    def _write(self, place: Sequence[Any], row: Sequence[Any]) -> None:
        self._writer.writerow(row if self._rank is None else [*place, *row])

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Put the table in its place, or what fits into none; rank 0 does once all have written their shares."""
        self._files.close()
        if self._others:
            self._share(".csv").unlink()
            if self._rank is None:
                torch.save([item for _, item in self._others], self._share(".pt"))
            else:
                _save_sealed(self._others, self._share(".pt"), self._key)
            self._others = []
        if self._rank is not None:
            trainer.strategy.barrier("predictions of all ranks")
            if self._rank != 0:
                return
            try:
                _merge(self.folder, trainer.world_size, key=self._key)
            finally:
                for share in self.folder.glob(".predictions-rank=*.aside"):
                    share.unlink()
        whole = _aside(self.folder, None, ".pt")
        if whole.exists():
            self.path.unlink(missing_ok=True)  # an earlier table is not of these predictions
            self.path = self.path.with_suffix(".pt")
        else:
            whole = _aside(self.folder, None, ".csv")
        whole.replace(self.path)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Remove what was written so far: half a table looks like a whole one."""
        self._files.close()
        for suffix in (".csv", ".pt"):
            self._share(suffix).unlink(missing_ok=True)

    def _share(self, suffix: str) -> Path:
        """What this process writes."""
        return _aside(self.folder, self._rank, suffix)


def _aside(folder: Path, rank: int | None, suffix: str) -> Path:
    share = "" if rank is None else f"-rank={rank}"
    return folder / f".predictions{share}{suffix}.aside"


def _merge(folder: Path, num_ranks: int, *, key: bytes) -> None:
    """Make one table, or one list, of the shares of all processes."""
    shares = {rank: _aside(folder, rank, ".pt") for rank in range(num_ranks)}
    if any(share.exists() for share in shares.values()):
        items = [item for rank, share in shares.items() if share.exists() for item in _sealed(share, key, rank=rank)]
        torch.save([item for _, item in sorted(items, key=_order)], _aside(folder, None, ".pt"))
    else:
        _merge_tables(folder, num_ranks)


def _save_sealed(items: list[tuple[_Place, Any]], share: Path, key: bytes) -> None:
    """Save what may be of any class, which only code can load, with a seal that only these processes can make."""
    buffer = io.BytesIO()
    torch.save(items, buffer)
    content = buffer.getbuffer()
    with share.open("wb") as file:
        file.write(hmac.digest(key, content, "sha256"))
        file.write(content)


def _sealed(share: Path, key: bytes, *, rank: int) -> list[tuple[_Place, Any]]:
    """Load a share that one of these processes has saved.

    Raises:
        DataError: If anybody else has: loading it could run code.
    """
    content = memoryview(share.read_bytes())
    seal, rest = content[:_SEAL_BYTES], content[_SEAL_BYTES:]
    if not hmac.compare_digest(seal, hmac.digest(key, rest, "sha256")):
        raise DataError(
            f"{share} is not what rank {rank} has written, and nothing of it was loaded. Predict again, where nobody "
            f"else writes into {share.parent}."
        )
    items: list[tuple[_Place, Any]] = torch.load(io.BytesIO(rest), weights_only=False)
    return items


def _merge_tables(folder: Path, num_ranks: int) -> None:
    header: list[str] = []
    found: list[tuple[_Place, list[str]]] = []
    for rank in range(num_ranks):
        rows = _rows(_aside(folder, rank, ".csv"))
        header = next(rows, header)
        found += [(_Place(*map(int, row[:4])), row[4:]) for row in rows]
    with _aside(folder, None, ".csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        if header:
            writer.writerow(header[4:])
        before = None
        for place, row in sorted(found, key=_order):
            if place.sample < 0 or place[:2] != before:  # a share may have been filled up
                writer.writerow(row)
            before = place[:2]


def _rows(table: Path) -> Iterator[list[str]]:
    with table.open(newline="", encoding="utf-8") as file:
        yield from csv.reader(file)


def _order(item: tuple[_Place, Any]) -> _Place:
    return item[0]
