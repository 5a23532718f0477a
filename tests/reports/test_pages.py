"""The curves of a run: which metrics share a figure, and what each is called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lightkit.reports import figures
from lightkit.reports.pages import draw_metric_curves, write_run_report
from lightkit.runs.files import write_text
from tests.reports.examples import facts_of

FIRST = {
    "val/f1": 0.25,
    "val/loss": 1.5,
    "train/loss": 2.0,
    "val/accuracy": 0.5,
    "train/mae_step": 4.0,
}
LAST = {
    "val/f1": 0.5,
    "val/loss": 1.0,
    "train/loss": 1.25,
    "val/accuracy": 0.75,
    "train/mae_step": 3.0,
}


def test_shares_have_one_figure_and_the_loss_comes_first(tmp_path: Path) -> None:
    rows = [{"epoch": 0, "step": 4, "lr": 0.1, **FIRST}, {"epoch": 1, "step": 8, "lr": 0.1, **LAST}]
    drawn = draw_metric_curves(facts_of(tmp_path, rows=rows))
    assert [(each.name, each.caption, each.label) for each in drawn] == [
        ("curve-loss", "loss", "loss over 2 epochs; at the end: train/loss 1.25, val/loss 1"),
        (
            "curve-accuracy",
            "accuracy, f1",
            "accuracy, f1 over 2 epochs; at the end: val/accuracy 0.75, val/f1 0.5",
        ),
        (
            "curve-mae-step",
            "mae_step (the value of the last step of each epoch)",
            (
                "mae_step (the value of the last step of each epoch) over 2 epochs; at the end:"
                " train/mae_step 3"
            ),
        ),
    ]
    assert [
        [curve.key for curve in each.chart.curves] for each in drawn if each.chart is not None
    ] == [["train/loss", "val/loss"], ["val/accuracy", "val/f1"], ["train/mae_step"]]


def test_figures_of_like_names_have_names_of_their_own(tmp_path: Path) -> None:
    rows = [{"epoch": 0, "val/a b": 1.0, "val/a-b": 2.0, "val/%": 3.0, "test/": 4.0}]
    drawn = draw_metric_curves(facts_of(tmp_path, rows=rows))
    assert [each.name for each in drawn] == ["curve-a-b", "curve-a-b-1", "curve-2", "curve-test"]


def test_a_figure_marks_the_best_epoch_and_what_happened_to_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[dict[str, Any]] = []
    draw = figures.draw_curves

    def note(rows: Any, names: Any, **options: Any) -> Any:
        given.append(options)
        return draw(rows, names, **options)

    monkeypatch.setattr(figures, "draw_curves", note)
    rows = [
        {"epoch": 0, "val/loss": 200.0, "val/f1": 0.5},
        {"epoch": 1, "val/loss": 1.0, "val/f1": 0.5},
    ]
    events = [
        {"event": "nonfinite", "epoch": 1},
        {"event": "resume", "epoch": 1},
        {"event": "nonfinite", "epoch": 0},
        {"event": "resume", "epoch": 1},
        {"event": "resume"},
        {"event": "epoch", "epoch": 0},
    ]
    draw_metric_curves(facts_of(tmp_path, rows=rows, events=events, summary={"best": {"epoch": 1}}))
    marks = {"best_epoch": 1, "resumed_at": [1], "skipped_at": [0, 1]}
    assert given == [
        {**marks, "with_learning_rate": True, "has_log_axis": True},
        {**marks, "with_learning_rate": False, "has_log_axis": False},
    ]


def test_a_report_replaces_its_figures_as_a_whole(tmp_path: Path) -> None:
    """Whoever has a figure open goes on reading the old one."""
    run = facts_of(tmp_path).run
    write_text(run.metrics_path, "epoch,step,val/loss\n0,4,2.0\n1,8,1.0\n")
    write_run_report(run)
    path = run.folder / "figures" / "curve-loss.png"
    before = path.read_bytes()
    with path.open("rb") as file:
        with run.metrics_path.open("a", encoding="utf-8") as table:
            table.write("2,12,0.5\n")
        write_run_report(run)
        assert path.read_bytes() != before
        assert file.read() == before
    assert {each.name for each in path.parent.iterdir()} == {"curve-loss.png"}
