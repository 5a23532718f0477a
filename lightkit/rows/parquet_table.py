"""A Delta table or a folder of Parquet at one moment.

Its files, and the row groups in which they are read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from lightkit.errors import ConfigError, DataError
from lightkit.images.delta_table import (
    NONE_DELETED,
    file_name,
    has_deletion_vectors,
    read_deleted_rows,
    refuse_unreadable,
)
from lightkit.images.table_format import PARQUET_SUFFIXES, explain_other_format

if TYPE_CHECKING:
    from deltalake import DeltaTable


Format = Literal["auto", "delta", "parquet"]

_BUFFER_BYTES = 1 << 20  # of each column, of which a page at a time is decoded
_TAIL_BYTES = 1 << 16  # holds the footer of most files, so that a remote one costs one request
_NUM_THREADS = 32  # they wait for the disk or the network
_NULL = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True, eq=False, slots=True)
class DataFile:
    """One Parquet file of a table.

    Args:
        path: In its file system.
        filesystem: Where it is; it can be pickled.
        schema: The table's; the file may lack some of its columns.
        digest: SHA-256 of the footer when the table was opened.
        partition: Values of the columns that the folder or the Delta log names, and that are not in
            the file.
        deleted: Numbers of the rows that a deletion vector deletes, ascending.
    """

    path: str
    filesystem: fs.FileSystem
    schema: pa.Schema
    digest: bytes
    partition: Mapping[str, Any]
    deleted: npt.NDArray[np.int64]

    def open(self) -> pq.ParquetFile:
        """Open the file for reading by pages.

        Raises:
            OSError: If it is missing, damaged, or not the file that the table was opened with.
        """
        footer, digest = _read_footer(self.filesystem, self.path)
        if digest != self.digest:
            raise OSError("it was written over after the table was opened")
        # neither mapped nor read ahead: either would have a whole row group in memory
        return pq.ParquetFile(
            self.filesystem.open_input_file(self.path),
            metadata=pq.read_metadata(pa.BufferReader(footer)),
            memory_map=False, buffer_size=_BUFFER_BYTES, pre_buffer=False,
        )  # fmt: skip


@contextmanager
def _translate_read_errors(path: str) -> Iterator[None]:
    """Raise a `DataError` for a file of a table that is missing, damaged or written over."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise DataError(
            f"{path}: this Parquet file of the table cannot be read ({_first_line(error)}). Restore"
            " it or take it out of the table, and start again when no program writes to the table;"
            " a Delta table has its earlier versions (data.init_args.version), as far as they are"
            " not vacuumed."
        ) from error


