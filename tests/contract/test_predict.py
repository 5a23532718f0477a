"""Labels for images, by a checkpoint and by each exported file, and for the test split."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import pickle
import re
import shutil
import signal
import zipfile
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.contract.conftest import copy_of
from tests.contract.export_examples import MY_EXPORTS
from tests.contract.rank_jobs import run_joined
from tests.contract.workspace import ForkServer, Result, Workspace, session_members

MODEL = "runs/pictures/latest/export/model.onnx"
FILES = ("model.onnx", "model.pt2", "model.ts", "model.safetensors")
NEW = ("a.png", "b.png", "c.png", "deep/d.png", "e.png")
NAMED = [f"new/{name}" for name in NEW]
Rows = list[dict[str, str]]


def paint(folder: Path, names: Sequence[str]) -> None:
    """Write images in the colours of the two classes, by turns, in several sizes."""
    for number, name in enumerate(names):
        random = np.random.default_rng(100 + number)
        pixels = random.integers(0, 160, (40 + number, 44, 3), dtype=np.uint8)
        pixels[8:32, 8:32, (0, 2)[number % 2]] += 40
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / name)


def rows_of(text: str) -> Rows:
    """Rows of a table as CSV."""
    return list(csv.DictReader(io.StringIO(text)))


def table(workspace: Workspace, name: str = "predictions.csv") -> Rows:
    """A table of predictions."""
    return rows_of((workspace.folder / name).read_text(encoding="utf-8"))


def close_to(rows: Rows) -> list[Any]:
    """The same rows with probabilities that may be off by a little."""
    return [
        {k: pytest.approx(float(v), abs=2e-5) if "prob" in k and v else v for k, v in row.items()}
        for row in rows
    ]


def parsed(rows: Rows) -> list[dict[str, Any]]:
    """Rows with probabilities as numbers."""
    return [{k: float(v) if "prob" in k and v else v for k, v in row.items()} for row in rows]


@pytest.fixture(scope="module")
def place(
    tmp_path_factory: pytest.TempPathFactory, fork_server: ForkServer, exported_original: Path
) -> Iterator[Workspace]:
    """A copy of `exported` without the pictures that it was trained on.

    Each test writes a table of its own.
    """
    workspace = copy_of(
        exported_original, Workspace(tmp_path_factory.mktemp("predict") / "work", fork_server)
    )
    shutil.rmtree(workspace.folder / "pictures")
    paint(workspace.folder / "new", NEW)
    workspace.write("my_exports.py", MY_EXPORTS)
    yield workspace
    workspace.close()


@pytest.fixture(scope="module")
def by_checkpoint(place: Workspace) -> Rows:
    """What the run's best checkpoint says of the images."""
    place.run("predict", "--run", "latest", "new", "--output", "by_checkpoint.csv").ok()
    return table(place, "by_checkpoint.csv")


# -- the answers -----------------------------------------------------------------------------------


def test_images_are_labelled_by_a_run_whose_training_data_are_gone(by_checkpoint: Rows) -> None:
    assert [row["path"] for row in by_checkpoint] == NAMED
    assert [row["label"] for row in by_checkpoint] == ["reds", "blues", "reds", "blues", "reds"]
    assert {row["error"] for row in by_checkpoint} == {""}
    shares = [float(row["probability"]) + float(row["probability_2"]) for row in by_checkpoint]
    assert shares == pytest.approx([1.0] * len(NEW), abs=2e-6)


@pytest.mark.parametrize("name", FILES)
def test_each_exported_file_labels_as_its_checkpoint(
    place: Workspace, by_checkpoint: Rows, name: str
) -> None:
    result = place.run(
        "predict", "--model", MODEL.replace("model.onnx", name), "new", "--output", f"by_{name}.csv"
    )
    assert result.ok().err == ""
    assert parsed(table(place, f"by_{name}.csv")) == close_to(by_checkpoint)


def test_a_config_with_a_checkpoint_labels_as_the_run(
    place: Workspace, by_checkpoint: Rows
) -> None:
    (checkpoint,) = place.folder.glob("runs/pictures/2*/checkpoints/best.ckpt")
    words = ("-c", "pictures.yaml", "--ckpt_path", str(checkpoint), "new", "--output", "config.csv")
    place.run("predict", *words).ok()
    assert parsed(table(place, "config.csv")) == close_to(by_checkpoint)


