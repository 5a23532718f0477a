"""Answers of the server for labels and masks, from what a model gives."""

from __future__ import annotations

import base64
import io
import re
import time
from pathlib import Path
from queue import Queue
from typing import Any

import numpy as np
import pytest
from PIL import Image

from lightkit.errors import DataError
from lightkit.export.metadata import Metadata, TensorSpec
from lightkit.prediction.masks import decide_mask
from lightkit.prediction.table import PredictionColumns
from lightkit.serving.predictor import Predictor, Refusal
from lightkit.serving.requests import Item
from lightkit.task import MULTILABEL, SEGMENTATION, Task


def build(task: Task, names: tuple[str, ...]) -> Predictor:
    """Build a predictor without a file, of which the description alone is called."""
    predictor = object.__new__(Predictor)
    predictor._columns = PredictionColumns(names, len(names), task=task)
    return predictor


def test_labels_are_predicted_by_the_thresholds_of_the_model() -> None:
    names = ("bar", "dot", "ring")
    probabilities = np.array([0.3, 0.6, 0.5], np.float32)
    answer = build(MULTILABEL.decide_by([0.2, 0.7, 0.5]), names).describe("a.png", probabilities)
    assert answer["predicted"] == ["bar", "ring"]
    assert [each["label"] for each in answer["labels"]] == list(names)
    assert [each["probability"] for each in answer["labels"]] == pytest.approx([0.3, 0.6, 0.5])
    assert "predicted" not in build(MULTILABEL, names).describe("a.png", probabilities)


def test_a_mask_is_a_png_with_the_share_of_each_class() -> None:
    values = np.zeros((3, 4, 6), np.float32)
    values[0] = 0.4
    values[2, :2] = 0.6
    predictor = build(SEGMENTATION, ("sky", "road", "car"))
    answer = predictor.describe("a.png", values)
    with Image.open(io.BytesIO(base64.b64decode(answer["mask"]))) as image:
        assert (np.asarray(image) == np.repeat([2, 0], 12).reshape(4, 6)).all()
    shares = {each["label"]: each["share"] for each in answer["classes"]}
    assert shares == {"sky": 0.5, "road": 0.0, "car": 0.5}
    with pytest.raises(
        DataError, match=r"a\.png: the model's output has values that are not finite"
    ):
        predictor.describe("a.png", np.full_like(values, np.nan))


def test_probabilities_are_enlarged_before_a_class_is_chosen() -> None:
    values = np.zeros((2, 1, 2), np.float32)
    values[1] = [0.0, 0.9]
    values[0] = 1 - values[1]
    mask = decide_mask(values, (2, 20))
    # where the enlarged 0 to 0.9 passes 0.5: between the centres 4.5 and 14.5
    border = int((mask[0] == 0).sum())
    assert border == 11
    assert (mask[:, border:] == 1).all()
    assert (decide_mask(np.array([[0, 1]]), (2, 20))[0] == np.repeat([0, 1], 10)).all()


def test_a_finished_mask_differs_from_probabilities_at_borders_of_resized_images_alone() -> None:
    """What docs/masks.md says of a file with its preprocessing beside one without."""
    probabilities = np.random.default_rng(0).dirichlet([0.3, 0.3, 0.3], (8, 8)).transpose(2, 0, 1)
    finished = probabilities.argmax(axis=0)
    assert (decide_mask(probabilities, (8, 8)) == decide_mask(finished, (8, 8))).all()
    probabilities = np.zeros((2, 8, 8), np.float32)
    probabilities[1, :, 3:] = 0.7
    probabilities[0] = 1 - probabilities[1]
    smooth = decide_mask(probabilities, (40, 40))
    finished = decide_mask(probabilities.argmax(axis=0), (40, 40))
    assert (finished == np.repeat([0, 1], [15, 25])).all()
    # from 0 at 12.5 to 0.7 at 17.5, the centres of two pixels, 0.5 is passed at 16.07
    assert (smooth == np.repeat([0, 1], [16, 24])).all()


@pytest.mark.parametrize(
    ("dtype", "value", "says"),
    [
        ("int64", 1.5, r"rows\[1\]\[0\]: expected a whole number from .* got 1\.5"),
        (
            "int32",
            3_000_000_000,
            r"expected a whole number from -2.14748e\+09 to .* got 3000000000",
        ),
        ("float32", 1e39, r"expected a number from -3\.40282e\+38 to 3\.40282e\+38, got 1e\+39"),
        ("float16", 70_000, r"expected a number from -65504 to 65504, got 70000"),
    ],
    ids=["fraction", "large whole number", "float32", "float16"],
)
def test_a_number_that_the_input_of_a_model_does_not_hold_is_refused(
    dtype: str, value: float, says: str
) -> None:
    predictor = object.__new__(Predictor)
    predictor._rows = None
    predictor._row_length = 2
    predictor._metadata = Metadata(
        format="onnx",
        model="Sum",
        inputs=(TensorSpec("x", dtype, (None, 2)),),
        outputs=(TensorSpec("y", "float32", (None, 1)),),
    )
    known = predictor.decode([Item("0", [2.0, 7])])
    assert isinstance(known, list)
    (row,) = map(np.asarray, known)
    assert (row.dtype.name, row.tolist()) == (dtype, [2, 7])
    refused = predictor.decode([Item("0", [2.0, 7]), Item("1", [value, 7])])
    assert isinstance(refused, Refusal)
    assert refused.status == 422
    assert re.search(says, refused.reason)


class CountedQueue(Queue[Any]):
    """A queue that counts how often it is asked."""

    num_asked = 0

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        self.num_asked += 1
        return super().get(block, timeout)


def test_a_server_without_a_request_asks_once_a_second_and_then_takes_all_that_are_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = pytest.importorskip(
        "lightkit.serving.server", reason="needs the extra lightkit[serve]"
    )
    monkeypatch.setattr(server, "_IDLE_WAIT_S", 0.05)
    settings = server.ServerSettings(host="127.0.0.1", port=8000, max_batch_size=2, max_bytes=1)
    api = server.ModelAPI(Path("model.onnx"), settings)
    api.request_timeout = 60
    queue = CountedQueue()
    assert api.loop.get_batch_requests(api, queue, None) == ([], [])
    assert queue.num_asked == 1
    for number in range(3):
        queue.put((0, f"request {number}", time.monotonic(), number))
    assert api.loop.get_batch_requests(api, queue, None)[0] == [
        (0, "request 0", 0),
        (0, "request 1", 1),
    ]
    assert queue.qsize() == 1