@dataclass(frozen=True, eq=False, slots=True)
class RowGroup:
    """The part of a file that is read as a stream.

    Args:
        file: The file.
        number: Of the row group in the file.
        first: Number of its first row in the file, deleted rows counted.
        num_stored: Rows in the file, deleted ones counted.
        num_rows: Rows without those that a deletion vector deletes.
        size_bytes: Of all columns, uncompressed.
    """

    file: DataFile
    number: int
    first: int
    num_stored: int
    num_rows: int
    size_bytes: int

    def read(self, columns: Sequence[str], *, batch_rows: int) -> Iterator[pa.RecordBatch]:
        """Read its rows in stored order, a few pages at a time.

        Columns of the partition and columns that were added after the file are filled in; deleted
        rows are left out.

        Args:
            columns: Columns of the table, in the wanted order.
            batch_rows: Most rows of a record batch.

        Raises:
            DataError: If the file is missing or damaged.
        """
        file = self.file
        at = self.first
        schema = pa.schema([file.schema.field(name) for name in columns])
        with _translate_read_errors(file.path), file.open() as parquet:
            inside = [
                name
                for name in columns
                if name in parquet.schema_arrow.names and name not in file.partition
            ]
            for part in parquet.iter_batches(
                batch_rows, [self.number], columns=inside, use_threads=False
            ):
                arrays = [
                    (
                        part.column(field.name).cast(field.type)
                        if field.name in inside
                        else pa.repeat(
                            pa.scalar(file.partition.get(field.name), field.type), part.num_rows
                        )
                    )
                    for field in schema
                ]
                batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
                if len(file.deleted):
                    batch = batch.filter(
                        pa.array(~np.isin(np.arange(at, at + part.num_rows), file.deleted))
                    )
                yield batch
                at += part.num_rows

    def may_match(self, where: pc.Expression) -> bool:
        """Check the file's partition and the row group's statistics for rows of a filter.

        Raises:
            DataError: If the file is missing or damaged.
        """
        import pyarrow.dataset as ds  # with pandas, 0.2 s

        file = self.file
        partition = pc.scalar(True)
        for name, value in file.partition.items():
            scalar = pa.scalar(value, file.schema.field(name).type)
            partition = partition & (
                pc.field(name).is_null() if value is None else pc.field(name) == scalar
            )
        with _translate_read_errors(file.path):
            fragment = ds.ParquetFileFormat().make_fragment(
                file.path, file.filesystem, partition, [self.number]
            )
            return bool(fragment.subset(where, schema=file.schema).row_groups)

    def may_have_nulls(self, column: str) -> bool:
        """Check the statistics of a column, or of the field ``bytes`` of a struct, for nulls.

        Raises:
            DataError: If the file is missing or damaged.
        """
        with _translate_read_errors(self.file.path), self.file.open() as parquet:
            stored = parquet.metadata.row_group(self.number)
            for part in map(stored.column, range(stored.num_columns)):
                if part.path_in_schema in (column, f"{column}.bytes"):
                    statistics = part.statistics if part.is_stats_set else None
                    return (
                        statistics is None
                        or not statistics.has_null_count
                        or statistics.null_count > 0
                    )
        return True

    def row_names(self, rows: npt.NDArray[np.int64]) -> list[str]:
        """Name rows by their file and number in it, from 0, deleted ones counted.

        Args:
            rows: Their numbers in the row group as it is read.
        """
        stored = np.setdiff1d(
            np.arange(self.first, self.first + self.num_stored), self.file.deleted
        )
        return [f"{self.file.path}, row {row}" for row in stored[rows].tolist()]


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A table as it was when it was opened; it can be pickled.

    Args:
        kind: Its format.
        place: The path or address from the config.
        schema: Its columns.
        version: Delta's number of this state; None for Parquet.
        fingerprint: SHA-256. Delta: the table's id, the version, and path, size and deletion vector
            of each file. Parquet: name, size and footer of each file. Neither moving nor copying
            the table changes it.
        groups: Its row groups that are not empty, in the order of their files' paths.
        state: Sizes and times of Parquet's files, which may be written over with neither size nor
            footer changed.
        class_labels: Names of the classes that the whole numbers of a column count into, as Hugging
            Face's datasets writes them into Parquet; None for a column of which the files say
            different things.
    """

    kind: str
    place: str
    schema: pa.Schema
    version: int | None
    fingerprint: str
    groups: list[RowGroup]
    state: str = ""
    class_labels: Mapping[str, tuple[str, ...] | None] = field(default_factory=dict)

    @property
    def is_local(self) -> bool:
        """Return whether forked processes may read it."""
        return not is_remote(self.place)


class _Footer(NamedTuple):
    """The end of a Parquet file; of each row group its rows and uncompressed bytes."""

    digest: bytes
    schema: pa.Schema
    groups: list[tuple[int, int]]
    class_labels: Mapping[str, tuple[str, ...]]


def open_table(
    place: str,
    *,
    format: Format = "auto",  # noqa: A002  # the config's name
    version: int | None = None,
    timestamp: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Snapshot:
    """Open a Delta table, or a folder or file of Parquet.

    Files and folders of Parquet whose names begin with ``_`` or ``.`` are left out. Folders named
    ``column=value`` give the files below them a column: of integers where all its values are, else
    of strings.

    Args:
        place: A path, or an address such as ``s3://bucket/table``.
        format: `auto` takes a folder with `_delta_log` for Delta.
        version: Delta's number of the state; default is the newest.
        timestamp: Moment (ISO 8601; UTC without a zone) of Delta's state.
        storage_options: For an object store, as deltalake takes them.

    Raises:
        ConfigError: If arguments exclude each other, or a library is missing.
        DataError: If the table, its state or a file does not exist or cannot be read, or the table
            is empty.
    """
    if version is not None and timestamp is not None:
        raise ConfigError(
            f"data.init_args.version ({version}) and data.init_args.timestamp ({timestamp}) both"
            " choose the state of the table. Leave out one of them."
        )
    options = dict(storage_options or {})
    if not is_remote(place) and not local_path(place).exists():
        raise DataError(
            f"{place}: this table does not exist (data.init_args.path, from {Path.cwd()})."
        )
    kind: str = format
    if format == "auto" or not is_remote(place):
        kind = "delta" if _has_delta_log(place, options) else "parquet"
    if format not in ("auto", kind):
        raise ConfigError(
            f"data.init_args.format: {place} is of the format {kind}, not {format}. Set it to auto."
        )
    snapshot = (open_delta if kind == "delta" else open_parquet)(place, options, version, timestamp)
    if not snapshot.groups:
        raise DataError(
            f"{place}: this table is empty. Write rows to it, or set"
            " data.init_args.path to another."
        )
    return snapshot


def is_remote(place: str) -> bool:
    """Check whether ``place`` is an address other than ``file://``."""
    scheme, colon, _ = place.partition("://")
    return bool(colon) and scheme.lower() != "file"


