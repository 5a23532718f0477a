"""What is written to the disk while training goes on: by a thread, in the order in which it was asked for."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

__all__ = ["WRITER", "Writer"]

WRITER = "lightkit-writer"
"""Name of the thread."""

_Job = Callable[[], object]


class _Asked(NamedTuple):
    job: _Job
    otherwise: _Job | None


class Writer:
    """Does what it is given at once; between `begin` and `end` a thread does it, one after another.

    What comes first is on the disk first, so that a process that is killed leaves no later file without the earlier
    ones. What fails in the thread is kept until the training asks (`check`, `drain`). From then on a job with an
    `otherwise` is not done, for it counts on all before it, and that is done in its place.

    A process that was forked from this one has no such thread: it writes at once.
    """

    def __init__(self) -> None:
        self.busy_s = 0.0
        """Seconds that the thread has written so far."""
        self._set_up()

    def __reduce__(self) -> tuple[type[Writer], tuple[()]]:
        """A copy has nothing to write."""
        return Writer, ()

    def _set_up(self) -> None:
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._asked: deque[_Asked] = deque()
        self._thread: threading.Thread | None = None
        self._is_busy = self._is_ending = self._is_broken = False
        self._failure: BaseException | None = None

    def begin(self) -> None:
        """From here on nobody waits for the disk; a second call changes nothing."""
        self._look_for_fork()
        if self._thread is None:
            self._is_ending = self._is_broken = False
            self._thread = threading.Thread(target=self._work, name=WRITER, daemon=True)
            self._thread.start()

    def put(self, job: _Job, *, otherwise: _Job | None = None) -> None:
        """Do a job, or let the thread do it.

        Args:
            job: It writes; what it needs must not change any more.
            otherwise: Done in its place where something before it has failed in the thread.
        """
        self._look_for_fork()
        if threading.current_thread() is not self._thread and self._is_left_to_thread(_Asked(job, otherwise)):
            return
        job()

    def check(self) -> None:
        """Raise what has failed in the thread, once."""
        if self._failure is not None:
            raise self._taken()

    def drain(self) -> None:
        """Wait until all is written, and raise what has failed."""
        self._look_for_fork()
        self._wait(None)
        self.check()

    def end(self, within_s: float | None = None) -> BaseException | None:
        """Wait until all is written, and write at once from here on.

        Args:
            within_s: Seconds to wait at most. What the thread has not begun by then is done here.

        Returns:
            What has failed, unless `check` or `drain` has raised it.
        """
        self._look_for_fork()
        thread, is_done = self._thread, self._wait(within_s)
        with self._changed:
            left, self._asked = self._asked, deque()
            self._thread, self._is_ending = None, True
            self._changed.notify_all()
        if thread is not None and is_done:
            thread.join()
        for asked in left:
            self._do(asked)
        return None if self._failure is None else self._taken()

    def _is_left_to_thread(self, asked: _Asked) -> bool:
        with self._changed:
            if self._thread is not None:
                self._asked.append(asked)
                self._changed.notify_all()
            return self._thread is not None

    def _taken(self) -> BaseException:
        failure, self._failure = self._failure, None
        assert failure is not None
        return failure

    def _wait(self, within_s: float | None) -> bool:
        if self._thread is None or threading.current_thread() is self._thread:
            return True
        with self._changed:
            return self._changed.wait_for(lambda: not (self._asked or self._is_busy), within_s)

    def _work(self) -> None:
        while (asked := self._next()) is not None:
            began_s = time.monotonic()
            self._do(asked)
            self.busy_s += time.monotonic() - began_s
            with self._changed:
                self._is_busy = False
                self._changed.notify_all()

    def _next(self) -> _Asked | None:
        with self._changed:
            self._changed.wait_for(lambda: self._asked or self._is_ending)
            if not self._asked:
                return None
            self._is_busy = True
            return self._asked.popleft()

    def _do(self, asked: _Asked) -> None:
        job = asked.job if asked.otherwise is None or not self._is_broken else asked.otherwise
        try:
            job()
        except BaseException as error:  # noqa: BLE001 (it ends the training, in the thread that trains)
            self._is_broken = True
            self._failure = self._failure or error

    def _look_for_fork(self) -> None:
        if self._pid != os.getpid():  # a thread of the parent's may have held the lock
            self._set_up()
