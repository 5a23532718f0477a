"""The config that `lightkit init --data` writes for texts.

Also how it knows them from images and numbers.
"""

from __future__ import annotations

import json
import logging
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, permutations
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from lightkit.errors import DataError, format_count
from lightkit.images.image_file import IMAGE_SUFFIXES, walk_files
from lightkit.images.inputs import COLUMNS as PATH_COLUMNS
from lightkit.images.label_table import CSV_SUFFIXES, LABEL_COLUMNS
from lightkit.images.table_format import PARQUET_SUFFIXES
from lightkit.texts.text_files import is_text_folder, read_folder
from lightkit.texts.text_rows import TextIndex, TextRow, index_texts

if TYPE_CHECKING:
    from lightkit.rows.text_table import TextColumns

_VAL_FRACTION = 0.2
_TEST_FRACTION = 0.1
_IDS = ("", "id", "index", "uid", "guid", "unnamed: 0")
"""Columns that are no features."""
_LEAST_WORDS = 3.0
"""Mean words of a text; a column of fewer is one of categories."""
_MOST_CLASSES = 0.1
"""Classes over texts, of a column that is not named as a label."""
_NUM_LOOKED_AT = 200
_JSON_SUFFIXES = (".jsonl", ".ndjson")
_SHOWN_CLASSES = 20


@dataclass(frozen=True)
class TextSummary:
    """Texts, splits and classes of a folder or table.

    Args:
        path: As the user names it.
        arguments: Of `TextData`, besides the path.
        classes: Number of texts of each class or label.
        splits: Number of texts of each split.
        is_multilabel: Whether a text has any number of labels.
    """

    path: str
    arguments: Mapping[str, str]
    classes: Mapping[str, int]
    splits: Mapping[str, int]
    is_multilabel: bool

    @property
    def num_texts(self) -> int:
        """Number of texts."""
        return sum(self.splits.values())

    @property
    def share(self) -> float:
        """Share of the texts that the most frequent class has.

        Of labels that a label has on average.
        """
        if self.is_multilabel:
            return sum(self.classes.values()) / self.num_texts / len(self.classes)
        return max(self.classes.values()) / self.num_texts


class Starter(NamedTuple):
    """A config for data.

    Args:
        text: The config.
        notes: Columns that it uses, and those that it does not with the reason, each a line.
    """

    text: str
    notes: Sequence[str] = ()


def find_texts(path: Path) -> TextSummary | None:
    """Look at a folder or table of texts; None where it has other things.

    Raises:
        DataError: If it has texts that cannot be used, or of one class.
    """
    if path.is_dir() and is_text_folder(path) and not _has_images(path):
        return _summarize(path, {}, read_folder(path, encoding="auto"))
    suffix = path.suffix.lower()
    is_table = path.is_file() and suffix in (*CSV_SUFFIXES, *_JSON_SUFFIXES, *PARQUET_SUFFIXES)
    is_folder = path.is_dir() and any(
        each.is_file() and not each.name.startswith(".") for each in path.iterdir()
    )
    if not (is_table or is_folder) or (path.is_dir() and _has_images(path)):
        return None
    return _find_in_table(path)


def summarize_text_column(path: Path, *, text: str, label: str) -> TextSummary:
    """Look at the texts of one column of a table, and at their labels in another.

    Raises:
        DataError: If a row cannot be used, or there is one class.
    """
    from lightkit.rows.text_table import TextColumns, read_text_table  # here: pyarrow

    _, rows = read_text_table(str(path), TextColumns(text=text, label=label))
    return _summarize(path, {"text": text, "label": label}, rows)


def _has_images(path: Path) -> bool:
    return any(Path(file).suffix.lower() in IMAGE_SUFFIXES for file in walk_files(str(path)))


def _find_in_table(path: Path) -> TextSummary | None:
    """Look at a table whose one feature is a text."""
    from lightkit.rows.reader import open_rows  # here: pyarrow, which few commands load
    from lightkit.rows.text_table import TextColumns

    try:
        table = open_rows(str(path), setting="--data")
    except DataError:
        return None  # whoever reads it as another kind says what is wrong
    names = {name.lower(): name for name in reversed(table.names)}
    label = next((names[each] for each in LABEL_COLUMNS if each in names), None)
    others = [
        name for name in table.names if name != label and name.lower() not in (*_IDS, "split")
    ]
    if label is not None and len(others) == 1 and others[0].lower() not in PATH_COLUMNS:
        return _look_at(path, TextColumns(text=others[0], label=label))
    if label is None and len(others) == 2:  # a label of another name: one of the two is a text
        for text, of_label in permutations(others):
            if text.lower() not in PATH_COLUMNS:
                found = _look_at_unnamed(path, TextColumns(text=text, label=of_label))
                if found is not None:
                    return found
    return None


