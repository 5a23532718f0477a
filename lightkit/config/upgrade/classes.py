"""The classes that a config names, with the paths and arguments of today."""

from __future__ import annotations

from typing import Any

from lightkit.config.origins import KeyPath, dotted
from lightkit.config.upgrade.changes import Places, Report, is_interpolated, shown
from lightkit.config.upgrade.class_arguments import argument_rules
from lightkit.config.upgrade.class_paths import LIGHTNING_CLASS, TodaysClass, todays_class
from lightkit.config.upgrade.edits import SAME, Document
from lightkit.config.upgrade.syntax import Mapping, Scalar, Syntax
from lightkit.config.upgrade.syntax import Sequence as Items
from lightkit.config.upgrade.trainer_arguments import Refusal
from lightkit.config.upgrade.writing import Raw

__all__ = ["upgrade_classes"]

_ROOMS = {"callbacks": "callbacks", "logger": "loggers", "strategy": "strategies", "plugins": "plugins"}
"""Lightning's module that a class's name alone is looked up in, by the key of the trainer that it stands under."""


class _Classes:
    def __init__(self, document: Document, places: Places, report: Report) -> None:
        self._document, self._places, self._report = document, places, report

    def visit(self, node: Syntax, path: KeyPath) -> None:
        if isinstance(node, Scalar):
            self._name_alone(node, path)
        elif isinstance(node, Items):
            for index, item in enumerate(node.items):
                self.visit(item, (*path, index))
        elif isinstance(node, Mapping):
            named = node.get("class_path")
            if named is not None:
                self._class(node, path)
            for entry in node.entries:
                if entry is not named:
                    self.visit(entry.value, (*path, entry.key))

    def _name_alone(self, node: Scalar, path: KeyPath) -> None:
        """Rewrite a class that is given without arguments; a name without a module only where a class must stand."""
        if not isinstance(node.value, str):
            return
        room = _room(path)
        today = todays_class(node.value, room=room) if room or LIGHTNING_CLASS.fullmatch(node.value) else None
        today = today or (todays_class(node.value) if node.value.startswith("lightning.fabric.") else None)
        if today is None:
            return
        if today.path is None:
            self._refuse(node, path, node.value, today.why)
        elif today.arguments:
            self._refuse(
                node, path, node.value, f"write it as class_path: {today.path}, with init_args {today.arguments}"
            )
        else:
            self._document.splice(node.start, node.end, self._document.value_text(today.path))
            self._note(node, path, node.value, [today.path], today.why)

    def _class(self, node: Mapping, path: KeyPath) -> None:
        named = node.get("class_path")
        assert named is not None
        if not isinstance(named.value, Scalar) or not isinstance(named.value.value, str):
            return
        word = named.value.value
        today = todays_class(word, room=_room(path))
        if today is not None and today.path is None:
            self._refuse(named.value, (*path, "class_path"), word, today.why)
            return
        own = LIGHTNING_CLASS.fullmatch(word) is not None or ("." not in word and _room(path) is not None)
        if own:
            self._arguments(node, path, word.rpartition(".")[2])
        if today is None or today.path is None:
            return
        self._document.set_value(named, self._document.value_text(today.path))
        self._note(named.value, (*path, "class_path"), word, [today.path], today.why)
        self._add(node, path, today)

    def _add(self, node: Mapping, path: KeyPath, today: TodaysClass) -> None:
        """Add the arguments that make a class what the old one was."""
        given = node.get("init_args")
        for key, value in today.arguments.items():
            if given is None:
                self._document.append(node, "init_args", {key: value})
            elif not isinstance(given.value, Mapping):
                self._refuse(given.value, (*path, "init_args"), "...", f"write them out, with {key}: {value}")
                continue
            elif given.value.get(key) is not None:
                continue
            else:
                self._document.append(given.value, key, value)
            origin = self._places.origin(self._document.origin(node))
            self._report.changed(
                origin, dotted(path), [shown((*path, "init_args", key), value)], "what it was by itself"
            )

    def _arguments(self, node: Mapping, path: KeyPath, name: str) -> None:
        given = node.get("init_args")
        if given is None or not isinstance(given.value, Mapping):
            return
        values = {entry.key: _plain(entry.value) for entry in given.value.entries}
        for entry in given.value.entries:
            rule = argument_rules(name).get(entry.key)
            value = values[entry.key]
            if rule is None:
                continue
            where = (*path, "init_args", entry.key)
            keys = rule.today(value, values)
            if isinstance(keys, Refusal):
                self._refuse(entry.value, where, value, f"{rule.why}; {keys}")
                continue
            if keys is None:
                continue
            taken = [key for key, new in keys if key != entry.key and key in values and values[key] != _new(new, value)]
            if taken or (is_interpolated(value) and any(new is not SAME for _, new in keys)):
                clash = f"contradicts {taken[0]}; say one of them" if taken else "what it is today depends on its value"
                self._refuse(entry.value, where, value, clash)
                continue
            kept = [(key, new) for key, new in keys if key == entry.key or key not in values]
            self._document.replace(given.value, entry, kept)
            today = [shown((*path, "init_args", key), _new(new, value)) for key, new in keys]
            self._report.changed(
                self._places.origin(self._document.origin(entry)), shown(where, value), today, rule.why
            )

    def _note(self, node: Syntax, path: KeyPath, was: Any, today: list[str], why: str) -> None:
        self._report.changed(self._places.origin(self._document.origin(node)), shown(path, was), today, why)

    def _refuse(self, node: Syntax, path: KeyPath, was: Any, why: str) -> None:
        self._report.refuse(self._places.origin(self._document.origin(node)), f"{shown(path, was)}: {why}")


def upgrade_classes(document: Document, places: Places, report: Report) -> None:
    """Rewrite the paths and arguments of Lightning's classes wherever they stand."""
    if document.root is not None:
        _Classes(document, places, report).visit(document.root, ())


def _room(path: KeyPath) -> str | None:
    """Give the module of Lightning's whose class stands at a path: ``trainer.callbacks.0`` is of ``callbacks``."""
    keys = [key for key in path if isinstance(key, str)]
    if keys[-1:] == ["class_path"]:
        keys = keys[:-1]
    if len(keys) >= 2 and keys[-2] == "trainer":
        return _ROOMS.get(keys[-1].removesuffix("+"))
    return None


def _plain(node: Syntax) -> Any:
    return node.value if isinstance(node, Scalar) else Raw("...")


def _new(new: Any, old: Any) -> Any:
    return old if new is SAME else new
