"""`lightkit predict --run RUN IMAGES`: labels by a run's model, without the data that it was trained on."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from lightkit.artefacts.metadata import Metadata
from lightkit.cli import main
from lightkit.models import ImageClassifier
from tests.cli.conftest import House, Outcome, undisturbed

CONFIG = """\
seed_everything: 7
model: {class_path: ImageClassifier, init_args: {backbone: small_cnn}}
data:
  class_path: lightkit.data.ImageFolder
  init_args: {root: photos, image_size: 16, num_workers: 0, batch_size: 4}
trainer: {accelerator: cpu, max_epochs: 1, logger: false}
"""
OWN = '''\
"""A classifier and data of somebody's own."""

import torch
from pytorch_lightning import LightningDataModule, LightningModule


class Shades(LightningModule):
    """Probabilities of dark and bright, by the mean of an image."""

    output_kind = "logits"

    def forward(self, images):
        mean = images.mean(dim=(1, 2, 3))
        return torch.stack([-mean, mean], dim=1)


class Sums(Shades):
    """One number an image."""

    def predict_step(self, batch):
        return batch.sum(dim=(1, 2, 3))


class Pairs(Shades):
    """Wants images with labels."""

    def predict_step(self, batch):
        images, labels = batch
        return {"labels": labels}


class Failing(Shades):
    """Fails at the third batch."""

    def predict_step(self, batch, batch_idx):
        if batch_idx == 2:
            raise RuntimeError("shades are out of stock")
        return self(batch).softmax(1)


class Grey(LightningDataModule):
    """Says how an image is prepared, and has no training data."""

    class_names = ["dark", "bright"]
    batch_size = 2

    def preprocessing(self, image):
        pixels = torch.tensor(list(image.resize((2, 2)).convert("L").getdata()), dtype=torch.float32)
        return pixels.reshape(1, 2, 2) / 255 - 0.5


class Unprepared(LightningDataModule):
    """Does not say it."""
