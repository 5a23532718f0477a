"""`lightkit submit`: a fit becomes a batch job of Slurm, run by a stand-in of three programs."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from tests.contract.command_table import Command, run_commands
from tests.contract.conftest import Once
from tests.contract.rank_jobs import ALONE, JOB, processes_in, write_job
from tests.contract.workspace import (
    ForkServer,
    Result,
    Workspace,
    assert_same_training,
    read_events,
    read_metrics,
)

STAND_IN = Path(__file__).with_name("slurm_stand_in")
"""`sbatch` runs the script at once, and again after each `scontrol requeue`; `srun` starts its
tasks here."""
BASE = "model: Regressor\ndata: Temperatures\nlaunch: {slurm: {partition: gpu}}\n"


NET = """\
from pytorch_lightning import LightningModule


class NetWithToken(LightningModule):
    def __init__(self, token: str = ""):
        super().__init__()
"""


def submit(*words: str, **environ: str) -> Command:
    files = {"flowers.yaml": BASE, "net_with_token.py": NET}
    return Command(["submit", "-c", "flowers.yaml", *words], files, environ)


HARDWARE: list[tuple[list[str], list[str]]] = [
    (["accelerator=cpu"], ["nodes=1", "ntasks-per-node=1"]),
    (["trainer.devices=2", "trainer.num_nodes=3"], ["nodes=3", "ntasks-per-node=2"]),
    (
        ["--launch.nodes=2", "--launch.processes=4", "--launch.threads=3"],
        ["nodes=2", "cpus-per-task=3"],
    ),
    (["accelerator.gpus=4"], ["ntasks-per-node=4", "gres=gpu:4"]),
    (
        ["--launch.slurm.signal=USR1@600", "--launch.slurm.time=2:00:00"],
        ["signal=USR1@600", "time=2:00:00"],
    ),
]
REFUSED: list[tuple[list[str], str]] = [
    (["accelerator.gpus=-1"], r"launch\.processes"),
    (["--launch.nodes=1:4"], r"launch\.nodes: .*'1:4'"),
    (["--launch.slurm.ntasks=4"], r"launch\.slurm\.ntasks: .*launch\.processes"),
    (["--launch.slurm.cpus_per_task=4"], r"launch\.slurm\.cpus-per-task: .*launch\.threads"),
    (["accelerator=cpu"], r"no sbatch on the PATH.*--dry-run"),
]
SECRETS = [["--model.init_args.token=abc123"], ["--model.init_args.token", "abc123"]]
COMMANDS = {
    **{f"hardware {words}": submit("--dry-run", *words) for words, _ in HARDWARE},
    **{f"refused {words}": submit(*words, PATH="/nowhere") for words, _ in REFUSED},
    **{
        f"secret {words}": submit("--dry-run", "--model=net_with_token.NetWithToken", *words)
        for words in SECRETS
    },
    "words": submit("--dry-run", "trainer.max_epochs=2", "--run.name=two words"),
}


@pytest.fixture(scope="module")
def answers(made_once: Once) -> dict[str, Result]:
    """What all commands that submit nothing answered, by their names."""
    return {
        name: ended.result for name, ended in run_commands("slurm", COMMANDS, made_once).items()
    }


def test_the_dry_run_prints_a_batch_script_that_fits_with_the_same_words(
    answers: dict[str, Result],
) -> None:
    script = answers["words"].ok().out
    assert script.startswith("#!/bin/bash\n#SBATCH --job-name=")
    assert "#SBATCH --partition=gpu\n" in script
    assert "#SBATCH --requeue\n" in script
    assert "#SBATCH --signal=USR1@120\n" in script
    assert re.search(
        r"lightkit fit -c flowers\.yaml trainer\.max_epochs=2 '--run\.name=two words'$",
        script,
        re.MULTILINE,
    )


@pytest.mark.parametrize(
    ("words", "lines"), HARDWARE, ids=[" ".join(words) for words, _ in HARDWARE]
)
def test_a_batch_script_asks_for_what_the_config_says(
    words: list[str], lines: list[str], answers: dict[str, Result]
) -> None:
    script = answers[f"hardware {words}"].ok().out
    assert {f"#SBATCH --{line}" for line in lines} <= {*script.splitlines()}
    assert ("--gres" in script) == ("accelerator.gpus=4" in words)


@pytest.mark.parametrize(("words", "says"), REFUSED, ids=[" ".join(words) for words, _ in REFUSED])
def test_what_slurm_cannot_run_is_refused(
    words: list[str], says: str, answers: dict[str, Result]
) -> None:
    result = answers[f"refused {words}"]
    assert result.code == 2
    assert re.search(says, result.err, re.DOTALL)


@pytest.mark.parametrize("words", SECRETS, ids=["one_word", "two_words"])
def test_a_secret_is_not_given_to_slurm(words: list[str], answers: dict[str, Result]) -> None:
    result = answers[f"secret {words}"]
    assert result.code == 2
    assert "--model.init_args.token=***" in result.err
    assert "abc123" not in result.out + result.err


def variables(folder: Path) -> dict[str, str | None]:
    """Environment in which the stand-in is found; it keeps its notes in a folder."""
    return {"PATH": f"{STAND_IN}{os.pathsep}{os.environ['PATH']}", "STAND_IN": str(folder)}


def submit_held(workspace: Workspace, slurm: Path, signum: int, *, processes: int = 1) -> Result:
    """Submit a job of so many processes, send them a signal after four steps.

    Wait for the end of the job.
    """
    callbacks = {**JOB["callbacks"], "hold": {"class_path": "my_project.Hold"}}
    write_job(workspace, "ddp", callbacks=callbacks)
    if processes == 1:
        workspace.write("job.yaml", {**JOB, "callbacks": callbacks})
    else:
        launch = {"engine": "slurm", "processes": 2, "threads": 1}
        hardware = {"accelerator": {"strategy": "ddp", "gpus": 0}, "launch": launch}
        workspace.write("job.yaml", {**JOB, **hardware, "callbacks": callbacks})
    workspace.write("hold", "4")
    words = ALONE if processes == 1 else ()
    process = workspace.start("submit", "-c", "job.yaml", *words, environ=variables(slurm))
    process.wait_for((workspace.folder / "held").exists)
    (slurm / "signal").write_text(str(signum), encoding="utf-8")
    process.wait_for(lambda: not (slurm / "signal").exists())
    (workspace.folder / "hold").unlink()
    return process.result()


def test_a_job_that_is_preempted_goes_back_into_the_queue_and_ends_as_if_nothing_had_happened(
    workspace: Workspace, tmp_path: Path, fork_server: ForkServer
) -> None:
    slurm = tmp_path / "slurm"
    result = submit_held(workspace, slurm, signal.SIGUSR1).ok()
    assert re.search(r"^job +4711$", result.out, re.MULTILINE)
    assert re.search(r"^log +runs/job/slurm-4711\.out$", result.out, re.MULTILINE)
    assert (slurm / "codes").read_text(encoding="utf-8").split() == ["75", "0"]
    assert "interrupted by SIGUSR1" in (workspace.folder / "runs/job/slurm-4711.out").read_text(
        encoding="utf-8"
    )
    assert len(read_events(workspace.only_run, "resume")) == 1
    whole = Workspace(tmp_path / "whole", fork_server)
    whole.write("job.yaml", JOB)
    assert_same_training(workspace.only_run, whole.fit("-c", "job.yaml", *ALONE))


@pytest.mark.long
@pytest.mark.parametrize("signum", [signal.SIGUSR1, signal.SIGUSR2], ids=["USR1", "USR2"])
def test_two_tasks_of_a_job_that_is_preempted_resume_together(
    signum: int, workspace: Workspace, tmp_path: Path
) -> None:
    slurm = tmp_path / "slurm"
    submit_held(workspace, slurm, signum, processes=2).ok()
    assert (slurm / "codes").read_text(encoding="utf-8").split() == ["75", "0"]
    assert "2 devices" in (workspace.folder / "runs/job/slurm-4711.out").read_text(encoding="utf-8")
    assert [row["epoch"] for row in read_metrics(workspace.only_run)] == ["0", "1"]
    assert len(read_events(workspace.only_run, "resume")) == 1
    assert processes_in(tmp_path) == []


@pytest.mark.long
def test_a_job_that_is_cancelled_does_not_come_back(workspace: Workspace, tmp_path: Path) -> None:
    slurm = tmp_path / "slurm"
    submit_held(workspace, slurm, signal.SIGTERM).ok()
    assert (slurm / "codes").read_text(encoding="utf-8").split() == ["75"]


def test_what_sbatch_says_is_passed_on(workspace: Workspace, tmp_path: Path) -> None:
    workspace.write("job.yaml", {**JOB, "launch": {"slurm": {"partition": "none"}}})
    result = workspace.run("submit", "-c", "job.yaml", environ=variables(tmp_path / "slurm"))
    assert result.code == 1
    assert "invalid partition specified: none" in result.err
    assert "Traceback" not in result.err