@pytest.mark.parametrize(
    "words", [["--run", "latest"], ["-c", "pictures.yaml"]], ids=["run", "config"]
)
def test_exported_weights_elsewhere_need_a_run_or_config(
    place: Workspace, by_checkpoint: Rows, words: list[str]
) -> None:
    shutil.copy(
        place.folder / MODEL.replace("onnx", "safetensors"), place.folder / "elsewhere.safetensors"
    )
    place.run(
        "predict", *words, "--model", "elsewhere.safetensors", "new", "--output", "elsewhere.csv"
    ).ok()
    assert parsed(table(place, "elsewhere.csv")) == close_to(by_checkpoint)


def test_the_limits_of_the_trainer_leave_out_no_image(place: Workspace) -> None:
    words = (
        "--trainer.limit_predict_batches=1",
        "--data.init_args.batch_size=2",
        "--output",
        "limits.csv",
    )
    result = place.run("predict", "--run", "latest", "new", *words).ok()
    assert len(table(place, "limits.csv")) == len(NEW)
    assert "limit_predict_batches" in result.err


def test_predicting_leaves_the_run_as_it_is(
    place: Workspace, by_checkpoint: Rows, exported_original: Path
) -> None:
    assert len(by_checkpoint) == len(NEW)
    (run,) = exported_original.glob("runs/pictures/2*")
    before, after = (
        {str(path.relative_to(root)) for path in root.glob(f"runs/pictures/{run.name}/**/*")}
        for root in (exported_original, place.folder)
    )
    assert after == before


def test_a_prediction_without_images_is_of_the_test_split(exported: Workspace) -> None:
    exported.run("predict", "--run", "latest").ok()
    rows = rows_of((exported.only_run / "predictions.csv").read_text(encoding="utf-8"))
    assert len(rows) == 5
    assert [Path(row["path"]).parent.name for row in rows] == [row["label"] for row in rows]


WITHOUT_TORCH = """\
import sys
from lightkit.main import main

code = main()
print(
    code,
    sorted({"torch", "pytorch_lightning", "torchvision", "mlflow", "onnx"} & {*sys.modules}),
    file=sys.stderr,
)
"""


def test_an_onnx_file_labels_without_torch(place: Workspace) -> None:
    place.write("without_torch.py", WITHOUT_TORCH)
    result = place.run_cold(
        "predict", "--model", MODEL, "new", "--output", "-", script="without_torch.py"
    )
    assert result.err.splitlines()[-1] == "0 []"
    assert len(rows_of(result.out)) == len(NEW)


# -- images in -------------------------------------------------------------------------------------


def write_table(folder: Path, kind: str) -> str:
    """Write a table of two paths, relative to its own folder; give its name."""
    columns = {"number": [1, 2], "path": ["../new/c.png", "../new/a.png"]}
    name = f"tables/list.{kind}" if kind in ("csv", "parquet") else "tables/delta"
    (folder / "tables").mkdir(exist_ok=True)
    if kind == "csv":
        (folder / name).write_text(
            "number,path\n1,../new/c.png\n2,../new/a.png\n", encoding="utf-8"
        )
        return name
    pyarrow = pytest.importorskip("pyarrow")
    if kind == "parquet":
        pytest.importorskip("pyarrow.parquet").write_table(pyarrow.table(columns), folder / name)
    else:
        deltalake = pytest.importorskip("deltalake", reason="needs the extra lightkit-train[delta]")
        deltalake.write_deltalake(str(folder / name), pyarrow.table(columns))
    return name


@pytest.mark.parametrize(
    ("words", "paths"),
    [
        (["new"], NAMED),
        (["new/c.png", "new/a.png"], ["new/c.png", "new/a.png"]),
        (["new/[ab].png", "new/**/d.png"], ["new/a.png", "new/b.png", "new/deep/d.png"]),
    ],
    ids=["folder", "files", "globs"],
)
def test_images_are_folders_files_and_globs(
    place: Workspace, words: list[str], paths: list[str]
) -> None:
    result = place.run("predict", "--model", MODEL, *words, "--output", "-").ok()
    assert [row["path"] for row in rows_of(result.out)] == paths


