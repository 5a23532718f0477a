"""Text files in one folder a class: their list, and their content in any encoding."""

from __future__ import annotations

import codecs
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path

from lightkit.errors import DataError, join_names
from lightkit.images.image_file import walk_files
from lightkit.images.image_index import find_split_folders
from lightkit.images.splits import Split
from lightkit.texts.text_rows import TextRow

log = logging.getLogger("lightkit.data")

TEXT_SUFFIX = ".txt"
_OTHER_ENCODINGS = ("cp1252", "latin-1")
"""Of a file that is not UTF-8, in this order; the second one has a character for each byte."""
_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # before that of UTF-16, which is its beginning
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def list_text_files(root: Path) -> dict[Split, dict[str, list[Path]]]:
    """List the text files of each class, of each split that folders name, else under ``train``.

    Args:
        root: Holds one folder a class, or folders of splits with one folder a class each.

    Raises:
        DataError: If a folder cannot be read.
    """
    folders: Mapping[Split, Path] = find_split_folders(root) or {"train": root}
    return {split: _list_classes(folder) for split, folder in folders.items()}


def _list_classes(folder: Path) -> dict[str, list[Path]]:
    found = {}
    for each in sorted(folder.iterdir()):
        if each.is_dir() and not each.name.startswith("."):
            found[each.name] = [
                Path(path) for path in walk_files(str(each)) if path.lower().endswith(TEXT_SUFFIX)
            ]
    return found


def is_text_folder(place: str | Path) -> bool:
    """Return whether a place is a folder whose folders hold text files."""
    root = Path(place).expanduser()
    if not root.is_dir() or (root / "_delta_log").is_dir():
        return False
    return any(
        path.lower().endswith(TEXT_SUFFIX) and Path(path).parent != root
        for path in walk_files(str(root))
    )


def read_folder(root: Path, *, encoding: str) -> Iterator[TextRow]:
    """Read the texts of a folder, class by class.

    Args:
        root: See `list_text_files`.
        encoding: Of the files; ``auto`` is UTF-8, or what a byte order mark says, or else
            Windows-1252.

    Yields:
        Each text with the name of its folder as its label; and its split where folders name splits.

    Raises:
        DataError: If a file cannot be read, or a class has none.
    """
    listed = list_text_files(root)
    has_splits = bool(find_split_folders(root))
    others: list[str] = []
    for split, classes in listed.items():
        for name, files in classes.items():
            if not files and split == "train":
                raise DataError(
                    f"{root / (split if has_splits else '') / name}: this class has no"
                    f" {TEXT_SUFFIX} files. Add some, or remove the folder."
                )
            for path in files:
                text, used = read_text(path, encoding=encoding)
                if used in _OTHER_ENCODINGS:
                    others.append(str(path))
                yield TextRow(str(path), text, name, split if has_splits else None)
    if others:
        log.warning(
            "%d of the files are not in UTF-8 and are read as Windows-1252 "
            "(data.init_args.encoding: auto): %s",
            len(others), join_names(others),
        )  # fmt: skip


def read_text(path: Path, *, encoding: str) -> tuple[str, str]:
    """Read a text file.

    Args:
        path: The file.
        encoding: See `read_folder`.

    Returns:
        Its text, and the encoding that it was read in.

    Raises:
        DataError: If it cannot be read, or is not in the encoding.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: this text cannot be read ({error.strerror}).") from error
    tried = [encoding]
    if encoding == "auto":
        marked = next((name for mark, name in _MARKS if content.startswith(mark)), "utf-8")
        if marked == "utf-8" and b"\0" in content:
            raise DataError(
                f"{path}: this text has bytes of 0, as of UTF-16 without a byte order mark. Set "
                "data.init_args.encoding to its encoding, such as utf-16-le."
            )
        tried = [marked, *_OTHER_ENCODINGS]
    fault: UnicodeError | None = None
    for name in tried:
        try:
            return content.decode(name), name
        except UnicodeError as error:
            fault = error
    start = getattr(fault, "start", 0)
    line = content[:start].count(b"\n") + 1
    raise DataError(
        f"{path}, line {line}: this text is not in {encoding} (byte"
        f" {content[start : start + 1].hex()}). Set"
        " data.init_args.encoding to its encoding, or to auto."
    )
