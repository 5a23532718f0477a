"""Threads, loading processes and ranks fit the cores, whatever was measured."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from lightkit.hardware.cores import share_of_cores, threads_as_set, threads_to_try
from lightkit.hardware.processor import num_cores


def test_two_ranks_within_a_quota_of_two_cores_have_a_thread_each_and_load_themselves(tmp_path: Path) -> None:
    (tmp_path / "cgroup").write_text("0::/\n")
    (tmp_path / "cpu.max").write_text("200000 100000\n")
    cores = num_cores(tmp_path, tmp_path / "cgroup")
    assert cores is not None
    assert cores <= 2
    share = share_of_cores(2, ranks=2, environ={})
    assert (share.threads, share.num_workers) == (1, 0)
    measured = share_of_cores(2, ranks=2, load_s=9.0, step_s_by_threads={1: 0.1, 2: 0.05}, environ={})
    assert (measured.threads, measured.num_workers) == (1, 0)


@pytest.mark.parametrize(
    ("load_s", "threads", "num_workers"),
    [(0.01, 4, 0), (0.3, 3, 1), (2.0, 1, 3)],
    ids=["quick to load", "hidden by one", "slower than the step"],
)
def test_the_least_seconds_of_a_batch_decide(load_s: float, threads: int, num_workers: int) -> None:
    share = share_of_cores(4, load_s=load_s, step_s_by_threads={4: 0.3, 3: 0.35, 2: 0.5, 1: 0.6}, environ={})
    assert (share.threads, share.num_workers) == (threads, num_workers)


def test_the_users_threads_are_kept_and_told() -> None:
    assert threads_to_try(8, environ={"OMP_NUM_THREADS": "3"}) == [3]
    assert threads_to_try(8, ranks=2, environ={}) == [4, 3, 2]
    share = share_of_cores(8, load_s=0.1, step_s_by_threads={3: 1.0}, environ={"OMP_NUM_THREADS": "3"})
    assert (share.threads, share.num_workers) == (3, 1)
    assert share.why == "8 cores, OMP_NUM_THREADS=3"
    assert share_of_cores(2, load_s=0.1, step_s_by_threads={4: 1.0}, environ={"OMP_NUM_THREADS": "4"}).num_workers == 0


def test_what_the_launcher_has_set_by_itself_is_not_the_users() -> None:
    told = {"OMP_NUM_THREADS": "2", "_LIGHTKIT_THREADS": "2"}
    assert threads_as_set(told) is None
    assert threads_to_try(8, environ=told) == [8, 7, 4]
    assert threads_as_set({**told, "OMP_NUM_THREADS": "3"}) == ("OMP_NUM_THREADS", 3)
    assert threads_as_set({**told, "MKL_NUM_THREADS": "3"}) == ("MKL_NUM_THREADS", 3)


@pytest.mark.parametrize(("load_s", "threads", "num_workers"), [(0.01, 2, 0), (0.3, 1, 1)])
def test_fewer_threads_that_were_not_measured_slow_a_step_down_in_proportion(
    load_s: float, threads: int, num_workers: int
) -> None:
    share = share_of_cores(2, load_s=load_s, step_s_by_threads={2: 0.1}, environ={})
    assert (share.threads, share.num_workers) == (threads, num_workers)


def test_threads_that_are_fixed_are_kept() -> None:
    share = share_of_cores(4, load_s=0.3, step_s_by_threads={3: 0.1, 1: 0.1}, threads=3, environ={})
    assert (share.threads, share.num_workers) == (3, 1)


def test_a_gpu_leaves_the_cores_to_the_loading() -> None:
    share = share_of_cores(16, ranks=2, device="cuda", environ={})
    assert (share.threads, share.num_workers) == (1, 7)


@given(
    cores=some.integers(1, 128),
    ranks=some.integers(1, 16),
    load_s=some.floats(1e-4, 10),
    step_s=some.floats(1e-4, 10),
)
def test_what_was_measured_never_takes_more_than_the_cores(
    cores: int, ranks: int, load_s: float, step_s: float
) -> None:
    times = {threads: step_s / threads for threads in threads_to_try(cores, ranks=ranks, environ={})}
    share = share_of_cores(cores, ranks=ranks, load_s=load_s, step_s_by_threads=times, environ={})
    assert ranks * (share.threads + share.num_workers) <= max(cores, ranks)
