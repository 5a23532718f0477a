"""`lightkit fit --if-changed`: nothing changed, nothing done.

What counts as a change, and what does not.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.contract.conftest import Once, copy_of
from tests.contract.examples import MY_PROJECT, write_pictures
from tests.contract.workspace import Workspace, read_json

JOB: dict[str, Any] = {
    "seed_everything": 7,
    "model": {"class_path": "ImageClassifier", "init_args": {"learning_rate": 0.01}},
    "data": {
        "class_path": "ImageFolder",
        "init_args": {"root": "pictures", "image_size": 16, "batch_size": 4, "num_workers": 0},
    },
    "callbacks": {
        "word": {"class_path": "my_project.WriteWord", "init_args": {"word": "${oc.env:WORD,none}"}}
    },
    "trainer": {
        "accelerator": "cpu",
        "max_epochs": 1,
        "limit_train_batches": 1,
        "limit_val_batches": 1,
        "log_every_n_steps": 1,
        "logger": False,
    },
}
FIT = ("fit", "-c", "job.yaml", "--if-changed")


@pytest.fixture(scope="session")
def trained_original(made_once: Once) -> Path:
    """A finished run of `job.yaml` on 12 pictures."""

    def train(workspace: Workspace) -> None:
        write_pictures(workspace.folder / "pictures", count=12)
        workspace.write("job.yaml", JOB)
        workspace.run(*FIT).ok()

    return made_once("unchanged", train)


@pytest.fixture
def trained(trained_original: Path, workspace: Workspace) -> Workspace:
    """A workspace of its own with that run."""
    return copy_of(trained_original, workspace)


def test_an_unchanged_fit_does_nothing_and_ends_with_6(trained: Workspace) -> None:
    run = trained.only_run
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    result = trained.run(*FIT)
    assert (result.code, result.err) == (6, "")
    assert f"nothing has changed since runs/job/{run.name}" in result.out
    assert trained.only_run == run
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


def test_unchanged_ok_makes_it_0_and_quiet_prints_nothing(trained: Workspace) -> None:
    result = trained.run(*FIT, "--unchanged-ok", "--quiet")
    assert (result.code, result.out, result.err) == (0, "", "")


def test_with_output_json_an_unchanged_fit_is_an_event(trained: Workspace) -> None:
    result = trained.run(*FIT, "--output=json")
    (event,) = result.json_lines
    assert (result.code, event["event"], event["run"]) == (
        6,
        "unchanged",
        f"job/{trained.only_run.name}",
    )


def test_unchanged_ok_without_if_changed_is_an_error(workspace: Workspace) -> None:
    result = workspace.run("fit", "-c", "small.yaml", "--unchanged-ok")
    assert result.code == 2
    assert "--if-changed" in result.err


def test_without_if_changed_the_same_config_trains_again(finished: Workspace) -> None:
    finished.run("fit", "-c", "small.yaml").ok()
    assert len(finished.runs) == 2


_LOADS = """
import sys
from lightkit.main import main

