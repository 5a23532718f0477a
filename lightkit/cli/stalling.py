"""What is told and kept of a stall: the stacks in the run's folder, the event, the end of the process."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

from lightkit import runs
from lightkit.cli.context import RunContext
from lightkit.cli.stage import Stage
from lightkit.errors import Stalled
from lightkit.launch import STALLED, Hung, Stall, Watchdog, WatchdogSettings, heartbeat

__all__ = ["watched"]

_CUT_S = 5.0
_RECORD_S = 2.0  # for a record of the end that is being written, out of the same time
_NEWS_S = 2.0  # for notifiers and the dead-man's switch, out of it too


def watched(session: RunContext, stage: Stage, settings: WatchdogSettings) -> Watchdog:
    """Make the watchdog of a stage; a stall that it ends gently leaves the session as the error `Stalled`.

    Args:
        session: The invocation.
        stage: The stage that has begun.
        settings: The config's `watchdog` block.
    """
    teller = _Teller(session, stage)
    most_s = None if session.seat is None else session.launch.stall_timeout_s

    def limit_s() -> float:
        own_s = settings.limit_s(heartbeat())
        return own_s if most_s is None else min(own_s, most_s)

    watchdog = Watchdog(heartbeat(), limit_s=limit_s, report=teller.report, end=teller.end)
    session.stack.enter_context(teller.told(watchdog))
    return watchdog


class _Teller:
    def __init__(self, session: RunContext, stage: Stage) -> None:
        self._session = session
        self._stage = stage
        self._run = stage.start.run
        self._is_told = False
        self._path: str | None = None

    def report(self, stall: Stall) -> None:
        """Write the stacks and the event."""
        if self._session.seat is not None:
            self._session.seat.tell_stall(stall)
        try:
            self._path = self._written(stall)
            self._stage.recorder.events.write(
                "stall",
                phase=stall.phase,
                seconds=stall.seconds,
                path=self._path,
                at=stall.at,
                who=stall.who,
                sample=stall.samples.sample,
                batch=None if stall.samples.batch is None else list(stall.samples.batch),
                waits_for=stall.waits_for,
                rank=0 if self._session.seat is None else self._session.seat.rank.rank,
            )
        except OSError as error:
            print(f"warning: the stall cannot be recorded in {self._run.folder}: {error}", file=sys.stderr)

    @contextmanager
    def told(self, watchdog: Watchdog) -> Iterator[None]:
        """Turn the end of a main thread that hung into an error; no loading process outlives it."""
        try:
            yield
        except Hung as hung:
            self._is_told = watchdog.is_heard = True
            for child in multiprocessing.active_children():
                child.kill()  # else the interpreter would wait for it
            if self._session.has_own_parser:  # a script, or a notebook, may go on
                watchdog.stop()
            newest_good = partial(runs.last_good, report=lambda _: None)
            raise Stalled(self._words(hung.stall) + self._goes_on(newest_good)) from None
        except BaseException:
            watchdog.stop()
            raise
        watchdog.stop()

    def end(self, stall: Stall) -> None:
        """End the process at once: its main thread does not."""
        watch, words = self._session.watch, list[str]()

        def cut() -> None:
            watch.cut(STALLED, "".join(words) or None)

        threading.Timer(_CUT_S, cut).start()  # a disk that hangs must not keep it
        if self._session.seat is not None:  # whose supervisor tells and records the end
            for child in multiprocessing.active_children():
                child.kill()
            os._exit(STALLED)
        if not self._is_told:
            words.append(f"error: {self._words(stall)}")  # should what is written now hang too
            self._stage.recorder.reserve_end(_RECORD_S)
            error = Stalled(self._words(stall) + self._goes_on(runs.newest_written))
            words[:] = [f"error: {error}"]
            self._stage.recorder.close(error)
            self._session.notifier.tell_now(error, within_s=_NEWS_S)
        cut()

    def _written(self, stall: Stall) -> str:
        rank = "" if self._session.seat is None else f"-rank-{self._session.seat.rank.rank}"
        now = datetime.now(timezone.utc)
        path = self._run.folder / "stalls" / f"{now:%Y%m%d-%H%M%S}{rank}.txt"
        head = f"{now.isoformat(timespec='seconds')} {stall.told}\n"
        samples = "" if stall.samples.batch is None else f"its batch: {', '.join(map(str, stall.samples.batch))}\n"
        path.parent.mkdir(exist_ok=True)
        text = self._session.resolved.masked(f"{head}{samples}\n{stall.stacks}")
        path.write_text(text, encoding="utf-8", errors="replace")
        return path.relative_to(self._run.folder).as_posix()

    def _words(self, stall: Stall) -> str:
        where = "" if self._path is None else f" All stacks: {self._run.folder / self._path}."
        return self._session.resolved.masked(f"{stall.told}.{where}")

    def _goes_on(self, newest: Callable[[Path], Path | None]) -> str:
        if self._session.command != "fit":
            return ""
        last = newest(self._run.checkpoints)
        if last is None:
            return " There is no checkpoint yet: the same command begins again."
        return self._session.resolved.masked(f" The same command resumes from {last}.")
