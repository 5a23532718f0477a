"""The beginning of a stage: lock, run folder, saved config, recorder; told to the other ranks of the same run."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event
from typing import Any

from lightkit import __version__, config, runs
from lightkit.callbacks import RunRecorder
from lightkit.cli.holding import lock_of
from lightkit.cli.inputs import record_inputs
from lightkit.cli.joining import INHERITED
from lightkit.cli.masking import MaskedEvents, masked_words
from lightkit.cli.pages import add_fit_page
from lightkit.cli.resuming import RunSettings, Start, choose_start, start_again
from lightkit.cli.session import Session
from lightkit.errors import (
    ConfigError,
    DataError,
    Interrupted,
    LightkitError,
    told_interruption,
)
from lightkit.runs.pipeline import TELLS_RUN

__all__ = ["Stage", "begin"]


@dataclass(frozen=True)
class Stage:
    """A stage that has begun.

    Args:
        start: Its run and checkpoint.
        recorder: Keeps the run folder up to date.
        worth_keeping: Set once training has begun. A mistake in the config or the data that shows before leaves
            no folder behind.
        data_before: What the run was trained on when it was interrupted.
        resumes_by_itself: Whether nobody named the run that goes on, so that it should be the same in all respects.
    """

    start: Start
    recorder: RunRecorder
    worth_keeping: Event = field(default_factory=Event)
    data_before: dict[str, Any] | None = None
    resumes_by_itself: bool = False


def begin(session: Session, settings: RunSettings, *, saved: dict[str, Any], seed: int | None, fresh: bool) -> Stage:
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
        if session.seat is not None:
            session.seat.keep_log(start.run.folder)
        events = MaskedEvents(start.run.events_path, session.resolved)
        return Stage(start, RunRecorder(start.run, events=events))
    if session.base is not None:
        stage = _stage(
            session,
            Start(session.base, checkpoint=Path(session.ckpt_path) if session.ckpt_path else None, is_old=True),
            manifest=None,
        )
    elif session.command == "fit":
        stage = _begin_fit(session, settings, saved=saved, seed=seed, fresh=fresh)
    else:
        stage = _begin_alone(session, settings, saved=saved, seed=seed)
    if session.command == "fit":
        session.stack.callback(add_fit_page, stage.start.run)  # last of all, when the summary is written
    session.stack.enter_context(_dropped_on_mistake(stage))
    stage.recorder.__enter__()
    session.stack.push(lambda _kind, error, _trace: _close(stage, error, session))
    session.stack.enter_context(_resumable(session, stage.start.run))
    session.stack.enter_context(_ended_by_force(session, stage))
    _bequeath(session, stage.start)
    return stage


def _told(session: Session) -> dict[str, Any] | None:
    """What rank 0 tells a rank of its run; None in the process that begins it."""
    if told := os.environ.get(INHERITED):
        inherited: dict[str, Any] = json.loads(told)
        return inherited
    if session.seat is None or session.seat.rank.rank == 0:
        return None
    return session.seat.wait_for_run(session.launch.timeout_s)


def _begin_fit(
    session: Session, settings: RunSettings, *, saved: dict[str, Any], seed: int | None, fresh: bool
) -> Stage:
    assert settings.name is not None
    lock = lock_of(session, settings)
    earlier = None if session.seat is None else session.seat.earlier_run(session.launch.timeout_s)
    lock.acquire()
    session.stack.push(lambda *_: _release(lock, session))
    start = (
        choose_start(
            settings, config=saved, ckpt_path=session.ckpt_path, fresh=fresh, environment=session.environment_digest
        )
        if earlier is None
        else start_again(runs.open_run(earlier["folder"]), first=earlier["first_checkpoint"])
    )
    lock.note_folder(start.run.folder)
    runs.remove_leftovers(start.run.checkpoints)
    stage = _written(session, start, saved=saved, seed=seed, fresh=fresh)
    if told := os.environ.get(TELLS_RUN):
        runs.write_json(told, {"folder": str(start.run.folder)})
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


def _begin_alone(session: Session, settings: RunSettings, *, saved: dict[str, Any], seed: int | None) -> Stage:
    """A stage of no run: with a checkpoint that is named, or an untrained model."""
    start = choose_start(settings, config=saved, ckpt_path=session.ckpt_path, fresh=True)
    if start.checkpoint is None and session.weights is None:
        session.tell("the model is untrained: neither --run nor --ckpt_path names a checkpoint")
    return _written(session, start, saved=saved, seed=seed)


def _written(session: Session, start: Start, *, saved: dict[str, Any], seed: int | None, fresh: bool = False) -> Stage:
    if start.notice:
        session.tell(start.notice)
    runs.write_text(start.run.config_path, config.dump_yaml(saved))
    previous = runs.read_json(start.run.manifest_path)
    manifest = runs.build_manifest(
        version=__version__,
        subcommand=session.command,
        command=["lightkit", session.command, *masked_words(session.resolved, session.words)],
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
    return replace(_stage(session, start, manifest=manifest), data_before=(previous or {}).get("data"))


def _stage(session: Session, start: Start, *, manifest: Mapping[str, Any] | None) -> Stage:
    mirror = sys.stdout if session.mode == "json" else None
    events = MaskedEvents(start.run.events_path, session.resolved, mirror=mirror)
    return Stage(start, RunRecorder(start.run, events=events, manifest=manifest))


def _without_secrets(error: BaseException | None, session: Session) -> BaseException | None:
    """Give an error of the same name for the records where its words hold what came from the environment."""
    if error is None or not isinstance(error, Exception) or session.resolved.masked(str(error)) == str(error):
        return error
    if isinstance(error, LightkitError):
        return error.reworded(session.resolved.masked)
    stand_in: type[Exception] = type(type(error).__name__, (Exception,), {})
    return stand_in(session.resolved.masked(str(error)))


@contextmanager
def _dropped_on_mistake(stage: Stage) -> Iterator[None]:
    run = stage.start.run
    try:
        yield
    except (ConfigError, DataError):
        if not (stage.start.is_old or stage.worth_keeping.is_set()):
            shutil.rmtree(run.folder, ignore_errors=True)
        raise


def _close(stage: Stage, error: BaseException | None, session: Session) -> None:
    with session.watch.deferring():  # a signal now would only leave half of the end
        stage.recorder.close(_without_secrets(error, session))


def _release(lock: runs.Lock, session: Session) -> None:
    with session.watch.deferring():
        lock.release()


@contextmanager
def _ended_by_force(session: Session, stage: Stage) -> Iterator[None]:
    """Write how the run has ended also where a signal came and the process does not end by itself."""

    def last_words(signum: int) -> int:
        # By its name alone: there is no time to read it, and whoever resumes does.
        written = {
            path: path.stat().st_mtime for path in run.checkpoints.glob("*.ckpt") if runs.sidecar(path).is_file()
        }
        newest = max(written, key=lambda path: written[path], default=None)
        ended = Interrupted(signum, checkpoint=newest if session.command == "fit" else None)
        stage.recorder.close(ended)
        if session.seat is not None:
            return session.seat.end_by_force(ended)
        session.tell(told_interruption(ended))
        return ended.exit_code

    run, session.watch.last_words = stage.start.run, last_words
    session.watch.look()
    yield


@contextmanager
def _resumable(session: Session, run: runs.Run) -> Iterator[None]:
    """Tell from what the run can be resumed where a signal came at a moment that could not know it."""
    try:
        yield
    except Interrupted as interruption:
        if interruption.checkpoint is not None or session.command != "fit":
            raise
        raise _interrupted(run, interruption.signum) from interruption
    except Exception as error:
        # A signal to the whole group has ended the loaders' processes before the batch was done, or a library that was
        # being loaded has made something else of the interruption.
        watch = session.watch
        if watch.received is None or not (watch.explains(error) or "DataLoader worker" in str(error)):
            raise
        raise _interrupted(run, watch.received) from error


def _interrupted(run: runs.Run, signum: int) -> Interrupted:
    return Interrupted(signum, checkpoint=runs.last_good(run.checkpoints, report=lambda _: None))


def _bequeath(session: Session, start: Start) -> None:
    checkpoint = None if start.checkpoint is None else str(start.checkpoint)
    earlier = None if session.seat is None else session.seat.earlier_run(session.launch.timeout_s)
    told = {
        "folder": str(start.run.folder),
        "resumed": start.run.resumed,
        "checkpoint": checkpoint,
        "first_checkpoint": checkpoint if earlier is None else earlier["first_checkpoint"],
    }
    if session.seat is not None:
        session.seat.tell_run(told)
    os.environ[INHERITED] = json.dumps(told)
    session.stack.callback(os.environ.pop, INHERITED, None)


def _inherited(told: Mapping[str, Any]) -> Start:
    checkpoint = None if told["checkpoint"] is None else Path(told["checkpoint"])
    return Start(runs.open_run(told["folder"], resumed=told["resumed"]), checkpoint=checkpoint)
