"""What is told of threads that do not fit the cores."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lightkit.config import resolve, resolve_hardware
from tests.config.accelerator.test_precedence import layered
from tests.config.accelerator.test_resolve import NOTHING


@pytest.mark.parametrize(
    ("layers", "says"),
    [
        (("accelerator: {threads: 64}",), "launch.threads: 64 is more than the 2 cores that this process may use"),
        (("--launch.threads=3",), "launch.threads: 3 is more than the 2 cores that this process may use"),
        (
            ("accelerator: {kind: cpu, threads: 2, num_processes: 2}",),
            "launch.threads: 2 for each of 2 processes is more than the 2 cores that this process may use",
        ),
        (("accelerator: {threads: 2}",), None),
        (("accelerator: {kind: cpu, threads: 1, num_processes: 4}",), None),
        (("accelerator: {threads: auto}",), None),
    ],
    ids=["block", "flag", "processes", "as many", "least", "auto"],
)
def test_threads_that_are_more_than_the_cores_are_told(
    tmp_path: Path, layers: tuple[str, ...], says: str | None
) -> None:
    machine = replace(NOTHING, cores=2)
    told = [notice.partition(", by its")[0] for notice in layered(tmp_path, *layers, machine=machine).notices]
    assert told == ([] if says is None else [says])
    assert layered(tmp_path, *layers, machine=None).notices == ()  # another machine's cores are not known


def test_a_rank_that_a_launcher_has_bound_to_its_cores_counts_as_one(tmp_path: Path) -> None:
    file = tmp_path / "two.yaml"
    file.write_text("accelerator: {kind: cpu, threads: 2, num_processes: 2}")
    machine = replace(NOTHING, cores=2)
    told = [
        resolve_hardware(resolve([file], environ={}), machine, environ=environ).notices
        for environ in ({}, {"LOCAL_WORLD_SIZE": "2"})
    ]
    assert [len(notices) for notices in told] == [1, 0]
