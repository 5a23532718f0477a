"""How many threads a rank has beside the others of its machine."""

from __future__ import annotations

import os
from collections.abc import Mapping

from lightkit.launch import Rank

__all__ = ["num_threads"]


def num_threads(rank: Rank, *, num_cores: int, environ: Mapping[str, str] = os.environ) -> int:
    """Give the threads that a rank should have so that those of a machine do not fight for its cores.

    Args:
        rank: The rank.
        num_cores: Cores that this process may use.
        environ: Environment variables.
    """
    asked = environ.get("SLURM_CPUS_PER_TASK", "") if rank.engine == "slurm" else ""
    if asked.isdigit():
        return int(asked)
    share = num_cores // rank.local_size
    if affinity := getattr(os, "sched_getaffinity", None):  # not on macOS
        own, launcher = affinity(0), affinity(os.getppid())
        if len(own) < len(launcher):  # which has given each rank its cores
            share = min(num_cores, len(launcher) // rank.local_size)
    return max(1, share)
