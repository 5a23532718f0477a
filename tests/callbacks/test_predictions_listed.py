"""Which numbers of a module are taken as probabilities of classes.

By the rule that holds for exported files.
"""

from __future__ import annotations

import csv
import json
import logging
import re
from collections import deque
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from pytorch_lightning import LightningModule, Trainer
from torch import Tensor

from lightkit.callbacks.predictions import ListedPredictions
from lightkit.errors import ConfigError
from lightkit.prediction.table import Prediction, write_predictions

LOGITS = torch.tensor([[3.0, -1.0]])


class Plain(LightningModule):
    """Says nothing of what its output is."""


class Logits(LightningModule):
    """Says that forward gives logits, which become probabilities."""

    output_kind = "logits"


class Probabilities(LightningModule):
    """Says that forward gives probabilities."""

    output_kind = "probabilities"


class OwnStep(LightningModule):
    """Returns its input."""

    output_kind = "logits"

    def predict_step(self, batch: Tensor) -> Tensor:
        return batch


class OwnStepOfWhoKnows(OwnStep):
    """Returns its input, and does not say what it is."""

    output_kind = "other"


def head_of(
    module: LightningModule, values: Tensor, folder: Path, *, is_bad: bool = False, **settings: Any
) -> tuple[list[str], list[str]]:
    """Predict one image, and give the table's head and its row."""
    entry = Prediction(0, "a.png", None, "broken" if is_bad else None)
    data = SimpleNamespace(
        entries=deque([[entry]]),
        trained_names=None,
        names_of_data=lambda: ["dark", "bright"],
        paths=["a.png"],
        unit="images",
        count_samples=len,
    )
    trainer = cast("Trainer", SimpleNamespace(is_global_zero=True, datamodule=data, strategy=None))
    callback = ListedPredictions(
        partial(write_predictions, folder / "t.csv"), on_written=lambda _: None, **settings
    )
    callback.on_predict_batch_end(trainer, module, values, values, 0)
    callback.on_predict_end(trainer, module)
    with (folder / "t.csv").open(newline="") as file:
        head, row = csv.reader(file)
    return head, row


@pytest.mark.parametrize(
    ("module", "values", "expected"),
    [
        (Plain(), LOGITS, ["prediction_0", "3.0"]),
        (Logits(), LOGITS, ["label", "dark"]),
        (Probabilities(), LOGITS.softmax(1), ["label", "dark"]),
        (OwnStep(), LOGITS.softmax(1), ["label", "dark"]),
        (
            OwnStepOfWhoKnows(),
            LOGITS.softmax(1),
            ["prediction_0", str(np.float32(LOGITS.softmax(1)[0, 0]))],
        ),
    ],
    ids=["unknown", "logits", "probabilities", "own-step", "own-step-unknown"],
)
def test_only_what_is_known_to_be_probabilities_is_reported_as_such(
    tmp_path: Path, module: LightningModule, values: Tensor, expected: list[str]
) -> None:
    head, row = head_of(module, values, tmp_path)
    assert [head[1], row[1]] == expected
    if head[1] == "label":
        assert float(row[2]) == pytest.approx(float(LOGITS.softmax(1)[0, 0]), abs=1e-6)


def test_a_step_that_gives_logits_as_probabilities_is_reported_and_its_numbers_are_columns(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        head, _ = head_of(OwnStep(), LOGITS, tmp_path)
    assert head == ["path", "prediction_0", "prediction_1", "error"]
    assert "OwnStep.predict_step gives 2 numbers a sample that are not probabilities" in caplog.text


def test_one_number_of_a_step_that_is_no_probability_is_one_column(tmp_path: Path) -> None:
    head, row = head_of(OwnStep(), torch.tensor([4.5]), tmp_path)
    assert (head, row) == (["path", "prediction_0", "error"], ["a.png", "4.5", ""])
    head, row = head_of(OwnStep(), torch.tensor([0.75]), tmp_path)
    assert row[1:5] == ["bright", "0.750000", "dark", "0.250000"]


def test_the_numbers_of_a_module_that_names_more_classes_are_columns(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    module: Any = Logits()
    module.class_names = ["a", "b", "c"]
    with caplog.at_level(logging.WARNING):
        head, _ = head_of(module, LOGITS, tmp_path)
    assert head == ["path", "prediction_0", "prediction_1", "error"]
    assert "gives 2 numbers a sample that are not probabilities of 3 classes" in caplog.text


def test_a_pipe_is_reported_how_far_it_is_and_no_more_than_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lightkit.images.progress._LINE_EVERY_S", 0.0)
    lines: list[str] = []
    head_of(Plain(), LOGITS, tmp_path, print_progress=lines.append)
    assert len(lines) == 1
    assert re.fullmatch(r"1 of 1 images  \d+/s", lines[0])


BOXES = [{"boxes": torch.tensor([[0.1, 2.0, 3.0, 4.0]]), "labels": torch.tensor([1])}]


def predict_one(module: LightningModule, outputs: Any, output: Path, **settings: Any) -> None:
    entries = deque([[Prediction(0, "a.png", None, None)]])
    data = SimpleNamespace(entries=entries, paths=["a.png"], unit="images", count_samples=len)
    trainer = cast("Trainer", SimpleNamespace(is_global_zero=True, datamodule=data, strategy=None))
    callback = ListedPredictions(
        partial(write_predictions, output, **settings), on_written=lambda _: None
    )
    callback.on_predict_batch_end(trainer, module, outputs, torch.zeros(1, 3, 2, 2), 0)
    callback.on_predict_end(trainer, module)


def test_boxes_of_an_image_are_a_json_line(tmp_path: Path) -> None:
    predict_one(Plain(), BOXES, tmp_path / "t.jsonl")
    (line,) = (tmp_path / "t.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(line) == {
        "path": "a.png",
        "boxes": [[0.1, 2.0, 3.0, 4.0]],
        "labels": [1],
        "error": None,
    }


def test_boxes_are_in_no_table_and_on_no_page(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"t\.csv: .* Name a file that ends in \.jsonl"):
        predict_one(Plain(), BOXES, tmp_path / "t.csv")
    with pytest.raises(ConfigError, match=r"--contact-sheet .*s\.html: .* Leave it out"):
        predict_one(Plain(), BOXES, tmp_path / "t.jsonl", contact_sheet=tmp_path / "s.html")
    with pytest.raises(
        ConfigError, match=r"Plain\.predict_step gives a list for a batch of 1 images"
    ):
        predict_one(Plain(), BOXES * 2, tmp_path / "t.jsonl")
    assert not list(tmp_path.iterdir())
