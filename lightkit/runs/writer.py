"""What is written to the disk while training goes on: by a thread, in the order in which it was asked for."""

from __future__ import annotations

import math
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

    An `end` in haste, one that says how long it may take, leaves the writer to the thread that called it: what any
    other asks for from then on is dropped, so that nothing comes after the end.

    A process that was forked from this one has no such thread: it writes at once.
    """

    def __init__(self) -> None:
        self._set_up()

    def __reduce__(self) -> tuple[type[Writer], tuple[()]]:
        """A copy has nothing to write."""
        return Writer, ()

    def _set_up(self) -> None:
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._asked: deque[_Asked] = deque()
        self._thread: threading.Thread | None = None
        self._closer: threading.Thread | None = None
        self._is_busy = False
        self._failure: BaseException | None = None
        self._broken_by: BaseException | None = None

    def begin(self) -> None:
        """From here on nobody waits for the disk; a second call changes nothing, nor one after an `end` in haste."""
        self._look_for_fork()
        if self._thread is None and self._closer is None:
            self._broken_by = None
            self._thread = threading.Thread(target=self._work, name=WRITER, daemon=True)
            self._thread.start()

    def put(self, job: _Job, *, otherwise: _Job | None = None) -> None:
        """Do a job, or let the thread do it.

        Args:
            job: It writes; what it needs must not change any more.
            otherwise: Done in its place where something before it has failed in the thread, or nothing is written
                any more.
        """
        self._look_for_fork()
        here = self._left_here(_Asked(job, otherwise))
        if here is not None:
            here()

    def check(self, *, again: bool = False) -> None:
        """Raise what has failed in the thread, once.

        Args:
            again: Raise it also where that was done before, for as long as jobs with an `otherwise` are not done.
        """
        if self._failure is not None and (failure := self._taken()) is not None:
            raise failure
        if again and self._broken_by is not None:
            raise self._broken_by

    def wait(self) -> None:
        """Wait until all is written, or has failed."""
        self._look_for_fork()
        self._wait(None)

    def drain(self) -> None:
        """Wait until all is written, and raise what has failed."""
        self.wait()
        self.check()

    def end(self, within_s: float | None = None) -> BaseException | None:
        """Wait until all is written, and write at once from here on.

        Args:
            within_s: Seconds that it may take, where it is in haste. Half of them the thread has; what it has not begun
                by then is done here in the other half, but for jobs with an `otherwise`, which are given up.

        Returns:
            What has failed, unless `check` or `drain` has raised it.
        """
        self._look_for_fork()
        until_s = math.inf if within_s is None else time.monotonic() + within_s
        thread, is_done = self._thread, self._wait(None if within_s is None else within_s / 2)
        with self._changed:
            left, self._asked = self._asked, deque()
            self._thread = None
            if within_s is not None:
                self._closer = threading.current_thread()
            self._changed.notify_all()
        if thread is not None and is_done:
            thread.join()
        for asked in left:
            if time.monotonic() < until_s:
                self._do(asked, gives_up=not is_done)
        self._broken_by = None
        return self._taken()

    def _left_here(self, asked: _Asked) -> _Job | None:
        """Give what the thread that asks has to do itself."""
        asking = threading.current_thread()
        with self._changed:
            if self._closer not in (None, asking):
                return asked.otherwise
            if self._thread in (None, asking):
                return asked.job
            self._asked.append(asked)
            self._changed.notify_all()
            return None

    def _taken(self) -> BaseException | None:
        with self._changed:
            failure, self._failure = self._failure, None
        return failure

    def _wait(self, within_s: float | None) -> bool:
        if self._thread is None or threading.current_thread() is self._thread:
            return True
        with self._changed:
            return self._changed.wait_for(lambda: not (self._asked or self._is_busy), within_s)

    def _work(self) -> None:
        while (asked := self._next()) is not None:
            self._do(asked)
            with self._changed:
                self._is_busy = False
                self._changed.notify_all()

    def _next(self) -> _Asked | None:
        own = threading.current_thread()
        with self._changed:
            self._changed.wait_for(lambda: self._asked or self._thread is not own)
            if self._thread is not own:
                return None
            self._is_busy = True
            return self._asked.popleft()

    def _do(self, asked: _Asked, *, gives_up: bool = False) -> None:
        gives_up = gives_up or self._broken_by is not None
        job = asked.otherwise if gives_up and asked.otherwise is not None else asked.job
        try:
            job()
        except BaseException as error:  # noqa: BLE001 (it ends the training, in the thread that trains)
            with self._changed:
                self._broken_by = self._broken_by or error
                self._failure = self._failure or error

    def _look_for_fork(self) -> None:
        if self._pid != os.getpid():  # a thread of the parent's may have held the lock
            self._set_up()
