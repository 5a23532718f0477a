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
from lightkit.runs.files import free_space

_log = logging.getLogger(__name__)
_SUMMARY_INTERVAL_S = 1.0  # a fit of a thousand short epochs must not wait for the disk a thousand times


@dataclass
class Epoch:
    """One complete epoch.

    Args:
        epoch: Its number, from 0.
        step: Number of optimizer steps at its end.
        metrics: Metrics that the model logged in it, those of its validation too.
        seconds: Its duration, validation included.
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
        self.rates: dict[str, float] = {}
        self.phases: dict[str, float] = {}
        self._lap_s = time.monotonic()
        self._samples = self._all_samples = 0
        self._began_s = time.monotonic()
        self._paused_s = self._all_training_s = 0.0
        self._pause_began_s: float | None = None
        self._seen: dict[str, torch.Tensor] = {}
        self._waiting: Epoch | None = None

    @property
    def samples_per_s(self) -> float | None:
        """Samples a second in training, over all complete epochs; None before the first."""
        return round(self._all_samples / self._all_training_s, 2) if self._all_training_s > 0 else None

    def start_epoch(self, trainer: Trainer, *, rates: Mapping[str, float] | None = None) -> None:
        """Start the clock of an epoch, or of the rest of one.

        Args:
            trainer: The trainer.
            rates: Learning rates at the start of an epoch that is resumed within; those of now by default.
        """
        self.rates = dict(rates or learning_rates(trainer))
        self.batches = self._samples = 0
        self._began_s, self._paused_s, self._pause_began_s = time.monotonic(), 0.0, None

    def lap(self, phase: str) -> None:
        """Count the time since the last call as that of a phase of training."""
        now_s = time.monotonic()
        self.phases[phase] = self.phases.get(phase, 0.0) + now_s - self._lap_s
        self._lap_s = now_s

    def count(self, batch: Any) -> None:
        """Count the samples of a batch."""
        self.batches += 1
        self._samples += find_batch_size(batch) or 0

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
        speed = {**self.rates, "epoch_seconds": round(seconds, 3)}
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
        for name, value in logged.items():
            # Lightning keeps the values of an earlier validation in there; those are the very same tensors. "lr-..."
            # are LearningRateMonitor's names for what `learning_rates` gives.
            if self._seen.get(name) is not value and not name.startswith("lr-"):
                self._waiting.metrics[name] = float(value)
        self._seen = logged

    def take(self) -> Epoch | None:
        """Return the epoch that is complete and not taken yet, if there is one."""
        epoch, self._waiting = self._waiting, None
        return epoch


class EpochCallback(Callback):
    """Measures each training epoch; a subclass gets it, and the results of other stages, once they are complete."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._meter = EpochMeter()

    def record_epoch(self, trainer: Trainer, epoch: Epoch) -> None:
        """Get a complete epoch; on every rank."""

    def record_result(self, trainer: Trainer, stage: str, metrics: dict[str, float]) -> None:
        """Get the metrics of ``validate``, ``test`` or ``predict``; on every rank."""

    def flush_epoch(self, trainer: Trainer) -> None:
        """Hand over the epoch that is complete, if there is one; for all ranks."""
        self._meter.add_late_metrics(trainer)
        if (epoch := self._meter.take()) is not None:
            self.record_epoch(trainer, epoch)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the clock; an epoch that is resumed in its middle has no other start."""
        super().on_train_start(trainer, pl_module)
        self._meter.start_epoch(trainer)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Hand over the epoch before, now that all of it is logged, and start the clock."""
        self.flush_epoch(trainer)
        self._meter.start_epoch(trainer)
        self._meter.lap("other")
        super().on_train_epoch_start(trainer, pl_module)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count the samples."""
        super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)
        self._meter.count(batch)
        self._meter.lap("step")

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take what the epoch measured; without batches Lightning only resumes at its end."""
        super().on_train_epoch_end(trainer, pl_module)
        if self._meter.batches:
            self._meter.end_epoch(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Hand over the last epoch."""
        self.flush_epoch(trainer)
        super().on_train_end(trainer, pl_module)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stop the clock: validation does not count in the throughput of training."""
        super().on_validation_start(trainer, pl_module)
        self._meter.lap("other")
        self._meter.pause()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Hand over the metrics of ``lightkit validate``; those within a fit are in its epochs."""
        super().on_validation_end(trainer, pl_module)
        self._meter.lap("validation")
        self._meter.go_on()
        if trainer.state.fn == TrainerFn.VALIDATING:
            self._hand_over_result(trainer, "validate")

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Hand over the metrics of ``lightkit test``."""
        super().on_test_end(trainer, pl_module)
        self._hand_over_result(trainer, "test")

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Hand over that predictions were made."""
        super().on_predict_end(trainer, pl_module)
        self._hand_over_result(trainer, "predict")

    def _hand_over_result(self, trainer: Trainer, stage: str) -> None:
        self.record_result(trainer, stage, {name: float(value) for name, value in trainer.callback_metrics.items()})


def learning_rates(trainer: Trainer) -> dict[str, float]:
    """Return ``lr``, or ``lr/0``, ``lr/1``, ... where parameter groups differ, as the next step is taken with them.

    A callback that changes them for the time of a step only has ``rate_factors(index of the optimizer)``, which gives
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


def find_batch_size(batch: Any) -> int | None:
    """Return the first dimension of the first tensor in a batch, however it is nested; None if there is no tensor."""
    if isinstance(batch, torch.Tensor):
        return batch.shape[0] if batch.ndim else 1
    parts: Iterable[Any] = batch.values() if isinstance(batch, Mapping) else batch
    if isinstance(batch, Mapping | list | tuple):
        return next((size for part in parts if (size := find_batch_size(part)) is not None), None)
    return None


class RunRecorder(EpochCallback):
    """Record events, epochs and the end, on the process of rank zero.

    Used as a context manager around everything that may fail or warn, so that the end is always recorded.

    Args:
        run: The run whose folder is kept.
        events: Its event stream.
        manifest: What is known before training; data and hardware are added, and it is written, once they are set
            up. None leaves the run's manifest as it is, as for a test of a run that was trained earlier.
        checkpoint: Checkpoint that will be loaded, for the start event.
    """

    def __init__(
        self,
        run: runs.Run,
        *,
        events: runs.EventStream,
        manifest: Mapping[str, Any] | None = None,
        checkpoint: Path | None = None,
    ) -> None:
        super().__init__()
        self.run = run
        self.events = events
        self.manifest = None if manifest is None else dict(manifest)
        self._checkpoint = checkpoint
        self._table = runs.MetricsTable(run.metrics_path)
        self._warnings = runs.WarningWatch(self._record_warning)
        self._summary_writer = SummaryWriter(run)
        self._stage: str | None = None
        self._stage_began_s = self._began_s = time.monotonic()
        self._announced: str | None = None
        self._stopped_by: str | None = None
        self._drops_later_rows = False
        self._restored_rates: dict[str, float] | None = None
        self._end_claim = threading.Lock()  # taken once, by the thread that records the end
        self._end_owner: threading.Thread | None = None
        self._end_recorded = threading.Event()
        self._writes = getattr(rank_zero_only, "rank", 0) == 0  # until the trainer knows better

    def __enter__(self) -> RunRecorder:
        self._warnings.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(error)

    def reserve_end(self, timeout_s: float) -> None:
        """Let the calling thread, which ends the process by force, record the end.

        Args:
            timeout_s: Seconds to wait for the record where another thread is writing it already.
        """
        if self._end_claim.acquire(blocking=False):
            self._end_owner = threading.current_thread()
        else:
            self._end_recorded.wait(timeout_s)

    def close(self, error: BaseException | None = None) -> None:
        """Record the end; only the first call counts, or that of the thread that has reserved it.

        Args:
            error: What ended the process before it was done.
        """
        self._warnings.stop()
        if not self._writes:
            return
        if self._end_owner is not threading.current_thread() and not self._end_claim.acquire(blocking=False):
            return
        self._end_owner = None
        if self._is_deleted():
            self._end_recorded.set()
            return
        status, code, text = describe_end(error)
        seconds = round(time.monotonic() - self._began_s, 3)
        try:
            self._summary_writer.end(status, code, text, seconds=seconds, stopped_by=self._stopped_by)
            why = {} if self._stopped_by is None else {"stopped_by": self._stopped_by}
            self.events.write("end", status=status, exit_code=code, seconds=seconds, error=text, **why)
        except OSError as failure:
            if error is None:
                raise LightkitError(f"The end of the run cannot be recorded: {failure}.") from failure
            _log.warning("The end of the run cannot be recorded in %s: %s.", self.run.folder, failure)
        finally:
            self._end_recorded.set()

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
        self._meter.lap("checkpoint")
        if self._writes:
            relative = runs.relative(path, self.run.folder)
            free = free_space(self.run.folder)
            self.events.write("checkpoint", path=relative, epoch=int(epoch), step=int(step), kind=kind, **free)

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
            describe = getattr(getattr(trainer, "datamodule", None), "describe", None)
            self.manifest["data"] = (dict(describe()) if callable(describe) else None) or self.manifest.get("data")
            self.manifest["hardware"] = _describe_hardware(trainer)
            runs.write_json(self.run.manifest_path, self.manifest)
        self._write_summary(trainer)
        if not (stage == "fit" and self.run.resumed):  # what it resumes from is known when training starts
            path = self._checkpoint or trainer.ckpt_path
            self._announce("start", stage, checkpoint=None if path is None else runs.relative(path, self.run.folder))

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Hand the manifest to the loggers that keep more than metrics."""
        self._meter.lap("start")
        manifest = self.manifest or runs.read_json(self.run.manifest_path)
        if manifest is not None:
            _call_loggers(trainer, "log_manifest", manifest)
        _call_loggers(trainer, "record_fit_start", trainer, pl_module)

    def state_dict(self) -> dict[str, Any]:
        """Keep the learning rates at the epoch's start, which a resume within the epoch records."""
        return {"rates": self._meter.rates}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the learning rates at the epoch's start."""
        self._restored_rates = state_dict.get("rates")

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Record a resume, and start the clock."""
        self._announce_resume(trainer)
        self._meter.start_epoch(trainer, rates=self._restored_rates)
        self._meter.lap("start")
        self._drops_later_rows = True

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Drop the rows of epochs that a resume trains again, once it does."""
        self._meter.lap("load")
        if self._drops_later_rows and self._writes:
            self._table.truncate(after_epoch=trainer.current_epoch - 1)
        self._drops_later_rows = False

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take the epoch's metrics, on every rank, because reading them may synchronise."""
        is_trained = bool(self._meter.batches)
        super().on_train_epoch_end(trainer, pl_module)
        if is_trained:
            _call_loggers(trainer, "record_epoch_end", trainer, pl_module)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Write the epoch before its checkpoint: the next process goes on after it and would never write it.

        Raises:
            LightkitError: If the run's folder was deleted: to make it anew would leave half a run.
        """
        if self._is_deleted():
            raise LightkitError(
                f"The run folder {self.run.folder} was deleted while it was trained, and nothing can be saved. "
                "The same command begins a new run."
            )
        self.flush_epoch(trainer)
        self._meter.lap("other")

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Tell the loggers; the end itself is recorded when the process has ended well."""
        self._announce_resume(trainer)
        self._end_stage(trainer)
        _call_loggers(trainer, "record_fit_end", trainer, pl_module)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Write what is complete, and note where it happened. The end is recorded by `close`."""
        if isinstance(exception, Exception) and not isinstance(exception, LightkitError):
            notes = [f"This was in epoch {trainer.current_epoch}, step {trainer.global_step}."]
            if trainer.training and (path := runs.newest_written(self.run.checkpoints)) is not None:
                notes.append(f"The same command resumes from {path}.")
            vars(exception).setdefault("__notes__", []).extend(notes)  # PEP 678; Python 3.10 has no add_note
        try:
            if self._writes and not self._end_claim.locked() and not self._is_deleted():
                if (epoch := self._meter.take()) is not None:
                    self.record_epoch(trainer, epoch)
                self._end_stage(trainer)
        except OSError as failure:  # the exception that ends the training is the one to report
            _log.warning("What is complete cannot be recorded in %s: %s.", self.run.folder, failure)

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Record the metrics of ``lightkit test``, and hand them to the loggers."""
        super().on_test_end(trainer, pl_module)
        _call_loggers(trainer, "record_test_end", trainer, pl_module)

    def record_epoch(self, trainer: Trainer, epoch: Epoch) -> None:
        """Write the row and the event of an epoch."""
        if not self._writes:
            return
        self._table.record(epoch.epoch, epoch.step, epoch.row)
        free = free_space(self.run.folder)
        self.events.write("epoch", epoch=epoch.epoch, step=epoch.step, metrics=epoch.row, seconds=epoch.seconds, **free)
        if self._summary_writer.is_due:
            self._write_summary(trainer)

    def record_result(self, trainer: Trainer, stage: str, metrics: dict[str, float]) -> None:
        """Write the metrics of a stage beside the fit."""
        if self._writes:
            self._summary_writer.stages[stage] = metrics
            self._end_stage(trainer)
            self.events.write("result", stage=stage, metrics=metrics)

    def _is_deleted(self) -> bool:
        is_known = self._announced == "fit" and self._writes and self.manifest is not None
        return is_known and not self.run.manifest_path.exists()

    def _announce(self, event: str, stage: str, **more: Any) -> None:
        name = f"{self.run.name}/{self.run.id}"
        self.events.write(event, run=name, stage=stage, folder=str(self.run.folder), **more)
        self._announced = stage

    def _announce_resume(self, trainer: Trainer) -> None:
        if self._writes and self._announced != "fit":
            path = None if trainer.ckpt_path is None else runs.relative(str(trainer.ckpt_path), self.run.folder)
            self._announce("resume", "fit", checkpoint=path, epoch=trainer.current_epoch, step=trainer.global_step)

    def _end_stage(self, trainer: Trainer) -> None:
        if self._stage is not None and self._writes:
            self._write_summary(trainer, {self._stage: round(time.monotonic() - self._stage_began_s, 3)})

    def _write_summary(self, trainer: Trainer, durations: Mapping[str, float] | None = None) -> None:
        self._summary_writer.write(
            trainer,
            self._table.rows,
            samples_per_s=self._meter.samples_per_s,
            phases=self._meter.phases,
            durations=durations or {},
        )

    def _record_warning(self, message: str, source: str) -> None:
        if self._writes and not self._end_claim.locked():
            with suppress(OSError):  # a warning must not end the run; it is shown, and the next record fails aloud
                self.events.write("warning", message=message, source=source)


def _call_loggers(trainer: Trainer, hook: str, *arguments: Any) -> None:
    for logger in trainer.loggers:
        if callable(method := getattr(logger, hook, None)):
            method(*arguments)


def describe_end(error: BaseException | None) -> tuple[str, int, str | None]:
    """Return status, exit code and one line of text for what ended a process."""
    if error is None or (isinstance(error, SystemExit) and not error.code):
        return "done", 0, None
    text = " ".join(f"{type(error).__name__}: {error}".split())
    if isinstance(error, Interrupted):
        return "interrupted" if error.checkpoint is None else "preempted", error.exit_code, f"signal {error.signum}"
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", 130, "KeyboardInterrupt"
    if isinstance(error, LightkitError):
        return "preempted" if isinstance(error, OutOfTime) else "failed", error.exit_code, str(error)
    if isinstance(error, BrokenPipeError):  # the reader of the output has left, as `| head` does
        return "failed", PIPE_CLOSED, text
    code = error.code if isinstance(error, SystemExit) else 1
    return "failed", code if isinstance(code, int) else 1, text


def _describe_hardware(trainer: Trainer) -> dict[str, Any]:
    """Describe the machine, and what of it the trainer uses."""
    is_cuda = trainer.strategy.root_device.type == "cuda"
    return {
        **runs.describe_hardware(
            [torch.cuda.get_device_name(index) for index in trainer.device_ids] if is_cuda else []
        ),
        "accelerator": type(trainer.accelerator).__name__.removesuffix("Accelerator").lower(),
        "devices": trainer.world_size,
        "threads": torch.get_num_threads(),
    }


class SummaryWriter:
    """Writes the summary of a run, and keeps what other processes wrote in it.

    Args:
        run: The run.
    """

    def __init__(self, run: runs.Run) -> None:
        self.stages: dict[str, dict[str, float]] = {}
        """Metrics of the stages beside the fit."""
        self._run = run
        self._is_fit = False
        self._written_s = 0.0
        left = runs.Summary.read(run.summary_path)
        # A stage that only adds its metrics to an earlier fit leaves how that one ended as it is.
        self._owns_status = left is None or run.resumed
        self._summary = left or runs.Summary(run=f"{run.name}/{run.id}")
        if self._owns_status:
            self._summary.status, self._summary.exit_code, self._summary.error = "running", None, None
            self._summary.started, self._summary.ended, self._summary.stopped_by = _now(), None, None
            self._summary.durations = {}

    @property
    def is_due(self) -> bool:
        """Whether it was written long enough ago."""
        return time.monotonic() - self._written_s > _SUMMARY_INTERVAL_S

    def begin(self, stage: str) -> None:
        """Begin a stage; a fit owns the status."""
        self._is_fit = self._is_fit or stage == "fit"
        self._owns_status = self._owns_status or self._is_fit

    def write(
        self,
        trainer: Trainer,
        rows: list[dict[str, float]],
        *,
        samples_per_s: float | None,
        phases: Mapping[str, float],
        durations: Mapping[str, float],
    ) -> None:
        """Write the present state.

        Args:
            trainer: Its steps and checkpoints are written.
            rows: Those of metrics.csv.
            samples_per_s: Throughput of the training.
            phases: Seconds of each phase of the training.
            durations: Seconds of stages that have ended.
        """
        if not self._owns_status and not durations:
            return
        summary = self._summary
        summary.durations.update(durations)
        if self._is_fit:
            keeper = trainer.checkpoint_callback
            monitor = keeper.monitor if isinstance(keeper, ModelCheckpoint) else None
            mode = getattr(keeper, "mode", "min")
            best = rows[-1] if rows else None
            if monitor is not None:  # the first of equals, as ModelCheckpoint
                measured = [row for row in rows if math.isfinite(row.get(monitor, math.nan))]
                choose = max if mode == "max" else min
                best = choose(measured, key=lambda row: row[monitor], default=None)
            summary.epochs = int(rows[-1]["epoch"]) + 1 if rows else 0
            summary.steps = trainer.global_step
            summary.throughput = {"samples_per_s": samples_per_s}
            summary.phases = {name: round(seconds, 3) for name, seconds in phases.items()}
            summary.metrics = {"best": best or {}, "last": rows[-1] if rows else {}}
            summary.best = None
            if monitor is not None and best is not None:
                summary.best = {"monitor": monitor, "mode": mode, "value": best[monitor], "epoch": int(best["epoch"])}
            run = self._run
            keepers = trainer.checkpoint_callbacks
            last = next((path for each in keepers if (path := getattr(each, "last_model_path", ""))), "")
            paths = {
                "best_checkpoint": Path(getattr(keeper, "best_model_path", "") or run.checkpoints / "best.ckpt"),
                "last_checkpoint": Path(last or run.checkpoints / "last.ckpt"),
                "config": run.config_path,
                "manifest": run.manifest_path,
                "events": run.events_path,
                "metrics": run.metrics_path,
            }
            summary.paths = {name: str(path) for name, path in paths.items() if path.exists()}
        self._save(durations)
        self._written_s = time.monotonic()

    def end(self, status: str, code: int, text: str | None, *, seconds: float, stopped_by: str | None) -> None:
        """Write the end.

        Args:
            status: One of `runs.STATUSES`.
            code: Exit code of the process.
            text: The error, in one line.
            seconds: Since this process began it.
            stopped_by: Why training ended well, but earlier than its config says.
        """
        if self._owns_status:
            self._summary.status, self._summary.exit_code, self._summary.error = status, code, text
            self._summary.ended, self._summary.stopped_by = _now(), stopped_by or self._summary.stopped_by
            self._summary.durations["total"] = seconds
            self._save({})

    def _save(self, durations: Mapping[str, float]) -> None:
        """Write with what another process has written meanwhile: a test may run beside the fit of its run."""
        written = runs.Summary.read(self._run.summary_path)
        summary = copy.deepcopy(self._summary)
        if written is not None:
            summary = summary if self._owns_status else written
            summary.stages = written.stages
        summary.stages.update(self.stages)
        summary.durations.update(durations)
        summary.write(self._run.summary_path)


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
