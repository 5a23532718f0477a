"""Batch scripts of Slurm, and the programs that stand for Slurm here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lightkit.errors import ConfigError, LightkitError
from lightkit.launch.slurm import SlurmJob, batch_script, submit

GOLDEN = Path(__file__).parent / "golden"
FAKE = Path(__file__).parent / "fake_slurm"
JOB: dict[str, Any] = {
    "words": ["fit", "-c", "configs/flowers.yaml", "--run.name=two words"],
    "name": "flowers",
    "folder": "/home/me/project",
    "output": "runs/flowers/slurm-%j.out",
}


def script(**settings: Any) -> str:
    return batch_script(SlurmJob(**{**JOB, **settings})).replace(sys.executable, "python")


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("one_process", {}),
        (
            "gpus_on_two_machines",
            {
                "nodes": 2,
                "processes": 4,
                "threads": 8,
                "gpus": True,
                "options": {"partition": "gpu", "time": "2:00:00", "exclusive": True, "comment": "it's mine"},
            },
        ),
    ],
    ids=["one", "gpus"],
)
def test_the_script_is_what_it_was(name: str, settings: dict[str, Any]) -> None:
    assert script(**settings) == (GOLDEN / f"{name}.sh").read_text(encoding="utf-8")


def test_an_option_replaces_lightkits_own() -> None:
    written = script(gpus=True, options={"requeue": False, "signal": "USR1@600", "gpus_per_node": "h100:4"})
    assert "requeue\n\n" not in written
    assert "#SBATCH --signal=USR1@600\n" in written
    assert "#SBATCH --gpus-per-node=h100:4\n" in written
    assert "--gres" not in written


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"options": {"ntasks": 4}}, r"launch\.slurm\.ntasks: is set by launch\.processes"),
        ({"options": {"cpus_per_task": 4}}, r"launch\.slurm\.cpus-per-task: is set by launch\.threads"),
        ({"options": {"comment": "a\nb"}}, "expected one line of text"),
        ({"options": {"partition": ["a", "b"]}}, r"expected one line of text.*got \['a', 'b'\]"),
        ({"name": "bash"}, "counts as interactive"),
    ],
    ids=["ntasks", "cpus", "lines", "list", "interactive"],
)
def test_what_does_not_fit_is_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        script(**settings)


def test_without_sbatch_there_is_the_dry_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"there is no sbatch on the PATH.*--dry-run"):
        submit("")


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Slurm of programs that stand for it; its folder."""
    monkeypatch.setenv("PATH", os.pathsep.join([str(FAKE), str(Path(sys.executable).parent), os.environ["PATH"]]))
    monkeypatch.setenv("FAKE_SLURM", str(tmp_path / "slurm"))
    return tmp_path / "slurm"


TASK = """\
import os, sys
from pathlib import Path
task, restart = os.environ["SLURM_PROCID"], os.environ.get("SLURM_RESTART_COUNT", "0")
Path(f"task-{task}-{restart}").write_text(" ".join([os.environ["OMP_NUM_THREADS"], *sys.argv[1:]]))
if task == "1" and CODES[restart] == 75 and SAVES:
    Path(os.environ["_LIGHTKIT_PREEMPTED"]).touch()
sys.exit(CODES[restart] if task == "1" else 0)
"""


def submitted(folder: Path, codes: dict[str, int], *, saves: bool = True, **settings: Any) -> str:
    """Submit a job of two tasks whose second ends with these codes, one for each start."""
    (folder / "lightkit").mkdir()
    (folder / "lightkit" / "__init__.py").touch()
    text = TASK.replace("CODES", repr(codes)).replace("SAVES", repr(saves))
    (folder / "lightkit" / "__main__.py").write_text(text, encoding="utf-8")
    job = {**JOB, "folder": str(folder), "output": "slurm-%j.out", "processes": 2, "threads": 3, **settings}
    return submit(batch_script(SlurmJob(**job)))


@pytest.mark.slow
def test_a_job_that_ends_with_75_goes_back_into_the_queue(slurm: Path, tmp_path: Path) -> None:
    assert submitted(tmp_path, {"0": 75, "1": 75, "2": 0}) == "4711"
    assert (slurm / "codes").read_text() == "75\n75\n0\n"
    for task in "01":
        for restart in "012":
            words = (tmp_path / f"task-{task}-{restart}").read_text()
            assert words == "3 fit -c configs/flowers.yaml --run.name=two words"


@pytest.mark.slow
def test_a_job_that_could_not_begin_is_not_put_back_for_ever(slurm: Path, tmp_path: Path) -> None:
    """75 is also the code of a job whose lock another process holds."""
    submitted(tmp_path, {"0": 75}, saves=False)
    assert (slurm / "codes").read_text() == "75\n"


@pytest.mark.slow
@pytest.mark.parametrize("code", [0, 1, 3, 143])
def test_other_codes_are_passed_on(slurm: Path, tmp_path: Path, code: int) -> None:
    submitted(tmp_path, {"0": code})
    assert (slurm / "codes").read_text() == f"{code}\n"


@pytest.mark.slow
def test_what_sbatch_says_is_passed_on(slurm: Path, tmp_path: Path) -> None:
    with pytest.raises(LightkitError, match=r"sbatch refuses the job .* invalid partition specified: none"):
        submitted(tmp_path, {}, options={"partition": "none"})


@pytest.mark.slow
def test_srun_hands_sigusr1_to_every_task(slurm: Path, tmp_path: Path) -> None:
    variables = {**os.environ, "SLURM_NTASKS": "2", "SLURM_NTASKS_PER_NODE": "2"}
    catches = "trap 'exit 75' USR1; touch ready-$SLURM_PROCID; while true; do sleep 0.05; done"
    slurm.mkdir()
    command = ["srun", "--wait=1", "bash", "-c", catches]
    with subprocess.Popen(command, cwd=tmp_path, env=variables) as srun:
        while not all((tmp_path / f"ready-{task}").exists() for task in (0, 1)):
            assert srun.poll() is None
        (slurm / "signal").touch()
        assert srun.wait(20) == 75
