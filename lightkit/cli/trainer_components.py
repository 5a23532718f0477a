"""Parts that a recorded run adds to the trainer of its config.

Callbacks, checkpoint plugin, parts of an engine.
"""

from __future__ import annotations

import logging
import math
import multiprocessing
import os
import shlex
import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

import torch
from jsonargparse import Namespace
from lightning_fabric.plugins import ClusterEnvironment
from lightning_fabric.plugins.environments.slurm import SLURMEnvironment
from pytorch_lightning import Callback, LightningDataModule, LightningModule, Trainer
from pytorch_lightning.callbacks import LambdaCallback, ModelCheckpoint, ProgressBar
from pytorch_lightning.plugins import CheckpointIO
from pytorch_lightning.profilers import PassThroughProfiler
from pytorch_lightning.strategies import Strategy

from lightkit import runs
from lightkit.callbacks import (
    Checkpoint,
    ClassNames,
    Computation,
    FiniteLoss,
    PredictionTable,
    ResumeState,
    StallWatch,
    StopOnSignal,
    create_progress,
)
from lightkit.callbacks.checkpoint import is_sharded
from lightkit.callbacks.checkpoint_io import CheckpointReader, read_checkpoint
from lightkit.callbacks.checkpoint_plugin import build_checkpoint_io
from lightkit.callbacks.descriptions import count_parameters, describe_data, describing
from lightkit.callbacks.empty_stage import RequireWork
from lightkit.callbacks.interruption import StopAtDeadline, StopOnTime
from lightkit.callbacks.notifiers import Notifier
from lightkit.callbacks.prediction_recorder import PredictionRecorder
from lightkit.callbacks.recorder import list_rates
from lightkit.callbacks.sharded_checkpoint import watch_strategy
from lightkit.callbacks.strided_gradients import StridedGradients
from lightkit.cli.console import OutputMode, print_line
from lightkit.cli.monitors import find_config_modes
from lightkit.cli.notifications import IN_RETRAIN
from lightkit.cli.predict_images import build_prediction_callback
from lightkit.cli.redaction import drop_nulls, redact_hyperparameters
from lightkit.cli.session import Session, StageProcess
from lightkit.config import Resolved, dotted, shown_path
from lightkit.config.tree import Leaf, to_plain, walk
from lightkit.distributed.xla import HushXLA, trains_on_xla
from lightkit.errors import DataChanged, DataError, Stalled
from lightkit.hardware import this_machine
from lightkit.launch.plan import THREADS
from lightkit.launch.ranks import Rank
from lightkit.launch.resources import ResourceLog
from lightkit.launch.watchdog import (
    STALLED,
    Hung,
    Stall,
    Watchdog,
    WatchdogSettings,
    heartbeat,
    read_watchdog,
)
from lightkit.loggers import TensorBoard
from lightkit.reports.class_tables import format_class_tables
from lightkit.runs.resume import locate_checkpoint
from lightkit.sweep.record import find_sweeps

_log = logging.getLogger("lightkit")
_Kind = TypeVar("_Kind")


def set_devices(trainer: Namespace, rank: Rank | None) -> None:
    """Set the trainer's devices, nodes and strategy as the launcher counts them.

    The saved config keeps the user's.
    """
    if rank is None or rank.engine not in ("torchrun", "slurm"):
        return
    if not isinstance(trainer.get("devices"), list):
        trainer["devices"] = rank.local_size
    trainer["num_nodes"] = rank.num_nodes
    if rank.size > 1 and trainer.get("strategy") in (None, "auto"):
        trainer["strategy"] = "ddp"


def set_threads(num_threads: int | None, process: StageProcess) -> None:
    """Set torch's threads, and those of processes that are started later, until the stage ends.

    Args:
        num_threads: Of the config. None: a rank of a launcher of the user's own takes its share of
            the cores; else the variable, or torch, decides.
        process: This process.
    """
    rank = process.rank
    variable = os.environ.get(THREADS)
    if num_threads is None and rank is not None and rank.engine != "local" and not variable:
        num_threads = share_cores(this_machine().cores or 1, rank.local_size)
        if rank.engine == "slurm":
            num_threads = int(os.environ.get("SLURM_CPUS_PER_TASK", num_threads))
    if num_threads is None:
        return
    before = torch.get_num_threads()

    def restore() -> None:
        torch.set_num_threads(before)
        os.environ.pop(THREADS, None)
        os.environ.update({} if variable is None else {THREADS: variable})

    process.stack.callback(restore)
    torch.set_num_threads(num_threads)
    os.environ[THREADS] = str(num_threads)


