"""A job of a stand-in for Slurm that trains real ranks, is preempted, goes back into the queue and resumes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import (
    LEASHED_PICTURES,
    assert_same_training,
    ended,
    events,
    fit,
    leash,
    rows,
    run,
    started,
    wait_for,
    workplace,
)

pytestmark = pytest.mark.slow

FAKE = Path(__file__).parents[1] / "launch" / "fake_slurm"
JOB: dict[str, Any] = {
    **LEASHED_PICTURES,
    "accelerator": {"strategy": "ddp", "gpus": 0},
    "launch": {"engine": "slurm", "processes": 2, "threads": 1},
}


@pytest.mark.parametrize("processes", [1, 2])
def test_a_job_that_is_preempted_resumes_and_ends_as_if_nothing_had_happened(tmp_path: Path, processes: int) -> None:
    job = {**JOB, "trainer": {**JOB["trainer"], "max_epochs": 2}}
    if processes == 1:  # what `lightkit submit` makes of a config that says nothing of hardware
        job |= {"accelerator": "cpu", "launch": {}}
    folder, place = workplace(tmp_path / "slurm", job, pictures=60), tmp_path / "fake"
    leash(folder, 4)  # which the signal takes away
    environ = {"PATH": f"{FAKE}{os.pathsep}{os.environ['PATH']}", "FAKE_SLURM": str(place)}
    with started(folder, "submit", "-c", "job.yaml", environ=environ) as process:
        assert wait_for((folder / "held").exists, process)
        (place / "signal").touch()
        done = ended(process)
    assert done.code == 0, done.err
    assert "job   4711" in done.out
    assert (place / "codes").read_text(encoding="utf-8").split() == ["75", "0"]
    said = (folder / "runs" / "job" / "slurm-4711.out").read_text(encoding="utf-8")
    assert "interrupted by SIGUSR1; the same command resumes from" in said
    assert ("on 2 devices" in said) == (processes == 2)
    assert len(events(folder, "resume")) == 1
    assert not list((folder / "runs").glob(".launch/*"))
    assert [row["epoch"] for row in rows(folder)] == ["0", "1"]
    if processes == 2:  # test_launch and test_ddp have two ranks that go on exactly
        return

    hurried = {**job, "callbacks": {"checkpoint": job["callbacks"]["checkpoint"]}}
    whole = workplace(tmp_path / "whole", hurried, pictures=60)
    expected = fit(whole)
    assert expected.code == 0, expected.err
    assert_same_training(folder, whole)


def test_a_job_for_slurm_is_not_quietly_trained_here(tmp_path: Path) -> None:
    folder = workplace(tmp_path, JOB, pictures=60)
    end = run(folder, "fit", "-c", "job.yaml")
    assert end.code == 2
    assert (
        "launch.engine: slurm: the ranks are started by srun, which is not the case here; say lightkit submit"
        in end.err
    )
