"""Which thread records the end of a run, where one comes to it and another ends the process by force."""

from __future__ import annotations

import threading

__all__ = ["EndClaim"]


class EndClaim:
    """The right to record the end, which one thread has: the first that takes it, or that has reserved it before.

    It is reserved before its thread waits for the disk, so that nobody takes it who waits for the same write. The lock
    is held while this is looked up, never while anybody waits or writes; who waits for the record says how long.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reserved_by: threading.Thread | None = None
        self._is_taken = False
        self._recorded = threading.Event()

    @property
    def is_taken(self) -> bool:
        """Whether the end is recorded, or about to be."""
        return self._is_taken

    def reserve(self) -> bool:
        """Keep it for the calling thread, which ends the process by force.

        Returns:
            Whether it is this thread's now; not where it was taken, or another has reserved it.
        """
        with self._lock:
            if self._is_anothers():
                return False
            self._reserved_by = threading.current_thread()
            return True

    def take(self) -> bool:
        """Take it for the calling thread.

        Returns:
            Whether this thread is to record the end; not where it was taken, or another has reserved it.
        """
        with self._lock:
            if self._is_anothers():
                return False
            self._is_taken = True
            return True

    def fulfil(self) -> None:
        """Say that the end is recorded, or cannot be."""
        self._recorded.set()

    def wait(self, within_s: float) -> None:
        """Wait until the end is recorded, or cannot be.

        Args:
            within_s: Seconds after which nobody waits any more.
        """
        self._recorded.wait(within_s)

    def _is_anothers(self) -> bool:
        return self._is_taken or self._reserved_by not in (None, threading.current_thread())
