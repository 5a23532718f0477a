"""Texts with their labels and splits, from rows in any form.

Checked, with classes, splits and copies found.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lightkit.config import near
from lightkit.errors import DataError, format_count, join_names, visible
from lightkit.images.splits import (
    Split,
    check_spelling,
    name_label,
    sort_classes,
    split_named,
    split_of,
)

log = logging.getLogger("lightkit.data")

SPLITS: tuple[Split, ...] = ("train", "val", "test")
_KEPT_FIRST: tuple[Split, ...] = ("test", "val", "train")
"""Which copy of a text is kept where copies are dropped: so that a test is on texts that were not
trained on."""
_MAX_CLASSES = 100_000
_NUM_SHOWN = 5
Copies = Literal["keep", "drop"]


class TextRow(NamedTuple):
    """A text as it is read.

    Args:
        place: File, or file and line or row, for messages.
        text: None where there is none.
        label: Cell of the label, or a list of labels; the cells of several columns of 0 and 1 as a
            mapping.
        split: Word for its split; None where none says it.
        weight: Cell of the weight; None without.
        key: Cell of what decides its split; None for the text itself.
    """

    place: str
    text: str | None
    label: Any
    split: str | None = None
    weight: Any = None
    key: Any = None


@dataclass(frozen=True)
class TextIndex:
    """All texts of a data set by split; a split that there is none of is empty.

    Args:
        class_names: Names of the classes or labels.
        is_multilabel: Whether a text has any number of labels.
        texts: All texts, a `pyarrow.LargeStringArray`.
        places: Where each is from, likewise.
        targets: Number of the class of each, int64 ``(texts,)``; of labels 0 or 1, uint8
            ``(texts, labels)``.
        splits: Numbers of the texts of each split, in their order.
        lengths: Characters of each text, int64 ``(texts,)``.
        fingerprint: SHA-256 over split, labels, weight and content of all texts; their places and
            order do not count.
        weights: Of each text, float32 ``(texts,)``; None without.
        given: Splits that the data names; empty where the content decides.
        num_dropped: Copies that are left out.
    """

    class_names: list[str]
    is_multilabel: bool
    texts: Any
    places: Any
    targets: NDArray[Any]
    splits: dict[Split, NDArray[np.int64]]
    lengths: NDArray[np.int64]
    fingerprint: str
    weights: NDArray[np.float32] | None = None
    given: list[Split] = field(default_factory=list)
    num_dropped: int = 0

    @property
    def counts(self) -> dict[Split, int]:
        """Number of texts of each split."""
        return {split: len(numbers) for split, numbers in self.splits.items()}


class _Table:
    """Rows as they are read: the texts in Arrow, the rest as lists."""

    _CHUNK = 8192

    def __init__(self) -> None:
        import pyarrow as pa  # here, as few commands read texts

        self._pa = pa
        self._chunks: dict[str, list[Any]] = {"texts": [], "places": []}
        self._open: dict[str, list[str]] = {"texts": [], "places": []}
        self.labels: list[list[str]] = []
        self.splits: list[Split | None] = []
        self.weights: list[float] = []
        self.digests: list[bytes] = []
        self.keys: list[bytes] = []
        self.empty: list[str] = []
        self.num_empty = 0

    def add(self, row: TextRow, labels: list[str]) -> None:
        text = _clean(row.text or "")
        content = " ".join(text.split())
        if not content:
            self.num_empty += 1
            if len(self.empty) < _NUM_SHOWN:
                self.empty.append(row.place)
        digest = hashlib.sha256(content.encode()).digest()
        self.labels.append(labels)
        self.splits.append(_read_split(row))
        if row.weight is not None:
            self.weights.append(_read_weight(row))
        self.digests.append(digest)
        key = row.key
        self.keys.append(
            digest if key is None else hashlib.sha256(_clean(str(key)).encode()).digest()
        )
        self._open["texts"].append(text)
        self._open["places"].append(_clean(row.place))
        if len(self._open["texts"]) == self._CHUNK:
            self._flush()

    def _flush(self) -> None:
        for name, values in self._open.items():
            self._chunks[name].append(self._pa.array(values, self._pa.large_string()))
            values.clear()

    def join(self, name: str) -> Any:
        """Return a column of texts as one array."""
        self._flush()
        return self._pa.chunked_array(self._chunks[name], self._pa.large_string()).combine_chunks()

    def __len__(self) -> int:
        return len(self.labels)


def _clean(text: str) -> str:
    """Return a text with U+FFFD in the place of surrogates without their other half.

    UTF-8 has no bytes for these.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _read_split(row: TextRow) -> Split | None:
    if row.split is None:
        return None
    split = split_named(str(row.split))
    if split is None:
        raise DataError(
            f"{row.place}: the column of splits has {row.split!r}; expected train, val or test, or"
            " another usual name of theirs."
        )
    return split


