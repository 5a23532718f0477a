"""Keep the run folder current while Lightning runs.

Events, metrics.csv, manifest.json, summary.json.

A complete epoch, and the result of another stage, is one event: `RunRecorder` writes it and then
hands it to each callback of the trainer that has one of these methods, on every rank:

============================================  ======================================================
on_epoch_recorded(trainer, epoch)             an epoch of a fit, with all that was logged in it
on_result_recorded(trainer, stage, metrics)   ``validate``, ``test`` or ``predict`` is complete
============================================  ======================================================
"""

from __future__ import annotations

import logging
import threading
import time
import zipfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.callbacks import ModelCheckpoint, StochasticWeightAveraging, WeightAveraging
from pytorch_lightning.trainer.states import TrainerFn
from pytorch_lightning.utilities import rank_zero_only

from lightkit import runs
from lightkit.callbacks.batch_mosaic import try_batch_mosaic
from lightkit.callbacks.checkpoint import FINAL_NAME, Checkpoint
from lightkit.callbacks.checkpoint_io import read_checkpoint
from lightkit.callbacks.computation import name_device
from lightkit.callbacks.descriptions import describe_data, describing, find_defects
from lightkit.callbacks.interruption import explain_early_end
from lightkit.callbacks.metric_modes import find_metric_modes, find_step_metrics
from lightkit.callbacks.resume import gather
from lightkit.callbacks.sample_counter import SampleCounter
from lightkit.config import shown_path
from lightkit.errors import (
    ConfigError,
    Interrupted,
    LightkitError,
    OutOfTime,
    RunLocked,
    exit_code_of,
    format_count,
)
from lightkit.runs.bad_images import BadImage, most_frequent, read_bad_images, write_bad_images
from lightkit.runs.checkpoints import known_digest
from lightkit.runs.metric_mode import infer_mode, infer_mode_by_name, override_modes
from lightkit.runs.metrics import STEP_SUFFIX
from lightkit.runs.scores import (
    StageScore,
    add_score,
    drop_lost_scores,
    is_of_other_run,
    list_own_scores,
    read_scores,
    write_scores,
)
from lightkit.torch_files import load_file

_log = logging.getLogger(__name__)
# a fit of a thousand short epochs must not wait for the disk a thousand times
_SUMMARY_INTERVAL_S = 1.0
_END_TIMEOUT_S = 1.0  # for the record of the end that another thread is writing


@dataclass
class Epoch:
    """One complete epoch.

    Args:
        epoch: Its number, from 0.
        step: Number of optimizer steps at its end.
        metrics: Metrics that the model logged in it, those of its validation too; under
            ``NAME_step`` the value of the last step of what it logs by step.
        speed: Learning rates at its start, ``epoch_seconds`` with validation, and ``samples_per_s``
            without it.
    """

    epoch: int
    step: int
    metrics: dict[str, float]
    speed: dict[str, float]

    @property
    def row(self) -> dict[str, float]:
        """Everything that was measured, as metrics.csv and the event stream have it."""
        return {**self.metrics, **self.speed}


@dataclass
class Scored:
    """The best checkpoint, with what was measured of its weights.

    Args:
        path: The file.
        epoch: Epoch in which it was written.
        step: Number of optimizer steps that it holds.
        value: Of the monitored metric.
        metrics: Metrics that had been logged in the epoch by then; none at its end, whose row in
            metrics.csv has them.
    """

    path: Path
    epoch: int
    step: int
    value: float
    metrics: dict[str, float]

    def find_row(self, rows: Iterable[dict[str, float]]) -> dict[str, float]:
        """Return the row of metrics.csv that is of these weights.

        Without it, return one made of what is known of them.
        """
        own = {"epoch": self.epoch, "step": self.step}
        same = (row for row in rows if all(row[key] == value for key, value in own.items()))
        return next(same, {**own, **self.metrics})


def find_unit(trainer: Trainer) -> str:
    """Return the noun of what a training counts a second.

    Samples, or features that were computed before it.
    """
    return str(
        getattr(
            getattr(getattr(trainer, "train_dataloader", None), "dataset", None), "unit", "samples"
        )
    )