def local_path(place: str) -> Path:
    """Convert a path or a ``file://`` address to an absolute path."""
    is_address = place.lower().startswith("file://")
    return Path(unquote(place[len("file://") :]) if is_address else place).expanduser().absolute()


def _has_delta_log(place: str, options: Mapping[str, Any]) -> bool:
    if not is_remote(place):
        return (local_path(place) / "_delta_log").is_dir()
    filesystem, _ = _open_filesystem(place, options)
    with _translate_access_errors(place):
        return bool(filesystem.get_file_info(fs.FileSelector("_delta_log", allow_not_found=True)))


@contextmanager
def _translate_access_errors(place: str, *kinds: type[Exception]) -> Iterator[None]:
    try:
        yield
    except (OSError, *kinds) as error:  # type: ignore[misc]
        raise DataError(
            f"{place}: this is not a table, or it cannot be reached ({_first_line(error)}). Check"
            " data.init_args.path, data.init_args.format and data.init_args.storage_options."
        ) from error


def _open_filesystem(place: str, options: Mapping[str, Any]) -> tuple[fs.FileSystem, str]:
    """Open the file system of a table, and give the table's path in it.

    At an address it is the table's own folder.

    Raises:
        ConfigError: If there is no file system for the address, or options for one of this machine.
    """
    if not is_remote(place):
        if options:
            raise ConfigError(
                f"data.init_args.storage_options: {place} is on this machine, where they have no"
                " effect. Take them out, or set data.init_args.path to an address such as"
                " s3://bucket/folder."
            )
        return fs.LocalFileSystem(), str(local_path(place))
    folder, _, name = (
        place.rpartition("/") if place.lower().endswith(PARQUET_SUFFIXES) else (place, "", "")
    )
    try:
        from deltalake.fs import DeltaStorageHandler  # an extra

        texts = {key: str(value) for key, value in options.items()}
        return fs.PyFileSystem(DeltaStorageHandler(folder, texts)), name
    except Exception as error:
        raise ConfigError(
            f"data.init_args.path: no file system opens {place} ({_first_line(error)}). Expected a"
            " folder of this machine, or an address and data.init_args.storage_options as"
            " deltalake takes them (pip install 'lightkit-train[delta]')."
        ) from error