def _read_weight(row: TextRow) -> float:
    try:
        weight = float(row.weight)
    except (TypeError, ValueError):
        weight = math.nan
    if not (math.isfinite(weight) and weight >= 0):
        raise DataError(
            f"{row.place}: the weight is {row.weight!r}; expected a number of 0 or more."
        )
    return weight


def read_labels(row: TextRow, separator: str | None) -> list[str]:
    """Return the names of the labels of a row; of one column without a separator exactly one.

    Raises:
        DataError: If there is no label, or a mark is neither 0 nor 1.
    """
    cell = row.label
    if isinstance(cell, Mapping):
        return [name for name, mark in cell.items() if _read_mark(row.place, name, mark)]
    if isinstance(cell, (list, tuple)):
        return [name for name in map(name_label, cell) if name]
    name = name_label(cell)
    if separator is not None:
        return [part.strip() for part in name.split(separator) if part.strip()]
    if not name:
        raise DataError(
            f"{row.place}: there is no label ({cell!r}). Fill it in, or take the row out."
        )
    return [name]


def _read_mark(place: str, column: str, cell: Any) -> bool:
    name = name_label(cell).lower()
    if name not in ("0", "1", "false", "true", "0.0", "1.0"):
        raise DataError(f"{place}: column {column!r} has {cell!r}, expected 0 or 1.")
    return name in ("1", "true", "1.0")


def index_texts(
    rows: Iterable[TextRow],
    *,
    root: str,
    val_fraction: float,
    test_fraction: float,
    separator: str | None = None,
    classes: Sequence[str] | None = None,
    copies: Copies = "keep",
) -> TextIndex:
    """Check all rows, and sort them into classes and splits.

    Where no splits are named, a hash of the text decides, in which white space counts as one space;
    so equal texts go the same way. A class of which all texts would be held out keeps one for
    training, with a warning.

    Args:
        rows: Of the data.
        root: Its place, for messages.
        val_fraction: Share that goes into validation, where no validation split is named.
        test_fraction: Share that is kept for testing, where no splits are named.
        separator: Character between several labels in a cell; None where a cell has one label.
        classes: Names of the classes in their order; None for those of the training rows, sorted.
        copies: ``drop`` leaves out all but one of equal texts: the one of test, else of val, else
            of train.

    Raises:
        DataError: If there are no rows, a cell is no label, or a split is missing or unusable.
    """
    table = _Table()
    has_several = separator is not None
    marks: list[str] | None = None
    for row in rows:
        if isinstance(row.label, Mapping):
            marks = list(row.label)
        has_several = has_several or isinstance(row.label, (list, tuple, Mapping))
        table.add(row, read_labels(row, separator))
    given = _check_table(table, root)

    # each text in its split
    assigned = _assign_splits(table, given, val_fraction=val_fraction, test_fraction=test_fraction)
    kept = np.ones(len(table), np.bool_)
    if copies == "drop":
        kept = _find_first_copies(table.digests, assigned)
    else:
        _warn_of_copies(table, assigned)
    splits = {split: np.flatnonzero(kept & (assigned == at)) for at, split in enumerate(SPLITS)}
    wanted: list[tuple[Split, float]] = [("train", 1.0), ("val", val_fraction)]
    _require_splits(root, splits, wanted if given else [*wanted, ("test", test_fraction)])

    names = list(classes or marks or _list_classes(table.labels, assigned, root))
    targets = _number_labels(table, names, has_several=has_several)
    texts = table.join("texts")
    places = table.join("places")
    import pyarrow.compute as pc  # here, as few commands read texts

    return TextIndex(
        class_names=names,
        is_multilabel=has_several,
        texts=texts,
        places=places,
        targets=targets,
        splits=splits,
        lengths=pc.utf8_length(texts).to_numpy(),
        fingerprint=_compute_fingerprint(table, assigned, kept),
        weights=np.array(table.weights, np.float32) if table.weights else None,
        given=given,
        num_dropped=int((~kept).sum()),
    )


