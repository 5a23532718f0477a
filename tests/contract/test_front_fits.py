"""Which loggers and callbacks a fit has, and the commands that a CI job is told to run."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.contract.batch import Answer, Command, run_batch
from tests.contract.examples import MY_PROJECT, SMALL
from tests.contract.workspace import ForkServer, Workspace

WORKFLOW = Path(__file__).parents[2] / "configs" / "ci" / "pull_request.yml"
CSV = "{class_path: CSVLogger, init_args: {save_dir: %s}}"
FITS = {
    "default": ("--trainer.logger=null",),
    "none": ("callbacks.lr_monitor={}",),  # which Lightning refuses without a logger
    "several": (f"--trainer.logger=[{CSV % 'one'}, {CSV % 'two'}]",),
    "removed": (
        "callbacks.checkpoint=null",
        "callbacks.word=my_project.WriteWord",
        "callbacks.word=null",
    ),
    "printed": ("--print_config",),
}


@pytest.fixture(scope="module")
def fits(
    tmp_path_factory: pytest.TempPathFactory, fork_server: ForkServer
) -> Iterator[tuple[Path, dict[str, Answer]]]:
    """Fits of one epoch, each a job of its own."""
    workspace = Workspace(tmp_path_factory.mktemp("fits") / "work", fork_server)
    workspace.write("my_project.py", MY_PROJECT)
    workspace.write("small.yaml", SMALL)
    workspace.write("configs/flowers.yaml", SMALL)
    workspace.write("configs/overlay.yaml", "trainer: {max_epochs: 1}\n")
    steps = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))["jobs"]["check"]["steps"]
    lines = [step["run"] for step in steps if step.get("run", "").startswith("lightkit ")]
    job = ("-c", "small.yaml", "--trainer.max_epochs=1")
    commands = {
        name: Command(("fit", *job, f"--run.name={name}", *words)) for name, words in FITS.items()
    }
    commands |= {
        f"ci {number}": Command(tuple(shlex.split(line)[1:])) for number, line in enumerate(lines)
    }
    commands["before"] = Command(
        (*job[:2], "fit", *job[2:], "--run.name=printed", "--print_config")
    )
    commands["overlaid"] = Command(("fit", "-c", "small.yaml", "-c", "configs/overlay.yaml"))
    yield workspace.folder, run_batch(workspace, commands)
    workspace.close()


Fits = tuple[Path, dict[str, Answer]]


def test_without_a_logger_there_is_a_tensorboard_in_the_run_folder(fits: Fits) -> None:
    folder, answers = fits
    answers["default"].ok()
    assert list(folder.glob("runs/default/2*-*/tensorboard/events.out.tfevents.*"))


def test_a_job_has_the_name_of_its_first_config(fits: Fits) -> None:
    folder, answers = fits
    answers["overlaid"].ok()
    assert list(folder.glob("runs/small/2*-*/summary.json"))
    assert not (folder / "runs" / "overlay").exists()


def test_no_logger_means_none(fits: Fits) -> None:
    folder, answers = fits
    answers["none"].ok()
    assert not list(folder.glob("runs/none/2*-*/tensorboard"))
    assert not (folder / "lightning_logs").exists()


def test_several_loggers_in_a_list_all_log(fits: Fits) -> None:
    folder, answers = fits
    answers["several"].ok()
    assert [len(list((folder / name).rglob("metrics.csv"))) for name in ("one", "two")] == [1, 1]


def test_a_removed_callback_is_not_built(fits: Fits) -> None:
    folder, answers = fits
    answers["removed"].ok()
    assert not (folder / "words.txt").exists()
    assert not list(folder.glob("runs/removed/2*-*/checkpoints/best.ckpt"))


def test_a_config_before_the_command_is_the_same_as_after_it(fits: Fits) -> None:
    assert fits[1]["before"].ok().out == fits[1]["printed"].ok().out


@pytest.mark.parametrize("number", [0, 1], ids=["check", "fit"])
def test_the_commands_of_the_ci_workflow_run(number: int, fits: Fits) -> None:
    folder, answers = fits
    assert f"ci {number + 2}" not in answers
    answers[f"ci {number}"].ok()
    assert (folder / "check.xml").is_file()
