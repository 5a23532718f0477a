"""Exit codes 1, 2 and 3 and what is said with them; 0, 70, 75 and those of signals are held beside their causes."""

from __future__ import annotations

import re

import pytest

from tests.contract.workspace import Workspace, read_json


def test_a_defect_in_the_users_code_is_1_with_a_traceback_and_on_record(workspace: Workspace) -> None:
    result = workspace.run("fit", "-c", "small.yaml", "--model=my_project.FailsInStep", "--model.step=2")
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
def test_a_mistake_is_2_and_missing_data_is_3_without_a_traceback_or_a_run(
    words: list[str], code: int, says: str, workspace: Workspace
) -> None:
    result = workspace.run("fit", "-c", "small.yaml", *words)
    assert (result.code, result.out) == (code, "")
    assert re.search(says, result.err)
    assert "Traceback" not in result.err
    assert not workspace.runs
