"""The config that `lightkit init` writes for images: in class folders, or in a table."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa

from lightkit.cli.starter import (
    Classes,
    Starter,
    count_splits,
    describe_batches,
    format_arguments,
    format_json,
    measure_images,
)
from lightkit.config.origins import near_files, shown_path
from lightkit.errors import DataError, format_count
from lightkit.images.image_file import IMAGE_SUFFIXES, walk_files
from lightkit.images.image_index import find_split_folders, list_folders, refuse_masks
from lightkit.images.inputs import COLUMNS as PATH_COLUMNS
from lightkit.images.label_table import (
    CSV_SUFFIXES,
    LABEL_COLUMNS,
    LabelColumns,
    TableRow,
    collect_files,
    find_usual,
)
from lightkit.images.splits import Split
from lightkit.images.table_format import SHEET_SUFFIXES, explain_other_format
from lightkit.rows.reader import RowTable, is_text_file

_NUM_SIZES = 200  # rows whose size is looked at
_SEPARATORS = "|;,"
_LABELS = ("label", "class", "target", "category", "y")
_FEW_IMAGES = 5000  # below it a frozen backbone generalises better than one trained as a whole
_SMALL_SIDE = 64  # pixels; below it a pretrained network sees too little


@dataclass(frozen=True)
class ImageSummary:
    """Images, splits and classes of a folder or table.

    Args:
        class_name: Class of the data module.
        arguments: Its arguments.
        classes: The classes of all images.
        num_train: Number of training images.
        sizes: Shorter side of some of the images, in pixels.
        found: One line that says it.
    """

    class_name: str
    arguments: Mapping[str, Any]
    classes: Classes
    num_train: int
    sizes: Sequence[int]
    found: str

    def compose(self, name: str) -> Starter:
        """Write the config: each setting with its reason as a comment.

        Args:
            name: File name of the config.
        """
        side = round(median(self.sizes or [224]))
        is_frozen = side >= _SMALL_SIDE and self.num_train < _FEW_IMAGES
        return Starter(f"""\
# {self.found}.
#   lightkit fit -c {shlex.quote(name)}
# Classes: {self.classes.list_counts()}
extends:
  - lightkit:base
  - lightkit:accelerator/auto   # as fast as this machine computes: bf16 where it has \
the instructions, else float32
  - lightkit:logger/tensorboard

model:
  class_path: ImageClassifier
  init_args:
{format_arguments(self._list_model_arguments(side))}
data:
  class_path: {self.class_name}
  init_args:
{format_arguments(self._list_data_arguments(side, is_frozen=is_frozen))}
callbacks:
  early_stopping:
    init_args: {{monitor: val/loss, patience: 5}}   # stop when 5 epochs bring nothing

