"""Exported weights go back into the module that they were written of, and into no other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from pytorch_lightning import LightningModule
from safetensors.torch import save_file, save_model

from lightkit.errors import ConfigError, DataError
from lightkit.export.metadata import Metadata
from lightkit.models import ImageClassifier
from lightkit.models.backbones import load_exported
from lightkit.runs.checkpoints import digest

NAMES = ("daisy", "rose", "tulip")


def said(**more: object) -> dict[str, str]:
    """What the file says of itself."""
    metadata = Metadata(format="safetensors", model="any.Thing", inputs=(), outputs=(), **more)  # type: ignore[arg-type]
    return {"lightkit": metadata.dumps()}


class Tied(LightningModule):
    """Two layers with one weight, as a language model's first and last have."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(3, 3)
        self.last = torch.nn.Linear(3, 3)
        self.last.weight = self.first.weight


class BuiltLate(LightningModule):
    """Makes its layers where strategies ask for them."""

    def configure_model(self) -> None:
        self.layer = torch.nn.Linear(2, 2)


@pytest.fixture
def classifier(tmp_path: Path) -> tuple[ImageClassifier, Path]:
    """A classifier of three classes, and its exported weights."""
    torch.manual_seed(1)
    model = ImageClassifier(class_names=list(NAMES))
    model.configure_model()
    save_model(model, str(tmp_path / "model.safetensors"), metadata=said(class_names=NAMES))
    return model.eval(), tmp_path / "model.safetensors"


def test_a_classifier_is_built_for_the_files_classes_and_gives_the_same_logits(
    classifier: tuple[ImageClassifier, Path],
) -> None:
    model, file = classifier
    again = ImageClassifier(weights="a file that is not asked for")
    load_exported(again, file)
    again.load_weights()  # as Lightning's hook does when a stage starts
    images = torch.randn(2, 3, 32, 32)
    assert again.class_names == list(NAMES)
    assert torch.equal(again.eval()(images), model(images))


def test_weights_that_two_layers_share_are_in_the_file_once_and_in_both_layers(
    tmp_path: Path,
) -> None:
    torch.manual_seed(2)
    module, again = Tied(), Tied()
    save_model(module, str(tmp_path / "x.safetensors"), metadata=said())
    load_exported(again, tmp_path / "x.safetensors")
    assert torch.equal(again.last.weight, module.first.weight)
    assert torch.equal(again.first.weight, module.first.weight)
    assert torch.equal(again.last.bias, module.last.bias)


def test_a_module_that_is_built_late_is_built_before_it_gets_weights(tmp_path: Path) -> None:
    save_file(
        {"layer.weight": torch.eye(2), "layer.bias": torch.ones(2)},
        tmp_path / "x.safetensors",
        metadata=said(),
    )
    module = BuiltLate()
    load_exported(module, tmp_path / "x.safetensors")
    assert torch.equal(module.layer.weight, torch.eye(2))


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (
            ImageClassifier(backbone="mobilenet_v2"),
            "these weights are not of this ImageClassifier. .*Missing key",
        ),
        (
            ImageClassifier(class_names=["daisy", "rose"]),
            "The classes of the weights are not those of the data",
        ),
        (Tied(), "these weights are not of this Tied. .*Missing key.*first.weight"),
    ],
    ids=["another-backbone", "other-classes", "another-class"],
)
def test_weights_of_another_model_are_refused(
    classifier: tuple[ImageClassifier, Path], model: LightningModule, says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        load_exported(model, classifier[1])


@pytest.mark.parametrize("at", [100, -2], ids=["head", "weights"])
def test_a_file_that_was_altered_is_refused(
    classifier: tuple[ImageClassifier, Path], at: int
) -> None:
    file = classifier[1]
    record = {"artefacts": {file.name: {"sha256": digest(file)}}}
    file.with_name("export.json").write_text(json.dumps(record))
    load_exported(ImageClassifier(), file)
    content = bytearray(file.read_bytes())
    content[at] ^= 1
    file.write_bytes(content)
    with pytest.raises(DataError, match=str(file)):
        load_exported(ImageClassifier(), file)


@pytest.mark.parametrize(
    "content",
    [b"", b"text", b"\xff" * 64, b"PK\x03\x04" * 20],
    ids=["empty", "text", "long", "zip"],
)
def test_what_is_no_safetensors_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.safetensors").write_bytes(content)
    with pytest.raises(DataError, match="not an export of lightkit, or it is damaged or cut short"):
        load_exported(ImageClassifier(), tmp_path / "x.safetensors")


def test_a_file_that_is_cut_short_is_refused(classifier: tuple[ImageClassifier, Path]) -> None:
    file = classifier[1]
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(ConfigError, match="these weights are not of this ImageClassifier"):
        load_exported(ImageClassifier(), file)
