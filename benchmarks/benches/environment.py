"""What machine and which versions a measurement was taken on, and how busy the machine was."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

PACKAGES = (
    "lightkit", "torch", "torchvision", "pytorch-lightning", "jsonargparse", "numpy", "pillow",
    "horovod",
    "onnxruntime", "litdata",
)  # fmt: skip
_ROOT = Path(__file__).parents[2]


def build_environment(threads: int = 1) -> dict[str, str]:
    """Return the environment of a process that computes on the CPU with so many threads.

    It prints no warnings.

    Args:
        threads: Intra-op threads of OpenMP and MKL.
    """
    counts = {name: str(threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    quiet = {"JSONARGPARSE_DEPRECATION_WARNINGS": "off", "PYTHONWARNINGS": "ignore"}
    paths = os.pathsep.join(
        [str(_ROOT / "benchmarks"), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    own = {**counts, **quiet, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": paths}
    # An installed package is compiled once; with this variable a checkout would be compiled at each
    # start.
    return {
        key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"
    } | own


def describe_environment(*, threads: int | None, load_before: list[float]) -> dict[str, Any]:
    """Describe the machine, the versions and the commit.

    Args:
        threads: Intra-op threads of each contestant; None where each bench's rows tell.
        load_before: What `read_load` returned before measuring.
    """
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": _read_processor(),
        "cores": {
            "machine": os.cpu_count(),
            "usable": len(os.sched_getaffinity(0)),
            "cgroup": _read_cgroup_cores(),
        },
        "ram_bytes": psutil.virtual_memory().total,
        "governor": _read_first_line(Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")),
        "threads": threads,
        "load_before": load_before,
        "load_after": read_load(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "versions": _list_versions(),
        "commit": _run_git("rev-parse", "--short=12", "HEAD"),
        "dirty": bool(_run_git("status", "--porcelain", "--untracked-files=no")),
    }


def read_load() -> list[float]:
    """Return the processes that ran or waited for a core, over 1, 5 and 15 minutes."""
    return [round(each, 2) for each in os.getloadavg()]


def _read_processor() -> str:
    lines = (
        Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        if Path("/proc/cpuinfo").exists()
        else []
    )
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _read_cgroup_cores() -> float | None:
    """Read the cores that the container may use, of cgroup 2 or 1.

    None where nothing bounds them.
    """
    if line := _read_first_line(Path("/sys/fs/cgroup/cpu.max")):
        quota, period = line.split()
        return None if quota == "max" else int(quota) / int(period)
    first, second = (
        _read_first_line(Path(f"/sys/fs/cgroup/cpu/cpu.cfs_{name}_us"))
        for name in ("quota", "period")
    )
    return int(first) / int(second) if first and second and int(first) > 0 else None


def _read_first_line(file: Path) -> str | None:
    try:
        return file.read_text(encoding="utf-8").partition("\n")[0].strip()
    except OSError:
        return None


def _list_versions() -> dict[str, str]:
    installed = {
        distribution.name: distribution.version for distribution in metadata.distributions()
    }
    return {name: installed[name] for name in PACKAGES if name in installed}


def _run_git(*words: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *words], cwd=_ROOT, capture_output=True, text=True, check=False
        )
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