class EpochMeter:
    """Measures the epochs of a fit: durations, samples, and the metrics that are logged."""

    def __init__(self) -> None:
        self.rates: dict[str, float] = {}
        self.phases: dict[str, float] = {}
        self.num_batches = self.total_batches = 0
        self.is_validated = False
        self.complete: Epoch | None = None
        self._lap_s = self._began_s = time.monotonic()
        self._validation_s = self._total_training_s = 0.0
        self._num_samples = self._total_samples = 0
        self._seen: dict[str, torch.Tensor] = {}

    @property
    def samples_per_s(self) -> float | None:
        """Samples a second in training, over all complete epochs; None before the first."""
        return (
            round(self._total_samples / self._total_training_s, 2)
            if self._total_training_s > 0
            else None
        )

    def lap(self, phase: str) -> None:
        """Count the time since the last call as that of a phase of training."""
        now_s = time.monotonic()
        self.phases[phase] = self.phases.get(phase, 0.0) + now_s - self._lap_s
        self._lap_s = now_s

    def start_epoch(self, rates: Mapping[str, float]) -> None:
        """Start the clock of an epoch, or of the rest of one.

        Its learning rates were ``rates`` at its start.
        """
        self.rates = dict(rates)
        self.num_batches = 0
        self._num_samples = 0
        self.is_validated = False
        self._began_s = time.monotonic()
        self._validation_s = self.phases.get("validation", 0.0)

    def list_logged(self, trainer: Trainer) -> list[str]:
        """List the metrics that were logged in the epoch so far; for all ranks."""
        return [
            name
            for name, value in trainer.callback_metrics.items()
            if self._seen.get(name) is not value
        ]

    def pass_over(self, trainer: Trainer, logged: Iterable[str] = ()) -> None:
        """Count the metrics so far as those of an earlier epoch.

        But for those that were ``logged`` in this one.
        """
        in_epoch = set(logged)
        self._seen = {
            name: value for name, value in trainer.callback_metrics.items() if name not in in_epoch
        }

    def count(self, batch: Any) -> None:
        """Count the samples of a batch."""
        self.num_batches += 1
        self.total_batches += 1
        self._num_samples += find_batch_size(batch) or 0

    def end_epoch(self, trainer: Trainer) -> None:
        """Complete the epoch; for all ranks, because reading metrics may synchronise them."""
        seconds = time.monotonic() - self._began_s
        training_s = max(seconds - self.phases.get("validation", 0.0) + self._validation_s, 1e-9)
        num_samples = self._num_samples * trainer.world_size
        self._total_samples += num_samples
        self._total_training_s += training_s
        speed = {**self.rates, "epoch_seconds": round(seconds, 3)}
        if num_samples:
            speed["samples_per_s"] = round(num_samples / training_s, 2)
        self.complete = Epoch(trainer.current_epoch, trainer.global_step, {}, speed)
        self.num_batches = 0
        self.is_validated = False
        self.add_metrics(trainer)

    def add_metrics(self, trainer: Trainer) -> None:
        """Add what was logged since, as by the model's own ``on_train_epoch_end``.

        For all ranks.
        """
        if self.complete is None:
            return
        logged = dict(trainer.callback_metrics)
        by_step = find_step_metrics(trainer)
        for name, value in logged.items():
            # Lightning keeps the values of an earlier validation in there; those are the very same
            # tensors. "lr-..." are LearningRateMonitor's names for what `learning_rates` gives.
            if self._seen.get(name) is not value and not name.startswith("lr-"):
                self.complete.metrics[_name_column(name, by_step)] = float(value)
        self._seen = logged


def _name_column(name: str, by_step: set[str]) -> str:
    """Return the name under which an epoch's record has a metric.

    Of one that is logged by step alone, ``NAME_step``.

    So Lightning itself calls the value of a step where there is one of the epoch too.
    """
    return f"{name}{STEP_SUFFIX}" if name in by_step else name