def _check_table(table: _Table, root: str) -> list[Split]:
    """Check that there are texts to train on, and return the splits that are named.

    Empty texts are warned about.

    Raises:
        DataError: If there are no texts, or splits are named and none is that of training.
    """
    if not len(table):
        raise DataError(f"{root}: there are no texts.")
    given = [split for split in SPLITS if split in table.splits]
    if given and "train" not in given:
        raise DataError(
            f"{root}: no text is in the train split; the splits are {', '.join(given)}."
        )
    _warn_of_empty(table, root)
    return given


def require_classes(index: TextIndex, root: str) -> None:
    """Check that there is something to predict.

    A label that all or none of the training texts have is warned about, where a text has any number
    of them.

    Args:
        index: The texts.
        root: Their place, for messages.

    Raises:
        DataError: If all training texts have one class.
    """
    targets = index.targets[index.splits["train"]]
    if index.is_multilabel:
        counts = targets.sum(axis=0, dtype=np.int64).tolist()
        for name, count in zip(index.class_names, counts, strict=True):
            if count in (0, len(targets)):
                log.warning(
                    "%s: %s of the %d texts of the training split has the label %r, of which "
                    "nothing is learned",
                    root, "each" if count else "none", len(targets), visible(name, in_line=True),
                )  # fmt: skip
        return
    found = np.unique(targets)
    if len(found) < 2:
        label = index.class_names[int(found[0])]
        raise DataError(
            f"data.init_args.label: {root}: each of the {len(targets):,} texts of the training"
            f" split has the label {visible(label, in_line=True)!r}, so that there is nothing to"
            " predict. Name another column, or add texts of other classes."
        )


def _warn_of_empty(table: _Table, root: str) -> None:
    if table.num_empty:
        log.warning(
            "%s: %d of %d texts are empty, and are trained and scored as such: %s",
            root, table.num_empty, len(table),
            join_names([visible(place, in_line=True) for place in table.empty]),
        )  # fmt: skip


def _assign_splits(
    table: _Table, given: Sequence[Split], *, val_fraction: float, test_fraction: float
) -> NDArray[np.uint8]:
    """Return the number of the split of each text.

    One that none names is divided by the hash of the text.
    """
    own_test = 0.0 if given else test_fraction
    is_divided = not given or "val" not in given
    assigned = np.zeros(len(table), np.uint8)
    for at, named in enumerate(table.splits):
        split = named or "train"
        if split == "train" and is_divided:
            split = split_of(
                table.keys[at].hex(), val_fraction=val_fraction, test_fraction=own_test
            )
        assigned[at] = SPLITS.index(split)
    if is_divided:
        _keep_one_of_each_class(table, assigned)
    return assigned


def _keep_one_of_each_class(table: _Table, assigned: NDArray[np.uint8]) -> None:
    """Train on one text of each class of which all would be held out, in place, with a warning."""
    trained = {label for at in np.flatnonzero(assigned == 0).tolist() for label in table.labels[at]}
    moved: dict[str, int] = {}
    for at in np.flatnonzero(assigned != 0).tolist():
        if table.splits[at] not in (None, "train"):
            continue
        for label in table.labels[at]:
            nearest = moved.get(label, at)
            if label not in trained:  # training is at the upper end of the hashes
                moved[label] = max(at, nearest, key=lambda each: table.keys[each])
    for at in moved.values():
        key = table.keys[at]
        for other, own in enumerate(table.keys):
            if own == key and table.splits[other] in (None, "train"):
                assigned[other] = 0
    if moved:
        log.warning(
            "all texts of %s are held out by val_fraction and test_fraction; one of each class is "
            "trained on instead. Add texts of them",
            join_names([visible(name, in_line=True) for name in sorted(moved)]),
        )  # fmt: skip


