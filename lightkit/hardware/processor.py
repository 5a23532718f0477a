"""The CPU and the memory, as much of them as this process may use."""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

_INSTRUCTION_SETS = (
    *("sse4_2", "avx", "avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512bw", "avx512vl"),
    *("avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16", "amx_fp16"),
    *("asimd", "asimdhp", "asimddp", "sve", "sve2", "i8mm", "bf16"),
)
"""Instruction sets that change how fast, or how exactly, torch computes; as the kernel spells
them."""
_BF16 = frozenset({"avx512_bf16", "amx_bf16", "bf16"})  # the last one is ARM's
_ISAS_WITH_AMX = ("ALL", "DEFAULT", "AVX512_CORE_AMX", "AVX10")
_ISAS_WITH_BF16 = (*_ISAS_WITH_AMX, "AVX512_CORE_BF16", "AVX512_CORE_FP16")
"""How values of oneDNN's ``ONEDNN_MAX_CPU_ISA`` begin that leave its kernels the instructions for
bf16."""
# version 1 of control groups writes a huge number where there is no limit
_NO_LIMIT_BYTES = 1 << 60
_CPUINFO = Path("/proc/cpuinfo")
_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUP = Path("/proc/self/cgroup")

# M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of glibc's <malloc.h>
_TRIM_THRESHOLD = -1
_MMAP_THRESHOLD = -3
_NEVER_TRIM = -1
_LARGEST_THRESHOLD_BYTES = 32 << 20  # glibc refuses more (HEAP_MAX_SIZE / 2)


def cpu_model(cpuinfo: Path = _CPUINFO) -> str | None:
    """Return the CPU's name."""
    return _read_field(cpuinfo, "model name") or platform.processor() or platform.machine() or None


def cpu_vendor(cpuinfo: Path = _CPUINFO) -> str | None:
    """Return the maker of an x86 CPU, such as ``GenuineIntel``.

    None of another CPU, or where it is not known.
    """
    return _read_field(cpuinfo, "vendor_id")


def instruction_sets(cpuinfo: Path = _CPUINFO) -> tuple[str, ...]:
    """List the instruction sets that matter here.

    With ARM's ``asimd`` under the name that people know, ``neon``.
    """
    flags = (_read_field(cpuinfo, "flags") or _read_field(cpuinfo, "Features") or "").split()
    return tuple("neon" if name == "asimd" else name for name in _INSTRUCTION_SETS if name in flags)


