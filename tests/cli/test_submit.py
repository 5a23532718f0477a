"""`lightkit submit`: the config's words become a batch script of Slurm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lightkit.cli import main
from tests.cli.commands import SMALL, workplace


@pytest.fixture
def submit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run `lightkit submit` in a working directory; gives the exit code and what it printed."""
    monkeypatch.chdir(workplace(tmp_path, {**SMALL, "launch": {"slurm": {"partition": "gpu"}}}))

    def run(*words: str) -> tuple[int, str, str]:
        code = main(["submit", "-c", "job.yaml", *words])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def test_the_dry_run_prints_the_script(submit: Any, tmp_path: Path) -> None:
    code, out, err = submit("--dry-run", "trainer.max_epochs=2", "--launch.slurm.time=2:00:00")
    assert (code, err) == (0, "")
    for line in ("job-name=job", "nodes=1", "ntasks-per-node=1", "partition=gpu", "time=2:00:00", f"chdir={tmp_path}"):
        assert f"#SBATCH --{line}\n" in out
    assert "#SBATCH --output=runs/job/slurm-%j.out\n" in out
    assert "-m lightkit fit -c job.yaml trainer.max_epochs=2 --launch.slurm.time=2:00:00\n" in out
    assert "--gres" not in out
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        (["trainer.devices=2", "trainer.num_nodes=3"], ["nodes=3", "ntasks-per-node=2"]),
        (["--launch.nodes=2", "--launch.processes=4", "--launch.threads=3"], ["nodes=2", "cpus-per-task=3"]),
        (["trainer.accelerator=gpu", "trainer.devices=4"], ["ntasks-per-node=4", "gres=gpu:4"]),
    ],
    ids=["trainer", "launch", "gpus"],
)
def test_the_hardware_of_the_config_is_asked_for(submit: Any, words: list[str], lines: list[str]) -> None:
    code, out, err = submit("--dry-run", *words)
    assert (code, err) == (0, "")
    for line in lines:
        assert f"#SBATCH --{line}\n" in out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["trainer.accelerator=gpu", "trainer.devices=-1"], "say launch.processes"),
        (["--launch.nodes=1:4"], "launch.nodes: Slurm gives a fixed number of machines, got '1:4'"),
        (["--launch.slurm.ntasks=4"], "launch.slurm.ntasks: is set by launch.processes"),
        ([], "there is no sbatch on the PATH"),
    ],
    ids=["every GPU", "range", "ntasks", "no sbatch"],
)
def test_what_slurm_cannot_run_is_told(submit: Any, words: list[str], says: str) -> None:
    code, _, err = submit(*words)
    assert code == 2
    assert says in err


@pytest.mark.parametrize(
    "words", [["--model.init_args.token=abc123"], ["--model.init_args.token", "abc123"]], ids=["one-word", "two-words"]
)
def test_a_secret_is_not_given_to_slurm(submit: Any, words: list[str]) -> None:
    code, out, err = submit("--dry-run", *words)
    assert code == 2
    assert "--model.init_args.token=***: Slurm keeps the command line" in err
    assert "abc123" not in out + err


def test_the_job_and_its_log_are_named(submit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bin" / "sbatch"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n/bin/cat > submitted\necho '12;cluster'\n", encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent))
    code, out, _ = submit()
    assert (code, out) == (0, "job   12\nlog   runs/job/slurm-12.out\n")
    assert (tmp_path / "submitted").read_text(encoding="utf-8").startswith("#!/bin/bash\n#SBATCH --job-name=job\n")
    assert (tmp_path / "runs" / "job").is_dir()
