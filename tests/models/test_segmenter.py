"""The segmenter: its network, its losses, and metrics as scikit-learn's over all pixels."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, confusion_matrix, jaccard_score  # type: ignore[import-untyped]

from lightkit.errors import ConfigError
from lightkit.models import Segmenter
from lightkit.models.mask_scores import MaskScores
from lightkit.models.segmenter import compute_mask_losses
from lightkit.models.unet import UNet
from lightkit.reports.predictions import Predictions
from lightkit.task import SEGMENTATION
from lightkit.task.segmentation import mean_iou

IGNORED = -100
NAMES = ("sky", "road", "car", "bird")  # of which no pixel is a bird


def make_batches(
    sizes: tuple[int, ...] = (3, 1, 4), *, seed: int = 0
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Make batches of logits and masks with pixels that count for nothing."""
    generator = torch.Generator().manual_seed(seed)
    batches = []
    for size in sizes:
        masks = torch.randint(0, 3, (size, 6, 5), generator=generator)
        masks[:, 0, 0] = IGNORED
        logits = torch.randn(size, 4, 6, 5, generator=generator)
        logits[:, 3] = -50
        batches.append((logits, masks))
    return batches


def join(batches: list[tuple[torch.Tensor, torch.Tensor]]) -> tuple[Any, Any]:
    logits = torch.cat([logits for logits, _ in batches])
    masks = torch.cat([masks for _, masks in batches])
    return logits.argmax(dim=1).numpy(), masks.numpy()


def test_metrics_are_those_of_scikit_learn_over_all_pixels() -> None:
    batches = make_batches()
    metric = MaskScores(len(NAMES))
    for logits, masks in batches:
        metric.update(logits, masks)
    values = {name: float(value) for name, value in metric.compute().items()}
    predicted, masks = join(batches)
    counted = masks != IGNORED
    assert values["iou"] == pytest.approx(
        jaccard_score(masks[counted], predicted[counted], average="macro"), abs=1e-6
    )
    table = confusion_matrix(masks[counted], predicted[counted])
    by_table = np.diag(table) / (table.sum(axis=0) + table.sum(axis=1) - np.diag(table))
    assert values["iou"] == pytest.approx(by_table.mean(), abs=1e-6)
    each = [
        jaccard_score(mask[known], prediction[known], average="macro")
        for mask, prediction, known in zip(masks, predicted, counted, strict=True)
    ]
    assert values["image_iou"] == pytest.approx(np.mean(each), abs=1e-6)
    assert values["pixel_accuracy"] == pytest.approx(
        accuracy_score(masks[counted], predicted[counted]), abs=1e-6
    )
    assert metric.left_out == [3]