@pytest.mark.parametrize("kind", ["csv", "parquet", "delta"])
def test_images_are_the_paths_of_a_table_from_the_folder_that_it_is_in(
    place: Workspace, by_checkpoint: Rows, kind: str
) -> None:
    name = write_table(place.folder, kind)
    result = place.run("predict", "--model", MODEL, name, "--output", "-").ok()
    labels = {Path(row["path"]).name: row["label"] for row in by_checkpoint}
    rows = rows_of(result.out)
    assert len(rows) == 2
    assert [row["label"] for row in rows] == [labels[Path(row["path"]).name] for row in rows]


@pytest.mark.parametrize(
    "column",
    [
        "image",
        *(pytest.param(name, marks=pytest.mark.long) for name in ("path", "file", "filename")),
        "anything",
    ],
)
def test_the_column_of_paths_is_found_by_its_name(place: Workspace, column: str) -> None:
    other = "number" if column == "anything" else "text"
    place.write("list.csv", f"{other},{column}\n1,new/b.png\n")
    result = place.run("predict", "--model", MODEL, "list.csv", "--output", "-").ok()
    assert [row["label"] for row in rows_of(result.out)] == ["blues"]


@pytest.mark.parametrize(
    ("paths", "code", "found"),
    [("new/c.png\nnew/a.png\n", 0, ["new/c.png", "new/a.png"]), ("\n", 3, [])],
    ids=["two", "none"],
)
def test_images_are_lines_of_standard_input(
    place: Workspace, paths: str, code: int, found: list[str]
) -> None:
    file = place.write("paths.txt", paths)
    with file.open("rb") as lines:
        result = place.run("predict", "--model", MODEL, "-", "--output", "-", stdin=lines)
    assert result.code == code, result.err
    assert [row["path"] for row in rows_of(result.out)] == found


def test_bytes_of_a_name_that_are_no_text_are_written_as_escapes(place: Workspace) -> None:
    folder = place.folder / "odd"
    folder.mkdir()
    shutil.copy(place.folder / "new" / "a.png", folder / os.fsdecode(b"\xff.png"))
    result = place.run("predict", "--model", MODEL, "odd", "--output", "-").ok()
    assert [row["path"] for row in rows_of(result.out)] == ["odd/\\udcff.png"]


# -- the table -------------------------------------------------------------------------------------


def read_table(path: Path) -> list[dict[str, Any]]:
    """Rows of a table in any of the formats."""
    if path.suffix == ".parquet":
        rows: list[dict[str, Any]] = (
            pytest.importorskip("pyarrow.parquet").read_table(path).to_pylist()
        )
        return rows
    text = path.read_text(encoding="utf-8")
    return (
        [json.loads(line) for line in text.splitlines()]
        if path.suffix == ".jsonl"
        else parsed(rows_of(text))
    )


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_the_table_has_the_format_of_its_name(
    place: Workspace, by_checkpoint: Rows, kind: str
) -> None:
    result = place.run("predict", "--model", MODEL, "new", "--output", f"out/table.{kind}").ok()
    rows = read_table(place.folder / "out" / f"table.{kind}")
    assert [list(row) for row in rows] == [
        ["path", "label", "probability", "label_2", "probability_2", "error"]
    ] * 5
    assert [{**row, "error": row["error"] or ""} for row in rows] == close_to(by_checkpoint)
    assert result.out.splitlines() == ["images 5", f"table  out/table.{kind}"]


def test_the_table_on_standard_output_is_all_that_is_there(place: Workspace) -> None:
    result = place.run("predict", "--model", MODEL, "new", "--output", "-").ok()
    assert len(rows_of(result.out)) == len(NEW)
    assert "images 5" in result.err


def test_no_cell_of_a_csv_table_is_a_formula_or_a_code_of_a_terminal(place: Workspace) -> None:
    names = ["=2+3.png", "@sum.png", "-1.png", "\x1b[31mred.png"]
    for name in names:
        (place.folder / name).write_bytes((place.folder / "new" / "a.png").read_bytes())
    with place.write("odd.txt", "\n".join([*names, "=missing.png"])).open("rb") as lines:
        result = place.run(
            "predict", "--model", MODEL, "-", "--output", "odd.csv", stdin=lines
        ).ok()
    assert result.err.count("\x1b") == 0
    rows = table(place, "odd.csv")
    assert [row["path"] for row in rows] == [
        "./=2+3.png",
        "./@sum.png",
        "./-1.png",
        "\\x1b[31mred.png",
        "./=missing.png",
    ]
    assert [cell for row in rows for cell in row.values() if cell[:1] in ("=", "+", "-", "@")] == []


