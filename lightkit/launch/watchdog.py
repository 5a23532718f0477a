"""Ends a rank that makes no progress, and says where it stands."""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Callable
from types import FrameType

from lightkit.launch.heartbeat import Heartbeat

__all__ = ["STALLED", "Watchdog"]

STALLED = 70
"""Exit code of a process that its watchdog has ended."""
_GRACE_S = 5.0
# A frame of one of these files that is innermost stands for a collective: native code waits there for other ranks.
_COLLECTIVES = (
    "torch/autograd/graph.py",
    "torch/distributed/",
    "torch/nn/parallel/",
    "horovod/torch/",
    "horovod/common/",
)


class Watchdog:
    """A thread that ends this process once nothing has been finished for too long.

    Whoever waits for other ranks in a collective waits a little longer than the rank that hangs, so that this one
    is the first to say where it stands.

    Args:
        heartbeat: Progress of this process.
        timeout_s: Seconds without progress.
        report: Told the stacks of all threads, and the collective in which the process waits, if it does.
        end: Ends the process.
    """

    def __init__(
        self,
        heartbeat: Heartbeat,
        *,
        timeout_s: float,
        report: Callable[[str, str | None], None],
        end: Callable[[int], object] = os._exit,
    ) -> None:
        self._heartbeat = heartbeat
        self._timeout_s = timeout_s
        self._report = report
        self._end = end
        self._stopped = threading.Event()
        self._main = threading.get_ident()
        self._thread = threading.Thread(target=self._watch, name="lightkit-watchdog", daemon=True)

    def start(self) -> None:
        """Begin to watch; a second call, and a limit of 0 seconds, change nothing."""
        if self._timeout_s > 0 and not self._thread.is_alive() and not self._stopped.is_set():
            self._heartbeat.beat()
            self._main = threading.get_ident()
            self._thread.start()

    def stop(self) -> None:
        """Watch no longer."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def _watch(self) -> None:
        while not self._stopped.wait(min(1.0, self._timeout_s / 4)):
            if self._heartbeat.silent_s <= self._timeout_s:
                continue
            waits_for = self._waits_for()
            if waits_for is not None and self._heartbeat.silent_s <= self._timeout_s + _GRACE_S:
                continue
            self._report(_stacks(self._main), waits_for)
            self._end(STALLED)
            return

    def _waits_for(self) -> str | None:
        if self._heartbeat.waits_for is not None:
            return self._heartbeat.waits_for
        frame = sys._current_frames().get(self._main)
        path = "" if frame is None else frame.f_code.co_filename.replace(os.sep, "/")
        return "a collective" if any(part in path for part in _COLLECTIVES) else None


def _stacks(main: int) -> str:
    """What all threads are doing, the main thread last, where a reader looks first."""
    frames = sys._current_frames()
    own = threading.get_ident()
    others = [ident for ident in frames if ident not in (main, own)]
    shown = [*others, main] if main in frames else others
    return "\n".join(_stack(ident, frames[ident]) for ident in shown)


def _stack(ident: int, frame: FrameType) -> str:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return f"thread {names.get(ident, ident)} (most recent call last):\n{''.join(traceback.format_stack(frame))}"
