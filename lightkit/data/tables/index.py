"""Index of a table for a training: each row's split, the classes, and the rows that cannot be used.

All rows are looked at once, a row group at a time; what is found is kept on disk for the runs that
follow.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import types

from lightkit.data.tables.columns import (
    Columns,
    Numbers,
    RowFilter,
    Shape,
    column_shape,
    feature_matrix,
    find_columns,
    find_rounding,
    format_class,
    image_bytes,
    join_shapes,
    label_column,
    parse_filter,
    plain_column,
    plain_type,
    weight_values,
    wide_matrix,
)
from lightkit.errors import ConfigError, DataError, join_names
from lightkit.hardware.cache_folder import make_once
from lightkit.images.image_file import count_threads, map_in_order
from lightkit.images.image_index import Defect
from lightkit.images.progress import show_progress
from lightkit.images.splits import Split, check_fractions, sort_classes, split_named
from lightkit.rows.parquet_table import RowGroup, Snapshot
from lightkit.runs.files import flush

log = logging.getLogger("lightkit.data")

SPLITS: tuple[Split, ...] = ("train", "val", "test")
MAX_CLASSES = 100_000
# codes of rows in no split; the others are places in SPLITS
_LEFT_OUT = 3
_BAD = 4
_VERSION = 4  # raise it with every change of what is found
_NUM_LISTED = 1000  # bad rows by name
# of a record batch
_READ_BYTES = 4 << 20
_READ_ROWS = 4096
_JOBS_AHEAD = 256  # row groups whose findings are in memory
_KEPT_FOR_S = 60 * 24 * 3600.0

Codes = npt.NDArray[np.uint8]


class Row(NamedTuple):
    """One row of one split.

    Args:
        image: Encoded image, of a table of images.
        features: float32, of the index's ``feature_shape``, of a table of numbers.
        label: Number of the class, or the value to predict; None without labels.
        weight: Of its loss; None without weights.
        name: Its file, and its number in it.
        defect: Why it cannot be used, though it could when the table was opened.
    """

    image: bytes | None
    features: Numbers | None
    label: int | float | None
    weight: float | None
    name: str
    defect: str | None = None


@dataclass(frozen=True, eq=False)
class _Rules:
    """Rules that decide the split of a row of a table.

    Args:
        columns: Names of the columns.
        where: Filter; None lets every row pass.
        val_fraction: Share of the rows that no column holds out, by a hash, for validation.
        test_fraction: Likewise, for testing.
        shapes: Of each column of features.
    """

    columns: Columns
    where: RowFilter | None
    val_fraction: float
    test_fraction: float
    shapes: tuple[Shape, ...] = ()

    def excludes(self, group: RowGroup) -> bool:
        """Return whether no row of a row group passes the filter, by its statistics."""
        return self.where is not None and not group.may_match(self.where.row_groups)

    def needs_hash(self, given: Split | None) -> bool:
        """Return whether a hash holds out rows of a file, whose split its name may say."""
        return given in (None, "train") and (self.val_fraction > 0 or self.test_fraction > 0)


class _Values(NamedTuple):
    """Columns of a record batch as arrays, and which rows cannot be used for which reason."""

    images: pa.Array | None
    features: Numbers | None
    labels: pa.Array | None
    weights: Numbers | None
    reasons: list[tuple[npt.NDArray[np.bool_], str]]


def _convert(batch: pa.RecordBatch, columns: Columns, shapes: Sequence[Shape]) -> _Values:
    """Convert the columns of a batch; the scan leaves out images where it does not need them."""
    images = features = labels = weights = None
    reasons: list[tuple[npt.NDArray[np.bool_], str]] = []
    if columns.image and columns.image in batch.schema.names:
        images = image_bytes(batch, columns.image)
        reasons.append(
            (np.asarray(images.is_null()), f"no image (null in column {columns.image!r})")
        )
    if columns.label:
        labels = label_column(batch, columns)
        nulls = np.asarray(plain_column(batch, columns.label).is_null())
        other = (
            "no whole number, as a class has to be"
            if columns.target == "class"
            else "not a finite number"
        )
        if columns.label_names:
            other = f"none of the {len(columns.label_names)} classes that the table names, 0 and up"
        reasons.append((nulls, f"no label (null in column {columns.label!r})"))
        reasons.append(
            (np.asarray(labels.is_null()), f"the label in column {columns.label!r} is {other}")
        )
    if columns.weight:
        weights = weight_values(batch, columns.weight)
        reasons.append((np.isnan(weights), f"column {columns.weight!r} has no weight of 0 or more"))
    if columns.features:
        features, usable = feature_matrix(batch, columns.features, shapes)
        reasons.append(
            (~usable, f"a null, NaN, infinity or another length in {', '.join(columns.features)}")
        )
    return _Values(images, features, labels, weights, reasons)


@dataclass(eq=False)
class Index:
    """Each row's split, and what is known of all rows together. It can be pickled.

    Args:
        columns: Names of the columns.
        groups: The row groups of all tables.
        codes: uint8 ``(rows,)``, in the order of the row groups: a place in `SPLITS`, or that of a
            row in no split. An array that is mapped from a file is mapped from it by other
            processes, too.
        group_counts: int64 ``(row groups, 5)``: rows with each code.
        class_names: Names of the classes; a label counts into them. Empty for values. They are
            those of the training split, or of all rows where a hash decides the split.
        shapes: Of each column of features.
        defects: Rows that cannot be used; the first thousand.
        fingerprint: SHA-256 over the tables' fingerprints, all that decides which row is in which
            split, and the content of the columns that were read for it.
        mean_weight: Mean weight of the training split's rows; None without weights.
        rounded: Columns whose differences float32 loses, each with the different values of some
            rows, in float64 and in float32.
        num_null_keys: Rows that a hash of the key puts into a split although they have none.
        class_counts: Rows of each class in the training split.
    """

    columns: Columns
    groups: list[RowGroup]
    codes: Codes
    group_counts: npt.NDArray[np.int64]
    class_names: list[str]
    shapes: list[Shape]
    defects: list[Defect]
    fingerprint: str
    mean_weight: float | None = None
    rounded: Mapping[str, Sequence[int]] = field(default_factory=dict)
    num_null_keys: int = 0
    class_counts: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._class_numbers = {name: number for number, name in enumerate(self.class_names)}
        self._starts = np.cumsum([0, *(group.num_rows for group in self.groups)])

    @property
    def counts(self) -> dict[Split, int]:
        """Rows of each split."""
        return {
            split: int(self.group_counts[:, number].sum()) for number, split in enumerate(SPLITS)
        }

    @property
    def num_bad(self) -> int:
        """Rows that pass the filter, but cannot be used."""
        return int(self.group_counts[:, _BAD].sum())

    @property
    def feature_shape(self) -> Shape:
        """Shape of a row's features; empty for images."""
        return join_shapes(self.shapes) if self.shapes else ()

    def rows(self, split: Split) -> list[tuple[int, int]]:
        """List the numbers of the row groups with rows of a split.

        In stored order, each with how many.
        """
        counts = self.group_counts[:, SPLITS.index(split)]
        found = np.flatnonzero(counts)
        return list(zip(found.tolist(), counts[found].tolist(), strict=True))

    def row_numbers(self, group: int, split: Split) -> npt.NDArray[np.int64]:
        """Return the numbers, in a row group as it is read, of the rows of a split; ascending."""
        return np.flatnonzero(
            self.codes[self._starts[group] : self._starts[group + 1]] == SPLITS.index(split)
        )

    def read(self, split: Split, group: int, start: int = 0) -> Iterator[Row]:
        """Read the rows of a split in a row group as a stream, in stored order, from one of them.

        Args:
            split: The split.
            group: Number of the row group.
            start: Rows of the split before the first.

        Raises:
            DataError: If the file is missing or damaged.
        """
        wanted = self.row_numbers(group, split)[start:]
        stored = self.groups[group]
        at = 0
        done = 0
        for batch in stored.read(self.columns.of_a_sample, batch_rows=_rows_at_once(stored)):
            until = int(np.searchsorted(wanted, at + batch.num_rows))
            if until > done:
                rows = wanted[done:until]
                yield from self.make_rows(batch.take(pa.array(rows - at)), stored.row_names(rows))
            done = until
            at = at + batch.num_rows
            if done == len(wanted):
                return

    def make_rows(self, batch: pa.RecordBatch, names: Sequence[str]) -> Iterator[Row]:
        """Convert a record batch to rows.

        Args:
            batch: Has at least the columns of a sample.
            names: Of the rows.
        """
        columns = self.columns
        images, features, labels, weights, reasons = _convert(batch, columns, self.shapes)
        found = [None] * len(names) if labels is None else labels.to_pylist()
        defects: dict[int, str] = {}
        if labels is not None and columns.target == "class":
            found = [
                None if label is None else self._class_numbers.get(format_class(label))
                for label in found
            ]
            if None in found:
                unknown = np.array([label is None for label in found], np.bool_)
                reason = (
                    f"no class that was there when the table was opened (column {columns.label!r})"
                )
                reasons.append((unknown, reason))
        for rows, reason in reversed(reasons):
            defects |= dict.fromkeys(np.flatnonzero(rows).tolist(), reason)
        for number, (name, label) in enumerate(zip(names, found, strict=True)):
            yield Row(
                None if images is None else images[number].as_py(),
                None if features is None else features[number].reshape(self.feature_shape),
                label,
                None if weights is None else float(weights[number]),
                name,
                defects.get(number),
            )

    def __getstate__(self) -> dict[str, Any]:
        """Send the path of a mapped file rather than its content."""
        return {**self.__dict__, "codes": getattr(self.codes, "filename", self.codes)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Map the file again."""
        codes = state["codes"]
        self.__dict__.update(state)
        self.codes = codes if isinstance(codes, np.ndarray) else np.memmap(codes, np.uint8, "r")


def index_table(
    tables: Mapping[Split | None, Snapshot],
    columns: Columns,
    *,
    filter: Sequence[Any] | None = None,  # noqa: A002  # the config's name
    val_fraction: float = 0.0,
    test_fraction: float = 0.0,
    classes: Sequence[str] | None = None,
) -> Index:
    """Look at the columns that decide on each row, and keep what is found for the runs that follow.

    A row of a single table is in the split that its split column names. Without such a column a
    hash decides: of the image's bytes, as it does for a folder of images, so that photos keep their
    splits when they are converted; of the key column if there is one; or of the features and the
    label. Tables that are given apart are a split each. If nothing names a validation split,
    ``val_fraction`` of the training rows make one.

    Args:
        tables: One table under None, or one for each split, all with the same columns.
        columns: Names of the columns.
        filter: See `parse_filter`; rows that do not pass are in no split.
        val_fraction: Share of the rows for validation.
        test_fraction: Share of the rows for testing, if no splits are named.
        classes: Names of the classes, from a checkpoint; default are those of the training split,
            sorted.

    Raises:
        ConfigError: If the filter or a fraction is wrong.
        DataError: If nothing is left to train on, or a split has a class that training has not.
    """
    check_fractions(val_fraction=val_fraction, test_fraction=test_fraction)
    if columns.split is not None and None not in tables:
        raise ConfigError(
            "data.init_args.split has no effect on tables that are a split each. Leave it out."
        )
    where = _read_filter(filter, tables, columns)
    columns = replace(columns, label_names=_find_label_names(tables, columns, classes))
    if columns.split is not None or None not in tables:
        test_fraction = 0.0
        if _has_validation(tables, columns.split, val_fraction):
            val_fraction = 0.0
    rules = _Rules(columns, where, val_fraction, test_fraction)
    fingerprint = _compute_fingerprint(tables, rules)
    found, codes = _load_or_build(fingerprint, tables, rules)
    num_training = sum(counts[0] for counts in found["counts"])
    index = Index(
        columns, [group for table in tables.values() for group in table.groups], codes,
        np.array(found["counts"], np.int64).reshape(-1, _BAD + 1),
        class_names=_choose_class_names(found["classes"], tables, columns, classes),
        shapes=[tuple(shape) for shape in found["shapes"]],
        defects=[Defect(*each) for each in found["bad"]],
        # other content is other data, also with the same sizes and footers of files
        fingerprint=hashlib.sha256(f"{fingerprint}\0{found['digest']}".encode()).hexdigest(),
        mean_weight=found["weight"] / num_training if columns.weight and num_training else None,
        rounded=found["rounded"],
        num_null_keys=found["null_keys"],
        class_counts=found["classes"][0],
    )  # fmt: skip
    if classes is None:  # a model of a checkpoint may be tested on rows for nothing else
        _require_training(index, tables)
    return index


def _read_filter(
    asked: Sequence[Any] | None, tables: Mapping[Split | None, Snapshot], columns: Columns
) -> RowFilter | None:
    """Read the filter, which must fit each table.

    Raises:
        DataError: If a table has not the same columns.
    """
    names = {name: value for name, value in vars(columns).items() if name != "label_names"}
    where: RowFilter | None = None
    for table in reversed([*tables.values()]):
        find_columns(table.schema, **names)
        where = parse_filter(asked, table.schema)
    return where


def _require_training(index: Index, tables: Mapping[Split | None, Snapshot]) -> None:
    """Refuse tables of which no row is left to train on."""
    if not index.counts["train"]:
        counts = ", ".join(f"{split} {num}" for split, num in index.counts.items())
        raise DataError(
            f"{_name_places(tables)}: no rows are left to train on ({counts}, {index.num_bad} of"
            " them bad). Change data.init_args.filter, the fractions, or the names in"
            " data.init_args.split."
        )


def _name_places(tables: Mapping[Split | None, Snapshot]) -> str:
    return ", ".join(table.place for table in tables.values())


def _find_label_names(
    tables: Mapping[Split | None, Snapshot], columns: Columns, classes: Sequence[str] | None
) -> tuple[str, ...]:
    """Find the names of the classes that the numbers in the column of labels stand for.

    Empty if there are none.

    Args:
        tables: All with the same columns.
        columns: Names of the columns.
        classes: Those of a checkpoint, which may have been trained when the numbers had no names.

    Raises:
        DataError: If files or tables name them differently, so that one number stands for several
            classes.
    """
    label = columns.label
    first = next(iter(tables.values()))
    if (
        label is None
        or columns.target != "class"
        or not types.is_integer(plain_type(first.schema.field(label).type))
    ):
        return ()
    found = {table.class_labels.get(label, ()) for table in tables.values()}
    if len(found) > 1 or None in found:
        raise DataError(
            f"{_name_places(tables)}: the files name the classes of column {label!r} differently in"
            " their metadata (huggingface), so that one number stands for several classes. Write"
            " the files again with the same names."
        )
    names = found.pop() or ()
    return names if classes is None or set(classes) <= set(names) else ()


def _compute_fingerprint(tables: Mapping[Split | None, Snapshot], rules: _Rules) -> str:
    """Compute the digest of the tables and of all that decides which row is in which split."""
    decided = []
    for split, table in tables.items():
        fractions = (
            (rules.val_fraction, rules.test_fraction) if split in (None, "train") else (0.0, 0.0)
        )
        where = rules.where and rules.where.text
        decided.append((split, table.fingerprint, repr((rules.columns, where, split, *fractions))))
    return hashlib.sha256(repr((_VERSION, decided)).encode("utf-8", "surrogateescape")).hexdigest()


def _has_validation(
    tables: Mapping[Split | None, Snapshot], column: str | None, val_fraction: float
) -> bool:
    """Check if a table is for validation, or, where a share is asked for, a row is named to be."""
    if "val" in tables or column is None or val_fraction == 0:
        return "val" in tables
    (table,) = tables.values()
    return any(
        split_named(str(word)) == "val"
        for group in table.groups
        for batch in group.read([column], batch_rows=1 << 16)
        for word in plain_column(batch, column).unique().to_pylist()
    )


def _choose_class_names(
    classes: Sequence[Mapping[str, int]],
    tables: Mapping[Split | None, Snapshot],
    columns: Columns,
    given: Sequence[str] | None,
) -> list[str]:
    """Return the classes of a checkpoint.

    Else those of the training split, or of all rows where a hash decides.

    Args:
        classes: Rows of each class, of each split.
        tables: All with the same columns.
        columns: Names of the columns.
        given: Classes of a checkpoint.

    Returns:
        Their names; empty for values, and without labels.

    Raises:
        DataError: If a split has another class.
    """
    if columns.label is None or columns.target != "class":
        return []
    is_hashed = columns.split is None and None in tables
    names = list(given or (set().union(*classes) if is_hashed else classes[0]))
    owner = "the checkpoint"
    if given is None:
        owner = "the training split"
        kind = plain_type(next(iter(tables.values())).schema.field(columns.label).type)
        names = _sort_classes(names, kind, columns.label_names)
    if names:  # a table without training rows is refused
        _refuse_other_classes(classes, names, owner)
    if is_hashed and (untrained := [name for name in names if not classes[0].get(name)]):
        log.warning(
            "data: no row of %s is trained on, as a hash holds all of them out. Add rows of them, "
            "or name the splits in a column "
            "(data.init_args.split).", join_names([*map(repr, untrained)]),
        )  # fmt: skip
    return names


def _refuse_other_classes(
    classes: Sequence[Mapping[str, int]], names: Sequence[str], owner: str
) -> None:
    """Refuse rows of classes that are not among the names.

    Args:
        classes: Rows of each class, of each split.
        names: Names of the classes.
        owner: What has them: the checkpoint or the training split.

    Raises:
        DataError: If a split has another class.
    """
    for split, of_split in zip(SPLITS, classes, strict=True):
        unknown = sorted(of_split.keys() - set(names))
        if unknown:
            others, known = (join_names([*map(repr, each)]) for each in (unknown, names))
            raise DataError(
                f"the {split} split has rows of classes that {owner} does not have: {others}; it"
                f" has {known}. Leave such rows out with"
                " data.init_args.filter, or split the rows again."
            )


def _sort_classes(names: Sequence[str], kind: pa.DataType, label_names: Sequence[str]) -> list[str]:
    """Sort classes: as the table names them, whole numbers by size, other names as text."""
    if label_names:
        return sorted(names, key=label_names.index)
    is_text = types.is_boolean(kind) or types.is_string(kind) or types.is_large_string(kind)
    return sorted(names) if is_text else sort_classes(names)


def _load_or_build(
    fingerprint: str, tables: Mapping[Split | None, Snapshot], rules: _Rules
) -> tuple[dict[str, Any], Codes]:
    """Load the findings of an earlier run, or look at all rows.

    One process of a machine looks, the others wait.
    """
    state = [(table.place, table.state) for table in tables.values()]
    key = hashlib.sha256(
        repr((fingerprint, state, str(Path.cwd()))).encode("utf-8", "surrogateescape")
    ).hexdigest()

    def build(folder: Path) -> None:
        for entry in folder.parent.iterdir():  # opened by no run for two months
            if entry.is_dir() and time.time() - entry.stat().st_mtime > _KEPT_FOR_S:
                shutil.rmtree(entry, ignore_errors=True)
        with (folder / "codes").open("wb") as codes:
            found = _build(tables, rules, codes)
        (folder / "found.json").write_text(json.dumps(found))
        for file in folder.iterdir():
            flush(file)

    folder = make_once(f"table-index/{key[:32]}", build)
    return json.loads((folder / "found.json").read_text()), np.memmap(
        folder / "codes", np.uint8, "r"
    )


def _build(
    tables: Mapping[Split | None, Snapshot], rules: _Rules, file: BinaryIO
) -> dict[str, Any]:
    """Look at all rows, and write their codes to a file; return the findings for JSON."""
    columns = rules.columns
    first = next(iter(tables.values()))
    shapes = tuple(
        (
            (_list_length(first, name),)
            if (shape := column_shape(first.schema.field(name).type)) is None
            else shape
        )
        for name in columns.features
    )
    rules = replace(rules, shapes=shapes)
    jobs = [(group, split) for split, table in tables.items() for group in table.groups]
    num_rows = sum(group.num_rows for group, _ in jobs)
    counts = list[list[int]]()
    digest = hashlib.sha256()
    classes = [Counter[str]() for _ in SPLITS]
    bad = list[Defect]()
    rounded: dict[str, tuple[int, int]] = {}
    weight = 0.0
    num_null_keys = 0
    with ThreadPoolExecutor(count_threads()) as pool:  # reading and hashing let other threads run
        scanned = map_in_order(pool, lambda job: _scan(*job, rules), jobs, ahead=_JOBS_AHEAD)
        for found in show_progress(
            scanned, num_rows, "rows checked", size=lambda one: len(one.codes)
        ):
            file.write(found.codes.tobytes())
            counts.append(np.bincount(found.codes, minlength=_BAD + 1).tolist())
            digest.update(found.digest.encode())
            for of_split, more in zip(classes, found.classes, strict=True):
                of_split.update(more)
            bad += found.bad[: _NUM_LISTED - len(bad)]
            weight += found.weight
            num_null_keys += found.num_null_keys
            for name, (before, after) in found.rounded.items():
                worst = rounded.get(name, (1, 1))
                if name not in rounded or after * worst[0] < worst[1] * before:
                    rounded[name] = before, after
            if max(map(len, classes)) > MAX_CLASSES:
                raise DataError(
                    f"the label column has more than {MAX_CLASSES:,} different values, too many for"
                    " classes. Set data.init_args.target to value to predict it as a number, or"
                    " data.init_args.label to another column."
                )
    return {
        "shapes": shapes, "classes": classes, "counts": counts, "bad": bad,
        "digest": digest.hexdigest(), "weight": weight, "rounded": rounded,
        "null_keys": num_null_keys,
    }  # fmt: skip


def _list_length(table: Snapshot, name: str) -> int:
    for group in table.groups:
        for batch in group.read([name], batch_rows=64):
            lists = plain_column(batch, name).drop_null()
            if len(lists):
                return len(lists[0])
    raise DataError(
        f"{table.place}: column {name!r} (data.init_args.features) has nothing but nulls. Set it to"
        " another column."
    )


class _Findings(NamedTuple):
    """Codes, class counts and bad rows of a row group.

    Args:
        codes: Of the rows, as in the index.
        classes: Rows of each class, of each split.
        bad: Rows that cannot be used; the first ones.
        rounded: Columns whose differences float32 loses, see `find_rounding`; of the first rows.
        weight: Sum of the weights of the training rows.
        num_null_keys: Rows without a key, where a hash of it decides.
        digest: Of the codes and the content that was read; columns are hashed apart, so that it
            does not depend on the size of batches.
    """

    codes: Codes
    classes: list[Counter[str]]
    bad: list[Defect]
    rounded: dict[str, tuple[int, int]]
    weight: float = 0.0
    num_null_keys: int = 0
    digest: str = ""


def _scan(group: RowGroup, given: Split | None, rules: _Rules) -> _Findings:
    """Look at a row group's rows, unless its statistics exclude them.

    Raises:
        DataError: If the file is damaged, or the split column has other words than the splits'
            names.
    """
    codes = np.full(group.num_rows, _LEFT_OUT, np.uint8)
    found = _Findings(codes, [Counter() for _ in SPLITS], [], {})
    if rules.excludes(group):
        return found
    is_hashed = rules.needs_hash(given)
    names = _list_scanned(group, rules, is_hashed=is_hashed)
    if not names:  # all rows are alike
        codes[:] = SPLITS.index(given or "train")
        return found

    # Batch by batch; columns are hashed apart, so that the digest does not depend on the size of
    # batches.
    digests: dict[str, Any] = defaultdict(hashlib.sha256)
    weight = 0.0
    num_null_keys = 0
    at = 0
    for batch in group.read(names, batch_rows=_rows_at_once(group)):
        part = codes[at : at + batch.num_rows]
        values = _convert(batch, rules.columns, rules.shapes)
        _digest_values(values, digests)
        for rows, reason in _sort_rows(batch, part, given, rules, values):
            found.bad.extend(
                Defect(name, reason) for name in group.row_names(at + rows[:_NUM_LISTED])
            )
        if rules.columns.split:
            _split_by_column(batch, part, rules.columns.split, group)
        if is_hashed and (part == 0).any():
            contents, num_nulls = _split_by_hash(batch, part, rules, values)
            digests["contents"].update(contents)
            num_null_keys += num_nulls
        if rules.columns.target == "class":
            _count_classes(values, part, found.classes)
        if values.weights is not None:
            weight += float(values.weights[part == 0].sum(dtype=np.float64))
        if at == 0:
            found.rounded.update(_find_rounded(batch, np.flatnonzero(part < _LEFT_OUT), rules))
        at += batch.num_rows

    lines = [f"{name}\0{of_name.hexdigest()}\n" for name, of_name in sorted(digests.items())]
    digest = hashlib.sha256(codes.tobytes() + "".join(lines).encode()).hexdigest()
    return found._replace(digest=digest, weight=weight, num_null_keys=num_null_keys)


def _list_scanned(group: RowGroup, rules: _Rules, *, is_hashed: bool) -> list[str]:
    """List the columns of a row group that must be read to sort its rows, each once."""
    columns = rules.columns
    names: list[str] = []
    if rules.where is not None:
        names.extend(rules.where.columns)
    names.extend(columns.features)
    for name in (columns.label, columns.weight, columns.split, columns.key):
        if name:
            names.append(name)
    if columns.image:
        is_hashed_by_image = is_hashed and columns.key is None
        if is_hashed_by_image or group.may_have_nulls(columns.image):
            names.append(columns.image)
    return list(dict.fromkeys(names))


def _digest_values(values: _Values, digests: Mapping[str, Any]) -> None:
    """Add the values of a batch to the digests, by kind."""
    if values.labels is not None:
        texts = "".join(f"{label!r}\0" for label in values.labels.to_pylist())
        digests["labels"].update(texts.encode("utf-8", "surrogateescape"))
    if values.weights is not None:
        digests["weights"].update(values.weights.tobytes())
    if values.features is not None:
        digests["features"].update(np.ascontiguousarray(values.features).data)


def _sort_rows(
    batch: pa.RecordBatch, part: Codes, given: Split | None, rules: _Rules, values: _Values
) -> Iterator[tuple[npt.NDArray[np.int64], str]]:
    """Mark the rows that the filter passes as those of a split, and those of no use as bad.

    Args:
        batch: The rows.
        part: Their codes, changed in place.
        given: Split of the whole file, where its name says it.
        rules: With the filter.
        values: Of the batch.

    Yields:
        Rows that are bad for a reason, and the reason; each row once.
    """
    passed = np.ones(len(part), np.bool_)
    if rules.where is not None:
        passed = rules.where.passes(batch)
    part[passed] = SPLITS.index(given or "train")
    for rows, reason in values.reasons:
        bad = np.flatnonzero(rows & passed & (part != _BAD))
        part[bad] = _BAD
        yield bad, reason


def _split_by_column(batch: pa.RecordBatch, part: Codes, column: str, group: RowGroup) -> None:
    """Put the rows that are trained on into the splits that a column names.

    The codes are changed in place.

    Raises:
        DataError: If a word of the column names no split.
    """
    good = np.flatnonzero(part == 0)
    encoded = plain_column(batch, column).take(pa.array(good)).dictionary_encode("encode")
    places = []
    for value in encoded.dictionary.to_pylist():
        word = str(value).strip().lower()
        split = split_named(word)
        if split is None:
            raise DataError(
                f"{group.file.path}: column {column!r} names the split {word!r}. Expected train,"
                " val (or valid, validation) or test, or another usual name of theirs;"
                " data.init_args.filter leaves out other rows."
            )
        places.append(SPLITS.index(split))
    part[good] = np.array(places, np.uint8)[np.asarray(encoded.indices)]


def _count_classes(values: _Values, part: Codes, classes: Sequence[Counter[str]]) -> None:
    """Add the rows of a batch to the counts of each class, of each split."""
    if values.labels is None:
        return
    for code, of_split in enumerate(classes):
        counted = values.labels.filter(pa.array(part == code)).value_counts().to_pylist()
        of_split.update({format_class(one["values"]): one["counts"] for one in counted})


def _find_rounded(
    batch: pa.RecordBatch, rows: npt.NDArray[np.int64], rules: _Rules
) -> Iterator[tuple[str, tuple[int, int]]]:
    """Find the columns of features and values whose differences are lost in float32.

    A model gets them in float32.
    """
    columns = rules.columns
    shapes: list[tuple[str, Shape]] = list(zip(columns.features, rules.shapes, strict=True))
    if columns.label and columns.target == "value":
        shapes.append((columns.label, ()))
    taken = batch.take(pa.array(rows))
    for name, shape in shapes:
        matrix = wide_matrix(taken, name, shape)
        if matrix is not None and (lost := find_rounding(matrix)) is not None:
            yield name, lost


def _split_by_hash(
    batch: pa.RecordBatch, part: Codes, rules: _Rules, values: _Values
) -> tuple[bytes, int]:
    """Put those rows of a batch that are trained on into the splits that a hash decides.

    Args:
        batch: Has the columns that are hashed.
        part: Codes of the batch's rows, changed in place.
        rules: With the shares of the splits.
        values: Of the batch.

    Returns:
        The hashes, and the number of rows without a key.
    """
    columns = rules.columns
    rows = np.flatnonzero(part == 0)
    contents = b"".join(_hash_rows(batch, rows, columns, values))

    # as `lightkit.images.splits.split_of` does
    fractions = (np.frombuffer(contents, ">u8").reshape(-1, 4)[:, 0] >> 12) / 2.0**52
    is_val = fractions < rules.test_fraction + rules.val_fraction
    is_test = fractions < rules.test_fraction
    part[rows] = np.select([is_test, is_val], [2, 1], 0)

    num_nulls = (
        plain_column(batch, columns.key).take(pa.array(rows)).null_count if columns.key else 0
    )
    return contents, num_nulls


def _hash_rows(
    batch: pa.RecordBatch, rows: npt.NDArray[np.int64], columns: Columns, values: _Values
) -> list[bytes]:
    """Return the SHA-256 by which the split of some rows of a batch is decided."""
    sha256 = hashlib.sha256
    if columns.key:
        keys = plain_column(batch, columns.key).take(pa.array(rows)).to_pylist()
        contents = [
            key if isinstance(key, bytes) else str(key).encode("utf-8", "surrogateescape")
            for key in keys
        ]
        return [sha256(content).digest() for content in contents]
    if values.images is not None:
        return [sha256(values.images[row].as_buffer()).digest() for row in rows.tolist()]  # no copy
    assert values.features is not None
    texts = (
        ["None"] * len(rows)
        if values.labels is None
        else map(repr, values.labels.take(pa.array(rows)).to_pylist())
    )
    features = values.features[rows] + np.float32(0)  # -0.0, which equals 0.0, becomes it
    return [
        sha256(row.tobytes() + text.encode()).digest()
        for row, text in zip(features, texts, strict=True)
    ]


def _rows_at_once(group: RowGroup) -> int:
    """Return the number of rows that take some megabytes, by the row group's average."""
    each = max(1, group.size_bytes // max(1, group.num_stored))
    return max(1, min(_READ_ROWS, _READ_BYTES // each))
