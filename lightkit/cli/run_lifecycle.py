"""A run from its beginning to its end.

Job lock, folder, checkpoint, saved config, manifest, recorded end.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from lightkit import config, runs
from lightkit.callbacks import RunRecorder
from lightkit.cli.console import print_line
from lightkit.cli.input_digests import record_inputs, split_values
from lightkit.cli.monitors import find_config_modes, list_mode_warnings
from lightkit.cli.notifications import IN_RETRAIN
from lightkit.cli.redaction import redact_command_line
from lightkit.cli.session import Session, StageProcess, create_job_lock
from lightkit.cli.stage_config import StageConfig
from lightkit.config.identity import can_change_score
from lightkit.config.origins import setting_key, shown_path
from lightkit.config.yaml_reader import YamlLoader
from lightkit.errors import (
    ConfigError,
    DataError,
    Interrupted,
    OutOfTime,
    find_worker_death,
    format_interruption,
)
from lightkit.launch.worker import INHERITED, RankContext
from lightkit.runs.ci_report import add_fit_page
from lightkit.runs.index import flatten, read_config
from lightkit.runs.resume import RunSettings, RunStart, choose_start, resume_run

_log = logging.getLogger("lightkit")


def start_run(
    stage_config: StageConfig,
    process: StageProcess,
    settings: RunSettings,
    *,
    saved_config: dict[str, Any],
    seed: int | None,
    is_trial: bool,
) -> Session:
    """Choose the run and its checkpoint, record the beginning.

    Have the process's stack record the end.

    Ranks other than the first take the run that the first one has announced.

    Args:
        stage_config: The command line and its config.
        process: This process.
        settings: The config's `run` section, with its name filled in.
        saved_config: The config as it is written to the run folder.
        seed: The seed in use, if any.
        is_trial: Whether it is a `fast_dev_run`, which resumes nothing.

    Raises:
        ConfigError: If what the user names is not there, or the run root cannot be written.
        RunLocked: If another process runs this job.
    """
    announced = _read_announcement(process.rank_context, stage_config.launch.timeout_s)
    if announced is not None:
        return _join_run(stage_config, process, announced, saved_config)

    # A training holds the lock of its job before it looks for the run that it goes on with.
    earlier = None
    lock = None
    if stage_config.command == "fit" and stage_config.base is None:
        earlier = None if process.rank_context is None else process.rank_context.earlier_run()
        lock = _lock_job(process, settings)
    if earlier is not None:
        start = resume_run(runs.open_run(earlier["folder"]), first=earlier["first_checkpoint"])
    else:
        start = _choose_start(stage_config, settings, saved_config, is_trial=is_trial)

    # The folder gets the config and the manifest first, then the events.
    manifest = None
    if stage_config.base is None:
        manifest = _record_start(stage_config, start, saved_config, seed=seed, is_trial=is_trial)
    if lock is not None:
        runs.remove_leftovers(start.run.checkpoints)
        # for a retrain, which goes on with a run that has a manifest
        lock.note_folder(start.run.folder)

    # From here on, the end is recorded.
    recorder = _open_recorder(stage_config, start, saved_config, manifest)
    session = Session(
        stage_config=stage_config,
        process=process,
        start=start,
        recorder=recorder,
        saved_config=saved_config,
    )
    process.stack.enter_context(_finish_run(session, is_reported=settings.report and not is_trial))
    if lock is not None:  # once the recorder takes warnings, which are events of the run
        for warning in list_mode_warnings(stage_config.resolved):
            _log.warning(warning)
    _announce(session, earlier)
    return session


def _choose_start(
    stage_config: StageConfig,
    settings: RunSettings,
    saved_config: dict[str, Any],
    *,
    is_trial: bool,
) -> RunStart:
    """Return the run that `--run` names, or the one that the stage begins or goes on with."""
    if stage_config.base is not None:
        checkpoint = None if stage_config.ckpt_path is None else Path(stage_config.ckpt_path)
        return RunStart(stage_config.base, checkpoint=checkpoint, is_old=True)
    return choose_start(
        settings,
        config=saved_config,
        ckpt_path=stage_config.ckpt_path,
        fresh=is_trial or stage_config.command != "fit",
        environment=lambda salt: split_values(stage_config.written, salt)[1],
        by_rule=stage_config.hardware.chosen,
    )


def _open_recorder(
    stage_config: StageConfig,
    start: RunStart,
    saved_config: dict[str, Any],
    manifest: dict[str, Any] | None,
) -> RunRecorder:
    """Open the recorder of a run, with an event for each damaged checkpoint that was passed over.

    Args:
        stage_config: The command line and its config.
        start: The run, and the checkpoint that it starts from.
        saved_config: The config as the run folder has it, or would.
        manifest: The manifest that was written; None of a stage on an earlier run.
    """
    run = start.run
    resolved = stage_config.resolved
    mirror = sys.stdout if stage_config.mode == "json" else None
    events = runs.EventStream(run.events_path, mirror=mirror, redact=resolved.masked)
    for path, fault in start.passed_over:
        used = start.checkpoint and runs.relative(start.checkpoint, run.folder)
        events.write("fallback", path=runs.relative(path, run.folder), used=used, reason=fault)
    trains = stage_config.command == "fit" and manifest is not None
    return RunRecorder(
        run,
        events=events,
        manifest=manifest,
        checkpoint=start.checkpoint,
        changed=_list_changed_settings(stage_config, saved_config),
        modes=find_config_modes(resolved) if trains else None,
    )


def _lock_job(process: StageProcess, settings: RunSettings) -> runs.Lock:
    """Take the job's lock until the stage ends."""
    lock = create_job_lock(settings, process.watch)
    lock.acquire()

    @process.stack.callback
    def release() -> None:
        with process.watch.deferring():
            lock.release()

    return lock


