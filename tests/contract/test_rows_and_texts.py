"""Tables of rows and of texts from a retrain to MLflow.

Registered, promoted, served, and loaded from raw rows.
"""

from __future__ import annotations

import csv
import json
import re
import shutil
import signal
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import requests
from pyarrow import parquet
from sklearn import metrics as sk  # type: ignore[import-untyped]

from tests.contract.conftest import Once, copy_of
from tests.contract.examples import MY_PROJECT
from tests.contract.fault_examples import callback
from tests.contract.registry import read_registry, tracking_uri
from tests.contract.test_serve import start_server
from tests.contract.test_tasks import row_job, write_rows
from tests.contract.workspace import Workspace, assert_same_training, read_json
from tests.texts.tiny import write_tiny_bert

pytestmark = pytest.mark.timeout(900)  # a retrain is five processes
NUM_ROWS = 60
WORDS = {"red": ("rose", "ruby", "blood"), "blue": ("sea", "sky", "jeans")}


def write_tables(workspace: Workspace) -> None:
    """Write a table of rows and one of texts to train on, and new rows of both.

    With cells that are missing or new.
    """
    random = np.random.default_rng(3)
    rows: list[tuple[Any, ...]] = []
    texts: list[tuple[Any, ...]] = []
    for at in range(NUM_ROWS):
        size = random.normal()
        flag = bool(random.integers(2))
        price = 500 + 40 * size + 30 * flag
        label = ("red", "blue")[int(random.integers(2))]
        split = ("train", "train", "val", "test")[at % 4]
        day = f"2026-{at % 12 + 1:02d}-{at % 28 + 1:02d}"
        number = "" if at % 9 == 2 else f"{size:.3f}"
        rows.append((number, at % 5, ("oak", "elm", "")[at % 3], flag, day, f"{price:.2f}", split))
        words = [str(each) for each in random.choice(WORDS[label], 3)]
        texts.append(
            (f"the {' '.join(words)} of no {at}", label, ("page", "mail")[at // 4 % 2], split)
        )
    write_csv(
        workspace.folder / "rows.csv",
        ("size", "rank", "wood", "flag", "day", "price", "split"),
        rows,
    )
    write_csv(workspace.folder / "texts.csv", ("note", "label", "source", "split"), texts)
    new = [
        ("0.5", 2, "elm", True, "2026-05-06"),
        ("", 3, "", False, "2026-02-28"),
        ("-1.25", 4, "ash", True, ""),
        ("7", 0, "oak", False, "2027-01-01"),
    ]
    write_csv(workspace.folder / "new_rows.csv", ("size", "rank", "wood", "flag", "day"), new)
    lines = ["a rose and a ruby", "the sky,\nthe sea", "", "jeans " * 60]
    write_csv(workspace.folder / "new_texts.csv", ("note",), [(each,) for each in lines])


def write_csv(path: Path, names: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8-sig") as file:
        csv.writer(file).writerows([names, *rows])


COMMON = ("--trainer.max_epochs=2", "--accelerator=cpu", "--run.report=false")
JOBS = {
    "rows": (
        *(
            "-c",
            "lightkit:tabular",
            "--run.name=rows",
            "--data.path=rows.csv",
            "--data.target=price",
            *COMMON,
        ),
        *(
            "--model.network=mlp",
            "--model.hidden=8",
            "--model.embedding_width=4",
            "--model.num_bins=4",
        ),
    ),
    "texts": (
        *(
            "-c",
            "lightkit:text",
            "--run.name=texts",
            "--data.path=texts.csv",
            "--data.text=note",
            *COMMON,
        ),
        *("--model.buckets=4096", "--data.num_workers=0"),
    ),
}
JUDGED = {
    "rows": ("--gate.metric=test/mae", "--gate.max=1e9"),
    "texts": (
        "--gate.metric=test/accuracy",
        "--gate.min=0.01",
        "--gate.slices={source=mail: 0.01}",
    ),
}


def retrain(kind: str, *words: str) -> tuple[str, ...]:
    return ("retrain", *JOBS[kind], *JUDGED[kind], "--export-format", "onnx", *words)


@pytest.fixture(scope="module", params=JOBS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def make_promoted(kind: str, made_once: Once) -> Path:
    """A workspace in which a retrain has promoted its run."""

    def make(workspace: Workspace) -> None:
        write_tables(workspace)
        workspace.run(*retrain(kind), timeout_s=600).ok()

    return made_once(f"promoted-{kind}", make)


@pytest.fixture(scope="module")
def promoted(kind: str, made_once: Once) -> Path:
    return make_promoted(kind, made_once)


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_a_retrain_of_rows_and_of_texts_ends_with_a_champion(
    kind: str, promoted: Path, workspace: Workspace
) -> None:
    workspace = copy_of(promoted, workspace)
    stages = {
        each["stage"]: each["status"]
        for each in read_json(workspace.only_run / "retrain.json")["stages"]
    }
    assert stages == dict.fromkeys(("fit", "test", "export", "gate", "promote"), "done")
    assert workspace.run(*retrain(kind, "--if-changed"), timeout_s=300).code == 6
    assert len(workspace.runs) == 1
    # after that, for its script is new code in the working directory
    assert read_registry(workspace)[kind]["aliases"]["champion"] == "1"
    decision = read_json(workspace.only_run / "gate.json")
    assert decision["passed"]
    if kind == "texts":
        lines = (workspace.folder / "texts.csv").read_text(encoding="utf-8-sig").splitlines()
        counted = sum(line.endswith("mail,test") for line in lines)
        assert decision["slices"]["source=mail"]["num_samples"] == counted


LOAD = """\
import sys

import mlflow
import pandas

mlflow.set_tracking_uri(sys.argv[1])
model = mlflow.pyfunc.load_model(f"models:/{sys.argv[2]}@champion")
frame = pandas.read_csv(sys.argv[3])
model.predict(frame).to_json("answers.jsonl", orient="records", lines=True, double_precision=15)
print("signature", model.metadata.signature.inputs.input_names())
print("example", len(model.predict(model.input_example)))
for change in ({frame.columns[0]: float("inf")}, {frame.columns[0]: b"bytes"}):
    try:
        print("none", model.predict(frame.assign(**change)))
    except mlflow.exceptions.MlflowException as error:
        print("refused", error)
try:
    print("none", model.predict(frame.drop(columns=frame.columns[0])))
except mlflow.exceptions.MlflowException as error:
    print("refused", error)
"""


def test_a_registered_model_takes_raw_rows_and_answers_as_predict_does(
    kind: str, promoted: Path, workspace: Workspace
) -> None:
    workspace = copy_of(promoted, workspace)
    table = f"new_{kind}.csv"
    workspace.run("predict", "--run", "latest", table, "--output", "run.jsonl").ok()
    workspace.write("load.py", LOAD)
    loaded = workspace.run(tracking_uri(workspace), kind, table, script="load.py").ok().out
    expected = read_lines(workspace.folder / "run.jsonl")
    answers = read_lines(workspace.folder / "answers.jsonl")
    assert len(answers) == len(expected) == 4
    for answer, row in zip(answers, expected, strict=True):
        if kind == "rows":
            assert list(answer) == ["prediction_0"]
            assert answer["prediction_0"] == pytest.approx(row["prediction_0"], rel=1e-6)
            continue
        assert list(answer) == ["label", "probability", "probability_blue", "probability_red"]
        assert answer["label"] == row["label"]
        assert answer["probability"] == pytest.approx(row["probability"], abs=1e-6)
        assert answer[f"probability_{row['label_2']}"] == pytest.approx(
            row["probability_2"], abs=1e-6
        )
    assert len({json.dumps(answer) for answer in answers}) == 4
    columns = {"rows": ["size", "rank", "day", "wood", "flag"], "texts": ["note"]}[kind]
    assert f"signature {columns}" in loaded
    assert "example 2" in loaded
    refused = [line for line in loaded.splitlines() if line.startswith("refused")]
    assert len(refused) == 3
    assert "none" not in re.findall(r"^\w+", loaded, re.MULTILINE)
    assert f"Model is missing inputs ['{columns[0]}']" in loaded
    if kind == "rows":
        assert "row 0 (from 0): column 'size' has inf, expected a finite number" in refused[0]
        assert "column 'size' has b'bytes', expected a finite number" in refused[1]


@pytest.mark.parametrize("kind", ["rows", pytest.param("texts", marks=pytest.mark.long)])
def test_a_rollback_of_rows_and_of_texts_goes_back_to_the_champion_before(
    kind: str, made_once: Once, workspace: Workspace
) -> None:
    workspace = copy_of(make_promoted(kind, made_once), workspace)
    workspace.run("fit", *JOBS[kind], *JUDGED[kind], "--seed_everything=11").ok()
    workspace.run("promote", "--run", "latest", timeout_s=300).ok()
    assert read_registry(workspace)[kind]["aliases"]["champion"] == "2"
    workspace.run("rollback", kind).ok()
    assert read_registry(workspace)[kind]["aliases"]["champion"] == "1"


@pytest.mark.long
def test_a_registered_model_of_rows_and_of_texts_is_exported_as_its_run_is(
    kind: str, promoted: Path, workspace: Workspace
) -> None:
    workspace = copy_of(promoted, workspace)
    words = ("--run", f"models:/{kind}@champion", "--format", "onnx", "--output", "out")
    workspace.run("export", *words, timeout_s=400).ok()
    own = str(next(workspace.only_run.glob("export/*.onnx")))
    for name, file in (("own", own), ("out", "out/model.onnx")):
        workspace.run(
            "predict", "--model", file, f"new_{kind}.csv", "--output", f"{name}.jsonl"
        ).ok()
    ones, others = (read_lines(workspace.folder / f"{name}.jsonl") for name in ("own", "out"))
    for one, other in zip(ones, others, strict=True):
        for key, value in one.items():
            assert other[key] == (
                pytest.approx(value, rel=1e-4) if isinstance(value, float) else value
            )


def test_a_row_that_cannot_be_predicted_has_the_reason_and_others_their_values(
    made_once: Once, workspace: Workspace
) -> None:
    file = str(next(make_promoted("rows", made_once).glob("runs/rows/2*/export/*.onnx")))
    names = ("day", "size", "rank", "wood", "flag", "more")
    bad = [
        ("2026-05-06", "inf", 2, "elm", True, ""),
        ("soon", "NaN", 3, "", "", ""),
        ("", "many", 4, "oak", "x", ""),
    ]
    write_csv(
        workspace.folder / "odd.csv", names, [*bad, ("2026-05-06", "-1e3", "?", "NA", "TRUE", "")]
    )
    workspace.run("predict", "--model", file, "odd.csv", "--output", "odd.jsonl").ok()
    lines = read_lines(workspace.folder / "odd.jsonl")
    assert [line["path"] for line in lines] == [f"odd.csv, line {at}" for at in (2, 3, 4, 5)]
    assert [line["error"] for line in lines] == [
        "column 'size' has 'inf', expected a finite number",
        "column 'day' has 'soon', expected a date, such as 2026-01-31 or 2026-01-31T12:00:00",
        "column 'size' has 'many', expected a finite number",
        None,
    ]
    assert [line["prediction_0"] is None for line in lines] == [True, True, True, False]
    write_csv(workspace.folder / "odd.csv", names, bad)
    result = workspace.run("predict", "--model", file, "odd.csv")
    assert result.code == 3
    assert "odd.csv, line 2: column 'size' has 'inf'" in result.err


def test_a_run_of_values_is_tested_on_a_table_of_a_few_whole_ones(
    made_once: Once, workspace: Workspace
) -> None:
    workspace = copy_of(make_promoted("rows", made_once), workspace)
    with (workspace.folder / "rows.csv").open(newline="", encoding="utf-8-sig") as file:
        names, *rows = list(csv.reader(file))
    few = [(*row[:5], round(float(row[5])), "test") for row in rows[:8]]
    write_csv(workspace.folder / "few.csv", names, few)
    workspace.run("test", "--run", "latest", "--data.path=few.csv").ok()
    workspace.run("predict", "--run", "latest", "few.csv", "--output", "few.jsonl").ok()
    predicted = [line["prediction_0"] for line in read_lines(workspace.folder / "few.jsonl")]
    logged = read_json(workspace.only_run / "summary.json")["stages"]["test"]["test/mae"]
    expected = np.mean([abs(row[5] - each) for row, each in zip(few, predicted, strict=True)])
    assert logged == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("words", [("--run", "latest"), ("--model",)], ids=["run", "file"])
def test_a_folder_of_photos_for_a_model_of_rows_is_reported_by_its_name(
    words: tuple[str, ...], made_once: Once, workspace: Workspace
) -> None:
    workspace = copy_of(make_promoted("rows", made_once), workspace)
    if words == ("--model",):
        words = ("--model", str(next(workspace.only_run.glob("export/*.onnx"))))
    for name in ("1.jpg", "2.jpg", "notes.md"):
        workspace.write(f"photos/{name}", "no table")
    result = workspace.run("predict", *words, "photos")
    assert result.code == 3, result.err
    assert (
        "error: photos: this folder has no table (FILE of lightkit predict), but 2 .jpg, 1 .md; "
        in result.err
    )
    assert "data.init_args" not in result.err


@pytest.fixture(scope="module")
def texts(made_once: Once) -> Path:
    return make_promoted("texts", made_once)


def test_texts_on_standard_input_are_predicted_as_those_of_a_file(
    texts: Path, workspace: Workspace
) -> None:
    workspace = copy_of(texts, workspace)
    file = str(next(workspace.only_run.glob("export/*.onnx")))
    workspace.run("predict", "--model", file, "new_texts.csv", "--output", "file.jsonl").ok()
    with (workspace.folder / "new_texts.csv").open("rb") as stream:
        workspace.run("predict", "--model", file, "-", "--output", "input.jsonl", stdin=stream).ok()
    ones, others = (read_lines(workspace.folder / name) for name in ("file.jsonl", "input.jsonl"))
    assert [each.pop("path") for each in ones] == [
        f"new_texts.csv, line {line}" for line in (2, 3, 5, 6)
    ]
    assert [each.pop("path") for each in others] == [
        f"standard input, line {line}" for line in (2, 3, 5, 6)
    ]
    assert ones == others


ODD = {
    "ragged": (b"note\none\ntwo,three\n", r"odd\.csv, line 3: this row has 2 cells; expected 1"),
    "empty": (b"", r"odd\.csv: this table is empty"),
    "names alone": (b"note\n", r"odd\.csv: this table has no rows"),
    "no UTF-8": (b"note\none\n\xff\xfe\n", r"odd\.csv, line 3: this table is not in UTF-8"),
    "huge": (
        b"note\none\n" + b"x" * 1_100_000 + b"\n",
        r"odd\.csv, line 3: this table cannot be read \(field larger",
    ),
    "another column": (b"nota\none\n", r"the table has no column 'note'; did you mean 'nota'"),
}


@pytest.mark.parametrize("odd", ODD)
def test_odd_texts_to_predict_are_an_error_with_file_and_line(
    odd: str, texts: Path, workspace: Workspace
) -> None:
    content, says = ODD[odd]
    (workspace.folder / "odd.csv").write_bytes(content)
    file = str(next(texts.glob("runs/texts/2*/export/*.onnx")))
    result = workspace.run("predict", "--model", file, "odd.csv")
    assert result.code == 3, result.err
    assert re.search(says, result.err)
    assert "Traceback" not in result.err


@pytest.mark.skipif(find_spec("litserve") is None, reason="needs the extra lightkit-train[serve]")
def test_a_server_answers_texts_as_predict_does(texts: Path, workspace: Workspace) -> None:
    workspace = copy_of(texts, workspace)
    file = str(next(workspace.only_run.glob("export/*.onnx")))
    workspace.run(
        "predict", "--model", file, "new_texts.csv", "--output", "file.jsonl", "--top-k", "2"
    ).ok()
    server = start_server(workspace, "--model", file)
    with (workspace.folder / "new_texts.csv").open(newline="", encoding="utf-8-sig") as stream:
        rows = list(csv.DictReader(stream))
    response = requests.post(f"{server.address}/predict", json={"rows": rows}, timeout=60)
    assert response.status_code == 200, response.text
    for answer, row in zip(
        response.json()["predictions"], read_lines(workspace.folder / "file.jsonl"), strict=True
    ):
        assert (answer["label"], answer["classes"][1]["label"]) == (row["label"], row["label_2"])
        assert answer["probability"] == pytest.approx(row["probability"], abs=1e-6)
    missing = requests.post(
        f"{server.address}/predict", json={"rows": [{"note": None}]}, timeout=60
    )
    assert (
        missing.json()["predictions"][0]["label"]
        == read_lines(workspace.folder / "file.jsonl")[2]["label"]
    )
    for wrong, says in (
        ({"text": "a"}, "there is no 'note'"),
        ({"note": ["a"]}, "'note'"),
        ("a", "expected an object"),
    ):
        refused = requests.post(f"{server.address}/predict", json={"rows": [wrong]}, timeout=60)
        assert refused.status_code == 422
        assert says in refused.text


CHECKED = {
    "missing column": (
        ("--data.text=nota",),
        r"the table has no column 'nota'; did you mean 'note'",
    ),
    "missing key": (
        ("--data.key=author",),
        r"data\.init_args\.key: .*the table has no column 'author'",
    ),
    "one value": (
        ("--data.label=source", "--data.path=one.csv"),
        "has the label 'page', so that there is nothing to",
    ),
    "several labels": (
        ("--data.separator=|",),
        r"multilabel: it is false, and the data has several labels a text",
    ),
    "one label": (
        ("--model.multilabel=true",),
        r"multilabel: it is true, and the data has one label a text",
    ),
}


@pytest.mark.parametrize(("words", "says"), CHECKED.values(), ids=CHECKED)
def test_check_finds_faults_of_texts(
    words: tuple[str, ...], says: str, workspace: Workspace
) -> None:
    write_tables(workspace)
    lines = (workspace.folder / "texts.csv").read_text(encoding="utf-8-sig").replace("mail", "page")
    workspace.write("one.csv", lines)
    result = workspace.run("check", *JOBS["texts"], *words)
    assert result.code == 2
    assert re.search(says, result.err), result.err
    assert "Traceback" not in result.err


def test_check_warns_of_texts_that_are_in_two_splits_or_empty(workspace: Workspace) -> None:
    write_tables(workspace)
    with (workspace.folder / "texts.csv").open("a", encoding="utf-8") as file:
        file.write(
            "one and the same,red,page,train\none  and the same,blue,page,test\n,red,page,train\n"
        )
    result = workspace.run("check", *JOBS["texts"]).ok()
    assert re.search(r"1 of 63 texts are empty.*texts\.csv, line 64", result.err)
    assert re.search(r"1 text is in more than one split.*line 62 = .*line 63", result.err)
    assert re.search(r"1 text is there with different labels", result.err)


def test_several_labels_of_rows_are_refused(workspace: Workspace) -> None:
    write_tables(workspace)
    for words, says in (
        (("--model.multilabel=true",), "multilabel"),
        (("--data.target=[wood,flag]",), "target"),
    ):
        result = workspace.run("check", *JOBS["rows"], *words)
        assert result.code == 2
        assert says in result.err
        assert "Traceback" not in result.err


@pytest.mark.long
def test_texts_of_several_labels_are_trained_and_predicted(workspace: Workspace) -> None:
    write_tables(workspace)
    lines = (workspace.folder / "texts.csv").read_text(encoding="utf-8-sig")
    workspace.write("several.csv", re.sub(r",red,mail", ",red|blue,mail", lines))
    words = ("--data.path=several.csv", "--data.separator=|", "--model.multilabel=true")
    workspace.run("fit", *JOBS["texts"], *words).ok()
    workspace.run("test", "--run", "latest").ok()
    assert "test/map" in read_json(workspace.only_run / "summary.json")["stages"]["test"]
    workspace.run("predict", "--run", "latest", "new_texts.csv", "--output", "run.jsonl").ok()
    workspace.run("export", "--run", "latest", "--format", "onnx").ok()
    file = str(next(workspace.only_run.glob("export/*.onnx")))
    workspace.run("predict", "--model", file, "new_texts.csv", "--output", "file.jsonl").ok()
    ones, others = (read_lines(workspace.folder / name) for name in ("run.jsonl", "file.jsonl"))
    assert len(ones) == len(others) == 4
    for one, other in zip(ones, others, strict=True):
        for name in ("probability_blue", "probability_red"):
            assert one[name] == pytest.approx(other[name], abs=1e-5)


def write_marks(workspace: Workspace) -> list[tuple[str, int, int, str]]:
    """Write texts with two labels in columns of 0 and 1, of which one in seven is wrong.

    Also write those of validation.
    """
    random = np.random.default_rng(8)
    rows = []
    for at in range(120):
        marks = [int(each) for each in random.integers(2, size=2)]
        words = [
            word
            for name, mark in zip(("blue", "red"), marks, strict=True)
            if mark
            for word in WORDS[name]
        ]
        text = f"no {at} {' '.join(random.permutation(words))}".strip()
        blue, red = (mark ^ int(random.random() < 1 / 7) for mark in marks)
        rows.append((text, blue, red, ("train", "val", "test")[at % 3]))
    write_csv(workspace.folder / "marks.csv", ("note", "blue", "red", "split"), rows)
    write_csv(workspace.folder / "val.csv", ("note",), [row[:1] for row in rows if row[3] == "val"])
    return rows


@pytest.mark.long
def test_labels_in_columns_of_0_and_1_are_predicted_by_the_thresholds_of_the_validation(
    workspace: Workspace,
) -> None:
    rows = write_marks(workspace)
    words = ("--data.path=marks.csv", "--data.label=[blue, red]", "--model.multilabel=true")
    workspace.run("fit", *JOBS["texts"], *words).ok()
    workspace.run("test", "--run", "latest").ok()
    workspace.run("export", "--run", "latest", "--format", "onnx").ok()
    export = read_json(workspace.only_run / "export" / "export.json")["artefacts"]["model.onnx"]
    assert all(each["outside"] == 0 for each in export["parity"].values())

    # the logged metrics are those of scikit-learn
    columns = parquet.read_table(workspace.only_run / "test_predictions.parquet").to_pydict()
    target, predicted = (
        np.array([[int(name in row) for name in ("blue", "red")] for row in columns[key]])
        for key in ("labels", "predicted")
    )
    assert target.tolist() == [[blue, red] for _, blue, red, split in rows if split == "test"]
    probability = np.stack([columns["probability_blue"], columns["probability_red"]], axis=1)
    expected = {
        "test/map": sk.average_precision_score(target, probability, average="macro"),
        "test/f1": sk.f1_score(target, predicted, average="macro"),
        "test/subset_accuracy": sk.accuracy_score(target, predicted),
        "test/loss": np.mean([sk.log_loss(target[:, at], probability[:, at]) for at in range(2)]),
    }
    logged = read_json(workspace.only_run / "summary.json")["stages"]["test"]
    assert {name: logged[name] for name in expected} == pytest.approx(expected, rel=1e-4)

    # the labels that are predicted have the largest F1 that any threshold has on the validation
    # split
    file = str(next(workspace.only_run.glob("export/*.onnx")))
    found = {}
    for source, given in (("run", ("--run", "latest")), ("file", ("--model", file))):
        workspace.run("predict", *given, "val.csv", "--output", f"{source}.jsonl").ok()
        found[source] = read_lines(workspace.folder / f"{source}.jsonl")
    assert [line["labels"] for line in found["run"]] == [line["labels"] for line in found["file"]]
    for at, name in enumerate(("blue", "red"), start=1):
        truth = [row[at] for row in rows if row[3] == "val"]
        values = np.array([line[f"probability_{name}"] for line in found["run"]])
        own = sk.f1_score(truth, [name in line["labels"].split("|") for line in found["run"]])
        assert own == pytest.approx(max(sk.f1_score(truth, values >= each) for each in values))


@pytest.mark.long
@pytest.mark.parametrize("precision", ["int8", "half"])
def test_texts_are_exported_in_other_precisions(
    precision: str, texts: Path, workspace: Workspace
) -> None:
    workspace = copy_of(texts, workspace)
    workspace.run(
        "export", "--run", "latest", "--format", "onnx", f"--{precision}", timeout_s=300
    ).ok()
    check_proof(workspace, f"model.{precision}.onnx")
    file = str(next(workspace.only_run.glob(f"export/*.{precision}.onnx")))
    workspace.run("predict", "--model", file, "new_texts.csv", "--output", "file.jsonl").ok()
    whole = str(workspace.only_run / "export" / "model.onnx")
    workspace.run("predict", "--model", whole, "new_texts.csv", "--output", "whole.jsonl").ok()
    ones, others = (read_lines(workspace.folder / name) for name in ("file.jsonl", "whole.jsonl"))
    for one, other in zip(ones, others, strict=True):
        assert one["label"] == other["label"]
        assert one["probability"] == pytest.approx(other["probability"], abs=0.02)


def check_proof(workspace: Workspace, name: str) -> None:
    """Check that a file was compared with its model, on validation texts and by a metric."""
    record = read_json(workspace.only_run / "export" / "export.json")["artefacts"][name]
    assert record["samples"] > 1
    assert record["parity"]
    assert all(each["outside"] == 0 for each in record["parity"].values())
    assert record["metrics"]["scored"]


@pytest.mark.long
def test_a_network_of_transformers_that_is_killed_goes_on_and_is_exported_and_predicted(
    workspace: Workspace,
) -> None:
    pytest.importorskip("transformers", reason="needs the extra lightkit-train[text]")
    write_tables(workspace)
    write_tiny_bert(workspace.folder / "tiny")
    workspace.write("my_project.py", MY_PROJECT)
    workspace.write(
        "often.yaml", {"callbacks": {"checkpoint": {"init_args": {"save_last_every_n_steps": 2}}}}
    )
    job = [word for word in JOBS["texts"] if not word.startswith("--model")]
    words = (
        "fit",
        *job,
        "-c",
        "often.yaml",
        "--model.encoder=transformers/tiny",
        "--data.batch_size=4",
    )
    workspace.run(*words, timeout_s=300).ok()
    undisturbed = workspace.only_run.rename(workspace.folder / "undisturbed")
    shutil.rmtree(workspace.folder / "runs")
    kill = callback(
        "my_project.SendSignal", hook="on_train_batch_start", step=3, signum=int(signal.SIGKILL)
    )
    workspace.write("kill.yaml", kill)
    assert workspace.run(*words, "-c", "kill.yaml", timeout_s=300).code == -signal.SIGKILL
    workspace.run(*words, "-c", "kill.yaml", timeout_s=300).ok()
    assert_same_training(workspace.only_run, undisturbed)

    shutil.rmtree(workspace.folder / "tiny")  # config and tokenizer are in the checkpoint
    workspace.run("test", "--run", "latest").ok()
    columns = parquet.read_table(workspace.only_run / "test_predictions.parquet").to_pydict()
    logged = read_json(workspace.only_run / "summary.json")["stages"]["test"]["test/accuracy"]
    assert logged == pytest.approx(sk.accuracy_score(columns["label"], columns["predicted"]))
    workspace.run("export", "--run", "latest", "--format", "onnx", "--half", timeout_s=300).ok()
    predicted = {}
    for name, given in {
        "run": ("--run", "latest"),
        "whole": ("--model", str(workspace.only_run / "export" / "model.onnx")),
        "half": ("--model", str(workspace.only_run / "export" / "model.half.onnx")),
    }.items():
        workspace.run("predict", *given, "new_texts.csv", "--output", f"{name}.jsonl").ok()
        predicted[name] = read_lines(workspace.folder / f"{name}.jsonl")
    for name, gap in {"whole": 1e-4, "half": 1e-2}.items():
        check_proof(workspace, f"model.{name}.onnx".replace(".whole", ""))
        for one, other in zip(predicted["run"], predicted[name], strict=True):
            assert one["path"] == other["path"]
            probability = (
                other["probability"] if one["label"] == other["label"] else 1 - other["probability"]
            )
            assert probability == pytest.approx(one["probability"], abs=gap)


@pytest.mark.long
def test_a_network_of_transformers_is_trained_exported_and_registered(workspace: Workspace) -> None:
    pytest.importorskip("transformers", reason="needs the extra lightkit-train[text]")
    write_tables(workspace)
    write_tiny_bert(workspace.folder / "tiny")
    job = [word for word in JOBS["texts"] if not word.startswith("--model")]
    workspace.run("fit", *job, "--model.encoder=tiny", timeout_s=300).ok()
    (workspace.folder / "tiny").rename(workspace.folder / "moved")
    workspace.run("test", "--run", "latest").ok()
    workspace.run("export", "--run", "latest", "--format", "onnx", timeout_s=300).ok()
    workspace.run("predict", "--run", "latest", "new_texts.csv", "--output", "run.jsonl").ok()
    file = str(next(workspace.only_run.glob("export/*.onnx")))
    workspace.run("predict", "--model", file, "new_texts.csv", "--output", "file.jsonl").ok()
    workspace.run(
        "register", "--run", "latest", "--name", "texts", "--alias", "champion", timeout_s=300
    ).ok()
    workspace.write("load.py", LOAD)
    workspace.run(tracking_uri(workspace), "texts", "new_texts.csv", script="load.py").ok()
    every = (
        read_lines(workspace.folder / name) for name in ("run.jsonl", "file.jsonl", "answers.jsonl")
    )
    for one, other, answer in zip(*every, strict=True):
        assert one["label"] == other["label"] == answer["label"]
        assert one["probability"] == pytest.approx(other["probability"], abs=1e-4)
        assert one["probability"] == pytest.approx(answer["probability"], abs=1e-6)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def become_zeros(path: Path) -> None:
    """Replace the second half by zeros, as a loss of power may."""
    kept = path.read_bytes()[: path.stat().st_size // 2]
    path.write_bytes(kept + bytes(path.stat().st_size - len(kept)))


PREPARED: dict[str, Callable[[Path], object]] = {
    "encoded-*/target.npy": become_zeros,
    "encoded-*/input_0.npy": become_zeros,
    "rows-*/plan.json": cut,
}


@pytest.mark.parametrize("file", PREPARED, ids=lambda file: Path(file).name)
def test_prepared_rows_that_are_damaged_are_prepared_again_for_the_same_training(
    file: str, workspace: Workspace
) -> None:
    write_rows(workspace)
    job = row_job({"target": "kind", "split": "split"})
    workspace.write("job.yaml", {**job, "trainer": {"max_epochs": 1, "accelerator": "cpu"}})
    cache = {"XDG_CACHE_HOME": str(workspace.folder / "cache")}
    words = ("fit", "-c", "job.yaml", "--run.report=false")
    workspace.run(*words, environ=cache).ok()

    (path,) = (workspace.folder / "cache" / "lightkit").glob(file)
    PREPARED[file](path)
    again = workspace.run(*words, environ=cache).ok()
    assert "is damaged" in again.err
    assert_same_training(*workspace.runs)
