"""Signals that ask a run to end, turned into one exception at a moment when stopping loses nothing."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType

from lightkit.errors import Interrupted

__all__ = ["SignalWatch"]

_Handler = Callable[[int, FrameType | None], object] | int | None


class SignalWatch:
    """Remember SIGINT and SIGTERM while a step is being computed; raise `Interrupted` at once everywhere else.

    A second signal ends the process immediately, without saving: whoever sends two means it.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self.deferred = False
        self._previous: dict[int, _Handler] = {}
        self._pid = os.getpid()

    def __enter__(self) -> SignalWatch:
        """Install the handlers; outside the main thread, where Python allows none, do nothing."""
        if threading.current_thread() is threading.main_thread():
            for signum in (signal.SIGINT, signal.SIGTERM):
                self._previous[signum] = signal.signal(signum, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        """Put the handlers back that were there before."""
        for signum, handler in self._previous.items():
            signal.signal(signum, handler)
        self._previous.clear()

    def add(self, signum: int) -> None:
        """Treat another signal as these two; outside the main thread, where Python allows no handler, do nothing."""
        if threading.current_thread() is threading.main_thread():
            self._previous[signum] = signal.signal(signum, self._handle)

    def note(self, signum: int) -> None:
        """Take a wish that has come by another way for a signal that waits for the end of the batch."""
        self.received = self.received or signum

    def _handle(self, signum: int, _frame: FrameType | None) -> None:
        if os.getpid() != self._pid:
            self._handle_in_fork(signum)
            return
        if self.received is not None:
            os._exit(128 + signum)
        self.received = signum
        if not self.deferred:
            raise Interrupted(signum)

    @staticmethod
    def _handle_in_fork(signum: int) -> None:
        """In a data loader's worker: Ctrl-C reaches it too, but the batch that is being saved may need it."""
        if signum != signal.SIGINT:
            signal.signal(signum, signal.SIG_DFL)
            os.kill(os.getpid(), signum)