def test_metrics_are_the_same_however_samples_are_cut_into_batches() -> None:
    whole = MaskScores(4)
    for logits, masks in make_batches((8,)):
        whole.update(logits, masks)
        parts = [MaskScores(4), MaskScores(4)]
        for at in range(8):
            parts[at % 3 // 2].update(logits[at : at + 1], masks[at : at + 1])
    # what the sum over two processes is
    for name in ("counts", "image_ious", "num_images"):
        setattr(parts[0], name, getattr(parts[0], name) + getattr(parts[1], name))
    values = whole.compute()
    for name, value in parts[0].compute().items():
        assert value == values[name], name


def test_recorded_predictions_give_the_metrics_that_are_logged() -> None:
    batches = make_batches()
    metric = MaskScores(len(NAMES))
    form = SEGMENTATION.form
    rows: dict[str, list[Any]] = {"target": [], "prediction": []}
    for logits, masks in batches:
        metric.update(logits, masks)
        found = form.reduce({"logits": logits, "target": masks}, SEGMENTATION)
        assert found is not None
        for name, column in rows.items():
            column.append(found[0][name].float().numpy())
    arrays: dict[str, Any] = form.arrange(
        {name: np.concatenate(column) for name, column in rows.items()}
    )
    predictions = Predictions(
        "test", np.arange(8), [None] * 8, class_names=NAMES, output_kind="mask_logits", **arrays
    )
    values = metric.compute()
    statistics = form.list_statistics(predictions, 0.0)
    for name in ("iou", "image_iou", "pixel_accuracy"):
        of_samples, statistic = statistics[name]
        assert len(of_samples) == 8
        assert statistic(of_samples) == pytest.approx(float(values[name]), abs=1e-6), name
    predicted, masks = join(batches)
    counted = masks != IGNORED
    each = jaccard_score(masks[counted], predicted[counted], average=None)
    assert [form.score_class(predictions, at, "iou") for at in range(4)] == [
        *map(pytest.approx, each),
        None,
    ]
    again = form.from_columns(_Table(form.to_columns(predictions)), NAMES)
    for name in ("target", "prediction"):
        assert (again[name] == arrays[name]).all()


class _Table(dict[str, Any]):
    """Columns as those of a `pyarrow.Table`."""

    def __init__(self, columns: dict[str, Any]) -> None:
        super().__init__({name: _Column(column) for name, column in columns.items()})


class _Column:
    def __init__(self, values: Any) -> None:
        self.values = values

    def to_numpy(self) -> Any:
        return np.asarray(self.values)


def test_the_chance_level_is_that_of_one_class_everywhere() -> None:
    target = np.array([[90, 10]])
    prediction = np.stack([np.array([[100, 0]]), np.array([[90, 0]])], axis=2)
    none = np.empty(0, np.float32)
    predictions = Predictions(
        "test",
        np.arange(1),
        [None],
        target,
        prediction,
        none,
        none,
        ("a", "b"),
        output_kind="mask_logits",
    )
    measure = SEGMENTATION.form.measure(predictions)
    assert measure.chance == pytest.approx(measure.statistic(measure.values)) == pytest.approx(0.45)


def test_the_loss_is_cross_entropy_and_dice_of_each_image() -> None:
    logits = torch.tensor([[[[2.0, 0.0, 0.0]], [[0.0, 1.0, 0.0]]]])
    masks = torch.tensor([[[0, 1, IGNORED]]])
    first = np.exp(2) / (np.exp(2) + 1)
    second = np.exp(1) / (np.exp(1) + 1)
    entropy = -(np.log(first) + np.log(second)) / 2
    dice = [2 * first / (1 + first + (1 - second)), 2 * second / (1 + second + (1 - first))]
    loss = compute_mask_losses(logits, masks, dice=1.0)
    assert loss.tolist() == pytest.approx([entropy + 1 - np.mean(dice)])
    assert compute_mask_losses(logits, masks, dice=0.0).tolist() == pytest.approx([entropy])
    empty = torch.full_like(masks, IGNORED)
    assert compute_mask_losses(logits, empty, dice=1.0).tolist() == [0.0]
    both = compute_mask_losses(torch.cat([logits] * 2), torch.cat([masks, empty]), dice=1.0)
    assert both.tolist() == pytest.approx([*loss.tolist(), 0.0])


@pytest.mark.parametrize(
    "name",
    ["small_cnn", "resnet18", "mobilenet_v3_small", "efficientnet_b0", "densenet121",
     "shufflenet_v2_x0_5",
     "regnet_y_400mf", "mnasnet0_5", "squeezenet1_1"],
)  # fmt: skip
def test_a_decoder_stands_on_each_kind_of_backbone(name: str) -> None:
    network = UNet(name, 3, width=4).eval()
    with torch.no_grad():
        assert network(torch.zeros(1, 3, 64, 96)).shape == (1, 3, 64, 96)
        # sizes that no stride divides
        assert network(torch.zeros(2, 3, 77, 65)).shape == (2, 3, 77, 65)
    assert len(network.encoder.channels) >= 3


@pytest.mark.parametrize("name", ["vit_b_16", "swin_t", "inception_v3"])
def test_other_backbones_are_refused_with_those_that_there_are(name: str) -> None:
    with pytest.raises(ConfigError, match=f"no decoder for {name}.*resnet18"):
        UNet(name, 3, width=4)


def test_weights_of_a_classifier_go_into_the_encoder(tmp_path: Any) -> None:
    from lightkit.models.backbones import build

    classifier = build("small_cnn", 7)
    torch.save(classifier.state_dict(), tmp_path / "weights.pt")
    model = Segmenter(weights=str(tmp_path / "weights.pt"), num_classes=2, width=4)
    model.configure_model()
    model.load_weights()
    own = list(model.network.encoder.parameters())  # type: ignore[union-attr]
    theirs = list(classifier.parameters())[: len(own)]
    assert all(torch.equal(one, other) for one, other in zip(own, theirs, strict=True))


def test_a_frozen_backbone_stays_as_it_is() -> None:
    model = Segmenter(freeze="backbone", num_classes=2, width=4)
    model.configure_model()
    assert model.network is not None
    before = copy.deepcopy(model.network.encoder.state_dict())
    model.train()
    optimizer = model.create_optimizer()
    images = torch.randn(2, 3, 32, 32)
    loss = compute_mask_losses(
        model(images), torch.zeros(2, 32, 32, dtype=torch.long), dice=1.0
    ).mean()
    torch.autograd.backward(loss)
    optimizer.step()
    after = model.network.encoder.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())


def test_the_pooled_mean_is_not_that_of_torchmetrics() -> None:
    """One large and one tiny object of a class.

    The mean over pairs of image and class is another number.
    """
    counts = np.array([[[96, 100, 96], [4, 0, 0]], [[0, 0, 0], [100, 100, 100]]])
    assert mean_iou(counts) == pytest.approx((96 / 100 + 100 / 104) / 2)