def _find_first_copies(digests: Sequence[bytes], assigned: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return which texts are no copies of another.

    Of equal ones that of test, else of val, else of train is none.
    """
    kept = np.zeros(len(digests), np.bool_)
    seen: set[bytes] = set()
    for split in _KEPT_FIRST:
        for at in np.flatnonzero(assigned == SPLITS.index(split)).tolist():
            if digests[at] not in seen:
                seen.add(digests[at])
                kept[at] = True
    return kept


def _warn_of_copies(table: _Table, assigned: NDArray[np.uint8]) -> None:
    """Warn of equal texts that are in several splits, or have different labels."""
    same: dict[bytes, list[int]] = defaultdict(list)
    for at, digest in enumerate(table.digests):
        same[digest].append(at)
    groups = [numbers for numbers in same.values() if len(numbers) > 1]
    across = [group for group in groups if len({int(assigned[at]) for at in group}) > 1]
    unlike = [group for group in groups if len({tuple(table.labels[at]) for at in group}) > 1]
    _warn_of_groups(
        table, across, "in more than one split, which makes results look better than they are"
    )
    _warn_of_groups(table, unlike, "there with different labels, of which at most one is right")


def _warn_of_groups(table: _Table, groups: Sequence[Sequence[int]], effect: str) -> None:
    """Warn of equal texts, each with its places; of none without any."""
    if not groups:
        return
    places: Any = table.join("places")
    shown = [" = ".join(places[at].as_py() for at in group[:_NUM_SHOWN]) for group in groups]
    log.warning(
        "%s %s: %s. data.init_args.copies: drop leaves out all but one of equal texts",
        format_count(len(groups), "text is", "texts are"), effect,
        join_names([visible(each, in_line=True) for each in shown], most=_NUM_SHOWN),
    )  # fmt: skip


def _require_splits(
    root: str, splits: Mapping[Split, NDArray[np.int64]], wanted: Iterable[tuple[Split, float]]
) -> None:
    """Check that each split that is wanted has texts.

    Raises:
        DataError: If one has none.
    """
    for split, share in wanted:
        if share > 0 and not len(splits[split]):
            fraction = "test_fraction" if split == "test" else "val_fraction"
            raise DataError(
                f"{root}: the {split} split is empty. Its {sum(map(len, splits.values()))} texts"
                " are too few for val_fraction and test_fraction: add texts, or change"
                f" data.init_args.{fraction} (0 goes without)."
            )


def _list_classes(
    labels: Sequence[Sequence[str]], assigned: NDArray[np.uint8], root: str
) -> list[str]:
    """List the classes of the training texts: whole numbers by size, other names as text.

    Raises:
        DataError: If there are too many, or two of them are one value.
    """
    names = {label for at in np.flatnonzero(assigned == 0).tolist() for label in labels[at]}
    if len(names) > _MAX_CLASSES:
        raise DataError(
            f"{root}: the labels have more than {_MAX_CLASSES:,} different"
            " values, too many for classes."
        )
    check_spelling(names, place=f"{root}: the column of labels")
    return sort_classes(names)


def _number_labels(table: _Table, names: Sequence[str], *, has_several: bool) -> NDArray[Any]:
    """Return the targets of all texts.

    Raises:
        DataError: If a label is no class.
    """
    numbers = {name: number for number, name in enumerate(names)}
    num = len(table)
    targets: NDArray[Any] = (
        np.zeros((num, len(names)), np.uint8) if has_several else np.zeros(num, np.int64)
    )
    for at, labels in enumerate(table.labels):
        for label in labels:
            if label not in numbers:
                place = table.join("places")[at].as_py()
                raise DataError(
                    f"{place}: the label {label!r} is no class; the classes are"
                    f" {join_names(names, most=10)}{near(label, names) or '.'}"
                )
            if has_several:
                targets[at, numbers[label]] = 1
            else:
                targets[at] = numbers[label]
    return targets


def _compute_fingerprint(
    table: _Table, assigned: NDArray[np.uint8], kept: NDArray[np.bool_]
) -> str:
    lines = []
    for at in np.flatnonzero(kept).tolist():
        labels = "\n".join(table.labels[at])
        weight = table.weights[at] if table.weights else ""
        lines.append(f"{SPLITS[assigned[at]]}\0{labels}\0{weight}\0{table.digests[at].hex()}\n")
    return hashlib.sha256("".join(sorted(lines)).encode("utf-8", "surrogateescape")).hexdigest()
