"""Findings of `check` in the rows or texts of a config.

Such as missing columns and rows in two splits. No torch.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from lightkit.config import Resolved, error_at
from lightkit.config.origins import Origin
from lightkit.errors import DataError

_log = logging.getLogger("lightkit")
_TABLE_DATA = ("TableData", "lightkit.data.TableData")
_TEXT_DATA = ("TextData", "lightkit.data.TextData")
_TEXT_MODEL = ("TextClassifier", "lightkit.models.TextClassifier")
_SETTING = re.compile(r"data\.init_args\.(\w+)")


def check_rows_data(resolved: Resolved) -> None:
    """Read the rows or texts of a config once, as `fit` does; warn of what is found.

    Args:
        resolved: The config; of other data than `TableData` and `TextData` nothing is checked.

    Raises:
        DataError: If they cannot be used, at the place of the setting that names what is wrong.
        ConfigError: If the model is for another number of labels a text.
    """
    section = resolved.value_of("data")
    if not isinstance(section, dict):
        return
    class_path = section.get("class_path")
    arguments: dict[str, Any] = section.get("init_args") or {}
    if not any(arguments.get(name) for name in ("path", "train", "val", "test")):
        return  # the data module reports it
    try:
        if class_path in _TABLE_DATA:
            _check_table(arguments)
        if class_path in _TEXT_DATA and arguments.get("path"):
            _check_texts(resolved, arguments)
    except DataError as error:
        raise _locate(error, resolved) from error


def _check_table(arguments: Mapping[str, Any]) -> None:
    """Make the plan of a table, which `fit` finds in the cache."""
    # here: they load numpy and pyarrow, which few configs need
    from lightkit.rows.plan import RowSettings
    from lightkit.rows.planned import PlannedRows
    from lightkit.rows.table_rules import TableRules

    own = {each.name for each in fields(TableRules)}
    given = {name: value for name, value in arguments.items() if name in own}
    given["ignore"] = tuple(given.get("ignore") or ())
    rows = PlannedRows(RowSettings.from_arguments(arguments), TableRules(**given))
    for note in rows.plan.notes:
        _log.warning("data: %s", note)


def _check_texts(resolved: Resolved, arguments: Mapping[str, Any]) -> None:
    """Read the texts, which warns of empty ones and of copies."""
    from lightkit.rows.text_table import TextSettings  # here: as above
    from lightkit.texts.text_rows import require_classes

    settings = TextSettings.from_arguments(arguments)
    _, index = settings.read()
    require_classes(index, settings.path)
    model = resolved.value_of("model")
    if not isinstance(model, dict) or model.get("class_path") not in _TEXT_MODEL:
        return
    arguments_of_model = model.get("init_args") or {}
    is_multilabel = bool(arguments_of_model.get("multilabel", False))
    if is_multilabel != index.is_multilabel:
        has = "several labels a text" if index.is_multilabel else "one label a text"
        text = (
            f"model.init_args.multilabel: it is {str(is_multilabel).lower()}, and the data has"
            f" {has}. Set it to {str(index.is_multilabel).lower()}."
        )
        named = (
            ("init_args", "multilabel") if "multilabel" in arguments_of_model else ("class_path",)
        )
        raise error_at(text, resolved.origin_of(("model", *named)))


def _locate(error: DataError, resolved: Resolved) -> DataError:
    """Return an error with the place of the first setting that it names."""
    found = _SETTING.search(str(error))
    name = "path" if found is None else found[1]
    origin: Origin | None = resolved.origin_of(("data", "init_args", name))
    if origin is None or origin.kind == "default":
        return error
    return DataError("\n".join([str(error), origin.render()]), places=[origin])
