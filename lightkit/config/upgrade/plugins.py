"""Strategies under ``trainer.plugins``, where Lightning up to 1.5 had them."""

from __future__ import annotations

from lightkit.config.accelerator.words import HOROVOD
from lightkit.config.origins import KeyPath, Origin, dotted
from lightkit.config.tree import Leaf, Node, Table, plain
from lightkit.config.upgrade.changes import Places, Report
from lightkit.config.upgrade.class_paths import todays_class
from lightkit.config.upgrade.edits import Document
from lightkit.config.upgrade.hardware import WHY
from lightkit.config.upgrade.syntax import Entry, Mapping, Scalar, Syntax
from lightkit.config.upgrade.syntax import Sequence as Items

__all__ = ["strategy_in_plugins"]

_PLUGINS = "plugins"


def strategy_in_plugins(
    document: Document, trainer: Mapping, node: Table, path: KeyPath, places: Places, report: Report
) -> Node | None:
    """Give the name of a strategy that stands under ``plugins``; a strategy's class moves to ``strategy`` at once.

    Args:
        document: The text.
        trainer: The trainer in it.
        node: The trainer's meaning.
        path: Its path.
        places: From the text's places to the old file's.
        report: Where changes and refusals go.
    """
    held = trainer.get(_PLUGINS)
    if held is None or _PLUGINS not in node.entries:
        return None
    items = held.value.items if isinstance(held.value, Items) else [held.value]
    strategies = [item for item in items if _is_strategy(item)]
    if not strategies:
        return None
    origin = places.origin(document.origin(strategies[0]))
    where = dotted((*path, _PLUGINS))
    if len(items) > 1:
        report.refuse(origin, f"{where}: {WHY[_PLUGINS]}; say it under {dotted((*path, 'strategy'))}")
    elif isinstance(strategies[0], Scalar):
        return Leaf(strategies[0].value, node.entries[_PLUGINS].origin)
    elif "strategy" in node.entries and plain(node.entries["strategy"]) is not None:
        report.refuse(origin, f"{where}: contradicts {dotted((*path, 'strategy'))}; say one of them")
    else:
        _move(document, trainer, held, strategies[0])
        _note(places.origin(document.origin(held)), path, report)
    return None


def _note(origin: Origin, path: KeyPath, report: Report) -> None:
    report.changed(origin, dotted((*path, _PLUGINS)), [dotted((*path, "strategy"))], WHY[_PLUGINS])


def _move(document: Document, trainer: Mapping, held: Entry, item: Syntax) -> None:
    """Rename the key, and take the only item out of its list."""
    if (empty := trainer.get("strategy")) is not None:
        document.remove(trainer, empty)
    document.rename(held, "strategy")
    if not isinstance(held.value, Items):
        return
    if held.value.flow:
        document.splice(held.value.start, item.start, "")
        document.splice(item.end, held.value.end, "")
    else:
        document.splice(held.value.start, held.value.start + 1, " ")


def _is_strategy(item: Syntax) -> bool:
    if isinstance(item, Scalar):
        word = item.value if isinstance(item.value, str) else ""
        return _is_class(word) or (word[:1].islower() and "." not in word)
    named = item.get("class_path") if isinstance(item, Mapping) else None
    return named is not None and isinstance(named.value, Scalar) and _is_class(str(named.value.value))


def _is_class(path: str) -> bool:
    today = todays_class(path, room=_PLUGINS)
    if today is not None and today.path is not None:
        return ".strategies." in today.path or today.path == HOROVOD
    return today is not None and path.rpartition(".")[2].endswith("Plugin") and "Precision" not in path
