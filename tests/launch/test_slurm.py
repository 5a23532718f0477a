"""Batch scripts of Slurm."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from lightkit.errors import ConfigError
from lightkit.launch.slurm import batch_script, submit

GOLDEN = Path(__file__).parent / "golden"
WORDS = ["fit", "-c", "configs/flowers.yaml", "--run.name=two words"]


def script(options: dict[str, Any] | None = None, **own: Any) -> str:
    """Write a script, by default of one process; names of options have underscores."""
    job = {
        "job_name": "flowers",
        "nodes": 1,
        "ntasks_per_node": 1,
        "cpus_per_task": None,
        "gres": None,
    }
    job |= {"chdir": "/home/me/project", "output": "runs/flowers/slurm-%j.out", **own}
    asked = {key.replace("_", "-"): value for key, value in job.items()}
    return batch_script(WORDS, asked, options or {}).replace(sys.executable, "python")


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("one_process", {}),
        (
            "gpus_on_two_machines",
            {
                "nodes": 2,
                "ntasks_per_node": 4,
                "cpus_per_task": 8,
                "gres": "gpu:4",
                "options": {
                    "partition": "gpu",
                    "time": "2:00:00",
                    "exclusive": True,
                    "comment": "it's mine",
                },
            },
        ),
    ],
    ids=["one", "gpus"],
)
def test_the_script_is_what_it_was(name: str, settings: dict[str, Any]) -> None:
    assert script(**settings) == (GOLDEN / f"{name}.sh").read_text(encoding="utf-8")


def test_an_option_replaces_lightkits_own() -> None:
    written = script(
        gres="gpu:1", options={"requeue": False, "signal": "USR1@600", "gpus_per_node": "h100:4"}
    )
    assert "requeue\n\n" not in written
    assert "#SBATCH --signal=USR1@600\n" in written
    assert "#SBATCH --gpus-per-node=h100:4\n" in written
    assert "--gres" not in written


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"options": {"ntasks": 4}}, r"launch\.slurm\.ntasks: is set by launch\.processes"),
        (
            {"options": {"cpus_per_task": 4}},
            r"launch\.slurm\.cpus-per-task: is set by launch\.threads",
        ),
        ({"options": {"comment": "a\nb"}}, "expected one line of text"),
        ({"options": {"partition": ["a", "b"]}}, r"expected one line of text.*got \['a', 'b'\]"),
        ({"job_name": "bash"}, "counts as interactive"),
    ],
    ids=["ntasks", "cpus", "lines", "list", "interactive"],
)
def test_what_does_not_fit_is_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        script(**settings)


def test_without_sbatch_there_is_the_dry_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"there is no sbatch on the PATH.*--dry-run"):
        submit("", output=tmp_path / "runs" / "net" / "slurm-%j.out")
    assert not (tmp_path / "runs").exists()
