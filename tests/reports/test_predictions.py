"""Predictions of a split: the file comes back as it was written, and the counts are right."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from lightkit.errors import DataError
from lightkit.reports.predictions import (
    UNKNOWN_SCORE,
    Predictions,
    confusion_counts,
    least_certain,
    read_predictions,
    score_class,
    score_classes,
    worst_errors,
    write_predictions,
)


def of_classifier() -> Predictions:
    return Predictions(
        split="test",
        index=np.arange(5),
        paths=["a.jpg", None, "c.jpg", "ü.jpg", "e.jpg"],
        target=np.array([0, 0, 1, 1, 3]),
        prediction=np.array([0, 1, 1, 0, 3]),
        probability=np.array([0.9, 0.6, 0.4, 0.99, 0.5], np.float32),
        label_probability=np.array([0.9, 0.3, 0.4, 0.01, 0.5], np.float32),
        class_names=("<b>", "never seen", "nor this", "d"),
        fingerprint="f",
        sha256="s",
        epoch=3,
    )


def of_probabilities() -> Predictions:
    values = np.random.default_rng(5).dirichlet(np.ones(4), 5).astype(np.float32)
    return replace(of_classifier(), class_probability=values)


def of_regressor() -> Predictions:
    none = np.empty(0, np.float32)
    target, prediction = np.array([1.5, -2], np.float32), np.array([1.25, np.nan], np.float32)
    return Predictions("validation", np.array([0, 4]), [None, None], target, prediction, none, none)


@pytest.mark.parametrize(
    "make",
    [of_classifier, of_probabilities, of_regressor],
    ids=["classifier", "all classes", "regressor"],
)
def test_a_file_is_read_as_it_was_written(make: object, tmp_path: Path) -> None:
    assert callable(make)
    written: Predictions = make()
    write_predictions(tmp_path / "p.parquet", written)
    read = read_predictions(tmp_path / "p.parquet")
    for name, value in vars(written).items():
        assert_array_equal(getattr(read, name), value, err_msg=name)
        if isinstance(value, np.ndarray):
            assert getattr(read, name).dtype == value.dtype
    assert [each.name for each in tmp_path.iterdir()] == ["p.parquet"]


def test_two_classes_of_one_name_have_no_columns_of_their_own(tmp_path: Path) -> None:
    written = replace(of_probabilities(), class_names=("a", "a", "c", "d"))
    write_predictions(tmp_path / "p.parquet", written)
    assert read_predictions(tmp_path / "p.parquet").class_probability.size == 0


def test_chosen_samples_keep_their_probabilities() -> None:
    chosen = of_probabilities().take(np.array([4, 1]))
    assert_array_equal(chosen.class_probability, of_probabilities().class_probability[[4, 1]])


@pytest.mark.parametrize("content", [None, b"", b"PAR1 torn"], ids=["missing", "empty", "torn"])
def test_a_file_that_cannot_be_read_is_an_error_with_its_name(
    content: bytes | None, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / "p.parquet").write_bytes(content)
    with pytest.raises(DataError, match=r"p\.parquet: no predictions can be read"):
        read_predictions(tmp_path / "p.parquet")


def test_another_table_is_an_error(tmp_path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    parquet.write_table(pa.table({"index": [1]}), tmp_path / "p.parquet")
    with pytest.raises(DataError, match="no predictions can be read"):
        read_predictions(tmp_path / "p.parquet")


def test_counts_have_labels_in_rows_and_predictions_in_columns() -> None:
    counts = confusion_counts(of_classifier())
    assert_array_equal(counts, [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 0, 0], [0, 0, 0, 1]])


def test_scores_of_each_class_are_those_of_scikit_learn() -> None:
    sklearn = pytest.importorskip("sklearn.metrics")
    made = np.random.default_rng(7)
    target, prediction = made.integers(0, 9, 500), made.integers(0, 9, 500)
    none = np.zeros(500, np.float32)
    names = tuple("abcdefghij")  # the last has no sample
    predictions = Predictions(
        "test", np.arange(500), [None] * 500, target, prediction, none, none, names
    )
    found = score_classes(predictions, 10)
    mine = zip(
        *((each.precision, each.recall, each.f1, each.num_samples) for each in found), strict=True
    )
    expected = sklearn.precision_recall_fscore_support(
        target, prediction, labels=range(10), zero_division=0
    )
    for one, other in zip(mine, expected, strict=True):
        assert_allclose(one, other, rtol=1e-12)
    assert [each.f1 for each in score_classes(predictions, 3)] == sorted(
        each.f1 for each in found if each.num_samples
    )[:3]


@pytest.mark.parametrize(
    "metric", ["test/f1", "val_f1_macro", "test/precision", "test/recall", "test/accuracy"]
)
def test_a_class_has_its_own_value_of_a_metric_as_scikit_learn_has_it(metric: str) -> None:
    sklearn = pytest.importorskip("sklearn.metrics")
    made = np.random.default_rng(8)
    target, prediction = made.integers(0, 4, 90), made.integers(0, 5, 90)
    none = np.zeros(90, np.float32)
    predictions = Predictions(
        "test", np.arange(90), [None] * 90, target, prediction, none, none, tuple("abcde")
    )
    column = {"f1": 2, "precision": 0}.get("f1" if "f1" in metric else metric.partition("/")[2], 1)
    expected = sklearn.precision_recall_fscore_support(
        target, prediction, labels=range(4), zero_division=0
    )[column]
    for average in ("macro", "micro", "weighted"):
        score = sklearn.precision_recall_fscore_support(
            target, prediction, average=average, zero_division=0
        )[column]
        of_classes = [score_class(predictions, each, metric, score) or 0.0 for each in range(4)]
        assert_allclose(of_classes, expected, rtol=1e-12)
        assert score_class(predictions, 4, metric, score) is None  # it has no samples


@pytest.mark.parametrize(
    "metric", ["test/auroc", "test/top_5_accuracy", "test/accuracy_of_words", "test/loss"]
)
def test_of_other_metrics_no_value_of_a_class_is_known(metric: str) -> None:
    assert score_class(of_classifier(), 0, metric, 0.6) is UNKNOWN_SCORE


@pytest.mark.parametrize("metric", ["f1", "precision", "recall", "accuracy", "error"])
def test_no_value_of_a_class_is_known_where_the_model_decides_by_another_threshold(
    metric: str,
) -> None:
    sklearn = pytest.importorskip("sklearn.metrics")
    made = np.random.default_rng(9)
    probability = made.random(200).astype(np.float32)
    target = (made.random(200) < probability).astype(int)
    none = np.zeros(200, np.float32)

    def score(threshold: float) -> float:
        decided = (probability >= threshold).astype(int)
        if metric in ("accuracy", "error"):
            right = float(sklearn.accuracy_score(target, decided))
            return right if metric == "accuracy" else 1 - right
        return float(getattr(sklearn, f"{metric}_score")(target, decided))  # of the second class

    likeliest = (probability >= 0.5).astype(int)
    predictions = Predictions(
        "test", np.arange(200), [None] * 200, target, likeliest, none, none, ("no", "yes")
    )
    name = f"test/{metric}"
    assert score_class(predictions, 1, name, score(0.2)) is UNKNOWN_SCORE
    known = score_class(predictions, 1, name, score(0.5))
    assert known == pytest.approx(
        score(0.5)
        if metric not in ("accuracy", "error")
        else abs((metric == "error") - sklearn.recall_score(target, likeliest))
    )


def test_the_worst_errors_and_the_least_certain_come_first() -> None:
    assert_array_equal(worst_errors(of_classifier(), 5), [3, 1])
    assert_array_equal(worst_errors(of_regressor(), 5), [1, 0])
    assert_array_equal(least_certain(of_classifier(), 2), [2, 4])
