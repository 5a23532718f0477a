"""Records predictions for each sample of a test and of the best epoch's validation.

With thumbnails.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.trainer.states import TrainerFn
from torch import Tensor

from lightkit import runs
from lightkit.callbacks.checkpoint import Checkpoint
from lightkit.callbacks.checkpoint_io import read_checkpoint
from lightkit.callbacks.class_names import names_of_outputs
from lightkit.callbacks.resume import gather, list_indices
from lightkit.errors import DataError, find_worker_death
from lightkit.images.mask_file import overlay_mask
from lightkit.rank_zero import make_on_rank_zero
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
from lightkit.task import (
    CLASSIFICATION,
    REGRESSION,
    UNDECLARED,
    PredictionForm,
    Task,
    find_improbable,
    task_of,
    task_of_kind,
)

log = logging.getLogger(__name__)
_NUM_WORST = 40
_NUM_THUMBNAILS = 60
_MAX_PROBABILITIES = 10_000_000
"""Probabilities of all classes that all ranks keep of an evaluation together: 40 MB."""
_NUM_PICTURES = 20
"""Predictions of masks that are drawn, the worst."""
# about 5 kB a thumbnail
_LONG_SIDE = 160
_JPEG_QUALITY = 80
_BY_NAMES = (UNDECLARED.form, CLASSIFICATION.form, REGRESSION.form)
"""Forms of which the names of a step's outputs choose one."""


def reduce_outputs(outputs: Any, task: Task = UNDECLARED) -> tuple[dict[str, Tensor], int] | None:
    """Reduce the outputs of a `test_step` or `validation_step`, without waiting for the device.

    Args:
        outputs: A mapping with ``target`` ``(batch, ...)``, and ``logits`` or ``probabilities`` of
            classes or labels, or ``prediction``, as the form of the task's predictions takes them.
            ``weights`` ``(batch,)`` may be there as well: samples of weight 0 do not count.
        task: Of the model. Where it declares nothing, the names of the tensors say whether they are
            of classes or numbers.

    Returns:
        Columns ``(batch, ...)``, float64 where the model computes in it, else float32, and the
        number of classes; None if the outputs are anything else.
    """
    items = outputs.items() if isinstance(outputs, Mapping) else ()
    tensors = {key: each.detach() for key, each in items if isinstance(each, Tensor)}
    target = tensors.get("target")
    if target is None or target.ndim == 0:
        return None
    found = choose_form(tensors, task).reduce(tensors, task)
    if found is None:
        return None
    columns = {
        name: column if column.dtype == torch.float64 else column.float()
        for name, column in found[0].items()
    }
    if {len(column) for column in columns.values()} != {len(target)}:
        raise ValueError(
            f"target has {len(target)} samples, and {', '.join(tensors)} have not as many each"
        )
    return columns, found[1]


def choose_form(tensors: Iterable[str], task: Task) -> PredictionForm:
    """Choose the form of predictions.

    That of the task, or of numbers or classes as the names of the tensors say.
    """
    if task.form not in _BY_NAMES:
        return task.form
    return (REGRESSION if "prediction" in tensors else CLASSIFICATION).form