'''


def table(path: Path | str = "predictions.csv") -> list[dict[str, str]]:
    """A CSV of predictions."""
    with Path(path).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def paint(folder: Path, *names: str) -> list[Path]:
    """Small images that differ."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(names):
        pixels = np.random.default_rng(number).integers(0, 256, (20, 24, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / name)
    return [folder / name for name in names]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working directory with the run of a small classifier."""
    folder = tmp_path_factory.mktemp("finished")
    for number in range(12):
        kind = ("daisy", "rose")[number % 2]
        place = folder / "photos" / ("train" if number < 8 else "val") / kind
        place.mkdir(parents=True, exist_ok=True)
        colour = (20 * number, 200, 0) if kind == "daisy" else (200, 20 * number, 0)
        Image.new("RGB", (16, 16), colour).save(place / f"{number}.png")
    (folder / "photos.yaml").write_text(CONFIG)
    with pytest.MonkeyPatch.context() as patch, undisturbed():
        patch.chdir(folder)
        patch.setenv("JSONARGPARSE_DEPRECATION_WARNINGS", "off")  # as conftest's house has it
        assert main(["fit", "-c", "photos.yaml", "--quiet"]) == 0
    return folder


@pytest.fixture
def trained(house: House, finished: Path) -> House:
    """The same run, without the data that it was trained on."""
    shutil.copytree(finished / "runs", house.folder / "runs", symlinks=True)
    shutil.copy(finished / "photos.yaml", house.folder)
    return house


def written_by_fit(run: Path) -> list[bytes]:
    """What of a run is not a prediction's to change."""
    return [(run / name).read_bytes() for name in ("config.yaml", "manifest.json", "metrics.csv")]


def probabilities_of(run: Path, paths: Sequence[Path]) -> torch.Tensor:
    """What the run's best checkpoint says, by hand."""
    from tests.data.torchvision_reference import eval_transform

    saved = torch.load(run / "checkpoints" / "best.ckpt", weights_only=True)
    model = ImageClassifier()
    model.on_load_checkpoint(saved)
    model.load_state_dict(saved["state_dict"])
    images = torch.stack([eval_transform(16)(Image.open(path).convert("RGB")) for path in paths])
    with torch.inference_mode():
        probabilities: torch.Tensor = model.eval()(images).softmax(1)
    return probabilities


@pytest.mark.slow
def test_images_are_labelled_as_the_checkpoint_says_though_the_training_data_are_gone(trained: House) -> None:
    paths = paint(trained.folder / "new", *(f"{number}.png" for number in range(5)))
    (trained.folder / "new" / "2b.png").write_bytes(b"torn")
    before = written_by_fit(trained.runs[-1])
    done = trained("predict", "--run", "latest", "new")
    assert done.code == 0, done.err
    rows = table()
    assert [Path(row["path"]).name for row in rows] == ["0.png", "1.png", "2.png", "2b.png", "3.png", "4.png"]
    good = [row for row in rows if not row["error"]]
    expected = probabilities_of(trained.runs[-1], paths)
    assert [row["label"] for row in good] == [("daisy", "rose")[at] for at in expected.argmax(1)]
    assert [float(row["probability"]) for row in good] == pytest.approx(expected.max(1).values.tolist(), abs=1e-5)
    assert [row["label"] for row in rows if row["error"]] == [""]
    assert "images 6, 1 of them bad" in done.out
    assert "bad    new/2b.png: not an image" in done.out
    assert "table  predictions.csv" in done.out
    assert written_by_fit(trained.runs[-1]) == before
    assert len(trained.runs) == 1
    assert not list(trained.runs[-1].glob("*predictions*")) + list(trained.runs[-1].glob(".predictions*"))


@pytest.mark.slow
def test_a_config_with_a_checkpoint_gives_the_same_in_the_form_that_is_asked_for(trained: House) -> None:
    paint(trained.folder / "new", "a.png", "b.png", "c.png")
    checkpoint = str(trained.runs[-1] / "checkpoints" / "best.ckpt")
    assert trained("predict", "--run", "latest", "new").code == 0
    words = ["--output", "out/all.jsonl", "--contact-sheet=out/sheet.html", "--top-k", "1"]
    done = trained("predict", "-c", "photos.yaml", "--ckpt_path", checkpoint, *words, "new/[ab].png", "new/c.png")
    assert done.code == 0, done.err
    rows = [json.loads(line) for line in Path("out/all.jsonl").read_text().splitlines()]
    assert [list(row) for row in rows] == [["path", "label", "probability", "error"]] * 3
    named = [(row["path"], row["label"], f"{row['probability']:.6f}") for row in rows]
    assert named == [(row["path"], row["label"], row["probability"]) for row in table()]
    assert "<figure" in Path("out/sheet.html").read_text()
    assert "sheet  out/sheet.html" in done.out


@pytest.mark.slow
def test_limits_of_the_trainer_leave_out_no_image(trained: House) -> None:
    paint(trained.folder / "new", *(f"{number}.png" for number in range(9)))
    done = trained("predict", "--run", "latest", "new", "--trainer.limit_predict_batches=1")
    assert done.code == 0, done.err
    assert len(table()) == 9
    assert done.err.count("limit_predict_batches: 1 does not hold for IMAGES") == 1


@pytest.mark.slow
def test_events_and_quiet_keep_the_table(trained: House) -> None:
    paint(trained.folder / "new", "a.png")
    done = trained("predict", "--run", "latest", "new", "--output", "json")
    assert done.code == 0, done.err
    assert [json.loads(line)["event"] for line in done.out.splitlines()][-1] == "end"
    assert len(table()) == 1
    Path("predictions.csv").unlink()
    quiet = trained("predict", "--run", "latest", "new", "--quiet", "--output", "-")
    assert (quiet.code, quiet.err) == (0, "")
    assert [line.split(",")[0] for line in quiet.out.splitlines()] == ["path", "new/a.png"]
    assert not Path("predictions.csv").exists()


@pytest.mark.slow
def test_images_none_of_which_can_be_read_are_told_and_end_with_3(trained: House) -> None:
    trained.write("new/a.png", "text")
    trained.write("new/b.png", "text")
    done = trained("predict", "--run", "latest", "new")
    assert done.code == 3
    assert "None of the 2 images has a prediction; predictions.csv says why." in done.err
    assert [bool(row["error"]) for row in table()] == [True, True]


# -- modules and data of one's own ------------------------------------------------------------------------------------


@pytest.fixture
def own(house: House) -> House:
    """A working directory with modules of somebody's own, and five images."""
    house.write("my_shades.py", OWN)
    for number, shade in enumerate((10, 240, 30, 220, 50)):
        (house.folder / "new").mkdir(exist_ok=True)
        Image.new("RGB", (8, 8), (shade,) * 3).save(house.folder / "new" / f"{number}.png")
    return house


def predict(house: House, module: str, *words: str, data: str = "Grey") -> Outcome:
    """Predict the five images."""
    given = [f"--model=my_shades.{module}", f"--data=my_shades.{data}", "--accelerator=cpu", "--trainer.logger=false"]
    return house("predict", *given, "new", *words)


def test_logits_of_ones_own_module_become_probabilities_with_the_names_of_its_data(own: House) -> None:
    done = predict(own, "Shades")
    assert done.code == 0, done.err
    rows = table()
    assert [row["label"] for row in rows] == ["dark", "bright", "dark", "bright", "dark"]
    mean = 10 / 255 - 0.5
    assert float(rows[0]["probability"]) == pytest.approx(float(torch.tensor([-mean, mean]).softmax(0)[0]), abs=1e-5)


def test_numbers_that_are_no_classes_are_columns(own: House) -> None:
    done = predict(own, "Sums")
    assert done.code == 0, done.err
    assert [float(row["prediction_0"]) for row in table()] == pytest.approx(
        [4 * (shade / 255 - 0.5) for shade in (10, 240, 30, 220, 50)], abs=1e-5
    )


@pytest.mark.parametrize(
    ("module", "data", "says"),
    [
        ("Shades", "Unprepared", "data: Unprepared has none; IMAGES are prepared as the data module's attribute"),
        ("Pairs", "Grey", "model: Pairs.predict_step gives a dict for a batch of 2 images; expected a tensor (2, cl"),
    ],
    ids=["data-without-preprocessing", "another-output"],
)
def test_what_cannot_label_images_says_what_is_asked_of_it(own: House, module: str, data: str, says: str) -> None:
    done = predict(own, module, data=data)
    assert done.code == 2
    assert says in done.err
    assert not Path("predictions.csv").exists()
    assert not own.runs


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_failure_in_the_middle_leaves_the_table_that_was_there(own: House) -> None:
    own.write("predictions.csv", "an earlier one")
    with pytest.raises(RuntimeError, match="out of stock"):
        predict(own, "Failing", "--contact-sheet", "sheet.html")
    assert Path("predictions.csv").read_text() == "an earlier one"
    assert {path.name for path in own.folder.iterdir()} & {"sheet.html"} == set()
    assert not [path for path in own.folder.rglob("*") if path.name.startswith(".predictions")]


# -- weights ----------------------------------------------------------------------------------------------------------


def export_by_hand(run: Path, file: Path, **said: Any) -> Path:
    """Write the best checkpoint's weights as an export does."""
    saved = torch.load(run / "checkpoints" / "best.ckpt", weights_only=True)
    names = tuple(saved["class_names"])
    metadata = Metadata(format="safetensors", model="evil.Thing", inputs=(), outputs=(), class_names=names, **said)
    file.parent.mkdir(parents=True, exist_ok=True)
    weights = {name: tensor.contiguous() for name, tensor in saved["state_dict"].items()}
    save_file(weights, file, metadata={"lightkit": metadata.dumps()})
    return file


@pytest.mark.slow
def test_exported_weights_label_as_their_checkpoint_and_know_their_run_by_their_place(trained: House) -> None:
    paint(trained.folder / "new", "a.png", "b.png", "c.png")
    run = trained.runs[-1]
    assert trained("predict", "--run", "latest", "new").code == 0
    expected = table()
    inside = export_by_hand(run, run / "export" / "model.safetensors")
    apart = export_by_hand(run, trained.folder / "apart.safetensors")
    shutil.rmtree(run / "checkpoints")
    for words in (
        ["--model", str(inside)],
        ["--run", "latest", f"--model={apart}"],
        ["-c", "photos.yaml", "--model", str(apart)],
    ):
        Path("predictions.csv").unlink()
        done = trained("predict", *words, "new")
        assert done.code == 0, done.err
        assert "untrained" not in done.err
        assert table() == expected


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["cut", "head", "text", "foreign", "other"])
def test_weights_that_are_not_what_was_exported_are_told_in_words(trained: House, damage: str) -> None:
    paint(trained.folder / "new", "a.png")
    file = export_by_hand(trained.runs[-1], trained.runs[-1] / "export" / "model.safetensors")
    content = file.read_bytes()
    if damage == "foreign":
        save_file({"weight": torch.zeros(2, 2)}, file)
    elif damage != "other":
        file.write_bytes({"cut": content[:-100], "head": content[:9] + b"\xff" + content[10:], "text": b"Hi"}[damage])
    more = ["--model.backbone=mobilenet_v2"] if damage == "other" else []
    done = trained("predict", "--model", str(file), "new", *more)
    assert done.code in (2, 3)
    assert done.err.startswith("error: ")
    assert str(file) in done.err
    assert "Traceback" not in done.err
    assert not Path("predictions.csv").exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ["--model", "x.safetensors", "new"],
            "this file has weights alone; say which module they are for: --run or -c",
        ),
        (
            ["-c", "small.yaml", "--model=x.safetensors"],
            "--model x.safetensors: predict with an exported file needs IM",
        ),
        (
            ["-c", "small.yaml", "--model=x.safetensors", "--ckpt_path=x.ckpt", "new"],
            "--ckpt_path names other weights; leave one of the two out",
        ),
        (["-c", "small.yaml", "--top-k=2"], "--top-k 2: it is about the predictions of IMAGES, and none are named"),
        (["-c", "small.yaml", "--output", "x.csv"], "--output x.csv: it is about the predictions of IMAGES"),
        (["-c", "small.yaml", "--top-k=none", "new"], "--top-k none: expected a whole number of at least 1"),
        (
            ["-c", "small.yaml", "--output=x.txt", "new"],
            "--output x.txt: expected a file that ends in .csv, .parquet or",
        ),
        (
            ["-c", "small.yaml", "--contact-sheet=x.csv", "new"],
            "--contact-sheet x.csv: expected a file that ends in .ht",
        ),
        (["-c", "small.yaml", "nwe"], "nwe: there is no such file or folder; did you mean 'new'?"),
    ],
    ids=["no-run", "no-images", "two-weights", "top-k", "output", "no-number", "format", "sheet", "no-file"],
)
def test_words_that_do_not_go_together_are_told_before_anything_is_built(
    house: House, words: list[str], says: str
) -> None:
    paint(house.folder / "new", "a.png")
    done = house("predict", *words)
    assert done.code == (3 if says.startswith("nwe") else 2)
    assert says in done.err
    assert not house.runs