def _look_at_unnamed(path: Path, columns: TextColumns) -> TextSummary | None:
    """Look at texts beside a column that may be their label; None where it is none."""
    try:
        found = _look_at(path, columns)
    except DataError:
        return None
    has_label = found is not None and len(found.classes) <= found.num_texts * _MOST_CLASSES
    return found if has_label else None


def _look_at(path: Path, columns: TextColumns) -> TextSummary | None:
    """Look at the texts and labels of two columns.

    None where the first has no texts of several words.

    Raises:
        DataError: If a row cannot be used, or there is one class.
    """
    from lightkit.rows.text_table import read_text_table  # here: pyarrow

    _, rows = read_text_table(str(path), columns)
    if not _are_texts(islice(rows, _NUM_LOOKED_AT)):
        return None
    _, rows = read_text_table(str(path), columns)
    return _summarize(path, {"text": str(columns.text), "label": str(columns.label)}, rows)


def _are_texts(rows: Iterator[TextRow]) -> bool:
    """Return whether rows have texts of several words."""
    words = [len((row.text or "").split()) for row in rows]
    return bool(words) and sum(words) / len(words) >= _LEAST_WORDS


def _summarize(path: Path, arguments: Mapping[str, str], rows: Iterator[TextRow]) -> TextSummary:
    logger = logging.getLogger("lightkit.data")
    was_disabled = logger.disabled
    logger.disabled = True  # `fit` warns of copies and the like
    try:
        index = index_texts(rows, root=str(path), val_fraction=0.0, test_fraction=0.0)
    finally:
        logger.disabled = was_disabled
    classes = _count_classes(index)
    if len(classes) < 2:
        raise DataError(
            f"--data {path}: its texts are of one class,"
            f" {', '.join(classes)}. Expected at least two."
        )
    splits: dict[str, int] = {split: count for split, count in index.counts.items() if count}
    if not index.given:
        num = len(index.texts)
        splits = {"test": round(num * _TEST_FRACTION), "val": round(num * _VAL_FRACTION)}
        splits["train"] = num - sum(splits.values())
    return TextSummary(path.as_posix(), arguments, classes, splits, index.is_multilabel)


def _count_classes(index: TextIndex) -> dict[str, int]:
    if index.is_multilabel:
        counts = index.targets.sum(axis=0, dtype=int).tolist()
        return dict(zip(index.class_names, counts, strict=True))
    found = Counter(index.targets.tolist())
    return {name: found[number] for number, name in enumerate(index.class_names)}


def format_text_config(summary: TextSummary, name: str, *, comparison: str) -> str:
    """Write a config for texts.

    Args:
        summary: The texts.
        name: File name of the config.
        comparison: Lines of the gate on a comparison with the champion.
    """
    classes = list(summary.classes.items())
    listed = ", ".join(f"{each} {number}" for each, number in classes[:_SHOWN_CLASSES])
    arguments = {"path": summary.path, **summary.arguments}
    of_data = ", ".join(
        f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in arguments.items()
    )
    multilabel = ", init_args: {multilabel: true}" if summary.is_multilabel else ""
    of_classes = format_count(len(classes), "class", "classes")
    if summary.is_multilabel:
        of_classes = format_count(len(classes), "label")
    text = f"""\
# {format_count(summary.num_texts, "text")} in {of_classes}.
#   lightkit fit -c {shlex.quote(name)}
# Classes: {listed}
# Hashed n-grams, which train in seconds and download nothing; encoder: \
transformers/NAME trains a pretrained network.
extends: [lightkit:base, lightkit:logger/tensorboard]

model: {{class_path: TextClassifier{multilabel}}}

data:
  class_path: TextData
  init_args: {{{of_data}}}

trainer: {{max_epochs: 10}}
"""
    if not summary.splits.get("test"):
        return text
    metric = "test/map" if summary.is_multilabel else "test/accuracy"
    largest = max(summary.classes, key=lambda each: summary.classes[each])
    chance = f"always answering {largest!r} gives {summary.share:.2f} on all texts"
    if summary.is_multilabel:
        chance = f"a random order gives {summary.share:.2f} on all texts"
    return f"""{text}
gate:   # for lightkit gate, promote and retrain
  metric: {metric}
  min: {round((1 + summary.share) / 2, 2)}   # {chance}; halfway from there to 1
{comparison}"""
