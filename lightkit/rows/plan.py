"""The plan of a table: types of its columns, split of each row, targets and weights. No torch.

A plan is decided by the content of the tables and by the settings alone, so that a resumed
training, another process and the next run find the same.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lightkit.errors import DataError, join_names
from lightkit.images.splits import (
    SPLITS,
    Split,
    check_spelling,
    sort_classes,
    split_hashes,
    split_named,
)
from lightkit.rows.preprocessing import RowPreprocessing, dump_preprocessing
from lightkit.rows.reader import RowBatch, RowTable, check_rows, open_rows
from lightkit.rows.values import ColumnType, TypeGuess, missing_column, read_columns

TargetType = Literal["auto", "class", "value"]
_MOST_CLASSES = 20  # of whole numbers that are classes
_SAMPLE_ROWS = 20_000  # of the training split, in which columns that leak the target are looked for
_MOST_ROUNDING = 1e-3  # of the standard deviation of the targets, on average
_HASH_BYTES = 8  # of a digest, the first ones
TARGET_COLUMN = "\0target"
"""Name of the column of targets among those of the model; no column of a table has it."""
WEIGHT_COLUMN = "\0weight"
Codes = npt.NDArray[np.uint8]
Hashes = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class RowSettings:
    """Settings that choose the rows of the splits and their targets.

    Args:
        places: Address of the table, under None, or of that of each split.
        target: Column of what is predicted.
        target_type: Whether that is a class or a value.
        weight: Column of weights; None without.
        split: Column that names the splits; `auto` takes a column `split` where there is one.
        key: Column by whose hash the split is decided; None for all columns of the model.
        time: Column by whose order the split is decided.
        val_fraction: Share of the rows for validation.
        test_fraction: Share of the rows for testing.
        state: ``version`` and ``storage_options`` of a Delta table.
    """

    places: Mapping[Split | None, str]
    target: str
    target_type: TargetType = "auto"
    weight: str | None = None
    split: str | None = "auto"
    key: str | None = None
    time: str | None = None
    val_fraction: float = 0.2
    test_fraction: float = 0.1
    state: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_arguments(cls, arguments: Mapping[str, Any]) -> RowSettings:
        """Build the settings from the arguments of a data module of rows, as a config has them."""
        of_splits: dict[Split | None, str] = {
            split: str(arguments[split]) for split in SPLITS if arguments.get(split)
        }
        own = (
            "target",
            "target_type",
            "weight",
            "split",
            "key",
            "time",
            "val_fraction",
            "test_fraction",
        )
        given = {name: arguments[name] for name in own if name in arguments}
        state = {name: arguments.get(name) for name in ("version", "storage_options")}
        places = of_splits or {None: str(arguments.get("path"))}
        return cls(places, **{"target": "target", **given}, state=state)

    @property
    def name(self) -> str:
        """The tables, for errors."""
        return " and ".join(dict.fromkeys(self.places.values()))

    def find_split_column(self, names: Sequence[str]) -> str | None:
        """Return the column that names the splits.

        None where there is none, or each split has its table.
        """
        if None not in self.places:
            return None
        if self.split == "auto":
            return "split" if "split" in names and self.key is None and self.time is None else None
        return self.split


class RowRules(ABC):
    """The columns of a model, and how their preparation is fitted."""

    @property
    @abstractmethod
    def record(self) -> dict[str, Any]:
        """Values of JSON that decide what the rules do."""

    @abstractmethod
    def choose_columns(
        self, guesses: Mapping[str, TypeGuess], settings: RowSettings
    ) -> tuple[dict[str, ColumnType], list[str]]:
        """Choose the columns of the model, each with its type.

        List what is worth knowing of the others.

        Args:
            guesses: Of all columns of the table but those that are target, weight or split.
            settings: Of the table.

        Raises:
            DataError: If a column that the config names is not there, or none is left.
        """

    @abstractmethod
    def fit(self, rows: Iterator[pa.Table], types: Mapping[str, ColumnType]) -> RowPreprocessing:
        """Fit the preparation on the rows of the training split."""

    def describe_rows(self, rows: pa.Table, target: pa.ChunkedArray) -> list[str]:
        """List what is worth knowing of some training rows, such as columns that leak the target.

        Each a sentence.
        """
        return []

    def advise(self, column: str) -> str:
        """Return what to do about a cell that is none of its column's type; empty for nothing."""
        return ""