def _record_start(
    stage_config: StageConfig,
    start: RunStart,
    saved_config: dict[str, Any],
    *,
    seed: int | None,
    is_trial: bool,
) -> dict[str, Any]:
    """Write the config and the manifest into the run folder, and return the manifest."""
    run = start.run
    resolved = stage_config.resolved
    _log_start(start, stage_config.command, has_weights=stage_config.weights is not None)
    runs.write_text(run.config_path, config.dump_yaml(saved_config))
    previous = runs.read_json(run.manifest_path)
    manifest = runs.build_manifest(
        subcommand=stage_config.command,
        command=[
            "lightkit",
            stage_config.command,
            *redact_command_line(resolved, stage_config.invocation.words),
        ],
        run=f"{run.name}/{run.id}",
        seed=seed,
        parent=None if start.parent is None else str(start.parent.folder),
        previous=previous,
    )
    manifest |= {"ckpt_path": stage_config.ckpt_path, "fast_dev_run": is_trial}
    if "trial" in stage_config.options:
        manifest["trial"] = stage_config.options["trial"]
    manifest["environment"] = split_values(stage_config.written, run.id)[1]
    if chosen := stage_config.hardware.chosen:
        manifest["auto"] = {"by": stage_config.hardware.chosen_by, "values": dict(chosen)}
    manifest["origins"] = stage_config.written.origins
    if stage_config.command == "fit" and not is_trial:
        manifest["inputs"] = record_inputs(stage_config, run, previous)
    runs.write_json(run.manifest_path, manifest)
    return manifest


def _log_start(start: RunStart, command: str, *, has_weights: bool) -> None:
    """Log from where a run goes on, or that the model of a stage is untrained."""
    if start.notice:
        _log.info(start.notice)
    is_untrained = start.checkpoint is None and not has_weights
    if is_untrained and command != "fit":
        _log.info("the model is untrained: neither --run nor --ckpt_path names a checkpoint")


def _list_changed_settings(
    stage_config: StageConfig, saved_config: dict[str, Any]
) -> dict[str, Any]:
    """Return what may change a score and differs between the configs of a stage and of its run.

    Key and value.

    It is of the sections data and model, and little of the trainer's.
    """
    if stage_config.base is None or stage_config.command not in ("validate", "test"):
        return {}
    # both as YAML has them
    saved = yaml.load(config.dump_yaml(saved_config), Loader=YamlLoader)  # noqa: S506 - a safe loader
    before = dict(flatten(read_config(stage_config.base)))
    now = dict(flatten(saved))
    written = stage_config.resolved.origins.keys()

    changed: dict[str, Any] = {}
    for path in dict.fromkeys([*now, *before]):
        # 1 batch is not 1.0, which is all of them
        is_same = path in now and path in before and repr(now[path]) == repr(before[path])
        # of another version of a class, whose default it is
        is_new_default = path not in before and path not in written
        if can_change_score(path, stage_config.command) and not is_same and not is_new_default:
            changed[setting_key(path)] = now.get(path)
    return changed


# -- the other ranks of the same run ---------------------------------------------------------------


def _read_announcement(ranks: RankContext | None, timeout_s: float) -> dict[str, Any] | None:
    """Return what rank 0 announces of the run; None in the process that begins it."""
    if text := os.environ.get(INHERITED):
        inherited: dict[str, Any] = json.loads(text)
        return inherited
    if ranks is None or ranks.rank.rank == 0:
        return None
    return ranks.wait_for_run(timeout_s)