def test_the_table_is_called_predictions_csv(place: Workspace) -> None:
    place.run("predict", "--model", MODEL, "new").ok()
    assert len(table(place)) == len(NEW)


def test_top_k_says_how_many_classes_are_reported(place: Workspace) -> None:
    result = place.run("predict", "--model", MODEL, "new", "--output", "-", "--top-k", "1").ok()
    assert result.out.splitlines()[0] == "path,label,probability,error"
    printed = (
        place.run("predict", "--model", MODEL, "new", "--output", "-", "--top-k", "all").ok().out
    )
    rows = list(csv.DictReader(io.StringIO(printed)))
    assert list(rows[0]) == [
        "path",
        "label",
        "probability",
        "probability_blues",
        "probability_reds",
        "error",
    ]
    for row in rows:
        each = {name: float(row[f"probability_{name}"]) for name in ("blues", "reds")}
        assert sum(each.values()) == pytest.approx(1, abs=1e-6)
        assert row["label"] == max(each, key=lambda name: each[name])
        assert float(row["probability"]) == max(each.values())


def test_output_json_is_an_event(place: Workspace) -> None:
    (event,) = place.run("predict", "--model", MODEL, "new", "--output", "json").ok().json_lines
    assert (event["event"], event["stage"]) == ("result", "predict")
    assert event["metrics"] == {"images": 5, "bad_images": 0}


@pytest.mark.parametrize(
    "words",
    [["list.csv", "--output", "list.csv"], ["new", "--output", "held.csv", "--model", "held.csv"]],
    ids=["names_the_images", "is_the_model"],
)
def test_the_table_is_never_written_over_what_is_read(place: Workspace, words: list[str]) -> None:
    for name in ("list.csv", "held.csv"):
        place.write(name, "path\nnew/a.png\n")
    result = place.run("predict", *(words if "--model" in words else ["--model", MODEL, *words]))
    assert result.code == 2, result.err
    assert [(place.folder / name).read_text("utf-8") for name in ("list.csv", "held.csv")] == [
        "path\nnew/a.png\n"
    ] * 2


# -- bad images, and the contact sheet -------------------------------------------------------------


@pytest.fixture(scope="module")
def with_bad(place: Workspace) -> tuple[Result, Rows, str]:
    """A prediction of good images and two bad ones, one of which is not there.

    Its output, table and contact sheet.
    """
    place.write("bad/torn.png", "torn")
    place.write(
        "list_bad.csv",
        "path\nbad/torn.png\n" + "".join(f"{name}\n" for name in NAMED) + "gone.png\n",
    )
    words = ("list_bad.csv", "--output", "with_bad.csv", "--contact-sheet", "sheet.html")
    result = place.run("predict", "--model", MODEL, *words)
    return (
        result,
        table(place, "with_bad.csv"),
        (place.folder / "sheet.html").read_text(encoding="utf-8"),
    )


def test_bad_images_do_not_end_a_prediction_and_are_reported(
    with_bad: tuple[Result, Rows, str],
) -> None:
    result, _, _ = with_bad
    assert result.code == 0, result.err
    assert "images 7, 2 of them bad" in result.out
    assert re.search(r"bad +bad/torn\.png: .*not an image", result.out)


def test_the_table_says_why_an_image_has_no_label(with_bad: tuple[Result, Rows, str]) -> None:
    _, rows, _ = with_bad
    assert [bool(row["error"]) for row in rows] == [True, False, False, False, False, False, True]
    assert [bool(row["label"]) for row in rows] == [False, True, True, True, True, True, False]
    assert "No such file" in rows[-1]["error"]


def test_the_contact_sheet_has_the_least_certain_first_and_the_bad_images_last(
    with_bad: tuple[Result, Rows, str],
) -> None:
    _, rows, page = with_bad
    certain = [
        Path(row["path"]).name
        for row in sorted(rows, key=lambda row: float(row["probability"] or 2))
    ]
    places = [page.index(name) for name in certain[:5]]
    assert places == sorted(places)
    assert max(places) < min(page.index("torn.png"), page.index("gone.png"))


