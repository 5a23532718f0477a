"""Changes to YAML text by offsets: what nobody asked to change stays as it was, byte for byte.

ruamel.yaml's round trip keeps comments too, but writes the whole file anew: it joins lists that stand on several lines,
evens out spaces and indentation, and loses Windows' line ends. Who reviews an upgraded config is to see the upgrade in
the diff and nothing else.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping as AnyMapping
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lightkit.config.origins import Origin
from lightkit.config.upgrade.syntax import (
    LINE_BREAK,
    Alias,
    Entry,
    Mapping,
    Scalar,
    Syntax,
    is_json,
    parse,
    walk_entries,
    walk_syntax,
)
from lightkit.config.upgrade.syntax import Sequence as Items
from lightkit.config.upgrade.writing import Raw, block_lines, flow_text

__all__ = ["SAME", "Document"]

SAME = Raw("")
"""The value as it is written already."""


@dataclass(frozen=True)
class _Splice:
    start: int
    end: int
    text: str
    lines: bool = False  # whole lines, which begin at the start of a line


class Document:
    """A YAML text and the changes that are to be made to it.

    Args:
        text: The text, which `read_file` took.
        name: What places call it.
    """

    def __init__(self, text: str, name: str) -> None:
        self.text, self.name = text, name
        self.root = parse(text)
        self._splices: list[_Splice] = []
        self._removed: dict[int, tuple[Mapping, set[int]]] = {}
        self._added: set[int] = set()
        self._starts = [0, *(match.end() for match in LINE_BREAK.finditer(text))]
        found = LINE_BREAK.search(text)
        self.newline = found[0] if found else "\n"
        self.is_json = is_json(text)
        self.step = self._step()

    # -- places ------------------------------------------------------------------------------------------------

    def line_of(self, offset: int) -> int:
        """Give the number of the line that holds an offset, from 1."""
        low, high = 0, len(self._starts)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._starts[middle] <= offset else (low, middle)
        return low + 1

    def origin(self, node: Syntax | Entry) -> Origin:
        """Give the place of a node, or of an entry's key, for an error."""
        start, end = (node.name.start, node.name.end) if isinstance(node, Entry) else (node.start, node.end)
        line = self.line_of(start)
        first = self._starts[line - 1]
        source = LINE_BREAK.split(self.text[first : self._next_line(start)])[0]
        end = min(end, first + len(source))
        return Origin("file", self.name, None, line, start - first + 1, end - first + 1, source)

    def source(self, node: Syntax) -> str:
        """Give a node as it is written."""
        return self.text[node.start : node.end]

    def indent(self, entry: Entry) -> int:
        """Give the column of an entry's key, from 0."""
        return entry.start - self._line_start(entry.start)

    def _line_start(self, offset: int) -> int:
        return self._starts[self.line_of(offset) - 1]

    def _next_line(self, offset: int) -> int:
        line = self.line_of(offset)
        return self._starts[line] if line < len(self._starts) else len(self.text)

    def _step(self) -> int:
        """Give the columns by which mappings within a mapping are further in, most often; 2 where that is open."""
        nested = [(entry, entry.value) for entry in walk_entries(self.root) if isinstance(entry.value, Mapping)]
        steps = [self.indent(inner.entries[0]) - self.indent(entry) for entry, inner in nested if not inner.flow]
        counts = Counter(step for step in steps if step > 0)
        return min(counts, key=lambda step: (-counts[step], step != 2, step), default=2)

    def value_text(self, value: Any) -> str:
        """Write a key or a value on one line, as the text's own language has it."""
        return flow_text(value, as_json=self.is_json)

    def _lines(self, key: str, value: Any, indent: int) -> list[str]:
        return block_lines(key, value, indent, step=self.step)

    # -- changes -----------------------------------------------------------------------------------------------

    def splice(self, start: int, end: int, text: str) -> None:
        """Put text in the place of what stands between two offsets."""
        self._splices.append(_Splice(start, end, text))

    def set_value(self, entry: Entry, text: str) -> None:
        """Give an entry another value, a scalar or a flow collection."""
        value = entry.value
        if isinstance(value, (Mapping, Items)) and not value.flow:
            self.splice(self._colon(entry), value.end, f" {text}")
            last = LINE_BREAK.split(self.text[value.end : self._next_line(value.end)])[0].strip()
            lost = [comment for comment in self.comments(entry) if comment.strip() != last]
            if lost:
                self.insert_lines(self._line_start(entry.start), lost)
        elif value.start == value.end:  # nothing after the colon
            self.splice(self._colon(entry), self._colon(entry), f" {text}")
        else:
            self.splice(value.start, value.end, text)

    def rename(self, entry: Entry, key: str) -> None:
        """Give an entry another key."""
        if entry.key != key:
            self.splice(entry.name.start, entry.name.end, self.value_text(key) if self.is_json else key)

    def replace(self, mapping: Mapping, entry: Entry, keys: Sequence[tuple[str, Any]]) -> None:
        """Put other keys in the place of an entry; the first takes its line, with the comment on it."""
        if not keys:
            self.remove(mapping, entry)
            return
        (key, value), *more = keys
        self.rename(entry, key)
        if value is not SAME:
            self.set_value(entry, self.value_text(value))
        if mapping.flow:
            self.splice(entry.end, entry.end, "".join(self._separator(entry) + self._pair(k, v) for k, v in more))
        elif more:
            lines = [line for k, v in more for line in self._lines(k, v, self.indent(entry))]
            self.insert_lines(self._next_line(entry.end), lines)

    def _pair(self, key: str, value: Any) -> str:
        return f"{self.value_text(key)}: {self.value_text(value)}"

    def _separator(self, entry: Entry) -> str:
        """Give what stands between an entry in braces and one that is added after it."""
        before = self.text[self._line_start(entry.start) : entry.start]
        return f",{self.newline}{before}" if self.is_json and before and not before.strip() else ", "

    def remove(self, mapping: Mapping, entry: Entry) -> None:
        """Take an entry out; the comment on its line stays."""
        self._removed.setdefault(id(mapping), (mapping, set()))[1].add(mapping.entries.index(entry))

    def append(self, mapping: Mapping, key: str, value: Any) -> None:
        """Add an entry to a mapping, after its last one."""
        self._added.add(id(mapping))
        if mapping.flow:
            gone = self._removed.get(id(mapping), (mapping, set()))[1]
            kept = [entry for index, entry in enumerate(mapping.entries) if index not in gone]
            at = kept[-1].end if kept else mapping.start + self.source(mapping).index("{") + 1
            self.splice(at, at, (self._separator(kept[-1]) if kept else "") + self._pair(key, value))
            return
        indent = self.indent(mapping.entries[0])
        self.insert_lines(self.after(mapping.end, indent), self._lines(key, value, indent))

    def add_after(self, mapping: Mapping, entry: Entry, key: str, value: Any) -> None:
        """Add an entry to a mapping, after one of its entries where each has its line."""
        if mapping.flow:
            self.append(mapping, key, value)
        else:
            indent = self.indent(entry)
            self.insert_lines(self.after(entry.end, indent + 1), self._lines(key, value, indent))

    def fill(self, entry: Entry, value: AnyMapping[str, Any]) -> None:
        """Put a mapping into an entry that holds nothing."""
        if entry.value.start != entry.value.end:
            self.set_value(entry, self.value_text(value))
            return
        indent = self.indent(entry) + self.step
        lines = [line for key, child in value.items() for line in self._lines(key, child, indent)]
        self.insert_lines(self._next_line(entry.end), lines)

    def insert_lines(self, offset: int, lines: Sequence[str]) -> None:
        """Insert whole lines before the line that begins at an offset."""
        self._splices.append(_Splice(offset, offset, self.newline.join(lines) + self.newline, lines=True))

    def after(self, offset: int, indent: int) -> int:
        """Give the start of the line after a block, its own comments at its end included."""
        at = self._next_line(offset)
        while at < len(self.text):
            line = self.text[at : self._next_line(at)]
            if not line.lstrip(" ").startswith("#") or len(line) - len(line.lstrip(" ")) < max(indent, 1):
                break
            at = self._next_line(at)
        return at

    def _colon(self, entry: Entry) -> int:
        return self.text.index(":", entry.name.end) + 1

    # -- the result --------------------------------------------------------------------------------------------

    def chunk(self, entry: Entry) -> tuple[int, int]:
        """Give the lines of an entry of a block mapping, with the comments directly above it, as offsets.

        Comments at the very top are the file's.
        """
        start, margin = self._line_start(entry.start), " " * self.indent(entry)
        above = start
        while above > 0:
            before = self._line_start(above - 1)
            if not self.text[before:above].startswith(f"{margin}#"):
                break
            above = before
        return (start if above == 0 else above), self._next_line(entry.end)

    def own_lines(self, entry: Entry) -> tuple[int, int]:
        """Give the lines of an entry as offsets, without the comments above."""
        return self._line_start(entry.start), self._next_line(entry.end)

    def comments(self, entry: Entry) -> list[str]:
        """Give the comments behind an entry and within it, a line each."""
        start, end = self.own_lines(entry)
        text = self.text[start:end]
        for node in (entry.name, *walk_syntax(entry.value)):
            if isinstance(node, (Scalar, Alias)):
                blank = re.sub(r"[^\r\n]", " ", self.source(node))
                text = text[: node.start - start] + blank + text[node.end - start :]
        found = [re.search(r"(?:^|\s)(#.*)$", line.rstrip()) for line in LINE_BREAK.split(text)]
        return [" " * self.indent(entry) + match[1] for match in found if match]

    def lines(self, start: int, end: int) -> list[str]:
        """Give the lines between two offsets without their breaks."""
        found = LINE_BREAK.split(self.text[start:end])
        return found[:-1] if found and found[-1] == "" else found

    def edited(self) -> str:
        """Give the text with all changes made."""
        splices = [*self._splices, *self._removals()]
        ordered = sorted(enumerate(splices), key=lambda pair: (pair[1].start, pair[1].end, pair[0]))
        parts, at = "", 0
        for _, splice in ordered:
            parts += self.text[at : splice.start]
            if splice.lines and parts and not parts.endswith(self.newline):
                parts += self.newline
            parts += splice.text
            at = max(at, splice.end)
        return parts + self.text[at:]

    def _removals(self) -> list[_Splice]:
        found = []
        for mapping, indices in self._removed.values():
            is_empty = len(indices) == len(mapping.entries) and id(mapping) not in self._added
            if mapping.flow:
                found += self._flow_removals(mapping, indices)
            else:
                found += [self._block_removal(mapping, index) for index in sorted(indices)]
                if is_empty:
                    behind = (self._colon(entry) for entry in walk_entries(self.root) if entry.value is mapping)
                    at = next(behind, 0)  # after the key's colon, if it has a key
                    found.append(_Splice(at, at, " {}" if at else f"{{}}{self.newline}"))
        return found

    def _flow_removals(self, mapping: Mapping, indices: set[int]) -> list[_Splice]:
        entries, found, index = mapping.entries, [], 0
        while index < len(entries):
            last = index
            while last + 1 in indices and index in indices:
                last += 1
            if index in indices:
                start, end = entries[index].start, entries[last].end
                if last + 1 < len(entries):
                    end = entries[last + 1].start
                elif index:
                    start = entries[index - 1].end
                found.append(_Splice(start, end, ""))
            index = last + 1
        return found

    def _block_removal(self, mapping: Mapping, index: int) -> _Splice:
        entry = mapping.entries[index]
        start, end = self.own_lines(entry)
        if self.text[start : entry.start].strip():  # the first of a list's item, after its dash
            following = mapping.entries[index + 1].start if index + 1 < len(mapping.entries) else entry.end
            return _Splice(entry.start, following, "" if following > entry.end else "{}")
        return _Splice(start, end, "".join(comment + self.newline for comment in self.comments(entry)))
