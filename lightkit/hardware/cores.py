"""How the cores of a machine are shared out to processes that train, their threads, and the processes that load."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Share", "share_of_cores", "threads_as_set", "threads_to_try", "workers_by_rule"]

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
_LAUNCHERS = "_LIGHTKIT_THREADS"
"""Holds the number that a launcher of lightkit has put into `OMP_NUM_THREADS` by itself: nobody asked for it."""
_MOST_WORKERS = 16
_MOST_WORKERS_CACHED = 4


@dataclass(frozen=True)
class Share:
    """What each process that trains may use.

    Args:
        threads: Threads of one operation.
        num_workers: Processes that load for it.
        interop_threads: Threads for operations that do not depend on each other; those of TorchScript alone use them.
        why: Where the numbers come from, in words.
    """

    threads: int
    num_workers: int
    interop_threads: int = 1
    why: str = ""


def share_of_cores(
    cores: int,
    *,
    ranks: int = 1,
    device: str = "cpu",
    load_s: float | None = None,
    step_s_by_threads: Mapping[int, float] | None = None,
    threads: int | None = None,
    is_cached: bool = False,
    environ: Mapping[str, str] = os.environ,
) -> Share:
    """Choose threads and loading processes together, so that those of all ranks fit the cores.

    A step with t threads takes ``step_s(t)``. Loaded by the training process itself, a batch adds its ``load_s``; w
    processes that load hide it behind the step as far as they keep up: ``max(step_s(t), load_s / w)``. The least of
    these wins among all t and w with ``ranks * (t + w) <= cores``; of two that differ by less than 2 %, the one with
    fewer processes. A smaller number of threads that was not measured is taken to slow the step down in proportion,
    which is the most that it can. On a GPU the step does not depend on t, and all cores but one load.

    Args:
        cores: That this process may use: of its affinity and its control group.
        ranks: Processes that train on this machine.
        device: Type of the device that trains.
        load_s: Seconds in which one process loads a batch; None where that was not measured.
        step_s_by_threads: Seconds of a step by its threads; None where that was not measured.
        threads: That each process has, whatever would be best; None where they are to be chosen.
        is_cached: Whether images come decoded.
        environ: Environment variables: the user's ``OMP_NUM_THREADS`` is kept.
    """
    share = max(1, cores // max(1, ranks))
    fixed = threads_as_set(environ) if threads is None else ("threads", threads)
    told = f"{cores} core{'s' if cores > 1 else ''}" + (f", {ranks} training processes" if ranks > 1 else "")
    if fixed is not None:
        told += f", {fixed[0]}={fixed[1]}"
    if load_s is None or not step_s_by_threads or device != "cpu":
        return _by_rule(share, fixed[1] if fixed else None, device=device, is_cached=is_cached, why=told)
    if fixed is None:
        times = _with_estimates(step_s_by_threads, threads_to_try(cores, ranks=ranks, environ={}))
    else:
        times = {number: step_s for number, step_s in step_s_by_threads.items() if number == fixed[1]}
    best: tuple[float, Share] | None = None
    for step_s, shared in _that_fit(times or dict(step_s_by_threads), share, load_s, why=told):
        if best is None or step_s < 0.98 * best[0]:
            best = step_s, shared
    if best is None:  # the user's threads alone are more than the share
        return Share(fixed[1] if fixed else share, 0, why=told)
    return best[1]


def threads_as_set(environ: Mapping[str, str] = os.environ) -> tuple[str, int] | None:
    """Give the variable by which the user has set the number of threads, and that number; None where nobody has.

    Args:
        environ: Environment variables. What a launcher of lightkit has set by itself is not the user's.
    """
    for name in _THREADS:
        if name == _THREADS[0] and environ.get(name, "") == environ.get(_LAUNCHERS):
            continue
        if (said := environ.get(name, "").split(",")[0].strip()).isdigit() and int(said) > 0:
            return name, int(said)
    return None


def threads_to_try(cores: int, *, ranks: int = 1, environ: Mapping[str, str] = os.environ) -> list[int]:
    """List the numbers of threads that are worth a measurement, most first: all of a rank's cores, one less, half.

    Args:
        cores: That this process may use.
        ranks: Processes that train on this machine.
        environ: Environment variables: the user's ``OMP_NUM_THREADS`` leaves nothing to try.
    """
    if (fixed := threads_as_set(environ)) is not None:
        return [fixed[1]]
    share = max(1, cores // max(1, ranks))
    return sorted({share, max(1, share - 1), max(1, share // 2)}, reverse=True)


def workers_by_rule(share: int, *, device: str, is_cached: bool) -> int:
    """Choose the number of processes that load without any measurement.

    A GPU or a TPU leaves the cores to the loading: all but the one of the training process load, up to 16, or up to 4
    where images come decoded, each of which gives some thousands a second. On the CPU the training itself takes every
    core. One process that decodes fills the time in which it cannot, the small steps between its parallel ones; images
    that come decoded take less time than handing them over from another process.

    Args:
        share: Cores of one training process.
        device: Type of the device that trains, such as ``cuda``.
        is_cached: Whether images come decoded.
    """
    if device == "cpu":
        return 1 if share > 1 and not is_cached else 0
    return min(max(1, share - 1), _MOST_WORKERS_CACHED if is_cached else _MOST_WORKERS)


def _by_rule(share: int, fixed: int | None, *, device: str, is_cached: bool, why: str) -> Share:
    workers = workers_by_rule(share, device=device, is_cached=is_cached)
    threads = share if device == "cpu" else max(1, share - workers)
    return Share(fixed or threads, workers, why=why)


def _with_estimates(measured: Mapping[int, float], numbers: Sequence[int]) -> dict[int, float]:
    times = dict(measured)
    for number in numbers:
        slower = [step_s * more / number for more, step_s in measured.items() if more > number]
        if number not in measured and slower:
            times[number] = min(slower)
    return times


def _that_fit(times: Mapping[int, float], share: int, load_s: float, *, why: str) -> Iterator[tuple[float, Share]]:
    """Give what fits with the seconds that it takes for a batch; fewest processes first."""
    for num_workers in range(min(share, _MOST_WORKERS + 1)):
        for threads, step_s in sorted(times.items(), reverse=True):
            if threads + num_workers <= share:
                seconds = max(step_s, load_s / num_workers) if num_workers else step_s + load_s
                yield seconds, Share(threads, num_workers, why=why)
