"""What a recorded run adds to the trainer of its config: callbacks, checkpoint plugin, parts of an engine."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jsonargparse import Namespace
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
from lightkit.callbacks.checkpoint import ResumeCheckpoint
from lightkit.callbacks.checkpoint_io import CheckpointReader, check_content, read_checkpoint
from lightkit.callbacks.deadline import StopAtDeadline
from lightkit.callbacks.nonfinite import nan_weights
from lightkit.callbacks.notifiers import Notifier
from lightkit.cli.context import RunContext
from lightkit.cli.deadline_option import get_deadline
from lightkit.cli.predict_images import build_prediction_callback
from lightkit.cli.redaction import drop_nulls, redact, redact_hyperparameters
from lightkit.cli.run_header import RunHeader
from lightkit.cli.run_lifecycle import find_last_good
from lightkit.cli.stall_report import make_watchdog
from lightkit.config import dotted
from lightkit.config.tree import Leaf, plain, walk
from lightkit.distributed.xla import HushXLA, trains_on_xla
from lightkit.errors import ConfigError, DataChanged
from lightkit.launch import WatchdogSettings, heartbeat, read_watchdog
from lightkit.launch.plan import THREADS

__all__ = ["build_components", "build_computation", "finish_trainer", "list_callbacks", "set_devices", "set_threads"]


def set_devices(trainer: Namespace, context: RunContext) -> None:
    """Set the trainer's devices, nodes and strategy as the launcher counts them; the saved config keeps the user's."""
    rank = None if context.rank_context is None else context.rank_context.rank
    if rank is None or rank.engine not in ("torchrun", "slurm", "ray"):
        return
    in_ray = rank.engine == "ray"  # it shows each rank one device, and knows the others itself
    if not isinstance(trainer.get("devices"), list):
        trainer["devices"] = 1 if in_ray else rank.local_size
    trainer["num_nodes"] = 1 if in_ray else rank.num_nodes
    if rank.size > 1 and trainer.get("strategy") in (None, "auto"):
        trainer["strategy"] = "ddp"


def set_threads(num_threads: int | None, context: RunContext) -> None:
    """Set torch's threads, whose pool exists by now, and those of processes started later, until the context ends."""
    if num_threads is None:
        return
    before, variable = torch.get_num_threads(), os.environ.get(THREADS)

    def restore() -> None:
        torch.set_num_threads(before)
        os.environ.pop(THREADS, None)
        os.environ.update({} if variable is None else {THREADS: variable})

    context.stack.callback(restore)
    torch.set_num_threads(num_threads)
    os.environ[THREADS] = str(num_threads)


def list_callbacks(trainer: Mapping[str, Any]) -> list[Callback]:
    """List the callbacks among a trainer's arguments, where a single one may stand."""
    own = trainer.get("callbacks") or []
    return list(own) if isinstance(own, list) else [own]


def build_computation(section: Mapping[str, Any], *, trains: bool = True) -> list[Callback]:
    """Build the callback that applies the section `accelerator`; none where it leaves torch's defaults.

    Args:
        section: The section.
        trains: Whether the model is trained: only then it is compiled, and has an optimizer.
    """
    keys = ("memory_format", "tf32", "compile", "fused") if trains else ("memory_format", "tf32")
    given = {key: section[key] for key in keys if section.get(key) not in (None, False, "contiguous")}
    given |= {key: False for key in ("tf32", "fused") if key in keys and section.get(key) is False}
    return [Computation(**given)] if given else []


def build_components(context: RunContext, trainer: Mapping[str, Any], added: Sequence[Callback] = ()) -> dict[str, Any]:
    """Build the trainer's arguments that differ from those of the config.

    Args:
        context: The invocation, whose run has begun.
        trainer: The trainer's arguments, with callbacks and plugins instantiated.
        added: Callbacks that LightningCLI adds to them.
    """
    callbacks = _build_callbacks(context, trainer)
    keeps = context.has_own_parser and context.command == "fit" and trainer.get("enable_checkpointing") is not False
    if keeps and not any(isinstance(callback, ModelCheckpoint) for callback in (*callbacks, *added)):
        callbacks.append(Checkpoint())
    own = trainer.get("plugins")
    plugins = list(own) if isinstance(own, list) else [] if own is None else [own]
    if not any(isinstance(plugin, CheckpointIO) for plugin in plugins):
        kind = VerifiedXLACheckpointIO if _is_on_xla(trainer) else VerifiedCheckpointIO
        mask = partial(redact, context.resolved)
        plugins.append(kind(mask=mask, on_saved=partial(_record_checkpoint, context), on_taken=heartbeat().leave))
    arguments = {
        "callbacks": callbacks,
        "plugins": plugins,
        "enable_model_summary": trainer.get("enable_model_summary") or False,
    }
    engine = None if context.rank_context is None else context.rank_context.rank.engine
    if engine == "slurm":  # the batch script requeues the job, with our own checkpoint
        plugins.append(SLURMEnvironment(auto_requeue=False))
    elif engine == "ray":
        from lightkit.launch.ray import lightning_parts  # here, because it loads Ray

        arguments["strategy"], environment = lightning_parts()
        plugins.append(environment)
    return arguments


