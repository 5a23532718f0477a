"""How many threads and loading processes fit the cores of a machine."""

from __future__ import annotations

import os
from collections.abc import Mapping

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
CHOSEN_THREADS = "_LIGHTKIT_THREADS"
"""Variable with the number that lightkit itself has put into `OMP_NUM_THREADS`: nobody asked for
it."""
_MOST_WORKERS = 16
_MOST_WORKERS_CACHED = 4


def find_user_threads(environ: Mapping[str, str] = os.environ) -> int | None:
    """Return the number of threads that the user has set by a variable; None where there is none.

    Args:
        environ: Environment variables. What a launcher of lightkit has set by itself is not the
            user's.
    """
    for name in _THREADS:
        if name == _THREADS[0] and environ.get(name, "") == environ.get(CHOSEN_THREADS):
            continue
        if (value := environ.get(name, "").split(",")[0].strip()).isdigit() and int(value) > 0:
            return int(value)
    return None


def workers_by_rule(share: int, *, device: str, is_cached: bool) -> int:
    """Choose the number of processes that load without any measurement.

    A GPU or a TPU leaves the cores to the loading: all but the one of the training process load, up
    to 16, or up to 4 where images come decoded, each of which gives some thousands a second. On the
    CPU the training itself takes every core. One process that decodes fills the time in which it
    cannot, the small steps between its parallel ones; images that come decoded take less time than
    handing them over from another process.

    Args:
        share: Cores of one training process.
        device: Type of the device that trains, such as ``cuda``.
        is_cached: Whether images come decoded.
    """
    if device == "cpu":
        return 1 if share > 1 and not is_cached else 0
    return min(max(1, share - 1), _MOST_WORKERS_CACHED if is_cached else _MOST_WORKERS)


def share_cores(num_cores: int, num_ranks: int) -> int:
    """Return the threads of one of a machine's ranks.

    The launcher may have bound some of them to the same cores.
    """
    num_shared = num_cores
    if hasattr(os, "sched_getaffinity") and os.sched_getaffinity(0) < (
        all_of := os.sched_getaffinity(os.getppid())
    ):
        num_shared = len(all_of)
    return max(1, min(num_cores, num_shared // num_ranks))
