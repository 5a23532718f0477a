"""What a thread reads and writes, so that a large checkpoint, which takes its time, can be told from a hang."""

from __future__ import annotations

import threading
from pathlib import Path

__all__ = ["Effort"]

_LEAST_BYTES = 2**20  # less than that is a loop that asks a file again and again


class Effort:
    """What a thread has read and written, as far as Linux tells.

    Args:
        thread: The thread.
    """

    def __init__(self, thread: threading.Thread) -> None:
        self._thread = thread
        self._seen = _num_bytes_of(thread)

    def grew(self) -> bool:
        """Tell whether it has read or written a good deal since this was last true."""
        now = _num_bytes_of(self._thread)
        if now - self._seen < _LEAST_BYTES:
            return False
        self._seen = now
        return True


def _num_bytes_of(thread: threading.Thread) -> int:
    try:
        lines = Path(f"/proc/self/task/{thread.native_id}/io").read_text(encoding="ascii").splitlines()
    except OSError:  # no Linux, not allowed, or ended
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith(("rchar:", "wchar:")))
