"""Messages on their way out: sent from a thread, in order, so that nobody waits for a server but at the very end."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections import deque

from lightkit.runs.posting import NotTaken, Post, deliver_patiently

__all__ = ["LONGEST_WAIT_S", "Courier"]

_log = logging.getLogger(__name__)
LONGEST_WAIT_S = 5.0
"""Seconds that the end of a process waits for what is unsent."""
_MOST_WAITING = 100  # messages; a server that is away for days must not fill the memory


class Courier:
    """Sends messages in order from a thread that it starts with the first one. Nothing it does raises or blocks.

    A message that is not taken is told once, in a warning without the address. Where the queue is full the oldest
    message is dropped. A process that was forked from this one sends nothing.

    Args:
        name: What sends, for the warning.
        timeout_s: Seconds to wait for an answer.
        retries: How often a message is sent again. Where one was lost, the next ones are tried once until one arrives.
        pause_s: Pause before the first of these, which doubles.
    """

    def __init__(self, name: str, *, timeout_s: float = 10.0, retries: int = 3, pause_s: float = 1.0) -> None:
        self._name = name
        self._timeout_s = timeout_s
        self._retries = retries
        self._pause_s = pause_s
        self._queue: deque[Post] = deque()
        self._changed = threading.Condition()
        self._worker: _Worker | None = None
        self._pid = os.getpid()
        self._is_away = False
        self._is_warned = False
        self._sent = self._lost = 0

    def put(self, post: Post) -> None:
        """Take a message, and return at once."""
        if os.getpid() != self._pid:
            return
        with self._changed:
            self._queue.append(post)
            if len(self._queue) > _MOST_WAITING:
                self._queue.popleft()
                self._lost += 1
            if self._worker is None:
                self._worker = _Worker(target=self._work, name=f"messages of {self._name}", daemon=True)
                self._worker.start()
                atexit.register(self.close)
            self._changed.notify_all()

    def begin_close(self, timeout_s: float = LONGEST_WAIT_S) -> None:
        """Let what waits be sent within the time; several couriers can share it so."""
        with self._changed:
            if self._worker is not None and self._pid == os.getpid() and self._worker.deadline is None:
                self._worker.deadline = time.monotonic() + timeout_s
                self._worker.half_s = timeout_s / 2
                self._changed.notify_all()

    def close(self, timeout_s: float = LONGEST_WAIT_S) -> int:
        """Wait until all has been sent, and return the number of messages that have not arrived.

        Args:
            timeout_s: Longest wait. In the second half of it, messages that are superseded are dropped.
        """
        self.begin_close(timeout_s)
        worker = self._worker
        if worker is None or self._pid != os.getpid():
            return self._lost
        assert worker.deadline is not None
        worker.join(max(worker.deadline - worker.half_s - time.monotonic(), 0.0))
        with self._changed:
            kept = [post for post in self._queue if not post.is_superseded]
            self._lost += len(self._queue) - len(kept)
            self._queue = deque(kept)
        worker.join(max(worker.deadline - time.monotonic(), 0.0))
        with self._changed:
            worker.is_over = True  # what is under way ends by itself, and no longer counts
            self._lost += len(self._queue) + worker.is_sending
            self._queue.clear()
            self._worker = None
            self._changed.notify_all()
        atexit.unregister(self.close)
        self._tell_lost(worker)
        return self._lost

    def _tell_lost(self, worker: _Worker) -> None:
        if self._lost and not self._is_warned:
            self._is_warned = True
            why = "the server was too slow at the end" if worker.is_alive() else "there was no more time"
            _log.warning("%s: %d messages were not delivered: %s", self._name, self._lost, why)
        elif self._lost > 1:
            _log.info("%s: %d of %d messages were not delivered", self._name, self._lost, self._lost + self._sent)

    def _work(self) -> None:
        worker = threading.current_thread()
        assert isinstance(worker, _Worker)
        while (post := self._next(worker)) is not None:
            why = self._sending(post, worker)
            with self._changed:
                worker.is_sending = False
                if worker.is_over:
                    return
                self._is_away = why is not None
                self._sent += why is None
                self._lost += why is not None
                is_news = why is not None and not self._is_warned
                self._is_warned = self._is_warned or is_news
            if is_news:
                _log.warning("%s: a message was not delivered: %s", self._name, why)

    def _sending(self, post: Post, worker: _Worker) -> str | None:
        """Send a message and give the reason where it was not taken."""
        try:
            deliver_patiently(
                post,
                timeout_s=lambda: worker.remaining(self._timeout_s),
                retries=0 if self._is_away else self._retries,
                pause=lambda seconds: self._pause(worker, seconds),
                pause_s=self._pause_s,
            )
        except NotTaken as error:
            return str(error)
        except Exception as error:  # noqa: BLE001 (a defect must not end the thread, and its words may hold the address)
            return f"{type(error).__name__} in lightkit"
        return None

    def _next(self, worker: _Worker) -> Post | None:
        """Give the next message, or None where this worker's work is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or worker.deadline is not None or worker.is_over)
            if worker.is_over or not self._queue or worker.remaining(1.0) <= 0:
                return None
            worker.is_sending = True
            return self._queue.popleft()

    def _pause(self, worker: _Worker, seconds: float) -> bool:
        """Wait between two tries, and tell whether there is time for another one."""
        until = time.monotonic() + seconds
        with self._changed:
            self._changed.wait_for(lambda: worker.deadline is not None or worker.is_over, seconds)
            while not worker.is_over and (left := until - time.monotonic()) > 0:  # the end may have come meanwhile
                if worker.deadline is not None and until >= worker.deadline:
                    return False
                self._changed.wait_for(lambda: worker.is_over, left)
        return not worker.is_over and worker.remaining(1.0) > 0


class _Worker(threading.Thread):
    """The thread, and until when its work counts."""

    deadline: float | None = None
    half_s = 0.0
    is_sending = False
    is_over = False

    def remaining(self, timeout_s: float) -> float:
        """Give a time-out that ends before the end; above zero while there is any time."""
        return timeout_s if self.deadline is None else min(timeout_s, self.deadline - time.monotonic())
