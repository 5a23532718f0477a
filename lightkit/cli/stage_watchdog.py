"""The watchdog of a stage: it records a stall, and ends the process where nothing else does."""

from __future__ import annotations

import math
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial

from lightkit import runs
from lightkit.cli.session import Session
from lightkit.errors import Stalled
from lightkit.launch.resources import ResourceLog
from lightkit.launch.watchdog import STALLED, Hung, Stall, Watchdog, WatchdogSettings, heartbeat

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
    if not session.trains or session.process.rank_number:
        return lambda: None
    log = ResourceLog(session.run.folder / "resources.csv")
    session.process.stack.callback(log.close)
    return log.sample


class _StallReport:
    def __init__(self, session: Session) -> None:
        self._session = session
        self._process = session.process
        self._mask = session.stage_config.resolved.masked
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
            checkpoints = self._session.run.checkpoints
            newest = runs.last_good(checkpoints) if self._session.trains else None
            resume = "" if newest is None else f" The same command resumes from {newest}."
            raise Stalled(f"{self._text}{resume}") from None
        finally:
            # Else it goes on, and ends a process that hangs again.
            if not self._is_raised or not self._process.watch.owns_process:
                watchdog.stop()

    def record(self, stall: Stall) -> None:
        """Write the stacks and the event."""
        # should what follows hang too
        self._text = self._mask(f"{stall}.")
        rank = self._process.rank_number
        if self._process.rank_context is not None:
            self._process.rank_context.end_stalled(stall)
        now = datetime.now(UTC)
        batch = stall.culprit.batch
        path = self._session.run.folder / "stalls" / f"{now:%Y%m%d-%H%M%S}-rank-{rank}.txt"
        indices = "" if batch is None else f"its batch: {', '.join(map(str, batch))}\n"
        text = f"{now.isoformat(timespec='seconds')} {stall}\n{indices}\n{stall.stacks}"
        path.parent.mkdir(exist_ok=True)
        path.write_text(self._mask(text), encoding="utf-8", errors="replace")
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
        last_words = None if self._is_raised else f"error: {error}"
        end_by_force = partial(self._process.watch.cut, STALLED, last_words)
        threading.Timer(_FORCED_END_S, end_by_force).start()  # a disk that hangs must not keep it
        # the supervisor reports and records the end
        if self._process.rank_context is not None:
            _kill_children()
            os._exit(STALLED)
        if not self._is_raised:
            self._session.recorder.close(error)
            self._process.notifier.send_end(error, timeout_s=_NEWS_S)
        end_by_force()


def _kill_children() -> None:
    for child in multiprocessing.active_children():
        child.kill()
