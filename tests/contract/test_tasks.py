"""Each task through the same interface.

Trained, killed and resumed, on two ranks, exported, judged and reported.
"""

from __future__ import annotations

import csv
import json
import shutil
import signal
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from pyarrow import parquet
from sklearn import metrics as sk  # type: ignore[import-untyped]

from tests.contract.conftest import Once, copy_of
from tests.contract.examples import MY_PROJECT
from tests.contract.fault_examples import callback
from tests.contract.rank_jobs import run_joined
from tests.contract.workspace import Workspace, assert_same_training, read_json

LABELS = ("blue", "red")
SPLITS = ("train",) * 22 + ("val",) * 9 + ("test",) * 9


def write_drawn(workspace: Workspace) -> None:
    """Draw pictures of red and blue spots, their masks, and two tables.

    Of one label each, and of several labels.
    """
    random = np.random.default_rng(4)
    rows: list[tuple[str, str, str, str]] = []
    for at, split in enumerate(SPLITS):
        has = [bool(random.integers(2)) for _ in LABELS]
        pixels = random.integers(0, 120, (24, 24, 3), dtype=np.uint8)
        pixels[2:10, 2:22, 2] += 100 * np.uint8(has[0])
        pixels[14:22, 2:22, 0] += 100 * np.uint8(has[1])
        path = workspace.folder / "drawn" / f"{at}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(pixels).save(path)
        several = "|".join(name for name, is_there in zip(LABELS, has, strict=True) if is_there)
        rows.append((f"drawn/{at}.png", LABELS[has[1]], several, split))
        for folder in (workspace.folder / "masked" / split / name for name in ("images", "masks")):
            folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(workspace.folder / "masked" / split / "images" / f"{at}.png")
        mask = np.zeros((24, 24), np.uint8)
        mask[2:10, 2:22] = has[0]
        mask[14:22, 2:22] = 2 * np.uint8(has[1])
        mask[0] = 255
        Image.fromarray(mask).save(workspace.folder / "masked" / split / "masks" / f"{at}.png")
    with (workspace.folder / "drawn.csv").open("w", newline="", encoding="utf-8-sig") as file:
        csv.writer(file).writerows([("path", "label", "several", "split"), *rows])


def write_rows(workspace: Workspace) -> None:
    """Write a table of a number, a category and a date, with missing cells."""
    random = np.random.default_rng(5)
    with (workspace.folder / "rows.csv").open("w", newline="", encoding="utf-8-sig") as file:
        writer = csv.writer(file)
        writer.writerow(("size", "colour", "day", "kind", "price", "split"))
        for at, split in enumerate(SPLITS):
            size = random.normal()
            colour = str(random.choice(("red", "blue", "")))
            kind = "large" if size + (colour == "red") > 0.3 else "small"
            price = 100 + 20 * size + 10 * (colour == "red")
            cell = "" if at % 7 == 3 else f"{size:.3f}"
            writer.writerow(
                (cell, colour, f"2026-01-{at % 28 + 1:02d}", kind, f"{price:.2f}", split)
            )


def row_job(data: dict[str, Any], **model: Any) -> dict[str, Any]:
    sizes = {"hidden": 8, "members": 3, "embedding_width": 4, "num_bins": 4}
    return {
        "model": {"class_path": "TabularModel", "init_args": {**sizes, **model}},
        "data": {
            "class_path": "TableData",
            "init_args": {"path": "rows.csv", "batch_size": 4, **data},
        },
    }


def write_texts(workspace: Workspace) -> None:
    """Write a table of texts of two classes, with some words of both, and one of new texts."""
    random = np.random.default_rng(5)
    words = {"red": ["rose", "ruby", "blood"], "blue": ["sea", "sky", "jeans"]}
    rows = []
    for at, split in enumerate(SPLITS):
        label = LABELS[int(random.integers(2))]
        text = " ".join(
            [*random.choice(["a", "the", "of"], at % 5), *random.choice(words[label], 2), f"no{at}"]
        )
        rows.append((text, label, split))
    with (workspace.folder / "texts.csv").open("w", newline="", encoding="utf-8-sig") as file:
        csv.writer(file).writerows([("text", "label", "split"), *rows])
    new = [{"text": 'sky, "blue"\nand sea'}, {"text": ""}, {"text": "ruby " * 50}, {"text": None}]
    lines = [json.dumps(each) + "\n" for each in new]
    (workspace.folder / "new.jsonl").write_text("".join(lines), encoding="utf-8")


