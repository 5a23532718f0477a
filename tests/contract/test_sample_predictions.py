"""What `lightkit test` and `fit` leave and print of each sample and class."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyarrow import parquet

from tests.contract.conftest import copy_of
from tests.contract.workspace import Workspace


def test_a_test_prints_each_class_and_the_confusion_matrix(tested_original: Path) -> None:
    lines = (tested_original / "test.out").read_text(encoding="utf-8").splitlines()
    head = lines.index(
        next(
            line
            for line in lines
            if line.split() == ["class", "precision", "recall", "f1", "samples"]
        )
    )
    assert [line.split()[0] for line in lines[head + 1 : head + 3]] == ["blues", "reds"]
    matrix = [line.split() for line in lines[head + 3 :]]
    assert matrix[1] == ["label", "0", "1"]
    assert [row[:2] for row in matrix[2:4]] == [["0", "blues"], ["1", "reds"]]
    samples = [int(line.split()[-1]) for line in lines[head + 1 : head + 3]]
    assert [sum(map(int, row[2:])) for row in matrix[2:4]] == samples


def test_of_a_test_quiet_prints_nothing_and_json_prints_events_alone(
    tested_original: Path, workspace: Workspace
) -> None:
    copy_of(tested_original, workspace)
    assert workspace.run("test", "--run", "latest", "--quiet").ok().out == ""
    printed = workspace.run("test", "--run", "latest", "--output=json").ok().out
    assert all("event" in json.loads(line) for line in printed.splitlines())


@pytest.mark.parametrize("split", ["test", "validation"])
def test_the_prediction_for_each_sample_is_in_the_run_folder(
    split: str, tested_original: Path
) -> None:
    (run,) = (
        each for each in (tested_original / "runs" / "pictures").iterdir() if not each.is_symlink()
    )
    table = parquet.read_table(run / f"{split}_predictions.parquet")
    columns = ["index", "path", "label", "predicted", "probability", "label_probability"]
    assert table.column_names == [*columns, "probability_blues", "probability_reds"]
    assert table["index"].to_pylist() == list(range(len(table)))
    assert [Path(path).parent.name for path in table["path"].to_pylist()] == table[
        "label"
    ].to_pylist()
    about = json.loads(table.schema.metadata[b"lightkit"])
    manifest, summary = (
        json.loads((run / name).read_text()) for name in ("manifest.json", "summary.json")
    )
    assert (about["schema"], about["class_names"], about["epoch"]) == (
        1,
        ["blues", "reds"],
        summary["best"]["epoch"],
    )
    assert about["fingerprint"] == manifest["data"]["fingerprint"]
    assert (run / "checkpoints" / "best.ckpt.sha256").read_text().split()[0] == about["sha256"]
    right = sum(map(str.__eq__, table["label"].to_pylist(), table["predicted"].to_pylist()))
    metrics = summary["stages"]["test"] if split == "test" else summary["metrics"]["best"]
    assert right / len(table) == pytest.approx(
        metrics["test/accuracy" if split == "test" else "val/accuracy"]
    )
    assert len(table) == manifest["data"]["counts"]["test" if split == "test" else "val"]
    assert sorted((run / "thumbnails").glob(f"{split}-*.jpg"))


def test_a_model_whose_steps_return_nothing_is_tested_as_before(finished: Workspace) -> None:
    result = finished.run("test", "--run", "latest").ok()
    assert "test/loss" in result.out
    assert "precision" not in result.out
    assert not list(finished.only_run.glob("*.parquet"))
