"""A table that names images and their labels as a Lightning data module."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from lightkit.config.origins import near_files
from lightkit.data.image_folder import ImageFolder
from lightkit.errors import ConfigError, DataError
from lightkit.images.image_index import ImageIndex, index_files
from lightkit.images.label_table import (
    CSV_SUFFIXES,
    LabelColumns,
    LabelledFiles,
    TableRow,
    collect_files,
    read_csv,
)
from lightkit.rows.parquet_table import open_table

_READ_ROWS = 4096


class ImageTable(ImageFolder):
    """Images whose paths and labels stand in a table: CSV, Parquet (a file or a folder) or Delta.

    A row is an image. It has one label, or any number of them, for
    ``model.init_args.multilabel: true``: in a column of lists, in several columns of 0 and 1, or in
    one cell with a ``separator`` between them. A missing file is an error with its row. Where no
    column names the splits, an image's split is decided by a hash of its content, as for
    ImageFolder. Batches are those of ImageFolder; several labels are 0 or 1, int64
    ``(batch, labels)``.

    Args:
        path: The table.
        image: Column of the paths; `auto` takes the first that is named path, image, file or
            filename.
        label: Column of the labels, or several columns of 0 and 1, each a label; `auto` takes the
            first that is named label, labels, class, target, category or tags.
        separator: Character between several labels in one cell, such as "|"; an empty cell is an
            image without a label. Without it a cell is one label.
        split: Column that says train, val or test; `auto` takes a column `split` where there is
            one, null none.
        classes: Names of the classes or labels in their order; another label is an error with its
            row. Default are those of the training rows, sorted.
        root: Folder that relative paths count from; default is the folder that the table is in.
        kwargs: Splits, cache, sizes, loading and augmentation, as for ImageFolder.
    """

    source = "table of photos"
    input_folders: ClassVar[tuple[str, ...]] = ()
    class_folders: ClassVar[tuple[str, ...]] = ()
    input_paths: ClassVar[tuple[str, ...]] = ("path",)
    sample_arguments: ClassVar[tuple[str, ...]] = (
        *("path", "image", "label", "separator", "split", "classes", "root"),
        *("val_fraction", "test_fraction", "on_bad_image", "max_bad_fraction"),
    )

    def __init__(
        self,
        path: str,
        image: str = "auto",
        label: str | list[str] = "auto",
        separator: str | None = None,
        split: str | None = "auto",
        classes: list[str] | None = None,
        root: str | None = None,
        **kwargs: Any,
    ) -> None:
        table = Path(path).expanduser()
        super().__init__(root=str(table.parent) if root is None else root, **kwargs)
        if separator is not None and not separator:
            raise ConfigError(
                "data.init_args.separator: expected a character between"
                " labels, got ''; null is none."
            )
        self.path = table
        self._columns: dict[str, Any] = {
            "image": image,
            "label": label,
            "separator": separator,
            "split": split,
        }
        self._classes = classes
        self._is_multilabel: bool | None = None

    def _find_images(self) -> ImageIndex:
        found = self._read_table()
        self._is_multilabel = found.is_multilabel
        return index_files(
            self.path, found.class_names, found.files, given=dict.fromkeys(found.splits, self.path),
            val_fraction=self.val_fraction, test_fraction=self.test_fraction,
            on_bad_image=self.on_bad_image,
            max_bad_fraction=self.max_bad_fraction,
            locate=lambda name: f"{self.path}: class {name!r}",
        )  # fmt: skip

    def _read_table(self) -> LabelledFiles:
        """Read the rows, whatever the format of the table."""
        if not self.path.exists():
            where = f"data.init_args.path, from {Path.cwd()}"
            raise DataError(
                f"{self.path}: this table does not exist ({where}){near_files(self.path) or '.'}"
            )
        if self.path.suffix.lower() in CSV_SUFFIXES and self.path.is_file():
            names, rows = read_csv(self.path)
            columns = LabelColumns(names, **self._columns)
        else:
            table = open_table(str(self.path))
            columns = LabelColumns(table.schema.names, **self._columns)
            rows = _iterate_rows(table, columns)
        return collect_files(rows, columns, table=self.path, root=self.root, classes=self._classes)

    @property
    def is_multilabel(self) -> bool:
        """Return whether an image has any number of labels."""
        if self._is_multilabel is None:
            self.setup()
        return bool(self._is_multilabel)

    @property
    def _given_as(self) -> str:
        return f"named in {self.path}"

    def describe(self) -> dict[str, Any]:
        """Return the data's entry in a run's manifest."""
        return {**super().describe(), "table": str(self.path)}

    def _refuse_missing(self, split: Any) -> None:
        if not self.index.splits[split]:
            raise DataError(
                f"{self.path}: there is no {split} split. Name it in a column"
                f" (data.init_args.split), or set data.init_args.{split}_fraction above 0."
            )


def _iterate_rows(table: Any, columns: LabelColumns) -> Iterator[TableRow]:
    """Iterate over the rows of a Delta table or Parquet."""
    names = [name for name in (columns.image, *columns.labels, columns.split) if name is not None]
    for group in table.groups:
        at = 0
        for batch in group.read(names, batch_rows=_READ_ROWS):
            places = group.row_names(np.arange(at, at + batch.num_rows))
            at += batch.num_rows
            for place, cells in zip(places, batch.to_pylist(), strict=True):
                yield TableRow(place, cells)
