"""Identify a process by host, boot, PID namespace, number and start time, since numbers are used again."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

__all__ = ["describe_process", "is_gone"]


def describe_process() -> dict[str, Any]:
    """Describe this process so that `is_gone` can recognize it later, also from another process."""
    return {
        "host": socket.gethostname(),
        "kernel": _describe_kernel(),
        "pid": os.getpid(),
        "process_started": _read_start(os.getpid()),
    }


def is_gone(process: Mapping[str, Any]) -> bool | None:
    """Tell whether a process has ended; None for another host, another container or an earlier boot.

    Args:
        process: Result of `describe_process` in that process.
    """
    here = (socket.gethostname(), _describe_kernel())
    if (process.get("host"), process.get("kernel")) != here or not isinstance(process.get("pid"), int):
        return None
    started = _read_start(process["pid"])
    return started is None or started != process.get("process_started")


def _describe_kernel() -> str:
    """Name the boot and the PID namespace, within which a process number means one process."""
    names = []
    with suppress(OSError):  # macOS has neither
        names.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip())
        names.append(str(Path("/proc/self/ns/pid").readlink()))
    return " ".join(names)


def _read_start(pid: int) -> str | None:
    """Read the start time of a process in a unit that does not change; None if it is dead or a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None if Path("/proc/self/stat").exists() else _ask_psutil(pid)
    # proc(5): the second field is the command in parentheses, which may hold spaces; then state, ..., 22 starttime.
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else fields[19]


def _ask_psutil(pid: int) -> str | None:
    """Do the same on macOS. On Linux psutil adds the boot time, which moves when the clock is set."""
    import psutil  # slow to import, and not needed on Linux

    with suppress(psutil.Error):
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else str(process.create_time())
    return None