@dataclass(frozen=True)
class RowPlan:
    """Result of the passes over a table.

    Args:
        types: Type of each column of the model.
        target_type: ``class`` or ``value``.
        class_names: In the order of their numbers.
        class_counts: Training rows of each.
        target_mean: Mean of the values of the training rows.
        target_std: Their deviation.
        mean_weight: Of the training rows; None without weights.
        preprocessing: Fitted on the training rows, in its form of JSON; None where there are none.
        counts: Rows of each split.
        num_shared: Rows of validation and test whose columns of the model equal those of a training
            row.
        notes: Findings about the columns, each a sentence.
    """

    types: Mapping[str, ColumnType]
    target_type: str
    class_names: list[str]
    class_counts: list[int]
    target_mean: float
    target_std: float
    mean_weight: float | None
    preprocessing: Mapping[str, Any] | None
    counts: Mapping[str, int]
    num_shared: Mapping[str, int] = field(default_factory=dict)
    notes: Sequence[str] = ()


class RowSource:
    """The tables of a data set.

    Args:
        settings: Of the data set.
        rules: Of the model's columns.
    """

    def __init__(self, settings: RowSettings, rules: RowRules) -> None:
        self.settings = settings
        self.rules = rules

    @cached_property
    def tables(self) -> dict[Split | None, RowTable]:
        """The tables, opened.

        Raises:
            DataError: If one is missing, empty, or of another kind.
        """
        settings = self.settings
        return {
            split: open_rows(place, setting=f"data.init_args.{split or 'path'}", **settings.state)
            for split, place in settings.places.items()
        }

    @cached_property
    def names(self) -> list[str]:
        """Names of the columns of all tables.

        Raises:
            DataError: If a table lacks some.
        """
        names = list(dict.fromkeys(name for table in self.tables.values() for name in table.names))
        for split, table in self.tables.items():
            lacking = [name for name in names if name not in table.names]
            if lacking:
                raise DataError(
                    f"data.init_args.{split}: {table.place} has no {join_names(lacking)}, which the"
                    " other tables have. Write all with the same columns."
                )
        return names

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the content of the tables."""
        of_tables = [f"{split or ''} {table.fingerprint}" for split, table in self.tables.items()]
        return hashlib.sha256("\n".join(of_tables).encode()).hexdigest()

    def read(
        self, *columns: Mapping[str, ColumnType]
    ) -> Iterator[tuple[Split | None, RowBatch, tuple[pa.Table, ...]]]:
        """Read columns of all tables in their order.

        Args:
            columns: Each is one part of the result; a column may be in several of them, of other
                types.

        Returns:
            Of each batch the split that its table is for, the batch itself, and its cells of those
            types.

        Raises:
            DataError: If a cell is none of its column's type, with its line.
        """
        names = list(dict.fromkeys(name for wanted in columns for name in wanted))
        for split, table in self.tables.items():
            for batch in table.read(names):
                parts = []
                for wanted in columns:
                    rows, defects = read_columns(batch.rows, wanted)
                    if defects:
                        check_rows(batch, defects, remedy=self.rules.advise(defects[0].column))
                    parts.append(rows)
                yield split, batch, tuple(parts)

    def guess_types(self) -> dict[str, TypeGuess]:
        """Look at all cells of all tables: one type for all files.

        Raises:
            DataError: If a column that the settings name is not there.
        """
        settings = self.settings
        needed = {
            "target": settings.target,
            "weight": settings.weight,
            "key": settings.key,
            "time": settings.time,
        }
        needed["split"] = settings.find_split_column(self.names)
        for argument, name in needed.items():
            if name is not None and name not in self.names:
                raise DataError(f"data.init_args.{argument}: {missing_column(name, self.names)}")
        guesses = {name: TypeGuess() for name in self.names}
        for table in self.tables.values():
            for batch in table.read(self.names):
                for name, column in zip(self.names, batch.rows.columns, strict=True):
                    guesses[name].add(column)
        return guesses


def choose_target_type(target: str, guess: TypeGuess, asked: TargetType = "auto") -> str:
    """Decide between classes and values.

    Args:
        target: Name of the column.
        guess: Of its cells.
        asked: Type that the config asks for.

    Raises:
        DataError: If the target has one value alone, or is no number where it must be one.
    """
    if guess.kind is None and guess.num_other:
        raise DataError(
            f"data.init_args.target: column {target!r} has cells that are no single values, such as"
            " lists; expected texts, numbers or booleans. Name another column."
        )
    if guess.kind is None or (len(guess.values) < 2 and not guess.is_many):
        found = join_names(list(guess.values)) or "none at all"
        raise DataError(
            f"data.init_args.target: column {target!r} has one value in all rows ({found}), so that"
            " there is nothing to predict. Name another column."
        )
    if asked == "value" and guess.kind != "number":
        raise DataError(
            f"data.init_args.target_type: column {target!r} is of the type {guess.kind}, which is"
            " no number to predict. Set it to class, or"
            " data.init_args.target to a column of numbers."
        )
    if asked != "auto":
        return asked
    if guess.kind != "number":
        return "class"
    are_few = not guess.is_many and len(guess.values) <= _MOST_CLASSES
    return "class" if are_few and all(map(_is_whole, guess.values)) else "value"


class TypedRows:
    """Cells of all rows of a data set, converted to their types once.

    In a file that is read as often as it is needed.

    Args:
        file: Of Arrow's IPC format; it takes about 8 bytes for a number and a date, and the length
            of a text.
    """

    def __init__(self, file: Path) -> None:
        self.file = file

    def write(self, parts: Iterable[pa.Table]) -> None:
        """Write rows, some thousand at a time, all with the same columns."""
        with pa.OSFile(str(self.file), "wb") as sink, ExitStack() as stack:
            writer = None
            for part in parts:
                if writer is None:
                    writer = stack.enter_context(pa.ipc.new_file(sink, part.schema))
                writer.write_table(part)

    def read(self) -> Iterator[pa.Table]:
        """Read the rows in their order, as they were written."""
        with pa.OSFile(str(self.file)) as source:
            reader = pa.ipc.open_file(source)
            for at in range(reader.num_record_batches):
                yield pa.Table.from_batches([reader.get_batch(at)])


class PlanMaker:
    """The passes over the tables of a data set that make its plan.

    The tables are read twice: for the types of their columns, and then to convert their cells,
    which are kept in a file for what needs the splits.

    Args:
        source: The tables.
        typed: Takes the columns of the model, with `TARGET_COLUMN` and `WEIGHT_COLUMN`.
        classes: Names of the classes of a checkpoint, in their order; None for those of the tables.
    """

    def __init__(
        self, source: RowSource, typed: TypedRows, classes: Sequence[str] | None = None
    ) -> None:
        self._source = source
        self._typed = typed
        self._settings = source.settings
        self._classes = classes
        self._columns: dict[str, ColumnType] = {}
        self._target_type = ""
        self._codes: list[Codes] = []
        self._hashes: list[Hashes] = []
        self._times: list[npt.NDArray[np.float64]] = []
        self._splits: Codes = np.zeros(0, np.uint8)
        self._training_counts: dict[str, int] = {}
        self._all_counts: dict[str, int] = {}
        self._values: list[npt.NDArray[np.float64]] = []
        self._sum_weights = 0.0

    def make(self) -> tuple[RowPlan, Codes]:
        """Read the tables; return their plan and the split of each row by its number in `SPLITS`.

        Raises:
            DataError: If columns are missing, there is nothing to predict, or cells cannot be used.
        """
        source = self._source
        guesses = source.guess_types()
        target = self._settings.target
        typo = guesses[target].find_typo()
        if typo is not None and self._settings.target_type == "auto":
            raise DataError(
                f"{self._find_row([typo])}: column {target!r} has {typo!r}, and numbers in nearly"
                " all other rows. Correct such cells (0.5, not 0,5), or set"
                " data.init_args.target_type to class."
            )
        self._target_type = choose_target_type(target, guesses[target], self._settings.target_type)
        special = (
            self._settings.target,
            self._settings.weight,
            self._settings.find_split_column(source.names),
        )
        free = {name: guess for name, guess in guesses.items() if name not in special}
        self._columns, notes = source.rules.choose_columns(free, self._settings)
        self._typed.write(self._convert_rows(guesses))
        self._splits = (
            np.concatenate(self._codes)
            if self._codes
            else self._cut_times(np.concatenate(self._times))
        )
        self._count_targets()
        names = self._choose_classes()
        preprocessing = None
        if (self._splits == 0).any():
            preprocessing = dump_preprocessing(
                source.rules.fit(self._list_training_rows(), self._columns)
            )
            notes = [*notes, *source.rules.describe_rows(*self._sample_training())]
        num_shared = _count_shared(self._splits, np.concatenate(self._hashes))
        counts = {
            str(split): int((self._splits == code).sum()) for code, split in enumerate(SPLITS)
        }
        notes = [*notes, *_describe_shared(num_shared, counts)]
        values = np.concatenate([*self._values, np.zeros(0)])
        _check_rounding(values, settings=self._settings)
        mean, std = (float(values.mean()), float(values.std())) if len(values) else (0.0, 0.0)
        num_training = int((self._splits == 0).sum())
        plan = RowPlan(
            types=self._columns,
            target_type=self._target_type,
            class_names=names,
            class_counts=[self._training_counts.get(name, 0) for name in names],
            target_mean=mean,
            target_std=std or 1.0,
            mean_weight=(
                None if self._settings.weight is None else self._sum_weights / max(num_training, 1)
            ),
            preprocessing=preprocessing,
            counts=counts,
            num_shared=num_shared,
            notes=notes,
        )
        return plan, self._splits

    # -- all rows ----------------------------------------------------------------------------------

    def _convert_rows(self, guesses: Mapping[str, TypeGuess]) -> Iterator[pa.Table]:
        """Convert the cells of all rows, and note what decides the split of each.

        Raises:
            DataError: If a target or a weight is missing, or a cell is none of its column's type;
                with its line.
        """
        settings = self._settings
        target, weight = _type_targets(settings, self._target_type)
        deciding = self._type_deciding(guesses)
        for split, batch, (rows, targets, weights, own) in self._source.read(
            self._columns, target, weight, deciding
        ):
            column = targets[settings.target]
            reason = f"there is no target in column {settings.target!r}"
            _refuse_nulls(batch, column, reason)
            if settings.target in own.column_names:
                _refuse_nulls(batch, own[settings.target], reason)
            rows_of_file = rows.append_column(TARGET_COLUMN, column)
            if settings.weight is not None:
                _check_weights(batch, weights[settings.weight], settings.weight)
                rows_of_file = rows_of_file.append_column(WEIGHT_COLUMN, weights[settings.weight])
            self._note_splits(split, batch, rows, own)
            yield rows_of_file

    def _type_deciding(self, guesses: Mapping[str, TypeGuess]) -> dict[str, ColumnType]:
        """Return the columns that decide the splits, each with its type."""
        settings = self._settings
        by_column = settings.find_split_column(self._source.names)
        found: dict[str, ColumnType] = {
            name: "category" for name in (by_column, settings.key) if name is not None
        }
        if settings.time is not None:
            found[settings.time] = "number" if guesses[settings.time].kind == "number" else "date"
        if self._target_type == "class" and guesses[settings.target].kind == "number":
            found[settings.target] = "number"  # of which NaN and infinity are no classes
        return found

    def _note_splits(
        self, split: Split | None, batch: RowBatch, rows: pa.Table, own: pa.Table
    ) -> None:
        """Note the splits of a batch, or the times that decide them.

        Also note a hash of the columns of the model.
        """
        settings = self._settings
        by_column = settings.find_split_column(self._source.names)
        hashes = _hash_rows(rows)
        self._hashes.append(hashes)
        if split is not None:
            self._codes.append(np.full(rows.num_rows, SPLITS.index(split), np.uint8))
        elif by_column is not None:
            self._codes.append(_name_splits(batch, own[by_column]))
        elif settings.time is not None:
            self._times.append(_read_times(batch, own[settings.time], settings.time))
        else:
            deciding = hashes if settings.key is None else _hash_rows(own.select([settings.key]))
            fractions = {
                "val_fraction": settings.val_fraction,
                "test_fraction": settings.test_fraction,
            }
            self._codes.append(split_hashes(deciding, **fractions))

    def _cut_times(self, times: npt.NDArray[np.float64]) -> Codes:
        """Cut rows into splits by their times; equal ones go the same way, the later one."""
        settings = self._settings
        ordered = np.sort(times)
        num = len(ordered)
        shares = (settings.test_fraction + settings.val_fraction, settings.test_fraction)
        codes = np.zeros(num, np.uint8)
        for code, share in enumerate(shares, 1):
            first = num - round(num * share)
            if first < num:
                codes[times >= ordered[first]] = code
        return codes

    # -- targets -----------------------------------------------------------------------------------

    def _count_targets(self) -> None:
        """Count the classes, or keep the values of the training rows."""
        for rows, is_training in self._read_typed():
            column = rows[TARGET_COLUMN]
            counted = is_training
            if self._settings.weight is not None:
                weight = rows[WEIGHT_COLUMN].to_numpy()
                self._sum_weights += float(weight[is_training].sum())
                counted = is_training & (weight > 0)
            if self._target_type == "value":
                self._values.append(column.to_numpy()[counted])
                continue
            _add_counts(self._all_counts, column)
            _add_counts(self._training_counts, column.filter(pa.array(counted)))

    def _choose_classes(self) -> list[str]:
        """Choose the classes.

        Those of a checkpoint, of the training split, or of all rows where a hash decides it.

        Raises:
            DataError: If a row has another one.
        """
        settings = self._settings
        if self._target_type != "class":
            return []
        by_column = settings.find_split_column(self._source.names)
        is_given = by_column is not None or settings.time is not None or None not in settings.places
        names = list(self._classes or ())
        if not names:
            found = (
                self._training_counts if is_given and self._training_counts else self._all_counts
            )
            names = sort_classes(found)
        check_spelling(self._all_counts, place=f"{settings.name}: column {settings.target!r}")
        unknown = sorted(self._all_counts.keys() - set(names))
        if unknown:
            owner = "the checkpoint" if self._classes else "the training split"
            raise DataError(
                f"{self._find_row(unknown)}: column {settings.target!r} has"
                f" {join_names(unknown, most=5)}, and the classes of {owner} are"
                f" {join_names(names, most=10)}. Leave such rows out, or train on some of them."
            )
        return names

    def _find_row(self, names: Sequence[str]) -> str:
        """Return the file and the line of the first row with one of some classes."""
        target = self._settings.target
        for _, batch, (targets,) in self._source.read({target: "category"}):
            is_named = pc.is_in(targets[target], value_set=pa.array(names, pa.string())).to_numpy()
            if is_named.any():
                return batch.name_rows([int(np.flatnonzero(is_named)[0])])[0]
        return self._settings.name

    # -- training rows -----------------------------------------------------------------------------

    def _read_typed(self) -> Iterator[tuple[pa.Table, npt.NDArray[np.bool_]]]:
        """Read all rows, each batch with which of them are for training."""
        first = 0
        for rows in self._typed.read():
            yield rows, self._splits[first : first + rows.num_rows] == 0
            first += rows.num_rows

    def _list_training_rows(self) -> Iterator[pa.Table]:
        for rows, is_training in self._read_typed():
            if is_training.any():
                yield rows.select(list(self._columns)).filter(pa.array(is_training))

    def _sample_training(self) -> tuple[pa.Table, pa.ChunkedArray]:
        """Return the first training rows, and their targets."""
        parts: list[pa.Table] = []
        for rows, is_training in self._read_typed():
            parts.append(rows.filter(pa.array(is_training)))
            if sum(each.num_rows for each in parts) >= _SAMPLE_ROWS:
                break
        sample = pa.concat_tables(parts)
        return sample.select(list(self._columns)), sample[TARGET_COLUMN]


def _type_targets(
    settings: RowSettings, target_type: str
) -> tuple[dict[str, ColumnType], dict[str, ColumnType]]:
    """Return the columns of targets and of weights, each with its type.

    None where there are no weights.
    """
    target: dict[str, ColumnType] = {
        settings.target: "number" if target_type == "value" else "category"
    }
    return target, {} if settings.weight is None else {settings.weight: "number"}


class TargetRows(NamedTuple):
    """Some rows as they are encoded.

    Args:
        rows: The columns of the model.
        target: Of each.
        weight: Of each; None without.
    """

    rows: pa.Table
    target: pa.ChunkedArray
    weight: pa.ChunkedArray | None


def read_typed_targets(typed: TypedRows) -> Iterator[TargetRows]:
    """Read the rows that `PlanMaker` has converted."""
    for rows in typed.read():
        weight = rows[WEIGHT_COLUMN] if WEIGHT_COLUMN in rows.column_names else None
        yield TargetRows(rows, rows[TARGET_COLUMN], weight)


def read_source_targets(
    source: RowSource, columns: Mapping[str, ColumnType], target_type: str
) -> Iterator[TargetRows]:
    """Read rows of the tables, for a model with columns of its own.

    Raises:
        DataError: If a table does not have them, or cells are none of their types.
    """
    settings = source.settings
    for _, _, (rows, targets, weights) in source.read(
        columns, *_type_targets(settings, target_type)
    ):
        weight = None if settings.weight is None else weights[settings.weight]
        yield TargetRows(rows, targets[settings.target], weight)


def write_plan(folder: Path, plan: RowPlan, splits: Codes) -> None:
    """Write a plan into a folder of the cache."""
    np.save(folder / "splits.npy", splits)
    (folder / "plan.json").write_text(
        json.dumps(asdict(plan), ensure_ascii=False), encoding="utf-8"
    )


def read_plan(folder: Path) -> tuple[RowPlan, Codes]:
    """Read what `write_plan` has written."""
    record = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
    return RowPlan(**record), np.load(folder / "splits.npy")


def _refuse_nulls(batch: RowBatch, column: pa.ChunkedArray, reason: str) -> None:
    if column.null_count:
        row = int(np.flatnonzero(np.asarray(column.is_null().to_numpy()))[0])
        raise DataError(
            f"{batch.name_rows([row])[0]}: {reason}. Fill it, or leave the row out of the table."
        )


def _check_weights(batch: RowBatch, column: pa.ChunkedArray, name: str) -> None:
    _refuse_nulls(batch, column, f"there is no weight in column {name!r}")
    weights = column.to_numpy()
    if (weights < 0).any():
        row = int(np.flatnonzero(weights < 0)[0])
        raise DataError(
            f"{batch.name_rows([row])[0]}: column {name!r} has"
            f" {weights[row]:g}, expected 0 or more."
        )


def _add_counts(counts: dict[str, int], column: pa.ChunkedArray) -> None:
    for found in pc.value_counts(column.combine_chunks()).to_pylist():
        counts[found["values"]] = counts.get(found["values"], 0) + found["counts"]


def _name_splits(batch: RowBatch, column: pa.ChunkedArray) -> Codes:
    encoded = column.combine_chunks().dictionary_encode(null_encoding="encode")
    splits = [split_named(value or "") for value in encoded.dictionary.to_pylist()]
    codes = np.array([-1 if split is None else SPLITS.index(split) for split in splits], np.int64)
    found = codes[encoded.indices.to_numpy()]
    if (found < 0).any():
        row = int(np.flatnonzero(found < 0)[0])
        raise DataError(
            f"{batch.name_rows([row])[0]}: the column of splits has {column[row].as_py()!r};"
            " expected train, val or test, or another usual name of theirs."
        )
    return np.asarray(found, np.uint8)


def _read_times(batch: RowBatch, column: pa.ChunkedArray, name: str) -> npt.NDArray[np.float64]:
    _refuse_nulls(
        batch, column, f"there is no time in column {name!r}, by which the split is decided"
    )
    numbers = column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column
    return np.asarray(numbers.to_numpy(), np.float64)


def _check_rounding(values: npt.NDArray[np.float64], *, settings: RowSettings) -> None:
    """Refuse targets whose differences are lost in float32, in which a model has them.

    An error of the model would be that of the rounding: times in seconds since 1970 are moved by up
    to 64 seconds, so that each is predicted exactly.

    Args:
        values: Targets of the training rows.
        settings: Of the table.

    Raises:
        DataError: If they are moved by a thousandth of their standard deviation or more.
    """
    if not len(values) or (values == values[0]).all():
        return
    with np.errstate(over="ignore"):
        gaps = values - values.astype(np.float32)
    moved = float(np.abs(gaps, out=gaps).mean())
    std = float(values.std())
    if moved >= std * _MOST_ROUNDING:
        raise DataError(
            f"data.init_args.target: the values of column {settings.target!r} of {settings.name}"
            f" have a standard deviation of {std:.3g}, and float32, in which a model predicts them,"
            f" moves each by {moved:.2g} on average, so that no error of it can be measured."
            " Subtract an offset from the column, such as its least value."
        )


def _is_whole(text: str) -> bool:
    try:
        return float(text).is_integer()
    except (ValueError, OverflowError):
        return False


def _hash_rows(rows: pa.Table) -> Hashes:
    """Return the first 64 bits of the SHA-256 of the values of each row."""
    texts = [pc.fill_null(_write_values(each), "\0").combine_chunks() for each in rows.columns]
    joined = pc.binary_join_element_wise(*texts, "\x1f") if len(texts) > 1 else texts[0]
    octets = joined.cast(pa.binary()).to_pylist()
    digests = b"".join([hashlib.sha256(each).digest()[:_HASH_BYTES] for each in octets])
    return np.frombuffer(digests, ">u8").astype(np.uint64)


def _write_values(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Write the values of a column as texts that are equal where the values are."""
    texts = column.cast(pa.string())
    if pa.types.is_floating(column.type):
        texts = pc.if_else(pc.equal(texts, "-0"), "0", texts)
    return texts


def _describe_shared(num_shared: Mapping[str, int], counts: Mapping[str, int]) -> list[str]:
    return [
        f"{num:,} of the {counts[split]:,} rows of the {split} split equal a row of the training"
        " split in all columns of the model, so that its scores say less of new rows. Leave such"
        " rows out of the table, or have a hash of the columns decide the splits (without"
        " data.init_args.split, time and key)."
        for split, num in num_shared.items()
        if num
    ]


def _count_shared(splits: Codes, hashes: Hashes) -> dict[str, int]:
    """Count the rows of validation and of test that equal a training row."""
    training = np.sort(hashes[splits == 0])
    found = {}
    for code, split in ((1, "val"), (2, "test")):
        others = hashes[splits == code]
        places = np.searchsorted(training, others)  # before an equal one, where there is one
        is_inside = places < len(training)
        found[split] = int((training[places[is_inside]] == others[is_inside]).sum())
    return found
