"""What a recorded run adds to the trainer of its config: callbacks, a checkpoint writer, and the parts of an engine."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning_fabric.plugins.environments.slurm import SLURMEnvironment
from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.callbacks import LambdaCallback, ModelCheckpoint, ProgressBar
from pytorch_lightning.plugins import CheckpointIO

from lightkit import runs
from lightkit.callbacks import (
    BadImages,
    Checkpoint,
    Computation,
    DiskSpaceMonitor,
    FiniteLoss,
    PredictionTable,
    ResumeState,
    StallWatch,
    StopOnSignal,
    VerifiedCheckpointIO,
    VerifiedXLACheckpointIO,
    progress_for,
)
from lightkit.callbacks.deadline import StopAtDeadline
from lightkit.callbacks.nonfinite import nan_weights
from lightkit.callbacks.notifiers import Notifier
from lightkit.callbacks.safe_loading import CheckpointReader, check_content, read_checkpoint
from lightkit.cli.context import RunContext
from lightkit.cli.deadline_option import get_deadline
from lightkit.cli.predict_images import build_prediction_callback
from lightkit.cli.redaction import drop_nulls, redact, redact_hyperparameters
from lightkit.cli.run_header import RunHeader
from lightkit.cli.scripted import DataChanged
from lightkit.cli.stage import Stage
from lightkit.cli.stall_report import make_watchdog
from lightkit.distributed.xla import HushXLA, trains_on_xla
from lightkit.errors import ConfigError
from lightkit.launch import WatchdogSettings, heartbeat, read_watchdog
from lightkit.launch.plan import THREADS

__all__ = ["TrainerComponents", "computation_unrecorded", "list_callbacks", "share_devices", "take_threads"]

_OF_ALL_STAGES = ("memory_format", "tf32")
_OF_TRAINING = (*_OF_ALL_STAGES, "compile", "fused")


def share_devices(trainer: Any, session: RunContext) -> None:
    """Let the trainer count the ranks as their launcher does; the saved config keeps what the user said."""
    rank = None if session.rank_context is None else session.rank_context.rank
    if rank is None or rank.engine not in ("torchrun", "slurm", "ray"):
        return
    in_ray = rank.engine == "ray"  # it shows each rank one device, and knows the others itself
    if not isinstance(trainer.get("devices"), list):
        trainer["devices"] = 1 if in_ray else rank.local_size
    trainer["num_nodes"] = 1 if in_ray else rank.num_nodes
    if rank.size > 1 and trainer.get("strategy") in (None, "auto"):
        trainer["strategy"] = "ddp"


def take_threads(session: RunContext, section: Any) -> None:
    """Compute with the threads of the config: torch has made its pool by now. Processes started later are told.

    Args:
        session: The invocation, at whose end all is as before.
        section: The config of the command.
    """
    threads = section["launch"]["threads"]
    if threads is None:
        return
    before, told = torch.get_num_threads(), os.environ.get(THREADS)

    def take_back() -> None:
        torch.set_num_threads(before)
        os.environ.pop(THREADS, None)
        os.environ.update({} if told is None else {THREADS: told})

    session.stack.callback(take_back)
    torch.set_num_threads(threads)
    os.environ[THREADS] = str(threads)


def list_callbacks(given: Mapping[str, Any]) -> list[Callback]:
    """Give the callbacks among a trainer's arguments, where one alone may stand."""
    own = given.get("callbacks") or []
    return list(own) if isinstance(own, list) else [own]


def computation_unrecorded(section: Any) -> Computation | None:
    """Give what computes as the section `accelerator` says where no run is recorded.

    Args:
        section: Of a config without a session, or without a command; None where the parser has no such section.
    """
    return _computation({} if section is None else dict(vars(section)), _OF_TRAINING)


def _computation(said: Mapping[str, Any], keys: Collection[str]) -> Computation | None:
    """Give what computes as the section `accelerator` says; None where it says nothing else than torch does."""
    given = {key: said[key] for key in keys if said.get(key) not in (None, False, "contiguous")}
    given |= {key: False for key in ("tf32", "fused") if key in keys and said.get(key) is False}
    return Computation(**given) if given else None


