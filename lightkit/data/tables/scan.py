"""One look at all rows of a row group: which split each is in, its class, and whether it can be used."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lightkit.data.skipped_samples import Defect
from lightkit.data.splits import Split, split_of
from lightkit.data.tables.columns import Columns
from lightkit.data.tables.features import Numbers, Shape, feature_matrix, plain_column
from lightkit.data.tables.filters import Filter
from lightkit.data.tables.moments import Moments
from lightkit.data.tables.rows import class_name, image_bytes, label_values, rows_at_once, weight_values
from lightkit.data.tables.snapshot import RowGroup
from lightkit.errors import DataError

__all__ = ["BAD", "LEFT_OUT", "MAX_CLASSES", "MOST_CONTENTS", "SPLITS", "Rules", "Scanned", "scan"]

SPLITS: tuple[Split, ...] = ("train", "val", "test")
LEFT_OUT, BAD = 3, 4  # what a row's code is where it is in none of the splits
MAX_CLASSES = 100_000
MOST_CONTENTS = 100  # different rows up to which they are counted, to tell why splits came out odd
_NUM_LISTED = 200  # of a row group's bad rows; the rest are counted
_NAMES: dict[str, Split] = {
    "train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"
}  # fmt: skip


@dataclass(frozen=True)
class Rules:
    """What decides where a row goes.

    Args:
        columns: Which columns are what.
        where: Lets rows through.
        shapes: Of each column of features.
        given: The split of all rows; None where a column or a hash decides.
        val_fraction: Share of the hashed rows for validation.
        test_fraction: Share of the hashed rows for testing.
        moved: Hashes that go into training whatever the fractions say.
    """

    columns: Columns
    where: Filter
    shapes: tuple[Shape, ...] = ()
    given: Split | None = None
    val_fraction: float = 0.0
    test_fraction: float = 0.0
    moved: frozenset[str] = frozenset()

    @property
    def hashes(self) -> bool:
        """Whether rows are shared out by their content."""
        return self.val_fraction > 0 or self.test_fraction > 0


@dataclass
class Scanned:
    """What there is in a row group.

    Args:
        codes: uint8 ``(rows,)``: place of the split in `SPLITS`, `LEFT_OUT` or `BAD`.
        classes: Of each split, how many rows each class has, and where the first is.
        bad: The first of the rows that cannot be used.
        inputs: Of the training split's features.
        targets: Of the training split's values.
        held_out: Of each class, the hash nearest to training among those that go into other splits, and where it is.
        contents: Hashes of rows that are shared out; the first hundred or so.
        num_hashed: Rows that are shared out.
        digest: SHA-256 of what decided, and of what was read for it: other content has another one, though the file's
            size and footer may be the same.
    """

    codes: npt.NDArray[np.uint8]
    classes: dict[Split, dict[str, tuple[int, str]]] = field(default_factory=lambda: {split: {} for split in SPLITS})
    bad: list[Defect] = field(default_factory=list)
    inputs: Moments = field(default_factory=Moments)
    targets: Moments = field(default_factory=Moments)
    held_out: dict[str, tuple[str, str]] = field(default_factory=dict)
    contents: set[str] = field(default_factory=set)
    num_hashed: int = 0
    digest: str = ""

    @property
    def num_bad(self) -> int:
        """Rows that cannot be used."""
        return int((self.codes == BAD).sum())


def scan(group: RowGroup, rules: Rules) -> Scanned:
    """Look at a row group's rows, unless its statistics say that the filter lets none through.

    Raises:
        DataError: If the file is damaged, or the split column has other words than the splits' names.
    """
    codes = np.full(group.num_rows, LEFT_OUT, np.uint8)
    found = Scanned(codes)
    with group.file.opened() as opened:
        stored = opened.metadata.row_group(group.number)
        if not rules.where.can_hold(group.file.partition, stored):
            return found
        columns = _needed(rules, has_null_images=_may_have_null_images(rules.columns, stored))
    if not columns:  # nothing tells one row from another
        codes[:] = SPLITS.index(rules.given or "train")
        return found
    at, read = 0, _Digest()
    for batch in group.read(columns, batch_rows=rows_at_once(group)):
        if at + batch.num_rows > len(codes):
            break
        _take_in(found, batch, at, group, rules, read)
        at += batch.num_rows
    if at != len(codes):
        raise DataError(f"{group.path}: row group {group.number} has {at} rows, but its footer says {len(codes)}.")
    found.digest = read.with_codes(codes)
    return found


class _Digest:
    """SHA-256 of columns, each apart, so that it is the same however they are cut into batches."""

    def __init__(self) -> None:
        self._columns: dict[str, Any] = {}

    def add(self, column: str, content: bytes | memoryview) -> None:
        self._columns.setdefault(column, hashlib.sha256()).update(content)

    def with_codes(self, codes: npt.NDArray[np.uint8]) -> str:
        total = hashlib.sha256(codes.tobytes())
        for column, digest in sorted(self._columns.items()):
            total.update(f"{column}\0{digest.hexdigest()}\n".encode())
        return total.hexdigest()


def _needed(rules: Rules, *, has_null_images: bool) -> list[str]:
    columns = rules.columns
    names = [*rules.where.columns, *columns.features]
    names += [name for name in (columns.label, columns.weight, columns.split, columns.key) if name]
    if columns.image and (has_null_images or (rules.hashes and columns.key is None)):
        names.append(columns.image)
    return list(dict.fromkeys(names))


def _may_have_null_images(columns: Columns, stored: Any) -> bool:
    """Whether the statistics leave it open; they spare reading all images."""
    if columns.image is None:
        return False
    for number in range(stored.num_columns):
        column = stored.column(number)
        if column.path_in_schema in (columns.image, f"{columns.image}.bytes"):
            said = column.statistics if column.is_stats_set else None
            return said is None or not said.has_null_count or said.null_count > 0
    return True


def _take_in(found: Scanned, batch: pa.RecordBatch, at: int, group: RowGroup, rules: Rules, read: _Digest) -> None:
    passed = np.asarray(rules.where.holds(batch))
    labels = label_values(batch, rules.columns) if rules.columns.label else None
    features = feature_matrix(batch, rules.columns.features, rules.shapes) if rules.columns.features else None
    defect_of = _defects(batch, rules.columns, labels, features)
    place_of_row = _splits(batch, rules, labels, features, group)
    training: list[int] = []
    if labels is not None:
        read.add("labels", "".join(f"{label!r}\0" for label in labels).encode("utf-8", "surrogateescape"))
    if features is not None:
        read.add("features", np.ascontiguousarray(features[0]).data)
    if rules.columns.weight:
        read.add("weights", weight_values(batch, rules.columns.weight).tobytes())
    for row in np.flatnonzero(passed).tolist():
        reason = defect_of(row)
        if reason is not None:
            found.codes[at + row] = BAD
            if len(found.bad) < _NUM_LISTED:
                found.bad.append(Defect(group.place(at + row), reason))
            continue
        split, content = place_of_row(row)
        found.codes[at + row] = SPLITS.index(split)
        name = class_name(labels[row]) if labels is not None and rules.columns.target == "class" else None
        if split == "train":
            training.append(row)
        if name is not None:
            _count(found.classes[split], name, at + row, group)
        if content is not None:
            read.add("contents", content.encode())
            _note_content(found, content, name if split != "train" else None, at + row, group)
    if features is not None:
        found.inputs.add(Moments.of(features[0][training]))
    if labels is not None and rules.columns.target == "value":
        found.targets.add(Moments.of(np.array([labels[row] for row in training], np.float64)))


def _note_content(found: Scanned, content: str, held_out: str | None, row: int, group: RowGroup) -> None:
    found.num_hashed += 1
    if len(found.contents) <= MOST_CONTENTS:
        found.contents.add(content)
    # training is at the upper end of the hashes
    if held_out is not None and content > found.held_out.get(held_out, ("", ""))[0]:
        found.held_out[held_out] = (content, group.place(row))


def _count(classes: dict[str, tuple[int, str]], name: str, row: int, group: RowGroup) -> None:
    if name in classes:
        num, first = classes[name]
        classes[name] = (num + 1, first)
        return
    classes[name] = (1, group.place(row))
    if len(classes) > MAX_CLASSES:
        raise DataError(
            f"{group.path}: the label column has more than {MAX_CLASSES:,} different values, too many for classes. Set "
            "data.init_args.target to value to predict it as a number, or data.init_args.label to another column."
        )


def _defects(
    batch: pa.RecordBatch,
    columns: Columns,
    labels: list[Any] | None,
    features: tuple[Numbers, npt.NDArray[np.bool_]] | None,
) -> Callable[[int], str | None]:
    """Tell, for a row of the batch, why it cannot be used; None for rows that can."""
    reasons: list[tuple[npt.NDArray[np.bool_], str]] = []
    if columns.image and columns.image in batch.schema.names:
        images = image_bytes(batch, columns.image)
        reasons.append((np.asarray(images.is_null()), f"no image (null in column {columns.image!r})"))
    if labels is not None:
        missing = np.array([label is None for label in labels], np.bool_)
        nulls = np.asarray(batch.column(batch.schema.get_field_index(columns.label)).is_null())
        other = "no whole number, as a class has to be" if columns.target == "class" else "not a finite number"
        reasons.append((missing & nulls, f"no label (null in column {columns.label!r})"))
        reasons.append((missing, f"the label in column {columns.label!r} is {other}"))
    if columns.weight:
        weights = weight_values(batch, columns.weight)
        reasons.append((np.isnan(weights), f"column {columns.weight!r} has no weight of 0 or more"))
    if features is not None:
        reasons.append((~features[1], f"a null, NaN, infinity or another length in {', '.join(columns.features)}"))

    def defect_of(row: int) -> str | None:
        return next((reason for rows, reason in reasons if rows[row]), None)

    return defect_of


def _splits(
    batch: pa.RecordBatch,
    rules: Rules,
    labels: list[Any] | None,
    features: tuple[Numbers, npt.NDArray[np.bool_]] | None,
    group: RowGroup,
) -> Callable[[int], tuple[Split, str | None]]:
    """Tell the split of a row of the batch, and the hash that has decided it, if one has."""
    columns = rules.columns
    named = plain_column(batch, columns.split).to_pylist() if columns.split else None
    keys = plain_column(batch, columns.key) if columns.key else None
    images = image_bytes(batch, columns.image) if rules.hashes and columns.image and keys is None else None

    def content(row: int) -> Any:
        if keys is not None:
            key = keys[row].as_py()
            return key if isinstance(key, bytes) else str(key).encode("utf-8", "surrogateescape")
        if images is not None:
            return images[row].as_buffer()  # no copy
        assert features is not None
        return features[0][row].tobytes() + repr(None if labels is None else labels[row]).encode()

    def place_of_row(row: int) -> tuple[Split, str | None]:
        split: Split = rules.given or "train"
        if named is not None:
            split = _named_split(named[row], columns.split, group)
        if split != "train" or not rules.hashes:
            return split, None
        digest = hashlib.sha256(content(row)).hexdigest()
        if digest in rules.moved:
            return "train", digest
        return split_of(digest, val_fraction=rules.val_fraction, test_fraction=rules.test_fraction), digest

    return place_of_row


def _named_split(word: str | None, column: str | None, group: RowGroup) -> Split:
    split = _NAMES.get((word or "").strip().lower())
    if split is None:
        raise DataError(
            f"{group.path}: column {column!r} names the split {word!r}. Expected train, val (or valid, validation) "
            "or test; data.init_args.filter leaves out other rows."
        )
    return split
