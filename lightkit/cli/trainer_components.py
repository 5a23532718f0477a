"""Parts that a recorded run adds to the trainer of its config.

Callbacks, checkpoint plugin, parts of an engine.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

from lightning_fabric.plugins import ClusterEnvironment
from lightning_fabric.plugins.environments.slurm import SLURMEnvironment
from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.callbacks import (
    LambdaCallback,
    LearningRateMonitor,
    ModelCheckpoint,
    ProgressBar,
)
from pytorch_lightning.plugins import CheckpointIO
from pytorch_lightning.profilers import PassThroughProfiler
from pytorch_lightning.strategies import Strategy

from lightkit import runs
from lightkit.callbacks import (
    Checkpoint,
    ClassNames,
    FiniteLoss,
    PredictionTable,
    ResumeState,
    StallWatch,
    StopOnSignal,
    create_progress,
)
from lightkit.callbacks.checkpoint import is_sharded, list_checkpoint_callbacks, rank_as_best
from lightkit.callbacks.checkpoint_io import CheckpointReader, read_checkpoint
from lightkit.callbacks.checkpoint_plugin import build_checkpoint_io
from lightkit.callbacks.computation import build_computation
from lightkit.callbacks.descriptions import describe_data, describing
from lightkit.callbacks.empty_stage import RequireWork
from lightkit.callbacks.interruption import StopAtDeadline, StopOnTime
from lightkit.callbacks.layer_norms import LayerNorms
from lightkit.callbacks.notifiers import Notifier
from lightkit.callbacks.prediction_recorder import PredictionRecorder
from lightkit.callbacks.sharded_checkpoint import watch_strategy
from lightkit.callbacks.strided_gradients import StridedGradients
from lightkit.cli.console import OutputMode, print_line
from lightkit.cli.monitors import find_config_modes
from lightkit.cli.predict_images import build_prediction_callback
from lightkit.cli.redaction import drop_nulls, redact_hyperparameters
from lightkit.cli.run_display import describe_training
from lightkit.cli.session import Session
from lightkit.cli.stage_watchdog import make_watchdog
from lightkit.config import dotted, shown_path
from lightkit.config.tree import Leaf, to_plain, walk
from lightkit.data.shared_order import share_orders
from lightkit.distributed.xla import HushXLA, trains_on_xla
from lightkit.errors import DataChanged, DataError
from lightkit.launch.ranks import Rank
from lightkit.launch.watchdog import WatchdogSettings, read_watchdog
from lightkit.loggers import TensorBoard
from lightkit.sweep.record import find_sweeps

_log = logging.getLogger("lightkit")


def as_list(value: Any) -> list[Any]:
    """List the callbacks or plugins of a trainer's argument.

    A single one, or nothing, may stand there.
    """
    if isinstance(value, list):
        return list(value)
    return [value] if value else []


def build_components(
    session: Session,
    trainer: Mapping[str, Any],
    added: Sequence[Callback] = (),
    *,
    settings: Callback | None = None,
) -> dict[str, Any]:
    """Build the trainer's arguments that differ from those of the config.

    Args:
        session: The stage, whose run has begun.
        trainer: The trainer's arguments, with callbacks and plugins instantiated.
        added: Callbacks that LightningCLI adds to them.
        settings: Callback for the settings of the optimizers; it comes before all that change them.
    """
    stage_config = session.stage_config
    callbacks = [settings] if settings is not None and session.trains else []
    callbacks += _build_callbacks(session, trainer)
    callbacks += list_checkpoint_callbacks(stage_config.resolved, trainer, [*callbacks, *added])
    plugins = _build_plugins(session, trainer)
    arguments = {
        "callbacks": callbacks,
        "plugins": plugins,
        "enable_model_summary": trainer.get("enable_model_summary") or False,
    }
    if trainer.get("logger") in (None, True) and not (
        stage_config.is_script or trainer.get("barebones")
    ):
        arguments["logger"] = [TensorBoard()]
    if trainer.get("profiler") is None and not trainer.get("barebones"):  # which takes no profiler
        arguments["profiler"] = _NoProfiler()
    return arguments


def _build_plugins(session: Session, trainer: Mapping[str, Any]) -> list[Any]:
    """Build the trainer's plugins.

    The config's, with a writer of checkpoints and the processes of this launch.
    """
    plugins = as_list(trainer.get("plugins"))
    resolved = session.stage_config.resolved
    build_io = partial(
        build_checkpoint_io,
        on_xla=_is_on_xla(trainer),
        mask=resolved.masked,
        on_saved=session.recorder.checkpoint_saved,
    )

    # Lightning takes it from one of the two places, and refuses a second one.
    strategy = trainer.get("strategy")
    if isinstance(strategy, Strategy) and _has_checkpoint_io(
        resolved.section("trainer").get("strategy")
    ):
        strategy.checkpoint_io = build_io(
            strategy.checkpoint_io, key="trainer.strategy.init_args.checkpoint_io"
        )
    else:
        own = _find_first(plugins, CheckpointIO)
        plugins = [plugin for plugin in plugins if plugin is not own]
        plugins.append(build_io(own))

    # The user's cluster environment stands; under Slurm there is one even without it.
    rank = session.process.rank
    environment = _find_first(plugins, ClusterEnvironment)
    if environment is not None:
        _warn_of_environment(environment, rank)
    elif rank is not None and rank.engine == "slurm":
        # the batch script does that, with our own checkpoint
        plugins.append(SLURMEnvironment(auto_requeue=False))
    return plugins


def _has_checkpoint_io(strategy: Any) -> bool:
    """Return whether a strategy, as the config has it, names a writer of checkpoints of its own."""
    arguments = strategy.get("init_args") if isinstance(strategy, Mapping) else None
    return runs.find_value(arguments, "checkpoint_io") is not None


def _find_first(values: Sequence[Any], kind: type[Any]) -> Any:
    """Return the first value of a class; None where there is none."""
    for value in values:
        if isinstance(value, kind):
            return value
    return None


def _warn_of_environment(environment: ClusterEnvironment, rank: Rank | None) -> None:
    """Warn of the promises that a cluster environment of the user's takes away."""
    name = type(environment).__name__
    if getattr(environment, "auto_requeue", False):
        _log.warning(
            "trainer.plugins: %s requeues the job by itself, from a checkpoint of Lightning's own,"
            " and takes the signals with which lightkit ends a run that can be resumed; set its"
            " auto_requeue: false, and start with `lightkit submit`",
            name,
        )
    elif rank is None and environment.creates_processes_externally:
        _log.warning(
            "trainer.plugins: %s says that another program starts the processes: lightkit counts"
            " this one as the only one, so that each takes the job's lock and writes the run by"
            " itself; set launch.engine to that program (torchrun, slurm) instead",
            name,
        )


