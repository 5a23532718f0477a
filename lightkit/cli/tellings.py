"""What is told of one key: its value, its place, and what stood there before."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from lightkit.cli.argument_lookup import Argument, find_argument, list_keys
from lightkit.cli.tracing import Traced, node_at, shown_key
from lightkit.config import KeyPath, dotted, near
from lightkit.config.display import format_annotated, format_inline, format_origin, origin_fields
from lightkit.config.tree import Items, Node, Table, plain, walk
from lightkit.errors import ConfigError

__all__ = ["Telling", "all_tellings", "telling_of"]

_LONGEST = 100


@dataclass(frozen=True)
class Telling:
    """What is known of a key.

    Args:
        traced: The config.
        path: Its path.
        node: Its value; None where nothing sets it.
        argument: What its class says of it, where that was asked for.
        missing: What of the path is not in the config at all, such as an entry.
        notes: Anything else, each with its words.
    """

    traced: Traced
    path: KeyPath
    node: Node | None
    argument: Argument | None = None
    missing: str = ""
    notes: Sequence[tuple[str, str]] = field(default_factory=tuple)

    def described(self) -> dict[str, Any]:
        """Give what programs need."""
        key = dotted(self.path)
        says = {"help": self.argument.says} if self.argument is not None and self.argument.says else {}
        if self.node is None:
            argument = self.argument
            value = None if argument is None else argument.default
            owner = argument.owner if argument is not None else ""
            is_unset = argument is None or "default" not in argument.description
            place = {"kind": "unset", "name": ""} if is_unset else {"kind": "signature", "name": owner}
            return {"key": key, "value": value, "set_by": place, "replaced": [], **says}
        presented = self.traced.presented(self.path)
        written = presented.text(self.path)
        inside = all_tellings(self.traced, (self.path, self.node)) if _is_whole(self.node) else []
        return {
            "key": key,
            "value": presented.value(self.node, self.path),
            "set_by": _masked(origin_fields(self.node.origin), presented.masked),
            **({} if written is None else {"written": written}),
            "replaced": [
                {"value": presented.replaced(was), "set_by": _masked(origin_fields(was.origin), presented.masked)}
                for was in self.traced.replaced(self.path, self.node)
            ],
            **{"said_as" if word == "from" else word.replace(" ", "_"): text for word, text in self.notes},
            **says,
            **({"within": [each.described() for each in inside]} if inside else {}),
        }

    def text(self) -> str:
        """Write it for people."""
        if self.node is None:
            return self._unset_text()
        presented = self.traced.presented(self.path)
        rows = [("set by", presented.masked(format_origin(self.node.origin)))]
        if (written := presented.text(self.path)) is not None:
            rows.append(("written", written))
        rows += self.notes
        if _is_whole(self.node):
            rows = rows[1:]  # each line says its own
            head = format_annotated(self.node, self.path, presented, replaced=self.traced.replaced)
        else:
            head = f"{shown_key(self.path)}: {format_inline(presented.value(self.node, self.path))}\n"
        before = [
            (format_inline(presented.replaced(was), longest=_LONGEST), presented.masked(format_origin(was.origin)))
            for was in self.traced.replaced(self.path, self.node)
        ]
        width = max((len(value) for value, _ in before), default=0)
        rows += [("replaced" if not at else "", f"{v:<{width}}  {place}") for at, (v, place) in enumerate(before)]
        if self.argument is not None and self.argument.says:
            rows.append(("help", self.argument.says))
        return head + _table(rows)

    def _unset_text(self) -> str:
        argument = self.argument
        key = shown_key(self.path)
        rows: list[tuple[str, str]] = []
        if argument is None or "default" not in argument.description:
            head = f"{key}: not set\n"
            if argument is not None and argument.is_required:
                rows.append(("set by", f"nothing, though {argument.owner} needs it"))
        else:
            head = f"{key}: {format_inline(argument.default)}\n"
            rows.append(("set by", f"default of {argument.owner}"))
        if self.missing:
            rows.append(("note", f"{self.missing} is not in this config"))
        if argument is not None and argument.says:
            rows.append(("help", argument.says))
        return head + _table(rows)


def telling_of(traced: Traced, key: str) -> Telling:
    """Tell of one key, as users write it or as LightningCLI does.

    Raises:
        ConfigError: If there is no such key.
    """
    wanted = _wanted(traced, key)
    path, node, rest = traced.find(wanted)
    if not wanted:
        raise ConfigError(f"{key!r}: expected a dotted key, such as trainer.max_epochs")
    if not rest:
        return Telling(traced, path, node, _argument(traced, path), notes=_notes(traced, path, node))
    argument = find_argument(traced.after.tree, wanted)
    if argument is None:
        raise _unknown(key, traced, path, rest)
    is_entry = len(rest) > 1 and rest[0] != "init_args" and len(wanted) > 2
    missing = shown_key(wanted[:-1]) if is_entry else ""
    return Telling(traced, wanted, None, argument, missing)


def all_tellings(traced: Traced, below: tuple[KeyPath, Node] | None = None) -> list[Telling]:
    """Tell of every value that holds no other: of all, or of those inside a value."""
    top, tree = ((), traced.after.tree) if below is None else below
    leaves = [(path, node) for path, node in walk(tree, top) if path and not _is_whole(node)]
    return [Telling(traced, path, node, notes=_notes(traced, path, node)) for path, node in leaves]


def _wanted(traced: Traced, key: str) -> KeyPath:
    """Give the path that a key means: an index counts the user's own list, where it has that element."""
    counted = traced.after.lightkit_path(key)
    parts: list[Any] = [int(part) if part.isdigit() else part for part in re.split(r"[.\[\]]+", key) if part]
    own = tuple(parts[1:] if parts[:1] == [traced.after.subcommand] else parts)
    is_element = own != counted and any(isinstance(part, int) for part in traced.find(own)[0])
    return own if is_element else counted


