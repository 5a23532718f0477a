"""The tables of the classes on the screen."""

from __future__ import annotations

from typing import Any

import numpy as np

from lightkit.reports.class_tables import format_class_tables
from lightkit.reports.predictions import Predictions
from lightkit.task.multilabel import LabelForm
from tests.reports.examples import predict


def test_classes_and_their_confusions_are_two_tables() -> None:
    texts = format_class_tables(predict([0, 0, 1, 1], [0, 1, 1, 1]), width=80)
    # of two cats one is found, and of three dogs two are some
    assert texts == [
        (
            "class  precision  recall     f1  samples\n"
            "cat        1.000   0.500  0.667        2\n"
            "dog        0.667   1.000  0.800        2"
        ),
        "confusion matrix: labels in rows, predictions in columns",
        "label  0  1\n0 cat  1  1\n1 dog  0  2",
    ]
    assert len(format_class_tables(predict([0, 0, 1, 1], [0, 1, 1, 1]), width=10)) == 1


def test_labels_have_an_average_precision_where_a_sample_has_them() -> None:
    target = np.array([[1, 0], [0, 0]])
    probability = np.array([[0.9, 0.1], [0.2, 0.3]], np.float32)
    arrays: Any = LabelForm(None).arrange({"target": target, "probability": probability})
    found = Predictions(
        split="test", index=np.arange(2), paths=[None, None], class_names=("cat", "dog"),
        output_kind="multilabel_logits", **arrays,
    )  # fmt: skip
    (table,) = format_class_tables(found, width=80)
    assert table.splitlines() == [
        "class  precision  recall     f1  samples  average precision",
        "cat        1.000   1.000  1.000        1              1.000",
        "dog        0.000   0.000  0.000        0          no sample",
    ]