class RunRecorder(Callback):
    """Record events, epochs and the end, on the process of rank zero.

    `start` comes before everything that may warn, and `close` after everything that may fail.

    Args:
        run: The run whose folder is kept.
        events: Its event stream.
        manifest: What is known before training; data and hardware are added, and it is written,
            once they are set up. None leaves the run's manifest as it is, as for a test of a run
            that was trained earlier.
        checkpoint: Checkpoint that will be loaded, for the start event.
        changed: Keys of the config that differ from those of an earlier run, for the scores of a
            later stage of it.
        modes: Metric -> ``min`` or ``max``, as the config sets them.
    """

    def __init__(
        self,
        run: runs.Run,
        *,
        events: runs.EventStream,
        manifest: Mapping[str, Any] | None = None,
        checkpoint: Path | None = None,
        changed: Mapping[str, Any] | None = None,
        modes: Mapping[str, str] | None = None,
    ) -> None:
        self.run = run
        self.events = events
        self.manifest = None if manifest is None else dict(manifest)
        self._checkpoint = checkpoint
        self.changed = dict(changed or {})
        self._modes_of_config = dict(modes or {})
        self._modes_of_metrics: dict[str, str] = {}
        self._warned: set[int] = set()
        self._counter = SampleCounter()
        self._sizes_of_validations = _read_sizes(run)
        self._loaded_sha256: str | None = None
        self._score: StageScore | None = None
        self._meter = EpochMeter()
        self._bad_images = _BadImages(run, events)
        self._epoch = 0
        self._has_mosaic = False
        self._restored: dict[str, Any] = {}
        self._trainer: Trainer | None = None
        # step of a checkpoint within an epoch, its metrics
        self._logged_at: tuple[int, dict[str, float]] = (-1, {})
        self._best: Scored | None = None
        self._notes: dict[str, str] = {}
        self._before_validation: dict[str, Any] = {}
        # step of the newest validation, and what it has logged
        self._validated: tuple[int, list[str]] = (-1, [])
        self._table = runs.MetricsTable(run.metrics_path)
        self._warnings = runs.WarningWatch(self._record_warning)
        self._writes = getattr(rank_zero_only, "rank", 0) == 0  # until the trainer knows better
        self._stage: str | None = None
        self._announced: str | None = None
        self._began_s = self._stage_began_s = self._summary_s = time.monotonic()
        # the main thread, or one that ends the process by force, records the end
        self._end_lock = threading.Lock()
        self._is_ended = False
        # A stage that only adds its metrics to an earlier fit leaves the fields of that fit as they
        # are.
        self._is_new = run.resumed or runs.read_summary(run.summary_path) is None
        self._results: dict[str, dict[str, float]] = {}
        self._durations: dict[str, float] = {}
        self._summary: dict[str, Any] = dict.fromkeys(
            ("exit_code", "error", "stopped_by", "stopped_early", "ended")
        )
        self._summary |= {"status": "running", "started": _now(), "durations": self._durations}

    @property
    def num_batches(self) -> int:
        """Number of training batches that this process has seen."""
        return self._meter.total_batches

    def start(self) -> None:
        """Record warnings from here on."""
        self._warnings.start()

    def close(self, error: BaseException | None = None) -> None:
        """Record the end; only the first call counts.

        A call from another thread waits a second for that one.

        Args:
            error: What ended the process before it was done.
        """
        self._warnings.stop()
        if not self._writes or not self._end_lock.acquire(timeout=_END_TIMEOUT_S):
            return
        try:
            if self._is_ended or self._is_deleted():
                return
            self._is_ended = True
            status, code, text = self.events.redact(describe_end(error))
            seconds = self._durations["total"] = round(time.monotonic() - self._began_s, 3)
            if self._is_new:
                self._write_summary(status=status, exit_code=code, error=text, ended=_now())
            why = self._summary["stopped_by"]
            more = {} if why is None else {"stopped_by": why}
            self.events.write(
                "end", status=status, exit_code=code, seconds=seconds, error=text, **more
            )
        except RunLocked:  # the run is another process's by now
            if error is None:
                raise
        except OSError as failure:
            if error is None:
                raise
            _log.warning(
                "The end of the run cannot be recorded in %s: %s.", self.run.folder, failure
            )
        finally:
            self._end_lock.release()

    def note_deadline(self) -> None:
        """Note that training ends well, but earlier than its config says."""
        self._summary["stopped_by"] = "deadline"

    def checkpoint_saved(self, path: Path, epoch: int, step: int) -> None:
        """Record that a checkpoint is on disk.

        Args:
            path: The file, ``best.ckpt``, ``last.ckpt`` or another that says why it was written.
            epoch: Epoch in which it was written.
            step: Number of optimizer steps that it holds.
        """
        self._meter.lap("checkpoint")
        trainer = self._trainer
        keeper = None if trainer is None else trainer.checkpoint_callback
        score = getattr(keeper, "best_model_score", None)
        if (
            trainer is not None
            and score is not None
            and Path(getattr(keeper, "best_model_path", "")) == path
        ):
            logged_at, logged = self._logged_at
            newest = self._table.newest
            has_row = (newest.get("epoch"), newest.get("step")) == (epoch, step)
            # else it is of an earlier process, and the file says more
            is_known = logged_at == step or has_row
            self._best = Scored(path, epoch, step, float(score), logged) if is_known else None
            self._note_stale_score(keeper)
            if self._writes and time.monotonic() - self._summary_s > _SUMMARY_INTERVAL_S:
                self._update_summary(trainer)
        if self._writes:
            relative = runs.relative(path, self.run.folder)
            self.events.write("checkpoint", path=relative, epoch=epoch, step=step, kind=path.stem)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Complete the manifest: the data module is set up by now."""
        self._trainer = trainer
        self._writes = trainer.is_global_zero
        # Lightning 2.6 gives a member of its enumeration
        self._stage = str(getattr(stage, "value", stage))
        self._stage_began_s = time.monotonic()
        if self._stage == "fit":
            self._meter.lap("setup")
        self._warnings.watch_loggers()
        self._bad_images.scan(trainer)
        if not self._writes:
            return
        # before it is loaded: a fit may be about to replace it
        if self._stage in ("validate", "test"):
            named = self._checkpoint or trainer.ckpt_path
            self._loaded_sha256 = None if named is None else known_digest(Path(named))
        if self.manifest is not None:
            if described := describe_data(getattr(trainer, "datamodule", None)):
                self.manifest["data"] = described
            self.manifest["hardware"] = _describe_hardware(trainer)
            runs.write_json(self.run.manifest_path, self.manifest)
        if self._is_new:
            self._update_summary(trainer)
        # what it resumes from is known when training starts
        if not (self._stage == "fit" and self.run.resumed):
            self._announce("start", self._checkpoint or trainer.ckpt_path)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Hand the manifest to the loggers that keep more than metrics."""
        self._meter.lap("fit_start")
        if self.manifest is not None:
            _call_each(trainer.loggers, "log_manifest", self.manifest)
        _call_each(trainer.loggers, "record_fit_start", trainer, pl_module)

    def state_dict(self) -> dict[str, Any]:
        """Keep the learning rates at the epoch's start, which a resume within the epoch records."""
        return {"rates": self._meter.rates}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the learning rates at the epoch's start, and names of what was logged since."""
        self._restored = state_dict

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Record a resume, and start the clock.

        An epoch that is resumed in its middle has no other start.
        """
        self._announce_resume(trainer)
        self._meter.pass_over(trainer, self._restored.get("logged", ()))
        self._meter.start_epoch(self._restored.get("rates") or learning_rates(trainer))
        self._meter.lap("sanity_check")

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Record the epoch before, now that all of it is logged, and start the clock."""
        self._record_epoch(trainer)
        # Lightning computes those of the training anew behind the end of their epoch
        self._meter.pass_over(trainer)
        self._epoch = trainer.current_epoch
        self._meter.start_epoch(learning_rates(trainer))
        self._meter.lap("other")

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Measure the time of loading, and keep the first batch as a picture."""
        self._meter.lap("load")
        if self._has_mosaic or not self._writes:
            return
        self._has_mosaic = True
        try_batch_mosaic(batch, getattr(trainer, "datamodule", None), self.run.folder)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count the samples, and measure the time of the step."""
        self._meter.count(batch)
        self._meter.lap("step")

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin to count samples, and note what had been logged before."""
        self._counter = SampleCounter()
        self._before_validation = dict(trainer.callback_metrics)

    on_test_start = on_validation_start

    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:  # fmt: skip
        """Count the samples of a batch."""
        self._counter.add(batch, outputs, loader=dataloader_idx)

    on_test_batch_end = on_validation_batch_end

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Measure the time of a validation within a fit.

        Record the metrics of ``lightkit validate``.
        """
        self._meter.lap("validation")
        self._meter.is_validated = not trainer.sanity_checking
        before = self._before_validation
        self._before_validation = {}
        names = [
            name
            for name, value in trainer.callback_metrics.items()
            if before.get(name) is not value
        ]
        self._validated = (trainer.global_step, names)
        if trainer.state.fn == TrainerFn.VALIDATING:
            self._record_result(trainer)
        elif not trainer.sanity_checking:
            self._modes_of_metrics |= find_metric_modes(trainer, pl_module)
            self._warn_of_modes(trainer)
            self._sizes_of_validations.add(self._counter.total(trainer, trainer.val_dataloaders))

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take the epoch's metrics, on every rank.

        Without batches or a validation Lightning only resumes at the epoch's end. After a resume
        the validation alone may be left of an epoch.
        """
        if self._meter.num_batches or self._meter.is_validated:
            self._note_short_epoch(trainer)
            self._meter.end_epoch(trainer)
        self._modes_of_metrics |= find_metric_modes(trainer, pl_module)
        self._collect_bad_images(trainer)

    def _note_stale_score(self, keeper: Any) -> None:
        """Note where the user's checkpoint was chosen by a validation of other weights."""
        step, names = self._validated
        self._notes.pop("stale", None)
        if self._best is not None and keeper.monitor in names and step != self._best.step:
            self._notes["stale"] = (
                f"{self._best.path.name} holds the weights of step {self._best.step}, but"
                f" {keeper.monitor} {self._best.value:.4g}, by which {type(keeper).__name__} has"
                f" chosen it, is of step {step}: it saves between validations. Leave"
                " every_n_train_steps and train_time_interval out, or set them to"
                " trainer.val_check_interval"
            )

    def _note_short_epoch(self, trainer: Trainer) -> None:
        """Warn where the training data ended before the length that they announce.

        Lightning does not.
        """
        num_expected = trainer.num_training_batches
        num_batches = trainer.fit_loop.batch_idx + 1
        is_stopped = (
            trainer.is_last_batch
            or trainer.should_stop
            or 0 <= trainer.max_steps <= trainer.global_step
        )
        if (
            is_stopped
            or num_batches >= num_expected
            or self._is_extra_epoch(trainer)
            or "short" in self._notes
        ):
            return
        self._notes["short"] = (
            f"the training data announce {num_expected} batches and gave {num_batches} in epoch"
            f" {trainer.current_epoch}: Lightning then leaves out what belongs to the end of the"
            " epoch, its validation and the step of its learning rate schedules. Let the length"
            f" (__len__) be what comes, or set trainer.limit_train_batches={num_batches}"
        )
        if self._writes:
            logging.getLogger("lightkit").warning("%s", self._notes["short"])

    @staticmethod
    def _is_extra_epoch(trainer: Trainer) -> bool:
        """Check whether `StochasticWeightAveraging` has added this epoch for BatchNorm.

        It has a batch too many.
        """
        averages = any(isinstance(each, StochasticWeightAveraging) for each in _callbacks(trainer))
        return averages and trainer.current_epoch + 1 == trainer.max_epochs

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Write the epoch before its checkpoint.

        The next process goes on after it and would never write it.

        Raises:
            LightkitError: If the run's folder was deleted: to make it anew would leave half a run.
        """
        if self._is_deleted():
            raise LightkitError(
                f"The run folder {self.run.folder} was deleted while it was trained, and nothing"
                " can be saved. The same command begins a new run."
            )
        if self._meter.complete is None:  # within an epoch
            logged = self._meter.list_logged(trainer)
            checkpoint["callbacks"][self.state_key]["logged"] = logged
            by_step = find_step_metrics(trainer)
            values = {
                _name_column(name, by_step): float(trainer.callback_metrics[name])
                for name in logged
            }
            self._logged_at = (trainer.global_step, values)
        self._record_epoch(trainer)
        self._meter.lap("other")

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Record the last epoch."""
        self._record_epoch(trainer)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Call the loggers; the end itself is recorded when the process has ended well."""
        self._announce_resume(trainer)
        if self._summary["stopped_by"] is None:
            self._summary["stopped_early"] = explain_early_end(trainer)
        keeper = trainer.checkpoint_callback
        newest = keeper.explain_newest(trainer) if isinstance(keeper, Checkpoint) else None
        if newest is not None:
            self._notes["newest"] = f"best.ckpt is the newest: {newest}"
        if (averaging := self._explain_averaging(trainer)) is not None:
            self._notes["averaging"] = averaging
        self._end_stage(trainer)
        _call_each(trainer.loggers, "record_fit_end", trainer, pl_module)

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Record the metrics of ``lightkit test``, or that predictions were made."""
        self._record_result(trainer)

    on_predict_end = on_test_end

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """List and report the images that came up last."""
        self._collect_bad_images(trainer)

    def _collect_bad_images(self, trainer: Trainer, *, is_alone: bool = False) -> None:
        found = f"epoch {self._epoch}" if self._stage == "fit" else str(self._stage)
        self._bad_images.collect(trainer, found, is_alone=is_alone)

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Write what is complete, and note where it happened. The end is recorded by `close`."""
        if isinstance(exception, Exception) and not isinstance(exception, LightkitError):
            notes = [f"This was in epoch {trainer.current_epoch}, step {trainer.global_step}."]
            if trainer.training and (path := runs.newest_written(self.run.checkpoints)) is not None:
                notes.append(f"The same command resumes from {path}.")
            for note in notes:
                exception.add_note(note)
        try:
            self._collect_bad_images(trainer, is_alone=True)
            if self._writes and not self._is_ended and not self._is_deleted():
                self._hand_over_epoch(trainer)
                self._end_stage(trainer)
        except OSError as failure:  # the exception that ends the training is the one to report
            _log.warning("What is complete cannot be recorded in %s: %s.", self.run.folder, failure)

    def _record_epoch(self, trainer: Trainer) -> None:
        """Record the epoch that is complete, if there is one; for all ranks."""
        self._meter.add_metrics(trainer)
        self._hand_over_epoch(trainer)

    def _hand_over_epoch(self, trainer: Trainer) -> None:
        epoch = self._meter.complete
        self._meter.complete = None
        if epoch is None:
            return
        if self._writes:
            seconds = epoch.speed["epoch_seconds"]
            self.events.write(
                "epoch", epoch=epoch.epoch, step=epoch.step, metrics=epoch.row, seconds=seconds
            )
            # made from the events, so after them
            self._table.record(epoch.epoch, epoch.step, epoch.row)
            own = {name: value for name, value in epoch.speed.items() if name not in epoch.metrics}
            _call_each(trainer.loggers, "record_speed", epoch.step, own)
            if time.monotonic() - self._summary_s > _SUMMARY_INTERVAL_S:
                self._update_summary(trainer)
        _call_each(_callbacks(trainer), "on_epoch_recorded", trainer, epoch)

    def _record_result(self, trainer: Trainer) -> None:
        assert self._stage is not None
        # on all ranks
        metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
        if self._stage in ("validate", "test"):
            self._modes_of_metrics |= find_metric_modes(trainer, trainer.lightning_module)
            self._score = self._make_score(trainer, self._stage, metrics)  # on all ranks, too
        if self._writes:
            self._results[self._stage] = metrics
            self._end_stage(trainer)
            self.events.write("result", stage=self._stage, metrics=metrics)
            if self._score is not None:
                _call_each(trainer.loggers, "record_result", self._is_of_other_run(self._score))
        _call_each(_callbacks(trainer), "on_result_recorded", trainer, self._stage, metrics)

    def _is_of_other_run(self, score: StageScore) -> bool:
        """Check whether a result is of other weights, data or settings than those of the run."""
        manifest = self.manifest or runs.read_json(self.run.manifest_path) or {}
        summary = runs.read_summary(self.run.summary_path) or {}
        return is_of_other_run(score, self.run, summary, manifest)

    def _warn_of_modes(self, trainer: Trainer) -> None:
        """Warn once of each callback whose mode contradicts the metric's object.

        `check` knows the name alone.
        """
        for callback in _callbacks(trainer):
            monitor = getattr(callback, "monitor", None)
            mode = getattr(callback, "mode", None)
            # which follows the metric, or what the config says of it
            is_own = isinstance(callback, Checkpoint)
            if not isinstance(monitor, str) or mode not in ("min", "max") or is_own:
                continue
            best = infer_mode(monitor, recorded=self._modes_of_metrics)
            is_news = (
                infer_mode_by_name(monitor) in (None, mode) and id(callback) not in self._warned
            )
            if best is not None and best != mode and is_news and self._writes:
                self._warned.add(id(callback))
                size = "small" if best == "min" else "large"
                text = (
                    "%s monitors %s with mode: %s, but its metric object says that %s values are"
                    " good; set mode: %s"
                )
                _log.warning(text, type(callback).__name__, monitor, mode, size, best)

    def _make_score(self, trainer: Trainer, stage: str, metrics: Mapping[str, float]) -> StageScore:
        """Return the result of a stage with what it belongs to; for all ranks."""
        loaders = trainer.test_dataloaders if stage == "test" else trainer.val_dataloaders
        num_samples = self._counter.total(trainer, loaders)
        limit = trainer.limit_test_batches if stage == "test" else trainer.limit_val_batches
        path = Path(trainer.ckpt_path) if trainer.ckpt_path else None
        sha256 = None
        epoch = None
        if path is not None and self._writes and path.is_file():
            # one that a fit has replaced meanwhile may be, or not be, what was loaded
            sha256 = self._loaded_sha256 if known_digest(path) == self._loaded_sha256 else None
            with suppress(LightkitError):  # it was read before, so that this is a small loss
                epoch = read_checkpoint(path, mmap=True).get("epoch") if sha256 else None
        describe = getattr(getattr(trainer, "datamodule", None), "describe", None)
        return StageScore(
            stage=stage,
            metrics=metrics,
            checkpoint=None if path is None else runs.relative(path, self.run.folder),
            sha256=sha256,
            epoch=epoch if isinstance(epoch, int) else None,
            data=describe().get("fingerprint") if callable(describe) else None,
            limit=None if isinstance(limit, float) and limit == 1.0 else limit,
            num_samples=num_samples,
            precision=str(trainer.precision),
            device=name_device(trainer.strategy.root_device),
            changed=self.changed,
            time=_now(),
        )

    def _is_deleted(self) -> bool:
        is_known = self._announced == "fit" and self._writes and self.manifest is not None
        return is_known and not self.run.manifest_path.exists()

    def _announce(self, event: str, checkpoint: Any, **more: Any) -> None:
        name = f"{self.run.name}/{self.run.id}"
        path = checkpoint and runs.relative(checkpoint, self.run.folder)
        self.events.write(
            event, run=name, stage=self._stage, folder=str(self.run.folder), checkpoint=path, **more
        )
        self._announced = self._stage

    def _announce_resume(self, trainer: Trainer) -> None:
        if self._writes and self._announced != "fit":
            self._announce(
                "resume", trainer.ckpt_path, epoch=trainer.current_epoch, step=trainer.global_step
            )

    def _end_stage(self, trainer: Trainer) -> None:
        if self._stage is not None and self._writes:
            self._durations[self._stage] = round(time.monotonic() - self._stage_began_s, 3)
            self._update_summary(trainer)

    def _update_summary(self, trainer: Trainer) -> None:
        """Write the present state of the fit, or the result of another stage."""
        if self._stage != "fit":
            self._write_summary()
            return
        rows = self._table.rows
        keeper = trainer.checkpoint_callback
        latest: dict[str, float] = rows[-1] if rows else {}
        best = latest
        chosen = None
        if isinstance(keeper, ModelCheckpoint) and keeper.monitor is not None:
            best, chosen = self._describe_best(keeper, rows)
        run = self.run
        keepers = trainer.checkpoint_callbacks
        last = next(
            (path for each in keepers if (path := getattr(each, "last_model_path", ""))), ""
        )
        paths = {
            "best_checkpoint": Path(
                getattr(keeper, "best_model_path", "") or run.checkpoints / "best.ckpt"
            ),
            "last_checkpoint": Path(last or run.checkpoints / "last.ckpt"),
            "config": run.config_path,
            "manifest": run.manifest_path,
            "events": run.events_path,
            "metrics": run.metrics_path,
        }
        self._write_summary(
            epochs=int(latest["epoch"]) + 1 if latest else 0,
            steps=trainer.global_step,
            throughput=self._describe_throughput(trainer),
            phases={name: round(seconds, 3) for name, seconds in self._meter.phases.items()},
            metrics={"best": best, "last": latest},
            best=chosen,
            notes=list(self._notes.values()),
            paths={name: str(path) for name, path in paths.items() if path.exists()},
        )

    def _describe_best(
        self, keeper: ModelCheckpoint, rows: Sequence[dict[str, float]]
    ) -> tuple[dict[str, float], dict[str, Any] | None]:
        """Return the metrics of the best checkpoint, and its entry in the summary.

        None where there is none yet.
        """
        scored = self._find_best(keeper)
        if scored is None:
            return {}, None
        chosen = {
            "monitor": keeper.monitor,
            "mode": keeper.mode,
            "value": scored.value,
            "epoch": scored.epoch,
            "step": scored.step,
        }
        return scored.find_row(rows), chosen

    def _describe_throughput(self, trainer: Trainer) -> dict[str, float | None]:
        """Return the rate of the training.

        Of features that were computed before it, as such too.
        """
        rate = self._meter.samples_per_s
        return {f"{unit}_per_s": rate for unit in ("samples", find_unit(trainer))}

    def _explain_averaging(self, trainer: Trainer) -> str | None:
        """Return which weights are in which checkpoint where there are others than the model's own.

        Else None.
        """
        takes = "test and export take the best checkpoint unless --ckpt_path names another"
        averaging = [
            type(each).__name__ for each in _callbacks(trainer) if isinstance(each, WeightAveraging)
        ]
        if averaging:
            return (
                f"the checkpoints hold the averaged weights of {averaging[0]}, which validation"
                f" scores; {takes}"
            )
        final = self.run.checkpoints / FINAL_NAME
        swa = any(isinstance(each, StochasticWeightAveraging) for each in _callbacks(trainer))
        if final.is_file():
            who = "StochasticWeightAveraging" if swa else "a callback or the model"
            return (
                f"{FINAL_NAME} holds the weights that {who} has put in place at the end of"
                " training, which no validation has scored; the other checkpoints hold the weights"
                f" as they were trained; {takes}"
            )
        if not swa:
            return None
        if trainer.max_epochs is not None and 0 <= trainer.max_epochs < len(self._table.rows):
            return (
                "the checkpoint of the last epoch holds the average of StochasticWeightAveraging,"
                f" the others the weights as they were trained; {takes}"
            )
        return (
            "training ended before StochasticWeightAveraging put its average in place: all"
            f" checkpoints hold the weights as they were trained; {takes}"
        )

    def _find_best(self, keeper: ModelCheckpoint) -> Scored | None:
        """Return the best checkpoint: of this process, or of one before it.

        The file then describes it itself.
        """
        path = Path(keeper.best_model_path)
        if self._best is not None and self._best.path == path:
            return self._best
        # nothing yet, or in an object store
        if not path.is_file() or keeper.best_model_score is None:
            return None
        try:
            content = load_file(path, map_location="cpu", mmap=zipfile.is_zipfile(path))
            metrics = content.get("lightkit_resume", {}).get("callback_metrics", {})
            # weights alone have none
            logged = content.get("callbacks", {}).get(self.state_key, {}).get("logged", ())
            measured = {name: float(metrics[name]) for name in logged if name in metrics}
            epoch = int(content["epoch"])
            step = int(content["global_step"])
        except (ConfigError, KeyError, TypeError, AttributeError) as error:
            _log.debug("%s does not say of which epoch it is: %s", path, error)
            return None
        self._best = Scored(path, epoch, step, float(keeper.best_model_score), measured)
        return self._best

    def _write_summary(self, **fields: Any) -> None:
        """Write this process's fields into what the file holds.

        A test may run at the same time as the fit.
        """
        self._summary |= fields
        self._summary_s = time.monotonic()
        path = self.run.summary_path
        summary = runs.read_summary(path) or runs.new_summary(f"{self.run.name}/{self.run.id}")
        summary |= self._summary if self._is_new else {}
        summary["durations"] = {**summary["durations"], **self._durations}
        summary["stages"] = {**summary["stages"], **self._results}
        if self._stage == "fit":
            now = override_modes(self._modes_of_metrics, self._modes_of_config)
            summary["modes"] = override_modes(summary["modes"], now)
        else:  # of a test, whose config is the run's
            summary["modes"] = override_modes(self._modes_of_metrics, summary["modes"])
        if self._score is not None:
            summary["scores"] = write_scores(add_score(read_scores(summary), self._score))
        if self._stage == "fit":
            sizes = self._sizes_of_validations
            summary["samples"] = (
                {"val": next(iter(sizes)) if len(sizes) == 1 else None} if sizes else {}
            )
            self._drop_stale_scores(summary)
        runs.write_summary(path, summary)

    def _drop_stale_scores(self, summary: dict[str, Any]) -> None:
        """Leave out scores of weights that this fit has replaced, or data it has changed."""
        scores = drop_lost_scores(self.run, read_scores(summary))
        summary["scores"] = write_scores(scores)
        own = {
            each.stage: dict(each.metrics)
            for each in list_own_scores(self.run, summary, self.manifest or {})
        }
        others = {
            stage: metrics
            for stage, metrics in summary["stages"].items()
            if stage not in ("validate", "test")
        }
        summary["stages"] = {**others, **own}

    def _record_warning(self, message: str, source: str) -> None:
        if self._writes and not self._is_ended:
            # a warning must not end the run; it is shown, and the next record fails aloud
            with suppress(OSError):
                self.events.write("warning", message=message, source=source)


class _BadImages:
    """Keep ``bad_images.csv``, reported in one line and one event.

    Before a stage, and once an epoch at most.

    The data module has an attribute ``defects`` with a list ``found`` and a method ``take_noted``,
    which gives those that came up since the last call; each has a ``name`` and a ``reason``.
    `RunRecorder` calls this on every rank; rank 0 lists and reports what the workers of all ranks
    have met.
    """

    def __init__(self, run: runs.Run, events: runs.EventStream) -> None:
        self._path = run.folder / "bad_images.csv"
        self._events = events
        self._rows: dict[str, BadImage] = {}

    def scan(self, trainer: Trainer) -> None:
        """List and report what the scan has found; the data module is set up by now."""
        if (defects := _defects_of(trainer)) is None or not trainer.is_global_zero:
            return
        found = [BadImage(defect.name, defect.reason, "scan") for defect in defects.found]
        is_fit = trainer.state.fn == TrainerFn.FITTING  # which replaces the scan of an earlier one
        earlier = [
            row for row in read_bad_images(self._path) if not (is_fit and row.found == "scan")
        ]
        self._rows = {row.path: row for row in (*found, *earlier)}
        self._report(found, "cannot be used and will be left out")

    def collect(self, trainer: Trainer, found: str, *, is_alone: bool) -> None:
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
            name = self._path.name
            self._events.write(
                "bad_images",
                count=len(rows),
                reasons=Counter(reasons),
                found=rows[-1].found,
                path=name,
            )
            images = format_count(len(rows), "image")
            text = "%s %s (%s); listed in %s"
            _log.warning(text, images, what, most_frequent(reasons), shown_path(self._path))


def _defects_of(trainer: Trainer) -> Any:
    return find_defects(getattr(trainer, "datamodule", None))


def _callbacks(trainer: Trainer) -> list[Callback]:
    return trainer.callbacks  # type: ignore[attr-defined, no-any-return]


def _call_each(receivers: Iterable[Any], hook: str, *arguments: Any) -> None:
    for receiver in receivers:
        if callable(method := getattr(receiver, hook, None)):
            method(*arguments)


def learning_rates(trainer: Trainer) -> dict[str, float]:
    """Return ``lr``, or ``lr/0``, ``lr/1``, ... where parameter groups differ.

    As the next step is taken with them.

    A callback that changes them within steps only has ``warmup_factor(trainer)``, by which they are
    multiplied here.
    """
    factor = 1.0
    for each in _callbacks(trainer):
        warmup = getattr(each, "warmup_factor", None)
        if callable(warmup):
            with describing(type(each).__name__):
                factor *= float(warmup(trainer))
    rates = [rate * factor for rate in list_rates(trainer)]
    if len(set(rates)) == 1:
        return {"lr": rates[0]}
    return {f"lr/{index}": rate for index, rate in enumerate(rates)}


def list_rates(trainer: Trainer) -> list[float]:
    """List the learning rates of all parameter groups that have one.

    An optimizer of one's own may have none.
    """
    groups = [
        group
        for optimizer in trainer.optimizers
        for group in getattr(optimizer, "param_groups", ())
    ]
    return [float(group["lr"]) for group in groups if "lr" in group]


def find_batch_size(batch: Any) -> int | None:
    """Return the first dimension of the first tensor in a batch, however it is nested.

    None if there is no tensor.
    """
    if isinstance(batch, torch.Tensor):
        return batch.shape[0] if batch.ndim else 1
    parts: Iterable[Any] = batch.values() if isinstance(batch, Mapping) else batch
    if isinstance(batch, Mapping | list | tuple):
        return next((size for part in parts if (size := find_batch_size(part)) is not None), None)
    return None


def describe_end(error: BaseException | None) -> tuple[str, int, str | None]:
    """Return status, exit code and one line of text for what ended a process."""
    code = 0 if error is None else exit_code_of(error)
    if error is None or code == 0:
        return "done", 0, None
    if isinstance(error, Interrupted):
        text = f"signal {error.signum}"
    else:
        text = (
            str(error)
            if isinstance(error, LightkitError)
            else " ".join(f"{type(error).__name__}: {error}".split())
        )
    # and no server that does not answer
    if isinstance(error, (Interrupted, OutOfTime)) and code == 75:
        return "preempted", code, text
    return (
        "interrupted" if isinstance(error, (Interrupted, KeyboardInterrupt)) else "failed",
        code,
        text,
    )


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


def _read_sizes(run: runs.Run) -> set[int | None]:
    """Return the sizes of the validations of a run that is resumed."""
    summary = runs.read_summary(run.summary_path) if run.resumed else None
    samples = runs.find_value(summary, "samples") or {}
    return {samples["val"]} if "val" in samples else set()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
