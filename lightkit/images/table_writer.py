"""Write images as a Delta or Parquet table, which is there as a whole or not at all. No torch.

The rows' order and their files are decided by the images, not by the machine. The files are written
in a folder next to the table, which is renamed; an existing Delta table gets its files next to the
old ones, and its next version last.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import accumulate, groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from filelock import FileLock, Timeout
from pyarrow import parquet

from lightkit.errors import ConfigError, DataError, RunLocked
from lightkit.images.inputs import is_delta
from lightkit.images.progress import show_progress
from lightkit.runs.bad_images import BadImage, write_bad_images
from lightkit.runs.files import flush

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from deltalake.transaction import AddAction

BAD_IMAGES = "_bad_images.csv"
"""List of the images that are in no row; readers of Parquet ignore names that begin so."""
_MARK = b"lightkit.convert"
"""Key in the metadata of files of `lightkit convert`."""
_SCHEMA = pa.schema(
    [
        ("image", pa.binary()),
        ("label", pa.string()),
        ("split", pa.string()),
        ("path", pa.string()),
        ("width", pa.int32()),
        ("height", pa.int32()),
    ]
)
_SPLITS = ("train", "val", "test")
_GROWTH = 1.05  # of the number of row groups that is tried next: less time on millions of rows
_PAGE_BYTES = 1 << 20  # a reader that streams holds a page or two
_WRITE_BATCH = 16  # rows between two looks whether a page is full
_NUM_READERS = 8  # threads, which wait for the disk
# deltalake 1.6.6: it decodes %20 although nothing was encoded, takes \ for /, and panics on the
# others
_REFUSED_BY_DELTALAKE = re.compile(r"%[0-9A-Fa-f]{2}|[\[\]^|\\]")


@dataclass(frozen=True)
class ImageRow:
    """A row to be written.

    Args:
        file: The image's file.
        path: Its path in the table, with ``/`` between folders.
        label: Name of its class.
        split: train, val or test.
        digest: SHA-256 of the image's bytes, hexadecimal.
        num_bytes: Number of these bytes.
        width: Of the upright image, in pixels.
        height: Likewise.
    """

    file: Path
    path: str
    label: str
    split: str
    digest: str
    num_bytes: int
    width: int
    height: int


RowGroups = list[list[ImageRow]]
"""The rows of one file, in its row groups."""


@dataclass(frozen=True)
class TableTarget:
    """A table to be written.

    Args:
        table: Its folder.
        images: Folder of the images.
        is_delta: Whether it is a Delta table, not just Parquet files.
        overwrites: Whether an existing table of `lightkit convert` gets the new content.
    """

    table: Path
    images: Path
    is_delta: bool
    overwrites: bool = False

    def check(self) -> None:
        """Refuse the table, before anything is written.

        Raises:
            ConfigError: If something is there that must stay, or deltalake is missing.
            DataError: If an existing Delta table cannot be read.
        """
        table = self.table
        if self.is_delta and (found := _REFUSED_BY_DELTALAKE.search(str(table.absolute()))):
            raise ConfigError(
                f"{table}: deltalake writes no folder with {found[0]!r} in"
                " its name. Choose another name."
            )
        if self.is_delta and not find_spec("deltalake"):
            raise ConfigError(
                f"{table}: to write a Delta table, deltalake must be installed: pip install"
                " 'lightkit-train[delta]'. Or use --format parquet."
            )
        if self.images.is_dir() and table.absolute().resolve().is_relative_to(
            self.images.resolve()
        ):
            raise ConfigError(
                f"{table} is in the folder of images {self.images}."
                " Choose another place for the table."
            )
        if os.path.lexists(table) and not _is_empty(table):
            self._check_existing()

    def _check_existing(self) -> None:
        """Refuse what is there, unless it is a table that may be overwritten.

        Raises:
            ConfigError: If it must stay.
            DataError: If it is a Delta table that cannot be read.
        """
        table = self.table
        was_delta = is_delta(table)
        if not was_delta and not is_converted_parquet(table):
            raise ConfigError(
                f"{table} exists, and is not a table that lightkit convert has written: it stays as"
                " it is. Choose another name."
            )
        if not self.overwrites:
            effect = "writes a new version of it" if was_delta else "replaces it"
            raise ConfigError(
                f"{table} exists, and nothing is added to a table. --overwrite {effect}; or choose"
                " another name."
            )
        if was_delta != self.is_delta:
            kind, asked = ("delta", "parquet") if was_delta else ("parquet", "delta")
            raise ConfigError(
                f"{table} is of the format {kind}, and --format is {asked}. Use --format {kind}, or"
                " another name."
            )
        if was_delta:
            _check_delta(table)


def plan_files(
    rows: Iterable[ImageRow], *, num_files: int, row_group_bytes: int
) -> list[RowGroups]:
    """Distribute the rows over files and row groups, in an order that mixes the classes.

    A row group holds rows of one split, so that the reader of a split reads no other. Within a
    split the order is that of the images' SHA-256. Files have equally many rows, in all and of each
    split, within one; and so have the row groups of a split, in all files.

    Args:
        rows: All rows, in any order.
        num_files: Number of files.
        row_group_bytes: Most bytes of images in a row group; larger images count as none.

    Raises:
        ConfigError: If there are fewer rows than files.
    """
    ordered = sorted(
        rows, key=lambda row: (_SPLITS.index(row.split), row.digest, row.label, row.path)
    )
    if len(ordered) < num_files:
        raise ConfigError(
            f"--partitions {num_files}: there are only {len(ordered)} images, and a file needs one"
            f" at least. Use --partitions {len(ordered)} or fewer, or add images."
        )
    files: list[RowGroups] = [[] for _ in range(num_files)]
    for _, of_split in groupby(enumerate(ordered), key=lambda numbered: numbered[1].split):
        shares: list[list[ImageRow]] = [[] for _ in range(num_files)]
        # goes on where the split before has ended: so files are equal in all, too
        for number, row in of_split:
            shares[number % num_files].append(row)
        for groups, share_groups in zip(
            files, _cut_row_groups(shares, row_group_bytes), strict=True
        ):
            groups.extend(share_groups)
    return files


def _cut_row_groups(shares: Sequence[Sequence[ImageRow]], row_group_bytes: int) -> list[RowGroups]:
    """Cut each share into the same number of row groups, as few as keep all small enough."""
    sums = [
        [0, *accumulate(row.num_bytes if row.num_bytes <= row_group_bytes else 0 for row in share)]
        for share in shares
    ]

    def ranges(length: int) -> list[tuple[int, int]]:
        return [(part * length // number, (part + 1) * length // number) for part in range(number)]

    most = max(map(len, shares))
    number = max(1, -(-max(total[-1] for total in sums) // row_group_bytes))
    while number < most and any(
        total[end] - total[begin] > row_group_bytes
        for total in sums
        for begin, end in ranges(len(total) - 1)
    ):
        number = min(most, max(number + 1, int(number * _GROWTH)))
    return [
        [list(share[begin:end]) for begin, end in ranges(len(share)) if begin < end]
        for share in shares
    ]


def write_table(
    target: TableTarget, files: Sequence[RowGroups], *, bad_images: Sequence[BadImage] = ()
) -> tuple[int, int | None]:
    """Write all rows, then give the table its name, or an existing Delta table its next version.

    Args:
        target: The table.
        files: Rows of each file, in row groups.
        bad_images: Images that are in no row, listed next to the files.

    Returns:
        Bytes of all files, and the version of a Delta table.

    Raises:
        ConfigError: If something is there that must stay, or the folder cannot be written.
        DataError: If an image was changed meanwhile, or the disk is full.
        RunLocked: If another process is writing the same table.
    """
    table = target.table
    num_bytes = sum(row.num_bytes for groups in files for rows in groups for row in rows)
    with _translate_write_errors(table, num_bytes=num_bytes), _lock(table):
        target.check()  # once more: it may have appeared while the images were read
        if shutil.disk_usage(table.parent).free < num_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if is_delta(table):
            written = _add_delta_version(table, files)
            write_bad_images(table / BAD_IMAGES, bad_images)
        else:
            temporary = table.with_name(f".{table.name}.aside")
            shutil.rmtree(temporary, ignore_errors=True)  # of a killed process
            try:
                temporary.mkdir()
                written = _write_files(temporary, files)
                write_bad_images(temporary / BAD_IMAGES, bad_images)
                if target.is_delta:
                    from deltalake.transaction import create_table_with_add_actions  # an extra

                    with _translate_delta_errors(table):
                        create_table_with_add_actions(
                            str(temporary),
                            _delta_schema(),
                            [_delta_action(file) for file in written],
                            description="Images, written by lightkit convert",
                        )
                _publish(temporary, table)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
        version = _load_delta(table).version() if target.is_delta else None
    return sum((table / file.name).stat().st_size for file in written), version


def _write_files(folder: Path, files: Sequence[RowGroups], *, suffix: str = "") -> list[Path]:
    """Write the rows of each file; one row group is in memory at a time."""
    small = [name for name in _SCHEMA.names if name != "image"]
    schema = _SCHEMA.with_metadata({_MARK: b"1"})
    written = list[Path]()
    num_bytes = sum(row.num_bytes for groups in files for rows in groups for row in rows)
    pool = ThreadPoolExecutor(_NUM_READERS)
    read = (
        (number, rows, list(pool.map(_read_image, rows)))
        for number, groups in enumerate(files)
        for rows in groups
    )
    shown = show_progress(
        read, num_bytes, "bytes written", size=lambda group: sum(map(len, group[2]))
    )
    try:
        for number, of_file in groupby(shown, key=itemgetter(0)):
            written.append(folder / f"part-{number:05d}{suffix}.parquet")
            with (
                written[-1].open("xb") as sink,
                parquet.ParquetWriter(
                    sink,
                    schema,
                    # images are compressed already
                    compression={"image": "none", **dict.fromkeys(small, "zstd")},
                    use_dictionary=["label", "split"],
                    write_statistics=small,
                    data_page_size=_PAGE_BYTES,
                    write_batch_size=_WRITE_BATCH,
                ) as writer,
            ):
                for _, rows, images in of_file:
                    columns = {name: [getattr(row, name) for row in rows] for name in small}
                    writer.write_table(
                        pa.table({"image": images, **columns}, schema=schema),
                        row_group_size=len(rows),
                    )
    finally:
        pool.shutdown(cancel_futures=True)
    return written


def _read_image(row: ImageRow) -> bytes:
    try:
        content = row.file.read_bytes()
    except FileNotFoundError:
        content = b""
    if hashlib.sha256(content).hexdigest() != row.digest:
        raise DataError(
            f"{row.file}: this image was changed or removed while the table was written. Nothing"
            " was written; run the same command again once nobody changes the folder."
        )
    return content


def is_converted_parquet(table: Path) -> bool:
    """Check whether a folder holds Parquet files of `lightkit convert` and nothing else."""

    def is_own(entry: Path) -> bool:
        is_part = entry.name.startswith("part-") and entry.suffix == ".parquet"
        return entry.name == BAD_IMAGES or (
            is_part and _MARK in (parquet.read_metadata(entry).metadata or {})
        )

    try:
        return not table.is_symlink() and table.is_dir() and all(map(is_own, table.iterdir()))
    except (OSError, pa.ArrowException):
        return False


def _is_empty(table: Path) -> bool:
    return not table.is_symlink() and table.is_dir() and not any(table.iterdir())


def _publish(temporary: Path, table: Path) -> None:
    """Rename a complete folder to the table's name."""
    for file in [*temporary.rglob("*"), temporary]:
        flush(file)
    if _is_empty(table):
        table.rmdir()
    old = _old_path(table)
    # a kill between the two renames leaves the old table aside, whence `_lock` restores it
    if table.exists():
        table.rename(old)
    temporary.rename(table)
    shutil.rmtree(old, ignore_errors=True)
    flush(table.parent)


