"""The kinds of tables that are read, and what to do with a file of another kind.

No torch and no pyarrow.

Apart from the reader, because `check` and `init` ask before anything heavy is imported.
"""

from __future__ import annotations

from pathlib import Path

PARQUET_SUFFIXES = (".parquet", ".parq", ".pq")
RECIPES = "docs/recipes.md"
"""The page with complete examples of what the built-in classes do not do."""
_TEXT_SUFFIXES = (".csv", ".tsv", ".txt")
_OTHER_SUFFIXES = (
    *(".arrow", ".db", ".feather", ".h5", ".hdf5", ".json", ".jsonl", ".npy", ".npz"),
    *(".orc", ".sqlite"),
)
SHEET_SUFFIXES = (".xls", ".xlsx", ".ods")
_OTHERS = frozenset({*_TEXT_SUFFIXES, *_OTHER_SUFFIXES, *SHEET_SUFFIXES})
_KINDS = dict.fromkeys(_TEXT_SUFFIXES, "CSV") | dict.fromkeys(SHEET_SUFFIXES, "a spreadsheet")
_MAGIC = b"PAR1"


def explain_other_format(place: Path) -> str | None:
    """Explain why a file or folder that exists is no table that is read; None where it may be one.

    Args:
        place: Path of this machine.
    """
    file = _find_other_file(place) if place.is_dir() else place
    if file is None or (file == place and _is_parquet(place)):
        return None
    suffix = file.suffix.lower()
    if suffix in PARQUET_SUFFIXES:
        return None  # a damaged one, of which the reader says what is wrong
    kind = _KINDS.get(suffix, f"a {suffix or 'plain'} file")
    return (
        f"{file} is {kind}, which is not read; expected a Delta table, or"
        " a file or folder of Parquet. "
        f'{RECIPES}, "Numbers in a table", turns a CSV file into Parquet and trains on it'
    )


def _find_other_file(folder: Path) -> Path | None:
    """Find the first file of another kind in a folder.

    None where there is none, or the folder is a table.
    """
    if (
        (folder / "_delta_log").is_dir()
        or any(folder.rglob("*.pa*rq*"))
        or any(folder.rglob("*.pq"))
    ):
        return None
    others = (
        path
        for path in sorted(folder.iterdir())
        if path.suffix.lower() in _OTHERS and path.is_file()
    )
    return next(others, None)


def _is_parquet(file: Path) -> bool:
    try:
        with file.open("rb") as stream:
            return stream.read(len(_MAGIC)) == _MAGIC
    except OSError:
        return True  # the reader says why it cannot be read
