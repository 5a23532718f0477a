"""`lightkit reproduce`: it is trained again and compared bit for bit, or refused with why."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.contract.conftest import Once, copy_of
from tests.contract.examples import MY_PROJECT, PICTURES, write_pictures
from tests.contract.workspace import Workspace, assert_same_training, load_checkpoint, read_json

Change = Callable[[Workspace], None]


@pytest.fixture(scope="session")
def reproduced_original(made_once: Once, finished_original: Path) -> Path:
    """A working directory in which `lightkit reproduce latest` has ended with 0."""

    def reproduce(workspace: Workspace) -> None:
        shutil.copytree(finished_original, workspace.folder, symlinks=True, dirs_exist_ok=True)
        result = workspace.run(
            "reproduce", "latest", environ={"LIGHTKIT_TRAINER__MAX_EPOCHS": "1"}
        ).ok()
        workspace.write("said.txt", result.out)

    return made_once("reproduced", reproduce)


def test_a_run_is_trained_again_under_a_name_of_its_own_with_the_same_weights(
    reproduced_original: Path,
) -> None:
    (first,) = reproduced_original.glob("runs/small/2*")
    (again,) = reproduced_original.glob("runs/small-reproduced/2*")
    assert_same_training(first, again)
    assert read_json(again / "manifest.json")["parent"] == str(first)
    last = (reproduced_original / "said.txt").read_text(encoding="utf-8").splitlines()[-1]
    assert f"runs/small-reproduced/{again.name} equals runs/small/{first.name}" in last
    assert "bit for bit" in last


def test_another_weight_ends_with_1_and_says_which_tensor_differs(finished: Workspace) -> None:
    import torch

    path = finished.only_run / "checkpoints" / "last.ckpt"
    content = load_checkpoint(path)
    content["state_dict"]["layers.0.bias"][0] += 0.5
    torch.save(content, path)
    result = finished.run("reproduce", "latest", "--json", "--anyway")
    assert result.code == 1, result.err
    found = json.loads(result.out)
    assert (found["equal"], found["metrics"]) == (False, [])
    assert "layers.0.bias" in json.dumps(found["weights"])


def edit(path: Path, **values: Any) -> None:
    path.write_text(json.dumps({**read_json(path), **values}), encoding="utf-8")


def _edit_code(workspace: Workspace) -> None:
    workspace.write("my_project.py", MY_PROJECT + "\nMORE = 1\n")


def _record(key: str, **values: Any) -> Change:
    def change(workspace: Workspace) -> None:
        path = workspace.only_run / "manifest.json"
        edit(path, **{key: {**read_json(path)[key], **values}})

    return change


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (_edit_code, "my_project.py"),
        (_record("packages", torch="2.9.0"), "torch 2.9.0 -> "),
        (_record("hardware", cpu="an abacus"), "an abacus -> "),
    ],
    ids=["code", "package", "hardware"],
)
def test_what_is_not_as_recorded_is_listed_and_nothing_is_trained(
    change: Change, says: str, finished: Workspace
) -> None:
    change(finished)
    result = finished.run("reproduce", "latest")
    assert result.code == 2
    assert says in result.err
    assert "--anyway" in result.err
    assert not (finished.folder / "runs" / "small-reproduced").exists()


def test_changed_data_are_listed_with_exit_code_3(made_once: Once, workspace: Workspace) -> None:
    def train(other: Workspace) -> None:
        write_pictures(other.folder / "pictures", count=12)
        short = {
            **PICTURES["trainer"],
            "max_epochs": 1,
            "limit_train_batches": 1,
            "limit_val_batches": 1,
        }
        other.write("pictures.yaml", {**PICTURES, "trainer": short})
        other.run("fit", "-c", "pictures.yaml").ok()

    copy_of(made_once("few-pictures", train), workspace)
    pictures = workspace.folder / "pictures" / "reds"
    (pictures / "0.png").write_bytes((pictures / "2.png").read_bytes())
    result = workspace.run("reproduce", "latest")
    assert result.code == 3
    assert "reds/0.png" in result.err


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda workspace: edit(workspace.only_run / "manifest.json", seed=None), "seed"),
        (
            lambda workspace: edit(workspace.only_run / "summary.json", status="preempted"),
            "preempted",
        ),
        (lambda workspace: (workspace.only_run / "config.yaml").unlink(), r"config.yaml"),
    ],
    ids=["without a seed", "interrupted", "without its config"],
)
def test_a_run_that_cannot_be_repeated_is_refused(
    change: Change, says: str, finished: Workspace
) -> None:
    change(finished)
    result = finished.run("reproduce", "latest", "--anyway")
    assert result.code == 2
    assert says in result.err
