"""Arguments of the trainer that stand beside ``trainer``, as in configs of scripts that passed them on one by one."""

from __future__ import annotations

from typing import Any

from lightkit.config.origins import KeyPath
from lightkit.config.tree import Items, Node, Table, plain
from lightkit.config.upgrade.changes import Places, Report, shown
from lightkit.config.upgrade.edits import Document
from lightkit.config.upgrade.hardware import OLD_HARDWARE_KEYS, is_strategy
from lightkit.config.upgrade.syntax import Entry, Mapping, Scalar
from lightkit.config.upgrade.trainer_arguments import GONE_ARGUMENTS, TRAINER_ARGUMENTS
from lightkit.config.upgrade.writing import reindented

__all__ = ["STAGES", "placed"]

STAGES = ("fit", "validate", "test", "predict")
_WHY = "arguments of the trainer stand under trainer"


def placed(document: Document, tree: Table, report: Report) -> Places:
    """Move the arguments of the trainer under ``trainer``, with the comments above them."""
    all_lines = document.lines(0, len(document.text))
    moves: dict[int, list[tuple[str, int, int]]] = {}
    gone: set[int] = set()
    root = document.root
    scopes: list[tuple[KeyPath, Mapping, Table]] = []
    if isinstance(root, Mapping):
        scopes.append(((), root, tree))
        for stage in STAGES:
            entry, node = root.get(stage), tree.entries.get(stage)
            if entry is not None and isinstance(entry.value, Mapping) and isinstance(node, Table):
                scopes.append(((stage,), entry.value, node))
    for path, mapping, table in scopes:
        _place(document, path, mapping, table, report, moves, gone)
    lines: list[tuple[str, int, int]] = []
    for number, line in enumerate(all_lines, start=1):
        lines += moves.pop(number, [])
        if number not in gone:
            lines.append((line, number, 0))
    lines += [moved for at in sorted(moves) for moved in moves[at]]
    newline = document.newline
    if not gone:
        return Places(document.text, tuple((number, 0) for number in range(1, len(all_lines) + 2)), tuple(all_lines))
    text = newline.join(line for line, _, _ in lines) + newline
    return Places(text, tuple((number, shift) for _, number, shift in lines), tuple(all_lines))


def _place(
    document: Document,
    path: KeyPath,
    mapping: Mapping,
    table: Table,
    report: Report,
    moves: dict[int, list[tuple[str, int, int]]],
    gone: set[int],
) -> None:
    flat = [entry for entry in mapping.entries if _is_flat(entry.key, table.entries.get(entry.key))]
    home = mapping.get("trainer")
    own = table.entries.get("trainer")
    moved: list[tuple[str, int, int]] = []
    kept: list[Entry] = []
    for entry in flat:
        origin, value = document.origin(entry), plain(table.entries[entry.key])
        was, today = shown((*path, entry.key), value), shown((*path, "trainer", entry.key), value)
        there = own.entries.get(entry.key) if isinstance(own, Table) else None
        if mapping.flow or (home is not None and not _takes_lines(home)):
            report.refuse(origin, f"{was}: {_WHY}; put it there, and upgrade again")
        elif report.is_referred_to((*path, entry.key)):
            report.refuse(origin, f"{was}: {_WHY}, but ${{{entry.key}}} refers to it here; write its value out there")
        elif there is not None and plain(there) != value:
            report.refuse(origin, f"{was}: contradicts {shown((*path, 'trainer', entry.key), plain(there))}; say one")
        else:
            report.changed(origin, was, [today], _WHY if there is None else "it stands there already")
            start, end = document.chunk(entry) if there is None else document.own_lines(entry)
            first, lines = document.line_of(start), document.lines(start, end)
            gone.update(range(first, first + len(lines)))
            if there is not None:
                moves.setdefault(first, []).extend((comment, first, 0) for comment in document.comments(entry))
                continue
            kept.append(entry)
            by = _indent(document, home, mapping) - document.indent(entry)
            moved += [(line, first + index, by) for index, line in enumerate(reindented(lines, by))]
    if not moved:
        return
    if home is None:
        at = document.line_of(document.chunk(kept[0])[0])
        head = " " * document.indent(kept[0]) + "trainer:"
        moved.insert(0, (head, document.line_of(kept[0].start), 0))
    else:
        block = home.value if isinstance(home.value, Mapping) else None
        after = document.after(home.end, document.indent(block.entries[0]) if block else document.indent(home) + 1)
        at = document.line_of(after) if after < len(document.text) else len(document.lines(0, after)) + 1
    moves.setdefault(at, []).extend(moved)


def _takes_lines(home: Entry) -> bool:
    if isinstance(home.value, Scalar):
        return home.value.value is None and home.value.start == home.value.end
    return isinstance(home.value, Mapping) and not home.value.flow


def _indent(document: Document, home: Entry | None, mapping: Mapping) -> int:
    if home is not None and isinstance(home.value, Mapping):
        return document.indent(home.value.entries[0])
    return document.indent(mapping.entries[0]) + document.step


def _is_flat(key: Any, node: Node | None) -> bool:
    """Tell whether a key beside ``trainer`` is an argument of the trainer, and nothing else that lightkit knows."""
    if node is None or key not in (*TRAINER_ARGUMENTS, *OLD_HARDWARE_KEYS, *GONE_ARGUMENTS):
        return False
    if key == "accelerator":
        return is_strategy(plain(node))
    if key in ("callbacks", "logger"):
        is_class = isinstance(node, Table) and "class_path" in node.entries
        return isinstance(node, Items) or is_class or isinstance(plain(node), bool)
    return True
