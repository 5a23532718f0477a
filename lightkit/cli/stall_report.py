"""End a run that hangs: write the stacks and the event, name the newest checkpoint, end the process."""

from __future__ import annotations

import math
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
from lightkit.errors import Stalled
from lightkit.launch import STALLED, Hung, Stall, Watchdog, WatchdogSettings, heartbeat

__all__ = ["make_watchdog"]

_FORCED_END_S = 5.0
_RECORD_S = 2.0  # for a record of the end that is being written, out of the same time
_NEWS_S = 2.0  # for notifiers and the dead-man's switch, out of it too


def make_watchdog(session: RunContext, settings: WatchdogSettings) -> Watchdog:
    """Make the watchdog of a stage; a stall that it ends gently leaves the session as the error `Stalled`.

    Args:
        session: The invocation.
        settings: The config's `watchdog` block.
    """
    report = _StallReport(session, settings)
    session.stack.enter_context(report.raising_stalled())
    return report.watchdog


class _StallReport:
    def __init__(self, session: RunContext, settings: WatchdogSettings) -> None:
        self._session = session
        self._run = session.run
        self._is_reported = False
        self._stacks: Path | None = None
        most_s = math.inf if session.rank_context is None else session.launch.stall_timeout_s

        def limit_s() -> float:
            return min(settings.limit_s(heartbeat()), most_s)

        self.watchdog = Watchdog(heartbeat(), limit_s=limit_s, report=self._record, end=self._end)

    @contextmanager
    def raising_stalled(self) -> Iterator[None]:
        """Turn `Hung` into an error with the words for the user, and leave no data loader worker behind."""
        try:
            yield
        except Hung as hung:
            self._is_reported = True
            for child in multiprocessing.active_children():
                child.kill()  # else the interpreter would wait for it
            if self._session.has_own_parser:  # a script, or a notebook, may go on
                self.watchdog.stop()
            raise Stalled(self._format(hung.stall, partial(runs.last_good, report=lambda _: None))) from None
        except BaseException:
            self.watchdog.stop()
            raise
        self.watchdog.stop()

    def _record(self, stall: Stall) -> None:
        """Write the stacks and the event."""
        rank = 0
        if self._session.rank_context is not None:
            self._session.rank_context.end_stalled(stall)
            rank = self._session.rank_context.rank.rank
        now = datetime.now(timezone.utc)
        name = f"{now:%Y%m%d-%H%M%S}{'' if self._session.rank_context is None else f'-rank-{rank}'}.txt"
        batch = stall.culprit.batch
        indices = "" if batch is None else f"its batch: {', '.join(map(str, batch))}\n"
        text = f"{now.isoformat(timespec='seconds')} {stall}\n{indices}\n{stall.stacks}"
        try:
            path = self._run.folder / "stalls" / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(self._session.resolved.masked(text), encoding="utf-8", errors="replace")
            self._stacks = path
            self._session.recorder.events.write(
                "stall",
                phase=stall.phase,
                seconds=stall.seconds,
                path=f"stalls/{name}",
                at=stall.line,
                who=stall.culprit.name,
                sample=stall.culprit.sample,
                batch=None if batch is None else list(batch),
                waits_for=stall.waits_for,
                rank=rank,
            )
        except OSError as error:
            print(f"warning: the stall cannot be recorded in {self._run.folder}: {error}", file=sys.stderr)

    def _end(self, stall: Stall) -> None:
        """End the process at once: its main thread does not."""
        message = f"error: {self._format(stall, None)}"  # should what is written now hang too

        def end_by_force() -> None:
            self._session.watch.cut(STALLED, None if self._is_reported else message)

        threading.Timer(_FORCED_END_S, end_by_force).start()  # a disk that hangs must not keep it
        if self._session.rank_context is not None:  # the supervisor reports and records the end
            for child in multiprocessing.active_children():
                child.kill()
            os._exit(STALLED)
        if not self._is_reported:
            self._session.recorder.reserve_end(_RECORD_S)
            error = Stalled(self._format(stall, runs.newest_written))
            message = f"error: {error}"
            self._session.recorder.close(error)
            self._session.notifier.tell_now(error, within_s=_NEWS_S)
        end_by_force()

    def _format(self, stall: Stall, find_checkpoint: Callable[[Path], Path | None] | None) -> str:
        stacks = "" if self._stacks is None else f" All stacks: {self._stacks}."
        resume = ""
        if find_checkpoint is not None and self._session.command == "fit":
            newest = find_checkpoint(self._run.checkpoints)
            resume = (
                " There is no checkpoint yet: the same command begins again."
                if newest is None
                else f" The same command resumes from {newest}."
            )
        return self._session.resolved.masked(f"{stall}.{stacks}{resume}")