class _NoProfiler(PassThroughProfiler):
    """Lightning's default profiler without a new context for each of a hundred hooks of a step."""

    _CONTEXT = nullcontext()

    def profile(self, action_name: str) -> nullcontext[None]:  # type: ignore[override]
        """Return the same empty context for all actions."""
        return self._CONTEXT


def _list_own_callbacks(trainer: Mapping[str, Any]) -> list[Callback]:
    """List the config's callbacks.

    Without a logger `LearningRateMonitor`, which `lightkit:base` has, would end the fit; the rates
    are in metrics.csv.
    """
    callbacks = as_list(trainer.get("callbacks"))
    if trainer.get("logger") in (False, []):
        return [each for each in callbacks if not isinstance(each, LearningRateMonitor)]
    return callbacks


def _build_callbacks(session: Session, trainer: Mapping[str, Any]) -> list[Callback]:
    """Build the trainer's callbacks: the config's, with lightkit's before and behind them."""
    stage_config = session.stage_config
    recorder = session.recorder
    watchdog = make_watchdog(session, read_watchdog(stage_config.resolved))
    callbacks: list[Callback] = [
        # Before the user's, so that none of them takes a bad batch for a good one.
        *_build_checks(session, trainer),
        *_list_own_callbacks(trainer),
        # What they and the model have done is recorded behind them.
        recorder,
        *_build_records(session),
        *_build_stops(session),
        LambdaCallback(
            on_fit_start=partial(_log_config, session),
            on_train_start=partial(_begin_training, session),
        ),
        StallWatch(watchdog, gently=session.process.rank_context is None),
        *_build_progress(trainer, stage_config.mode),
        *_build_prediction_table(session),
    ]
    losses = _find_first(callbacks, FiniteLoss)
    count_losses = None if losses is None else partial(getattr, losses, "num_used")
    callbacks.append(
        RequireWork(count_batches=lambda: recorder.num_batches, count_losses=count_losses)
    )
    return callbacks


