"""List in the run folder, and report, the images or rows that the data module leaves out."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from typing import Any

from pytorch_lightning import Trainer
from pytorch_lightning.trainer.states import TrainerFn

from lightkit import runs
from lightkit.callbacks.resume import gather
from lightkit.config import shown_path
from lightkit.runs.bad_images import BadImage, most_frequent, read_bad_images, write_bad_images

_log = logging.getLogger(__name__)


class BadImages:
    """Keep ``bad_images.csv``, reported in one line and one event: before a stage, and once an epoch at most.

    The data module has an attribute ``defects`` with a list ``found`` and a method ``take_noted``, which gives those
    that came up since the last call; each has a ``name`` and a ``reason``. `RunRecorder` calls this on every rank; rank
    0 lists and reports what the workers of all ranks have met.

    Args:
        run: The run whose folder has the list.
        events: Its event stream.
    """

    def __init__(self, run: runs.Run, events: runs.EventStream) -> None:
        self._path, self._events = run.folder / "bad_images.csv", events
        self._rows: dict[str, BadImage] = {}

    def scan(self, trainer: Trainer) -> None:
        """List and report what the scan has found; the data module is set up by now."""
        if (defects := _defects_of(trainer)) is None or not trainer.is_global_zero:
            return
        found = [BadImage(defect.name, defect.reason, "scan") for defect in defects.found]
        is_fit = trainer.state.fn == TrainerFn.FITTING  # which replaces the scan of an earlier one
        earlier = [row for row in read_bad_images(self._path) if not (is_fit and row.found == "scan")]
        self._rows = {row.path: row for row in (*found, *earlier)}
        self._report(found, "cannot be used and will be left out")

    def collect(self, trainer: Trainer, found: str, *, is_alone: bool = False) -> None:
        """List and report what came up since the last call.

        Args:
            trainer: The trainer.
            found: When, as `BadImage` has it.
            is_alone: Whether the other ranks may not call this.
        """
        if (defects := _defects_of(trainer)) is None:
            return
        own = [BadImage(defect.name, defect.reason, found) for defect in defects.take_noted()]
        everywhere = [row for rows in ([own] if is_alone else gather(trainer, own)) for row in rows]
        new = {row.path: row for row in everywhere if row.path not in self._rows}
        if trainer.is_global_zero and new:
            self._rows |= new
            self._report([*new.values()], "could not be read any more and will be left out")

    def _report(self, rows: Sequence[BadImage], what: str) -> None:
        try:
            write_bad_images(self._path, [*self._rows.values()])
        except OSError as error:
            text = "%s cannot be written (%s): the list of images that are left out is not complete"
            _log.warning(text, self._path, error)
        if rows:
            reasons = [row.reason for row in rows]
            where, name = shown_path(self._path), self._path.name
            self._events.write("bad_images", count=len(rows), reasons=Counter(reasons), found=rows[-1].found, path=name)
            images = "image" if len(rows) == 1 else "images"
            _log.warning("%d %s %s (%s); listed in %s", len(rows), images, what, most_frequent(reasons), where)


def _defects_of(trainer: Trainer) -> Any:
    return getattr(getattr(trainer, "datamodule", None), "defects", None)
