"""One model, in every format that runs by itself, asked about the same photos."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lightkit.artefacts.metadata import FILES, Metadata, TensorSpec
from lightkit.images.preprocessing import Preprocessing
from tests.cli.conftest import House

PREPROCESSING = Preprocessing(resize=36, crop=(32, 32), mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
CLASSES = ("daisy", "dandelion", "roses", "sunflowers", "tulips")
ODD = ("1_trns.png", "hopper_gray.jpg", "hopper_orientation_6.webp", "mode_16bit.png", "chi.gif")
FORMATS = ("onnx", "torch_export", "torchscript")


class SmallNet(nn.Module):
    """A classifier whose probabilities are far from equal."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Conv2d(3, 8, 5, stride=2)
        self.head = nn.Linear(8 * 14 * 14, len(CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        """Give logits (batch, classes)."""
        logits: Tensor = self.head(torch.relu(self.features(x)).flatten(1))
        return logits


@pytest.fixture
def several_photos(tmp_path: Path) -> Path:
    """Some real photos and some odd ones, linked into one folder."""
    shared = Path(__file__).parents[2].parent / "shared" / "data"
    if not (shared / "flower_photos").is_dir():
        pytest.skip(f"needs the flower photos in {shared / 'flower_photos'}")
    found = sorted((shared / "flower_photos").glob("*/*.jpg"))[::90]
    found += [path for name in ODD if (path := shared / "odd_images" / name).is_file()]
    (tmp_path / "photos").mkdir()
    for number, path in enumerate(found):
        (tmp_path / "photos" / f"{number:02}-{path.name}").symlink_to(path)
    return tmp_path / "photos"


@pytest.mark.slow
@pytest.mark.parametrize("in_graph", [False, True], ids=["plain", "preprocessing in the graph"])
def test_each_format_gives_the_same_answers_as_the_model(house: House, several_photos: Path, in_graph: bool) -> None:
    pytest.importorskip("onnxscript", reason="needs the extra lightkit[onnx]")
    torch.manual_seed(7)
    model = SmallNet().eval()
    write_all(model, house.folder, in_graph=in_graph)
    expected = eager(model, several_photos)
    for kind in FORMATS:
        words = ("--model", FILES[kind], "photos", "--output", f"{kind}.csv", "--top-k", str(len(CLASSES)))
        done = house("predict", *words)
        assert done.code == 0, done.err
        names, found = answers_of(house.folder / f"{kind}.csv")
        assert names == sorted(path.name for path in several_photos.iterdir())
        np.testing.assert_allclose(found, expected, atol=1e-4, err_msg=kind)
        assert (found.argmax(1) == expected.argmax(1)).all()
    assert len(set(expected.argmax(1))) > 1, "answers that are all the same prove little"


def write_all(model: nn.Module, folder: Path, *, in_graph: bool) -> None:
    """Write the model in each format."""
    from lightkit.export.in_graph import with_preprocessing
    from lightkit.export.subject import Subject, WriteOptions
    from lightkit.export.writing import write

    metadata = Metadata(
        format="onnx",
        model="SmallNet",
        inputs=(TensorSpec("x", "float32", (None, 3, 32, 32)),),
        outputs=(TensorSpec("output", "float32", (None, len(CLASSES))),),
        output_kind="logits",
        class_names=CLASSES,
        preprocessing=PREPROCESSING,
    )
    subject = Subject(model, (torch.rand(2, 3, 32, 32),), metadata, model)
    if in_graph:
        images = (TensorSpec("images", "uint8", (None, None, None, 3)),)
        subject = replace(
            subject,
            model=with_preprocessing(model, PREPROCESSING, "logits"),
            example=(torch.randint(0, 256, (2, 40, 52, 3), dtype=torch.uint8),),
            metadata=replace(metadata, inputs=images, output_kind="probabilities", in_graph=True),
        )
    for kind in FORMATS:
        write(kind, subject, folder / FILES[kind], WriteOptions())


def eager(model: nn.Module, folder: Path) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """Give the model's probabilities for each image of a folder, (images, classes)."""
    from lightkit.images.reading import read_rgb

    inputs = [torch.from_numpy(PREPROCESSING(read_rgb(path))) for path in sorted(folder.iterdir())]
    with torch.no_grad():
        probabilities: np.ndarray[tuple[int, ...], np.dtype[np.float32]]
        probabilities = model(torch.stack(inputs)).softmax(1).numpy()
    return probabilities


def answers_of(table: Path) -> tuple[list[str], np.ndarray[tuple[int, ...], np.dtype[np.float64]]]:
    """Give the names in a table of predictions, and the probabilities in the order of the classes."""
    names, rows = [], []
    with table.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            ranks = ("", *(f"_{rank}" for rank in range(2, len(CLASSES) + 1)))
            told = {row[f"label{rank}"]: float(row[f"probability{rank}"]) for rank in ranks}
            names.append(Path(row["path"]).name)
            rows.append([told[name] for name in CLASSES])
    return names, np.array(rows)
