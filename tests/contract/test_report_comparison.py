"""`comparison.html` and `card.md`: `lightkit report` of several runs, and next to a report."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from pyarrow import parquet

from tests.contract.conftest import copy_of
from tests.contract.test_report import HOSTILE, check_page, write_run
from tests.contract.workspace import Workspace


@pytest.fixture
def tested(tested_original: Path, workspace: Workspace) -> Workspace:
    """A workspace with a trained, tested classifier."""
    return copy_of(tested_original, workspace)


def change(path: Path, **values: object) -> None:
    path.write_text(
        json.dumps({**json.loads(path.read_text(encoding="utf-8")), **values}), encoding="utf-8"
    )


def compare(workspace: Workspace, *runs: Path) -> str:
    """Write the comparison of runs and return the page."""
    printed = workspace.run("report", *map(str, runs)).ok().out.strip()
    assert printed.splitlines()[0].endswith("comparison.html")
    return (runs[0] / "comparison.html").read_text(encoding="utf-8")


def always_right(run: Path, **about: str) -> None:
    """Replace the test predictions of a run by the labels.

    Also replace what the file says of itself by some values.
    """
    path = run / "test_predictions.parquet"
    table = parquet.read_table(path)
    at = table.column_names.index("predicted")
    said = {**json.loads(table.schema.metadata[b"lightkit"]), **about}
    right = table.set_column(at, "predicted", table["label"])
    parquet.write_table(right.replace_schema_metadata({b"lightkit": json.dumps(said)}), path)


def test_a_run_and_its_copy_have_no_difference_beyond_noise(tested: Workspace) -> None:
    (run,) = tested.runs
    again = shutil.copytree(run, run.with_name("20260101-030000-abcd"))
    text = check_page(compare(tested, run, again)).text
    assert "No difference beyond noise between A and B." in text
    printed = tested.run("report", str(run), str(again)).ok().out
    assert "No difference beyond noise between A and B." in printed
    assert f"A     {run.parent.name}/{run.name}\nB     {run.parent.name}/{again.name}\n" in printed
    assert "test/accuracy of B against A: equal (0 to 0)." in printed
    assert "McNemar's exact test" in text
    assert "95 % interval" in text
    assert "The data differs" not in text
    assert "A and B disagree" not in text
    for part in ("Config", "Code", "Versions"):
        assert f"{part}: what differs" not in text


def test_a_comparison_shows_what_differs_and_which_is_better(workspace: Workspace) -> None:
    first = write_run(workspace, class_names=("cat", "dog"), name="first", thumbnail_side=80)
    second = write_run(workspace, class_names=("cat", "dog"), name="second")
    always_right(second, fingerprint="f2")
    manifest = json.loads((second / "manifest.json").read_text(encoding="utf-8"))
    change(
        second / "manifest.json",
        git={"commit": "c0ffee", "dirty": False},
        data={**manifest["data"], "fingerprint": "f2"},
    )
    page = compare(workspace, first, second)
    text = check_page(page).text
    assert "B is better than A." in text
    assert "The data differs." in text
    assert "c0ffee" in text
    assert "git.dirty" in text
    assert "A and B disagree" in text
    assert "data:image/jpeg;base64," in page
    assert len(page.encode()) <= 3_000_000


def test_hostile_texts_stay_texts_in_a_comparison(workspace: Workspace) -> None:
    names = (HOSTILE, "</svg></style><img src=x onerror=alert(1)>")
    runs = [write_run(workspace, class_names=names, name=name) for name in ("first", "second")]
    always_right(runs[1])
    change(runs[1] / "manifest.json", git={"commit": f"2{HOSTILE}", "dirty": True})
    page = compare(workspace, *runs)
    tags = check_page(page)
    plain = check_page(
        compare(workspace, *(write_run(workspace, name=name) for name in ("third", "fourth")))
    )
    scripts = [[name for name, _ in each.tags].count("script") for each in (tags, plain)]
    assert scripts[0] == scripts[1]
    assert "img" not in [name for name, _ in tags.tags]
    assert HOSTILE in tags.text
    assert "hunter2" not in page


def test_a_comparison_of_many_long_runs_is_a_small_page(workspace: Workspace) -> None:
    names = tuple(f"a class with quite a long name, {index}" for index in range(1000))
    runs = [
        write_run(
            workspace, num_epochs=500, class_names=names, num_samples=2000, name=f"job{index}"
        )
        for index in range(6)
    ]
    page = compare(workspace, *runs)
    check_page(page)
    assert len(page.encode()) <= 500_000


def test_a_run_that_was_killed_can_be_compared(workspace: Workspace) -> None:
    runs = [write_run(workspace, name=name) for name in ("first", "second")]
    for name in ("config.yaml", "manifest.json", "summary.json"):
        (runs[1] / name).unlink()
    text = check_page(compare(workspace, *runs)).text
    assert "killed" in text
    assert "No test of the difference" in text


def test_a_run_is_not_compared_with_itself(workspace: Workspace) -> None:
    run = write_run(workspace)
    result = workspace.run("report", str(run), str(run))
    assert result.code == 2
    assert "different runs" in result.err


def test_a_report_comes_with_a_model_card(workspace: Workspace) -> None:
    run = write_run(workspace, class_names=("cat", "dog"))
    workspace.run("report", str(run)).ok()
    card = (run / "card.md").read_text(encoding="utf-8")
    assert card.startswith("---\nlibrary_name: lightkit\n")
    assert "pipeline_tag: image-classification" in card
    assert "| test/accuracy |" in card
    assert "hunter2" not in card
    assert "<script>" not in card.split("---\n", 2)[2]
