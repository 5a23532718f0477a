"""Several labels an image.

Metrics against scikit-learn, thresholds, factors of the loss, resume and predictions.
"""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn import metrics as sk  # type: ignore[import-untyped]
from torch.nn import functional

from lightkit.errors import ConfigError, DataError
from lightkit.models.classes import find_factors
from lightkit.models.classifier import ImageClassifier
from lightkit.models.label_scores import LabelScores
from lightkit.reports.predictions import (
    UNKNOWN_SCORE,
    Predictions,
    read_predictions,
    score_class,
    score_classes,
    write_predictions,
)
from lightkit.reports.statistics import compute_interval, reproduces_score
from lightkit.task import MULTILABEL
from lightkit.task.multilabel import (
    LabelForm,
    average_precision,
    choose_threshold,
    mean_average_precision,
    mean_f1,
)

NAMES = ("cat", "dog", "fish", "none of them")


def draw(
    num: int, *, seed: int = 0, digits: int = 2
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Targets and probabilities with ties; the last label has no positive sample."""
    random = np.random.default_rng(seed)
    target = random.integers(0, 2, (num, 4))
    target[:, 3] = 0
    noise = random.normal(0, 0.35, (num, 4))
    return target, np.clip(np.round(target * 0.5 + 0.25 + noise, digits), 0, 1).astype(np.float32)


def predictions_of(num: int = 60, thresholds: Any = None) -> Predictions:
    target, probability = draw(num)
    form = LabelForm(thresholds)
    arrays: Any = form.arrange({"target": target, "probability": probability})
    return Predictions(
        split="test",
        index=np.arange(num),
        paths=[f"{at}.png" for at in range(num)],
        class_names=NAMES,
        output_kind="multilabel_logits",
        **arrays,
    )


@pytest.mark.parametrize("seed", range(5))
def test_average_precision_is_that_of_scikit_learn(seed: int) -> None:
    target, probability = draw(40, seed=seed, digits=1)
    for at in range(3):
        found = average_precision(target[:, at], probability[:, at])
        assert found == pytest.approx(
            sk.average_precision_score(target[:, at], probability[:, at]), abs=1e-12
        )


def test_a_label_that_no_sample_has_is_in_no_mean() -> None:
    target, probability = draw(40)
    assert average_precision(target[:, 3], probability[:, 3]) is None
    mean = np.mean(
        [sk.average_precision_score(target[:, at], probability[:, at]) for at in range(3)]
    )
    assert mean_average_precision(target, probability) == pytest.approx(mean, abs=1e-12)
    assert math.isnan(mean_average_precision(np.zeros((4, 2)), np.zeros((4, 2))))
    predicted = (probability >= 0.9).astype(int)
    predicted[:, 3] = 0
    assert mean_f1(target, predicted) == pytest.approx(
        sk.f1_score(target[:, :3], predicted[:, :3], average="macro")
    )
    predicted[0, 3] = 1  # a prediction without a sample counts as 0
    assert mean_f1(target, predicted) == pytest.approx(
        sk.f1_score(target, predicted, average="macro")
    )


@pytest.mark.parametrize("seed", range(8))
def test_a_threshold_has_the_largest_f1_of_all(seed: int) -> None:
    target, probability = draw(30, seed=seed)
    chosen = choose_threshold(target[:, 0], probability[:, 0])
    best = max(
        sk.f1_score(target[:, 0], probability[:, 0] >= each)
        for each in np.unique(probability[:, 0])
    )
    found = sk.f1_score(target[:, 0], probability[:, 0] >= np.float32(chosen))
    assert found == pytest.approx(best, abs=1e-12)


@pytest.mark.parametrize("target", [[0, 0, 0], [1, 1, 1]])
def test_a_label_of_no_or_all_samples_keeps_the_threshold_of_a_half(target: list[int]) -> None:
    assert choose_threshold(np.array(target), np.array([0.1, 0.2, 0.9], np.float32)) == 0.5


def test_a_threshold_between_two_neighbours_in_float32_separates_them() -> None:
    low = np.float32(0.5)
    high = np.nextafter(low, np.float32(1))
    chosen = np.float32(choose_threshold(np.array([0, 1]), np.array([low, high], np.float32)))
    assert [low >= chosen, high >= chosen] == [False, True]


def test_the_metrics_of_an_epoch_are_those_of_scikit_learn_over_uneven_batches() -> None:
    target, probability = draw(37)
    logits = torch.logit(torch.tensor(probability), eps=1e-6)
    metric = LabelScores(4)
    for rows in (slice(0, 20), slice(20, 36), slice(36, 37)):
        metric.update(logits[rows], torch.tensor(target)[rows])
    metric.skip()
    found = metric.compute()
    predicted = logits.sigmoid().numpy() >= np.array(metric.thresholds, np.float32)
    each = [sk.average_precision_score(target[:, at], logits[:, at].sigmoid()) for at in range(3)]
    assert metric.left_out == [3]
    assert float(found["map"]) == pytest.approx(np.mean(each), abs=1e-6)
    assert predicted[:, 3].any()  # without a sample, so that it counts as 0
    assert float(found["f1"]) == pytest.approx(
        sk.f1_score(target, predicted, average="macro"), abs=1e-6
    )
    assert float(found["subset_accuracy"]) == pytest.approx(
        sk.accuracy_score(target, predicted), abs=1e-6
    )


def test_recorded_predictions_are_read_back_and_give_each_metric(tmp_path: Path) -> None:
    predictions = predictions_of(thresholds=[0.4, 0.5, 0.6, 0.5])
    write_predictions(tmp_path / "p.parquet", predictions)
    read = read_predictions(tmp_path / "p.parquet")
    assert read.task is MULTILABEL
    for name in ("target", "prediction", "probability", "label_probability"):
        np.testing.assert_array_equal(getattr(read, name), getattr(predictions, name))
    target, probability = read.target, read.probability
    losses = functional.binary_cross_entropy(
        torch.tensor(probability), torch.tensor(target).float()
    )
    each = [sk.average_precision_score(target[:, at], probability[:, at]) for at in range(3)]
    expected = {
        "test/map": np.mean(each),
        "test/f1": mean_f1(target, read.prediction),
        "test/subset_accuracy": sk.accuracy_score(target, read.prediction),
    }
    for metric, value in expected.items():
        assert reproduces_score(metric, float(value), read)
        assert not reproduces_score(metric, float(value) + 0.01, read)
        interval = compute_interval(metric, float(value), read, confidence=0.95)
        assert interval is not None
        assert interval[0] <= value <= interval[1]
    clipped = torch.tensor(probability).double().clamp(1e-38, 1)
    assert math.isinf(float(losses)) or losses < 100
    assert (clipped > 0).all()
    assert score_class(read, 0, "test/map", expected["test/map"]) == pytest.approx(each[0])
    assert score_class(read, 3, "test/map", expected["test/map"]) is None
    assert score_class(read, 0, "test/f1", expected["test/f1"]) == pytest.approx(
        sk.f1_score(target[:, 0], read.prediction[:, 0])
    )
    share = float(np.mean(target == read.prediction))  # of single labels: what is absent counts
    assert score_class(read, 0, "test/accuracy", share) is UNKNOWN_SCORE
    scores = score_classes(read, 20)
    assert [each.num_samples for each in scores] == target.sum(axis=0).tolist()
    assert scores[1].precision == pytest.approx(
        sk.precision_score(target[:, 1], read.prediction[:, 1])
    )
    assert scores[3].average_precision is None


def test_a_row_of_predictions_has_the_labels_and_a_probability_of_each() -> None:
    form = LabelForm([0.5, 0.2, 0.9, 0.5])
    values = np.array([0.6, 0.3, 0.8, 0.1], np.float32)
    assert form.name_columns(NAMES, top_k=3) == [
        "labels",
        *(f"probability_{name}" for name in NAMES),
    ]
    assert form.list_cells(values, NAMES, top_k=3) == ["cat|dog", *values]
    assert LabelForm().name_columns(NAMES, top_k=3) == [f"probability_{name}" for name in NAMES]


def model_of(data: Any = None, **options: Any) -> ImageClassifier:
    model = ImageClassifier(multilabel=True, class_names=list(NAMES), **options)
    model._trainer = None
    model.configure_model()
    return model


def test_the_loss_is_the_binary_cross_entropy_with_the_factors_of_torch() -> None:
    torch.manual_seed(0)
    model = model_of(pos_weight=[1.0, 2.0, 3.0, 0.5])
    model._label_weights = model._find_label_weights()
    images, targets = torch.randn(6, 3, 32, 32), torch.randint(0, 2, (6, 4))
    logits = model(images)
    expected = functional.binary_cross_entropy_with_logits(
        logits, targets.float(), pos_weight=torch.tensor([1.0, 2.0, 3.0, 0.5])
    )
    model.eval()
    logits = model(images)
    expected = functional.binary_cross_entropy_with_logits(
        logits, targets.float(), pos_weight=torch.tensor([1.0, 2.0, 3.0, 0.5])
    )
    torch.testing.assert_close(model._step("train", (images, targets))["loss"], expected)
    plain = functional.binary_cross_entropy_with_logits(logits, targets.float())
    torch.testing.assert_close(model._compute_own_loss("val", logits, targets, None, 0.0)[0], plain)


def test_automatic_factors_balance_the_labels() -> None:
    def find(names: str, counts: list[int], **options: Any) -> list[float]:
        data = SimpleNamespace(label_counts=counts, counts={"train": 100})
        trainer: Any = SimpleNamespace(is_global_zero=True, datamodule=data)
        found = find_factors("auto", list(names), trainer=trainer, noun="image", **options)
        assert found is not None
        return found.tolist()

    assert find("abcd", [10, 25, 50, 0], is_multilabel=True) == [9.0, 3.0, 1.0, 1.0]
    assert find("ab", [10, 90]) == [5.0, pytest.approx(100 / 180)]
    with pytest.raises(ConfigError, match="the target is a value"):
        find("", [])


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"pos_weight": "auto"}, "class_weight"),
        ({"multilabel": True, "class_weight": "auto"}, "pos_weight"),
    ],
)
def test_factors_of_the_other_task_are_refused(options: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        ImageClassifier(class_names=["a", "b"], **options)


def test_targets_of_another_form_are_an_error_in_words() -> None:
    with pytest.raises(DataError, match="0 or 1 for each label"):
        model_of()._step("train", (torch.randn(2, 3, 32, 32), torch.tensor([0, 1])))


def test_a_checkpoint_keeps_the_thresholds() -> None:
    model = model_of()
    model.set_thresholds([0.1, 0.2, 0.3, 0.4])
    checkpoint: dict[str, Any] = {"state_dict": model.state_dict()}
    model.on_save_checkpoint(checkpoint)
    other = model_of()
    other.on_load_checkpoint(checkpoint)
    assert other.thresholds == (0.1, 0.2, 0.3, 0.4)
    assert other.task.form.thresholds == other.thresholds
