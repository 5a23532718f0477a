"""Metrics of an evaluation, as the tracker of its run takes them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from lightning_utilities.core.rank_zero import rank_zero_only

from lightkit import runs

_log = logging.getLogger("lightkit.loggers")

Record = tuple[dict[str, Any], int | None]
"""Metrics by name, and their step."""


class EvaluationMetrics:
    """Select the metrics that a tracker gets of a stage, which continues the run of the training.

    Trackers compare runs by the newest value of a metric. Those of a validation or test are held
    until `release` says whether they are of the run; the same counts for what is logged after that,
    such as by a module's own ``on_test_end``. They are at the last step of the training, and
    without metrics of which the training has a curve. All metrics of a training or outside of a
    run are sent at once.

    Args:
        tracker: Name of the tracker, for the warning.
    """

    def __init__(self, tracker: str) -> None:
        self._tracker = tracker
        self._run = runs.current()
        self._held: list[Record] = []
        self._is_of_other_run: bool | None = None  # not known yet

    def add(self, metrics: Mapping[str, Any], step: int | None) -> list[Record]:
        """Return the records to send, now that these metrics are logged.

        Args:
            metrics: By name.
            step: Of the trainer.
        """
        if self._run is None or self._run.stage == "fit":
            return [(dict(metrics), step)]
        if self._is_of_other_run:
            return []
        records = self._place(self._run, metrics, step)
        if self._run.stage in ("validate", "test") and self._is_of_other_run is None:
            self._held += records
            return []
        return records

    def release(self, is_of_other_run: bool) -> list[Record]:
        """Return the records that were held and are to be sent, and warn where none may be.

        Args:
            is_of_other_run: Whether they are of other weights, data or settings.
        """
        self._is_of_other_run = is_of_other_run
        held = self._held
        self._held = []
        if is_of_other_run and held:
            _log.warning(
                "%s gets no metrics of this evaluation, which is of other weights, data or"
                " settings than the run; they are in `scores` of summary.json",
                self._tracker,
            )
        return [] if is_of_other_run else held

    @staticmethod
    def _place(run: runs.Run, metrics: Mapping[str, Any], step: int | None) -> list[Record]:
        """Return the metrics that the training has no curve of, at its last step."""
        rows = runs.MetricsTable(run.metrics_path).rows
        curves = {name for row in rows for name in row}
        new = {name: value for name, value in metrics.items() if name not in curves}
        last_step = int(rows[-1]["step"]) if rows else step
        return [(new, last_step)] if new else []


class SendsEvaluation:
    """Base of a logger of Lightning's, before its class, whose tracker gets `EvaluationMetrics`."""

    _evaluation: EvaluationMetrics

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Send metrics; those of an evaluation wait for `record_result`."""
        self._send(self._evaluation.add(metrics, step))

    @rank_zero_only
    def record_result(self, is_of_other_run: bool) -> None:
        """Send the metrics of an evaluation, where they are those of the run.

        Args:
            is_of_other_run: Whether they are of other weights, data or settings.
        """
        self._send(self._evaluation.release(is_of_other_run))

    def _send(self, records: list[Record]) -> None:
        logger: Any = super()
        for metrics, step in records:
            logger.log_metrics(metrics, step)