def open_parquet(
    place: str, options: Mapping[str, Any], version: int | None, timestamp: str | None
) -> Snapshot:
    """Open a folder or file of Parquet; see `open_table`."""
    if version is not None or timestamp is not None:
        raise ConfigError(
            f"data.init_args.{'timestamp' if version is None else 'version'} chooses a state of a"
            f" Delta table, but {place} is Parquet, which has only one. Leave it out, or set"
            " data.init_args.path to a Delta table."
        )
    filesystem, root = _open_filesystem(place, options)
    if not is_remote(place) and (reason := explain_other_format(local_path(place))) is not None:
        raise DataError(f"data.init_args.path: {reason}.")
    files = _find_parquet_files(place, filesystem, root)
    if not files:
        raise DataError(
            f"{place}: no Parquet files here. Set data.init_args.path to a Delta table, or to a"
            f" folder or file of Parquet ({', '.join(PARQUET_SUFFIXES)})."
        )
    infos = list(files.values())
    partitions = _read_partitions(list(files))
    footers = _read_footers(filesystem, [info.path for info in infos])
    schema = _merge_schemas(place, [footer.schema for footer in footers], partitions)
    fingerprint = hashlib.sha256()
    groups = list[RowGroup]()
    for (name, info), footer, partition in zip(files.items(), footers, partitions, strict=True):
        fingerprint.update(
            f"{name}\0{info.size}\0{footer.digest.hex()}\n".encode("utf-8", "surrogateescape")
        )
        file = DataFile(info.path, filesystem, schema, footer.digest, partition, NONE_DELETED)
        groups += _list_row_groups(file, footer)
    state = hashlib.sha256(
        repr([(info.size, info.mtime_ns) for info in infos]).encode()
    ).hexdigest()
    class_labels = _merge_class_labels([footer.class_labels for footer in footers])
    return Snapshot(
        "parquet", place, schema, None, fingerprint.hexdigest(), groups, state, class_labels
    )


def _find_parquet_files(place: str, filesystem: fs.FileSystem, root: str) -> dict[str, fs.FileInfo]:
    """Find a file, or the Parquet files in a folder and below it, by their names in it.

    Hidden ones are left out.
    """
    with _translate_access_errors(place):
        if root and filesystem.get_file_info(root).type == fs.FileType.File:
            found = filesystem.get_file_info([root])
            return {info.base_name: info for info in found}
        found = filesystem.get_file_info(
            fs.FileSelector(root, recursive=True, allow_not_found=True)
        )
    files: dict[str, fs.FileInfo] = {}
    for info in sorted(found, key=lambda info: info.path):
        name = info.path.removeprefix(root).lstrip("/")
        is_hidden = any(part[:1] in "_." for part in name.split("/"))
        if (
            info.type == fs.FileType.File
            and name.lower().endswith(PARQUET_SUFFIXES)
            and not is_hidden
        ):
            files[name] = info
    return files


def _merge_class_labels(
    of_files: Sequence[Mapping[str, tuple[str, ...]]],
) -> dict[str, tuple[str, ...] | None]:
    """Merge the names of classes of all files.

    None for a column of which they say different things.
    """
    merged: dict[str, tuple[str, ...] | None] = {}
    for column in {name for of_file in of_files for name in of_file}:
        distinct = {of_file.get(column) for of_file in of_files}
        merged[column] = distinct.pop() if len(distinct) == 1 else None
    return merged


def _read_class_labels(schema: pa.Schema) -> dict[str, tuple[str, ...]]:
    """Read the names of classes by column, as Hugging Face's datasets (5.0) writes them.

    It writes them into a Parquet file.
    """
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        return {
            name: tuple(map(str, feature["names"]))
            for name, feature in features.items()
            if isinstance(feature, dict)
            and feature.get("_type") == "ClassLabel"
            and feature.get("names")
        }
    except (KeyError, TypeError, ValueError, AttributeError):  # anybody may write anything there
        return {}


