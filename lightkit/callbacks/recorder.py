"""Keeps the run folder up to date while Lightning runs: events, metrics.csv, manifest.json, summary.json."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.trainer.states import TrainerFn
from pytorch_lightning.utilities import rank_zero_only

from lightkit import runs
from lightkit.callbacks.end_claim import EndClaim
from lightkit.callbacks.epoch_meter import EpochMeter
from lightkit.callbacks.outcome import described_data, described_hardware, end_of
from lightkit.callbacks.standing import Standing
from lightkit.errors import LightkitError
from lightkit.runs.disk import what_is_free

__all__ = ["RunRecorder"]

_log = logging.getLogger(__name__)


class RunRecorder(Callback):
    """Record what happens, epoch by epoch, on the process of rank zero.

    Used as a context manager around everything that may fail or warn, so that the end is recorded whatever it is.

    Args:
        run: The run whose folder is kept.
        events: Its event stream.
        manifest: What is known before training; data and hardware are added, and it is written, once they are set
            up. None leaves the run's manifest as it is, as for a test of a run that was trained earlier.
    """

    def __init__(self, run: runs.Run, *, events: runs.EventStream, manifest: Mapping[str, Any] | None = None) -> None:
        self.run = run
        self.events = events
        self.manifest = None if manifest is None else dict(manifest)
        self._table = runs.MetricsTable(run.metrics_path)
        self._warnings = runs.WarningWatch(self._warned)
        self._meter = EpochMeter()
        self._standing = Standing(run)
        self._stage: str | None = None
        self._stage_began_s = self._began_s = time.monotonic()
        self._announced: str | None = None
        self._stopped_by: str | None = None
        self._drops_later_rows = False
        self._end = EndClaim()
        self._writes = getattr(rank_zero_only, "rank", 0) == 0  # until the trainer knows better

    def __enter__(self) -> RunRecorder:
        self._warnings.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(error)

    def close(self, error: BaseException | None = None) -> None:
        """Record the end; only the first call counts, or that of the first thread which ends the process by force.

        Args:
            error: What ended the process before it was done.
        """
        self._warnings.stop()
        if not self._writes:
            return
        if not self._end.take():  # by a thread that ends the process by force
            return
        status, code, words = end_of(error)
        seconds = round(time.monotonic() - self._began_s, 3)
        try:
            self._standing.end(status, code, words, seconds=seconds, stopped_by=self._stopped_by)
            why = {} if self._stopped_by is None else {"stopped_by": self._stopped_by}
            self.events.write("end", status=status, exit_code=code, seconds=seconds, error=words, **why)
        except OSError as failure:
            if error is None:
                raise LightkitError(f"The end of the run cannot be recorded: {failure}.") from failure
            _log.warning("The end of the run cannot be recorded in %s: %s.", self.run.folder, failure)
        finally:
            self._end.fulfil()

    def stopped_early(self, reason: str) -> None:
        """Keep the reason for which training ends well, but earlier than its config says."""
        self._stopped_by = reason

    def checkpoint_saved(self, path: Path | str, epoch: int, step: int, kind: str) -> None:
        """Record that a checkpoint is on disk.

        Args:
            path: The file.
            epoch: Epoch in which it was written.
            step: Number of optimizer steps that it holds.
            kind: ``best``, ``last`` or another word for why it was written.
        """
        if self._writes:
            where = runs.relative(path, self.run.folder)
            free = what_is_free(self.run.folder)
            self.events.write("checkpoint", path=where, epoch=int(epoch), step=int(step), kind=kind, **free)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Complete the manifest: the data module is set up by now."""
        self._writes = trainer.is_global_zero
        stage = str(getattr(stage, "value", stage))  # Lightning 2.6 gives a member of its enumeration
        self._stage, self._stage_began_s = stage, time.monotonic()
        self._standing.begin(stage)
        self._warnings.watch_loggers()
        if not self._writes:
            return
        if self.manifest is not None:
            self.manifest["data"] = described_data(trainer) or self.manifest.get("data")
            self.manifest["hardware"] = described_hardware(trainer)
            runs.write_json(self.run.manifest_path, self.manifest)
        self._write_summary(trainer)
        if not (stage == "fit" and self.run.resumed):  # what it resumes from is known when training starts
            checkpoint = None if trainer.ckpt_path is None else str(trainer.ckpt_path)
            self.events.write("start", run=self._name, stage=stage, folder=str(self.run.folder), checkpoint=checkpoint)
            self._announced = stage

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Tell the loggers that keep more than metrics."""
        manifest = self.manifest or runs.read_json(self.run.manifest_path)
        if manifest is not None:
            _tell_loggers(trainer, "log_manifest", manifest)
        _tell_loggers(trainer, "record_fit_start", trainer, pl_module)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the clock; an epoch that is resumed in its middle has no other start."""
        self._announce_resume(trainer)
        self._meter.start_epoch(trainer)
        self._drops_later_rows = True

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the epoch before, if no checkpoint has asked for it, and start the clock."""
        self._flush(trainer)
        self._meter.start_epoch(trainer)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Forget epochs that a resume trains again, once it does."""
        if self._drops_later_rows and self._writes:
            self._table.truncate(after_epoch=trainer.current_epoch - 1)
        self._drops_later_rows = False

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count the samples."""
        self._meter.count(batch)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Validation does not count in the throughput of training."""
        self._meter.pause()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take the epoch's metrics, on every rank, because reading them may synchronise.

        Lightning calls this again, without batches, when it resumes from a checkpoint at the end of an epoch.
        """
        if self._meter.batches:
            self._meter.end_epoch(trainer)
            _tell_loggers(trainer, "record_epoch_end", trainer, pl_module)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Write the epoch before its checkpoint: the next process goes on after it and would never write it."""
        self._flush(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the last epoch."""
        self._flush(trainer)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Tell the loggers; the end itself is recorded when the process has ended well."""
        self._announce_resume(trainer)
        self._end_stage(trainer)
        _tell_loggers(trainer, "record_fit_end", trainer, pl_module)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Write what is complete. The end is recorded by `close`: the command line may still find better words."""
        try:
            if self._writes and not self._end.is_taken:
                self._write_row(trainer)
                self._end_stage(trainer)
        except OSError as failure:  # the exception that ends the training is the one to tell
            _log.warning("What is complete cannot be recorded in %s: %s.", self.run.folder, failure)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Record the metrics of ``lightkit validate``; those within a fit are in its epochs."""
        self._meter.go_on()
        if trainer.state.fn == TrainerFn.VALIDATING:
            self._record_result(trainer, "validate")

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Record the metrics of ``lightkit test``."""
        self._record_result(trainer, "test")
        _tell_loggers(trainer, "record_test_end", trainer, pl_module)

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Record that predictions were made."""
        self._record_result(trainer, "predict")

    @property
    def _name(self) -> str:
        return f"{self.run.name}/{self.run.id}"

    def _announce_resume(self, trainer: Trainer) -> None:
        if self._writes and self._announced != "fit":
            checkpoint = None if trainer.ckpt_path is None else runs.relative(str(trainer.ckpt_path), self.run.folder)
            self.events.write(
                "resume",
                run=self._name,
                stage="fit",
                checkpoint=checkpoint,
                epoch=trainer.current_epoch,
                step=trainer.global_step,
                folder=str(self.run.folder),
            )
            self._announced = "fit"

    def _flush(self, trainer: Trainer) -> None:
        self._meter.add_late_metrics(trainer)
        if self._writes:
            self._write_row(trainer)

    def _write_row(self, trainer: Trainer) -> None:
        epoch = self._meter.take()
        if epoch is None:
            return
        self._table.record(epoch.epoch, epoch.step, epoch.row)
        free = what_is_free(self.run.folder)
        self.events.write("epoch", epoch=epoch.epoch, step=epoch.step, metrics=epoch.row, seconds=epoch.seconds, **free)
        if self._standing.is_due:
            self._write_summary(trainer)

    def _record_result(self, trainer: Trainer, stage: str) -> None:
        metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
        if self._writes:
            self._standing.note_stage(stage, metrics)
            self._end_stage(trainer)
            self.events.write("result", stage=stage, metrics=metrics)

    def _end_stage(self, trainer: Trainer) -> None:
        if self._stage is not None and self._writes:
            self._write_summary(trainer, {self._stage: round(time.monotonic() - self._stage_began_s, 3)})

    def _write_summary(self, trainer: Trainer, durations: Mapping[str, float] | None = None) -> None:
        self._standing.write(trainer, self._table.rows, samples_per_s=self._meter.samples_per_s, durations=durations)

    def reserve_end(self, timeout_s: float) -> None:
        """Let the calling thread, which ends the process by force, record the end.

        Args:
            timeout_s: Seconds to wait for the record where another thread is writing it already.
        """
        if not self._end.reserve():
            self._end.wait(timeout_s)

    def _warned(self, message: str, source: str) -> None:
        if self._writes and not self._end.is_taken:
            with suppress(OSError):  # whoever warns is not to end for it; it is shown, and the next record tells
                self.events.write("warning", message=message, source=source)


def _tell_loggers(trainer: Trainer, hook: str, *about: Any) -> None:
    for logger in trainer.loggers:
        tell = getattr(logger, hook, None)
        if callable(tell):
            tell(*about)
