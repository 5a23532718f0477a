"""Keeps the run folder up to date while Lightning runs: events, metrics.csv, manifest.json, summary.json."""

from __future__ import annotations

import copy
import logging
import math
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import zip_longest
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.trainer.states import TrainerFn
from pytorch_lightning.utilities import rank_zero_only

from lightkit import runs
from lightkit.errors import PIPE_CLOSED, Interrupted, LightkitError, OutOfTime
from lightkit.runs.files import what_is_free

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
        self._summary_writer = SummaryWriter(run)
        self._stage: str | None = None
        self._stage_began_s = self._began_s = time.monotonic()
        self._announced: str | None = None
        self._stopped_by: str | None = None
        self._drops_later_rows = False
        self._end = OnceGuard()
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
            self._summary_writer.end(status, code, words, seconds=seconds, stopped_by=self._stopped_by)
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
        self._summary_writer.begin(stage)
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
        if self._summary_writer.is_due:
            self._write_summary(trainer)

    def _record_result(self, trainer: Trainer, stage: str) -> None:
        metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
        if self._writes:
            self._summary_writer.note_stage(stage, metrics)
            self._end_stage(trainer)
            self.events.write("result", stage=stage, metrics=metrics)

    def _end_stage(self, trainer: Trainer) -> None:
        if self._stage is not None and self._writes:
            self._write_summary(trainer, {self._stage: round(time.monotonic() - self._stage_began_s, 3)})

    def _write_summary(self, trainer: Trainer, durations: Mapping[str, float] | None = None) -> None:
        self._summary_writer.write(
            trainer, self._table.rows, samples_per_s=self._meter.samples_per_s, durations=durations
        )

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


def end_of(error: BaseException | None) -> tuple[str, int, str | None]:
    """Status, exit code and one line of words."""
    if error is None or (isinstance(error, SystemExit) and not error.code):
        return "done", 0, None
    words = " ".join(f"{type(error).__name__}: {error}".split())
    if isinstance(error, Interrupted):
        return "interrupted" if error.checkpoint is None else "preempted", error.exit_code, f"signal {error.signum}"
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", 130, "KeyboardInterrupt"
    if isinstance(error, LightkitError):
        return "preempted" if isinstance(error, OutOfTime) else "failed", error.exit_code, str(error)
    if isinstance(error, BrokenPipeError):  # whoever read the output has left, as `| head` does
        return "failed", PIPE_CLOSED, words
    code = error.code if isinstance(error, SystemExit) else 1
    return "failed", code if isinstance(code, int) else 1, words


def best_row(trainer: Trainer, rows: list[dict[str, float]]) -> dict[str, float] | None:
    """The row of the epoch that the checkpoints call best; the last one where they monitor nothing."""
    keeper = trainer.checkpoint_callback
    monitor = keeper.monitor if isinstance(keeper, ModelCheckpoint) else None
    if monitor is None:
        return rows[-1] if rows else None
    measured = [row for row in rows if math.isfinite(row.get(monitor, math.nan))]
    choose = max if getattr(keeper, "mode", "min") == "max" else min
    return choose(measured, key=lambda row: row[monitor], default=None)  # the first of equals, as ModelCheckpoint


def best_checkpoint(trainer: Trainer, best: dict[str, float] | None) -> dict[str, Any] | None:
    """Monitor, its mode, value and epoch of the best checkpoint; None where nothing is monitored."""
    keeper = trainer.checkpoint_callback
    if not isinstance(keeper, ModelCheckpoint) or keeper.monitor is None or best is None:
        return None
    return {
        "monitor": keeper.monitor,
        "mode": keeper.mode,
        "value": best[keeper.monitor],
        "epoch": int(best["epoch"]),
    }


