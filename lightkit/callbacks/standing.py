"""How a run stands, kept in its summary.json while Lightning runs."""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path

from pytorch_lightning import Trainer

from lightkit import runs
from lightkit.callbacks.outcome import best_checkpoint, best_row, paths_of

__all__ = ["Standing"]

_EVERY_S = 1.0  # while it runs: a fit of a thousand short epochs must not wait for the disk a thousand times


class Standing:
    """The summary of a run, with what other processes tell in it.

    Args:
        run: The run.
    """

    def __init__(self, run: runs.Run) -> None:
        self._run = run
        self._summary, self._tells_status = _opened(run)
        self._tells_fit = False
        self._own_stages: dict[str, dict[str, float]] = {}
        self._written_s = 0.0

    @property
    def is_due(self) -> bool:
        """Whether it was written long enough ago."""
        return time.monotonic() - self._written_s > _EVERY_S

    def begin(self, stage: str) -> None:
        """Know that a stage begins: of a fit there is more to tell."""
        self._tells_fit = self._tells_fit or stage == "fit"
        self._tells_status = self._tells_status or self._tells_fit

    def note_stage(self, stage: str, metrics: dict[str, float]) -> None:
        """Keep the metrics of a stage beside the fit."""
        self._own_stages[stage] = metrics

    def write(
        self,
        trainer: Trainer,
        rows: list[dict[str, float]],
        *,
        samples_per_s: float | None,
        durations: Mapping[str, float] | None = None,
    ) -> None:
        """Write how it stands, where there is something of its own to tell.

        Args:
            trainer: Knows the steps and the checkpoints.
            rows: Those of metrics.csv.
            samples_per_s: Throughput of the training.
            durations: Seconds of stages that have ended.
        """
        if not self._tells_status and not durations:
            return
        self._summary.durations.update(durations or {})
        paths: Mapping[str, Path] | None = None
        if self._tells_fit:
            best = best_row(trainer, rows)
            self._summary.epochs = int(rows[-1]["epoch"]) + 1 if rows else 0
            self._summary.steps = trainer.global_step
            self._summary.throughput = {"samples_per_s": samples_per_s}
            self._summary.metrics = {"best": best or {}, "last": rows[-1] if rows else {}}
            self._summary.best = best_checkpoint(trainer, best)
            paths = paths_of(trainer, self._run)
        self._put(durations or {}, paths)
        self._written_s = time.monotonic()

    def end(self, status: str, code: int, words: str | None, *, seconds: float, stopped_by: str | None) -> None:
        """Write how it has ended.

        Args:
            status: One of `runs.STATUSES`.
            code: Exit code of the process.
            words: What went wrong, in one line.
            seconds: Since this process began it.
            stopped_by: Why training ended well, but earlier than its config says.
        """
        if not self._tells_status:
            return
        self._summary.status, self._summary.exit_code, self._summary.error = status, code, words
        self._summary.ended, self._summary.stopped_by = _now(), stopped_by or self._summary.stopped_by
        self._summary.durations["total"] = seconds
        self._put({})

    def _put(self, durations: Mapping[str, float], paths: Mapping[str, Path] | None = None) -> None:
        own = copy.deepcopy(self._summary) if self._tells_status else None
        self._write(own, self._own_stages, durations, paths)

    def _write(
        self,
        own: runs.Summary | None,
        stages: Mapping[str, dict[str, float]],
        durations: Mapping[str, float],
        paths: Mapping[str, Path] | None,
    ) -> None:
        """Write with what another process has written meanwhile: a test may run beside the fit of its run.

        It is read, and the files are looked for, right before: a moment after it was asked for.
        """
        written = runs.Summary.read(self._run.summary_path)
        summary = own or written or copy.deepcopy(self._summary)
        if written is not None:
            summary.stages = written.stages
        summary.stages.update(stages)
        summary.durations.update(durations)
        if paths is not None:
            self._summary.paths = {name: str(path) for name, path in paths.items() if path.exists()}
        if own is not None:
            summary.paths = self._summary.paths
        summary.write(self._run.summary_path)


def _opened(run: runs.Run) -> tuple[runs.Summary, bool]:
    """The summary to go on with, and whether its status is this process's to tell.

    A stage that only adds its metrics to an earlier fit leaves how that one ended as it is.
    """
    left = runs.Summary.read(run.summary_path)
    if left is None:
        return runs.Summary(run=f"{run.name}/{run.id}", started=_now()), True
    if not run.resumed:
        return left, False
    left.status, left.exit_code, left.error, left.durations = "running", None, None, {}
    left.started, left.ended, left.stopped_by = _now(), None, None
    return left, True


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
