"""`lightkit fit` from a table: with the config that is shown, and with a table that is not there."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from lightkit.cli import main
from tests.cli.commands import Ended, only_run, run, summary

CONFIG = Path(__file__).parents[2] / "configs" / "flowers_delta.yaml"
SMALL = [
    "--model.backbone=small_cnn",
    "--model.weights=null",
    "--model.freeze=null",
    "--data.image_size=32",
    "--data.batch_size=4",
    "--data.num_workers=1",
    "--trainer.max_epochs=1",
]


def delta_table(folder: Path, *, broken: int = 0) -> Path:
    """Forty pictures of two colours, of which the first of the training split are none."""
    deltalake = pytest.importorskip("deltalake", reason="needs the extra delta (deltalake)")
    random = np.random.default_rng(3)
    images = []
    for number in range(40):
        pixels = random.integers(0, 90, (20, 24, 3), dtype=np.uint8)
        pixels[..., number % 2] += 150
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, format="JPEG")
        images.append(b"no picture" if number < broken else file.getvalue())
    splits = ["val" if number % 4 == 3 else "train" for number in range(40)]
    labels = ["red" if number % 2 == 0 else "green" for number in range(40)]
    table = pa.table({"image": images, "label": labels, "split": splits})
    deltalake.write_deltalake(folder / "table", table)
    return folder / "table"


def fit(folder: Path, table: Path, *words: str) -> Ended:
    settings = {"FLOWERS_TABLE": str(table), "XDG_CACHE_HOME": str(folder / "cache")}
    return run(folder, "fit", "-c", str(CONFIG), *SMALL, *words, environ=settings, timeout_s=280)


@pytest.mark.slow
def test_two_processes_train_from_a_delta_table_and_leave_out_a_broken_row(tmp_path: Path) -> None:
    table = delta_table(tmp_path, broken=1)
    done = fit(tmp_path, table)
    assert done.code == 0, done.err
    assert "table: 30 train, 10 val, 0 test" in done.out
    assert "the training split has 1 row group for 2 processes" in done.err
    data = json.loads((only_run(tmp_path) / "manifest.json").read_text())["data"]
    assert (data["format"], data["version"], data["class_names"]) == ("delta", 0, ["green", "red"])
    listed = (only_run(tmp_path) / "bad_images.csv").read_text().splitlines()
    assert len(listed) == 2
    assert "row 0" in listed[1]
    assert summary(tmp_path)["status"] == "done"


@pytest.mark.slow
def test_more_broken_rows_than_are_allowed_end_with_code_3_after_an_epoch(tmp_path: Path) -> None:
    done = fit(tmp_path, delta_table(tmp_path, broken=4), "--trainer.devices=1", "--trainer.strategy=auto")
    assert done.code == 3, done.err
    assert "3 of the 30 rows of an epoch could not be read" in done.err
    assert "Traceback" not in done.err
    assert (only_run(tmp_path) / "checkpoints" / "last.ckpt").is_file()


@pytest.fixture
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JSONARGPARSE_DEPRECATION_WARNINGS", "off")


@pytest.mark.usefixtures("_quiet")
@pytest.mark.parametrize(("command", "code"), [("fit", 3), ("check", 2)], ids=["fit", "check"])
def test_a_table_that_is_not_there_is_told_before_anything_is_built(
    command: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("flowers").mkdir()
    Path("job.yaml").write_text(
        "model:\n  class_path: ImageClassifier\ndata:\n  class_path: Table\n  init_args:\n    path: flowerz\n"
    )
    assert main([command, "-c", "job.yaml"]) == code
    said = capsys.readouterr().err
    assert "data.init_args.path: there is no folder or file flowerz; did you mean 'flowers'?" in said
    assert "job.yaml:6:11" in said


@pytest.mark.usefixtures("_quiet")
def test_an_address_is_not_looked_for_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text(
        "model:\n  class_path: ImageClassifier\ndata:\n  class_path: Table\n  init_args:\n    path: s3://bucket/flowers\n"
    )
    assert main(["check", "-c", "job.yaml"]) == 0, capsys.readouterr().err
