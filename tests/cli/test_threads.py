"""How many threads each rank has."""

from __future__ import annotations

import os

import pytest

from lightkit.cli.trainer_components import share_cores


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
