"""The log of a Delta table of images: the last thing that is written, by which the files become a table."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightkit.errors import ConfigError, DataError
from lightkit.images.tables.writing import SCHEMA, WrittenFile

if TYPE_CHECKING:
    from deltalake.transaction import AddAction

__all__ = ["check_delta", "committed_names", "create_delta", "newest_version", "replace_delta", "require_deltalake"]

# deltalake 1.6.6: it decodes %20 although nothing was encoded, takes \ for /, and panics on the others.
_NOT_TAKEN = re.compile(r"%[0-9A-Fa-f]{2}|[\[\]^|\\]")
_SAYS = "Images, written by lightkit convert"


def require_deltalake(table: Path) -> None:
    """Refuse to write a Delta table without deltalake, or where it would look for the files elsewhere.

    Raises:
        ConfigError: If it is not installed, or the path is none of those that it takes.
    """
    if found := _NOT_TAKEN.search(str(table.absolute())):
        raise ConfigError(
            f"{table}: deltalake cannot write below a folder with {found[0]!r} in its name. Say another name, or "
            "--format parquet."
        )
    try:
        import deltalake.transaction  # noqa: F401 (an extra)
    except ImportError as error:
        raise ConfigError(
            f"{table}: to write a Delta table, deltalake must be installed: pip install 'lightkit[delta]'. Or say "
            "--format parquet."
        ) from error


def check_delta(table: Path) -> None:
    """Refuse to replace the content of a Delta table that is no table of images.

    Raises:
        ConfigError: If its columns are others, it is partitioned, or asks for more than plain files.
        DataError: If it cannot be read.
    """
    from deltalake import DeltaTable  # an extra

    with _told(table):
        there = DeltaTable(str(table))
        found = {field.name: str(field.type) for field in there.schema().fields}
        wanted = {field.name: str(field.type) for field in _schema().fields}
        partitions, features = there.metadata().partition_columns, there.protocol().writer_features
    if found != wanted or partitions:
        raise ConfigError(
            f"{table} exists, and is another table than lightkit convert writes: it has the columns "
            f"{', '.join(found)}. Say another name."
        )
    if features:
        raise ConfigError(f"{table} exists, and uses {', '.join(features)} of Delta, unknown here. Say another name.")


def create_delta(folder: Path, files: Sequence[WrittenFile]) -> None:
    """Make a Delta table of the files in a folder.

    Raises:
        DataError: If the log cannot be written.
    """
    from deltalake.transaction import create_table_with_add_actions  # an extra

    with _told(folder):
        create_table_with_add_actions(str(folder), _schema(), _actions(folder, files), description=_SAYS)


def replace_delta(table: Path, files: Sequence[WrittenFile]) -> None:
    """Add a version to a Delta table that holds these files only; older versions stay.

    Raises:
        DataError: If the log cannot be written, or somebody else has written to the table meanwhile.
    """
    from deltalake import DeltaTable  # an extra

    with _told(table):
        there = DeltaTable(str(table))
        there.create_write_transaction([*_actions(table, files)], mode="overwrite", schema=there.schema())


def committed_names(table: Path) -> set[str]:
    """Give the names of the files that the newest version of a table consists of."""
    from deltalake import DeltaTable  # an extra

    with _told(table):
        return {uri.rpartition("/")[2] for uri in DeltaTable(str(table)).file_uris()}


def newest_version(table: Path) -> int:
    """Give the number of the newest version of a table."""
    from deltalake import DeltaTable  # an extra

    with _told(table):
        return DeltaTable(str(table)).version()


def _schema() -> Any:
    from deltalake import Schema  # an extra

    return Schema.from_arrow(SCHEMA)


def _actions(folder: Path, files: Sequence[WrittenFile]) -> list[AddAction]:
    from deltalake.transaction import AddAction  # an extra

    return [
        AddAction(
            path=file.name,
            size=file.num_bytes,
            partition_values={},
            modification_time=int((folder / file.name).stat().st_mtime * 1000),
            data_change=True,
            stats=_stats(file),
        )
        for file in files
    ]


def _stats(file: WrittenFile) -> str:
    columns = dict.fromkeys(SCHEMA.names, 0)
    stats = {"numRecords": file.num_rows, "minValues": file.least, "maxValues": file.greatest, "nullCount": columns}
    return json.dumps(stats)


@contextmanager
def _told(table: Path) -> Iterator[None]:
    from deltalake.exceptions import DeltaError  # an extra

    try:
        yield
    except DeltaError as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        with suppress(IndexError):
            raise DataError(f"{table}: Delta refuses ({lines[0].rstrip('.')}).") from error
        raise DataError(f"{table}: Delta refuses ({type(error).__name__}).") from error