def _read_partitions(names: Sequence[str]) -> list[dict[str, Any]]:
    """Read each file's partition from the names of its folders.

    Not `pyarrow.dataset.HivePartitioning`, for which 07 and 7 are the same number.
    """
    partitions: list[dict[str, Any]] = []
    for path in names:
        pairs = [part.partition("=") for part in path.split("/")[:-1] if "=" in part.strip("=")]
        partitions.append(
            {unquote(name): None if value == _NULL else unquote(value) for name, _, value in pairs}
        )
    for name in {name for partition in partitions for name in partition}:
        values: set[Any] = {partition.setdefault(name, None) for partition in partitions} - {None}
        if all(map(_is_whole, values)):
            numbers = {None: None, **{value: int(value) for value in values}}
            for partition in partitions:
                partition[name] = numbers[partition[name]]
    return partitions


def _is_whole(text: str) -> bool:
    return text.removeprefix("-").isdecimal() and text == str(int(text))


def _merge_schemas(
    place: str, schemas: Sequence[pa.Schema], partitions: Sequence[Mapping[str, Any]]
) -> pa.Schema:
    """Merge the columns of all files.

    Integers and floats of several widths, nulls, and large variants fit together.
    """
    try:
        distinct = {id(schema): schema for schema in schemas}
        schema = pa.unify_schemas(list(distinct.values()), promote_options="permissive")
    except pa.ArrowException as error:
        raise DataError(
            f"{place}: the columns of its files do not fit together ({_first_line(error)}). Write"
            " the files again with the same types."
        ) from error
    for name in partitions[0]:
        is_number = all(isinstance(partition[name], int | None) for partition in partitions)
        at = schema.get_field_index(name)
        column = pa.field(name, pa.int64() if is_number else pa.string())
        schema = schema.append(column) if at < 0 else schema.set(at, column)
    return schema


def _read_footers(filesystem: fs.FileSystem, paths: Sequence[str]) -> list[_Footer]:
    """Read the footers of files, many at a time.

    Raises:
        DataError: If a file is missing, damaged or no Parquet file.
    """
    # one object for all files with the same, which are thousands
    schemas: dict[str, pa.Schema] = {}

    def read(path: str) -> _Footer:
        with _translate_read_errors(path):
            footer, digest = _read_footer(filesystem, path)
            metadata = pq.read_metadata(pa.BufferReader(footer))
        stored = metadata.schema.to_arrow_schema()
        schema = stored.remove_metadata()
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        sizes = [(group.num_rows, group.total_byte_size) for group in groups]
        return _Footer(
            digest, schemas.setdefault(str(schema), schema), sizes, _read_class_labels(stored)
        )

    with ThreadPoolExecutor(max_workers=max(1, min(_NUM_THREADS, len(paths)))) as pool:
        return list(pool.map(read, paths))


def _read_footer(filesystem: fs.FileSystem, path: str) -> tuple[bytes, bytes]:
    """Read the end of a Parquet file in one request; give it with the footer's SHA-256."""
    with filesystem.open_input_file(path) as file:
        size = file.size()
        tail = file.read_at(min(size, _TAIL_BYTES), max(0, size - _TAIL_BYTES))
        length = 8 + int.from_bytes(tail[-8:-4], "little")
        if len(tail) < length <= size:
            tail = file.read_at(length, size - length)
    return tail, hashlib.sha256(tail[-length:]).digest()


def _list_row_groups(file: DataFile, footer: _Footer) -> Iterator[RowGroup]:
    """List the row groups of a file that are not empty."""
    first = 0
    for number, (num_stored, size_bytes) in enumerate(footer.groups):
        start, stop = np.searchsorted(file.deleted, [first, first + num_stored])
        if num_rows := num_stored - int(stop - start):
            yield RowGroup(file, number, first, num_stored, num_rows, size_bytes)
        first += num_stored


