"""List in the run folder, and report, the images or rows that the data module leaves out."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from pytorch_lightning import Trainer
from pytorch_lightning.trainer.states import TrainerFn

from lightkit import runs
from lightkit.config import shown_path
from lightkit.runs.bad_images import BadImage, BadImageList, most_frequent

_log = logging.getLogger(__name__)


class BadImages:
    """Keep ``bad_images.csv``, reported in one line and one event: before a stage, and once an epoch at most.

    The data module has an attribute ``defects`` with a list ``found`` and a method ``take_noted``, which gives those
    that came up since the last call; each has a ``name`` and a ``reason``. `RunRecorder` calls this on every rank, and
    each adds what its own workers have met; rank 0 reports for all that share its run folder.

    Args:
        run: The run whose folder has the list.
        events: Its event stream.
    """

    def __init__(self, run: runs.Run, events: runs.EventStream) -> None:
        self._list = BadImageList(run.folder / "bad_images.csv")
        self._events = events
        self._reported: set[str] = set()

    def scan(self, trainer: Trainer) -> None:
        """List and report what the scan has found; the data module is set up by now."""
        defects = _defects_of(trainer)
        if defects is None or not trainer.is_global_zero:
            return
        scanned = [BadImage(defect.name, defect.reason, "scan") for defect in defects.found]
        if trainer.state.fn == TrainerFn.FITTING:
            self._write(self._list.replace_scan, scanned)
        elif scanned:
            self._write(self._list.add, scanned)
        self._reported.update(row.path for row in self._list.rows())
        self._report(scanned, "cannot be used and will be left out")

    def collect(self, trainer: Trainer, found: str) -> None:
        """List what came up since the last call.

        Args:
            trainer: The trainer.
            found: When, as `BadImage` has it.
        """
        defects = _defects_of(trainer)
        if defects is not None and (noted := defects.take_noted()):
            self._write(self._list.add, [BadImage(defect.name, defect.reason, found) for defect in noted])

    def report(self, trainer: Trainer) -> None:
        """Report what all ranks have listed since the last call."""
        if trainer.is_global_zero and _defects_of(trainer) is not None:
            new = [row for row in self._list.rows() if row.path not in self._reported]
            self._report(new, "could not be read any more and will be left out")

    def _write(self, write: Callable[[Sequence[BadImage]], None], rows: Sequence[BadImage]) -> None:
        try:
            write(rows)
        except OSError as error:
            text = "%s cannot be written (%s): the list of images that are left out is not complete"
            _log.warning(text, self._list.path, error)

    def _report(self, rows: Sequence[BadImage], what: str) -> None:
        if not rows:
            return
        self._reported.update(row.path for row in rows)
        reasons = [row.reason for row in rows]
        self._events.write(
            "bad_images", count=len(rows), reasons=Counter(reasons), found=rows[-1].found, path=self._list.path.name
        )
        images = "image" if len(rows) == 1 else "images"
        where = shown_path(self._list.path)
        _log.warning("%d %s %s (%s); listed in %s", len(rows), images, what, most_frequent(reasons), where)


def _defects_of(trainer: Trainer) -> Any:
    return getattr(getattr(trainer, "datamodule", None), "defects", None)
