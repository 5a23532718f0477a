"""Origins of values, their places as messages show them, and the mistakes of a config.

Collected for one report.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from unicodedata import combining, east_asian_width

from lightkit.config.secrets import mask_line
from lightkit.errors import ConfigError, ConfigErrors, DataError, LightkitError, cut, near, suggest

KeyPath = tuple[Any, ...]
"""Keys from the top of a config down to a value: strings, list indices, and other scalars that YAML
allows as keys."""

_LONGEST_SOURCE_LINE = 160  # characters; a longer line is cut around its caret
_LONGEST_VALUE = 80
_LONGEST_MESSAGE = 1000
NESTED_FILES = (".yaml", ".yml", ".json")


@dataclass(frozen=True)
class Origin:
    """The place that set a value.

    Args:
        kind: What kind of layer it was; ``signature``: it is the default of a class.
        name: The variable's name, the flag as typed, or the file as shown to the user.
        file: File that holds the value.
        line: Line in the file, from 1.
        column: Column of the value's first character, from 1.
        end_column: Column after its last character on that line.
        source: That line of the file.
        key: Place of the key, for errors about the key and not its value.
        word: Hardware key as it was written (`lightkit.config.accelerator.setting.Setting`), where
            the value stands under a key of the trainer that it was translated to.
    """

    kind: Literal["default", "file", "variable", "flag", "signature", "unset"]
    name: str = ""
    file: Path | None = None
    line: int | None = None
    column: int | None = None
    end_column: int | None = None
    source: str = field(default="", repr=False, compare=False)
    key: Origin | None = field(default=None, repr=False, compare=False)
    word: Any = field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        """Write the place on one line."""
        name = "".join(letter if letter.isprintable() else " " for letter in self.name)
        if self.kind == "file":
            return ":".join(
                str(part) for part in (name, self.line, self.column) if part is not None
            )
        if self.kind == "variable":
            return f"environment variable {name}"
        if self.kind == "signature":
            return f"default of {name}"
        return name or ("default of lightkit" if self.kind == "default" else "")

    @property
    def text(self) -> str:
        """The value as it is written, of one that stands in a file."""
        start = (self.column or 1) - 1
        end = None if self.end_column is None else self.end_column - 1
        return self.source[start:end].strip()

    def at_key(self) -> Origin:
        """Return the place of the key, or of the value where no key stands before it."""
        return self.key or self

    def render(self) -> str:
        """Show the place as ``-->`` and, in a file, its line with carets under the value."""
        head = f"  --> {cut(str(self))}"
        if self.line is None or self.column is None:
            return head
        start = self.column - 1
        end = max(self.end_column or 0, self.column + 1) - 1
        source = mask_line(self.source)
        left_out = max(0, start - 60) if len(source) > _LONGEST_SOURCE_LINE else 0
        text = source[left_out : left_out + _LONGEST_SOURCE_LINE].rstrip()
        text = "".join(letter if letter.isprintable() else " " for letter in text)
        before = text[: start - left_out]
        meant = text[start - left_out : end - left_out]
        carets = "^" * max(1, _width(meant))
        margin = f"{'':>5} | {' ' * (_width(before) + start - left_out - len(before))}"
        return f"{head}\n{self.line:>5} | {text}\n{margin}{carets}"


def error_at(text: str, *origins: Origin | None) -> ConfigError:
    """Make the error that says ``text`` and shows each of ``origins`` under it."""
    places = [origin for origin in origins if origin is not None]
    rendered = [cut(text, _LONGEST_MESSAGE), *(origin.render() for origin in places)]
    return ConfigError("\n".join(rendered), places=places)


def _width(text: str) -> int:
    """Count the columns that a text takes on a terminal.

    Chinese characters and most pictures take two.
    """
    widths = (
        2 if east_asian_width(letter) in "WF" else 0 if combining(letter) else 1 for letter in text
    )
    return sum(widths)


def dotted(path: Iterable[Any]) -> str:
    """Write a path as users do: ``trainer.callbacks.0.patience``."""
    return ".".join(str(key) for key in path)


def setting_key(path: Iterable[Any]) -> str:
    """Write a path as tables do: ``model.backbone`` for ``model.init_args.backbone``.

    Write a class as its section.
    """
    return dotted(part for part in path if part not in ("init_args", "class_path"))


def near_files(file: Path, *, is_folder: bool = False) -> str:
    """Return the hint at the files next to a missing one that look most like it.

    The hint for a missing folder names folders.
    """
    if not file.parent.is_dir():
        return f": there is no folder {shown_path(file.parent)}"
    try:
        beside = [path.name for path in file.parent.iterdir() if not is_folder or path.is_dir()]
    except OSError:  # a folder that may be entered and not listed
        return ""
    if not file.name.endswith(NESTED_FILES):
        return near(file.name, beside)
    # by their stems, else every `.yaml` looks like every other
    by_stem = {Path(name).stem: name for name in sorted(beside) if name.endswith(NESTED_FILES)}
    close = difflib.get_close_matches(file.stem, by_stem, n=3, cutoff=0.6)
    return suggest([by_stem[stem] for stem in close])


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


_MAX_REPORTED = 100  # a config that has more errors is not the one that was meant


class UnreadableText(str):
    """The text of a value that is reported as an error.

    Kept so that the rest around it can be validated.
    """

    __slots__ = ()


class Problems:
    """Errors and warnings of a config."""

    def __init__(self) -> None:
        # whether a part could not be read, so that what seems missing may stand there
        self.is_incomplete = False
        self._found: list[LightkitError] = []
        self._known: set[str] = set()
        self._files: list[Path] = []

    def __bool__(self) -> bool:
        return bool(self._found)

    def __iter__(self) -> Iterator[LightkitError]:
        return iter(self._in_order())

    @property
    def is_full(self) -> bool:
        """Return whether further errors are only counted, without near names."""
        return len(self._found) > _MAX_REPORTED

    def add(self, error: LightkitError) -> None:
        """Keep an error, or each of several; a known one is not kept twice."""
        for problem in error.problems if isinstance(error, ConfigError) else (error,):
            if str(problem) not in self._known:
                self._known.add(str(problem))
                self._found.append(problem)

    def report(self, text: str, *origins: Origin | None) -> None:
        """Keep the error that ``text`` is, with its places."""
        self.add(error_at(text, *origins))

    def read(self, file: Path) -> None:
        """Note that a file is the next layer above those read before it.

        Errors are reported in this order.
        """
        if file not in self._files:
            self._files.append(file)

    def include(self, other: Problems) -> None:
        """Take over what has been found in layers above those read before."""
        for file in other._files:
            self.read(file)
        for error in other._found:
            self.add(error)
        self.is_incomplete = self.is_incomplete or other.is_incomplete

    @contextmanager
    def noted(self, *, leaves_gap: bool = False) -> Iterator[None]:
        """Keep the error that the block raises, and go on after it.

        Args:
            leaves_gap: Whether the block gives a part of the config, which is missing where it
                fails.
        """
        try:
            yield
        except LightkitError as error:
            self.add(error)
            self.is_incomplete = self.is_incomplete or leaves_gap

    def error(self) -> LightkitError | None:
        """Build one error of all problems, in the order of their places.

        The result is None where there are none.
        """
        found = self._in_order()
        if len(found) < 2:
            return next(iter(found), None)
        if len(found) > _MAX_REPORTED:
            rest = ConfigError(f"{len(found) - _MAX_REPORTED} more mistakes like these")
            found = [*found[:_MAX_REPORTED], rest]
        if all(isinstance(problem, DataError) for problem in found):
            return DataError("\nerror: ".join(map(str, found)))
        return ConfigErrors(
            [each if isinstance(each, ConfigError) else ConfigError(str(each)) for each in found]
        )

    def raise_any(self, mask: Callable[[str], str] = str) -> None:
        """Raise what was found, if anything was.

        Args:
            mask: Puts references in the place of secrets.

        Raises:
            ConfigError: If there are errors in the config.
            DataError: If only data is missing.
        """
        if (error := self.error()) is not None:
            raise error.reworded(mask)

    def _in_order(self) -> list[LightkitError]:
        """Sort by place: files from the lowest layer up, then by line.

        The rest stays as it was found.
        """
        places = [
            next((each for each in problem.places if isinstance(each, Origin)), None)
            for problem in self._found
        ]
        met = (place.file for place in places if place is not None and place.file is not None)
        files = list(dict.fromkeys([*self._files, *met]))

        def key(index: int) -> tuple[int, int, int]:
            place = places[index]
            if place is None or place.file is None:
                return (len(files), index, 0)
            if place.line is None:  # the whole file
                return (-1, files.index(place.file), 0)
            return (files.index(place.file), place.line, place.column or 0)

        return [self._found[index] for index in sorted(range(len(self._found)), key=key)]