trainer:
  max_epochs: {20 if is_frozen else 50}   # at most; early_stopping usually ends before
{self.classes.format_gate()}""")

    def _list_model_arguments(self, side: int) -> list[tuple[str, Any, str]]:
        """List the arguments of the model, each with its value and reason."""
        number = f"about {format_count(self.num_train, 'training image')}"
        if side < _SMALL_SIDE:
            reason = f"images of {side} pixels are too small for a pretrained network"
            arguments = [("backbone", "small_cnn", reason)]
        else:
            arguments = [
                (
                    "backbone",
                    "mobilenet_v2",
                    "small and fast on a CPU; any classification model of torchvision works",
                ),
                (
                    "weights",
                    "default",
                    "ImageNet weights, 14 MB, downloaded once; or a file's path; null: random ones",
                ),
            ]
            if self.num_train < _FEW_IMAGES:
                reason = f"{number} are few: train the head only; `none` trains all layers"
                arguments.append(("freeze", "backbone", reason))
            else:
                arguments.append(("freeze", "none", f"{number} are enough to train all layers"))
        if self.classes.is_multilabel:
            arguments.append(("multilabel", "true", "an image has any number of labels"))
        return arguments

    def _list_data_arguments(self, side: int, *, is_frozen: bool) -> list[tuple[str, Any, str]]:
        """List the arguments of the data, each with its value and reason."""
        batch_size = next((size for size in (32, 16) if self.num_train >= 20 * size), 8)
        batches = describe_batches(self.num_train, batch_size)
        if self.num_train < batch_size:
            batches += ": one batch an epoch"
        arguments = [(key, format_json(value), "") for key, value in self.arguments.items()]
        arguments += [
            (
                "image_size",
                str(min(224, max(32, side // 32 * 32))),
                f"the shorter side of the images is {side} pixels (median)",
            ),
            ("batch_size", str(batch_size), batches),
        ]
        # a table is read as a stream, of which no features are kept
        if is_frozen and self.class_name != "Table":
            reason = "the features of a frozen backbone are then computed once"
            arguments.append(("augment", "false", reason))
        return arguments


def has_images(path: Path, table: RowTable) -> bool:
    """Return whether a table has images or their paths, where a data module of images reads it."""
    return _find_bytes(table) is not None or _names_files(path, table)


def _find_bytes(table: RowTable) -> str | None:
    """Return the first column of bytes; None where there is none."""
    of_bytes = (pa.binary(), pa.large_binary())
    return next((name for name, kind in table.types.items() if kind in of_bytes), None)


def _names_files(path: Path, table: RowTable) -> bool:
    """Return whether a table that `ImageTable` reads has a column of paths."""
    if is_text_file(table.files[0].name) and path.suffix.lower() not in CSV_SUFFIXES:
        return False
    return any(
        name.lower() in PATH_COLUMNS and "string" in str(kind) for name, kind in table.types.items()
    )


def find_image_table(path: Path, table: RowTable | None) -> ImageSummary | None:
    """Look at a table of images or of their paths; None for another one.

    Raises:
        DataError: If it has no labels, or fewer than two classes, or a file is missing.
    """
    if table is None or not has_images(path, table):
        return None
    image = _find_bytes(table)
    if image is None:
        summary = _summarize_paths(path, table)
    else:
        summary = _summarize_bytes(path, table, image)
    least = 1 if summary.classes.is_multilabel else 2
    if len(summary.classes.counts) < least:
        raise DataError(
            f"--data {shown_path(path)}: {summary.found}; expected two or more different labels in"
            f" its column {summary.arguments['label']!r}"
        )
    return summary


def _summarize_bytes(path: Path, table: RowTable, image: str) -> ImageSummary:
    """Count the classes and the splits of a table of image bytes.

    Raises:
        DataError: If there is no column of labels.
    """
    label = next((name for name in _LABELS if name in table.names), None)
    if label is None:
        listed = ", ".join(f"{name} ({kind})" for name, kind in table.types.items())
        raise DataError(
            f"--data {shown_path(path)}: expected a column of image bytes and one of"
            f" {', '.join(_LABELS)}; got {listed}. By hand, data.init_args.label of"
            " lightkit.data.Table names a label column of any name."
        )
    of_columns = _count_cells(table, [label, "split"])
    num_rows = of_columns[label].total()
    num_train, num_test = count_splits(of_columns["split"], num_rows)
    counts = {str(name): number for name, number in sorted(of_columns[label].items(), key=str)}
    classes = Classes("image", counts, num_rows, num_test)
    return ImageSummary(
        "Table",
        {"path": path.as_posix(), "image": image, "label": label},
        classes,
        num_train,
        _read_sizes(table),
        f"{format_count(num_rows, 'row')} in {classes.number}, image column {image!r},"
        f" label column {label!r}",
    )


def _count_cells(table: RowTable, columns: Sequence[str]) -> dict[str, Counter[Any]]:
    """Count the different cells of columns; none of a column that the table lacks."""
    counts: dict[str, Counter[Any]] = {name: Counter() for name in columns}
    for batch in table.read([name for name in columns if name in table.names]):
        for name, cells in batch.rows.to_pydict().items():
            counts[name].update(cells)
    return counts


def _read_sizes(table: RowTable) -> list[int]:
    """Return the shorter side of some images, where the table has their sizes."""
    if not {"width", "height"} <= {*table.names}:
        return []
    rows = (row for batch in table.read(["width", "height"]) for row in batch.rows.to_pylist())
    return [min(row.values()) for row in islice(rows, _NUM_SIZES) if None not in row.values()]


def _summarize_paths(path: Path, table: RowTable) -> ImageSummary:
    """Look at the images that the rows of a table name, and at their labels.

    Raises:
        DataError: If a file is missing, or there is no column of labels.
    """
    rows = _list_rows(table)
    label = _find_labels(table.names, rows)
    separator = None
    if isinstance(label, str):
        separator = _find_separator([row.cells[label] for row in rows])
    columns = LabelColumns(
        table.names, image="auto", label=label, separator=separator, split="auto"
    )
    found = collect_files(rows, columns, table=path, root=path.parent)
    files = [file for of_split in found.files.values() for file, _ in of_split]
    named = {split: len(found.files[split]) for split in found.splits}
    num_train, num_test = count_splits(named, len(files))
    counts = Counter(name for row in rows for name in {*columns.read_labels(row)})
    classes = Classes(
        "image",
        {name: counts[name] for name in found.class_names},
        len(files),
        num_test,
        is_multilabel=found.is_multilabel,
    )
    arguments: dict[str, Any] = {"path": path.as_posix(), "image": columns.image, "label": label}
    if separator is not None:
        arguments["separator"] = separator
    return ImageSummary(
        "ImageTable",
        arguments,
        classes,
        num_train,
        measure_images(files),
        f"{format_count(len(files), 'image')} with {classes.number}, path column {columns.image!r}",
    )


def _list_rows(table: RowTable) -> list[TableRow]:
    rows: list[TableRow] = []
    for batch in table.read(with_lines=True):
        rows += map(TableRow, batch.name_rows(), batch.rows.to_pylist())
    return rows


def _find_labels(names: Sequence[str], rows: Sequence[TableRow]) -> str | list[str]:
    """Find the column of labels, or the columns of 0 and 1 where a table has no such column.

    Raises:
        DataError: If there are none.
    """
    label = find_usual(names, LABEL_COLUMNS)
    if label is not None:
        return label
    marks = [
        name for name in names if all(str(row.cells[name]).strip() in ("0", "1") for row in rows)
    ]
    if len(marks) > 1:
        return marks
    raise DataError(
        f"--data: the table has no column of labels named {', '.join(LABEL_COLUMNS)}, and no"
        f" columns of 0 and 1; it has {', '.join(names)}. By hand, data.init_args.label of"
        " lightkit.data.ImageTable names a column of any name."
    )


def _find_separator(cells: Sequence[Any]) -> str | None:
    """Find the character between several labels in one cell: the one of | ; and , that occurs.

    None where none does.
    """
    texts = [cell for cell in cells if isinstance(cell, str)]
    found = [each for each in _SEPARATORS if any(each in text for text in texts)]
    return found[0] if len(found) == 1 else None


def summarize_class_folders(path: Path) -> ImageSummary:
    """Look at images in class folders.

    Raises:
        DataError: If there are none, or fewer than two classes.
    """
    _refuse_other_files(path)
    splits = find_split_folders(path)
    images = {split: _list_images(folder) for split, folder in (splits or {"train": path}).items()}
    numbers = {split: len(files) for split, files in images.items()}
    num_train, num_test = count_splits(numbers if splits else {}, numbers["train"])
    in_all = Counter(name for files in images.values() for name, _ in files)
    counts = {name: in_all[name] for name in dict(images["train"])}
    classes = Classes("image", counts, sum(counts.values()), num_test)
    found = f"{_describe_numbers(numbers)} in {classes.number}"
    if len(counts) < 2:
        num_loose = sum(file.suffix.lower() in IMAGE_SUFFIXES for file in path.iterdir())
        if num_loose:
            found = f"{format_count(num_loose, 'image')}, not in the folder of a class"
        raise _too_few_classes(path, found)
    sizes = measure_images([file for _, file in images["train"]])
    return ImageSummary("ImageFolder", {"root": path.as_posix()}, classes, num_train, sizes, found)


def _refuse_other_files(path: Path) -> None:
    """Refuse what is neither a folder of folders nor a table.

    Raises:
        DataError: If it is missing, or a file or folder of another format.
    """
    if not path.exists():
        raise DataError(f"--data {path}: no such file or folder{near_files(path)}")
    if path.suffix.lower() in SHEET_SUFFIXES:
        raise DataError(
            f"--data {path}: spreadsheets are not read; save it as CSV, and name that file"
        )
    # next to class folders a licence or a list is no table
    if path.is_dir() and list_folders(path):
        return
    reason = explain_other_format(path)
    if reason is not None:
        raise DataError(f"--data: {reason}")


def _list_images(root: Path) -> list[tuple[str, Path]]:
    """List the images below each class's folder, each with the name of its class.

    Raises:
        DataError: If the folders hold masks.
    """
    files = {
        folder: [
            file
            for file in map(Path, walk_files(str(folder)))
            if file.suffix.lower() in IMAGE_SUFFIXES
        ]
        for folder in list_folders(root)
    }
    refuse_masks(files)
    return [(folder.name, file) for folder, found in files.items() for file in found]


def _describe_numbers(numbers: Mapping[Split, int]) -> str:
    """Write the number of images, or that of each split."""
    if len(numbers) > 1:
        return f"{', '.join(f'{number} {split}' for split, number in numbers.items())} images"
    number = numbers["train"]
    return f"{number} {'image' if number == 1 else 'images'}"


def _too_few_classes(path: Path, found: str) -> DataError:
    return DataError(
        f"--data {shown_path(path)}: {found}; expected one folder per class with images, or train/,"
        " val/ and test/ with class folders"
    )
