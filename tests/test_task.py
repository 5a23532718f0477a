"""What a declared kind of output makes of a model's numbers, against SciPy.

Undeclared numbers stay as they are.
"""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any, get_args

import numpy as np
import pytest
from scipy import special

from lightkit.models.module import classification_metrics, regression_metrics
from lightkit.task import (
    CLASSIFICATION,
    REGRESSION,
    UNDECLARED,
    OutputKind,
    find_class_names,
    find_improbable,
    task_of,
    task_of_kind,
)

THREE = np.random.default_rng(0).normal(0, 30, (6, 3)).astype(np.float32)
ONE = THREE[:, :1]


@pytest.mark.parametrize(
    ("kind", "outputs", "expected"),
    [
        ("logits", THREE, special.softmax(THREE, axis=1)),
        ("logits", ONE, special.expit(ONE)),
        ("logits", ONE[:, 0], special.expit(ONE[:, 0])),
        ("logits", THREE[:, :, None], special.softmax(THREE, axis=1)[:, :, None]),
        ("binary_logit", ONE, special.expit(ONE)),
        ("binary_logit", ONE[:, 0], special.expit(ONE[:, 0])),
        ("multilabel_logits", THREE, special.expit(THREE)),
        ("multilabel_logits", ONE, special.expit(ONE)),
        ("probabilities", THREE, THREE),
        ("multilabel_probabilities", THREE, THREE),
        ("values", THREE, THREE),
        ("other", THREE, THREE),
    ],
)
def test_outputs_of_each_kind_become_the_probabilities_that_they_are_of(
    kind: Any, outputs: Any, expected: Any
) -> None:
    found = task_of_kind(kind).probabilities(outputs)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-30)
    assert found.dtype == np.float32
    if kind.endswith("logits") or kind == "binary_logit":
        assert not find_improbable(found.reshape(len(found), -1)).any()


@pytest.mark.parametrize("kind", ["logits", "binary_logit", "probabilities"])
@pytest.mark.parametrize("shape", [(6,), (6, 1), (6, 1, 1)])
def test_one_number_of_two_classes_is_the_probability_of_the_second(
    kind: Any, shape: tuple[int, ...]
) -> None:
    outputs = (special.expit(ONE) if kind == "probabilities" else ONE).reshape(shape)
    task = task_of_kind(kind)
    assert task.choose_names(outputs.shape, ["dark", "bright"]) == ("dark", "bright")
    expected = special.expit(ONE)
    np.testing.assert_allclose(
        task.probabilities(outputs, num_classes=2),
        np.concatenate([1 - expected, expected], axis=1),
        atol=1e-6,
    )


@pytest.mark.parametrize(
    ("kind", "shape", "names", "columns"),
    [
        ("logits", (None, 3), "abc", ["label", "probability", "label_2", "probability_2"]),
        ("probabilities", (None, 3), "abc", ["label", "probability", "label_2", "probability_2"]),
        ("binary_logit", (None, 1), "ab", ["label", "probability", "label_2", "probability_2"]),
        (
            "multilabel_logits",
            (None, 3),
            "abc",
            ["probability_a", "probability_b", "probability_c"],
        ),
        (
            "multilabel_probabilities",
            (None, 3),
            "abc",
            ["probability_a", "probability_b", "probability_c"],
        ),
        ("logits", (None, 3), None, ["prediction_0", "prediction_1", "prediction_2"]),
        ("logits", (None, 3), "abcd", ["prediction_0", "prediction_1", "prediction_2"]),
        ("logits", (None, 3, 5), "abc", ["prediction_0", "prediction_1", "prediction_2"]),
        ("multilabel_logits", (None, 1), "ab", ["prediction_0", "prediction_1", "prediction_2"]),
        ("values", (None, 3), "abc", ["prediction_0", "prediction_1", "prediction_2"]),
        ("other", (None, 3), "abc", ["prediction_0", "prediction_1", "prediction_2"]),
    ],
)
def test_columns_of_each_kind(kind: Any, shape: Any, names: Any, columns: list[str]) -> None:
    task = task_of_kind(kind)
    assert task.name_columns(task.choose_names(shape, names), num_values=3, top_k=2) == columns


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (SimpleNamespace(task=CLASSIFICATION), CLASSIFICATION),
        (SimpleNamespace(task=CLASSIFICATION, output_kind="logits"), CLASSIFICATION),
        (SimpleNamespace(task=CLASSIFICATION, output_kind="values"), REGRESSION),
        (SimpleNamespace(task="multiclass", output_kind="logits"), CLASSIFICATION),
        (SimpleNamespace(task="multiclass"), UNDECLARED),
        (SimpleNamespace(output_kind="other"), UNDECLARED),
        (SimpleNamespace(), UNDECLARED),
    ],
    ids=[
        "task",
        "both",
        "a subclass of another kind",
        "another task",
        "only another task",
        "other",
        "nothing",
    ],
)
def test_a_model_has_its_task_or_the_one_that_its_kind_declares(model: Any, expected: Any) -> None:
    assert task_of(model) is expected


def test_a_kind_that_does_not_exist_is_a_warning_with_the_choices(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        assert task_of(SimpleNamespace(output_kind="logit")) is UNDECLARED
    assert "output_kind: expected one of logits, binary_logit, " in caplog.text
    assert "got 'logit'" in caplog.text


@pytest.mark.parametrize("kind", get_args(OutputKind))
def test_a_task_has_the_kind_by_which_it_is_found(kind: Any) -> None:
    task = task_of_kind(kind)
    assert task.output_kind == kind
    assert task.gate_metric is None or task.gate_metric in task.metrics


@pytest.mark.parametrize(
    ("task", "metrics"),
    [(CLASSIFICATION, classification_metrics(3)), (REGRESSION, regression_metrics())],
    ids=["classification", "regression"],
)
def test_metrics_of_a_task_are_those_of_its_models_with_their_direction(
    task: Any, metrics: Any
) -> None:
    assert set(task.metrics) == set(metrics)
    for name, metric in metrics.items():
        # a loss has none of its own
        direction = {True: "max", False: "min"}.get(metric.higher_is_better, "min")
        assert task.metrics[name] == direction


@pytest.mark.parametrize(
    ("row", "is_improbable"),
    [
        ([0, 1], False),
        ([-0.005, 1.005], False),
        ([-0.5, 1.5], True),
        ([np.nan, 0.5], True),
        ([np.inf, 0], True),
    ],
)
def test_what_is_no_probability_is_found(row: list[float], is_improbable: bool) -> None:
    assert find_improbable(np.array([row])).tolist() == [is_improbable]


def test_class_names_are_the_models_before_those_of_the_data() -> None:
    own, data = SimpleNamespace(class_names=["a", "b"]), SimpleNamespace(class_names=["c"])
    assert find_class_names(own, data) == ["a", "b"]
    assert find_class_names(SimpleNamespace(class_names=None), data) == ["c"]
    assert find_class_names(SimpleNamespace(), None) is None
