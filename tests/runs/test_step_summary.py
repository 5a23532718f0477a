"""The page of a CI job."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from lightkit.runs.ci_report import add_step_summary, markdown_table


def test_each_summary_is_a_paragraph_of_its_own(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    for markdown in ("### one\n", "two"):
        add_step_summary(markdown, {"GITHUB_STEP_SUMMARY": str(page)})
    assert page.read_text() == "### one\n\ntwo\n\n"


@pytest.mark.parametrize("environ", [{}, {"GITHUB_STEP_SUMMARY": ""}], ids=["unset", "empty"])
def test_without_the_variable_nothing_is_written(
    tmp_path: Path, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    add_step_summary("text", environ)
    assert not list(tmp_path.iterdir())


def test_a_page_that_refuses_is_a_warning_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "lightkit"):
        add_step_summary("text", {"GITHUB_STEP_SUMMARY": str(tmp_path / "none" / "page.md")})
    assert "No such file or directory); the step has no summary" in caplog.text


def test_a_cell_cannot_end_its_table() -> None:
    table = markdown_table(["name", "value"], [["a|b\nc", 0.123456], ["<b>", 3]])
    assert table.splitlines() == ["| name | value |", "| --- | --- |", r"| a\|b c | 0.1235 |", "| &lt;b> | 3 |"]
