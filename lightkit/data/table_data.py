"""Rows of numbers, categories and dates: the data module of `TabularModel`."""

from __future__ import annotations

from typing import Any, Literal

from lightkit.config.bounds import PositiveInt
from lightkit.data.image_module import check_arguments
from lightkit.data.row_module import RowData
from lightkit.errors import ConfigError
from lightkit.rows.table import Scaling
from lightkit.rows.table_rules import NamedType, TableRules


class TableData(RowData):
    """Rows of a table of numbers, categories and dates.

    Args:
        columns: Columns of the model: `auto` takes all but empty ones, constant ones and text that
            differs in most rows, and names those; or a list of names; or a type for each name:
            number, category, date, or auto.
        ignore: Columns that `auto` leaves out.
        scaling: ``quantile`` maps each column of numbers to a normal distribution by its quantiles,
            ``standard`` to mean 0 and standard deviation 1; by the training split alone.
        min_count: Training rows that a category must have to be known; rarer ones share the index
            of unknown ones.
        max_categories: Categories of a column that are known, the most frequent.
        kwargs: Tables, target, splits and loading, as for RowData.
    """

    row_kind = "table"

    def __init__(
        self,
        columns: Literal["auto"] | list[str] | dict[str, NamedType] = "auto",
        ignore: list[str] | None = None,
        scaling: Scaling = "quantile",
        min_count: PositiveInt = 2,
        max_categories: PositiveInt = 1000,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_arguments(self, min_count=min_count, max_categories=max_categories)
        if columns != "auto" and ignore:
            raise ConfigError(
                "data.init_args.ignore: it is for columns: auto, and"
                " data.init_args.columns names them."
            )
        self._rules = TableRules(columns, tuple(ignore or ()), scaling, min_count, max_categories)

    @property
    def rules(self) -> TableRules:
        """Rules by which columns are chosen and prepared."""
        return self._rules
