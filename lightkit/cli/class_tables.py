"""Scores of each class and the confusion matrix of a test, printed."""

from __future__ import annotations

import shutil

from lightkit.cli.console import OutputMode, format_table, print_line
from lightkit.errors import visible
from lightkit.reports.predictions import Predictions, class_scores, confusion_counts, worst_classes

_MAX_CLASSES = 20


def print_class_tables(predictions: Predictions, mode: OutputMode) -> None:
    """Print precision, recall, F1 and samples of each class, and the confusion matrix if it fits the screen.

    Of more than 20 classes those of the lowest F1 are printed, and no matrix. Nothing is printed of a regressor.
    """
    if mode not in ("terminal", "plain") or not predictions.is_classifier or not len(predictions):
        return
    names = [visible(name, in_line=True) for name in predictions.class_names]
    counts = confusion_counts(predictions)
    scores = class_scores(counts)
    chosen = worst_classes(scores, _MAX_CLASSES)
    head: tuple[str, ...] = ("class", "precision", "recall", "f1", "samples")
    rows = [[names[k], *(f"{column[k]:.3f}" for column in scores[:3]), str(scores.support[k])] for k in chosen]
    if len(chosen) < len(names):
        print_line(f"the {len(rows)} classes of the lowest f1, of {len(names)}", mode)
    print_line(format_table(head, rows, right=head[1:]), mode)
    # numbers head the columns: names may be long, and equal once they are cut
    head = ("label", *map(str, range(len(names))))
    rows = [[f"{k} {name}", *map(str, row)] for k, (name, row) in enumerate(zip(names, counts, strict=True))]
    table = format_table(head, rows, right=head[1:])
    if len(chosen) == len(names) and max(map(len, table.splitlines())) <= shutil.get_terminal_size((120, 24)).columns:
        print_line("confusion matrix: labels in rows, predictions in columns", mode)
        print_line(table, mode)