def _old_path(table: Path) -> Path:
    return table.with_name(f".{table.name}.old")


@contextmanager
def _lock(table: Path) -> Iterator[None]:
    """Keep other writers out of a table, by whatever name or link, and clean up after a killed one.

    Raises:
        RunLocked: If another process is writing it.
        OSError: If the folder that the table is to be in cannot be written.
    """
    table.parent.mkdir(parents=True, exist_ok=True)
    target = Path(os.path.realpath(table))  # the lock is beside the table, not beside a link to it
    path = target.with_name(f".{target.name}.lock")
    lock = FileLock(path, timeout=0)
    try:
        lock.acquire()
    except Timeout as error:
        raise RunLocked(
            f"{table}: another process is writing this table. Wait for it, or use another name."
        ) from error
    try:
        if (old := _old_path(table)).exists() and not table.exists():
            old.rename(table)
        shutil.rmtree(old, ignore_errors=True)
        yield
    finally:
        path.unlink(missing_ok=True)
        lock.release()


@contextmanager
def _translate_write_errors(table: Path, *, num_bytes: int) -> Iterator[None]:
    """Raise a `DataError` for a full disk, and a `ConfigError` for a folder without permission."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise ConfigError(
                f"{table}: cannot write here ({reason}). Choose another place."
            ) from error
        raise DataError(
            f"{table}: there is no room for it ({reason}): it needs about {num_bytes / 1e6:.1f} MB."
            " Nothing new was left there. Make room, or choose another place."
        ) from error


def _add_delta_version(table: Path, files: Sequence[RowGroups]) -> list[Path]:
    """Write the files beside those of older versions, unread until the log names them."""
    token = secrets.token_hex(4)
    try:
        written = _write_files(table, files, suffix=f"-{token}")
        delta = _load_delta(table)
        with _translate_delta_errors(table):
            delta.create_write_transaction(
                [_delta_action(file) for file in written], mode="overwrite", schema=delta.schema()
            )
    except BaseException:
        # of a signal just after the commit
        names = {uri.rpartition("/")[2] for uri in _load_delta(table).file_uris()}
        for file in table.glob(f"part-*-{token}.parquet"):
            if file.name not in names:
                file.unlink(missing_ok=True)
        raise
    return written


def _check_delta(table: Path) -> None:
    """Refuse a Delta table of other columns."""
    delta = _load_delta(table)
    found = {field.name: str(field.type) for field in delta.schema().fields}
    wanted = {field.name: str(field.type) for field in _delta_schema().fields}
    if found != wanted or delta.metadata().partition_columns:
        raise ConfigError(
            f"{table} exists, and is another table than lightkit convert writes: it has the columns"
            f" {', '.join(found)}. Choose another name."
        )


def _load_delta(table: Path) -> DeltaTable:
    from deltalake import DeltaTable  # an extra

    with _translate_delta_errors(table):
        return DeltaTable(str(table))


@contextmanager
def _translate_delta_errors(table: Path) -> Iterator[None]:
    from deltalake.exceptions import DeltaError  # an extra

    try:
        yield
    except DeltaError as error:
        raise DataError(
            f"{table}: Delta refuses ({str(error).strip().splitlines()[0].rstrip('.')})."
        ) from error


def _delta_schema() -> Any:
    from deltalake import Schema  # an extra

    return Schema.from_arrow(_SCHEMA)


def _delta_action(file: Path) -> AddAction:
    from deltalake.transaction import AddAction  # an extra

    status = file.stat()
    num_rows = parquet.read_metadata(file).num_rows
    stats = json.dumps({"numRecords": num_rows})
    return AddAction(
        file.name, status.st_size, {}, int(status.st_mtime * 1000), data_change=True, stats=stats
    )