def image_job(model: dict[str, Any], data: dict[str, Any]) -> dict[str, Any]:
    return {
        "model": {"class_path": "ImageClassifier", "init_args": {"learning_rate": 0.005, **model}},
        "data": {
            "class_path": "ImageTable",
            "init_args": {
                "path": "drawn.csv",
                "image_size": 24,
                "batch_size": 4,
                "num_workers": 0,
                **data,
            },
        },
    }


def score_classes(columns: dict[str, Any]) -> float:
    names = [name.partition("_")[2] for name in columns if name.startswith("probability_")]
    of_classes = np.array([columns[f"probability_{name}"] for name in names])
    assert of_classes.sum(axis=0) == pytest.approx(1, abs=1e-5)
    assert [names[at] for at in of_classes.argmax(axis=0)] == columns["predicted"]
    return float(sk.accuracy_score(columns["label"], columns["predicted"]))


def score_labels(columns: dict[str, Any]) -> float:
    each = [
        sk.average_precision_score(
            [name in row for row in columns["labels"]], columns[f"probability_{name}"]
        )
        for name in LABELS
    ]
    return float(np.mean(each))


def score_masks(columns: dict[str, Any]) -> float:
    each = []
    for name in ("none", *LABELS):
        target, predicted, right = (
            sum(columns[f"{kind}_{name}"]) for kind in ("target", "predicted", "right")
        )
        each.append(right / (target + predicted - right))
    return float(np.mean(each))


def score_values(columns: dict[str, Any]) -> float:
    return float(sk.mean_absolute_error(columns["target"], columns["prediction"]))


@dataclass(frozen=True)
class Case:
    """A task in the table.

    Args:
        job: Its model and data.
        metric: The metric that it is judged by.
        bound: Rule of a gate that its short training passes.
        score: Computes that metric from the columns of the recorded predictions.
        parts: Parts of its report.
        words: What `predict` predicts, with options; empty where it takes no words.
    """

    job: dict[str, Any]
    metric: str
    bound: str
    score: Callable[[dict[str, Any]], float]
    parts: tuple[str, ...]
    words: tuple[str, ...] = ("drawn/0.png",)


CASES = {
    "classes": Case(
        image_job({"class_weight": "auto"}, {"mixup": 0.2, "cutmix": 1.0}),
        "accuracy",
        "min=0.1",
        score_classes,
        ("Confusion matrix", "Calibration"),
    ),
    "labels": Case(
        image_job(
            {"multilabel": True, "pos_weight": "auto"}, {"label": "several", "separator": "|"}
        ),
        "map",
        "min=0.1",
        score_labels,
        ("Classes", "Calibration", "average precision"),
    ),
    "masks": Case(
        {
            "model": {"class_path": "Segmenter", "init_args": {"learning_rate": 0.02, "width": 4}},
            "data": {
                "class_path": "MaskFolder",
                "init_args": {
                    "root": "masked",
                    "classes": ["none", *LABELS],
                    "rotate": 10,
                    "image_size": 24,
                    "batch_size": 4,
                    "num_workers": 0,
                },
            },
        },
        "iou",
        "min=0.05",
        score_masks,
        ("Classes", "IoU", "Left the mask, right the prediction"),
    ),
    "values": Case(
        {
            "model": {"class_path": "Regressor", "init_args": {"hidden": 4}},
            "data": {
                "class_path": "Temperatures",
                "init_args": {"num_samples": 44, "batch_size": 4},
            },
        },
        "mae",
        "max=500",
        score_values,
        ("Predictions",),
        words=(),
    ),
    "rows": Case(
        row_job({"target": "kind", "ignore": ["price"]}, class_weight="auto"),
        "accuracy",
        "min=0.1",
        score_classes,
        ("Confusion matrix", "Calibration", "Importance of the columns"),
        words=("rows.csv",),
    ),
    "row values": Case(
        row_job({"target": "price", "ignore": ["kind"]}, network="resnet"),
        "mae",
        "max=500",
        score_values,
        ("Predictions", "Importance of the columns"),
        words=("rows.csv",),
    ),
    "texts": Case(
        {
            "model": {
                "class_path": "TextClassifier",
                "init_args": {"buckets": 4096, "class_weight": "auto"},
            },
            "data": {
                "class_path": "TextData",
                "init_args": {"path": "texts.csv", "batch_size": 4, "num_workers": 0},
            },
        },
        "accuracy",
        "min=0.1",
        score_classes,
        ("Confusion matrix", "Calibration"),
        words=("new.jsonl",),
    ),
}
"""The tasks; a new one is one entry."""


