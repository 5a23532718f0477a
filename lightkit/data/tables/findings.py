"""What the rows of a table turn out to be: which classes, enough to train on, shared out as was asked for."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyarrow import types

from lightkit.data.splits import Split
from lightkit.data.tables.columns import Columns
from lightkit.data.tables.index import Index
from lightkit.data.tables.scan import MOST_CONTENTS, SPLITS, Rules
from lightkit.errors import DataError

__all__ = ["class_names_of", "notes_of", "refuse_no_training"]

_NUM_SHOWN = 5
_FAR_OFF = 0.25  # of a fraction, besides what chance explains


def class_names_of(
    counts: Mapping[Split, Mapping[str, Any]], kind: pa.DataType, given: Sequence[str] | None
) -> list[str]:
    """Give the classes of the training split, or those that are given, after checking the others against them.

    Args:
        counts: Of each split, how many rows each class has, and where the first is.
        kind: Type of the labels.
        given: Names from a checkpoint.

    Raises:
        DataError: If a split has a class that is not among them.
    """
    is_number = not (types.is_boolean(kind) or types.is_string(kind) or types.is_large_string(kind))
    is_number = is_number and all(name.lstrip("-").isdecimal() for name in counts["train"])
    if given is None and not counts["train"]:
        return []  # a table without training rows is refused for that
    names = list(given) if given is not None else sorted(counts["train"], key=int if is_number else str)
    for split in SPLITS:
        unknown = [name for name in counts[split] if name not in set(names)]
        if unknown:
            num, first = counts[split][unknown[0]]
            more = f", and {len(unknown) - 1} more such classes" if len(unknown) > 1 else ""
            whose = "the training split has none" if given is None else "the checkpoint knows none"
            shown = ", ".join(map(repr, names[:_NUM_SHOWN])) + (", ..." if len(names) > _NUM_SHOWN else "")
            raise DataError(
                f"the {split} split has {num} rows of class {unknown[0]!r} (first: {first}){more}, of which {whose}; "
                f"its classes are {shown}. Leave such rows out with data.init_args.filter, or share out the rows again."
            )
    return names


def refuse_no_training(index: Index, place: str, *, has_filter: bool, has_fractions: bool, num_contents: int) -> None:
    """Refuse a table without a row to train on, with the reasons that there may be.

    Args:
        index: The table's.
        place: Where it is.
        has_filter: Whether rows were filtered.
        has_fractions: Whether rows were shared out by a hash.
        num_contents: Different rows that were shared out, counted up to `MOST_CONTENTS`.

    Raises:
        DataError: If there is none.
    """
    if index.counts["train"]:
        return
    reasons = ["data.init_args.filter lets too few rows through"] * has_filter
    if has_fractions:
        few = 0 < num_contents <= MOST_CONTENTS and 2 * num_contents <= sum(index.counts.values())
        reasons.append(_few(index.columns, num_contents) if few else "the fractions leave none")
    reasons += [f"{index.num_bad} rows are bad"] * bool(index.num_bad)
    counts = ", ".join(f"{split} {num}" for split, num in index.counts.items())
    raise DataError(
        f"{place}: no rows are left to train on ({counts}): {'; or '.join(reasons) or 'none is named train'}."
    )


def notes_of(
    columns: Columns, rules: Rules, counts: Mapping[Split, int], *, moved: Sequence[tuple[str, str]], num_contents: int
) -> Iterator[str]:
    """Tell what people may not expect of how rows were shared out by their hash.

    Args:
        columns: Which columns are what.
        rules: What decided on the rows that were shared out.
        counts: Rows of each split.
        moved: Classes that had nothing but rows held out, each with the row that is trained on instead.
        num_contents: Different rows that were shared out, counted up to `MOST_CONTENTS`.
    """
    if moved:
        more = f" and {len(moved) - _NUM_SHOWN} more classes" if len(moved) > _NUM_SHOWN else ""
        names, places = zip(*moved[:_NUM_SHOWN], strict=True)
        yield (
            f"all rows of {', '.join(map(repr, names))}{more} are held out by val_fraction and test_fraction; one of "
            f"each class, with those that are equal to it, is trained on instead: {'; '.join(places)}"
            f"{'; ...' if more else ''}. Add rows of them, or name the splits in a column (data.init_args.split)."
        )
    wanted: dict[Split, float] = {"val": rules.val_fraction, "test": rules.test_fraction}
    shared = sum(counts[split] for split in SPLITS if split == "train" or wanted[split])
    odd = [split for split, share in wanted.items() if _is_far_off(counts[split], share, shared)]
    if odd:
        found = ", ".join(f"{counts[split]} of {shared} rows for {split}_fraction {wanted[split]:g}" for split in odd)
        few = num_contents <= MOST_CONTENTS and 2 * num_contents <= shared
        yield f"the splits are far from what was asked for ({found}): {_few(columns, num_contents if few else None)}."


def _is_far_off(num: int, share: float, num_rows: int) -> bool:
    """Whether it is more than chance explains, with four standard deviations of as many different rows."""
    chance = 4 * math.sqrt(share * (1 - share) * num_rows)
    return share > 0 and abs(num - share * num_rows) > max(chance, _FAR_OFF * share * num_rows)


def _few(columns: Columns, num: int | None) -> str:
    what = "images" if columns.image else "features and label"
    other = "data.init_args.key to a column that tells rows apart, or data.init_args.split to one with their splits"
    if columns.key:
        what = f"{columns.key!r} (data.init_args.key)"
        other = "it to a column with more values, or data.init_args.split to one with the rows' splits"
    counted = "" if num is None else f", and there are only {num} different ones"
    return f"rows with equal {what} go into the same split{counted}; set {other}"