def test_the_contact_sheet_needs_no_network(with_bad: tuple[Result, Rows, str]) -> None:
    _, _, page = with_bad
    sources = re.findall(r'(?:src|href)\s*=\s*["\']?([^"\'\s>]+)', page) + re.findall(
        r"url\(([^)]+)\)", page
    )
    assert len(sources) >= 5
    assert [source for source in sources if not source.startswith(("data:", "#"))] == []


def test_bad_images_alone_end_with_3(place: Workspace) -> None:
    for name in ("one", "two"):
        place.write(f"all_bad/{name}.png", "torn")
    result = place.run("predict", "--model", MODEL, "all_bad", "--output", "all_bad.csv")
    assert result.code == 3
    assert "None of the 2 images has a prediction" in result.err
    assert [bool(row["error"]) for row in table(place, "all_bad.csv")] == [True, True]


# -- modules of one's own --------------------------------------------------------------------------


@pytest.fixture
def own(workspace: Workspace) -> Workspace:
    """A workspace with `my_exports.py` and five images of one shade each."""
    workspace.write("my_exports.py", MY_EXPORTS)
    for number, shade in enumerate((10, 240, 30, 220, 50)):
        (workspace.folder / "new").mkdir(exist_ok=True)
        Image.new("RGB", (8, 8), (shade,) * 3).save(workspace.folder / "new" / f"{number}.png")
    return workspace


def words_of(module: str, data: str = "Grey") -> list[str]:
    """Arguments of a prediction of these images."""
    given = [
        f"--model=my_exports.{module}",
        f"--data=my_exports.{data}",
        "--accelerator=cpu",
        "--trainer.logger=false",
    ]
    return ["predict", *given, "new"]


def test_logits_of_ones_own_module_are_labels_with_the_names_of_its_data(own: Workspace) -> None:
    own.run(*words_of("Shades")).ok()
    rows = table(own)
    assert [row["label"] for row in rows] == ["dark", "bright", "dark", "bright", "dark"]
    mean = 10 / 255 - 0.5
    assert float(rows[0]["probability"]) == pytest.approx(1 / (1 + np.exp(2 * mean)), abs=1e-5)


def test_numbers_that_are_no_classes_are_columns(own: Workspace) -> None:
    own.run(*words_of("Sums")).ok()
    expected = [4 * (shade / 255 - 0.5) for shade in (10, 240, 30, 220, 50)]
    assert [float(row["prediction_0"]) for row in table(own)] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    ("module", "data", "says"),
    [
        ("Shades", "Unprepared", r"Unprepared .*preprocessing"),
        ("Pairs", "Grey", r"Pairs\.predict_step gives a dict for a batch of 2 images"),
    ],
    ids=["data_without_preprocessing", "another_output"],
)
def test_what_cannot_label_images_says_what_is_asked_of_it(
    own: Workspace, module: str, data: str, says: str
) -> None:
    result = own.run(*words_of(module, data))
    assert result.code == 2
    assert re.search(says, result.err, re.DOTALL), result.err
    assert not (own.folder / "predictions.csv").exists()
    assert own.runs == []


# -- never half a table ----------------------------------------------------------------------------


def left_behind(workspace: Workspace) -> list[str]:
    """Files of a prediction that did not end."""
    return [
        path.name
        for path in workspace.folder.rglob("*")
        if re.search(r"predictions|sheet", path.name)
    ]


def test_a_failure_in_the_middle_leaves_the_earlier_table(own: Workspace) -> None:
    own.write("predictions.csv", "an earlier one")
    result = own.run(*words_of("FailingShades"), "--contact-sheet", "sheet.html")
    assert result.code == 1
    assert "shades are out of stock" in result.err
    assert (own.folder / "predictions.csv").read_text(encoding="utf-8") == "an earlier one"
    assert left_behind(own) == ["predictions.csv"]


def test_a_signal_in_the_middle_leaves_no_table(own: Workspace) -> None:
    process = own.start(*words_of("WaitingShades"), "--contact-sheet", "sheet.html")
    process.wait_for((own.folder / "held").exists)
    process.signal(signal.SIGTERM)
    assert process.wait() == 143
    assert left_behind(own) == []


