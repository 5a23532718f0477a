"""The images that words on a command line name: folders, files, globs, tables, standard input."""

from __future__ import annotations

import fnmatch
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path

from lightkit.config.origins import near_files
from lightkit.errors import DataError
from lightkit.images.path_tables import TABLE_SUFFIXES, is_delta, path_table
from lightkit.images.reading import IMAGE_SUFFIXES

__all__ = ["Listing", "listed", "named_files"]

_MAGIC = frozenset("*?[")
_LISTS = (".txt", ".lst", ".list")
_Source = Callable[[], Iterable[str]]


class Listing(Iterable[str]):
    """Paths in order, found while they are asked for.

    Of a folder, the names in one folder at a time are in memory; of a table, some thousand rows.

    Args:
        sources: Each gives the paths of one word, as often as it is called.
        is_countable: Whether that can be done twice.
    """

    def __init__(self, sources: Sequence[_Source], *, is_countable: bool = True) -> None:
        self._sources = sources
        self.is_countable = is_countable

    def __iter__(self) -> Iterator[str]:
        """Give the paths, those of the first word first."""
        return chain.from_iterable(source() for source in self._sources)

    def count(self) -> int | None:
        """Give how many there are, without opening an image; None where that cannot be known before the end."""
        return sum(1 for _ in self) if self.is_countable else None


def listed(words: Sequence[str]) -> Listing:
    """Find the images that words name, and tell at once what is wrong with a word.

    A word is:

    - a file: that image, or the paths in it if it is a table: `.csv`, `.tsv` or `.parquet`;
    - a folder: the images in it and in all folders below it, by their suffix, in the order of their names on every
      machine; names that begin with a dot are left out. Or a Delta table, if it has a `_delta_log`;
    - a glob such as `photos/*/img_?.jpg` or `photos/**/*.png`, in the same order. It finds what a shell would, but of
      a pattern that ends in no suffix, images only;
    - `-`: standard input, one path a line.

    See `path_tables.path_table` for which column of a table is taken, and where its relative paths count from. Files
    within folders and tables are not opened: whether each is an image is known when it is read.

    Raises:
        DataError: If a file or folder is not there, a folder has no image, a glob finds none, or a table has no column
            of paths.
        ConfigError: If a table's reader is not installed.
    """
    is_countable = "-" not in words
    return Listing([_source(word) for word in words], is_countable=is_countable)


def named_files(words: Sequence[str]) -> Iterator[Path]:
    """Give the files that words name themselves, and the tables that patterns find; nothing of what is in them."""
    for word in words:
        path = Path(word).expanduser()
        if os.path.lexists(path):
            yield path
        elif _MAGIC & {*word} and path.suffix.lower() in TABLE_SUFFIXES:
            yield from map(Path, _matches_of(path)())


def _source(word: str) -> _Source:
    if word == "-":
        return lambda: (os.fsdecode(line.rstrip(b"\r\n")) for line in sys.stdin.buffer if line.strip())
    path = Path(word).expanduser()
    if path.is_dir():
        return _table(path) if is_delta(path) else _folder(path)
    if path.suffix.lower() in TABLE_SUFFIXES and path.is_file():
        return _table(path)
    if path.suffix.lower() in _LISTS and path.is_file():
        raise DataError(
            f"{word}: a list of paths is read as `- < {word}`, or from a table: {', '.join(TABLE_SUFFIXES)}. Expected "
            "an image, a folder or a table."
        )
    if os.path.lexists(path):
        return lambda: (str(path),)
    if _MAGIC & {*word}:
        return _glob(word)
    raise DataError(f"{word}: there is no such file or folder{near_files(path) or '.'}")


def _table(path: Path) -> _Source:
    table = path_table(path)
    if next(table.cells(), None) is None:
        raise DataError(f"{path}: this table has no rows.")
    return table.__iter__


def _folder(path: Path) -> _Source:
    try:
        first = next(_walked(str(path)), None)
        names = sorted(name for name in os.listdir(path) if Path(name).suffix.lower() in TABLE_SUFFIXES)  # noqa: PTH208
    except OSError as error:
        raise DataError(f"{path}: this folder cannot be read ({error.strerror})") from error
    if first is None:
        table = f" To predict what a table in it names, say {path / names[0]}." if names else ""
        raise DataError(f"{path}: there is no image in this folder, nor below it.{table}")
    return partial(_walked, str(path))