def paths_of(trainer: Trainer, run: runs.Run) -> dict[str, Path]:
    """The files of a run, whether or not they are there yet."""
    keeper = trainer.checkpoint_callback
    return {
        "best_checkpoint": Path(getattr(keeper, "best_model_path", "") or run.checkpoints / "best.ckpt"),
        "last_checkpoint": Path(getattr(keeper, "last_model_path", "") or run.checkpoints / "last.ckpt"),
        "config": run.config_path,
        "manifest": run.manifest_path,
        "events": run.events_path,
        "metrics": run.metrics_path,
    }


def described_data(trainer: Trainer) -> dict[str, Any] | None:
    """What the data module says of itself, if it has a ``describe``."""
    describe = getattr(getattr(trainer, "datamodule", None), "describe", None)
    return dict(describe()) if callable(describe) else None


def described_hardware(trainer: Trainer) -> dict[str, Any]:
    """The machine, and what of it the trainer uses."""
    gpus = [torch.cuda.get_device_name(index) for index in trainer.device_ids] if _on_cuda(trainer) else []
    accelerator = type(trainer.accelerator).__name__.removesuffix("Accelerator").lower()
    return {
        **runs.describe_hardware(gpus),
        "accelerator": accelerator,
        "devices": trainer.world_size,
        "threads": torch.get_num_threads(),
    }


def _on_cuda(trainer: Trainer) -> bool:
    return trainer.strategy.root_device.type == "cuda"


_EVERY_S = 1.0  # while it runs: a fit of a thousand short epochs must not wait for the disk a thousand times


class SummaryWriter:
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


