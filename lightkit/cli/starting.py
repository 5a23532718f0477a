"""The beginning of a stage: lock, run folder, saved config, recorder; told to the other ranks of the same run."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from lightkit import config, runs
from lightkit.callbacks import RunRecorder
from lightkit.cli.ci_report import add_fit_page
from lightkit.cli.context import RunContext
from lightkit.cli.ending import close, dropped_on_mistake, ended_by_force, release, resumable
from lightkit.cli.input_digests import record_inputs
from lightkit.cli.job_lock import create_job_lock
from lightkit.cli.redaction import RedactedEventStream, redact_words
from lightkit.cli.resume import RunSettings, RunStart, choose_start, restart_run
from lightkit.cli.stage import Stage
from lightkit.launch import INHERITED
from lightkit.runs.retrain_state import RUN_FILE
from lightkit.version import __version__

__all__ = ["begin"]


def begin(
    session: RunContext,
    settings: RunSettings,
    *,
    saved: dict[str, Any],
    seed: int | None,
    fresh: bool,
) -> Stage:
    """Choose the run of a stage and write down how it begins.

    Args:
        session: The invocation.
        settings: The config's `run` section, with its name filled in.
        saved: The config as the run folder keeps it.
        seed: What `seed_everything` came to.
        fresh: Begin a new run unless the user names one, as a `fast_dev_run` does.

    Raises:
        ConfigError: If what the user names is not there, or the run root cannot be written.
        RunLocked: If another process runs this job.
    """
    if (told := _told(session)) is not None:
        session.watch.look()
        start = _inherited(told)
        if session.rank_context is not None:
            session.rank_context.keep_log(start.run.folder)
        events = RedactedEventStream(start.run.events_path, session.resolved)
        return Stage(start, RunRecorder(start.run, events=events))
    if session.base is not None:
        start = RunStart(session.base, checkpoint=Path(session.ckpt_path) if session.ckpt_path else None, is_old=True)
        stage = _stage(session, start, manifest=None)
    elif session.command == "fit":
        stage = _begin_fit(session, settings, saved=saved, seed=seed, fresh=fresh)
    else:
        stage = _begin_alone(session, settings, saved=saved, seed=seed)
    if session.command == "fit":
        session.stack.callback(add_fit_page, stage.start.run)  # last of all, when the summary is written
    session.stack.enter_context(dropped_on_mistake(stage))
    stage.recorder.__enter__()
    session.stack.push(lambda _kind, error, _trace: close(stage, error, session))
    session.stack.enter_context(resumable(session, stage))
    session.stack.enter_context(ended_by_force(session, stage))
    _bequeath(session, stage)
    return stage


def _told(session: RunContext) -> dict[str, Any] | None:
    """What rank 0 tells a rank of its run; None in the process that begins it."""
    if told := os.environ.get(INHERITED):
        inherited: dict[str, Any] = json.loads(told)
        return inherited
    if session.rank_context is None or session.rank_context.rank.rank == 0:
        return None
    return session.rank_context.wait_for_run(session.launch.timeout_s)


def _begin_fit(
    session: RunContext,
    settings: RunSettings,
    *,
    saved: dict[str, Any],
    seed: int | None,
    fresh: bool,
) -> Stage:
    assert settings.name is not None
    lock = create_job_lock(session, settings)
    earlier = None if session.rank_context is None else session.rank_context.earlier_run(session.launch.timeout_s)
    lock.acquire()
    session.stack.push(lambda *_: release(lock, session))
    start = (
        choose_start(
            settings,
            config=saved,
            ckpt_path=session.ckpt_path,
            fresh=fresh,
            environment=session.environment_digest,
            by_rule=session.hardware.chosen,
        )
        if earlier is None
        else restart_run(runs.open_run(earlier["folder"]), first=earlier["first_checkpoint"])
    )
    lock.note_folder(start.run.folder)
    runs.remove_leftovers(start.run.checkpoints)
    stage = _written(session, start, saved=saved, seed=seed, fresh=fresh)
    if run_file := os.environ.get(RUN_FILE):
        runs.write_json(run_file, {"folder": str(start.run.folder)})
    _note_passed_over(stage)
    return replace(stage, resumes_by_itself=start.is_old and settings.resume == "auto")


def _note_passed_over(stage: Stage) -> None:
    """Tell of each checkpoint that was not what was written, and which one is used in its place."""
    folder, used = stage.start.run.folder, stage.start.checkpoint
    for path, fault in stage.start.passed_over:
        stage.recorder.events.write(
            "fallback",
            path=runs.relative(path, folder),
            used=None if used is None else runs.relative(used, folder),
            reason=fault,
        )


def _begin_alone(session: RunContext, settings: RunSettings, *, saved: dict[str, Any], seed: int | None) -> Stage:
    """A stage of no run: with a checkpoint that is named, or an untrained model."""
    start = choose_start(settings, config=saved, ckpt_path=session.ckpt_path, fresh=True)
    if start.checkpoint is None and session.weights is None:
        session.tell("the model is untrained: neither --run nor --ckpt_path names a checkpoint")
    return _written(session, start, saved=saved, seed=seed)


def _written(
    session: RunContext,
    start: RunStart,
    *,
    saved: dict[str, Any],
    seed: int | None,
    fresh: bool = False,
) -> Stage:
    if start.notice:
        session.tell(start.notice)
    runs.write_text(start.run.config_path, config.dump_yaml(saved))
    previous = runs.read_json(start.run.manifest_path)
    manifest = runs.build_manifest(
        version=__version__,
        subcommand=session.command,
        command=["lightkit", session.command, *redact_words(session.resolved, session.words)],
        run=f"{start.run.name}/{start.run.id}",
        seed=seed,
        parent=None if start.parent is None else str(start.parent.folder),
        previous=previous,
    )
    manifest["ckpt_path"] = session.ckpt_path
    manifest["environment"] = session.environment_digest(start.run.id)
    manifest["fast_dev_run"] = fresh
    if session.command == "fit" and not fresh:
        manifest["inputs"] = record_inputs(session, start.run, previous)
    runs.write_json(start.run.manifest_path, manifest)
    stage = _stage(session, start, manifest=manifest)
    return replace(stage, data_before=(previous or {}).get("data"))


def _stage(session: RunContext, start: RunStart, *, manifest: Mapping[str, Any] | None) -> Stage:
    mirror = sys.stdout if session.mode == "json" else None
    events = RedactedEventStream(start.run.events_path, session.resolved, mirror=mirror)
    return Stage(start, RunRecorder(start.run, events=events, manifest=manifest))


def _bequeath(session: RunContext, stage: Stage) -> None:
    start = stage.start
    checkpoint = None if start.checkpoint is None else str(start.checkpoint)
    earlier = None if session.rank_context is None else session.rank_context.earlier_run(session.launch.timeout_s)
    told = {
        "folder": str(start.run.folder),
        "resumed": start.run.resumed,
        "checkpoint": checkpoint,
        "first_checkpoint": checkpoint if earlier is None else earlier["first_checkpoint"],
    }
    if session.rank_context is not None:
        session.rank_context.announce_run(told)
    os.environ[INHERITED] = json.dumps(told)
    session.stack.callback(os.environ.pop, INHERITED, None)


def _inherited(told: Mapping[str, Any]) -> RunStart:
    checkpoint = None if told["checkpoint"] is None else Path(told["checkpoint"])
    return RunStart(runs.open_run(told["folder"], resumed=told["resumed"]), checkpoint=checkpoint)