def _join_run(
    stage_config: StageConfig,
    process: StageProcess,
    announced: Mapping[str, Any],
    saved_config: dict[str, Any],
) -> Session:
    """Open the run that rank 0 has announced; rank 0 alone records it."""
    run = runs.open_run(announced["folder"], resumed=announced["resumed"])
    checkpoint = announced["checkpoint"]
    start = RunStart(run, checkpoint=None if checkpoint is None else Path(checkpoint))
    if process.rank_context is not None:
        process.rank_context.keep_log(run.folder)
    events = runs.EventStream(run.events_path, redact=stage_config.resolved.masked)
    recorder = RunRecorder(run, events=events)
    return Session(
        stage_config=stage_config,
        process=process,
        start=start,
        recorder=recorder,
        saved_config=saved_config,
    )


def _announce(session: Session, earlier: Mapping[str, Any] | None) -> None:
    checkpoint = None if session.start.checkpoint is None else str(session.start.checkpoint)
    announcement = {
        "folder": str(session.run.folder),
        "resumed": session.run.resumed,
        "checkpoint": checkpoint,
        "first_checkpoint": checkpoint if earlier is None else earlier["first_checkpoint"],
    }
    process = session.process
    if process.rank_context is not None:
        process.rank_context.announce_run(announcement)
    os.environ[INHERITED] = json.dumps(announcement)
    process.stack.callback(os.environ.pop, INHERITED, None)


# -- the end ---------------------------------------------------------------------------------------


@contextmanager
def _finish_run(session: Session, *, is_reported: bool) -> Iterator[None]:
    """Record how the run ends, and report it.

    An error before training has begun leaves no folder of a new run.
    """
    watch = session.process.watch
    raised: BaseException | None = None
    session.recorder.start()
    watch.last_words = partial(_finish_by_force, session)
    try:
        yield
    except BaseException as error:
        raised = _add_checkpoint(error, session)
        if raised is error:
            raise
        raise raised from error
    finally:
        with watch.deferring():  # a signal now would leave half of the end
            session.recorder.close(raised)
        if _has_no_use(session, raised):
            shutil.rmtree(session.run.folder, ignore_errors=True)
        elif session.trains:
            add_fit_page(session.run)
        if is_reported and _has_report(session, raised):
            _report_run(session, has_failed=raised is not None)


def _has_report(session: Session, raised: BaseException | None) -> bool:
    """Return whether the end of a stage changes the report of its run; a retrain writes its own."""
    is_over = raised is None or (
        isinstance(raised, Exception) and not isinstance(raised, OutOfTime)
    )
    is_alone = session.stage_config.command in ("fit", "test") and IN_RETRAIN not in os.environ
    return is_over and is_alone and session.run.manifest_path.exists()


def _has_no_use(session: Session, raised: BaseException | None) -> bool:
    """Return whether a new run has ended before it could train.

    By a mistake or for lack of anything to train.
    """
    if session.start.is_old or session.has_trained:
        return False
    return session.nothing_left or isinstance(raised, (ConfigError, DataError))


def _report_run(session: Session, *, has_failed: bool) -> None:
    """Write the run's report, and print its place unless an error follows."""
    from lightkit.reports.pages import try_run_report  # here: it loads Jinja2 and Matplotlib

    with session.process.watch.deferring():
        page = try_run_report(session.run)
    if page is not None and not has_failed:
        print_line(f"report {shown_path(page)}", session.stage_config.mode)


def _add_checkpoint(error: BaseException, session: Session) -> BaseException:
    """Return the interruption of a fit with the checkpoint that it resumes from.

    Where it does not know it.
    """
    watch = session.process.watch
    signum = error.signum if isinstance(error, Interrupted) else watch.received
    # A signal to the whole process group has ended the loaders' processes before the batch was
    # done, or a library that was being imported has raised an error of its own in place of the
    # interruption.
    is_of_signal = isinstance(error, Exception) and (
        watch.explains(error) or find_worker_death(error) is not None
    )
    if (
        signum is None
        or not (isinstance(error, Interrupted) or is_of_signal)
        or getattr(error, "checkpoint", None)
    ):
        return error
    checkpoint = runs.last_good(session.run.checkpoints) if session.trains else None
    return Interrupted(signum, checkpoint=checkpoint)


def _finish_by_force(session: Session, signum: int) -> int:
    """Record the end of a process that does not end after a signal, and return its exit code."""
    newest = runs.newest_written(session.run.checkpoints) if session.trains else None
    interruption = Interrupted(signum, checkpoint=newest)
    session.recorder.close(interruption)
    if session.process.rank_context is not None:
        return session.process.rank_context.end_by_force(interruption)
    _log.info(format_interruption(interruption))
    return interruption.exit_code