def _build_checks(session: Session, trainer: Mapping[str, Any]) -> Iterator[Callback]:
    """Build what sets the model up, and checks its losses and its data."""
    saved = session.saved_config
    yield from build_computation(saved.get("accelerator") or {}, trains=session.trains)
    if _is_on_xla(trainer):
        yield HushXLA()
    if session.trains:
        action = (saved.get("watchdog") or {}).get("on_nonfinite", WatchdogSettings().on_nonfinite)
        last_good = partial(runs.last_good, session.run.checkpoints)
        yield FiniteLoss(action, events=session.recorder.events, last_good=last_good)
    yield LambdaCallback(setup=partial(_check_same_data, session))
    if "trial-data" in session.stage_config.options:
        yield LambdaCallback(setup=partial(_check_data_of_trial, session))


def _build_records(session: Session) -> Iterator[Callback]:
    """Build what keeps predictions, names of classes, and what a resume needs."""
    if session.stage_config.command in ("fit", "test"):
        yield PredictionRecorder(session.run.folder, changed=session.recorder.changed)
    yield ClassNames()
    yield ResumeState()


def _build_stops(session: Session) -> Iterator[Callback]:
    """Build what ends the stage early: a time, a signal, a deadline, the sweep of a trial."""
    stage_config = session.stage_config
    last_good = partial(runs.last_good, session.run.checkpoints)
    if session.trains:
        yield StopOnTime()
    if session.trains and "trial" in stage_config.options:
        yield _watch_trial(session)
    yield StopOnSignal(session.process.watch, last_good=last_good)
    if session.trains and stage_config.deadline is not None:
        stopped = session.recorder.note_deadline
        yield StopAtDeadline(stage_config.deadline, last_good=last_good, stopped=stopped)


def _build_prediction_table(session: Session) -> list[Callback]:
    """Build what writes the predictions of `predict`, of images or rows or of the data."""
    if session.stage_config.command != "predict":
        return []
    if session.stage_config.images:
        return [build_prediction_callback(session.stage_config)]
    return [PredictionTable(session.run.folder)]


def _build_progress(trainer: Mapping[str, Any], mode: OutputMode) -> list[Callback]:
    """Build the progress bar, unless the config has one of its own, or wants none."""
    own = as_list(trainer.get("callbacks"))
    if trainer.get("enable_progress_bar") is False or trainer.get("barebones"):
        return []
    if any(isinstance(callback, ProgressBar) for callback in own):
        return []
    return [create_progress(mode)]


def _watch_trial(session: Session) -> Callback:
    """Build what a trial of a sweep has in addition."""
    from lightkit.callbacks.trial import TrialWatch  # here: other trainings have none

    return TrialWatch(
        session.run, session.process.watch, waits="trial-waits" in session.stage_config.options
    )


def _is_on_xla(trainer: Mapping[str, Any]) -> bool:
    return trains_on_xla(trainer.get("accelerator"), trainer.get("strategy"))


def _check_same_data(
    session: Session, trainer: Trainer, _module: LightningModule, stage: str
) -> None:
    """Begin a new run where a run that resumes automatically had other data.

    Raises:
        DataChanged: If the data's fingerprint differs.
    """
    earlier = runs.find_value(session.recorder.manifest, "earlier")
    resumes_by_itself = bool(earlier) and session.saved_config["run"]["resume"] == "auto"
    before = earlier[-1].get("data") if earlier and resumes_by_itself else None
    if stage != "fit" or before is None:
        return
    now = describe_data(trainer.datamodule)  # type: ignore[attr-defined]
    if now and now.get("fingerprint") != before.get("fingerprint"):
        version = (
            f" (version {before.get('version')}, now {now['version']})"
            if now.get("version")
            else ""
        )
        raise DataChanged(
            f"run.resume: the data has changed since {session.run.folder} was interrupted{version};"
            f" --run.resume={session.run.folder} goes on there, --run.resume=never begins a new run"
        )


