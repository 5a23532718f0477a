"""Looking at all rows of a table, once: in parallel, with bounded memory, and kept for the runs that follow."""

from __future__ import annotations

import hashlib
import logging
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from lightkit.data.skipped_samples import Defect
from lightkit.data.splits import Split, check_fractions
from lightkit.data.tables.columns import Columns, columns_of, plain_type
from lightkit.data.tables.features import Shape, column_shape, plain_column
from lightkit.data.tables.filters import filter_of
from lightkit.data.tables.findings import class_names_of, notes_of, refuse_no_training
from lightkit.data.tables.index import Index
from lightkit.data.tables.index_files import Kept, index_folder, load_index, locked, save_index
from lightkit.data.tables.scan import MAX_CLASSES, MOST_CONTENTS, SPLITS, Rules, Scanned, scan
from lightkit.data.tables.snapshot import RowGroup, Snapshot
from lightkit.errors import ConfigError, DataError

__all__ = ["index_of"]

log = logging.getLogger("lightkit.data")

_VERSION = 2  # raise it with every change of what is found, or of how it is kept
_NUM_LISTED = 1000  # bad rows by name
_NUM_THREADS = 8
_BAR_FROM_BYTES = 100e6  # of a table; a smaller one takes a second

Tables = Mapping[Split | None, Snapshot]
Codes = npt.NDArray[np.uint8]


def index_of(
    tables: Snapshot | Mapping[Split, Snapshot],
    columns: Columns,
    *,
    filter: Sequence[Any] | None = None,  # noqa: A002  # the user's word for it, in their YAML
    val_fraction: float = 0.0,
    test_fraction: float = 0.0,
    classes: Sequence[str] | None = None,
) -> Index:
    """Look at what decides on each row, and keep what is found for the runs that follow.

    A row of a single table is in the split that its split column names. Without such a column a hash decides: of the
    image's bytes, as it does for a folder of images, so that photos keep their splits when they are converted; of the
    key column where there is one; or of the features and the label. Tables that are given apart are a split each. Where
    nothing names a validation split, ``val_fraction`` of the training rows make one.

    Args:
        tables: One table, or one for each split, all with the same columns.
        columns: Which columns are what.
        filter: See `filter_of`; rows that it does not let through are in no split.
        val_fraction: Share of the rows for validation.
        test_fraction: Share of the rows for testing, where no splits are named.
        classes: Names of the classes, from a checkpoint; default are those of the training split, sorted.

    Raises:
        ConfigError: If the filter or a fraction is wrong.
        DataError: If nothing is left to train on, or a split has a class that training has not.
    """
    check_fractions(val_fraction=val_fraction, test_fraction=test_fraction)
    by_split: Tables = {None: tables} if isinstance(tables, Snapshot) else dict(tables.items())
    _check_columns(by_split, columns)
    rules = _rules_of(by_split, columns, filter, val_fraction, test_fraction)
    fingerprint = _fingerprint(by_split, rules)
    said, codes = _kept_or_found(fingerprint, by_split, rules)
    counts: dict[Split, dict[str, Any]] = said["classes"]
    kind = None if columns.label is None else next(iter(by_split.values())).schema.field(columns.label).type
    names = [] if columns.target == "value" or kind is None else class_names_of(counts, plain_type(kind), classes)
    index = Index(
        columns,
        [replace(group, table=table) for table, one in enumerate(by_split.values()) for group in one.fragments],
        codes,
        shapes=tuple(tuple(shape) for shape in said["shapes"]),
        class_names=names,
        class_counts={split: {name: int(num) for name, (num, _) in counts[split].items()} for split in SPLITS},
        defects=[Defect(**defect) for defect in said["defects"]],
        scaling={name: (float(mean), float(spread)) for name, (mean, spread) in said["scaling"].items()},
        # whatever the files' sizes and footers say, other content is other data
        fingerprint=hashlib.sha256(f"{fingerprint}\0{said['digest']}".encode()).hexdigest(),
    )
    hashing, num_contents = next((one for one in rules.values() if one.hashes), None), said["num_contents"]
    if classes is None:  # a model that was trained before may be tested on rows for nothing else
        place = ", ".join(snapshot.place for snapshot in by_split.values())
        has_fractions = hashing is not None
        refuse_no_training(
            index, place, has_filter=bool(filter), has_fractions=has_fractions, num_contents=num_contents
        )
    if hashing is not None:
        moved = [(name, place) for name, place in said["moved"]]
        index.notes += notes_of(columns, hashing, index.counts, moved=moved, num_contents=num_contents)
    return index