@pytest.mark.long
def test_a_kill_in_the_middle_leaves_no_table_of_that_name(own: Workspace) -> None:
    process = own.start(*words_of("WaitingShades"))
    process.wait_for((own.folder / "held").exists)
    process.signal_group(signal.SIGKILL)
    process.wait()
    assert not (own.folder / "predictions.csv").exists()


def test_a_signal_while_an_exported_file_labels_leaves_no_table(place: Workspace) -> None:
    reading, writing = os.pipe()
    words = (
        "predict",
        "--model",
        MODEL,
        "-",
        "--output",
        "cut/table.csv",
        "--contact-sheet",
        "cut/table.html",
    )
    process = place.start(*words, stdin=reading)
    os.close(reading)
    with os.fdopen(writing, "w") as lines:
        lines.write("new/a.png\n" * 500)
        lines.flush()
        process.wait_for(lambda: list(place.folder.glob("cut/*")))
        process.signal(signal.SIGTERM)
        assert process.wait() == 143
    assert list(place.folder.glob("cut/*")) == []


TWO_RANKS = {
    "joined": ["--accelerator.num_processes=2", "--accelerator.strategy=ddp"],
    "ddp": ["--accelerator.num_processes=2", "--accelerator.strategy=ddp"],
    "horovod": ["--accelerator.strategy=horovod", "--accelerator.gpus=0", "--launch.processes=2"],
}
needs_horovod = pytest.mark.skipif(
    find_spec("horovod") is None, reason="horovod is not installed: make horovod"
)


def has_second_rank(session: int) -> bool:
    """Tell whether a process of a session is told to be rank 1."""
    environs = []
    for pid in session_members(session):
        with contextlib.suppress(OSError):  # it has just ended
            environs.append(Path(f"/proc/{pid}/environ").read_bytes())
    return any(b"RANK=1\0" in environ for environ in environs)


@pytest.mark.parametrize(
    ("strategy", "images"),
    [
        ("joined", ["new"]),
        pytest.param("ddp", ["new"], marks=pytest.mark.long),
        pytest.param("ddp", ["new/a.png"], marks=pytest.mark.long),
        pytest.param("ddp", [], marks=pytest.mark.long),
        pytest.param("horovod", ["new"], marks=[pytest.mark.long, needs_horovod]),
    ],
    ids=["joined", "ddp", "more_ranks_than_images", "test_split", "horovod"],
)
def test_two_ranks_write_the_table_of_one(
    exported: Workspace, strategy: str, images: list[str]
) -> None:
    paint(exported.folder / "new", NEW)
    exported.write("new/b2.png", "torn")
    file = (exported.folder if images else exported.only_run) / "predictions.csv"
    exported.run("predict", "--run", "latest", *images).ok()
    alone = rows_of(file.read_text(encoding="utf-8"))
    file.unlink()
    words = ("predict", "--run", "latest", *images, *TWO_RANKS[strategy])
    if strategy == "joined":
        run_joined(exported, *words)
    else:
        process = exported.start(*words)
        if strategy == "ddp":  # ranks of Horovod are in sessions of their own
            process.wait_for(lambda: has_second_rank(process.pid))
        process.result().ok()
    assert parsed(rows_of(file.read_text(encoding="utf-8"))) == close_to(alone)


@pytest.mark.long
def test_many_images_take_no_more_memory_than_few(place: Workspace) -> None:
    place.write(
        "peak.py",
        "from pathlib import Path\nfrom lightkit.main import main\ncode = main()\n"
        "print(code, Path('/proc/self/status').read_text().partition('VmHWM:')[2].split()[0])\n",
    )
    peaks = []
    for num in (500, 10_000):
        place.write("many.csv", "path\n" + "new/a.png\n" * num)
        words = ("predict", "--model", MODEL, "many.csv", "--quiet", "--output", "many_out.csv")
        code, peak = map(int, place.run_cold(*words, script="peak.py").out.split())
        assert (code, len(table(place, "many_out.csv"))) == (0, num)
        peaks.append(peak)
    assert peaks[1] < 1.15 * peaks[0]