code = main(sys.argv[1:])
print(sorted({"torch", "pytorch_lightning", "torchvision", "mlflow"} & set(sys.modules)))
sys.exit(code)
"""


def test_an_unchanged_fit_ends_before_torch_is_loaded(trained: Workspace, tmp_path: Path) -> None:
    script = tmp_path / "loads.py"
    script.write_text(_LOADS, encoding="utf-8")
    result = trained.run_cold(*FIT, script=script)
    assert (result.code, result.out.splitlines()[-1]) == (6, "[]"), result.err


# -- what does not count ---------------------------------------------------------------------------


def _touch(folder: Path) -> None:
    for path in folder.glob("pictures/*/*.png"):
        os.utime(path, (10, 10))


@pytest.mark.parametrize(
    ("words", "change"),
    [
        ((), _touch),
        (("--run.wait_s=5",), None),
        (("--watchdog.floor_s=100",), None),
        (("--launch.timeout_s=99", "--gate.metric=val/loss", "--gate.min=0.1"), None),
        (("--logger.csv={}", "--trainer.enable_progress_bar=false"), None),
        (("--data.prefetch_factor=3",), None),
        (("--trainer.max_epochs=1",), None),
    ],
    ids=[
        *(
            "times of the files",
            "section run",
            "patience of the watchdog",
            "launch and gate",
            "records",
            "loading",
        ),
        "same value by a flag",
    ],
)
def test_what_does_not_train_otherwise_does_not_count(
    words: tuple[str, ...], change: Callable[[Path], None] | None, trained: Workspace
) -> None:
    if change is not None:
        change(trained.folder)
    assert trained.run(*FIT, *words).code == 6


def test_a_fit_from_the_same_checkpoint_does_nothing_and_ends_with_6(trained: Workspace) -> None:
    checkpoint = trained.only_run / "checkpoints" / "last.ckpt"
    words = (*FIT, "--trainer.max_epochs=2", f"--ckpt_path={checkpoint}")
    trained.run(*words).ok()
    assert trained.run(*words).code == 6
    assert len(trained.runs) == 2


# -- what counts -----------------------------------------------------------------------------------


def _copy_over(folder: Path) -> None:
    (folder / "pictures/reds/0.png").write_bytes((folder / "pictures/reds/2.png").read_bytes())


def _add(folder: Path) -> None:
    (folder / "pictures/reds/new.png").write_bytes((folder / "pictures/reds/2.png").read_bytes())


def _move(folder: Path) -> None:
    (folder / "pictures/reds/0.png").rename(folder / "pictures/blues/0.png")


def _edit(folder: Path) -> None:
    (folder / "my_project.py").write_text(MY_PROJECT + "\nMORE = 1\n", encoding="utf-8")


@pytest.mark.parametrize(
    ("change", "says"),
    [(_copy_over, "data"), (_add, "data"), (_move, "data"), (_edit, "code")],
    ids=["content of a file", "new file", "file of another class", "module of the user"],
)
def test_a_change_of_data_or_code_trains_again_and_is_named(
    change: Callable[[Path], None], says: str, trained: Workspace
) -> None:
    first = trained.only_run
    change(trained.folder)
    result = trained.run(*FIT).ok()
    assert f"changed since runs/job/{first.name}" in result.err
    assert f"{says}:" in result.err
    assert len(trained.runs) == 2


def test_a_changed_value_trains_again_and_is_named_with_both_values(trained: Workspace) -> None:
    result = trained.run(*FIT, "--model.learning_rate=0.02").ok()
    assert "model.init_args.learning_rate 0.01 -> 0.02" in result.err
    assert len(trained.runs) == 2


def test_a_changed_value_from_the_environment_trains_again_and_is_not_shown(
    trained: Workspace,
) -> None:
    result = trained.run(*FIT, environ={"WORD": "blackbird"}).ok()
    assert "callbacks.word.init_args.word" in result.err
    assert "blackbird" not in result.err
    assert (trained.folder / "words.txt").read_text(encoding="utf-8").splitlines() == [
        "none",
        "blackbird",
    ]


# -- data modules of one's own ---------------------------------------------------------------------


def test_a_file_that_a_data_module_of_ones_own_names_counts(workspace: Workspace) -> None:
    words = ("fit", "-c", "small.yaml", "--if-changed", "--data.init_args.note=points.txt")
    workspace.write("points.txt", "1")
    workspace.run(*words).ok()
    assert workspace.run(*words).code == 6
    workspace.write("points.txt", "2")
    assert "data.init_args.note: 1 of 1 file differs (points.txt)" in workspace.run(*words).ok().err


def test_data_of_ones_own_that_names_no_file_always_trains_and_says_what_to_do(
    finished: Workspace,
) -> None:
    # as cron calls it
    result = finished.run("fit", "-c", "small.yaml", "--if-changed", "--quiet").ok()
    assert "trains each time: --if-changed cannot see what my_project.Points reads" in result.err
    assert "name the file or folder as an argument of the data module" in result.err
    assert len(finished.runs) == 2


def test_data_at_an_address_always_trains_and_says_what_to_do(workspace: Workspace) -> None:
    words = ("fit", "-c", "small.yaml", "--if-changed", "--data.init_args.note=s3://bucket/points")
    workspace.run(*words).ok()
    result = workspace.run(*words).ok()
    assert (
        "cannot see what is behind data.init_args.note; name local files or folders" in result.err
    )
    assert len(workspace.runs) == 2


# -- nothing to compare with -----------------------------------------------------------------------


def test_after_another_experiment_the_inputs_of_the_champion_count_too(trained: Workspace) -> None:
    champion = trained.only_run
    trained.run("promote", "latest", "--force").ok()
    trained.run(*FIT, "--model.init_args.learning_rate=0.02").ok()
    result = trained.run(*FIT)
    assert (result.code, len(trained.runs)) == (6, 2)
    assert f"nothing has changed since runs/job/{champion.name}" in result.out


def test_a_run_that_has_lost_its_checkpoint_is_trained_again(trained: Workspace) -> None:
    (trained.only_run / "checkpoints" / "last.ckpt").unlink()
    trained.run(*FIT).ok()
    assert len(trained.runs) == 2


def test_a_run_that_its_deadline_cut_short_is_trained_again(trained: Workspace) -> None:
    path = trained.only_run / "summary.json"
    path.write_text(json.dumps({**read_json(path), "stopped_by": "deadline"}), encoding="utf-8")
    trained.run(*FIT).ok()
    assert len(trained.runs) == 2


def test_with_if_changed_an_interrupted_run_is_resumed(interrupted: Workspace) -> None:
    interrupted.run("fit", "-c", "small.yaml", "-c", "signal.yaml", "--if-changed").ok()
    assert read_json(interrupted.only_run / "summary.json")["status"] == "done"
