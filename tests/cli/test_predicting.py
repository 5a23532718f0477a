"""Predictions by exported files that are made by hand: no run, no config, no torch."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tests.cli.conftest import House
from tests.prediction.conftest import COLOURS, MakeOnnx, colours, environment, expected_of, make_onnx

__all__ = ["colours", "make_onnx"]  # fixtures


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def read(path: Path) -> list[dict[str, str]]:
    return rows_of(path.read_text(encoding="utf-8"))


def test_images_are_labelled_by_a_file_alone(house: House, make_onnx: MakeOnnx, colours: Path) -> None:
    done = house("predict", "--model", str(make_onnx()), "colours")
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines() == ["images 4", "table  predictions.csv"]
    rows = read(house.folder / "predictions.csv")
    assert [row["path"] for row in rows] == [
        "colours/blue/plain.png",
        "colours/green/plain.png",
        "colours/noise.png",
        "colours/red/plain.png",
    ]
    assert [rows[at]["label"] for at in (0, 1, 3)] == ["blue", "green", "red"]
    for row in rows:
        expected = expected_of(house.folder / row["path"])
        told = {row[f"label{nth}"]: float(row[f"probability{nth}"]) for nth in ("", "_2", "_3")}
        np.testing.assert_allclose([told[name] for name in COLOURS], expected, atol=1e-6)


def test_a_model_with_its_preprocessing_in_the_graph_gets_the_images_as_they_are(
    house: House, make_onnx: MakeOnnx, colours: Path
) -> None:
    done = house("predict", "--model", str(make_onnx(in_graph=True)), "colours/red", "colours/blue", "--top-k=1")
    assert done.code == 0, done.err
    rows = read(house.folder / "predictions.csv")
    assert [(row["label"], row["probability"]) for row in rows] == [("red", "1.000000"), ("blue", "1.000000")]


def test_the_table_has_the_format_of_its_name(house: House, make_onnx: MakeOnnx, colours: Path) -> None:
    from pyarrow import parquet

    model = str(make_onnx())
    for name in ("out/t.csv", "out/t.jsonl", "out/t.parquet"):
        assert house("predict", f"--model={model}", "colours", "--output", name).code == 0
    from_csv = read(house.folder / "out" / "t.csv")
    lines = (house.folder / "out" / "t.jsonl").read_text().splitlines()
    from_json = [json.loads(line) for line in lines]
    from_parquet = parquet.read_table(house.folder / "out" / "t.parquet").to_pylist()
    for column in ("path", "label", "label_2"):
        expected = [row[column] for row in from_csv]
        assert [row[column] for row in from_json] == [row[column] for row in from_parquet] == expected
    np.testing.assert_allclose(
        [row["probability"] for row in from_parquet], [float(row["probability"]) for row in from_csv], atol=1e-6
    )


def test_standard_output_has_the_table_and_nothing_else(house: House, make_onnx: MakeOnnx, colours: Path) -> None:
    done = house("predict", "--model", str(make_onnx()), "colours", "--output", "-")
    assert len(rows_of(done.out)) == 4
    assert "table  standard output" in done.err
    assert not (house.folder / "predictions.csv").exists()


def test_paths_may_come_on_standard_input(
    house: House, make_onnx: MakeOnnx, colours: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"colours/noise.png\ncolours/red/plain.png\n")))
    assert house("predict", "--model", str(make_onnx()), "-").code == 0
    rows = read(house.folder / "predictions.csv")
    assert [row["path"] for row in rows] == ["colours/noise.png", "colours/red/plain.png"]


def test_no_path_on_standard_input_is_an_error_and_leaves_no_table(
    house: House, make_onnx: MakeOnnx, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\n")))
    done = house("predict", "--model", str(make_onnx()), "-")
    assert done.code == 3
    assert "standard input has no paths" in done.err
    assert not (house.folder / "predictions.csv").exists()


def test_bad_images_are_rows_and_told_and_the_exit_code_is_0(house: House, make_onnx: MakeOnnx, colours: Path) -> None:
    (colours / "a\nbad.png").write_bytes(b"no image")
    done = house("predict", "--model", str(make_onnx()), "colours", "--contact-sheet", "sheet.html")
    assert done.code == 0
    assert "images 5, 1 of them bad" in done.out
    assert "bad.png: not an image in any format that Pillow knows" in done.out
    bad = read(house.folder / "predictions.csv")[0]
    assert (bad["path"], bad["label"]) == ("colours/a\nbad.png", "")
    assert bad["error"] == "not an image in any format that Pillow knows"
    page = (house.folder / "sheet.html").read_text()
    assert page.index("noise.png") < page.index("green/plain.png") < page.index("bad.png")


def test_bad_images_alone_are_an_error_and_listed(house: House, make_onnx: MakeOnnx, colours: Path) -> None:
    (colours / "bad.png").write_bytes(b"no image")
    done = house("predict", "--model", str(make_onnx()), "colours/bad.png", "colours/bad.png")
    assert done.code == 3
    assert "None of the 2 images has a prediction" in done.err
    assert len(read(house.folder / "predictions.csv")) == 2


def test_a_table_of_paths_may_name_what_is_not_there(house: House, make_onnx: MakeOnnx, colours: Path) -> None:
    house.write("list.csv", "n,path\n1,colours/noise.png\n2,gone.png\n")
    done = house("predict", "--model", str(make_onnx()), "list.csv")
    assert done.code == 0
    assert [row["error"] for row in read(house.folder / "predictions.csv")] == ["", "No such file or directory"]


def test_json_is_one_event_and_quiet_is_nothing(house: House, make_onnx: MakeOnnx, colours: Path) -> None:
    model = str(make_onnx())
    event = json.loads(house("predict", "--model", model, "colours", "--output", "json").out)
    assert (event["event"], event["stage"]) == ("result", "predict")
    assert event["metrics"] == {"images": 4, "bad_images": 0}
    done = house("predict", "--model", model, "colours", "--quiet")
    assert (done.out, done.err) == ("", "")


def test_a_file_is_found_in_the_export_folder_of_a_run(house: House, make_onnx: MakeOnnx, colours: Path) -> None:
    run = house.folder / "runs" / "job" / "20260101-000000-1"
    (run / "export").mkdir(parents=True)
    for name in ("config.yaml", "manifest.json", "events.jsonl"):
        (run / name).write_text("{}")
    make_onnx().rename(run / "export" / "model.onnx")
    done = house("predict", "--run", str(run), "--model", "model.onnx", "colours")
    assert done.code == 0, done.err


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["colour"], 3, "colour: there is no such file or folder; did you mean 'colours'?"),
        (["colours", "--output", "t.xlsx"], 2, "--output t.xlsx: expected a file that ends in .csv, .parquet or"),
        (["colours", "--contact-sheet", "s.pdf"], 2, "--contact-sheet s.pdf: expected a file that ends in .html"),
        (["colours", "--top-k", "0"], 2, "--top-k 0: expected a whole number of at least 1"),
        (["colours", "--trainer.devices=2"], 2, "--trainer.devices=2: this has no effect on an exported model"),
        (["colours", "-c", "small.yaml"], 2, "-c small.yaml: this has no effect on an exported model"),
        (["colours", "--ckpt_path=last"], 2, "--ckpt_path last: this has no effect on an exported model"),
        ([], 2, "predict with an exported file needs IMAGES"),
    ],
    ids=["images", "output", "sheet", "top k", "key", "config", "checkpoint", "nothing"],
)
def test_a_mistake_is_told_before_the_model_is_opened(
    house: House, colours: Path, words: list[str], code: int, says: str
) -> None:
    house.write("model.onnx", "opening this would be another error")
    done = house("predict", "--model", "model.onnx", *words)
    assert (done.code, done.out) == (code, "")
    assert says in done.err
    assert "Traceback" not in done.err


def test_a_file_that_is_missing_damaged_or_of_no_images_is_told_in_a_line(
    house: House, make_onnx: MakeOnnx, colours: Path
) -> None:
    whole = make_onnx("whole.onnx")
    (house.folder / "cut.onnx").write_bytes(whole.read_bytes()[:200])
    make_onnx("foreign.onnx", of_lightkit=False)
    make_onnx("points.onnx", preprocessing=None)
    says = {
        "gone.onnx": "gone.onnx: there is no such file",
        "cut.onnx": "cut.onnx: this is no export of lightkit, or it is damaged or cut short",
        "foreign.onnx": "foreign.onnx: this is no export of lightkit",
        "points.onnx": "points.onnx: this model does not say what is done to an image",
    }
    for name, words in says.items():
        done = house("predict", "--model", name, "colours")
        assert done.code == 3
        assert words in done.err
        assert done.err.count("\n") == 1, done.err
    assert not (house.folder / "predictions.csv").exists()


_WITHOUT_TORCH = """
import sys
from lightkit.cli import main
code = main(sys.argv[1:])
loaded = sorted({"torch", "pytorch_lightning", "torchvision", "mlflow", "onnx"} & {*sys.modules})
print(code, loaded, file=sys.stderr)
"""


@pytest.mark.slow
def test_an_onnx_file_is_asked_without_torch(make_onnx: MakeOnnx, colours: Path) -> None:
    words = [sys.executable, "-c", _WITHOUT_TORCH, "predict", "--model", str(make_onnx()), "colours", "--output", "-"]
    done = subprocess.run(
        words, cwd=colours.parent, capture_output=True, text=True, env=environment(), timeout=120, check=True
    )
    assert done.stderr.splitlines()[-1] == "0 []"
    assert len(rows_of(done.stdout)) == 4


@pytest.mark.slow
def test_a_signal_in_the_middle_leaves_no_file(make_onnx: MakeOnnx, colours: Path) -> None:
    words = [sys.executable, "-m", "lightkit", "predict", "--model", str(make_onnx()), "-", "--contact-sheet", "s.html"]
    process = subprocess.Popen(
        words, cwd=colours.parent, stdin=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(), text=True
    )
    with process:
        assert process.stdin is not None
        process.stdin.write("colours/noise.png\n" * 500)
        process.stdin.flush()
        until(
            lambda: process.poll() is not None or any(".predictions.csv." in name for name in names_in(colours.parent))
        )
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 143
    assert not [name for name in names_in(colours.parent) if "predictions" in name or "s.html" in name]


def names_in(folder: Path) -> list[str]:
    return os.listdir(folder)  # noqa: PTH208


def until(holds: object, timeout_s: float = 60) -> None:
    """Wait for something that another process does."""
    assert callable(holds)
    end = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


_PEAK = """
import sys
from pathlib import Path
from lightkit.cli import main
code = main(sys.argv[1:])
print(code, Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc to measure memory")
def test_many_images_take_no_more_memory_than_few(make_onnx: MakeOnnx, colours: Path) -> None:
    model, peaks = str(make_onnx()), []
    for num in (500, 10_000):
        (colours.parent / "list.csv").write_text("path\n" + "colours/noise.png\n" * num)
        words = [sys.executable, "-c", _PEAK, "predict", "--model", model, "list.csv", "--quiet", "--output", "t.csv"]
        done = subprocess.run(words, cwd=colours.parent, capture_output=True, text=True, env=environment(), check=True)
        code, peak = map(int, done.stdout.split())
        assert code == 0
        assert len(read(colours.parent / "t.csv")) == num
        peaks.append(peak)
    assert peaks[1] < 1.15 * peaks[0], peaks