def share_cores(num_cores: int, num_ranks: int) -> int:
    """Return the threads of one of a machine's ranks.

    The launcher may have bound some of them to the same cores.
    """
    num_shared = num_cores
    if hasattr(os, "sched_getaffinity") and os.sched_getaffinity(0) < (
        all_of := os.sched_getaffinity(os.getppid())
    ):
        num_shared = len(all_of)
    return max(1, min(num_cores, num_shared // num_ranks))


def as_list(value: Any) -> list[Any]:
    """List the callbacks or plugins of a trainer's argument.

    A single one, or nothing, may stand there.
    """
    if isinstance(value, list):
        return list(value)
    return [value] if value else []


def list_checkpoint_callbacks(
    resolved: Resolved, trainer: Mapping[str, Any], callbacks: Sequence[Callback]
) -> list[Callback]:
    """List what is added so that a run can be resumed.

    `Checkpoint`, or its `resume.ckpt` next to a `ModelCheckpoint`.

    Args:
        resolved: The config; with `callbacks: {checkpoint: null}` nothing is added.
        trainer: The trainer's arguments; nor with `enable_checkpointing: false`.
        callbacks: The other callbacks.
    """
    kept = [callback for callback in callbacks if isinstance(callback, ModelCheckpoint)]
    is_off = trainer.get("enable_checkpointing") is False or trainer.get("barebones")
    is_removed = resolved.section("callbacks").get("checkpoint", "") is None
    if is_off or is_removed or any(isinstance(callback, Checkpoint) for callback in kept):
        return []
    return [Checkpoint.for_resume() if kept else Checkpoint()]


def build_computation(section: Mapping[str, Any], *, trains: bool = True) -> list[Callback]:
    """Build the callback that applies the section `accelerator`.

    None where it leaves torch's defaults.

    Args:
        section: The section.
        trains: Whether the model is trained: only then it is compiled, and has an optimizer.
    """
    keys = ("memory_format", "tf32", "compile", "fused") if trains else ("memory_format", "tf32")
    given = {
        key: section[key] for key in keys if section.get(key) not in (None, False, "contiguous")
    }
    given |= {key: False for key in ("tf32", "fused") if key in keys and section.get(key) is False}
    return [Computation(**given)] if given else []


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
    callbacks = [] if settings is None or stage_config.command != "fit" else [settings]
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


def _build_callbacks(session: Session, trainer: Mapping[str, Any]) -> list[Callback]:
    """Build the trainer's callbacks: the config's, with lightkit's before and behind them."""
    stage_config = session.stage_config
    run = session.run
    recorder = session.recorder
    saved = session.saved_config
    trains = stage_config.command == "fit"
    last_good = partial(runs.last_good, run.checkpoints)

    # Before the user's, so that none of them takes a bad batch for a good one.
    callbacks: list[Callback] = build_computation(saved.get("accelerator") or {}, trains=trains)
    if _is_on_xla(trainer):
        callbacks.append(HushXLA())
    finite_loss: FiniteLoss | None = None
    if trains:
        action = (saved.get("watchdog") or {}).get("on_nonfinite", WatchdogSettings().on_nonfinite)
        finite_loss = FiniteLoss(action, events=recorder.events, last_good=last_good)
        callbacks.append(finite_loss)
    callbacks.append(LambdaCallback(setup=partial(_check_same_data, session)))
    if "trial-data" in stage_config.options:
        callbacks.append(LambdaCallback(setup=partial(_check_data_of_trial, session)))

    # The user's, and those that record what they and the model have done.
    callbacks += as_list(trainer.get("callbacks"))
    callbacks.append(recorder)
    if stage_config.command in ("fit", "test"):
        callbacks.append(PredictionRecorder(run.folder, changed=recorder.changed))
    callbacks += [ClassNames(), ResumeState()]

    # Those that end the stage early.
    if trains:
        callbacks.append(StopOnTime())
    if trains and "trial" in stage_config.options:
        callbacks.append(_watch_trial(session))
    callbacks.append(StopOnSignal(session.process.watch, last_good=last_good))
    if trains and stage_config.deadline is not None:
        callbacks.append(
            StopAtDeadline(
                stage_config.deadline, last_good=last_good, stopped=recorder.note_deadline
            )
        )
    callbacks.append(
        LambdaCallback(
            on_fit_start=partial(_log_config, session),
            on_train_start=partial(_begin_training, session),
        )
    )
    watchdog = make_watchdog(session, read_watchdog(stage_config.resolved))
    callbacks.append(StallWatch(watchdog, gently=session.process.rank_context is None))

    # The screen, the table of predictions, and the check that anything was done.
    callbacks += _build_progress(trainer, stage_config.mode)
    if stage_config.command == "predict":
        is_listed = bool(stage_config.images)
        callbacks.append(
            build_prediction_callback(stage_config) if is_listed else PredictionTable(run.folder)
        )
    count_losses = None if finite_loss is None else partial(getattr, finite_loss, "num_used")
    callbacks.append(
        RequireWork(count_batches=lambda: recorder.num_batches, count_losses=count_losses)
    )
    return callbacks


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
            print_line(_describe_training(session, trainer, module), session.stage_config.mode)


def finish_trainer(session: Session, trainer: Trainer) -> None:
    """Check the checkpoint, give the user's checkpoint callbacks their folder.

    Hide secrets from loggers.

    Raises:
        ConfigError: If the checkpoint is unreadable, needs code, or is not enough to resume from.
    """
    checkpoint = session.start.checkpoint
    resolved = session.stage_config.resolved
    # A folder of shards is read by its processes together; a file is read here, before data are
    # prepared.
    is_read_later = checkpoint is None or (checkpoint.is_dir() and is_sharded(trainer))
    if (
        checkpoint is not None
        and not is_read_later
        and isinstance(trainer.strategy.checkpoint_io, CheckpointReader)
    ):
        read_checkpoint(checkpoint, mmap=True, goes_on=session.stage_config.command == "fit")

    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    callbacks.sort(key=rank_as_best)
    if str(trainer.precision).startswith("bf16"):
        callbacks.insert(0, StridedGradients())
    for callback in trainer.checkpoint_callbacks:
        if isinstance(callback, Checkpoint):
            callback.modes_of_config = find_config_modes(resolved)
        if isinstance(callback, ModelCheckpoint):
            callback.dirpath = callback.dirpath or str(session.run.checkpoints)
    watch_strategy(
        trainer.strategy, mask=resolved.masked, on_saved=session.recorder.checkpoint_saved
    )
    for logger in trainer.loggers:
        redact_hyperparameters(logger, resolved)
    notifiers = [callback for callback in callbacks if isinstance(callback, Notifier)]
    session.process.notifier.adopt(notifiers, resolved)


def rank_as_best(callback: Callback) -> int:
    """Return the place of a callback in the trainer's list.

    Lightning takes the first one's checkpoint for the best.

    One that chooses by a metric comes before those that keep all or the newest, and `resume.ckpt`
    last, behind those that LightningCLI adds.
    """
    if not isinstance(callback, ModelCheckpoint):
        return 0
    if isinstance(callback, Checkpoint) and not callback.keeps_best:
        return 3
    return 1 if callback.monitor is not None and callback.save_top_k != 0 else 2


def find_reached_limit(trainer: Trainer, session: Session) -> str | None:
    """Say which limit of the trainer has left nothing to train in a new run.

    None where none has.
    """
    if session.has_trained or session.start.is_old:
        return None
    epochs = trainer.fit_loop.epoch_progress.current.processed  # type: ignore[attr-defined]
    limits = (
        ("epochs", epochs, trainer.max_epochs),
        ("steps", trainer.global_step, trainer.max_steps),
    )
    for unit, done, limit in limits:
        if limit is not None and 0 <= limit <= done:
            return f"{done} of {limit} {unit} are done; raise trainer.max_{unit}"
    return None


_FORCED_END_S = 5.0
_NEWS_S = 2.0  # for notifiers and the dead-man's switch, out of the same time


def make_watchdog(session: Session, settings: WatchdogSettings) -> Watchdog:
    """Make the watchdog of a stage.

    A stall that it ends gently leaves the stack as the error `Stalled`.

    Args:
        session: The stage, whose run has begun.
        settings: The config's `watchdog` block.
    """
    report = _StallReport(session)
    max_s = (
        math.inf
        if session.process.rank_context is None
        else session.stage_config.launch.stall_timeout_s
    )
    watchdog = Watchdog(
        heartbeat(),
        limit_s=lambda: min(settings.limit_s(heartbeat()), max_s),
        report=report.record,
        end=report.end,
        sample=_start_resource_log(session),
    )
    session.process.stack.enter_context(report.raising_stalled(watchdog))
    return watchdog


def _start_resource_log(session: Session) -> Callable[[], object]:
    """Return what writes a row of resources.csv in a fit.

    Rank 0 alone does, for itself and its loader workers.
    """
    rank = session.process.rank
    if session.stage_config.command != "fit" or (rank is not None and rank.rank):
        return lambda: None
    log = ResourceLog(session.run.folder / "resources.csv")
    session.process.stack.callback(log.close)
    return log.sample


class _StallReport:
    def __init__(self, session: Session) -> None:
        self._session = session
        self._is_raised = False
        self._text = ""

    @contextmanager
    def raising_stalled(self, watchdog: Watchdog) -> Iterator[None]:
        """Turn `Hung` into an error in the user's words, and leave no data loader worker behind."""
        try:
            yield
        except Hung:
            self._is_raised = True
            _kill_children()  # else the interpreter would wait for them
            trains = self._session.stage_config.command == "fit"
            newest = runs.last_good(self._session.run.checkpoints) if trains else None
            resume = "" if newest is None else f" The same command resumes from {newest}."
            raise Stalled(f"{self._text}{resume}") from None
        finally:
            # Else it goes on, and ends a process that hangs again.
            if not self._is_raised or not self._session.process.watch.owns_process:
                watchdog.stop()

    def record(self, stall: Stall) -> None:
        """Write the stacks and the event."""
        # should what follows hang too
        self._text = self._session.stage_config.resolved.masked(f"{stall}.")
        rank = 0 if self._session.process.rank is None else self._session.process.rank.rank
        if self._session.process.rank_context is not None:
            self._session.process.rank_context.end_stalled(stall)
        now = datetime.now(UTC)
        batch = stall.culprit.batch
        path = self._session.run.folder / "stalls" / f"{now:%Y%m%d-%H%M%S}-rank-{rank}.txt"
        indices = "" if batch is None else f"its batch: {', '.join(map(str, batch))}\n"
        text = f"{now.isoformat(timespec='seconds')} {stall}\n{indices}\n{stall.stacks}"
        path.parent.mkdir(exist_ok=True)
        path.write_text(
            self._session.stage_config.resolved.masked(text), encoding="utf-8", errors="replace"
        )
        self._text += f" All stacks: {path}."
        self._session.recorder.events.write(
            "stall",
            phase=stall.phase,
            seconds=stall.seconds,
            path=f"stalls/{path.name}",
            at=stall.culprit.own_line,
            who=stall.culprit.name,
            sample=stall.culprit.sample,
            batch=None if batch is None else list(batch),
            waits_for=stall.waits_for,
            rank=rank,
        )

    def end(self, _: Stall) -> None:
        """End the process at once: its main thread does not."""
        error = Stalled(self._text)
        end_by_force = partial(
            self._session.process.watch.cut, STALLED, None if self._is_raised else f"error: {error}"
        )
        threading.Timer(_FORCED_END_S, end_by_force).start()  # a disk that hangs must not keep it
        # the supervisor reports and records the end
        if self._session.process.rank_context is not None:
            _kill_children()
            os._exit(STALLED)
        if not self._is_raised:
            self._session.recorder.close(error)
            self._session.process.notifier.send_end(error, timeout_s=_NEWS_S)
        end_by_force()


def _kill_children() -> None:
    for child in multiprocessing.active_children():
        child.kill()


# -- the screen ------------------------------------------------------------------------------------


def _describe_training(session: Session, trainer: Trainer, module: LightningModule) -> str:
    """Describe what is trained: folder, data, model, hardware and steps, a line each."""
    data: LightningDataModule | None = trainer.datamodule  # type: ignore[attr-defined]
    source = type(data).__name__ if data else ""
    facts = describe_data(data)
    counts = facts.get("counts")
    if isinstance(counts, Mapping):
        listed = ", ".join(f"{count} {split}" for split, count in counts.items())
        source = f"{facts.get('source', source)}: {listed}"
    total, trained, is_lazy = count_parameters(module)
    hparams = getattr(module, "hparams", None)
    backbone = hparams.get("backbone") if isinstance(hparams, Mapping) else None
    model = type(module).__name__ + (f" on {backbone}" if backbone else "")
    some = f", {trained:,} of them trained" if trained != total else ""
    some += ", and those of lazy layers" if is_lazy else ""
    accelerator = type(trainer.accelerator).__name__.removesuffix("Accelerator")
    devices = "" if trainer.world_size == 1 else f" on {trainer.world_size} devices"
    auto = ", ".join(
        f"{key.rpartition('.')[2]} {str(value).lower() if isinstance(value, bool) else value}"
        for key, value in session.stage_config.hardware.chosen.items()
        if value is not None
    )
    values = {
        "run": shown_path(session.run.folder),
        "data": source,
        "model": f"{model}: {total:,} parameters{some}",
        "on": f"{accelerator}{devices}, precision {trainer.precision}",
        "auto": f"{auto} ({session.stage_config.hardware.chosen_by})" if auto else "",
    }
    with describing("the training loader"):
        values["steps"] = _describe_steps(trainer)
    values["best"] = _describe_best_to_come(trainer)
    return "\n".join(f"{name:5} {value}" for name, value in values.items() if value)


def _describe_best_to_come(trainer: Trainer) -> str:
    """Return why the newest weights will be the best, where that is known before training.

    Else nothing.
    """
    keeper = trainer.checkpoint_callback
    newest = keeper.explain_newest(trainer) if isinstance(keeper, Checkpoint) else None
    return "" if newest is None else f"the newest weights: {newest}"


def print_run_end(trainer: Trainer, session: Session) -> None:
    """Print the metrics of an evaluation, where everything is, and which command comes next."""
    run = session.run
    mode = session.stage_config.mode
    command = session.stage_config.command
    if (
        session.stage_config.images
        or mode not in ("terminal", "plain")
        or not trainer.is_global_zero
    ):
        return
    in_retrain = IN_RETRAIN in os.environ  # which has a closing block of its own
    if command == "fit":
        lines = _list_results(trainer, run, is_script=session.stage_config.is_script)
        lines = (
            [line for line in lines if line.startswith(("best", "note"))] if in_retrain else lines
        )
    else:
        _print_scores(trainer, command, mode)
        if not in_retrain:
            _print_class_tables(trainer, mode)
        lines = _list_places(trainer, run, in_retrain=in_retrain)
    if lines:
        print_line("\n".join(lines), mode)


def _list_places(trainer: Trainer, run: runs.Run, *, in_retrain: bool) -> list[str]:
    """Return where the table of predictions is, if there is one; else where the run is."""
    tables = _list_callbacks(trainer, PredictionTable)
    if tables:
        return [f"table {shown_path(tables[0].path)}"]
    return [] if in_retrain else [f"run   {shown_path(run.folder)}"]


def _print_scores(trainer: Trainer, command: str, mode: OutputMode) -> None:
    values = [f"{name} {float(value):.4g}" for name, value in trainer.callback_metrics.items()]
    if mode == "terminal":
        print_line("\n  ".join([command if values else f"{command}: done", *values]), mode)
    else:
        print_line("  ".join([command, *values]), mode)


def _print_class_tables(trainer: Trainer, mode: OutputMode) -> None:
    recorders = _list_callbacks(trainer, PredictionRecorder)
    if not recorders or recorders[0].predictions is None:
        return
    width = shutil.get_terminal_size((120, 24)).columns
    for text in format_class_tables(recorders[0].predictions, width=width):
        print_line(text, mode)


def _list_callbacks(trainer: Trainer, kind: type[_Kind]) -> list[_Kind]:
    return [callback for callback in trainer.callbacks if isinstance(callback, kind)]  # type: ignore[attr-defined]


def _list_results(trainer: Trainer, run: runs.Run, *, is_script: bool = False) -> list[str]:
    """List the best checkpoint, the folder, what a tracker has missed.

    Also list the next commands, a line each.
    """
    summary = runs.read_json(run.summary_path) or {}
    lines = []
    if (checkpoint := locate_checkpoint(run, "best")) is not None:
        lines.append(f"best  {shown_path(checkpoint)}{_explain_best(trainer, summary)}")
    lines.append(f"run   {shown_path(run.folder)}")
    if summary.get("stopped_early"):
        lines.append(f"note  {summary['stopped_early']}")
    lines += [
        f"note  {text}"
        for text in summary.get("notes") or ()
        if not text.startswith("best.ckpt is the newest")
    ]
    program = ["python", sys.argv[0]] if is_script else ["lightkit"]
    commands = (
        [[*program, "test", "--run", shown_path(run.folder)]]
        if any(run.checkpoints.glob("*.ckpt"))
        else []
    )
    # Lightning's stand-in of a fast_dev_run has a method of every name
    for logger in trainer.loggers:
        unsent = getattr(logger, "unsent", 0)
        view = getattr(logger, "view_command", None)
        if isinstance(unsent, int) and unsent:
            lines.append(f"note  {unsent} records have not reached {type(logger).__name__}")
        commands += [view] if isinstance(view, list) else []
    return [
        *lines,
        *(
            f"{'' if number else 'next':4}  {shlex.join(words)}"
            for number, words in enumerate(commands)
        ),
    ]


def _explain_best(trainer: Trainer, summary: Mapping[str, Any]) -> str:
    """Return in brackets what the best checkpoint was chosen by.

    Nothing where a user's callback does not say it.
    """
    best = summary.get("best") or {}
    keeper = trainer.checkpoint_callback
    if best.get("monitor") is None or best.get("value") is None:
        if isinstance(keeper, Checkpoint):
            newest = keeper.explain_newest(trainer)
        else:
            is_newest = isinstance(keeper, ModelCheckpoint) and keeper.monitor is None
            newest = f"{type(keeper).__name__} monitors nothing" if is_newest else None
        return "" if newest is None else f"  (the newest: {newest})"
    row = runs.find_value(summary, "metrics", "best") or {}
    is_epoch_end = "epoch_seconds" in row  # a row of metrics.csv
    where = (
        f"after epoch {best['epoch']}"
        if is_epoch_end
        else f"after step {best['step']}, in epoch {best['epoch']}"
    )
    return f"  ({best['monitor']} {best['value']:.4g} {where})"


def _describe_steps(trainer: Trainer) -> str:
    """Describe steps of an epoch, samples of a step and learning rate.

    All for the number of ranks in use.
    """
    parts = []
    accumulated = trainer.accumulate_grad_batches
    loader = trainer.train_dataloader
    if isinstance(trainer.num_training_batches, int):
        parts.append(f"{-(-trainer.num_training_batches // accumulated)} an epoch")
    holders = (loader, getattr(loader, "batch_sampler", None), getattr(loader, "_loader", None))
    sizes = [size for each in holders if isinstance(size := getattr(each, "batch_size", None), int)]
    if sizes:
        factors = {"": sizes[0], " accumulated": accumulated, " ranks": trainer.world_size}
        text = " x ".join(
            f"{number}{unit}" for unit, number in factors.items() if number > 1 or not unit
        )
        parts.append(f"batch {text}{f' = {math.prod(factors.values())}' if ' x ' in text else ''}")
    rates = dict.fromkeys(f"{rate:.6g}" for rate in list_rates(trainer))
    if rates:
        parts.append(f"learning rate {', '.join(rates)}")
    return ", ".join(parts)
