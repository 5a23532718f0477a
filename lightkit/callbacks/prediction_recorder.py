"""Records what a model predicted for each sample of a test, and of the best epoch's validation, with thumbnails."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.trainer.states import TrainerFn
from torch import Tensor

from lightkit import runs
from lightkit.callbacks.checkpoint_io import read_checkpoint
from lightkit.callbacks.class_names import names_of_outputs
from lightkit.callbacks.resume import gather, list_indices
from lightkit.errors import DataError
from lightkit.reports.figures import to_pixels
from lightkit.reports.pages import draw_predictions
from lightkit.reports.predictions import (
    Predictions,
    Split,
    least_certain,
    predictions_path,
    thumbnail_path,
    worst_errors,
    write_predictions,
)
from lightkit.task import UNDECLARED, Task, find_improbable, task_of

log = logging.getLogger(__name__)
_NUM_WORST = 40
_NUM_THUMBNAILS = 60
# about 5 kB a thumbnail
_LONG_SIDE = 160
_JPEG_QUALITY = 80


def reduce_outputs(outputs: Any, task: Task = UNDECLARED) -> tuple[Tensor, int] | None:
    """Reduce the outputs of a `test_step` or `validation_step`, without waiting for the device.

    Args:
        outputs: A mapping with ``target`` ``(batch,)`` and ``logits`` or ``probabilities`` ``(batch, classes)``, or
            with ``target`` and ``prediction``, both ``(batch,)`` or ``(batch, 1)``. ``weights`` ``(batch,)`` may be
            there as well: samples of weight 0 do not count.
        task: Of the model. One logit or probability a sample, ``(batch,)`` or ``(batch, 1)``, is of the second of two
            classes where that is declared. Of labels that are independent of each other nothing is recorded.

    Returns:
        ``(5, batch)`` (target, prediction, probability of the prediction, probability of the target, and whether the
        sample counts), float64 where the model computes in it, else float32, and the number of classes, 0 of a
        regressor; None if the outputs are anything else.
    """
    items = outputs.items() if isinstance(outputs, Mapping) else ()
    tensors = {key: each.detach() for key, each in items if isinstance(each, Tensor)}
    target = tensors.get("target")
    prediction = tensors.get("prediction")
    if target is None or target.ndim == 0:
        return None
    counts = tensors["weights"] > 0 if "weights" in tensors else torch.ones_like(target, dtype=torch.bool)

    # numbers
    if prediction is not None:
        if target.numel() != len(target) or prediction.numel() != len(target):  # several outputs
            return None
        is_wide = torch.float64 in (target.dtype, prediction.dtype)
        wide = torch.float64 if is_wide else torch.float32
        none = torch.zeros(len(target), device=target.device)
        return torch.stack([each.flatten().to(wide) for each in (target, prediction, none, none, counts)]), 0

    # classes
    scores = _compute_scores(tensors, task)
    is_whole = not target.is_floating_point() and target.ndim == 1
    if scores is None or scores.ndim != 2 or len(scores) != len(target) or scores.shape[1] < 2 or not is_whole:
        return None
    num_classes = scores.shape[1]
    probability, predicted = scores.max(dim=1)
    counts = counts & (target >= 0) & (target < num_classes)  # an ignored label counts for nothing
    of_label = scores.gather(1, target.long().clamp(0, num_classes - 1)[:, None]).squeeze(1)
    return torch.stack([each.float() for each in (target, predicted, probability, of_label, counts)]), num_classes


def _compute_scores(tensors: Mapping[str, Tensor], task: Task) -> Tensor | None:
    """Compute the probabilities ``(batch, classes)``; None if there are none, or they are not of one class a sample."""
    given = tensors["probabilities"] if "probabilities" in tensors else tensors.get("logits")
    if given is None or given.ndim == 0 or task.has_labels:
        return None
    scores = given.float()
    is_pair = task.is_pair(scores.shape, 2)
    if "probabilities" not in tensors:
        if is_pair:
            scores = scores.sigmoid()
        elif scores.ndim == 2:
            scores = scores.softmax(dim=1)
    if is_pair:
        second = scores.reshape(-1, 1)
        scores = torch.cat([1 - second, second], dim=1)
    return scores


class _Evaluation:
    """The outcomes of one evaluation on this rank, with the indices of their samples where the loader's order is known.

    Args:
        trainer: The trainer.
        loader: The loader of the split.
    """

    def __init__(self, trainer: Trainer, loader: Any) -> None:
        self.epoch = trainer.current_epoch
        self.num_classes = 0
        self._rows: list[Tensor] = []
        self._indices: list[int] | None = []  # None: the loader does not say which samples are in a batch
        self._defects: Any = getattr(getattr(trainer, "datamodule", None), "defects", None)
        self._loader = getattr(loader, "loader", loader)  # of one that replays batches, as lightkit.registry's
        source: Any = getattr(getattr(self._loader, "dataset", None), "source", None)
        self.source = source if callable(getattr(source, "name", None)) else None  # as lightkit.data's PixelSource

    def add(self, outcomes: tuple[Tensor, int], batch: int) -> None:
        """Add a batch."""
        rows, self.num_classes = outcomes
        self._rows.append(rows)
        indices = list_indices(self._loader, epoch=0, batch=batch) or []
        if len(indices) != rows.shape[1] and self.source is not None and self._defects is not None:
            bad = self._defects.collect()  # those that cannot be read are left out of the batch
            indices = [index for index in indices if self.source.name(index) not in bad]
        if self._indices is not None and len(indices) == rows.shape[1]:
            self._indices += indices
        else:
            self._indices = None

    def share(self) -> tuple[NDArray[np.int64] | None, NDArray[Any]]:
        """Return indices or None, and ``(4, samples)``, of the samples that count.

        Raises:
            ValueError: If what the model gives as probabilities is none.
        """
        rows = torch.cat(self._rows, dim=1).cpu().numpy() if self._rows else np.empty((5, 0), np.float32)
        given = rows[2:4].T
        finite = given[np.isfinite(given).all(axis=1)]
        if self.num_classes and find_improbable(finite).any():
            raise ValueError(
                f"probabilities are from {finite.min():.6g} to {finite.max():.6g}, expected 0 to 1; logits are "
                "returned under the key 'logits'"
            )
        counts = rows[4] > 0
        return None if self._indices is None else np.array(self._indices, np.int64)[counts], rows[:4, counts]


class PredictionRecorder(Callback):
    """Write the predictions of a test, and in a fit those of the validation of the best checkpoint, to the run folder.

    The files are `test_predictions.parquet` and `validation_predictions.parquet`; up to 60 images, the worst errors
    and then the least certain, are copied to `thumbnails`. They are of what `test_step` and `validation_step` return,
    see `reduce_outputs`; where that is something else, or there are several loaders, nothing is written.

    In a fit an epoch costs a softmax a batch; the files are written at the end.

    Args:
        folder: The run folder; None to keep the predictions in memory alone, those of a validation outside a fit too.
        changed: Keys of the config in which a test differs from the run.
    """

    def __init__(self, folder: Path | None, *, changed: Iterable[str] = ()) -> None:
        self.folder = folder
        self._changed = tuple(changed)
        self.predictions: Predictions | None = None
        """Those of the last test, on rank 0."""
        self._evaluation: _Evaluation | None = None
        self._best: _Evaluation | None = None
        self._best_score: float | None = None
        self._has_warned = False

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin."""
        self._begin(trainer, trainer.test_dataloaders)

    def on_test_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:  # fmt: skip
        """Take the outcomes of a batch."""
        if (evaluation := self._evaluation) is None:
            return
        self._evaluation = None
        with self._warn_of_failure():  # tensors of the user's step need not fit each other
            if (outcomes := reduce_outputs(outputs, task_of(pl_module))) is not None:
                evaluation.add(outcomes, batch_idx)
                self._evaluation = evaluation

    on_validation_batch_end = on_test_batch_end

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the predictions, and show their figures in the loggers that take pictures."""
        self.predictions = self._finish(trainer, self._evaluation, "test", trainer.ckpt_path)
        albums = [logger for logger in trainer.loggers if hasattr(logger, "add_picture")]
        with self._warn_of_failure():
            for each in draw_predictions(self.predictions) if albums and self.predictions else ():
                pixels = torch.from_numpy(to_pixels(each.drawing)).permute(2, 0, 1)
                for album in albums:
                    album.add_picture(f"test/{each.name.replace('-', '_')}", pixels, trainer.global_step)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note the best score so far, of a run that is resumed."""
        self._evaluation = self._best = None
        self._best_score = _best_score(trainer)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin, within a fit or for the caller."""
        is_fit = trainer.state.fn == TrainerFn.FITTING
        if is_fit:
            self._keep_best(trainer)
            self._best_score = _best_score(trainer)
        if (is_fit or self.folder is None) and not trainer.sanity_checking:
            self._begin(trainer, trainer.val_dataloaders)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep the predictions of a validation outside a fit."""
        if self.folder is None and trainer.state.fn == TrainerFn.VALIDATING:
            self.predictions = self._finish(trainer, self._evaluation, "validation", trainer.ckpt_path)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the predictions of the best epoch's validation."""
        self._keep_best(trainer)
        path = getattr(trainer.checkpoint_callback, "best_model_path", None)
        self._finish(trainer, self._best, "validation", path, has_thumbnails=not trainer.interrupted)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Write those of the best epoch so far, where that takes no other rank; quickly, without thumbnails."""
        if trainer.state.fn == TrainerFn.FITTING and trainer.world_size == 1:
            with self._warn_of_failure():  # after an error of the GPU no score can be read
                self.on_fit_end(trainer, pl_module)

    def _begin(self, trainer: Trainer, loader: Any) -> None:
        loader = loader[0] if isinstance(loader, list) and len(loader) == 1 else loader
        is_off = getattr(trainer, "fast_dev_run", False) or isinstance(loader, Sequence | Mapping)
        self.predictions = self._evaluation = None
        with self._warn_of_failure():
            self._evaluation = None if is_off else _Evaluation(trainer, loader)

    def _keep_best(self, trainer: Trainer) -> None:
        """Keep the last validation where its checkpoint has become the best; without scores the newest is."""
        score = _best_score(trainer)
        if self._evaluation is not None and (score is None or score != self._best_score):
            self._best = self._evaluation
            self._best_score = score
        self._evaluation = None

    def _finish(
        self,
        trainer: Trainer,
        evaluation: _Evaluation | None,
        split: Split,
        checkpoint: str | Path | None,
        *,
        has_thumbnails: bool = True,
    ) -> Predictions | None:
        """Join the ranks' shares and write them on rank 0; a failure is one warning."""
        self._evaluation = self._best = None
        share = None
        with self._warn_of_failure():
            share = None if evaluation is None else evaluation.share()
        shares = [each for each in gather(trainer, share) if each is not None]
        is_named = all(indices is not None for indices, _ in shares)
        if evaluation is None or not trainer.is_global_zero or len(shares) != trainer.world_size:
            return None
        if trainer.world_size > 1 and not is_named:
            return None
        rows = np.concatenate([rows for _, rows in shares], axis=1)
        index = np.concatenate([indices for indices, _ in shares]) if is_named else np.arange(rows.shape[1])
        index, first = np.unique(index, return_index=True)  # a share may have been filled up
        rows = rows[:, first]
        num_classes = evaluation.num_classes
        source = evaluation.source if is_named else None
        data = getattr(trainer, "datamodule", None)
        with self._warn_of_failure():
            names = names_of_outputs(trainer) or ()
            describe = getattr(data, "describe", None)
            epoch: int | None = evaluation.epoch
            if trainer.state.fn != TrainerFn.FITTING:
                epoch = None
                if checkpoint and not Path(checkpoint).is_dir():  # of shards
                    epoch = read_checkpoint(checkpoint, mmap=True).get("epoch")
            predictions = Predictions(
                split=split,
                index=index,
                paths=[None if source is None else source.name(each) for each in index.tolist()],
                target=rows[0].astype(np.int64) if num_classes else rows[0],
                prediction=rows[1].astype(np.int64) if num_classes else rows[1],
                probability=rows[2].clip(0, 1) if num_classes else rows[2, :0],
                label_probability=rows[3].clip(0, 1) if num_classes else rows[3, :0],
                class_names=tuple(map(str, names if len(names) == num_classes else range(num_classes))),
                # None for samples without names: their order may differ between runs
                fingerprint=describe().get("fingerprint") if callable(describe) and is_named else None,
                sha256=runs.digest(checkpoint) if checkpoint and Path(checkpoint).is_file() else None,
                epoch=epoch,
                changed=self._changed,
            )
            if self.folder is not None and len(predictions):
                write_predictions(predictions_path(self.folder, split), predictions)
                if has_thumbnails and is_named:
                    chosen = [*worst_errors(predictions, _NUM_WORST), *least_certain(predictions, _NUM_THUMBNAILS)]
                    indices = list(dict.fromkeys(predictions.index[chosen].tolist()))[:_NUM_THUMBNAILS]
                    for old in self.folder.glob(f"thumbnails/{split}-*.jpg"):
                        old.unlink()
                    write_thumbnails(self.folder, split, indices, source)
            return predictions
        return None  # type: ignore[unreachable]  # after a failure

    @contextmanager
    def _warn_of_failure(self) -> Iterator[None]:
        """Turn an exception into a warning, the first one: steps, names and images are the user's."""
        try:
            yield
        except Exception as error:  # noqa: BLE001
            level = logging.DEBUG if self._has_warned else logging.WARNING
            log.log(level, "predictions cannot be recorded: %s: %s", type(error).__name__, error)
            self._has_warned = True


def _best_score(trainer: Trainer) -> float | None:
    score = getattr(trainer.checkpoint_callback, "best_model_score", None)
    return None if score is None else float(score)


def write_thumbnails(folder: Path, split: Split, indices: Iterable[int], source: Any) -> None:
    """Write thumbnails of samples, in the place of earlier ones.

    Args:
        folder: The run folder.
        split: Split of the samples.
        indices: Of the samples.
        source: As `lightkit.data`'s ``PixelSource``; one without ``pixels``, or whose samples are no images, has none.
    """
    for index in sorted(indices) if hasattr(source, "pixels") else ():  # in stored order, in which tables are read on
        path = thumbnail_path(folder, split, index)
        try:
            pixels = source.pixels(index).shrunk(_LONG_SIDE)
        except DataError:  # it could be read a moment ago, or is no image
            continue
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(pixels.movedim(0, -1).contiguous().numpy()).save(path, "JPEG", quality=_JPEG_QUALITY)