class _Evaluation:
    """The outcomes of one evaluation on this rank.

    With the indices of their samples where the loader's order is known.

    Args:
        trainer: The trainer.
        loader: The loader of the split.
    """

    def __init__(self, trainer: Trainer, loader: Any) -> None:
        self.epoch = trainer.current_epoch
        self.step = trainer.global_step
        self.num_classes = 0
        self.task: Task | None = None
        """Task of the model, where the names of classes do not say it."""
        self.form: PredictionForm = UNDECLARED.form
        self.pictures: dict[int, tuple[float, NDArray[np.uint8]]] = {}
        """Of the worst predictions, by the index of the sample: how wrong it is, and masks of
        target and prediction."""
        self._rows: list[dict[str, Tensor]] = []
        self._num_probabilities = 0
        self._max_probabilities = _MAX_PROBABILITIES // trainer.world_size
        # None: the loader does not say which samples are in a batch
        self._indices: list[int] | None = []
        self._defects: Any = getattr(getattr(trainer, "datamodule", None), "defects", None)
        # of one that replays batches, as lightkit.registry's
        self._loader = getattr(loader, "loader", loader)
        source: Any = getattr(getattr(self._loader, "dataset", None), "source", None)
        # as lightkit.data's PixelSource
        self.source = source if callable(getattr(source, "name", None)) else None

    def add(
        self,
        outcomes: tuple[dict[str, Tensor], int],
        batch: int,
        pictures: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        """Add a batch, with pictures of its predictions where they have some."""
        rows, self.num_classes = outcomes
        self._rows.append(rows)
        self._limit_probabilities(rows)
        num = len(rows["counts"])
        indices = list_indices(self._loader, epoch=0, batch=batch) or []
        if len(indices) != num and self.source is not None and self._defects is not None:
            bad = self._defects.collect()  # those that cannot be read are left out of the batch
            indices = [index for index in indices if self.source.name(index) not in bad]
        if self._indices is not None and len(indices) == num:
            self._indices += indices
            if pictures is not None:
                self._keep_pictures(indices, *pictures)
        else:
            self._indices = None

    def _limit_probabilities(self, rows: dict[str, Tensor]) -> None:
        """Drop the probabilities of all classes once they are too many.

        Those of prediction and label stay.
        """
        if "class_probability" not in rows:
            return
        was_within = self._num_probabilities <= self._max_probabilities
        self._num_probabilities += rows["class_probability"].numel()
        if self._num_probabilities > self._max_probabilities:
            for each in self._rows if was_within else [rows]:
                del each["class_probability"]

    def _keep_pictures(self, indices: Sequence[int], errors: Tensor, pictures: Tensor) -> None:
        """Keep the pictures of the worst predictions so far."""
        for at, error in enumerate(errors.tolist()):
            if len(self.pictures) >= _NUM_PICTURES:
                best = min(self.pictures, key=lambda index: self.pictures[index][0])
                if error <= self.pictures[best][0]:
                    continue
                del self.pictures[best]
            self.pictures[indices[at]] = (error, pictures[at].cpu().numpy())

    def share(self) -> tuple[NDArray[np.int64] | None, dict[str, NDArray[Any]]]:
        """Return indices or None, and the columns, of the samples that count.

        Raises:
            ValueError: If what the model gives as probabilities is none.
        """
        names = self._rows[0] if self._rows else ()
        rows = {
            name: torch.cat([each[name] for each in self._rows]).cpu().numpy() for name in names
        }
        for name in ("probability", "label_probability"):
            given = rows[name].reshape(len(rows[name]), -1) if name in rows else np.empty((0, 1))
            finite = given[np.isfinite(given).all(axis=1)]
            if self.num_classes and find_improbable(finite).any():
                raise ValueError(
                    f"probabilities are from {finite.min():.6g} to {finite.max():.6g}, expected 0"
                    " to 1; logits are returned under the key 'logits'"
                )
        counts = rows.pop("counts", np.empty(0)) > 0
        indices = None if self._indices is None else np.array(self._indices, np.int64)[counts]
        return indices, {name: column[counts] for name, column in rows.items()}


class _Joined(NamedTuple):
    """The outcomes of all ranks, each sample once.

    Args:
        indices: Numbers of the samples in their split, ascending.
        rows: Their outcomes, by the name of a column.
        pictures: Of some of them, how wrong it is and what is drawn of it.
        source: Names and images of the samples; None where it has none, or samples have no number.
        is_named: Whether samples have numbers.
    """

    indices: NDArray[np.int64]
    rows: dict[str, NDArray[Any]]
    pictures: dict[int, tuple[float, NDArray[np.uint8]]]
    source: Any
    is_named: bool


class PredictionRecorder(Callback):
    """Write the predictions of a test, or of a fit's best validation, to the run folder.

    The files are `test_predictions.parquet` and `validation_predictions.parquet`; up to 60 images,
    the worst errors and then the least certain, are copied to `thumbnails`. They are of what
    `test_step` and `validation_step` return, see `reduce_outputs`; where that is something else, or
    there are several loaders, nothing is written.

    In a fit an epoch costs a softmax a batch; the files are written at the end.

    Args:
        folder: The run folder; None to keep the predictions in memory alone, those of a validation
            outside a fit too.
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
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:  # fmt: skip
        """Take the outcomes of a batch."""
        if (evaluation := self._evaluation) is None:
            return
        self._evaluation = None
        with self._warn_of_failure():  # tensors of the user's step need not fit each other
            task = task_of(pl_module)
            if (outcomes := reduce_outputs(outputs, task)) is not None:
                evaluation.form = choose_form(outputs, task)
                evaluation.task = task if evaluation.form is task.form else None
                tensors = {
                    key: each.detach() for key, each in outputs.items() if isinstance(each, Tensor)
                }
                evaluation.add(outcomes, batch_idx, evaluation.form.reduce_pictures(tensors))
                self._evaluation = evaluation

    on_validation_batch_end = on_test_batch_end

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the predictions, and show their figures in the loggers that take pictures."""
        self._read_thresholds(pl_module)
        self.predictions = self._finish(trainer, self._evaluation, "test", trainer.ckpt_path)
        albums = [logger for logger in trainer.loggers if hasattr(logger, "add_picture")]
        with self._warn_of_failure():
            for each in draw_predictions(self.predictions) if albums and self.predictions else ():
                pixels = torch.from_numpy(to_pixels(each.drawing)).permute(2, 0, 1)
                for album in albums:
                    album.add_picture(
                        f"test/{each.name.replace('-', '_')}", pixels, trainer.global_step
                    )

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
        """Read the thresholds, which a fit chooses in its validation.

        Keep the predictions of one outside a fit.
        """
        self._read_thresholds(pl_module)
        if self.folder is None and trainer.state.fn == TrainerFn.VALIDATING:
            self.predictions = self._finish(
                trainer, self._evaluation, "validation", trainer.ckpt_path
            )

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the predictions of the best epoch's validation."""
        self._keep_best(trainer)
        path = getattr(trainer.checkpoint_callback, "best_model_path", None)
        self._finish(
            trainer, self._best, "validation", path, has_thumbnails=not trainer.interrupted
        )

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Write those of the best epoch so far, where that takes no other rank.

        Quickly, without thumbnails.
        """
        if trainer.state.fn == TrainerFn.FITTING and trainer.world_size == 1:
            with self._warn_of_failure():  # after an error of the GPU no score can be read
                self.on_fit_end(trainer, pl_module)

    def _begin(self, trainer: Trainer, loader: Any) -> None:
        loader = loader[0] if isinstance(loader, list) and len(loader) == 1 else loader
        is_off = getattr(trainer, "fast_dev_run", False) or isinstance(loader, Sequence | Mapping)
        self.predictions = self._evaluation = None
        with self._warn_of_failure():
            self._evaluation = None if is_off else _Evaluation(trainer, loader)

    def _read_thresholds(self, module: LightningModule) -> None:
        """Take the form with the thresholds that the model has at the end.

        A validation may choose them.
        """
        if self._evaluation is not None and self._evaluation.task is not None:
            self._evaluation.form = task_of(module).form

    def _keep_best(self, trainer: Trainer) -> None:
        """Keep the validation of the weights in the best checkpoint.

        The last one where its checkpoint has become the best, by the score, and by the step where
        that is known: a training metric may have chosen another epoch, which was not validated.
        Without scores the newest is kept.
        """
        score = _best_score(trainer)
        found = [self._best]
        if score is None or score != self._best_score:
            found = [self._evaluation, self._best]
            self._best_score = score
        step = self._find_best_step(trainer)
        self._best = next(
            (each for each in found if each is not None and step in (None, each.step)), None
        )
        self._evaluation = None

    def _find_best_step(self, trainer: Trainer) -> int | None:
        """Return the number of optimizer steps that the best checkpoint holds.

        None where there is none, or it cannot be read: one that is not written yet, is in an object
        store or a folder of shards.
        """
        keeper: Any = trainer.checkpoint_callback
        if isinstance(keeper, Checkpoint):
            return keeper.best_step
        path = getattr(keeper, "best_model_path", "")
        if not path:
            return None
        with self._warn_of_failure():
            return make_on_rank_zero(partial(_read_step, path), trainer)
        return None  # type: ignore[unreachable]  # after a failure

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
        joined = self._join_ranks(trainer, evaluation)
        if evaluation is None or joined is None:
            return None
        with self._warn_of_failure():
            predictions = self._describe(trainer, evaluation, joined, split, checkpoint)
            if self.folder is not None and len(predictions):
                write_predictions(predictions_path(self.folder, split), predictions)
                if has_thumbnails and joined.is_named:
                    _write_pictures(
                        self.folder, predictions, joined, num_classes=evaluation.num_classes
                    )
            return predictions
        return None  # type: ignore[unreachable]  # after a failure

    def _join_ranks(self, trainer: Trainer, evaluation: _Evaluation | None) -> _Joined | None:
        """Join the ranks' shares on rank 0.

        None elsewhere, and where a rank has none or samples have no number.
        """
        share = None
        with self._warn_of_failure():
            share = None if evaluation is None else evaluation.share()
        own_pictures = {} if evaluation is None else evaluation.pictures
        pictures: dict[int, tuple[float, NDArray[np.uint8]]] = {}
        shares = []
        for gathered, drawn in gather(trainer, (share, own_pictures)):
            pictures |= drawn
            if gathered is not None:
                shares.append(gathered)
        is_named = all(indices is not None for indices, _ in shares)
        if evaluation is None or not trainer.is_global_zero or len(shares) != trainer.world_size:
            return None
        if trainer.world_size > 1 and not is_named:
            return None
        index, rows = _join_shares(shares, is_named=is_named)
        if not rows:
            return None
        return _Joined(index, rows, pictures, evaluation.source if is_named else None, is_named)

    def _describe(
        self,
        trainer: Trainer,
        evaluation: _Evaluation,
        joined: _Joined,
        split: Split,
        checkpoint: str | Path | None,
    ) -> Predictions:
        """Return the predictions with the weights, the data and the classes that they are of."""
        names = names_of_outputs(trainer) or ()
        num_classes = evaluation.num_classes
        describe = getattr(getattr(trainer, "datamodule", None), "describe", None)
        fingerprint = None
        if callable(describe) and joined.is_named:  # else the order may differ between runs
            fingerprint = describe().get("fingerprint")
        epoch: int | None = evaluation.epoch
        if trainer.state.fn != TrainerFn.FITTING:
            epoch = _read_epoch(checkpoint)
        task = evaluation.task
        kind = None if task is None or task.form in _BY_NAMES else task.output_kind
        is_own = task is not None and type(task.form) is not type(
            task_of_kind(task.output_kind).form
        )
        source = joined.source
        return Predictions(
            split=split,
            index=joined.indices,
            paths=[
                None if source is None else source.name(each) for each in joined.indices.tolist()
            ],
            **cast(dict[str, Any], evaluation.form.arrange(joined.rows)),
            output_kind=kind,
            own_task=task if is_own else None,
            class_names=tuple(map(str, names if len(names) == num_classes else range(num_classes))),
            fingerprint=fingerprint,
            sha256=runs.digest(checkpoint) if checkpoint and Path(checkpoint).is_file() else None,
            epoch=epoch,
            changed=self._changed,
        )

    @contextmanager
    def _warn_of_failure(self) -> Iterator[None]:
        """Turn an exception into a warning, the first one: steps and images are the user's."""
        try:
            yield
        except Exception as error:
            if find_worker_death(error) is not None:
                raise
            level = logging.DEBUG if self._has_warned else logging.WARNING
            log.log(level, "predictions cannot be recorded: %s: %s", type(error).__name__, error)
            self._has_warned = True


def _read_epoch(checkpoint: str | Path | None) -> int | None:
    """Return the epoch of a checkpoint; None where it is none, or one of shards."""
    if not checkpoint or Path(checkpoint).is_dir():
        return None
    epoch: int | None = read_checkpoint(checkpoint, mmap=True).get("epoch")
    return epoch


def _read_step(checkpoint: str) -> int | None:
    """Return the optimizer steps of a checkpoint; None where it is none yet, or one of shards."""
    if not Path(checkpoint).is_file():
        return None
    step: int | None = read_checkpoint(checkpoint, mmap=True).get("global_step")
    return step


def _best_score(trainer: Trainer) -> float | None:
    score = getattr(trainer.checkpoint_callback, "best_model_score", None)
    return None if score is None else float(score)


def _join_shares(
    shares: Sequence[tuple[Any, dict[str, NDArray[Any]]]], *, is_named: bool
) -> tuple[NDArray[np.int64], dict[str, NDArray[Any]]]:
    """Return numbers and outcomes of the samples of all ranks, each once.

    A share may have been filled up.
    """
    shares = [each for each in shares if each[1]] or shares  # a rank may have had no batch
    # a rank may have had too many
    names = [name for name in shares[0][1] if all(name in each for _, each in shares)]
    rows = {name: np.concatenate([each[name] for _, each in shares]) for name in names}
    num = len(next(iter(rows.values()), ()))
    index = np.concatenate([indices for indices, _ in shares]) if is_named else np.arange(num)
    index, first = np.unique(index, return_index=True)
    return index, {name: column[first] for name, column in rows.items()}


def _write_pictures(
    folder: Path, predictions: Predictions, joined: _Joined, *, num_classes: int
) -> None:
    """Write thumbnails of the worst errors, and then of the least certain samples.

    In the place of earlier ones.
    """
    chosen = [*worst_errors(predictions, _NUM_WORST), *least_certain(predictions, _NUM_THUMBNAILS)]
    indices = list(dict.fromkeys(predictions.index[chosen].tolist()))[:_NUM_THUMBNAILS]
    for old in folder.glob(f"thumbnails/{predictions.split}-*.jpg"):
        old.unlink()
    masks = {index: joined.pictures[index][1] for index in indices if index in joined.pictures}
    write_thumbnails(
        folder, predictions.split, indices, joined.source, masks=masks, num_classes=num_classes
    )


def write_thumbnails(
    folder: Path,
    split: Split,
    indices: Iterable[int],
    source: Any,
    *,
    masks: Mapping[int, NDArray[np.uint8]] | None = None,
    num_classes: int = 0,
) -> None:
    """Write thumbnails of samples, in the place of earlier ones.

    Args:
        folder: The run folder.
        split: Split of the samples.
        indices: Of the samples.
        source: As `lightkit.data`'s ``PixelSource``; one without ``pixels``, or whose samples are
            no images, has none.
        masks: Of some of the samples, masks of target and prediction ``(2, rows, columns)``: the
            thumbnail is then the image under each of the two, side by side.
        num_classes: Number of classes of the masks.
    """
    # in stored order, in which tables are read on
    for index in sorted(indices) if hasattr(source, "pixels") else ():
        path = thumbnail_path(folder, split, index)
        try:
            pixels = source.pixels(index).shrunk(_LONG_SIDE)
        except DataError:  # it could be read a moment ago, or is no image
            continue
        path.parent.mkdir(exist_ok=True)
        picture = Image.fromarray(pixels.movedim(0, -1).contiguous().numpy())
        if masks is not None and index in masks:
            picture = join_overlays(picture, masks[index], num_classes)
        picture.save(path, "JPEG", quality=_JPEG_QUALITY)


def join_overlays(picture: Image.Image, masks: NDArray[np.uint8], num_classes: int) -> Image.Image:
    """Lay each mask over the picture, and join the results from left to right."""
    joined = Image.new(
        "RGB", (picture.width * len(masks) + 2 * (len(masks) - 1), picture.height), "white"
    )
    for at, mask in enumerate(masks):
        joined.paste(overlay_mask(picture, mask, num_classes), (at * (picture.width + 2), 0))
    return joined
