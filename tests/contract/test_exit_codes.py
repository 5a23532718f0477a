"""Exit codes 1, 2 and 3 and what is said with them.

0, 70, 75 and those of signals are held beside their causes.
"""

from __future__ import annotations

import re

import pytest

from tests.contract.fault_examples import MY_FAULTS, callback
from tests.contract.workspace import Workspace, read_json


def test_a_defect_in_the_users_code_is_1_with_a_traceback_and_on_record(
    workspace: Workspace,
) -> None:
    result = workspace.run(
        "fit", "-c", "small.yaml", "--model=my_project.FailsInStep", "--model.step=2"
    )
    assert result.code == 1
    assert "Traceback" in result.err
    assert re.search(r"my_project\.py.*ValueError: batches are out of stock", result.err, re.DOTALL)
    summary = read_json(workspace.only_run / "summary.json")
    assert (summary["status"], summary["exit_code"]) == ("failed", 1)
    assert summary["error"] == "ValueError: batches are out of stock"


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--trainer.max_epochs=ten"], 2, r"error: trainer\.max_epochs: .*ten"),
        (["--no-such-option"], 2, r"error: .*no-such-option"),
        (["--data=ImageFolder", "--data.root=nowhere"], 3, r"error: .*nowhere"),
    ],
    ids=["config", "command_line", "data"],
)
def test_an_error_is_2_and_missing_data_is_3_without_a_traceback_or_a_run(
    words: list[str], code: int, says: str, workspace: Workspace
) -> None:
    result = workspace.run("fit", "-c", "small.yaml", *words)
    assert (result.code, result.out) == (code, "")
    assert re.search(says, result.err)
    assert "Traceback" not in result.err
    assert not workspace.runs


def test_missing_weights_are_3_before_anything_is_built(workspace: Workspace) -> None:
    """Also where an argument of the data module, built before the weights are read, is wrong."""
    workspace.write(
        "mine.py",
        "from lightkit.data import DrawnFlowers\n\nclass Data(DrawnFlowers):\n"
        "    def __init__(self):\n        raise ValueError('built')\n",
    )
    result = workspace.run(
        "fit", "--model=ImageClassifier", "--model.weights=nope.pth", "--data=mine.Data"
    )
    assert result.code == 3
    assert re.search(r"error: model\.init_args\.weights: there is no file nope\.pth", result.err), (
        result.err
    )
    assert "Traceback" not in result.err


def test_an_error_in_the_users_code_shows_its_frames_where_it_was_and_how_to_resume(
    workspace: Workspace,
) -> None:
    words = ("fit", "-c", "small.yaml", "--model=my_project.FailsInStep", "--model.step=8")
    result = workspace.run(*words)
    assert result.code == 1
    frames = re.findall(r'File "(.*)", line \d+, in (\w+)', result.err)
    assert frames == [(str(workspace.folder / "my_project.py"), "training_step")]
    assert "This was in epoch 1, step 8." in result.err
    last = workspace.only_run / "checkpoints" / "last.ckpt"
    assert re.search(
        rf"The same command resumes from \S*{re.escape(str(last.relative_to(workspace.folder)))}\.",
        result.err,
    )
    assert len(result.err.splitlines()) < 15
    full = workspace.run(*words, "--traceback", "--run.resume=never")
    assert "pytorch_lightning" in full.err
    assert "This was in epoch 1, step 8." in full.err


def test_a_run_folder_that_is_deleted_while_training_is_one_line(workspace: Workspace) -> None:
    workspace.write("my_faults.py", MY_FAULTS)
    workspace.write("fault.yaml", callback("my_faults.DeleteRun"))
    result = workspace.run("fit", "-c", "small.yaml", "-c", "fault.yaml", "--run.name=small")
    assert result.code == 1
    assert len(result.err.splitlines()) == 1, result.err
    assert "was deleted while it was trained" in result.err
    assert list(workspace.folder.glob("runs/small/2*/*")) == []