# -- mistakes, and files that are not what they say
# -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["nwe"], 3, r"nwe: there is no such file or folder; did you mean 'new'\?"),
        (
            ["rows.csv"],
            3,
            (
                r"rows\.csv: expected images: folders, .*it has 'size',"
                r" 'survived', and 'survived' has 'yes'"
            ),
        ),
        (["new", "--output", "t.xlsx"], 2, r"--output t\.xlsx: .*\.csv, \.parquet or"),
        (["new", "--contact-sheet", "s.pdf"], 2, r"--contact-sheet s\.pdf: .*\.html"),
        (["new", "--top-k", "0"], 2, r"--top-k 0: .*at least 1.*or all"),
        (
            ["new", "--trainer.devices=2"],
            2,
            r"--trainer\.devices=2.*no effect on an exported model",
        ),
        (["new", "-c", "pictures.yaml"], 2, r"-c pictures\.yaml.*no effect on an exported model"),
        ([], 2, r"needs IMAGES"),
    ],
    ids=["images", "rows", "output", "sheet", "top_k", "key", "config", "no_images"],
)
def test_an_error_is_reported_before_an_exported_file_is_opened(
    place: Workspace, words: list[str], code: int, says: str
) -> None:
    place.write("text.onnx", "opening this would be another error")
    place.write("rows.csv", "size,survived\n1.5,yes\n2.5,no\n")
    result = place.run("predict", "--model", "text.onnx", *words)
    assert (result.code, result.out) == (code, ""), result.err
    assert re.search(says, result.err), result.err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--model", "elsewhere.safetensors", "new"], r"weights only.*--run or -c"),
        (
            ["-c", "pictures.yaml", "--model=x.safetensors", "--ckpt_path=x.ckpt", "new"],
            r"--ckpt_path.*other weights",
        ),
        (["-c", "pictures.yaml", "--top-k=2"], r"--top-k 2: .*IMAGES"),
        (["-c", "pictures.yaml", "--output", "x.csv"], r"--output x\.csv: .*IMAGES"),
    ],
    ids=["weights_without_module", "two_weights", "top_k_without_images", "output_without_images"],
)
def test_words_that_do_not_go_together_are_reported(
    place: Workspace, words: list[str], says: str
) -> None:
    shutil.copy(
        place.folder / MODEL.replace("onnx", "safetensors"), place.folder / "elsewhere.safetensors"
    )
    result = place.run("predict", *words)
    assert result.code == 2, result.err
    assert re.search(says, result.err), result.err


@pytest.mark.parametrize("name", FILES)
def test_an_exported_file_that_was_altered_is_refused(exported: Workspace, name: str) -> None:
    paint(exported.folder / "new", NEW[:1])
    file = exported.only_run / "export" / name
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    result = exported.run("predict", "--model", str(file), "new")
    assert result.code == 3, result.err
    assert "not what was exported" in result.err
    assert not (exported.folder / "predictions.csv").exists()


