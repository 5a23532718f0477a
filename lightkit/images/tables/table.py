"""Writing images as a Delta or Parquet table, so that it is there as a whole, or not at all."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lightkit.images.inputs import is_delta
from lightkit.images.tables.delta import (
    check_delta,
    committed_names,
    create_delta,
    newest_version,
    replace_delta,
    require_deltalake,
)
from lightkit.images.tables.layout import RowGroups
from lightkit.images.tables.publishing import (
    LEFT_OUT,
    check_place,
    put_in_place,
    sole_writer,
    told_failures,
    written_aside,
)
from lightkit.images.tables.writing import WrittenFile, write_file
from lightkit.runs.bad_images import BadImage, BadImageList

__all__ = ["Place", "WrittenTable", "write_table"]

Advance = Callable[[int, int], None]


@dataclass(frozen=True)
class Place:
    """Where a table is to be, and as what.

    Args:
        table: Its folder.
        images: The folder of images that it is made of.
        is_delta: Whether it is a Delta table, not just Parquet files.
        is_overwritten: Whether a table of `lightkit convert` that is there already gets the new content.
    """

    table: Path
    images: Path
    is_delta: bool
    is_overwritten: bool = False

    def check(self) -> None:
        """Refuse it, before anything is written.

        Raises:
            ConfigError: If something is there that must stay, or deltalake is missing.
            DataError: If the Delta table that is there cannot be read.
        """
        if self.is_delta:
            require_deltalake(self.table)
        check_place(self.table, self.images, overwrite=self.is_overwritten, is_delta_wanted=self.is_delta)
        if is_delta(self.table):
            check_delta(self.table)


@dataclass(frozen=True)
class WrittenTable:
    """What has been written.

    Args:
        num_rows: Of all files.
        num_bytes: Of all files.
        num_files: How many there are.
        version: Of a Delta table.
    """

    num_rows: int
    num_bytes: int
    num_files: int
    version: int | None


def write_table(
    place: Place, files: Sequence[RowGroups], *, advance: Advance, left_out: Sequence[BadImage] = ()
) -> WrittenTable:
    """Write all rows, and only then give the table its name, or an existing Delta table its next version.

    Args:
        place: Where.
        files: Rows of each file, in row groups.
        advance: Told how many more rows, and bytes of images, are written.
        left_out: Images that are in no row, listed beside the files.

    Raises:
        ConfigError: If the place is taken, or cannot be written.
        DataError: If an image was changed meanwhile, or the disk is full.
        RunLocked: If another process is writing the same table.
    """
    wanted_bytes = sum(row.num_bytes for groups in files for rows in groups for row in rows)
    with told_failures(place.table, wanted_bytes=wanted_bytes), sole_writer(place.table):
        place.check()  # once more: it may have come while the images were looked at
        if shutil.disk_usage(place.table.parent).free < wanted_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if is_delta(place.table):
            written = _replaced(place.table, files, advance)
            BadImageList(place.table / LEFT_OUT).replace_scan(left_out)
        else:
            written = _created(place, files, advance, left_out)
        version = newest_version(place.table) if place.is_delta else None
    num_rows, num_bytes = sum(file.num_rows for file in written), sum(file.num_bytes for file in written)
    return WrittenTable(num_rows, num_bytes, len(written), version)


def _created(
    place: Place, files: Sequence[RowGroups], advance: Advance, left_out: Sequence[BadImage]
) -> list[WrittenFile]:
    with written_aside(place.table) as aside:
        written = _written(aside, files, advance, token="")
        BadImageList(aside / LEFT_OUT).replace_scan(left_out)
        if place.is_delta:
            create_delta(aside, written)
        put_in_place(aside, place.table)
    return written


def _replaced(table: Path, files: Sequence[RowGroups], advance: Advance) -> list[WrittenFile]:
    """Write the files beside those of older versions: until the log names them, nobody reads them."""
    token = secrets.token_hex(4)
    try:
        written = _written(table, files, advance, token=f"-{token}")
        replace_delta(table, written)
    except BaseException:
        _remove_uncommitted(table, token)
        raise
    return written


def _remove_uncommitted(table: Path, token: str) -> None:
    names = committed_names(table)  # a signal may have come just after the commit
    for file in table.glob(f"part-*-{token}.parquet"):
        if file.name not in names:
            with suppress(OSError):
                file.unlink()


def _written(folder: Path, files: Sequence[RowGroups], advance: Advance, *, token: str) -> list[WrittenFile]:
    return [
        write_file(folder / f"part-{number:05d}{token}.parquet", groups, advance=advance)
        for number, groups in enumerate(files)
    ]
