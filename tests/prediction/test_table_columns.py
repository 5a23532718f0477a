from __future__ import annotations

import numpy as np
import pytest

from lightkit.errors import DataError
from lightkit.prediction.table import Prediction, PredictionColumns
from lightkit.task import MULTILABEL

NAMES = ["ant", "bee", "cat", "dog"]


def predicted(*values: float, path: str = "a.jpg") -> Prediction:
    return Prediction(0, path, np.array(values, dtype=np.float32), None)


@pytest.mark.parametrize(
    ("top_k", "names"),
    [
        (1, ["path", "label", "probability", "error"]),
        (2, ["path", "label", "probability", "label_2", "probability_2", "error"]),
        (9, ["label_4", "probability_4"]),
        (None, ["label_3", "probability_3"]),
    ],
    ids=["one", "two", "more than there are", "default"],
)
def test_a_classifier_has_a_label_and_a_probability_for_each_rank(
    top_k: int | None, names: list[str]
) -> None:
    found = PredictionColumns(NAMES, top_k).names
    assert found == names if found[-1] == names[-1] else found[-3:-1] == names


def test_classes_are_ranked_and_of_equals_the_first_comes_first() -> None:
    row = PredictionColumns(NAMES).row(predicted(0.25, 0.1, 0.4, 0.25))
    assert row == [
        "a.jpg",
        "cat",
        np.float32(0.4),
        "ant",
        np.float32(0.25),
        "dog",
        np.float32(0.25),
        None,
    ]


def test_all_classes_have_a_column_of_their_own() -> None:
    columns = PredictionColumns(NAMES, "all")
    assert columns.names == [
        "path",
        "label",
        "probability",
        *(f"probability_{name}" for name in NAMES),
        "error",
    ]
    values = np.array([0.25, 0.1, 0.4, 0.25], np.float32)
    assert columns.row(predicted(*values)) == ["a.jpg", "cat", values[2], *values, None]
    labels = [
        PredictionColumns(("a", "b"), top_k, task=MULTILABEL).names for top_k in ("all", None)
    ]
    assert labels[0] == labels[1]
    assert PredictionColumns(None, "all", 2).names == [
        "path",
        "prediction_0",
        "prediction_1",
        "error",
    ]


def test_a_model_without_classes_has_its_outputs_in_order() -> None:
    columns = PredictionColumns(None, num_values=2)
    assert columns.names == ["path", "prediction_0", "prediction_1", "error"]
    assert columns.row(predicted(3.0, -1.0)) == ["a.jpg", 3.0, -1.0, None]


def test_a_bad_image_has_a_path_and_its_reason_only() -> None:
    row = PredictionColumns(NAMES, 1).row(Prediction(3, "a.jpg", None, "broken"))
    assert row == ["a.jpg", None, None, "broken"]


def test_bytes_of_a_name_that_are_no_text_are_written_as_escapes() -> None:
    assert (
        PredictionColumns(NAMES, 1).row(predicted(1, 0, 0, 0, path="caf\udce9.jpg"))[0]
        == r"caf\udce9.jpg"
    )


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        (PredictionColumns(NAMES), "a.jpg: the model gives 2 values; expected 4"),
        (PredictionColumns(None, num_values=3), "a.jpg: the model gives 2 values; expected 3"),
    ],
    ids=["classes", "values"],
)
def test_another_number_of_values_is_an_error(columns: PredictionColumns, says: str) -> None:
    with pytest.raises(DataError, match=says):
        columns.row(predicted(0.5, 0.5))
