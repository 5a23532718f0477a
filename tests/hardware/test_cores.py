"""Which threads count as the user's, how cores are shared, and how many processes load."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lightkit.hardware.cores import find_user_threads, share_cores, workers_by_rule
from lightkit.hardware.processor import num_cores


def test_a_quota_of_two_cores_counts_two(tmp_path: Path) -> None:
    (tmp_path / "cgroup").write_text("0::/\n")
    (tmp_path / "cpu.max").write_text("200000 100000\n")
    cores = num_cores(tmp_path, tmp_path / "cgroup")
    assert cores is not None
    assert cores <= 2


def test_what_the_launcher_has_set_by_itself_is_not_the_users() -> None:
    environ = {"OMP_NUM_THREADS": "2", "_LIGHTKIT_THREADS": "2"}
    assert find_user_threads({}) is None
    assert find_user_threads(environ) is None
    assert find_user_threads({**environ, "OMP_NUM_THREADS": "3"}) == 3
    assert find_user_threads({**environ, "MKL_NUM_THREADS": "3"}) == 3


@pytest.mark.parametrize(
    ("share", "device", "is_cached", "workers"),
    [
        (1, "cpu", False, 0),
        (4, "cpu", False, 1),
        (4, "cpu", True, 0),
        (8, "cuda", False, 7),
        (64, "cuda", False, 16),
        (64, "cuda", True, 4),
    ],
)
def test_a_gpu_leaves_the_cores_to_the_loading(
    share: int, device: str, is_cached: bool, workers: int
) -> None:
    assert workers_by_rule(share, device=device, is_cached=is_cached) == workers


@pytest.mark.parametrize(
    ("num_ranks", "num_cores", "threads"),
    [(1, 6, 6), (2, 8, 4), (8, 2, 1)],
    ids=["one", "two", "more than cores"],
)
def test_the_cores_are_divided_among_the_ranks(
    num_ranks: int, num_cores: int, threads: int
) -> None:
    assert share_cores(num_cores, num_ranks) == threads


@pytest.mark.parametrize(
    ("num_own", "num_ranks", "threads"),
    [(4, 4, 4), (8, 4, 4), (2, 4, 2)],
    ids=["own cores", "a socket of two", "fewer"],
)
def test_cores_that_the_launcher_has_bound_are_divided_among_those_that_share_them(
    num_own: int, num_ranks: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # `mpirun` binds more than two ranks to sockets
    own, launcher = (set(range(num_own)), set(range(16)))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: own if pid == 0 else launcher)
    assert share_cores(num_own, num_ranks) == threads