def _check_columns(tables: Tables, columns: Columns) -> None:
    if columns.split is not None and None not in tables:
        raise ConfigError(
            f"data.init_args.split: column {columns.split!r} has no effect on tables that are a split each. "
            "Leave it out."
        )
    for split, snapshot in tables.items():
        _check_table(snapshot, columns, "" if split is None else f"{split} table, {snapshot.place}: ")


def _check_table(snapshot: Snapshot, columns: Columns, prefix: str) -> None:
    named = {name: getattr(columns, name) for name in ("image", "features", "label", "weight", "split", "key")}
    try:
        columns_of(snapshot.schema, **named, target=columns.target)
    except DataError as error:
        raise DataError(f"{prefix}{error}") from error


def _rules_of(
    tables: Tables, columns: Columns, asked: Sequence[Any] | None, val_fraction: float, test_fraction: float
) -> dict[Split | None, Rules]:
    """Give what decides on the rows of each table."""
    rules: dict[Split | None, Rules] = {}
    for split, snapshot in tables.items():
        where = filter_of(asked, snapshot.schema)
        val = test = 0.0
        if split is None and columns.split is None:
            val, test = val_fraction, test_fraction
        elif (split == "train" and "val" not in tables) or (
            columns.split is not None and val_fraction > 0 and not _names_validation(snapshot, columns.split)
        ):
            val = val_fraction
        rules[split] = Rules(columns, where, given=split, val_fraction=val, test_fraction=test)
    return rules


def _names_validation(snapshot: Snapshot, column: str) -> bool:
    """Whether any row is said to be for validation; read up to the first."""
    for group in snapshot.fragments:
        for batch in group.read([column], batch_rows=1 << 16):
            words = {str(word).strip().lower() for word in plain_column(batch, column).unique().to_pylist()}
            if words & {"val", "valid", "validation"}:
                return True
    return False


def _fingerprint(tables: Tables, rules: Mapping[Split | None, Rules]) -> str:
    decided = [(split, snapshot.fingerprint, repr(rules[split])) for split, snapshot in tables.items()]
    return hashlib.sha256(repr((_VERSION, decided)).encode("utf-8", "surrogateescape")).hexdigest()


def _kept_or_found(fingerprint: str, tables: Tables, rules: Mapping[Split | None, Rules]) -> Kept:
    # paths are in the findings, so a table that was moved is looked at again
    places = [snapshot.place for snapshot in tables.values()]
    states = [snapshot.states for snapshot in tables.values()]
    where = repr((fingerprint, places, states, str(Path.cwd())))
    key = hashlib.sha256(where.encode("utf-8", "surrogateescape")).hexdigest()
    folder = index_folder(key[:32])
    if folder is None:
        return _found(tables, rules)
    with locked(folder):
        kept = load_index(folder)
        if kept is not None and len(kept[1]) == sum(snapshot.num_rows for snapshot in tables.values()):
            return kept
        found = _found(tables, rules)
        save_index(folder, *found)
    return load_index(folder) or found


def _found(tables: Tables, rules: Mapping[Split | None, Rules]) -> Kept:
    """Look at every row group; once more where a class would have no row to train on, as a folder of images has one."""
    said, codes, total = _looked_at(tables, rules)
    moved = _moved(total, rules)
    if moved:
        hashes = frozenset(content for _, content, _ in moved)
        said, codes, _ = _looked_at(tables, {split: replace(one, moved=hashes) for split, one in rules.items()})
    return {**said, "moved": [(name, place) for name, _, place in moved]}, codes


def _moved(total: Scanned, rules: Mapping[Split | None, Rules]) -> list[tuple[str, str, str]]:
    """Classes that the hash has left nothing to train on of: name, hash that is to be trained on, its row."""
    trained, few = total.classes["train"], 2 * len(total.contents) <= total.num_hashed
    if any(one.columns.split for one in rules.values()) or (not trained and few):
        return []  # the splits are said, or equal rows have all gone the same way, which is told
    return [(name, *total.held_out[name]) for name in sorted(total.held_out) if name not in trained]