def has_bf16(instruction_sets: Collection[str], environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether oneDNN's kernels multiply in bf16 with instructions of the CPU.

    They convert nothing to float32 then.

    Args:
        instruction_sets: Those of the CPU, as `instruction_sets` lists them.
        environ: Environment variables: ``ONEDNN_MAX_CPU_ISA`` may hide instructions from oneDNN.
    """
    limit = environ.get("ONEDNN_MAX_CPU_ISA", "").upper()
    if limit and not limit.startswith(_ISAS_WITH_BF16):
        return False
    return not _BF16.isdisjoint(instruction_sets)


def is_bf16_fast(
    instruction_sets: Collection[str], vendor: str | None, environ: Mapping[str, str] = os.environ
) -> bool:
    """Return whether a training step in bf16 is faster than in float32.

    Docs/hardware.md has the measurements.

    AMD's cores multiply twice as many numbers a cycle with AVX-512's bf16 instructions as in
    float32. Intel's, which have them in one of two units, are faster with AMX alone, which a
    virtual machine may hide.

    Args:
        instruction_sets: Those of the CPU, as `instruction_sets` lists them.
        vendor: Of the CPU, as `cpu_vendor` returns it.
        environ: Environment variables: ``ONEDNN_MAX_CPU_ISA`` may hide instructions from oneDNN.
    """
    if not has_bf16(instruction_sets, environ):
        return False
    if vendor != "GenuineIntel":
        return True
    limit = environ.get("ONEDNN_MAX_CPU_ISA", "").upper()
    return "amx_bf16" in instruction_sets and (not limit or limit.startswith(_ISAS_WITH_AMX))


def num_cores(control_groups: Path = _CGROUPS, process: Path = _OWN_CGROUP) -> int | None:
    """Count the cores that this process may use: its affinity, and what its control group allows.

    A quota of one core and a half counts as one, because a second thread would wait for half of its
    time.
    """
    affinity = getattr(os, "sched_getaffinity", None)  # not on macOS
    cores = os.cpu_count() if affinity is None else len(affinity(0))
    quotas = []
    for folder in _find_groups(control_groups, process, "cpu"):
        quota, period = _read_words(folder / "cpu.max") or [
            *(_read_words(folder / "cpu.cfs_quota_us") or ["max"]),
            *(_read_words(folder / "cpu.cfs_period_us") or ["0"]),
        ]
        if quota not in ("max", "-1") and int(period) > 0:
            quotas.append(int(quota) / int(period))
    return cores if cores is None or not quotas else max(1, min(cores, int(min(quotas))))


def memory_bytes(control_groups: Path = _CGROUPS, process: Path = _OWN_CGROUP) -> int:
    """Return the memory of the machine, or what the control group allows of it."""
    # here, because most commands ask for no memory, and it takes as long as all of their config
    import psutil

    limits = [limit for limit, _ in _find_memory_limits(control_groups, process)]
    return min([int(psutil.virtual_memory().total), *limits])


def available_memory_bytes(control_groups: Path = _CGROUPS, process: Path = _OWN_CGROUP) -> int:
    """Return the memory that can be taken now without swapping: what control groups leave, too."""
    import psutil  # late as above

    left = [max(0, limit - used) for limit, used in _find_memory_limits(control_groups, process)]
    return min([int(psutil.virtual_memory().available), *left])


def keep_memory(environ: Mapping[str, str] = os.environ) -> bool:
    """Make glibc keep the memory of a step for the next one and not give it back to the system.

    Else each step asks for its pages anew, and the kernel fills them with zeros, which costs a
    convolutional network on the CPU up to a quarter of its time. Variables that say otherwise
    (``MALLOC_TRIM_THRESHOLD_``, ``MALLOC_MMAP_THRESHOLD_``, ``GLIBC_TUNABLES``), and another
    allocator (``LD_PRELOAD``), are left alone.

    Returns:
        Whether it does so now; False where the C library is not glibc.
    """
    names = (
        "MALLOC_TRIM_THRESHOLD_",
        "MALLOC_MMAP_THRESHOLD_",
        "MALLOC_MMAP_MAX_",
        "GLIBC_TUNABLES",
        "LD_PRELOAD",
    )
    if any(environ.get(name) for name in names) or platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(_MMAP_THRESHOLD, _LARGEST_THRESHOLD_BYTES)) & bool(
        mallopt(_TRIM_THRESHOLD, _NEVER_TRIM)
    )


def _read_field(file: Path, name: str) -> str | None:
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # not Linux
        return None
    pairs = (line.partition(":") for line in lines)
    return next(
        (value.strip() for key, _, value in pairs if key.strip() == name and value.strip()), None
    )


def _find_groups(root: Path, process: Path, controller: str) -> Iterator[Path]:
    """List the folders that limit this process, its own and those above.

    Of both versions of control groups.
    """
    try:
        lines = process.read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        base = root / controllers if controllers else root
        own = base / path.lstrip("/")
        yield from (
            folder for folder in (own, *own.parents) if folder == base or base in folder.parents
        )


def _find_memory_limits(root: Path, process: Path) -> Iterator[tuple[int, int]]:
    """List each limit in bytes with what its group has taken.

    Without files that the kernel gives up first.
    """
    for folder in _find_groups(root, process, "memory"):
        for limit_file, used_file in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            limit = _read_words(folder / limit_file)
            used = _read_words(folder / used_file)
            if not limit or limit[0] == "max" or int(limit[0]) >= _NO_LIMIT_BYTES:
                continue
            words = _read_words(folder / "memory.stat")
            stat = dict(zip(words[::2], words[1::2], strict=False))
            # the first is version 1's
            files = stat.get("total_inactive_file", stat.get("inactive_file", "0"))
            yield int(limit[0]), max(0, int(used[0] if used else 0) - int(files))


def _read_words(file: Path) -> list[str]:
    """Return the words of a small file, or nothing where it is not there."""
    try:
        return file.read_text(encoding="utf-8").split()
    except OSError:
        return []