class OnceGuard:
    """The right to record the end, which one thread has: the first that takes it, or that has reserved it before.

    It is reserved before its thread waits for the disk, so that nobody takes it who waits for the same write. The lock
    is held while this is looked up, never while anybody waits or writes; who waits for the record says how long.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reserved_by: threading.Thread | None = None
        self._is_taken = False
        self._recorded = threading.Event()

    @property
    def is_taken(self) -> bool:
        """Whether the end is recorded, or about to be."""
        return self._is_taken

    def reserve(self) -> bool:
        """Keep it for the calling thread, which ends the process by force.

        Returns:
            Whether it is this thread's now; not where it was taken, or another has reserved it.
        """
        with self._lock:
            if self._is_anothers():
                return False
            self._reserved_by = threading.current_thread()
            return True

    def take(self) -> bool:
        """Take it for the calling thread.

        Returns:
            Whether this thread is to record the end; not where it was taken, or another has reserved it.
        """
        with self._lock:
            if self._is_anothers():
                return False
            self._is_taken = True
            return True

    def fulfil(self) -> None:
        """Say that the end is recorded, or cannot be."""
        self._recorded.set()

    def wait(self, within_s: float) -> None:
        """Wait until the end is recorded, or cannot be.

        Args:
            within_s: Seconds after which nobody waits any more.
        """
        self._recorded.wait(within_s)

    def _is_anothers(self) -> bool:
        return self._is_taken or self._reserved_by not in (None, threading.current_thread())


@dataclass
class Epoch:
    """One complete epoch.

    Args:
        epoch: Its number, from 0.
        step: Number of optimizer steps at its end.
        metrics: What the model logged in it; the values of its validation too, if it had one.
        seconds: How long it took, validation included.
        speed: Learning rates at its start, ``epoch_seconds``, and ``samples_per_s`` without validation.
    """

    epoch: int
    step: int
    metrics: dict[str, float]
    seconds: float
    speed: dict[str, float]

    @property
    def row(self) -> dict[str, float]:
        """Everything that was measured, as metrics.csv and the event stream have it."""
        return {**self.metrics, **self.speed}


class EpochMeter:
    """Measures the epochs of a fit, one after the other."""

    def __init__(self) -> None:
        self.batches = 0
        self._samples = self._all_samples = 0
        self._began_s = time.monotonic()
        self._paused_s = self._all_training_s = 0.0
        self._pause_began_s: float | None = None
        self._seen: dict[str, torch.Tensor] = {}
        self._rates: dict[str, float] = {}
        self._waiting: Epoch | None = None

    @property
    def samples_per_s(self) -> float | None:
        """Samples a second in training, over all complete epochs; None before the first."""
        return round(self._all_samples / self._all_training_s, 2) if self._all_training_s > 0 else None

    def start_epoch(self, trainer: Trainer) -> None:
        """Start the clock of an epoch, or of the rest of one."""
        self._rates = learning_rates(trainer)
        self.batches = self._samples = 0
        self._began_s, self._paused_s, self._pause_began_s = time.monotonic(), 0.0, None

    def count(self, batch: Any) -> None:
        """Count the samples of a batch."""
        self.batches += 1
        self._samples += batch_size_of(batch) or 0

    def pause(self) -> None:
        """Stop the clock of training."""
        self._pause_began_s = time.monotonic()

    def go_on(self) -> None:
        """Let the clock of training run on."""
        if self._pause_began_s is not None:
            self._paused_s += time.monotonic() - self._pause_began_s
            self._pause_began_s = None

    def end_epoch(self, trainer: Trainer) -> None:
        """Take what the epoch measured; for all ranks, because reading metrics may synchronise them."""
        seconds = time.monotonic() - self._began_s
        training_s = max(seconds - self._paused_s, 1e-9)
        samples = self._samples * trainer.world_size
        self._all_samples += samples
        self._all_training_s += training_s
        speed = {**self._rates, "epoch_seconds": round(seconds, 3)}
        if samples:
            speed["samples_per_s"] = round(samples / training_s, 2)
        self._waiting = Epoch(trainer.current_epoch, trainer.global_step, {}, round(seconds, 3), speed)
        self.batches = 0
        self.add_late_metrics(trainer)

    def add_late_metrics(self, trainer: Trainer) -> None:
        """Add what was logged since, as by the model's own ``on_train_epoch_end``; for all ranks."""
        if self._waiting is None:
            return
        logged = dict(trainer.callback_metrics)
        # Lightning keeps the values of an earlier validation in there; those are the very same tensors.
        fresh = {name: value for name, value in logged.items() if self._seen.get(name) is not value}
        # LearningRateMonitor's names for what `learning_rates` gives
        fresh = {name: value for name, value in fresh.items() if not name.startswith("lr-")}
        self._waiting.metrics.update({name: float(value) for name, value in fresh.items()})
        self._seen = logged

    def take(self) -> Epoch | None:
        """Give the epoch that is complete and not taken yet, if there is one."""
        epoch, self._waiting = self._waiting, None
        return epoch


def learning_rates(trainer: Trainer) -> dict[str, float]:
    """Give ``lr``, or ``lr/0``, ``lr/1``, ... where parameter groups differ, as the next step is taken with them.

    A callback that changes them for the time of a step only says so: its ``rate_factors(index of the optimizer)`` gives
    what the rate of each of the first groups is multiplied by.
    """
    rates = []
    for index, optimizer in enumerate(trainer.optimizers):
        own = [float(group["lr"]) for group in optimizer.param_groups]
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            factors = callback.rate_factors(index) if hasattr(callback, "rate_factors") else []
            own = [rate * factor for rate, factor in zip_longest(own, factors[: len(own)], fillvalue=1.0)]
        rates += own
    if len(set(rates)) == 1:
        return {"lr": rates[0]}
    return {f"lr/{index}": rate for index, rate in enumerate(rates)}


def batch_size_of(batch: Any) -> int | None:
    """Give the first dimension of the first tensor in a batch, however it is nested; None if there is no tensor."""
    if isinstance(batch, torch.Tensor):
        return batch.shape[0] if batch.ndim else 1
    parts: Iterable[Any] = batch.values() if isinstance(batch, Mapping) else batch
    if isinstance(batch, Mapping | list | tuple):
        return next((size for part in parts if (size := batch_size_of(part)) is not None), None)
    return None