def _looked_at(tables: Tables, rules: Mapping[Split | None, Rules]) -> tuple[dict[str, Any], Codes, Scanned]:
    columns = next(iter(rules.values())).columns
    shapes = _shapes_of(next(iter(tables.values())), columns)
    jobs = [
        (group, replace(rules[split], shapes=shapes))
        for split, snapshot in tables.items()
        for group in snapshot.fragments
    ]
    total = Scanned(np.empty(0, np.uint8))
    codes, digest = [], hashlib.sha256()
    with _bar(tables) as step:
        for (group, _), found in zip(jobs, _scanned(jobs), strict=True):
            codes.append(found.codes)
            digest.update(found.digest.encode())
            _merge(total, found, group)
            step(group.num_rows)
    said = {
        "shapes": shapes,
        "classes": total.classes,
        "digest": digest.hexdigest(),
        "num_contents": len(total.contents),
        "defects": [asdict(defect) for defect in total.bad[:_NUM_LISTED]],
        "scaling": {
            **({"input": total.inputs.scaling} if columns.features else {}),
            **({"target": total.targets.scaling} if columns.label and columns.target == "value" else {}),
        },
    }
    return said, np.concatenate(codes), total


def _scanned(jobs: Sequence[tuple[RowGroup, Rules]]) -> Iterator[Scanned]:
    """Scan in threads, in order, no further ahead than there are threads; hashing and reading let others run."""
    num_threads = max(1, min(_NUM_THREADS, len(os.sched_getaffinity(0)), len(jobs)))
    with ThreadPoolExecutor(max_workers=num_threads) as pool:
        waiting: deque[Future[Scanned]] = deque()
        try:
            for group, rules in jobs:
                waiting.append(pool.submit(scan, group, rules))
                if len(waiting) > num_threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def _merge(total: Scanned, found: Scanned, group: RowGroup) -> None:
    for split in SPLITS:
        for name, (num, first) in found.classes[split].items():
            known, place = total.classes[split].get(name, (0, first))
            total.classes[split][name] = (known + num, place)
        if len(total.classes[split]) > MAX_CLASSES:
            raise DataError(
                f"{group.path}: the label column has more than {MAX_CLASSES:,} different values, too many for classes. "
                "Set data.init_args.target to value, or data.init_args.label to another column."
            )
    if len(total.bad) < _NUM_LISTED:
        total.bad += found.bad
    for name, held_out in found.held_out.items():
        total.held_out[name] = max(held_out, total.held_out.get(name, held_out))
    total.num_hashed += found.num_hashed
    if len(total.contents) <= MOST_CONTENTS:
        total.contents |= found.contents
    for mine, other in ((total.inputs, found.inputs), (total.targets, found.targets)):
        mine.add(other)


def _shapes_of(snapshot: Snapshot, columns: Columns) -> tuple[Shape, ...]:
    """Give the shape of each column of features; a list is as long as the first that there is."""
    return tuple(
        shape if (shape := column_shape(snapshot.schema.field(name).type)) is not None else _length_of(snapshot, name)
        for name in columns.features
    )


def _length_of(snapshot: Snapshot, name: str) -> Shape:
    for group in snapshot.fragments:
        for batch in group.read([name], batch_rows=64):
            lists = plain_column(batch, name).drop_null()
            if len(lists):
                return (len(lists[0]),)
    raise DataError(
        f"{snapshot.place}: column {name!r} (data.init_args.features) has nothing but nulls. Set it to another column."
    )


@contextmanager
def _bar(tables: Tables) -> Iterator[Callable[[int], object]]:
    """Show a bar for a large table on a terminal, and say elsewhere what takes time."""
    num_rows = sum(snapshot.num_rows for snapshot in tables.values())
    num_bytes = sum(group.size_bytes for snapshot in tables.values() for group in snapshot.fragments)
    if num_bytes < _BAR_FROM_BYTES:
        yield lambda _: None
        return
    text = f"looking at {num_rows:,} rows (once)"
    console = Console(stderr=True)
    if not console.is_terminal:
        log.info("%s", text)
        yield lambda _: None
        return
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(text, total=num_rows)
        yield lambda done: bar.advance(task, done)
