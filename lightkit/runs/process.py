"""Which process is which: a number is used again, so a process is known by its number and its start."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["describe_process", "is_from_another_boot", "is_gone"]


def describe_process() -> dict[str, Any]:
    """Say which process this one is, so that `is_gone` can tell later."""
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "process_started": _started(os.getpid()),
        "boot": _boot(),
        "machine": _machine(),
        "pid_namespace": _namespace(),
    }


def is_gone(process: dict[str, Any]) -> bool | None:
    """Tell whether a process has ended; None where nobody here can tell: another machine, or another container.

    Args:
        process: What `describe_process` gave in that process.
    """
    if process.get("host") != socket.gethostname():
        return None
    if is_from_another_boot(process):
        return True if process.get("machine") == _machine() is not None else None
    if process.get("pid_namespace") != _namespace():
        return None
    pid = process.get("pid")
    if not isinstance(pid, int):
        return None
    started = _started(pid)
    return started is None or started != process.get("process_started")


def is_from_another_boot(process: Mapping[str, Any]) -> bool:
    """Tell whether a machine of this name ran it that has started anew since, or is another one of the same name.

    Args:
        process: What `describe_process` gave in that process.
    """
    return process.get("host") == socket.gethostname() and process.get("boot") != _boot()


def _started(pid: int) -> str | None:
    """When a process started, in any unit that stays the same; None if there is no such process or it is dead."""
    if not Path("/proc/self/stat").exists():
        return _started_by_ps(pid)
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # proc(5): the second field is the command in parentheses, which may hold spaces; then state, ..., 22 starttime.
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else fields[19]


def _started_by_ps(pid: int) -> str | None:
    """The same where there is no /proc, as on macOS."""
    shown = subprocess.run(["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    state, _, started = shown.stdout.strip().partition(" ")
    return None if shown.returncode or state.startswith("Z") else started.strip()


def _boot() -> str | None:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    except OSError:
        return None


def _machine() -> str | None:
    """What tells machines of the same name apart, as two are that were made from one image and never named."""
    try:
        return Path("/etc/machine-id").read_text(encoding="utf-8").strip() or None
    except OSError:
        return None


def _namespace() -> str | None:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return None