def _check_data_of_trial(
    session: Session, trainer: Trainer, _module: LightningModule, stage: str
) -> None:
    """Compare the data of a trial with those of its sweep, before a step of a stage.

    Raises:
        DataError: If the fingerprints differ.
    """
    options = session.stage_config.options
    before = str(options["trial-data"])
    now = runs.find_fingerprint(describe_data(trainer.datamodule))  # type: ignore[attr-defined]
    if now is None or now == before:
        return
    sweep = str(options["trial"]).rpartition("/")[0]
    raise DataError(
        f"sweep: at the {stage} of a trial the data has changed since the earlier trials of {sweep}"
        " (fingerprint"
        f" {before[:12]}, now {now[:12]}), whose values do not compare with those on other"
        f" data. With the data of before the same command goes on; to begin a new sweep, delete"
        f" {shown_path(find_sweeps(session.run.root) / sweep)}."
    )


def _log_config(session: Session, trainer: Trainer, _module: LightningModule) -> None:
    """Log the whole config.

    A logger that has the config as a file gets what flags and variables changed in it.
    """
    changed = {
        dotted(path): to_plain(node)
        for path, node in walk(session.stage_config.resolved.tree)
        if isinstance(node, Leaf) and node.origin.kind in ("flag", "variable") and path[0] != "run"
    }
    for logger in trainer.loggers:
        if hasattr(logger, "log_changed"):
            logger.log_changed(session.stage_config.resolved.masked(changed))
        else:
            logger.log_hyperparams(drop_nulls(session.saved_config))


def _begin_training(session: Session, trainer: Trainer, module: LightningModule) -> None:
    """Keep the run folder from here on, let `latest` point to it, and print what is trained."""
    session.has_trained = True
    if trainer.is_global_zero:
        if not getattr(trainer, "fast_dev_run", False):
            runs.point_latest(session.run)
        with describing("the training"):
            print_line(describe_training(session, trainer, module), session.stage_config.mode)


def finish_trainer(session: Session, trainer: Trainer) -> None:
    """Check the checkpoint, give the user's checkpoint callbacks their folder.

    Hide secrets from loggers.

    Raises:
        ConfigError: If the checkpoint is unreadable, needs code, or is not enough to resume from.
    """
    _check_checkpoint(session, trainer)
    resolved = session.stage_config.resolved
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    callbacks.sort(key=rank_as_best)
    if str(trainer.precision).startswith("bf16"):
        callbacks[:0] = [StridedGradients(), LayerNorms()]
    for callback in trainer.checkpoint_callbacks:
        if isinstance(callback, Checkpoint):
            callback.modes_of_config = find_config_modes(resolved)
        if isinstance(callback, ModelCheckpoint):
            callback.dirpath = callback.dirpath or str(session.run.checkpoints)
    watch_strategy(
        trainer.strategy, mask=resolved.masked, on_saved=session.recorder.checkpoint_saved
    )
    share_orders(trainer)
    for logger in trainer.loggers:
        redact_hyperparameters(logger, resolved)
    notifiers = [callback for callback in callbacks if isinstance(callback, Notifier)]
    session.process.notifier.adopt(notifiers, resolved)


def _check_checkpoint(session: Session, trainer: Trainer) -> None:
    """Read the checkpoint once before data are prepared.

    A folder of shards is read by its processes together, and by a plugin of the user's what it
    writes.

    Raises:
        ConfigError: If it is unreadable, needs code, or is not enough to resume from.
    """
    checkpoint = session.start.checkpoint
    if checkpoint is None or (checkpoint.is_dir() and is_sharded(trainer)):
        return
    if isinstance(trainer.strategy.checkpoint_io, CheckpointReader):
        read_checkpoint(checkpoint, mmap=True, goes_on=session.trains)
