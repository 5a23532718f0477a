"""List in the run folder, and report, the images or rows that the data module leaves out."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.trainer.states import TrainerFn

from lightkit import runs
from lightkit.config import shown_path
from lightkit.runs.bad_images import BadImage, BadImageList, most_frequent

_log = logging.getLogger(__name__)

_OTHER_STAGES: Mapping[Any, str] = {
    TrainerFn.VALIDATING: "validate", TrainerFn.TESTING: "test", TrainerFn.PREDICTING: "predict"
}  # fmt: skip


class BadImages(Callback):
    """Keep ``bad_images.csv``, reported in one line and one event: before a stage, and once an epoch at most.

    The data module has an attribute ``defects`` with a list ``found`` and a method ``take_noted``, which gives those
    that came up since the last call; each has a ``name`` and a ``reason``. Every rank adds what its own workers have
    met; rank 0 reports for all that share its run folder.

    Args:
        run: The run whose folder has the list.
        events: Its event stream.
    """

    def __init__(self, run: runs.Run, *, events: runs.EventStream) -> None:
        self._list = BadImageList(run.folder / "bad_images.csv")
        self._events = events
        self._reported: set[str] = set()
        self._epoch = 0

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """List what the scan has found; the data module is set up by now."""
        defects = _defects_of(trainer)
        if defects is None or not trainer.is_global_zero:
            return
        scanned = [BadImage(defect.name, defect.reason, "scan") for defect in defects.found]
        if trainer.state.fn == TrainerFn.FITTING:
            self._write(self._list.replace_scan, scanned)
        elif scanned:
            self._write(self._list.add, scanned)
        self._reported.update(row.path for row in [*scanned, *self._list.rows()])
        if scanned:
            self._report(scanned, "cannot be used and will be left out")

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """List what came up in the epoch and its validation."""
        self._collect(trainer)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Report the epoch before: by now all ranks have listed theirs."""
        self._epoch = trainer.current_epoch
        self._report_new(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """List and report what the last epoch has left; also of one that is cut short."""
        self._collect(trainer)
        self._report_new(trainer)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """List and report what came up before the end."""
        self.on_train_end(trainer, pl_module)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """List and report what another stage than a fit met."""
        self.on_train_end(trainer, pl_module)

    def _collect(self, trainer: Trainer) -> None:
        defects = _defects_of(trainer)
        found = _OTHER_STAGES.get(trainer.state.fn, f"epoch {self._epoch}")
        if defects is not None and (noted := defects.take_noted()):
            self._write(self._list.add, [BadImage(defect.name, defect.reason, found) for defect in noted])

    def _write(self, write: Callable[[Sequence[BadImage]], None], rows: Sequence[BadImage]) -> None:
        try:
            write(rows)
        except OSError as error:
            says = "%s cannot be written (%s): the list of images that are left out is not complete"
            _log.warning(says, self._list.path, error)

    def _report_new(self, trainer: Trainer) -> None:
        if not trainer.is_global_zero or _defects_of(trainer) is None:
            return
        new = [row for row in self._list.rows() if row.path not in self._reported]
        self._reported.update(row.path for row in new)
        if new:
            self._report(new, "could not be read any more and will be left out")

    def _report(self, rows: Sequence[BadImage], what: str) -> None:
        reasons = [row.reason for row in rows]
        self._events.write(
            "bad_images", count=len(rows), reasons=Counter(reasons), found=rows[-1].found, path=self._list.path.name
        )
        images = "image" if len(rows) == 1 else "images"
        where = shown_path(self._list.path)
        _log.warning("%d %s %s (%s); listed in %s", len(rows), images, what, most_frequent(reasons), where)


def _defects_of(trainer: Trainer) -> Any:
    return getattr(getattr(trainer, "datamodule", None), "defects", None)
