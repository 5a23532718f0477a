"""What a retrain tells at its end to type next."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightkit import runs
from lightkit.cli.retrain_report import report
from lightkit.runs.pipeline import Pipeline


@pytest.mark.parametrize(
    ("root", "expected"),
    [("runs", "next  lightkit history job"), ("other runs", "next  lightkit history job --root 'other runs'")],
    ids=["where it looks by itself", "elsewhere"],
)
def test_the_history_is_looked_for_where_the_runs_are(
    root: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    pipeline = Pipeline("digest", runs.create(Path(root), "job"))
    pipeline.finish("promoted")
    report(pipeline, "plain", code=0, junit=None)
    assert capsys.readouterr().out.splitlines()[-1] == expected
