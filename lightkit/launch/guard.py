"""A process that watches over another one, so that nothing of it is left behind: `python -m lightkit.launch.guard`.

Spark kills its workers without warning, and a Java machine or a Ray cluster has children that leave its session. The
guard takes part in none of that: it starts the command, and ends it and all that came of it when it is asked to end
or its own parent is gone.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from lightkit.launch.processes import started_tree

__all__ = ["guarded"]

_POLL_S = 0.1
_LEFTOVER_GRACE_S = 2.0


def guarded(command: Sequence[str], *, grace_s: float) -> int:
    """Run a command to its end and return its exit code, 128 plus the signal's number if one killed it.

    On SIGTERM or SIGINT, or when this process's parent is gone, the command gets SIGTERM; whatever is left of it and
    of its descendants ``grace_s`` later is killed. What is left after its own end is killed too.

    Args:
        command: Program and arguments.
        grace_s: Seconds that it has to end by itself.
    """
    parent = os.getppid()
    with _end_requests() as requests:
        tree = started_tree(command, environment=os.environ)
        while tree.poll() is None and not requests and os.getppid() == parent:
            time.sleep(_POLL_S)
        ended_alone = tree.poll() is not None
        tree.terminate()
        tree.end(timeout_s=_LEFTOVER_GRACE_S if ended_alone else grace_s)
    code = tree.poll()
    assert code is not None
    return code if ended_alone else code or 128 + signal.SIGTERM  # who ends well because it is asked to is not done


@contextmanager
def _end_requests() -> Iterator[list[int]]:
    """Collect the signals that ask this process to end."""
    requests: list[int] = []

    def note(signum: int, _frame: FrameType | None) -> None:
        requests.append(signum)

    before = {signum: signal.signal(signum, note) for signum in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield requests
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


if __name__ == "__main__":
    sys.exit(guarded(sys.argv[2:], grace_s=float(sys.argv[1])))
