"""Findings of `check` in the table of a config, such as missing columns and columns that say the target. No torch."""

from __future__ import annotations

import logging
import re
from dataclasses import fields
from typing import Any

from lightkit.config import Resolved
from lightkit.config.origins import Origin
from lightkit.errors import DataError

_log = logging.getLogger("lightkit")
_TABLE_DATA = ("TableData", "lightkit.data.TableData")
_SETTING = re.compile(r"data\.init_args\.(\w+)")


def check_rows_data(resolved: Resolved) -> None:
    """Read the table of a config once, as `fit` does, which finds the result in the cache; warn of what it finds.

    Args:
        resolved: The config; of other data than `TableData` nothing is checked.

    Raises:
        DataError: If the table cannot be used, at the place of the setting that names what is wrong.
    """
    section = resolved.values.get("data")
    if not isinstance(section, dict) or section.get("class_path") not in _TABLE_DATA:
        return
    arguments: dict[str, Any] = section.get("init_args") or {}
    if not any(arguments.get(name) for name in ("path", "train", "val", "test")):
        return  # the data module reports it
    from lightkit.rows.plan import RowSettings  # here: they load numpy and pyarrow, which few configs need
    from lightkit.rows.planned import PlannedRows
    from lightkit.rows.table_rules import TableRules

    own = {each.name for each in fields(TableRules)}
    given = {name: value for name, value in arguments.items() if name in own}
    given["ignore"] = tuple(given.get("ignore") or ())
    try:
        rows = PlannedRows(RowSettings.from_arguments(arguments), TableRules(**given))
        plan = rows.plan
    except DataError as error:
        raise _locate(error, resolved) from error
    for note in plan.notes:
        _log.warning("data: %s", note)


def _locate(error: DataError, resolved: Resolved) -> DataError:
    """Return an error with the place of the first setting that it names."""
    found = _SETTING.search(str(error))
    name = "path" if found is None else found[1]
    origin: Origin | None = resolved.origin_of(("data", "init_args", name))
    if origin is None or origin.kind == "default":
        return error
    return DataError("\n".join([str(error), origin.render()]), places=[origin])
