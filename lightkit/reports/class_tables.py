"""The scores of the classes of a classifier, and their confusions, for the screen."""

from __future__ import annotations

from collections.abc import Sequence

from lightkit.errors import visible
from lightkit.reports.predictions import ClassScores, Predictions, confusion_counts, score_classes
from lightkit.reports.text_table import format_table

_MAX_CLASSES = 20


def format_class_tables(predictions: Predictions, *, width: int) -> list[str]:
    """Write precision, recall, F1 and samples of each class, and the confusion matrix if it fits.

    Of more than 20 classes those of the lowest F1 are listed, and no matrix. A regressor has no
    classes.

    Args:
        predictions: What a stage has predicted.
        width: Characters of a line of the screen.

    Returns:
        Headings and tables, in their order; none where there is nothing to show.
    """
    if "classes" not in predictions.task.report_blocks or not len(predictions):
        return []
    names = [visible(name, in_line=True) for name in predictions.class_names]
    scores = score_classes(predictions, _MAX_CLASSES)
    texts = []
    if len(scores) < len(names):
        texts.append(f"the {len(scores)} classes of the lowest f1, of {len(names)}")

    texts.append(_format_scores(scores, has_masks=predictions.task.form.has_masks))

    if "confusions" not in predictions.task.report_blocks:
        return texts
    matrix = _format_confusions(predictions, names)
    if len(scores) == len(names) and max(map(len, matrix.splitlines())) <= width:
        texts += ["confusion matrix: labels in rows, predictions in columns", matrix]
    return texts


def _format_scores(scores: Sequence[ClassScores], *, has_masks: bool) -> str:
    has_averages = any(each.average_precision is not None for each in scores)
    head = ["class", "precision", "recall", "f1", "pixels" if has_masks else "samples"]
    if has_averages:
        head.append("average precision")
    if has_masks:
        head.append("iou")
    rows = []
    for each in scores:
        row = [
            visible(each.name, in_line=True),
            *map(_format_share, (each.precision, each.recall, each.f1)),
        ]
        row.append(str(each.num_samples))
        if has_averages:
            row.append(_format_share(each.average_precision, "no sample"))
        if has_masks:
            row.append(_format_share(each.iou, "nowhere"))
        rows.append(row)
    return format_table(head, rows, right=head[1:])


def _format_share(value: float | None, otherwise: str = "") -> str:
    return otherwise if value is None else f"{value:.3f}"


def _format_confusions(predictions: Predictions, names: Sequence[str]) -> str:
    # numbers head the columns: names may be long, and equal once they are cut
    head = ("label", *map(str, range(len(names))))
    rows = []
    for number, (name, row) in enumerate(zip(names, confusion_counts(predictions), strict=True)):
        rows.append([f"{number} {name}", *map(str, row)])
    return format_table(head, rows, right=head[1:])
