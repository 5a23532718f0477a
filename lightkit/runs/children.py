"""The processes that this one has started, with all that those have started; told without any library."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress

__all__ = ["kill_children", "living_children"]

_ROUNDS = 20
_PAUSE_S = 0.05


def living_children() -> list[int]:
    """Give the numbers of all processes that descend from this one, but of those that are dead."""
    parents = _parents()
    children: dict[int, list[int]] = defaultdict(list)
    for pid, parent in parents.items():
        children[parent].append(pid)
    found, ahead = [], [os.getpid()]
    while ahead:
        below = children[ahead.pop()]
        found += below
        ahead += below
    return found


def kill_children() -> None:
    """Kill all processes that descend from this one, and return once they are gone, or after a second.

    The process that Python keeps to remove shared memory that others leave behind is spared: it ends by itself.
    """
    for _ in range(_ROUNDS):
        left = [pid for pid in living_children() if pid != _cleaner()]
        if not left:
            return
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_PAUSE_S)


def _cleaner() -> int | None:
    tracker = sys.modules.get("multiprocessing.resource_tracker")
    return getattr(getattr(tracker, "_resource_tracker", None), "_pid", None)


def _parents() -> Mapping[int, int]:
    """The living processes of this machine, each with the one that has started it."""
    if not os.path.isdir("/proc/self"):  # noqa: PTH112 (pathlib takes longer to load than all else here)
        return _parents_by_ps()
    parents = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 (as above)
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as stat:  # noqa: PTH123 (as above)
                # proc(5): the second field is the command in parentheses; then state and the parent's number.
                state, parent = stat.read().rpartition(b")")[2].split()[:2]
        except OSError:
            continue
        if state not in (b"Z", b"X"):
            parents[int(name)] = int(parent)
    return parents


def _parents_by_ps() -> Mapping[int, int]:
    """The same where there is no /proc, as on macOS."""
    import subprocess  # here, because the entry point needs nothing of it

    shown = subprocess.run(["ps", "-axo", "pid=,ppid=,stat="], capture_output=True, text=True, check=False).stdout
    rows = (line.split() for line in shown.splitlines())
    return {int(row[0]): int(row[1]) for row in rows if len(row) > 2 and not row[2].startswith("Z")}