def test_altered_weights_are_refused_without_the_record_of_their_export(place: Workspace) -> None:
    content = (place.folder / MODEL.replace("onnx", "safetensors")).read_bytes()
    (place.folder / "altered.safetensors").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    result = place.run(
        "predict", "--run", "latest", "--model", "altered.safetensors", "new", "--output", "-"
    )
    assert (result.code, result.out) == (3, ""), result.err
    assert "not what was exported" in result.err


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("gone.onnx", "there is no such file"),
        ("cut.onnx", "damaged or cut short"),
        ("cut.pt2", "damaged|cut short|cannot read"),
        ("cut.ts", "damaged|cut short|cannot read"),
        ("foreign.safetensors", "not an export of lightkit"),
    ],
    ids=["missing", "cut_onnx", "cut_pt2", "cut_ts", "foreign_weights"],
)
def test_a_file_that_is_no_whole_export_is_reported_in_a_line(
    place: Workspace, name: str, says: str
) -> None:
    from safetensors.numpy import save_file

    file = place.folder / name
    if name.startswith("cut"):
        content = (place.folder / MODEL).with_suffix(file.suffix).read_bytes()
        file.write_bytes(content[: len(content) // 2])
    elif name.startswith("foreign"):
        save_file({"weight": np.zeros((2, 2), np.float32)}, file)
    result = place.run("predict", "--run", "latest", "--model", str(file), "new", "--output", "-")
    assert (result.code, result.out) == (3, ""), result.err
    assert re.search(says, result.err), result.err
    assert str(file) in result.err or name in result.err
    assert result.err.count("\n") == 1, result.err


def test_weights_of_another_network_are_reported(place: Workspace) -> None:
    words = (
        "--model",
        MODEL.replace("onnx", "safetensors"),
        "--model.backbone=mobilenet_v2",
        "new",
        "--output",
        "-",
    )
    result = place.run("predict", *words)
    assert (result.code, result.out) == (2, ""), result.err
    assert "model.safetensors" in result.err
    assert "Traceback" not in result.err


# -- trust -----------------------------------------------------------------------------------------


class Touches:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mknod, (str(self.path),)


def write_hostile(file: Path, honest: Path, trap: Path) -> None:
    """Write a file whose loading would make the trap.

    A graph with pickled inputs, or a pickle under another name.
    """
    if file.suffix == ".pt2":
        with zipfile.ZipFile(honest) as archive:
            records = {name: archive.read(name) for name in archive.namelist()}
        buffer = io.BytesIO()
        import torch  # late: one test needs it

        torch.save(((Touches(trap),), {}), buffer)
        with zipfile.ZipFile(file, "w") as archive:
            for name, content in records.items():
                archive.writestr(name, buffer.getvalue() if "sample_inputs" in name else content)
    else:
        file.write_bytes(pickle.dumps(Touches(trap)))


@pytest.mark.parametrize("suffix", [".ts", ".ckpt"])
def test_a_foreign_file_with_code_does_not_run_without_trust(place: Workspace, suffix: str) -> None:
    file, trap = place.folder / f"foreign{suffix}", place.folder / f"sprung{suffix}"
    write_hostile(file, (place.folder / MODEL).with_suffix(".pt2"), trap)
    words = (
        ["-c", "pictures.yaml", "--ckpt_path", str(file)]
        if suffix == ".ckpt"
        else ["--model", str(file)]
    )
    result = place.run("predict", *words, "new", "--output", "-")
    assert result.code in (2, 3), result.err
    assert file.name in result.err
    assert result.out == ""
    assert not trap.exists()


def test_a_copied_graph_is_loaded_by_the_run_of_its_export_else_with_trust(
    place: Workspace, by_checkpoint: Rows
) -> None:
    shutil.copy(place.folder / MODEL.replace("onnx", "pt2"), place.folder / "copied.pt2")
    words = ("predict", "--model", "copied.pt2", "new", "--output", "copied.csv")
    alone = place.run(*words)
    assert alone.code == 2, alone.err
    assert re.search(r"copied\.pt2.*export\.json.*--run.*--trust", alone.err), alone.err
    for more in (("--run", "latest"), ("--trust",)):
        place.run(*words, *more).ok()
        assert parsed(table(place, "copied.csv")) == close_to(by_checkpoint)


def test_a_foreign_graph_with_pickled_objects_asks_for_trust(place: Workspace) -> None:
    file, trap = place.folder / "asks.pt2", place.folder / "asked"
    write_hostile(file, (place.folder / MODEL).with_suffix(".pt2"), trap)
    result = place.run("predict", "--model", str(file), "new", "--output", "-")
    assert result.code == 2
    assert "--trust" in result.err
    assert not trap.exists()
    trusted = place.run("predict", "--model", str(file), "new", "--output", "-", "--trust")
    assert trusted.code == 0, trusted.err
    assert trap.exists()
    assert file.name in trusted.err


@pytest.mark.parametrize("suffix", [".onnx", ".pt2"])
@pytest.mark.parametrize("content", [None, b"", b"PK\x03\x04 of something else"])
def test_a_missing_or_damaged_model_is_named_also_with_a_table(
    content: bytes | None, suffix: str, workspace: Workspace
) -> None:
    model = workspace.folder / f"model{suffix}"
    if content is not None:
        model.write_bytes(content)
    (workspace.folder / "rows.csv").write_text("size,price\n1,2\n", encoding="utf-8")
    result = workspace.run("predict", "--model", model.name, "rows.csv")
    says = "there is no such file" if content is None else "damaged or cut short"
    assert result.code == 3
    assert re.search(rf"^error: model\{suffix}: .*{says}", result.err, re.MULTILINE), result.err