class TrainerComponents:
    """What the trainer of a run gets beside what its config says.

    Args:
        session: The invocation.
        stage: The stage that has begun.
        saved_config: The config as the run folder keeps it.
    """

    def __init__(self, session: RunContext, stage: Stage, saved_config: Mapping[str, Any]) -> None:
        self._session = session
        self._stage = stage
        self._saved_config = saved_config

    def arguments(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Give the trainer's arguments that differ from those of the config.

        Args:
            given: The trainer's arguments, with callbacks and plugins that are built.
        """
        callbacks, plugins = self._callbacks(given), self._plugins(given)
        return {"callbacks": callbacks, "plugins": plugins, **self._parts_of_engine(callbacks, plugins)}

    def _parts_of_engine(self, callbacks: list[Callback], plugins: list[Any] | None) -> dict[str, Any]:
        """Give the trainer what an engine has for it beside its variables."""
        engine = None if self._session.rank_context is None else self._session.rank_context.rank.engine
        if engine == "slurm":  # the batch script puts the job into the queue again, with our own checkpoint
            return {"plugins": [*(plugins or []), SLURMEnvironment(auto_requeue=False)]}
        if engine != "ray":
            return {}
        from lightkit.launch.ray import lightning_parts  # here, because it loads Ray

        strategy, its_plugins, its_callbacks = lightning_parts()
        return {
            "strategy": strategy,
            "plugins": [*(plugins or []), *its_plugins],
            "callbacks": [*callbacks, *its_callbacks],
        }

    def _callbacks(self, given: Mapping[str, Any]) -> list[Callback]:
        own = list_callbacks(given)
        if given.get("enable_checkpointing") is False:  # Lightning refuses the default entry then
            own = [callback for callback in own if not isinstance(callback, Checkpoint)]
        run, rank_context = self._stage.start.run, self._session.rank_context
        shown: list[Callback] = [RunHeader(self._session.mode, run, self._session.hardware)]
        if given.get("enable_progress_bar") is not False and not any(
            isinstance(callback, ProgressBar) for callback in own
        ):
            shown.append(progress_for(self._session.mode, tells_end=not self._session.inputs))
        if self._session.command == "predict":
            shown.append(
                build_prediction_callback(self._session) if self._session.inputs else PredictionTable(run.folder)
            )
        stop = StopOnSignal(self._session.watch, last_good=self._last_good)
        unchanged = LambdaCallback(setup=self._refuse_other_data)
        began = LambdaCallback(on_fit_start=self._log_config, on_train_start=self._note_beginning)
        watchdog = make_watchdog(self._session, self._stage, read_watchdog(self._session.resolved))
        watch = StallWatch(watchdog, gently=rank_context is None)
        recorder = self._stage.recorder
        bad_images = BadImages(run, events=recorder.events)
        hush: list[Callback] = [HushXLA()] if trains_on_xla(given.get("accelerator"), given.get("strategy")) else []
        late = self._in_time()
        hush += self._finite_loss()  # before others, so that none takes a spoilt batch for a good one
        return [
            *self._computation(),
            *hush,
            unchanged,
            *own,
            recorder,
            bad_images,
            ResumeState(),
            stop,
            *late,
            began,
            watch,
            *shown,
        ]

    def _computation(self) -> list[Callback]:
        """Give what computes as the section `accelerator` says; only training compiles, or has an optimizer."""
        said: Mapping[str, Any] = self._saved_config.get("accelerator") or {}
        keys = _OF_TRAINING if self._session.command == "fit" else _OF_ALL_STAGES
        computing = _computation(said, keys)
        return [] if computing is None else [computing]

    def _finite_loss(self) -> list[Callback]:
        """Give what looks at the loss of each training batch, and at the disk."""
        if self._session.command != "fit":
            return []
        action = (self._saved_config.get("watchdog") or {}).get("on_nonfinite", WatchdogSettings().on_nonfinite)
        run, events = self._stage.start.run, self._stage.recorder.events
        return [
            DiskSpaceMonitor(run),
            FiniteLoss(action, events=events, last_good=self._last_good),
        ]

    def _in_time(self) -> list[Callback]:
        """Give what heeds the deadline, if there is one."""
        deadline = get_deadline(self._session)
        if deadline is None:
            return []
        return [
            StopAtDeadline(
                deadline,
                last_good=self._last_good,
                stopped=self._stage.recorder.stopped_early,
            )
        ]

    def _last_good(self) -> Path | None:
        """Return the newest checkpoint that can be read."""
        return runs.last_good(self._stage.start.run.checkpoints, report=lambda _: None)

    def _refuse_other_data(self, trainer: Trainer, _module: LightningModule, stage: str) -> None:
        """Do not go on by itself with other data than the interrupted run had."""
        before = self._stage.data_before
        describe = getattr(trainer.datamodule, "describe", None)  # type: ignore[attr-defined]
        if stage != "fit" or not self._stage.resumes_by_itself or before is None or not callable(describe):
            return
        now = describe()
        if now.get("fingerprint") != before.get("fingerprint"):
            versions = [said.get("version") for said in (before, now)]
            which = (
                ""
                if None in versions or len(set(map(str, versions))) == 1
                else " (version {}, now {})".format(*versions)
            )
            raise DataChanged(
                f"begins a new run: the data has changed since {self._stage.start.run.folder} was interrupted{which}; "
                f"--run.resume={self._stage.start.run.folder} goes on there"
            )

    def _refuse_spoilt(self, checkpoint: Path, state: Mapping[str, Any]) -> None:
        """Do not go on from weights that are NaN: no training heals them, and the same would come out each night."""
        if not (names := nan_weights(state)):
            return
        what = f"weights of {checkpoint} are NaN ({', '.join(names[:3])}{', ...' * (len(names) > 3)})"
        if not self._stage.resumes_by_itself:
            raise ConfigError(f"No training can go on from it: {what}. Expected a checkpoint from before, or none.")
        raise DataChanged(f"begins a new run: {what}, and no training can go on from them")

    def _log_config(self, trainer: Trainer, _module: LightningModule) -> None:
        """Give trackers the whole config; Lightning gives them the model's and the data's arguments only."""
        for logger in trainer.loggers:
            logger.log_hyperparams(drop_nulls(self._saved_config))

    def _note_beginning(self, trainer: Trainer, _module: LightningModule) -> None:
        """From here on the run is worth keeping, and the newest."""
        if trainer.is_global_zero and not getattr(trainer, "fast_dev_run", False):
            runs.point_latest(self._stage.start.run)
        self._stage.worth_keeping.set()

    def _plugins(self, given: Mapping[str, Any]) -> list[Any] | None:
        own = given.get("plugins")
        plugins = list(own) if isinstance(own, list) else [] if own is None else [own]
        if not any(isinstance(plugin, CheckpointIO) for plugin in plugins):
            on_xla = trains_on_xla(given.get("accelerator"), given.get("strategy"))
            kind = VerifiedXLACheckpointIO if on_xla else VerifiedCheckpointIO
            mask, taken = partial(redact, self._session.resolved), heartbeat().leave
            plugins.append(kind(mask=mask, on_saved=self._note_checkpoint, on_taken=taken))
        return plugins

    def _note_checkpoint(self, path: Path, facts: Mapping[str, Any]) -> None:
        self._stage.recorder.checkpoint_saved(path, facts["epoch"], facts["global_step"], path.stem)

    def attach(self, trainer: Trainer) -> None:
        """Judge the checkpoint, give people's own checkpoint callbacks their folder, and keep secrets from loggers.

        Raises:
            ConfigError: If the checkpoint is none, needs code, or is not enough to go on from.
        """
        checkpoint = self._stage.start.checkpoint
        if checkpoint is not None and isinstance(trainer.strategy.checkpoint_io, CheckpointReader):
            content = read_checkpoint(checkpoint, mmap=True)  # here, before data are prepared
            check_content(content, checkpoint, goes_on=self._session.command == "fit")
            if self._session.command == "fit":
                self._refuse_spoilt(checkpoint, content["state_dict"])
        for callback in trainer.checkpoint_callbacks:
            if isinstance(callback, ModelCheckpoint) and callback.dirpath is None:
                callback.dirpath = str(self._stage.start.run.checkpoints)
        for logger in trainer.loggers:
            redact_hyperparameters(logger, self._session.resolved)
        callbacks = trainer.callbacks  # type: ignore[attr-defined]
        notifiers = [callback for callback in callbacks if isinstance(callback, Notifier)]
        self._session.notifier.adopt(notifiers, self._session.resolved)
