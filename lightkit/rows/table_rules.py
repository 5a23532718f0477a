"""The rules by which the columns of a table of numbers, categories and dates are chosen.

No torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, cast

import pyarrow as pa

from lightkit.errors import DataError, join_names
from lightkit.rows.leaks import find_leaks
from lightkit.rows.plan import RowRules, RowSettings
from lightkit.rows.preprocessing import RowPreprocessing
from lightkit.rows.table import Scaling, TableFit
from lightkit.rows.values import ColumnType, TypeGuess, missing_column

NamedType = Literal["auto", "number", "category", "date"]
_FEW_VALUES = 50  # of text, however few rows there are
# as pandas calls one that it reads without a name, and one of its index in Parquet
_NAMELESS = re.compile(r"|Unnamed: \d+|__index_level_\d+__")


@dataclass(frozen=True)
class TableRules(RowRules):
    """Columns of a table, and the settings of their preparation.

    Args:
        columns: `auto`, names, or a type for each name.
        ignore: Columns that `auto` leaves out.
        scaling: Of the numbers.
        min_count: Training rows that a category must have to be known.
        max_categories: Categories of a column that are known.
    """

    columns: Literal["auto"] | Sequence[str] | Mapping[str, NamedType] = "auto"
    ignore: Sequence[str] = ()
    scaling: Scaling = "quantile"
    min_count: int = 2
    max_categories: int = 1000

    @property
    def record(self) -> dict[str, Any]:
        """Values of JSON that decide what the rules do."""
        return asdict(self)

    def choose_columns(
        self, guesses: Mapping[str, TypeGuess], settings: RowSettings
    ) -> tuple[dict[str, ColumnType], list[str]]:
        """Choose the columns of the model, each with its type, and list those that are left out.

        Raises:
            DataError: If a column that the config names is not there, or none is left.
        """
        if self.columns == "auto":
            return self._choose_all(guesses, settings)
        named = (
            self.columns
            if isinstance(self.columns, Mapping)
            else dict.fromkeys(self.columns, "auto")
        )
        found: dict[str, ColumnType] = {}
        for name, kind in named.items():
            if name == settings.target:
                raise DataError(
                    f"data.init_args.columns: {name!r} is the target,"
                    " which is no input. Leave it out."
                )
            if name not in guesses:
                raise DataError(f"data.init_args.columns: {missing_column(name, list(guesses))}")
            guessed = guesses[name].kind or "category"
            found[name] = guessed if kind == "auto" else cast(ColumnType, kind)
        if not found:
            raise DataError(
                "data.init_args.columns: it names no column. Set it to auto, or name some."
            )
        return found, []

    def _choose_all(
        self, guesses: Mapping[str, TypeGuess], settings: RowSettings
    ) -> tuple[dict[str, ColumnType], list[str]]:
        # a column that is target, weight or split is no input, whether it is named here or not
        split = "split" if settings.split == "auto" else settings.split
        known = {*guesses, settings.target, settings.weight, split}
        for name in self.ignore:
            if name not in known:
                raise DataError(f"data.init_args.ignore: {missing_column(name, list(guesses))}")
        found: dict[str, ColumnType] = {}
        notes = []
        for name, guess in guesses.items():
            if name in (*self.ignore, settings.key):
                continue
            typo = guess.find_typo()
            if typo is not None:
                notes.append(
                    f"column {name!r} has {typo!r}, and numbers in nearly all other rows, so that"
                    " it is one of categories. Correct such cells (0.5,"
                    " not 0,5), or leave them empty."
                )
            reason = explain_left_out(name, guess)
            if reason is None and guess.kind is not None:
                found[name] = guess.kind
            else:
                notes.append(f"columns: auto leaves out column {name!r}: {reason}.")
        if not found:
            raise DataError(
                f"data.init_args.columns: no column of {settings.name} has information on the"
                f" target {settings.target!r}; the others are"
                f" {join_names(list(guesses)) or 'none'}."
            )
        return found, notes

    def fit(self, rows: Iterator[pa.Table], types: Mapping[str, ColumnType]) -> RowPreprocessing:
        """Fit the preparation on the rows of the training split."""
        fitted = TableFit(
            types,
            scaling=self.scaling,
            min_count=self.min_count,
            max_categories=self.max_categories,
        )
        for part in rows:
            fitted.add(part)
        return fitted.finish()

    def describe_rows(self, rows: pa.Table, target: pa.ChunkedArray) -> list[str]:
        """List the columns that leak the target."""
        return find_leaks(rows, target)

    def advise(self, column: str) -> str:
        """Return what to do about a cell that is none of its column's type."""
        if self.columns == "auto":
            return "\nCorrect them, or leave the rows out of the table."
        return (
            "\nCorrect them, or set data.init_args.columns to another type of"
            f" {column!r}, such as category."
        )


def explain_left_out(name: str, guess: TypeGuess) -> str | None:
    """Explain why a column can say nothing of a target; None where it can."""
    if _NAMELESS.fullmatch(name):
        return "it has no name, as the index of a program that wrote the table"
    if guess.kind is None:
        return "its cells are no single values, such as lists" if guess.num_other else "it is empty"
    has_one = not guess.is_many and len(guess.values) < 2 and guess.num_values == guess.num_rows
    if has_one:
        return "it has the same value in each row"
    are_many = guess.is_many or len(guess.values) > max(_FEW_VALUES, guess.num_values // 2)
    if guess.kind == "category" and are_many:
        return "it is text that is another in most rows, such as a name or an identifier"
    return None
