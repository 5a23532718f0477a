"""The CPU and the memory, as much of them as this process may use."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from pathlib import Path

__all__ = ["available_memory_bytes", "cpu_model", "instruction_sets", "memory_bytes", "num_cores"]

_TELLING = (
    "sse4_2",
    "avx",
    "avx2",
    "fma",
    "f16c",
    "avx_vnni",
    "avx512f",
    "avx512bw",
    "avx512vl",
    "avx512_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "amx_tile",
    "amx_int8",
    "amx_bf16",
    "amx_fp16",
    "asimd",
    "asimdhp",
    "asimddp",
    "sve",
    "sve2",
    "i8mm",
    "bf16",
)
"""Instruction sets that change how fast, or how exactly, torch computes; as the kernel spells them."""
_NO_LIMIT_BYTES = 1 << 60  # version 1 of control groups writes a huge number where there is no limit


def cpu_model(cpuinfo: Path = Path("/proc/cpuinfo")) -> str | None:
    """Give the CPU's name."""
    named = _fields(cpuinfo, "model name")
    return next(named, None) or platform.processor() or platform.machine() or None


def instruction_sets(cpuinfo: Path = Path("/proc/cpuinfo")) -> tuple[str, ...]:
    """List the instruction sets that matter here, with ARM's ``asimd`` under the name that people know, ``neon``."""
    flags = set((next(_fields(cpuinfo, "flags"), None) or next(_fields(cpuinfo, "Features"), "")).split())
    return tuple("neon" if name == "asimd" else name for name in _TELLING if name in flags)


def num_cores(control_groups: Path = Path("/sys/fs/cgroup"), process: Path = Path("/proc/self/cgroup")) -> int | None:
    """Count the cores that this process may use: its affinity, and what its control group allows.

    A quota of one core and a half counts as one, because a second thread would wait for half of its time.
    """
    affinity = getattr(os, "sched_getaffinity", None)  # not on macOS
    cores = os.cpu_count() if affinity is None else len(affinity(0))
    quotas = [quota for folder in _groups(control_groups, process, "cpu") for quota in _cpu_quota(folder)]
    return cores if cores is None or not quotas else max(1, min(cores, int(min(quotas))))


def memory_bytes(control_groups: Path = Path("/sys/fs/cgroup"), process: Path = Path("/proc/self/cgroup")) -> int:
    """Give the memory of the machine, or what the control group allows of it."""
    import psutil  # here, because most commands ask for no memory, and it takes as long as all of their config

    return min([int(psutil.virtual_memory().total), *_memory_limits(control_groups, process)])


def available_memory_bytes(
    control_groups: Path = Path("/sys/fs/cgroup"), process: Path = Path("/proc/self/cgroup")
) -> int:
    """Give the memory that can be taken now without swapping: also what control groups have left."""
    import psutil  # late as above

    left = [
        max(0, limit - used)
        for folder in _groups(control_groups, process, "memory")
        for limit in _memory_limit(folder)
        for used in [_memory_used(folder)]
    ]
    return min([int(psutil.virtual_memory().available), *left])


def _fields(file: Path, name: str) -> Iterator[str]:
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # not Linux
        return
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == name and value.strip():
            yield value.strip()


def _groups(root: Path, process: Path, controller: str) -> Iterator[Path]:
    """Give the folders that limit this process, its own and those above, of both versions of control groups."""
    try:
        lines = process.read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        return
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and controller not in controllers.split(","):
            continue
        base = root / controllers if controllers else root
        own = base / path.lstrip("/")
        yield from (folder for folder in (own, *own.parents) if folder == base or base in folder.parents)


def _cpu_quota(folder: Path) -> Iterator[float]:
    quota, period = next(iter(_words(folder / "cpu.max")), []) or [
        *next(iter(_words(folder / "cpu.cfs_quota_us")), ["max"]),
        *next(iter(_words(folder / "cpu.cfs_period_us")), ["0"]),
    ]
    if quota not in ("max", "-1") and int(period) > 0:
        yield int(quota) / int(period)


def _memory_limits(root: Path, process: Path) -> Iterator[int]:
    for folder in _groups(root, process, "memory"):
        yield from _memory_limit(folder)


def _memory_limit(folder: Path) -> Iterator[int]:
    for name in ("memory.max", "memory.limit_in_bytes"):
        for (limit,) in _words(folder / name):
            if limit != "max" and int(limit) < _NO_LIMIT_BYTES:
                yield int(limit)


def _memory_used(folder: Path) -> int:
    """Give what a group has taken, without files in memory that the kernel gives up first."""
    used = [int(number) for name in ("memory.current", "memory.usage_in_bytes") for (number,) in _words(folder / name)]
    stat = next(iter(_words(folder / "memory.stat")), [])
    facts = dict(zip(stat[::2], stat[1::2], strict=False))
    files = facts.get("total_inactive_file", facts.get("inactive_file", "0"))  # the first is version 1's
    return max(0, max(used, default=0) - int(files))


def _words(file: Path) -> list[list[str]]:
    """Give the words of a small file, or nothing where it is not there."""
    try:
        return [file.read_text(encoding="utf-8").split()]
    except OSError:
        return []
