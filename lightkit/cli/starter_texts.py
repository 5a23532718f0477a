"""The config that `lightkit init` writes for texts: in class folders, or in a table."""

from __future__ import annotations

import logging
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice, permutations
from pathlib import Path

from lightkit.cli.starter import Classes, Starter, count_splits, format_json
from lightkit.errors import DataError, format_count
from lightkit.images.image_file import IMAGE_SUFFIXES, walk_files
from lightkit.images.inputs import COLUMNS as PATH_COLUMNS
from lightkit.images.label_table import LABEL_COLUMNS, find_usual
from lightkit.rows.reader import RowTable
from lightkit.rows.text_table import TextColumns, read_text_table
from lightkit.texts.text_files import is_text_folder, read_folder
from lightkit.texts.text_rows import TextIndex, TextRow, index_texts

_IDS = ("", "id", "index", "uid", "guid", "unnamed: 0")
"""Columns that are no features."""
_LEAST_WORDS = 3.0
"""Mean words of a text; a column of fewer is one of categories."""
_MOST_CLASSES = 0.1
"""Classes over texts, of a column that is not named as a label."""
_NUM_LOOKED_AT = 200


@dataclass(frozen=True)
class TextSummary:
    """Texts and classes of a folder or table.

    Args:
        path: As the user names it.
        arguments: Of `TextData`, besides the path.
        classes: The classes or labels of all texts.
    """

    path: str
    arguments: Mapping[str, str]
    classes: Classes

    def compose(self, name: str) -> Starter:
        """Write the config.

        Args:
            name: File name of the config.
        """
        classes = self.classes
        of_data = ", ".join(
            f"{key}: {format_json(value)}"
            for key, value in {"path": self.path, **self.arguments}.items()
        )
        multilabel = ", init_args: {multilabel: true}" if classes.is_multilabel else ""
        return Starter(f"""\
# {format_count(classes.num_samples, "text")} in {classes.number}.
#   lightkit fit -c {shlex.quote(name)}
# Classes: {classes.list_counts()}
# Hashed n-grams, which train in seconds and download nothing; encoder: \
transformers/NAME trains a pretrained network.
extends: [lightkit:base, lightkit:logger/tensorboard]

model: {{class_path: TextClassifier{multilabel}}}

data:
  class_path: TextData
  init_args: {{{of_data}}}

trainer: {{max_epochs: 10}}
{classes.format_gate()}""")


def find_texts(path: Path, table: RowTable | None) -> TextSummary | None:
    """Look at a folder of texts, or at a table whose one feature is a text; None for another one.

    Raises:
        DataError: If it has texts that cannot be used, or of one class.
    """
    if is_text_folder(path) and not _has_images(path):
        return _summarize(path, {}, read_folder(path, encoding="auto"))
    return None if table is None else _find_in_table(path, table)


def _has_images(path: Path) -> bool:
    return any(Path(file).suffix.lower() in IMAGE_SUFFIXES for file in walk_files(str(path)))


def _find_in_table(path: Path, table: RowTable) -> TextSummary | None:
    label = find_usual(table.names, LABEL_COLUMNS)
    others = [
        name for name in table.names if name != label and name.lower() not in (*_IDS, "split")
    ]
    if label is not None and len(others) == 1:
        return _look_at(path, text=others[0], label=label)
    if label is None and len(others) == 2:  # a label of another name: one of the two is a text
        for text, unnamed in permutations(others):
            found = _look_at_unnamed(path, text=text, label=unnamed)
            if found is not None:
                return found
    return None


def _look_at_unnamed(path: Path, *, text: str, label: str) -> TextSummary | None:
    """Look at texts beside a column that may be their label; None where it is none."""
    try:
        found = _look_at(path, text=text, label=label)
    except DataError:
        return None
    if found is None or len(found.classes.counts) > found.classes.num_samples * _MOST_CLASSES:
        return None
    return found


def _look_at(path: Path, *, text: str, label: str) -> TextSummary | None:
    """Look at two columns; None where the first has no texts of several words.

    Raises:
        DataError: If a row cannot be used, or there is one class.
    """
    if text.lower() in PATH_COLUMNS:
        return None
    _, rows = read_text_table(str(path), TextColumns(text=text, label=label))
    words = [len((row.text or "").split()) for row in islice(rows, _NUM_LOOKED_AT)]
    if not words or sum(words) / len(words) < _LEAST_WORDS:
        return None
    return summarize_text_column(path, text=text, label=label)


def summarize_text_column(path: Path, *, text: str, label: str) -> TextSummary:
    """Look at the texts of one column of a table, and at their labels in another.

    Raises:
        DataError: If a row cannot be used, or there is one class.
    """
    _, rows = read_text_table(str(path), TextColumns(text=text, label=label))
    return _summarize(path, {"text": text, "label": label}, rows)


def _summarize(path: Path, arguments: Mapping[str, str], rows: Iterator[TextRow]) -> TextSummary:
    logger = logging.getLogger("lightkit.data")
    was_disabled = logger.disabled
    logger.disabled = True  # `fit` warns of copies and the like
    try:
        index = index_texts(rows, root=str(path), val_fraction=0.0, test_fraction=0.0)
    finally:
        logger.disabled = was_disabled
    counts = _count_classes(index)
    if len(counts) < 2:
        raise DataError(
            f"--data {path}: its texts are of one class,"
            f" {', '.join(counts)}. Expected at least two."
        )
    num_texts = sum(index.counts.values())
    _, num_test = count_splits(index.counts if index.given else {}, num_texts)
    classes = Classes("text", counts, num_texts, num_test, is_multilabel=index.is_multilabel)
    return TextSummary(path.as_posix(), arguments, classes)


def _count_classes(index: TextIndex) -> dict[str, int]:
    if index.is_multilabel:
        counts = index.targets.sum(axis=0, dtype=int).tolist()
        return dict(zip(index.class_names, counts, strict=True))
    found = Counter(index.targets.tolist())
    return {name: found[number] for number, name in enumerate(index.class_names)}
