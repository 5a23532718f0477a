"""The trainer of a config, or of one command's block, with today's arguments."""

from __future__ import annotations

from collections.abc import Mapping as AnyMapping
from dataclasses import replace
from typing import Any

from lightkit.config.accelerator.words import OLD_STRATEGIES
from lightkit.config.origins import KeyPath, dotted
from lightkit.config.tree import Node, Table, plain
from lightkit.config.upgrade.changes import Places, Report, is_interpolated, shown
from lightkit.config.upgrade.edits import SAME, Document
from lightkit.config.upgrade.hardware import HARDWARE_KEYS, WHY, hardware_today
from lightkit.config.upgrade.plugins import strategy_in_plugins
from lightkit.config.upgrade.syntax import Alias, Entry, Mapping, Scalar, Sequence
from lightkit.config.upgrade.trainer_arguments import DEFAULTS, Refusal, Today, rule_of
from lightkit.config.upgrade.writing import Raw

__all__ = ["TrainerUpgrade"]

_SHARED = "it comes from an anchor, which may serve others too; write it out here, and upgrade again"
_ONE_OF_A_KIND = ("ProgressBar", "ModelSummary")
"""Ends of the names of callbacks of which a trainer takes one."""


class TrainerUpgrade:
    """The upgrade of one ``trainer`` and of what stands beside it.

    Args:
        document: The text.
        mapping: The mapping that holds ``trainer``.
        table: That mapping with its meaning; its places are those of the old file.
        stage: The command whose block it is; None at the top.
        below: Hardware keys of the trainers that it is laid over, where they are known.
        places: From the text's places to the old file's.
        report: Where changes and refusals go.
    """

    def __init__(
        self,
        document: Document,
        mapping: Mapping,
        table: Table,
        *,
        stage: str | None = None,
        below: AnyMapping[str, Node],
        places: Places,
        report: Report,
    ) -> None:
        self._document, self._mapping, self._table, self._stage = document, mapping, table, stage
        self._below, self._places, self._report = below, places, report
        self._top: KeyPath = (stage,) if stage else ()
        self._path: KeyPath = (*self._top, "trainer")
        self._beside: dict[KeyPath, Any] = {}

    def run(self) -> None:
        """Rewrite the arguments, and add what goes beside the trainer."""
        self._block()
        entry, node = self._mapping.get("trainer"), self._table.entries.get("trainer")
        if entry is None or not isinstance(node, Table):
            return
        own = entry.value if isinstance(entry.value, Mapping) else None
        todays = self._todays(node, own)
        if isinstance(entry.value, Alias) and entry.value.name in self._trainers():
            todays = {key: new for key, new in todays.items() if new[0].beside}  # the rest is upgraded there
        for key, (today, why) in todays.items():
            held = None if own is None else own.get(key)
            if own is None or held is None or isinstance(held.value, Alias):
                self._refuse(node, key, _SHARED)
            else:
                self._write(own, held, node, today, why)
        sections: dict[str, Any] = {}
        for path, value in self._beside.items():
            sections[path[0]] = value if len(path) == 1 else {**sections.get(path[0], {}), path[1]: value}
        for section, value in sections.items():
            self._put(entry, section, value)

    def _trainers(self) -> list[str | None]:
        """List the anchors of the config's trainers."""
        root = self._document.root
        tops = [root] if isinstance(root, Mapping) else []
        scopes = [*tops, *(entry.value for top in tops for entry in top.entries if isinstance(entry.value, Mapping))]
        trainers = [scope.get("trainer") for scope in scopes]
        return [held.value.anchor for held in trainers if held is not None and isinstance(held.value, Mapping)]

    def _todays(self, node: Table, own: Mapping | None) -> dict[str, tuple[Today, str]]:
        """Say for each argument that changes what it is today, and why."""
        found: dict[str, tuple[Today, str]] = {}
        said = {key: child for key, child in node.entries.items() if key in HARDWARE_KEYS}
        if own is not None:
            word = strategy_in_plugins(self._document, own, node, self._path, self._places, self._report)
            said |= {"plugins": word} if word is not None else {}
        block = self._table.entries.get("accelerator")
        for key, keys in hardware_today(said, block, self._report, below=self._below).items():
            found[key] = Today(keys), WHY[key]
        for key, child in node.entries.items():
            rule = rule_of(key)
            if rule is None:
                continue
            today = rule.today(plain(child), self._stage)
            if is_interpolated(plain(child)) and not (today is None or _is_as_written(today)):
                self._refuse(node, key, f"{rule.why}; what it is today depends on its value, write that out")
            elif isinstance(today, Refusal):
                self._refuse(node, key, f"{rule.why}; {today}")
            elif today is not None:
                found[key] = self._without_doubles(today, node), rule.why
        return {key: found[key] for key in node.entries if key in found}

    def _without_doubles(self, today: Today, node: Table) -> Today:
        """Leave out a callback where there is one of its kind, or no bar is wanted: Lightning takes no second."""
        listed = plain(node.entries["callbacks"]) if "callbacks" in node.entries else None
        entries = listed if isinstance(listed, list) else [listed]
        names = [str(entry.get("class_path") if isinstance(entry, dict) else entry) for entry in entries]
        beside = []
        for path, value in today.beside:
            name = str(value.get("class_path", "")) if isinstance(value, AnyMapping) else ""
            doubles = [kind for kind in _ONE_OF_A_KIND if name.endswith(kind) and any(n.endswith(kind) for n in names)]
            barred = name.endswith("ProgressBar") and self._is_false(node, "enable_progress_bar")
            if not doubles and not barred and not (path[0] == "logger" and self._has_loggers()):
                beside.append((path, value))
        return replace(today, beside=tuple(beside))

    def _has_loggers(self) -> bool:
        """Tell whether loggers are named, in whose place `true`, the default, says nothing."""
        held = self._table.entries.get("logger")
        return isinstance(held, Table) and any(plain(child) is not None for child in held.entries.values())

    def _is_false(self, node: Table, key: str) -> bool:
        return key in node.entries and plain(node.entries[key]) is False

    def _write(self, own: Mapping, entry: Entry, node: Table, today: Today, why: str) -> None:
        value = plain(node.entries[entry.key])
        path, origin = (*self._path, entry.key), self._places.origin(self._document.origin(entry))
        there = {
            key: plain(node.entries[key])
            for key, _ in today.keys
            if key != entry.key and key in node.entries and key not in HARDWARE_KEYS
        }
        overruled: dict[str, Any] = {}
        for key, new in today.keys:
            wanted = value if new is SAME else new
            if own.get(key) is not None and there.get(key) == DEFAULTS.get(key, SAME) != wanted:
                overruled[key] = wanted  # in 1.5, which had both, the older word won over the newer one's default
            elif key in there and there[key] != wanted:
                other = shown((*self._path, key), there[key])
                self._report.refuse(origin, f"{shown(path, value)}: contradicts {other}; say one of them")
                return
        if entry.key not in dict(today.keys) and self._report.is_referred_to(path):
            says = f"{shown(path, value)}: {why}, but ${{{dotted(path)}}} refers to it; write its value out there"
            self._report.refuse(origin, says)
            return
        for key, wanted in overruled.items():
            newer = own.get(key)
            assert newer is not None
            self._document.set_value(newer, self._document.value_text(wanted))
        source = self._inline(entry, value)
        keys = [(key, new) for key, new in today.keys if key not in there]
        if isinstance(entry.value, (Mapping, Sequence)) and not entry.value.flow:
            keys.sort(key=lambda pair: pair[1] is not SAME)  # what stands on lines of its own stays there
        written = [(key, source if new is SAME and index else new) for index, (key, new) in enumerate(keys)]
        self._document.replace(own, entry, written)
        told = [shown((*self._path, key), value if new is SAME else new) for key, new in today.keys]
        for place, new in today.beside:
            filled = _filled(new, source)
            told.append(shown((*self._top, *place), filled))
            self._beside[place] = _merged(self._beside.get(place), filled)
        self._report.changed(origin, shown(path, value), told, why)

    def _inline(self, entry: Entry, value: Any) -> Any:
        """Give a value as it is written, where that fits on a line."""
        source = self._document.source(entry.value)
        is_one = isinstance(entry.value, Scalar) or getattr(entry.value, "flow", False)
        has_own_style = isinstance(entry.value, Scalar) and (source[:1] in "|>&!" or entry.value.anchor is not None)
        return Raw(source) if is_one and "\n" not in source and source and not has_own_style else value

    def _put(self, trainer: Entry, section: str, value: Any) -> None:
        """Add values beside the trainer, to a section that may be there already."""
        held, node = self._mapping.get(section), self._table.entries.get(section)
        if held is None or node is None:
            self._document.add_after(self._mapping, trainer, section, value)
        elif plain(node) is None and isinstance(value, AnyMapping):
            self._document.fill(held, value)
        elif isinstance(held.value, Mapping) and isinstance(node, Table) and isinstance(value, AnyMapping):
            for key, child in value.items():
                if key in node.entries:
                    self._taken(held, (*self._top, section, key))
                else:
                    self._document.append(held.value, key, child)
        else:
            self._taken(held, (*self._top, section))

    def _taken(self, held: Entry, path: KeyPath) -> None:
        origin = self._places.origin(self._document.origin(held))
        says = f"{dotted(path)}: it stands here already, and {dotted(self._path)} says something of it too"
        self._report.refuse(origin, f"{says}; say it here, and take it out there")

    def _refuse(self, node: Table, key: str, why: str) -> None:
        child = node.entries[key]
        self._report.refuse(child.origin, f"{shown((*self._path, key), plain(child))}: {why}")

    def _block(self) -> None:
        """Rewrite an old name of a strategy in lightkit's own block."""
        entry, node = self._mapping.get("accelerator"), self._table.entries.get("accelerator")
        if entry is None or not isinstance(entry.value, Mapping) or not isinstance(node, Table):
            return
        held, child = entry.value.get("strategy"), node.entries.get("strategy")
        word = plain(child) if child is not None else None
        if held is None or not isinstance(word, str) or word.lower() not in OLD_STRATEGIES:
            return
        name, kind = OLD_STRATEGIES[word.lower()]
        is_said = kind is None or plain(node.entries.get("kind", node)) == kind or "kind" in node.entries
        keys = [("strategy", name), *([] if is_said else [("kind", kind)])]
        self._document.replace(entry.value, held, keys)
        path = (*self._top, "accelerator")
        origin = self._places.origin(self._document.origin(held))
        told = [shown((*path, key), new) for key, new in keys]
        self._report.changed(origin, shown((*path, "strategy"), word), told, WHY["strategy"])


def _is_as_written(today: Today | Refusal) -> bool:
    """Tell whether the value stays as it is written, whatever it is."""
    if isinstance(today, Refusal):
        return False
    values = [new for _, new in today.keys] + [new for _, new in today.beside]
    return bool(values) and all(new is SAME for new in values)


def _filled(value: Any, source: Any) -> Any:
    if value is SAME:
        return source
    if isinstance(value, AnyMapping):
        return {key: _filled(child, source) for key, child in value.items()}
    return value


def _merged(one: Any, other: Any) -> Any:
    if isinstance(one, AnyMapping) and isinstance(other, AnyMapping):
        return {**one, **{key: _merged(one.get(key), child) for key, child in other.items()}}
    return other
