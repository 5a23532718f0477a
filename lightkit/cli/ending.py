"""The end of a stage, whatever brings it: what is recorded, what is left, and from what the run can be resumed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from lightkit import runs
from lightkit.cli.context import RunContext
from lightkit.cli.stage import Stage
from lightkit.errors import ConfigError, DataError, Interrupted, LightkitError, told_interruption

__all__ = ["close", "dropped_on_mistake", "ended_by_force", "release", "resumable"]

_RECORD_S = 1.0  # for a record of the end that is being written, of the two that last words may take


def _without_secrets(error: BaseException | None, session: RunContext) -> BaseException | None:
    """Give an error of the same name for the records where its words hold what came from the environment."""
    if error is None or not isinstance(error, Exception) or session.resolved.masked(str(error)) == str(error):
        return error
    if isinstance(error, LightkitError):
        return error.reworded(session.resolved.masked)
    stand_in: type[Exception] = type(type(error).__name__, (Exception,), {})
    return stand_in(session.resolved.masked(str(error)))


@contextmanager
def dropped_on_mistake(stage: Stage) -> Iterator[None]:
    """Leave no folder of a new run behind where a mistake shows before training has begun."""
    run = stage.start.run
    try:
        yield
    except (ConfigError, DataError):
        if not (stage.start.is_old or stage.worth_keeping.is_set()):
            shutil.rmtree(run.folder, ignore_errors=True)
        raise


def close(stage: Stage, error: BaseException | None, session: RunContext) -> None:
    """Write how the stage has ended, without secrets."""
    with session.watch.deferring():  # a signal now would only leave half of the end
        stage.recorder.close(_without_secrets(error, session))


def release(lock: runs.Lock, session: RunContext) -> None:
    """Give the job's lock back."""
    with session.watch.deferring():
        lock.release()


@contextmanager
def ended_by_force(session: RunContext, stage: Stage) -> Iterator[None]:
    """Write how the run has ended also where a signal came and the process does not end by itself."""

    def last_words(signum: int) -> int:
        stage.recorder.reserve_end(_RECORD_S)
        newest = runs.newest_written(run.checkpoints) if session.command == "fit" else None  # whoever resumes reads it
        ended = Interrupted(signum, checkpoint=newest)
        stage.recorder.close(ended)
        if session.rank_context is not None:
            return session.rank_context.end_by_force(ended)
        session.tell(told_interruption(ended))
        return ended.exit_code

    run, session.watch.last_words = stage.start.run, last_words
    session.watch.look()
    yield


@contextmanager
def resumable(session: RunContext, stage: Stage) -> Iterator[None]:
    """Tell from what the run can be resumed where a signal came at a moment that could not know it."""
    try:
        yield
    except Interrupted as interruption:
        if interruption.checkpoint is not None or session.command != "fit":
            raise
        raise _interrupted(stage, interruption.signum) from interruption
    except Exception as error:
        # A signal to the whole group has ended the loaders' processes before the batch was done, or a library that was
        # being loaded has made something else of the interruption.
        watch = session.watch
        if watch.received is None or not (watch.explains(error) or "DataLoader worker" in str(error)):
            raise
        raise _interrupted(stage, watch.received) from error


def _interrupted(stage: Stage, signum: int) -> Interrupted:
    return Interrupted(signum, checkpoint=runs.last_good(stage.start.run.checkpoints, report=lambda _: None))
