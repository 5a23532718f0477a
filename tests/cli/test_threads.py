"""How many threads each rank has."""

from __future__ import annotations

import os

import pytest

from lightkit.cli.stage_runner import share_cores
from lightkit.launch.ranks import Rank
from tests.cli.conftest import House


@pytest.mark.parametrize(
    ("rank", "environ", "num_cores", "threads"),
    [
        (Rank(0, 2, 0, 2, "horovod"), {}, 8, 4),
        (Rank(0, 4, 0, 2, "mpi"), {}, 8, 4),
        (Rank(0, 8, 0, 8, "mpi"), {}, 2, 1),
        (Rank(0, 1, 0, 1, "slurm"), {}, 6, 6),
        (Rank(0, 2, 0, 2, "slurm"), {"SLURM_CPUS_PER_TASK": "3"}, 8, 3),
    ],
    ids=["two", "two machines", "more than cores", "one", "slurm"],
)
def test_the_cores_are_shared_out(rank: Rank, environ: dict[str, str], num_cores: int, threads: int) -> None:
    assert share_cores(rank, num_cores=num_cores, environ=environ) == threads


def test_cores_that_the_launcher_has_shared_out_are_not_shared_out_again(monkeypatch: pytest.MonkeyPatch) -> None:
    own, launcher = {0, 1, 2, 3}, set(range(16))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: own if pid == 0 else launcher)
    assert share_cores(Rank(0, 4, 0, 4, "mpi"), num_cores=4, environ={}) == 4
    assert share_cores(Rank(0, 8, 0, 8, "mpi"), num_cores=4, environ={}) == 2  # two ranks on the same four cores


def test_one_process_has_the_threads_that_the_config_says(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    house.resolved("-c", "small.yaml", "launch.threads=3")
    assert os.environ["OMP_NUM_THREADS"] == "3"