def _build_callbacks(context: RunContext, trainer: Mapping[str, Any]) -> list[Callback]:
    run, recorder, trains = context.run, context.recorder, context.command == "fit"
    saved, last_good = context.saved_config, partial(find_last_good, context)
    own = list_callbacks(trainer)
    if trainer.get("enable_checkpointing") is False:  # Lightning refuses the default entry then
        own = [callback for callback in own if not isinstance(callback, Checkpoint)]
    first: list[Callback] = build_computation(saved.get("accelerator") or {}, trains=trains)
    if _is_on_xla(trainer):
        first.append(HushXLA())
    if trains:  # before the user's, so that none of them takes a bad batch for a good one
        action = (saved.get("watchdog") or {}).get("on_nonfinite", WatchdogSettings().on_nonfinite)
        first += [DiskSpaceMonitor(run), FiniteLoss(action, events=recorder.events, last_good=last_good)]
    last: list[Callback] = []
    if (deadline := get_deadline(context)) is not None:
        last.append(StopAtDeadline(deadline, last_good=last_good, stopped=recorder.stopped_early))
    last += [
        LambdaCallback(on_fit_start=partial(_log_config, context), on_train_start=partial(_keep_run, context)),
        StallWatch(make_watchdog(context, read_watchdog(context.resolved)), gently=context.rank_context is None),
        RunHeader(context.mode, run, context.hardware, shows_result=not context.inputs),
    ]
    has_bar = any(isinstance(callback, ProgressBar) for callback in own)
    if trainer.get("enable_progress_bar") is not False and not has_bar:
        last.append(progress_for(context.mode))
    if context.command == "predict":
        last.append(build_prediction_callback(context) if context.inputs else PredictionTable(run.folder))
    return [
        *first,
        LambdaCallback(setup=partial(_check_same_data, context)),
        *own,
        recorder,
        BadImages(run, events=recorder.events),
        ResumeState(),
        StopOnSignal(context.watch, last_good=last_good),
        *last,
    ]


def _record_checkpoint(context: RunContext, path: Path, facts: Mapping[str, Any]) -> None:
    context.recorder.checkpoint_saved(path, facts["epoch"], facts["global_step"], path.stem)


def _is_on_xla(trainer: Mapping[str, Any]) -> bool:
    return trains_on_xla(trainer.get("accelerator"), trainer.get("strategy"))


def _check_same_data(context: RunContext, trainer: Trainer, _module: LightningModule, stage: str) -> None:
    """Begin a new run where a run that resumes automatically had other data.

    Raises:
        DataChanged: If the data's fingerprint differs.
    """
    before = context.data_before
    describe = getattr(trainer.datamodule, "describe", None)  # type: ignore[attr-defined]
    if stage != "fit" or not context.resumes_automatically or before is None or not callable(describe):
        return
    now = describe()
    if now.get("fingerprint") == before.get("fingerprint"):
        return
    old, new = before.get("version"), now.get("version")
    versions = "" if None in (old, new) or str(old) == str(new) else f" (version {old}, now {new})"
    raise DataChanged(
        f"begins a new run: the data has changed since {context.run.folder} was interrupted{versions}; "
        f"--run.resume={context.run.folder} goes on there"
    )


def _log_config(context: RunContext, trainer: Trainer, _module: LightningModule) -> None:
    """Log the whole config, or what flags and variables changed in it to a logger that has the config as a file."""
    changed = {
        dotted(path): plain(node)
        for path, node in walk(context.resolved.tree)
        if isinstance(node, Leaf) and node.origin.kind in ("flag", "variable") and path[0] != "run"
    }
    for logger in trainer.loggers:
        if hasattr(logger, "log_changed"):
            logger.log_changed(redact(context.resolved, changed))
        else:
            logger.log_hyperparams(drop_nulls(context.saved_config))


def _keep_run(context: RunContext, trainer: Trainer, _module: LightningModule) -> None:
    """Keep the run folder from here on, and let `latest` point to it."""
    if trainer.is_global_zero and not getattr(trainer, "fast_dev_run", False):
        runs.point_latest(context.run)
    context.keeps_folder.set()


def finish_trainer(context: RunContext, trainer: Trainer) -> None:
    """Check the checkpoint, give the user's checkpoint callbacks their folder, and hide secrets from loggers.

    Raises:
        ConfigError: If the checkpoint is unreadable, needs code, is not enough to resume from, or its weights are NaN.
        DataChanged: If they are NaN and the run was resumed automatically.
    """
    checkpoint = context.start.checkpoint
    if checkpoint is not None and isinstance(trainer.strategy.checkpoint_io, CheckpointReader):
        content = read_checkpoint(checkpoint, mmap=True)  # here, before data are prepared
        check_content(content, checkpoint, goes_on=context.command == "fit")
        if context.command == "fit" and (names := nan_weights(content["state_dict"])):
            what = f"weights of {checkpoint} are NaN ({', '.join(names[:3])}{', ...' * (len(names) > 3)})"
            if context.resumes_automatically:
                raise DataChanged(f"begins a new run: {what}, and no training can go on from them")
            raise ConfigError(f"No training can go on from it: {what}. Expected a checkpoint from before, or none.")
    keepers = [callback for callback in trainer.checkpoint_callbacks if isinstance(callback, ModelCheckpoint)]
    for callback in keepers:
        callback.dirpath = callback.dirpath or str(context.run.checkpoints)
    if context.command == "fit" and keepers and not getattr(trainer, "fast_dev_run", False):
        wanted = context.has_own_parser or context.resolved.removed & {("callbacks", "checkpoint")}
        resumable = any(
            isinstance(each, Checkpoint) or (each.save_last and each.dirpath == str(context.run.checkpoints))
            for each in keepers
        )
        if wanted and not resumable:
            trainer.callbacks.append(ResumeCheckpoint())  # type: ignore[attr-defined]
    for logger in trainer.loggers:
        redact_hyperparameters(logger, context.resolved)
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    notifiers = [callback for callback in callbacks if isinstance(callback, Notifier)]
    context.notifier.adopt(notifiers, context.resolved)
