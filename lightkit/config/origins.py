"""Where values come from, and how a place is shown to the user."""

from __future__ import annotations

import difflib
import importlib.util
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from unicodedata import combining, east_asian_width

from lightkit.config.secrets import mask_line
from lightkit.errors import ConfigError

__all__ = [
    "NESTED_FILES",
    "KeyPath",
    "Origin",
    "cut",
    "dotted",
    "mistake",
    "near",
    "near_class",
    "near_files",
    "no_class",
    "shortened",
    "shown_path",
]

KeyPath = tuple[Any, ...]
"""Keys from the top of a config down to a value: strings, list indices, and whatever scalars YAML allows as keys."""

_LONGEST_SOURCE_LINE = 160  # characters; a longer line is cut around its caret
_LONGEST_VALUE = 80
_LONGEST_MESSAGE = 1000
NESTED_FILES = (".yaml", ".yml", ".json")


@dataclass(frozen=True)
class Origin:
    """The place that set a value.

    Args:
        kind: What kind of layer it was.
        name: The variable's name, the flag as typed, or the file as shown to the user.
        file: File that holds the value.
        line: Line in the file, from 1.
        column: Column of the value's first character, from 1.
        end_column: Column after its last character on that line.
        source: That line of the file.
        key: Place of the key, for errors about the key and not its value.
    """

    kind: Literal["default", "file", "variable", "flag"]
    name: str = ""
    file: Path | None = None
    line: int | None = None
    column: int | None = None
    end_column: int | None = None
    source: str = field(default="", repr=False, compare=False)
    key: Origin | None = field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        if self.kind == "file":
            return ":".join(str(part) for part in (self.name, self.line, self.column) if part is not None)
        if self.kind == "variable":
            return f"environment variable {self.name}"
        return self.name or "default"

    def at_key(self) -> Origin:
        """Give the place of the key, or of the value where no key stands before it."""
        return self.key or self

    def render(self) -> str:
        """Show the place as ``-->`` and, in a file, its line with carets under the value."""
        head = f"  --> {cut(str(self))}"
        if self.line is None or self.column is None:
            return head
        start, end = self.column - 1, max(self.end_column or 0, self.column + 1) - 1
        source = mask_line(self.source)
        left_out = max(0, start - 60) if len(source) > _LONGEST_SOURCE_LINE else 0
        text = source[left_out : left_out + _LONGEST_SOURCE_LINE].rstrip()
        text = "".join(letter if letter.isprintable() else " " for letter in text)
        before, meant = text[: start - left_out], text[start - left_out : end - left_out]
        carets = "^" * max(1, _width(meant))
        margin = f"{'':>5} | {' ' * (_width(before) + start - left_out - len(before))}"
        return f"{head}\n{self.line:>5} | {text}\n{margin}{carets}"


def mistake(says: str, *origins: Origin | None) -> ConfigError:
    """Make the error that says ``says`` and shows each of ``origins`` under it."""
    places = [origin for origin in origins if origin is not None]
    rendered = [cut(says, _LONGEST_MESSAGE), *(origin.render() for origin in places)]
    return ConfigError("\n".join(rendered), places=places)


def cut(text: str, length: int = _LONGEST_SOURCE_LINE) -> str:
    """Leave out the middle of a text that is too long to be read."""
    return text if len(text) <= length else f"{text[: length * 3 // 4]} ... {text[-length // 4 :]}"


def _width(text: str) -> int:
    """Count the columns that a text takes on a terminal, where Chinese characters and most pictures take two."""
    widths = (2 if east_asian_width(letter) in "WF" else 0 if combining(letter) else 1 for letter in text)
    return sum(widths)


def dotted(path: Iterable[Any]) -> str:
    """Write a path as users do: ``trainer.callbacks.0.patience``."""
    return ".".join(str(key) for key in path)


def near(word: str, choices: Iterable[str]) -> str:
    """Say ``; did you mean 'x'?`` with the choices that look most like ``word``, or nothing where none does."""
    close = difflib.get_close_matches(word, sorted(set(choices)), n=3, cutoff=0.6)
    return f"; did you mean {' or '.join(repr(choice) for choice in close)}?" if close else ""


def near_class(name: str, choices: Iterable[str]) -> str:
    """Say it of classes: the one that begins so is meant by the name of an entry, as SlackNotifier is by ``slack``."""
    begun = [each for each in set(choices) if each.lower().startswith(name.replace("_", "").lower())]
    return f"; did you mean {begun[0]!r}?" if len(begun) == 1 else near(name, choices)


def no_class(name: str, hint: str) -> str:
    """Say that a name without a module is no class's; where it is a module's, a class in it is meant.

    Args:
        name: The name.
        hint: What `near_class` says of it.
    """
    if name in sys.modules or (name.isidentifier() and importlib.util.find_spec(name) is not None):
        return f"{name} is a module; name a class in it, as in {name}.MyClass"
    return f"no class {name!r}{hint}; a class of your own is named with its module: my_models.{name}"


def near_files(file: Path) -> str:
    """Say which files beside a missing one look most like it."""
    if not file.parent.is_dir():
        return f": there is no folder {shown_path(file.parent)}"
    try:
        beside = [path.name for path in file.parent.iterdir()]
    except OSError:  # a folder that may be entered and not listed
        return ""
    if file.name.endswith(NESTED_FILES):  # else every `.yaml` looks like every other
        by_stem = {Path(name).stem: name for name in sorted(beside) if name.endswith(NESTED_FILES)}
        close = difflib.get_close_matches(file.stem, by_stem, n=3, cutoff=0.6)
        return f"; did you mean {' or '.join(repr(by_stem[stem]) for stem in close)}?" if close else ""
    return near(file.name, beside)


def shortened(text: str) -> str:
    """Quote a value that may be long."""
    return repr(text) if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]!r}..."


def shown_path(file: Path) -> str:
    """Write a file's path as short as it can be understood from the working directory."""
    plain = os.path.normpath(file)
    if os.path.isabs(plain):  # noqa: PTH117 - beside normpath, which pathlib lacks
        inside = os.path.relpath(plain)
        return plain if inside.startswith("..") else inside
    return plain
