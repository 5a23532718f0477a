"""The preparation of rows of numbers, categories and dates.

`TablePreprocessing`, and how it is fitted. No torch.

Statistics are those of the rows that it is fitted on, which are the training split alone.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from statistics import NormalDist
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lightkit.errors import DataError
from lightkit.images.splits import respell
from lightkit.rows.preprocessing import Array, RowPreprocessing, are_finite
from lightkit.rows.values import ColumnType

Scaling = Literal["quantile", "standard"]
UNKNOWN = 0
"""Index of a category that the training split has not."""
MISSING_CATEGORY = 1
NUM_RESERVED = 2
_NUM_KNOTS = 256
_SAMPLE_ROWS = 200_000
_SAMPLE_SEED = 0
_MIN_STD = 1e-12  # of the mean: what rounding makes of a constant
_DAY_US = 86_400_000_000
_TAIL = 1e-4  # of a rank, from 0 and from 1: where the normal distribution ends
_FLOATS = npt.NDArray[np.float64]


@dataclass(frozen=True)
class NumberColumn:
    """Scale of a column of numbers.

    Args:
        name: Of the column.
        mean: Of the values that are there.
        std: Population standard deviation; 1 where they are all the same.
        knots: Values at ``ranks``, ascending and different.
        ranks: Share of the values that are smaller, ties half, of each knot.
        has_missing: Whether a missing value has an input of its own.
    """

    name: str
    mean: float
    std: float
    knots: tuple[float, ...]
    ranks: tuple[float, ...]
    has_missing: bool

    def scale(self, values: _FLOATS, scaling: Scaling) -> _FLOATS:
        """Scale values to about -3 to 3; NaN stays NaN.

        A column of one value in the training has taught nothing, and its other values are that
        value.
        """
        if scaling == "standard" and len(self.knots) > 1:
            return (values - self.mean) / self.std
        return np.interp(values, self.knots, _find_normal(self.ranks))


@dataclass(frozen=True)
class DateColumn:
    """Scale of a column of dates.

    Args:
        name: Of the column.
        mean_days: Mean of the days since 1970.
        std_days: Their standard deviation.
        has_times: Whether the time of the day differs.
        has_missing: Whether a missing date has an input of its own.
    """

    name: str
    mean_days: float
    std_days: float
    has_times: bool
    has_missing: bool

    def list_features(self, dates: pa.Array) -> list[tuple[str, _FLOATS]]:
        """Return the numbers of dates, NaN where one is missing.

        The trend, and where in year, week and day it is.
        """
        # NaN for nulls
        moments = dates.cast(pa.int64()).to_numpy(zero_copy_only=False).astype(np.float64)
        days = moments / _DAY_US
        whole = np.floor(days)
        year_day = np.asarray(pc.day_of_year(dates).to_numpy(zero_copy_only=False), np.float64)
        angles = {"year": (year_day - 1) / 365.25, "week": (whole + 3) % 7 / 7}
        if self.has_times:
            angles["day"] = days - whole
        found = [("trend", (days - self.mean_days) / self.std_days)]
        for name, share in angles.items():
            found += [
                (f"{name}_sin", np.sin(2 * np.pi * share)),
                (f"{name}_cos", np.cos(2 * np.pi * share)),
            ]
        return found


@dataclass(frozen=True)
class CategoryColumn:
    """Categories of a column.

    A cell is of the category that is spelled alike; where there is none, of the one with the same
    boolean or decimal number, such as True of true, and 1.0 of 1.

    Args:
        name: Of the column.
        values: The known ones; the first has the index `NUM_RESERVED`.
    """

    name: str
    values: tuple[str, ...]

    @property
    def size(self) -> int:
        """Number of indices, with those of unknown and missing categories."""
        return len(self.values) + NUM_RESERVED


@dataclass(frozen=True)
class TablePreprocessing(RowPreprocessing):
    """Numbers and dates as scaled float32, and categories as indices.

    Args:
        numbers: Columns of numbers.
        dates: Columns of dates.
        categories: Columns of categories.
        scaling: ``quantile`` maps each column to a normal distribution, ``standard`` to mean 0 and
            standard deviation 1.
    """

    kind = "table"

    numbers: tuple[NumberColumn, ...] = ()
    dates: tuple[DateColumn, ...] = ()
    categories: tuple[CategoryColumn, ...] = ()
    scaling: Scaling = "quantile"

    @property
    def columns(self) -> Mapping[str, ColumnType]:
        """Name and type of the columns."""
        found: dict[str, ColumnType] = {each.name: "number" for each in self.numbers}
        found |= {each.name: "date" for each in self.dates}
        return found | {each.name: "category" for each in self.categories}

    def encode(self, rows: pa.Table) -> tuple[Array, ...]:
        """Prepare rows.

        Returns:
            float32 ``(rows, numbers)``, where there are numbers or dates: a missing one is 0, which
            is about the middle of the column, with a 1 in an input of its own where the training
            split has missing ones; then int64 ``(rows, categories)`` where there are categories: 0
            is an unknown and 1 a missing one.
        """
        found = []
        if self.numbers or self.dates:
            features = [values for _, values in self._list_features(rows)]
            found.append(np.stack(features, axis=1).astype(np.float32))
        if self.categories:
            indices = [_index_categories(rows[each.name], each) for each in self.categories]
            found.append(np.stack(indices, axis=1))
        return tuple(found)

    def make_example(self) -> pa.Table:
        """Return a row of the middle of each column and its first category.

        Also return one whose cells are all missing.
        """
        numbers = {each.name: pa.array([each.mean, None], pa.float64()) for each in self.numbers}
        days = {
            each.name: pa.array([round(each.mean_days), None], pa.int32()) for each in self.dates
        }
        dates = {
            name: since_1970.cast(pa.date32()).cast(pa.string())
            for name, since_1970 in days.items()
        }
        first = {each.name: each.values[0] if each.values else None for each in self.categories}
        categories = {name: pa.array([value, None], pa.string()) for name, value in first.items()}
        return pa.table({**numbers, **dates, **categories})

    def _list_features(self, rows: pa.Table) -> list[tuple[str, _FLOATS]]:
        features: list[tuple[str, _FLOATS]] = []
        for number in self.numbers:
            values = rows[number.name].to_numpy().astype(np.float64)  # NaN for nulls
            features.append(
                (number.name, np.nan_to_num(number.scale(values, self.scaling), nan=0.0))
            )
            if number.has_missing:
                features.append((f"{number.name}: missing", np.isnan(values).astype(np.float64)))
        for date in self.dates:
            dates = rows[date.name].combine_chunks()
            for name, values in date.list_features(dates):
                features.append((f"{date.name}: {name}", np.nan_to_num(values, nan=0.0)))
            if date.has_missing:
                features.append(
                    (f"{date.name}: missing", np.asarray(dates.is_null()).astype(np.float64))
                )
        return features

    @property
    def feature_names(self) -> list[str]:
        """Names of the numbers of a row, in their order."""
        empty = {each.name: pa.nulls(0, pa.float64()) for each in self.numbers}
        empty |= {each.name: pa.nulls(0, pa.timestamp("us")) for each in self.dates}
        return [name for name, _ in self._list_features(pa.table(empty))]

    @property
    def feature_columns(self) -> list[str]:
        """Column of each number of a row."""
        names = []
        for number in self.numbers:
            names += [number.name] * (2 if number.has_missing else 1)
        for date in self.dates:
            names += [date.name] * ((7 if date.has_times else 5) + date.has_missing)
        return names

    def list_bins(self, num_bins: int) -> list[list[float]]:
        """List the edges of bins of each number of a row, ascending.

        With about as many training rows in each bin.

        Args:
            num_bins: Most bins of a number.

        Returns:
            At least two edges each; more for columns of numbers alone.
        """
        edges: list[list[float]] = []
        for number in self.numbers:
            places = np.linspace(
                0, len(number.knots) - 1, min(num_bins, len(number.knots) - 1) + 1 or 1
            )
            knots = np.asarray(number.knots)[np.round(places).astype(int)]
            scaled = np.unique(number.scale(knots, self.scaling).astype(np.float32))
            edges.append(
                scaled.tolist() if len(scaled) > 1 else [float(scaled[0]) - 1, float(scaled[0]) + 1]
            )
            edges += [[0.0, 1.0]] * number.has_missing
        for date in self.dates:
            edges.append([-2.0, 2.0])
            edges += [[-1.0, 1.0]] * (6 if date.has_times else 4)
            edges += [[0.0, 1.0]] * date.has_missing
        return edges

    def as_dict(self) -> dict[str, Any]:
        """Convert to plain values of JSON."""
        return {
            "scaling": self.scaling,
            "numbers": [_plain(each) for each in self.numbers],
            "dates": [_plain(each) for each in self.dates],
            "categories": [_plain(each) for each in self.categories],
        }

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> TablePreprocessing:
        """Convert from plain values.

        Raises:
            KeyError: If one is missing.
            TypeError: If one has another type.
        """
        if record["scaling"] not in ("quantile", "standard"):
            raise TypeError(f"scaling: expected quantile or standard, got {record['scaling']!r}")
        numbers = tuple(NumberColumn(**_tuples(each)) for each in record["numbers"])
        for each in numbers:
            is_fine = len(each.knots) == len(each.ranks) > 0 and each.std > 0
            if not (is_fine and are_finite((each.mean, each.std, *each.knots, *each.ranks))):
                raise TypeError(f"numbers: the scale of column {each.name!r} is none")
        return cls(
            numbers,
            tuple(DateColumn(**_tuples(each)) for each in record["dates"]),
            tuple(CategoryColumn(**_tuples(each)) for each in record["categories"]),
            record["scaling"],
        )


def _plain(column: Any) -> dict[str, Any]:
    return {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in vars(column).items()
    }


def _tuples(record: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: tuple(value) if isinstance(value, list) else value for key, value in record.items()
    }


@lru_cache(maxsize=1024)  # of columns, of which a table is encoded batch by batch
def _find_normal(ranks: tuple[float, ...]) -> _FLOATS:
    """Return the quantiles of the normal distribution at some ranks."""
    normal = NormalDist()
    return np.array([normal.inv_cdf(min(max(rank, _TAIL), 1 - _TAIL)) for rank in ranks])


def _index_categories(column: pa.ChunkedArray, known: CategoryColumn) -> npt.NDArray[np.int64]:
    found = pc.index_in(column, value_set=pa.array(known.values, pa.string()))
    indices = (
        np.asarray(pc.fill_null(found, UNKNOWN - NUM_RESERVED).to_numpy(), np.int64) + NUM_RESERVED
    )
    indices[np.asarray(column.is_null().to_numpy(), np.bool_)] = MISSING_CATEGORY

    # the same value as another program writes it
    is_unknown = indices == UNKNOWN
    if is_unknown.any():
        spellings = _list_spellings(known.values)
        others = column.filter(pa.array(is_unknown)).combine_chunks().dictionary_encode()
        of_names = [spellings.get(respell(name), UNKNOWN) for name in others.dictionary.to_pylist()]
        indices[is_unknown] = np.array(of_names, np.int64)[others.indices.to_numpy()]
    return indices


@lru_cache(maxsize=1024)
def _list_spellings(values: tuple[str, ...]) -> dict[str, int]:
    """Return the index of each category by its usual spelling.

    But for those that share it with another.
    """
    usual = [respell(value) for value in values]
    counts = Counter(usual)
    return {name: at + NUM_RESERVED for at, name in enumerate(usual) if counts[name] == 1}


# -- fitting ---------------------------------------------------------------------------------------


@dataclass
class RunningColumn:
    """Mean, deviation and a sample of numbers, one batch after another.

    The update is that of T. F. Chan, G. H. Golub and R. J. LeVeque, "Updating formulae and a
    pairwise algorithm for computing sample variances", COMPSTAT 1982. The sample is every value;
    where they are more than `_SAMPLE_ROWS`, a half of them, a quarter and so on, by a random number
    of each with a fixed seed. Every second value would be all of one kind where rows of two kinds
    take turns.
    """

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0
    num_missing: int = 0
    _share: float = 1.0
    _parts: list[_FLOATS] = field(default_factory=list)  # random numbers and values, (2, values)
    _num_drawn: int = 0
    _random: np.random.Generator = field(
        default_factory=lambda: np.random.default_rng(_SAMPLE_SEED)
    )

    def add(self, values: _FLOATS) -> None:
        """Add values; NaN is a missing one."""
        is_there = np.isfinite(values)
        self.num_missing += int((~is_there).sum())
        values = values[is_there]
        if not len(values):
            return
        with np.errstate(over="ignore", invalid="ignore"):  # see `TableFit.finish`
            mean = float(values[0] + (values - values[0]).mean())
            squares = float(np.square(values - mean).sum())
        total = self.count + len(values)
        gap = mean - self.mean
        self.squares += squares + gap * gap * self.count * len(values) / total
        self.mean += gap * len(values) / total
        self.count = total
        self._add_to_sample(values)

    def _add_to_sample(self, values: _FLOATS) -> None:
        keys = self._random.random(len(values))
        is_drawn = keys < self._share
        self._parts.append(np.stack([keys[is_drawn], values[is_drawn]]))
        self._num_drawn += int(is_drawn.sum())
        while self._num_drawn > _SAMPLE_ROWS:
            self._share /= 2
            drawn = np.concatenate(self._parts, axis=1)
            self._parts = [drawn[:, drawn[0] < self._share]]
            self._num_drawn = self._parts[0].shape[1]

    @property
    def std(self) -> float:
        """Population standard deviation; 1 where all are the same."""
        std = math.sqrt(self.squares / max(self.count, 1))
        return std if std > _MIN_STD * abs(self.mean) else 1.0

    def find_knots(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return values at evenly spaced ranks, each once, and their ranks."""
        if not self._num_drawn:
            return (0.0,), (0.5,)
        ordered = np.sort(np.concatenate(self._parts, axis=1)[1])
        places = np.round(np.linspace(0, len(ordered) - 1, min(_NUM_KNOTS, len(ordered)))).astype(
            int
        )
        knots = np.unique(ordered[places])
        below = np.searchsorted(ordered, knots, "left")
        until = np.searchsorted(ordered, knots, "right")
        ranks = (below + until) / (2 * len(ordered))
        return tuple(knots.tolist()), tuple(ranks.tolist())


