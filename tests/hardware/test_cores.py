"""Which threads count as the user's, and how many processes load."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightkit.hardware.cores import find_user_threads, workers_by_rule
from lightkit.hardware.processor import num_cores


def test_a_quota_of_two_cores_counts_two(tmp_path: Path) -> None:
    (tmp_path / "cgroup").write_text("0::/\n")
    (tmp_path / "cpu.max").write_text("200000 100000\n")
    cores = num_cores(tmp_path, tmp_path / "cgroup")
    assert cores is not None
    assert cores <= 2


def test_what_the_launcher_has_set_by_itself_is_not_the_users() -> None:
    told = {"OMP_NUM_THREADS": "2", "_LIGHTKIT_THREADS": "2"}
    assert find_user_threads({}) is None
    assert find_user_threads(told) is None
    assert find_user_threads({**told, "OMP_NUM_THREADS": "3"}) == 3
    assert find_user_threads({**told, "MKL_NUM_THREADS": "3"}) == 3


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