def _argument(traced: Traced, path: KeyPath) -> Argument | None:
    """Describe a key that is set, if that is known; what is set is told also where its class cannot be imported."""
    try:
        return find_argument(traced.after.tree, path)
    except ConfigError:
        return None


def _notes(traced: Traced, path: KeyPath, node: Node) -> list[tuple[str, str]]:
    presented = traced.presented(path)
    notes = [("from", f"{dotted(old)}: {_said(traced, old, said)}") for old, said in traced.sources(path, node)]
    if path[0] == "accelerator" or path not in traced.after.origins:
        found = [(now, value) for now, value in traced.became(node) if now != path]
        told = [f"{dotted(now)}: {format_inline(presented.value(value, now))}" for now, value in found]
        notes += [("became", ", ".join(told))] if told else []
        notes += _notes_of_auto(traced, path, node)
        if (over := traced.overruling(path, node)) is not None:
            place = presented.masked(format_origin(over[1].origin))
            notes.append(("note", f"{dotted(over[0])}: {_said(traced, *over)} counts in its place ({place})"))
    return notes


def _notes_of_auto(traced: Traced, path: KeyPath, node: Node) -> list[tuple[str, str]]:
    """Say what the rule for ``auto`` gives on this machine."""
    if path[0] != "accelerator" or plain(node) != "auto" or not traced.chosen_by:
        return []
    now = node_at(traced.after.tree, path)
    notes = [] if now is None else [("became", f"{dotted(path)}: {format_inline(plain(now))}")]
    notes.append(("auto", f"the rule for {traced.chosen_by}"))
    if path[-1] == "memory_format":
        notes.append(("note", "decided when the model is built: only weights of convolutions have a memory format"))
    return notes


def _is_whole(node: Node) -> bool:
    return bool(node.entries if isinstance(node, Table) else isinstance(node, Items) and node.items)


def _said(traced: Traced, path: KeyPath, node: Node) -> str:
    return format_inline(traced.presented(path).value(node, path))


def _unknown(key: str, traced: Traced, path: KeyPath, rest: KeyPath) -> ConfigError:
    at = traced.find(path)[1]
    if isinstance(at, Items) and str(rest[0]).isdigit():
        count = f"{len(at.items)} element{'' if len(at.items) == 1 else 's'}"
        return ConfigError(f"{key}: there is no element {rest[0]} in {shown_key(path)}, which has {count}, from 0 on")
    beside = list_keys(traced.after.tree, path) or ([str(k) for k in at.entries] if isinstance(at, Table) else [])
    while len(rest) > 1 and str(rest[0]) in beside:  # known, but not in this config
        path, rest = (*path, rest[0]), rest[1:]
        beside = list_keys(traced.after.tree, path)
    here = [k for k in path if k != "init_args"]
    if here and not beside and path not in traced.after.origins:
        return ConfigError(f"{key}: {dotted(here)} is not in this config, and nothing says which keys it would have")
    known = {shown_key(each) for each in (*traced.after.origins, *traced.before.origins)}
    known |= {dotted((*here, word)) for word in beside}
    word = str(rest[1] if rest[0] == "init_args" and len(rest) > 1 else rest[0])
    hint = near(word, beside) if beside else near(shown_key((*path, *rest)), known)
    where = f"in {dotted(here)}" if here else "at the top"
    listed = f"\nKeys {where}: {', '.join(beside)}." if beside and not hint and len(beside) < 25 else ""
    return ConfigError(f"{key}: there is no {word!r} {where}{hint}{listed}")


def _masked(place: dict[str, Any], mask: Any) -> dict[str, Any]:
    return {key: mask(value) if isinstance(value, str) else value for key, value in place.items()}


def _table(rows: Sequence[tuple[str, str]]) -> str:
    return "".join(f"  {word:9}{says}\n" for word, says in rows)