class TableFit:
    """Statistics of the training split, from one batch after another.

    Args:
        columns: Name and type of each column.
        scaling: Of the numbers.
        min_count: Rows that a category must have to be known; a rarer one is unknown.
        max_categories: Categories of a column that are known, the most frequent.
    """

    def __init__(
        self,
        columns: Mapping[str, ColumnType],
        *,
        scaling: Scaling,
        min_count: int = 2,
        max_categories: int = 1000,
    ) -> None:
        self._columns = dict(columns)
        self._scaling = scaling
        self._min_count = min_count
        self._max_categories = max_categories
        self._running = {
            name: RunningColumn() for name, kind in columns.items() if kind in ("number", "date")
        }
        self._has_times = dict.fromkeys(columns, False)
        self._counts: dict[str, dict[str, int]] = {
            name: {} for name, kind in columns.items() if kind == "category"
        }
        self.num_rows = 0

    def add(self, rows: pa.Table) -> None:
        """Add rows, see `RowPreprocessing.encode`."""
        self.num_rows += rows.num_rows
        for name, kind in self._columns.items():
            column = rows[name]
            if kind == "number":
                self._running[name].add(column.to_numpy().astype(np.float64))
            elif kind == "date":
                moments = column.cast(pa.int64()).to_numpy().astype(np.float64)
                self._running[name].add(moments / _DAY_US)
                self._has_times[name] = self._has_times[name] or bool(
                    (moments[np.isfinite(moments)] % _DAY_US).any()
                )
            else:
                counts = self._counts[name]
                for found in pc.value_counts(column.combine_chunks().drop_null()).to_pylist():
                    counts[found["values"]] = counts.get(found["values"], 0) + found["counts"]

    def finish(self) -> TablePreprocessing:
        """Return the preprocessing.

        Raises:
            DataError: If the numbers of a column are too large for a variance.
        """
        numbers = []
        dates = []
        categories = []
        for name, kind in self._columns.items():
            if kind == "category":
                counts = {
                    value: num
                    for value, num in self._counts[name].items()
                    if num >= self._min_count
                }
                most = sorted(counts, key=lambda value: (-counts[value], value))[
                    : self._max_categories
                ]
                categories.append(CategoryColumn(name, tuple(sorted(most))))
                continue
            running = self._running[name]
            if not (math.isfinite(running.mean) and math.isfinite(running.std)):
                raise DataError(
                    f"column {name!r} has numbers of which a float64 holds no variance, such as"
                    " 1.8e308, which some programs write for a missing one. Leave their cells"
                    " empty, or the column out (data.init_args.ignore)."
                )
            has_missing = running.num_missing > 0
            if kind == "date":
                dates.append(
                    DateColumn(name, running.mean, running.std, self._has_times[name], has_missing)
                )
                continue
            knots, ranks = running.find_knots()
            numbers.append(NumberColumn(name, running.mean, running.std, knots, ranks, has_missing))
        return TablePreprocessing(tuple(numbers), tuple(dates), tuple(categories), self._scaling)


def count_inputs(preprocessing: TablePreprocessing) -> tuple[int, Sequence[int]]:
    """Return how many numbers a row has, and the number of indices of each category."""
    return len(preprocessing.feature_names), [each.size for each in preprocessing.categories]