def config_of(case: Case) -> dict[str, Any]:
    return {
        "seed_everything": 7,
        **case.job,
        "callbacks": {"checkpoint": {"init_args": {"save_last_every_n_steps": 2}}, "ema": {}},
        "accelerator": "cpu",
        "trainer": {"max_epochs": 2, "log_every_n_steps": 1, "logger": False},
        "run": {"report": False},
    }


@pytest.fixture(scope="module", params=CASES)
def task(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def trained(task: str, made_once: Once) -> Path:
    """A workspace with a fit of the task, tested and exported."""

    def train(workspace: Workspace) -> None:
        write_drawn(workspace)
        write_rows(workspace)
        write_texts(workspace)
        workspace.write("my_project.py", MY_PROJECT)
        workspace.write("job.yaml", config_of(CASES[task]))
        workspace.run("fit", "-c", "job.yaml").ok()
        workspace.run("test", "--run", "latest").ok()
        workspace.run("export", "--run", "latest", "--format", "onnx").ok()

    return made_once(f"task-{task.replace(' ', '-')}", train)


def test_the_metric_of_each_task_is_that_of_the_recorded_predictions(
    task: str, trained: Path
) -> None:
    run = next(trained.glob("runs/job/2*"))
    case = CASES[task]
    summary = read_json(run / "summary.json")
    columns = parquet.read_table(run / "test_predictions.parquet").to_pydict()
    assert case.score(columns) == pytest.approx(
        summary["stages"]["test"][f"test/{case.metric}"], rel=1e-4
    )
    export = read_json(run / "export" / "export.json")["artefacts"]["model.onnx"]
    assert all(each["outside"] == 0 for each in export["parity"].values())


@pytest.mark.parametrize("task", ["rows", "row values", "texts"], indirect=True, scope="module")
def test_each_logged_metric_of_rows_and_texts_is_that_of_the_recorded_predictions(
    task: str, trained: Path
) -> None:
    run = next(trained.glob("runs/job/2*"))
    columns = parquet.read_table(run / "test_predictions.parquet").to_pydict()
    if task == "row values":
        with (trained / "rows.csv").open(newline="", encoding="utf-8-sig") as file:
            prices = {
                split: [float(row["price"]) for row in rows]
                for split, rows in group_by_split(file).items()
            }
        assert columns["target"] == pytest.approx(prices["test"], rel=1e-6)
        error = sk.mean_squared_error(columns["target"], columns["prediction"])
        expected = {
            "mae": sk.mean_absolute_error(columns["target"], columns["prediction"]),
            "mse": error,
            "loss": error / np.var(prices["train"]),
        }
    else:
        label, predicted = columns["label"], columns["predicted"]
        names = [
            name.removeprefix("probability_") for name in columns if name.startswith("probability_")
        ]
        probability = np.array([columns[f"probability_{name}"] for name in names]).T
        probability = probability / probability.sum(axis=1, keepdims=True)  # of float32
        options = {"average": "macro", "labels": sorted({*label, *predicted}), "zero_division": 0}
        expected = {
            "accuracy": sk.accuracy_score(label, predicted),
            "f1": sk.f1_score(label, predicted, **options),
            "precision": sk.precision_score(label, predicted, **options),
            "recall": sk.recall_score(label, predicted, **options),
            "loss": sk.log_loss(
                [names.index(each) for each in label], probability, labels=range(len(names))
            ),
        }
    logged = read_json(run / "summary.json")["stages"]["test"]
    assert {name: logged[f"test/{name}"] for name in expected} == pytest.approx(expected, rel=1e-4)
    if task != "texts":
        importance = read_json(run / "importance.json")
        assert importance["value"] == pytest.approx(expected[importance["metric"]], rel=1e-5)
        assert importance["num_rows"] == SPLITS.count("test")


@pytest.mark.parametrize("precision", ["64-true", "bf16-true"])
def test_the_importance_of_columns_is_of_the_precision_of_the_test(
    precision: str, workspace: Workspace
) -> None:
    lines = [f"{number % 7},{number % 5},{'ab'[number % 7 > 3]}" for number in range(140)]
    workspace.write("table.csv", "\n".join(["x,y,label", *lines, ""]))
    config = {
        "extends": "lightkit:tabular",
        "data": {"init_args": {"path": "table.csv", "target": "label"}},
        "trainer": {"max_epochs": 2, "accelerator": "cpu", "precision": precision},
        "run": {"name": "job", "report": False},
    }
    workspace.write("job.yaml", config)
    workspace.run("fit", "-c", "job.yaml").ok()
    workspace.run("test", "--run", "latest").ok()
    run = workspace.only_run
    tested = read_json(run / "summary.json")["stages"]["test"]["test/accuracy"]
    assert read_json(run / "importance.json")["value"] == pytest.approx(tested)


def fit_small_table(workspace: Workspace, target: str) -> None:
    """Train a small model of a table with the columns x, y, label, price and split."""
    lines = [
        f"{number % 7},{number % 5},{'ab'[number % 7 > 3]},{number * 1.37},"
        f"{('train', 'train', 'val', 'test')[number % 4]}"
        for number in range(160)
    ]
    workspace.write("table.csv", "\n".join(["x,y,label,price,split", *lines, ""]))
    data = {"path": "table.csv", "target": target, "split": "split"}
    config = {
        "extends": "lightkit:tabular",
        "model": {"init_args": {"network": "mlp", "hidden": 16}},
        "data": {"init_args": {**data, "columns": ["x", "y"]}},
        "trainer": {"max_epochs": 2, "accelerator": "cpu"},
        "run": {"name": "job", "report": False},
    }
    workspace.write("job.yaml", config)
    workspace.run("fit", "-c", "job.yaml").ok()


def test_predictions_in_bf16_have_the_probabilities_of_the_test(workspace: Workspace) -> None:
    fit_small_table(workspace, "label")
    precision = "--trainer.precision=bf16-mixed"
    workspace.run("test", "--run", "latest", precision).ok()
    words = ("table.csv", "--output", "predicted.csv")
    workspace.run("predict", "--run", "latest", precision, *words).ok()
    with (workspace.folder / "predicted.csv").open(encoding="utf-8", newline="") as file:
        predicted = list(csv.DictReader(file))[3::4]  # the rows of the test split
    tested = parquet.read_table(workspace.only_run / "test_predictions.parquet").to_pylist()
    assert [row["label"] for row in predicted] == [row["predicted"] for row in tested]
    # in bf16 they would be 0.4 % off
    assert [float(row["probability"]) for row in predicted] == pytest.approx(
        [row["probability"] for row in tested], rel=1e-5
    )


def test_predicted_values_that_the_precision_rounds_are_refused(workspace: Workspace) -> None:
    fit_small_table(workspace, "price")
    words = ("predict", "--run", "latest", "table.csv", "--output", "predicted.csv")
    refused = workspace.run(*words, "--trainer.precision=bf16-true")
    assert refused.code == 2
    assert "trainer.precision: bf16-true rounds the values" in refused.err
    workspace.run(*words, "--trainer.precision=bf16-mixed").ok()


def group_by_split(file: Iterable[str]) -> dict[str, list[dict[str, str]]]:
    """Read the rows of a table by their splits."""
    found: dict[str, list[dict[str, str]]] = {}
    for row in csv.DictReader(file):
        found.setdefault(row["split"], []).append(row)
    return found


def test_each_task_is_judged_predicted_and_reported(
    task: str, trained: Path, workspace: Workspace
) -> None:
    workspace = copy_of(trained, workspace)
    case = CASES[task]
    metric = f"test/{case.metric}"
    words = (f"--gate.metric={metric}", f"--gate.{case.bound}", "--gate.baseline=null")
    workspace.run("gate", "--run", "latest", *words).ok()
    decision = read_json(workspace.only_run / "gate.json")
    assert decision["passed"]
    assert decision["intervals"]["challenger"] is not None
    if task == "labels":
        sliced = (*words, "--gate.slices={red: 0.99999, blue: 0.0}")
        judged = workspace.run("gate", "--run", "latest", *sliced)
        assert judged.code in (0, 4), judged.err
        columns = parquet.read_table(workspace.only_run / "test_predictions.parquet").to_pydict()
        red = sk.average_precision_score(
            ["red" in row for row in columns["labels"]], columns["probability_red"]
        )
        slices = read_json(workspace.only_run / "gate.json")["slices"]
        assert slices["red"]["challenger"] == pytest.approx(red, rel=1e-4)
        assert slices["red"]["num_samples"] == sum("red" in row for row in columns["labels"])
        assert (
            slices["red"]["interval"][0]
            <= slices["red"]["challenger"]
            <= slices["red"]["interval"][1]
        )
    if task == "masks":
        check_slices_of_masks(workspace)
    workspace.run("report", "latest").ok()
    page = (workspace.only_run / "report.html").read_text(encoding="utf-8")
    for part in case.parts:
        assert part in page
    assert metric in page
    if not case.words:
        return
    workspace.run("predict", "--run", "latest", *case.words, "--output", "run.jsonl").ok()
    file = next(workspace.only_run.glob("export/*.onnx"))
    workspace.run("predict", "--model", str(file), *case.words, "--output", "file.jsonl").ok()
    ones, others = (
        (workspace.folder / name).read_text().splitlines() for name in ("run.jsonl", "file.jsonl")
    )
    assert len(ones) == len(others)
    for first, second in zip(map(json.loads, ones), map(json.loads, others), strict=True):
        assert first.keys() == second.keys()
        if task == "masks":
            masks = [
                np.asarray(Image.open(workspace.folder / each.pop("mask")))
                for each in (first, second)
            ]
            assert (masks[0] == masks[1]).mean() > 0.99
        for name, value in second.items():
            assert first[name] == (
                pytest.approx(value, rel=1e-4) if isinstance(value, float) else value
            ), name
    one, other = json.loads(ones[0]), json.loads(others[0])
    if task == "labels":
        assert list(one) == ["path", "labels", "probability_blue", "probability_red", "error"]
        assert one["labels"] == other["labels"]
    if task == "masks":
        check_masks(workspace, one, other)


def check_slices_of_masks(workspace: Workspace) -> None:
    """Check the IoU of a class in a gate, beside a baseline, and metrics that no class has."""
    asked = (
        "--gate.metric=test/iou",
        "--gate.slices={red: 0.0, blue: 0.99999}",
        "--gate.baseline=latest",
    )
    judged = workspace.run("gate", "--run", "latest", *asked)
    assert judged.code == 4, judged.err
    decision = read_json(workspace.only_run / "gate.json")
    columns = parquet.read_table(workspace.only_run / "test_predictions.parquet").to_pydict()
    for name in ("red", "blue"):
        target, predicted, right = (
            sum(columns[f"{kind}_{name}"]) for kind in ("target", "predicted", "right")
        )
        found = decision["slices"][name]
        assert found["challenger"] == pytest.approx(right / (target + predicted - right), rel=1e-6)
        assert found["baseline"] == found["challenger"]
        assert found["num_samples"] == sum(pixels > 0 for pixels in columns[f"target_{name}"])
        assert found["interval"][0] <= found["challenger"] <= found["interval"][1]
    assert [each["passed"] for each in decision["checks"] if " of " in each["name"]] == [
        True,
        False,
    ]
    assert {each["kind"] for each in decision["samples"]} == {"wrong"}

    no_metric = (
        "--gate.metric=test/pixel_accuracy",
        "--gate.slices={red: 0.5, grey: 0.5}",
        "--gate.baseline=null",
    )
    refused = workspace.run(
        "gate", "--run", "latest", *no_metric[:1], "--gate.slices={red: 0.5}", no_metric[2]
    )
    says = (
        "gate.slices: test/pixel_accuracy is of samples with all their pixels, and says nothing of"
        " one class. Judge"
    )
    assert refused.code == 2
    assert f"{says} classes by --gate.metric=test/iou" in refused.err
    checked = workspace.run("check", "-c", "job.yaml", "--deep", *no_metric)
    assert checked.code == 2
    assert says in checked.err + checked.out
    assert "gate.slices.grey: there is no such class" in checked.err + checked.out


def check_masks(workspace: Workspace, one: dict[str, Any], other: dict[str, Any]) -> None:
    """Check the masks of a run, of its exported file, with the preprocessing, and of a split."""
    assert list(one) == ["path", "mask", "share_none", "share_blue", "share_red", "error"]
    masks = []
    for row, folder in ((one, "run_masks"), (other, "file_masks")):
        assert row["mask"] == f"{folder}/0.png"
        with Image.open(workspace.folder / row["mask"]) as image:
            assert (image.mode, image.size) == ("P", (24, 24))
            masks.append(np.asarray(image))
        assert (masks[-1] == 1).mean() == pytest.approx(row["share_blue"], abs=1e-6)
    assert (masks[0] == masks[1]).mean() > 0.999
    words = ("--format", "onnx", "--with-preprocessing", "--output", "whole")
    workspace.run("export", "--run", "latest", *words).ok()
    record = read_json(workspace.folder / "whole" / "export.json")["artefacts"]["model.onnx"]
    assert (record["inputs"][0]["shape"], record["inputs"][0]["dtype"]) == (
        [None, None, None, 3],
        "uint8",
    )
    assert (record["outputs"][0]["shape"], record["outputs"][0]["dtype"]) == (
        [None, 24, 24],
        "uint8",
    )
    assert all(each["outside"] == 0 for each in record["parity"].values())
    assert record["metrics"]["scored"]
    images = ("drawn/0.png", "drawn/1.png", "--output", "whole.csv", "--contact-sheet", "page.html")
    workspace.run("predict", "--model", "whole/model.onnx", *images).ok()
    with Image.open(workspace.folder / "whole_masks" / "0.png") as image:
        assert (np.asarray(image) == masks[0]).mean() > 0.999
    page = (workspace.folder / "page.html").read_text(encoding="utf-8")
    assert page.count("data:image/jpeg;base64,") == 2
    assert "blue" in page
    workspace.run("predict", "--run", "latest").ok()
    with (workspace.only_run / "predictions.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == SPLITS.count("test")
    for row in rows:
        with Image.open(workspace.only_run / row["mask"]) as image:
            assert image.size == (24, 24)


def test_each_task_that_is_killed_goes_on_to_the_same_training(
    task: str, trained: Path, workspace: Workspace
) -> None:
    workspace = copy_of(trained, workspace)
    undisturbed = workspace.only_run.rename(workspace.folder / "undisturbed")
    shutil.rmtree(workspace.folder / "runs")
    kill = callback(
        "my_project.SendSignal", hook="on_train_batch_start", step=3, signum=int(signal.SIGKILL)
    )
    workspace.write("kill.yaml", {**kill, "run": {"name": "job"}})
    words = ("fit", "-c", "job.yaml", "-c", "kill.yaml")
    assert workspace.run(*words).code == -signal.SIGKILL
    workspace.run(*words).ok()
    assert_same_training(workspace.only_run, undisturbed)


@pytest.mark.slow
def test_two_ranks_score_each_task_as_one_process_does(
    task: str, trained: Path, workspace: Workspace
) -> None:
    workspace = copy_of(trained, workspace)
    alone = read_json(workspace.only_run / "summary.json")["stages"]["test"]
    before = parquet.read_table(workspace.only_run / "test_predictions.parquet").to_pydict()
    run_joined(
        workspace, "test", "--run", "latest", "accelerator={num_processes: 2, strategy: ddp}"
    )
    together = read_json(workspace.only_run / "summary.json")["stages"]["test"]
    assert together.keys() == alone.keys()
    for name, value in together.items():
        assert value == pytest.approx(alone[name], rel=1e-5), name
    columns = parquet.read_table(workspace.only_run / "test_predictions.parquet").to_pydict()
    assert columns.keys() == before.keys()
    for name, cells in columns.items():
        is_number = isinstance(cells[0], float)
        assert cells == (
            pytest.approx(before[name], rel=1e-4, abs=1e-6) if is_number else before[name]
        ), name