def _walked(folder: str, above: tuple[tuple[int, int], ...] = ()) -> Iterator[str]:
    """Give the images below a folder; one folder at a time, which a link may lead to, but not in a circle."""
    status = os.stat(folder)  # noqa: PTH116 (pathlib would make an object of each of very many)
    this = (status.st_dev, status.st_ino)
    if this in above:
        return
    for name, is_folder in _entries(folder):
        path = os.path.join(folder, name)  # noqa: PTH118
        if is_folder:
            yield from _walked_or_itself(path, (*above, this))
        elif os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES:  # noqa: PTH122
            yield path


def _walked_or_itself(folder: str, above: tuple[tuple[int, int], ...]) -> Iterator[str]:
    try:
        yield from _walked(folder, above)
    except PermissionError:  # whoever reads it is told so
        yield folder


def _entries(folder: str) -> list[tuple[str, bool]]:
    with os.scandir(folder) as entries:
        return sorted((entry.name, entry.is_dir()) for entry in entries if not entry.name.startswith("."))


def _glob(pattern: str) -> _Source:
    path = Path(pattern).expanduser()
    suffix = path.suffix.lower()
    root, parts = _parts_of(path)
    matches = _matches_of(path)
    if suffix in TABLE_SUFFIXES:
        tables = [path_table(Path(match)) for match in matches()]
        source: _Source = partial(chain.from_iterable, tables)
    else:
        source = partial(
            _images_among,
            matches,
            any_file=bool(suffix) and not _MAGIC & {*suffix},
            with_folders="**" not in parts,  # else what is in them may match as well
        )
    if next(iter(source()), None) is None:
        raise DataError(f"{pattern}: no image matches this{_deepest(root, parts)}")
    return source


def _images_among(matches: Callable[[], Iterable[str]], *, any_file: bool, with_folders: bool) -> Iterator[str]:
    for match in matches():
        if os.path.isdir(match):  # noqa: PTH112
            yield from _walked_or_itself(match, ()) if with_folders else ()
        elif any_file or os.path.splitext(match)[1].lower() in IMAGE_SUFFIXES:  # noqa: PTH122
            yield match


def _matches_of(pattern: Path) -> Callable[[], Iterator[str]]:
    return partial(_matches, *_parts_of(pattern))


def _parts_of(pattern: Path) -> tuple[str, tuple[str, ...]]:
    root = pattern.anchor
    return root, _without_doubles(pattern.parts[1:] if root else pattern.parts)


def _without_doubles(parts: Sequence[str]) -> tuple[str, ...]:
    """Take ``**/**`` for ``**``, and at the end ``**`` and ``**/*`` for the folder, of which all below is taken."""
    kept = [part for at, part in enumerate(parts) if part != "**" or parts[at - 1 : at] != ("**",)]
    while len(kept) > 1 and (kept[-1] == "**" or kept[-2:] == ["**", "*"]):
        kept.pop()
    return tuple(kept) if kept != ["**"] else ("*",)


def _matches(folder: str, parts: Sequence[str]) -> Iterator[str]:
    """Give what matches below a folder, in the order of names; each once, where ``**`` stands once."""
    part, rest = parts[0], parts[1:]
    if part == "**":
        if rest:
            yield from _matches(folder, rest)
        for name, is_folder in _entries_or_none(folder):
            if is_folder:
                yield from _matches(os.path.join(folder, name), parts)  # noqa: PTH118
        return
    for name in _names(folder, part):
        path = os.path.join(folder, name)  # noqa: PTH118
        if not rest:
            yield path
        elif os.path.isdir(path):  # noqa: PTH112
            yield from _matches(path, rest)


def _names(folder: str, part: str) -> list[str]:
    if not _MAGIC & {*part}:
        return [part] if os.path.lexists(os.path.join(folder, part)) else []  # noqa: PTH118
    names = [name for name, _ in _entries_or_none(folder)]
    return fnmatch.filter(names, part)


def _entries_or_none(folder: str) -> list[tuple[str, bool]]:
    try:
        return _entries(folder or ".")
    except OSError:  # as a shell does
        return []


def _deepest(root: str, parts: Sequence[str]) -> str:
    """Say which folder of a pattern is the first that is not there."""
    path = Path(root)
    for part in parts[:-1]:
        if _MAGIC & {*part}:
            break
        path = path / part
        if not path.is_dir():
            return f": there is no folder {path}{near_files(path) or '.'}"
    return "."