def open_delta(
    place: str, options: Mapping[str, Any], version: int | None, timestamp: str | None
) -> Snapshot:
    """Open a Delta table; see `open_table`."""
    table = _load_delta(
        place, version, timestamp, {name: str(value) for name, value in options.items()}
    )
    if refusal := refuse_unreadable(table, place):
        raise DataError(refusal)
    deleted: Mapping[str, npt.NDArray[np.int64]] = {}
    if has_deletion_vectors(table):
        from deltalake.exceptions import DeltaError  # an extra

        with _translate_access_errors(place, DeltaError):
            deleted = read_deleted_rows(table)
    schema = pa.schema(table.schema().to_arrow()).remove_metadata()
    filesystem = _open_filesystem(place, options)[0] if is_remote(place) else fs.LocalFileSystem()
    actions = sorted(
        pa.table(table.get_add_actions()).to_pylist(), key=lambda action: action["path"]
    )
    relative = [unquote(action["path"]) for action in actions]
    paths = relative if is_remote(place) else [str(local_path(place) / path) for path in relative]
    fingerprint = hashlib.sha256(f"{table.metadata().id}\0{table.version()}\n".encode())
    groups = list[RowGroup]()
    for action, path, footer in zip(actions, paths, _read_footers(filesystem, paths), strict=True):
        rows = deleted.get(file_name(action["path"]), NONE_DELETED)
        fingerprint.update(
            f"{action['path']}\0{action['size_bytes']}\0".encode("utf-8", "surrogateescape")
        )
        fingerprint.update(rows.tobytes())
        partition = {
            name: None if value is None else pa.scalar(value).cast(schema.field(name).type).as_py()
            for name, value in (action.get("partition") or {}).items()
        }
        groups += _list_row_groups(
            DataFile(path, filesystem, schema, footer.digest, partition, rows), footer
        )
    return Snapshot("delta", place, schema, table.version(), fingerprint.hexdigest(), groups)


def _load_delta(
    place: str, version: int | None, timestamp: str | None, options: dict[str, str]
) -> DeltaTable:
    """Load the newest state, then go back to the one that the config chooses."""
    try:  # deltalake is an extra
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError
    except ImportError as error:
        raise ConfigError(
            f"data.init_args.path: {place} is a Delta table, and deltalake, which reads it, is not"
            " installed. Run `pip install 'lightkit-train[delta]'`."
        ) from error
    moment = _parse_moment(timestamp) if timestamp else None
    with _translate_access_errors(place, DeltaError, ValueError):
        table = DeltaTable(
            place if is_remote(place) else str(local_path(place)), storage_options=options or None
        )
    if moment is None and version in (None, table.version()):
        return table
    # of the newest state: the history of an older one counts wrongly (deltalake 1.6.6)
    written = {
        int(commit["version"]): commit.get("timestamp")
        for commit in table.history()
        if "version" in commit
    }
    first = min(written)
    begin = datetime.fromtimestamp(int(written[first] or 0) / 1000, UTC)
    with suppress(DeltaError, OSError, ValueError, OverflowError):
        # before its first state, deltalake (1.6.6) gives that state without an error
        if moment is None or moment >= begin:
            table.load_as_version(moment or version or 0)
            return table
    found = (
        f"version {first} ({begin.isoformat(timespec='milliseconds')}) to version {max(written)}"
    )
    asked = f"state of data.init_args.timestamp {timestamp}" if moment else f"version {version}"
    raise DataError(f"{place}: this Delta table has no {asked}; it has {found}.")


def _parse_moment(text: str) -> datetime:
    """Parse the moment whose state of a table is read; in UTC without a zone.

    Raises:
        ConfigError: If it is none.
    """
    try:
        moment = datetime.fromisoformat(text.strip().upper())
    except ValueError as error:
        raise ConfigError(
            "data.init_args.timestamp: expected a moment such as 2026-01-31T12:00:00Z (ISO 8601),"
            f" got {text!r}"
        ) from error
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0].rstrip(".")
