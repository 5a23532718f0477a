"""What CI systems show of a check and of a fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lightkit import runs
from lightkit.cli.pages import add_fit_page, check_cases, check_page
from lightkit.errors import ConfigError, ConfigErrors, DataError

ONE = "trainer.max_epochs: expected an integer\n  --> a.yaml:3"
TWO = ConfigErrors([ConfigError(ONE), ConfigError("model: missing")])
SUMMARY: dict[str, Any] = {
    "run": "flowers/7",
    "status": "done",
    "exit_code": 0,
    "error": None,
    "epochs": 3,
    "steps": 12,
    "durations": {"total": 75.4},
    "metrics": {
        "best": {"epoch": 1, "val/accuracy": 0.91},
        "last": {"epoch": 2, "val/accuracy": 0.5, "val/loss": None},
    },
    "best": {"monitor": "val/accuracy", "value": 0.91, "epoch": 1},
    "paths": {"best_checkpoint": "checkpoints/best.ckpt"},
}
PAGE = """\
### lightkit fit: flowers/7 done

|  |  |
| --- | --- |
| run | `{folder}` |
| checkpoint | `checkpoints/best.ckpt`: val/accuracy 0.91 in epoch 2 |
| epochs | 3 |
| steps | 12 |
| time | 75 s |

| metric | best epoch | last epoch |
| --- | --- | --- |
| val/accuracy | 0.91 | 0.5 |
| val/loss |  | None |

"""


def test_a_check_without_mistakes_is_one_case_that_passes() -> None:
    (case,) = check_cases(["a.yaml", "b.yaml"], None, 1.5)
    assert (case.name, case.seconds, case.failure) == ("a.yaml, b.yaml", 1.5, None)


def test_each_mistake_is_a_case_under_a_name_of_its_own() -> None:
    cases = check_cases(["a.yaml"], ConfigErrors([*TWO.problems, ConfigError("model: wrong")]), 3.0)
    assert [case.name for case in cases] == ["a.yaml: trainer.max_epochs", "a.yaml: model", "a.yaml: model (2)"]
    assert cases[0].failure == "trainer.max_epochs: expected an integer\n  --> a.yaml:3"
    assert [case.seconds for case in cases] == [1.0] * 3


def test_missing_data_is_a_case_too() -> None:
    (case,) = check_cases([], DataError("data.root: no such folder"), 1.0)
    assert (case.name, case.failure) == ("command line: data.root", "data.root: no such folder")


@pytest.mark.parametrize(
    ("error", "page"),
    [
        (None, "### lightkit check: a.yaml\n\nno mistakes found"),
        (
            TWO,
            f"### lightkit check: a.yaml\n\n2 mistakes\n\n```\n{ONE}\n```\n```\nmodel: missing\n```",
        ),
    ],
    ids=["none", "two"],
)
def test_the_page_of_a_check_has_every_mistake(error: ConfigError | None, page: str) -> None:
    assert check_page(["a.yaml"], error) == page


def test_the_page_of_a_fit_has_metrics_checkpoint_and_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "page.md"))
    run = runs.create(tmp_path, "flowers")
    add_fit_page(run)  # dropped for a mistake
    assert not (tmp_path / "page.md").exists()
    runs.write_json(run.summary_path, SUMMARY)
    add_fit_page(run)
    assert (tmp_path / "page.md").read_text() == PAGE.format(folder=run.folder)


def test_the_page_of_a_fit_that_failed_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "page.md"))
    run = runs.create(tmp_path, "flowers")
    runs.Summary("flowers/7", status="failed", exit_code=1, error="ValueError: a | b").write(run.summary_path)
    add_fit_page(run)
    page = (tmp_path / "page.md").read_text()
    assert page.startswith("### lightkit fit: flowers/7 failed (exit code 1)\n")
    assert "| error | ValueError: a \\| b |" in page
