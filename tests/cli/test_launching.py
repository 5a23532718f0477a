"""What the process that starts the ranks decides from the config."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightkit.cli.launching import job_digest, plan_of, supervise
from lightkit.cli.session import open_session
from lightkit.errors import ConfigError
from lightkit.runs.signals import SignalWatch
from tests.cli.commands import SMALL, workplace

JOB = ("--trainer.max_epochs=${oc.env:EPOCHS}", "--launch.engine=torchrun")
HERE = (*JOB, "--launch.network_interface=eth0", "--run.root=runs")


def digest(*words: str, command: str = "fit") -> str:
    return job_digest(open_session(command, ["-c", "job.yaml", *words], SignalWatch()))


@pytest.mark.parametrize(
    ("words", "is_same"),
    [
        ((*JOB, "--launch.network_interface=ib0", "--run.root=/mnt/runs"), True),
        ((*HERE, "--seed_everything=8"), False),
        ((*HERE, "--run.name=other"), False),
        ((*HERE, "--ckpt_path=last"), False),
    ],
    ids=["another machine", "another config", "another job", "another checkpoint"],
)
def test_a_job_is_the_same_on_all_machines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], is_same: bool
) -> None:
    monkeypatch.chdir(workplace(tmp_path, SMALL))
    monkeypatch.setenv("EPOCHS", "3")
    here = digest(*HERE)
    monkeypatch.setenv("EPOCHS", "4")  # what comes from the environment stays there
    assert (digest(*words) == here) is is_same


def test_the_stages_of_a_job_do_not_meet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(workplace(tmp_path, SMALL))
    assert digest() != digest(command="validate")


def test_paths_on_standard_input_are_refused_before_ranks_are_started_that_would_not_get_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(workplace(tmp_path, SMALL))
    words = ["-c", "job.yaml", "--launch.engine=torchrun", "--launch.processes=2", "-"]
    session = open_session("predict", words, SignalWatch())
    plan = plan_of(session)
    assert plan is not None
    with pytest.raises(ConfigError, match=r"-: standard input .* the processes that predict are started without"):
        supervise(session, plan)
