"""A Delta table or a folder of Parquet at one moment: its files, and the row groups in which they are read."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timezone
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

if TYPE_CHECKING:
    from deltalake import DeltaTable


Format = Literal["auto", "delta", "parquet"]

_SUFFIXES = (".parquet", ".parq", ".pq")
_BUFFER_BYTES = 1 << 20  # of each column, of which a page at a time is decoded
_TAIL_BYTES = 1 << 16  # holds the footer of most files, so that a remote one costs one request
_NUM_THREADS = 32  # they wait for the disk or the network
_NULL = "__HIVE_DEFAULT_PARTITION__"
_S3_ARGUMENTS = {
    "access_key_id": "access_key",
    "secret_access_key": "secret_key",
    "default_region": "region",
    "endpoint_url": "endpoint_override",
    "endpoint": "endpoint_override",
}
"""deltalake's options as arguments of `pyarrow.fs.S3FileSystem`: one set of options reaches both kinds of tables."""
_FILE_SYSTEMS = {
    "s3": "S3FileSystem", "s3a": "S3FileSystem", "gs": "GcsFileSystem", "gcs": "GcsFileSystem",
    "abfs": "AzureFileSystem", "abfss": "AzureFileSystem", "hdfs": "HadoopFileSystem",
}  # fmt: skip
_DELTA_FEATURES = frozenset({
    "deletionVectors", "timestampNtz", "typeWidening", "typeWidening-preview", "v2Checkpoint", "vacuumProtocolCheck",
})  # fmt: skip
"""Reader features of Delta that need no more than what is done here, or than a cast to the table's types."""


@dataclass(frozen=True, eq=False, slots=True)
class DataFile:
    """One Parquet file of a table.

    Args:
        path: In its file system.
        filesystem: Where it is; it can be pickled.
        schema: The table's; the file may lack some of its columns.
        digest: SHA-256 of the footer when the table was opened.
        partition: Values of the columns that the folder or the Delta log names, and that are not in the file.
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
            DataError: If it is missing, damaged, or not the file that the table was opened with.
        """
        try:
            footer, digest, _ = _read_footer(self.filesystem, self.path)
            if digest == self.digest:
                # neither mapped nor read ahead: either would have a whole row group in memory
                return pq.ParquetFile(
                    self.filesystem.open_input_file(self.path),
                    metadata=pq.read_metadata(pa.BufferReader(footer)),
                    memory_map=False, buffer_size=_BUFFER_BYTES, pre_buffer=False,
                )  # fmt: skip
        except (OSError, pa.ArrowException) as error:
            raise self.unreadable(error) from error
        raise DataError(
            f"{self.path}: this file of the table was replaced or written over after the table was opened. Start "
            "again, and leave the table alone while it is read; a version of a Delta table stays."
        )

    def unreadable(self, error: Exception) -> DataError:
        """Make the error for a file that cannot be read."""
        if isinstance(error, FileNotFoundError):
            return DataError(f"{self.path}: this file of the table is gone. Restore it, or start again.")
        return DataError(
            f"{self.path}: this Parquet file cannot be read ({_first_line(error)}). It is damaged, or was cut short: "
            "write it again, or take it out of the table."
        )


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

        Columns of the partition and columns that were added after the file are filled in; deleted rows are left out.

        Args:
            columns: Columns of the table, in the wanted order.
            batch_rows: Most rows of a record batch.

        Raises:
            DataError: If the file is missing or damaged.
        """
        file, at = self.file, self.first
        schema = pa.schema([file.schema.field(name) for name in columns])
        with file.open() as parquet:
            inside = [name for name in columns if name in parquet.schema_arrow.names and name not in file.partition]
            try:
                for part in parquet.iter_batches(batch_rows, [self.number], columns=inside, use_threads=False):
                    batch = pa.RecordBatch.from_arrays([self._column(part, field) for field in schema], schema=schema)
                    if len(file.deleted):
                        batch = batch.filter(pa.array(~np.isin(np.arange(at, at + part.num_rows), file.deleted)))
                    yield batch
                    at += part.num_rows
            except (OSError, pa.ArrowException) as error:
                raise file.unreadable(error) from error

    def may_match(self, where: pc.Expression) -> bool:
        """Check the file's partition and the row group's statistics for rows of a filter.

        Raises:
            DataError: If the file is missing or damaged.
        """
        import pyarrow.dataset as ds  # with pandas, 0.2 s

        file, partition = self.file, pc.scalar(True)
        for name, value in file.partition.items():
            is_null = pc.field(name).is_null()
            scalar = pa.scalar(value, file.schema.field(name).type)
            partition = partition & (is_null if value is None else pc.field(name) == scalar)
        try:
            fragment = ds.ParquetFileFormat().make_fragment(file.path, file.filesystem, partition, [self.number])
            return bool(fragment.subset(where, schema=file.schema).row_groups)
        except (OSError, pa.ArrowException) as error:
            raise file.unreadable(error) from error

    def row_names(self, rows: npt.NDArray[np.int64]) -> list[str]:
        """Name rows by their file and number in it, from 0, deleted ones counted.

        Args:
            rows: Their numbers in the row group as it is read.
        """
        if len(self.file.deleted):
            rows = np.setdiff1d(np.arange(self.first, self.first + self.num_stored), self.file.deleted)[rows]
        else:
            rows = rows + self.first
        return [f"{self.file.path}, row {row}" for row in rows.tolist()]

    def _column(self, stored: pa.RecordBatch, field: pa.Field) -> pa.Array:
        if field.name in self.file.partition:
            return pa.repeat(pa.scalar(self.file.partition[field.name], field.type), stored.num_rows)
        if field.name not in stored.schema.names:
            return pa.nulls(stored.num_rows, field.type)
        column = stored.column(field.name)
        return column if column.type == field.type else column.cast(field.type)


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A table as it was when it was opened; it can be pickled.

    Args:
        kind: Its format.
        place: The path or address from the config.
        schema: Its columns.
        version: Delta's number of this state; None for Parquet.
        fingerprint: SHA-256. Delta: the table's id, the version, and path, size and deletion vector of each file.
            Parquet: name, size and footer of each file. Neither moving nor copying the table changes it.
        state: Sizes and times of Parquet's files, which may be written over with neither size nor footer changed.
        groups: Its row groups, in the order of their files' paths.
    """

    kind: Literal["delta", "parquet"]
    place: str
    schema: pa.Schema
    version: int | None
    fingerprint: str
    state: str = ""
    groups: list[RowGroup] = field(default_factory=list)

    @property
    def num_rows(self) -> int:
        """Rows of all row groups."""
        return sum(group.num_rows for group in self.groups)

    @property
    def is_local(self) -> bool:
        """Whether forked processes may read it."""
        return not is_remote(self.place)

    def add_file(self, file: DataFile, footer: _Footer) -> None:
        """Add the row groups of a file that are not empty."""
        first = 0
        for number, (num_stored, size_bytes) in enumerate(footer.groups):
            start, stop = np.searchsorted(file.deleted, [first, first + num_stored])
            if num_rows := num_stored - int(stop - start):
                self.groups.append(RowGroup(file, number, first, num_stored, num_rows, size_bytes))
            first += num_stored


class _Footer(NamedTuple):
    """The end of a Parquet file; of each row group its rows and uncompressed bytes."""

    size_bytes: int
    digest: bytes
    schema: pa.Schema
    groups: list[tuple[int, int]]


def open_table(
    place: str,
    *,
    format: Format = "auto",  # noqa: A002  # the config's name
    version: int | None = None,
    timestamp: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Snapshot:
    """Open a Delta table, or a folder or file of Parquet.

    Files and folders of Parquet whose names begin with ``_`` or ``.`` are left out. Folders named ``column=value`` give
    the files below them a column: of integers where all its values are, else of strings.

    Args:
        place: A path, or an address such as ``s3://bucket/table``.
        format: `auto` takes a folder with `_delta_log` for Delta.
        version: Delta's number of the state; default is the newest.
        timestamp: Moment (ISO 8601; UTC without a zone) of Delta's state.
        storage_options: For an object store: deltalake's, or for Parquet the arguments of the class in `pyarrow.fs`.

    Raises:
        ConfigError: If arguments exclude each other, or a library is missing.
        DataError: If the table, its state or a file does not exist or cannot be read, or the table is empty.
    """
    if version is not None and timestamp is not None:
        raise ConfigError(
            f"data.init_args.version ({version}) and data.init_args.timestamp ({timestamp}) both choose the state of "
            "the table. Leave out one of them."
        )
    options = dict(storage_options or {})
    if not is_remote(place) and not local_path(place).exists():
        raise DataError(f"{place}: this table does not exist (data.init_args.path, from {Path.cwd()}).")
    has_log = _has_delta_log(place, options)
    if format == "delta" or (format == "auto" and has_log):
        snapshot = _open_delta(place, version, timestamp, {name: str(value) for name, value in options.items()})
    elif has_log and not is_remote(place):
        raise ConfigError(
            f"data.init_args.format: {place} is a Delta table, whose old files would be read as well as Parquet. Set "
            "it to auto or delta."
        )
    elif version is not None or timestamp is not None:
        raise ConfigError(
            f"data.init_args.{'timestamp' if version is None else 'version'} chooses a state of a Delta table, but "
            f"{place} is Parquet, which has only one. Leave it out, or set data.init_args.path to a Delta table."
        )
    else:
        snapshot = _open_parquet(place, options)
    if not snapshot.num_rows:
        state = "" if snapshot.version is None else f" in version {snapshot.version}"
        raise DataError(
            f"{place}: this table is empty{state}. Write rows to it, or set data.init_args.path to another."
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
    try:
        filesystem, root = _filesystem(place, options)
        return bool(filesystem.get_file_info(fs.FileSelector(f"{root}/_delta_log", allow_not_found=True)))
    except ConfigError:  # an address that pyarrow does not know can only be deltalake's
        return True
    except OSError as error:
        raise _unreachable(place, error) from error


def _filesystem(place: str, options: Mapping[str, Any]) -> tuple[fs.FileSystem, str]:
    """Open the file system of a table of Parquet, and give the table's path in it.

    Raises:
        ConfigError: If pyarrow has no file system for the address, or refuses the options.
    """
    if not is_remote(place):
        if options:
            raise ConfigError(
                f"data.init_args.storage_options: {place} is on this machine, where they have no effect. Take them "
                "out, or set data.init_args.path to an address such as s3://bucket/folder."
            )
        return fs.LocalFileSystem(), str(local_path(place))
    scheme, _, path = place.partition("://")
    name = _FILE_SYSTEMS.get(scheme.lower(), "")
    if not hasattr(fs, name):
        known = ", ".join(f"{known}://" for known, name in _FILE_SYSTEMS.items() if hasattr(fs, name))
        raise ConfigError(
            f"data.init_args.path: no file system is known for {scheme}:// ({place}). Expected a folder of this "
            f"machine, file:// or one of {known}."
        )
    given = dict(options)
    if name == "S3FileSystem":
        plain = {key.lower().removeprefix("aws_"): value for key, value in options.items()}
        allow_http = str(plain.pop("allow_http", "")).lower() == "true"
        given = {"scheme": "http"} if allow_http else {}
        given |= {_S3_ARGUMENTS.get(key, key): value for key, value in plain.items()}
        endpoint_scheme, colon, host = str(given.get("endpoint_override", "")).partition("://")
        if colon:  # pyarrow reads the scheme from an argument of its own in older versions
            given |= {"scheme": endpoint_scheme, "endpoint_override": host}
    try:
        return getattr(fs, name)(**given), path.rstrip("/")
    except (TypeError, ValueError, OSError) as error:
        raise ConfigError(
            f"data.init_args.storage_options: {', '.join(given) or 'none'} are not what pyarrow.fs.{name} takes "
            f"({error}). Expected its arguments by name."
        ) from error


def _open_parquet(place: str, options: Mapping[str, Any]) -> Snapshot:
    filesystem, root = _filesystem(place, options)
    try:
        info = filesystem.get_file_info(root)
        selector = fs.FileSelector(root, recursive=True, allow_not_found=True)
        found = [info] if info.type == fs.FileType.File else filesystem.get_file_info(selector)
    except OSError as error:
        raise _unreachable(place, error) from error
    files: dict[str, fs.FileInfo] = {}  # by their names below the folder
    for info in sorted(found, key=lambda info: info.path):
        name = info.path.removeprefix(root).lstrip("/") or info.base_name
        is_visible = info.path == root or not any(part[:1] in "_." for part in name.split("/"))
        if info.type == fs.FileType.File and is_visible and (info.path == root or name.lower().endswith(_SUFFIXES)):
            files[name] = info
    if not files:
        raise DataError(
            f"{place}: no Parquet files here. Set data.init_args.path to a Delta table, or to a folder or file of "
            f"Parquet ({', '.join(_SUFFIXES)})."
        )
    paths = [info.path for info in files.values()]
    missing = "{path}: this file disappeared while the table was opened. Start again when nobody writes to it."
    footers = _read_footers(filesystem, paths, missing=missing)
    partitions = _folder_partitions(files)
    schema = _common_schema(paths, footers, partitions)
    fingerprint, state = hashlib.sha256(), repr([(info.size, info.mtime_ns) for info in files.values()])
    for name, footer in zip(files, footers, strict=True):
        line = f"{name}\0{footer.size_bytes}\0{footer.digest.hex()}\n"
        fingerprint.update(line.encode("utf-8", "surrogateescape"))
    digest = hashlib.sha256(state.encode()).hexdigest()
    snapshot = Snapshot("parquet", place, schema, None, fingerprint.hexdigest(), digest)
    none_deleted = np.empty(0, np.int64)
    for path, footer, partition in zip(paths, footers, partitions, strict=True):
        snapshot.add_file(DataFile(path, filesystem, schema, footer.digest, partition, none_deleted), footer)
    return snapshot


def _folder_partitions(names: Iterable[str]) -> list[dict[str, Any]]:
    """Read each file's partition from the names of its folders.

    Not `pyarrow.dataset.HivePartitioning`, for which 07 and 7 are the same number.
    """
    partitions: list[dict[str, Any]] = []
    for path in names:
        pairs = [part.partition("=") for part in path.split("/")[:-1] if "=" in part.strip("=")]
        partitions.append({unquote(name): None if value == _NULL else unquote(value) for name, _, value in pairs})
    for name in {name for partition in partitions for name in partition}:
        values: set[Any] = {partition.setdefault(name, None) for partition in partitions} - {None}
        if all(value.removeprefix("-").isdecimal() and value == str(int(value)) for value in values):
            for partition in partitions:
                partition[name] = None if partition[name] is None else int(partition[name])
    return partitions


def _common_schema(
    paths: Sequence[str], footers: Sequence[_Footer], partitions: Sequence[Mapping[str, Any]]
) -> pa.Schema:
    """Merge the columns of all files; integers and floats of several widths, nulls, and large variants fit together."""
    schema = seen = footers[0].schema
    for path, footer in zip(paths, footers, strict=True):
        if footer.schema is seen:  # as in most tables
            continue
        seen = footer.schema
        try:
            schema = pa.unify_schemas([schema, seen], promote_options="permissive")
        except pa.ArrowException as error:
            raise DataError(
                f"{path}: the columns of this file do not fit those of the files before it, from {paths[0]} on "
                f"({_first_line(error)}). Write the files again with the same types."
            ) from error
    for name in partitions[0]:
        is_number = all(isinstance(partition[name], int | None) for partition in partitions)
        place, column = schema.get_field_index(name), pa.field(name, pa.int64() if is_number else pa.string())
        schema = schema.append(column) if place < 0 else schema.set(place, column)
    return schema


def _read_footers(filesystem: fs.FileSystem, paths: Sequence[str], *, missing: str) -> list[_Footer]:
    """Read the footers of files, many at a time.

    Args:
        filesystem: Where they are.
        paths: In the file system.
        missing: Error for a file that is not there; ``{path}`` stands for its path.

    Raises:
        DataError: If a file is missing, damaged or no Parquet file.
    """
    schemas: dict[str, pa.Schema] = {}  # one object for all files with the same, which are thousands

    def read(path: str) -> _Footer:
        try:
            footer, digest, size_bytes = _read_footer(filesystem, path)
            metadata = pq.read_metadata(pa.BufferReader(footer))
        except FileNotFoundError as error:
            raise DataError(missing.format(path=path)) from error
        except (OSError, pa.ArrowException) as error:
            raise DataError(
                f"{path}: this is no Parquet file, or one that is damaged or was cut short ({_first_line(error)}): "
                "write it again, or take it out of the table."
            ) from error
        schema = metadata.schema.to_arrow_schema().remove_metadata()
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        sizes = [(group.num_rows, group.total_byte_size) for group in groups]
        return _Footer(size_bytes, digest, schemas.setdefault(str(schema), schema), sizes)

    with ThreadPoolExecutor(max_workers=max(1, min(_NUM_THREADS, len(paths)))) as pool:
        return list(pool.map(read, paths))


def _read_footer(filesystem: fs.FileSystem, path: str) -> tuple[bytes, bytes, int]:
    """Read the end of a Parquet file in one request; give it with the footer's SHA-256 and the file's size."""
    with filesystem.open_input_file(path) as file:
        size = file.size()
        tail = file.read_at(min(size, _TAIL_BYTES), max(0, size - _TAIL_BYTES))
        length = 8 + int.from_bytes(tail[-8:-4], "little")
        if len(tail) < length <= size:
            tail = file.read_at(length, size - length)
    return tail, hashlib.sha256(tail[-length:]).digest(), size


def _open_delta(place: str, version: int | None, timestamp: str | None, options: dict[str, str]) -> Snapshot:
    table = _load_delta(place, version, timestamp, options)
    needed = set(table.protocol().reader_features or []) - {"columnMapping"}  # allowed, but perhaps not used
    if table.metadata().configuration.get("delta.columnMapping.mode", "none") != "none":
        needed.add("columnMapping")
    if unknown := sorted(needed - _DELTA_FEATURES):
        raise DataError(
            f"{place}: this Delta table uses {', '.join(unknown)}, which lightkit cannot read. Copy it to a table "
            "without, in the engine that wrote it (in Spark: `CREATE TABLE ... AS SELECT`)."
        )
    deleted = _deleted_rows(table, place) if "deletionVectors" in needed else {}
    schema = pa.schema(table.schema().to_arrow()).remove_metadata()
    filesystem: fs.FileSystem = fs.LocalFileSystem()
    if is_remote(place):  # deltalake is an extra, and its runtime does not survive a fork
        from deltalake.fs import DeltaStorageHandler

        filesystem = fs.PyFileSystem(DeltaStorageHandler(place, options))
    actions = sorted(pa.table(table.get_add_actions()).to_pylist(), key=lambda action: action["path"])
    if elsewhere := [action["path"] for action in actions if ":/" in action["path"]]:
        raise DataError(
            f"{place}: this Delta table has files at other addresses ({elsewhere[0]}), as shallow clones do, which "
            "lightkit cannot read. Make a deep clone."
        )
    relative = [unquote(action["path"]) for action in actions]
    paths = relative if is_remote(place) else [str(local_path(place) / path) for path in relative]
    missing = (
        f"{{path}}: version {table.version()} of the Delta table {place} lists this file, but it is gone; perhaps it "
        "was vacuumed. Restore it, or set data.init_args.version to a newer one."
    )
    footers = _read_footers(filesystem, paths, missing=missing)
    fingerprint, none_deleted = hashlib.sha256(f"{table.metadata().id}\0{table.version()}\n".encode()), np.empty(0, int)
    files: list[DataFile] = []
    for action, path, footer in zip(actions, paths, footers, strict=True):
        if action["size_bytes"] != footer.size_bytes:
            raise DataError(
                f"{path}: this file has {footer.size_bytes} bytes, but the Delta log says {action['size_bytes']}. It "
                "was cut short or changed: restore it."
            )
        partition = {
            name: None if value is None else pa.scalar(value).cast(schema.field(name).type).as_py()
            for name, value in (action.get("partition") or {}).items()
        }
        rows = deleted.get(_delta_name(action["path"]), none_deleted)
        files.append(DataFile(path, filesystem, schema, footer.digest, partition, rows))
        fingerprint.update(f"{action['path']}\0{action['size_bytes']}\0".encode("utf-8", "surrogateescape"))
        fingerprint.update(rows.tobytes())
    snapshot = Snapshot("delta", place, schema, table.version(), fingerprint.hexdigest())
    for file, footer in zip(files, footers, strict=True):
        snapshot.add_file(file, footer)
    return snapshot


def _load_delta(place: str, version: int | None, timestamp: str | None, options: dict[str, str]) -> DeltaTable:
    """Load the newest state, then go back to the one that the config chooses."""
    try:  # deltalake is an extra
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError
    except ImportError as error:
        raise ConfigError(
            f"data.init_args.path: {place} is a Delta table, and deltalake, which reads it, is not installed. Run "
            "`pip install 'lightkit[delta]'`."
        ) from error
    try:
        moment = timestamp and datetime.fromisoformat(timestamp.strip().upper().replace("Z", "+00:00"))
    except ValueError as error:
        raise ConfigError(
            f"data.init_args.timestamp: expected a moment such as 2026-01-31T12:00:00Z (ISO 8601), got {timestamp!r}"
        ) from error
    if isinstance(moment, datetime) and moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)
    try:
        table = DeltaTable(place if is_remote(place) else str(local_path(place)), storage_options=options or None)
    except (DeltaError, OSError, ValueError) as error:
        raise _unreachable(place, error) from error
    if not moment and version in (None, table.version()):
        return table
    # of the newest state: the history of an older one counts wrongly (deltalake 1.6.6)
    written = {int(commit["version"]): commit.get("timestamp") for commit in table.history() if "version" in commit}
    first = min(written)
    begin = datetime.fromtimestamp(int(written[first] or 0) / 1000, timezone.utc)
    found = f"version {first} ({begin.isoformat(timespec='milliseconds')}) to version {max(written)}"
    asked = f"state of data.init_args.timestamp {timestamp}" if moment else f"version {version}"
    try:
        # before its first state, deltalake (1.6.6) gives that state without an error
        if not isinstance(moment, datetime) or moment >= begin:
            table.load_as_version(moment or version or 0)
            return table
    except (DeltaError, OSError, ValueError, OverflowError):
        pass
    raise DataError(f"{place}: this Delta table has no {asked}; it has {found}.")


def _unreachable(place: str, error: Exception) -> DataError:
    return DataError(
        f"{place}: this is no table, or it cannot be reached ({_first_line(error)}). Check data.init_args.path, "
        "data.init_args.format and data.init_args.storage_options."
    )


def _delta_name(address: str) -> str:
    """Give a file's own name, a UUID, which is the same in each way of writing its folder."""
    return unquote(unquote(address)).rsplit("/", 1)[-1]


def _deleted_rows(table: DeltaTable, place: str) -> dict[str, npt.NDArray[np.int64]]:
    """Read the deletion vectors: numbers of the deleted rows by the file's name."""
    from deltalake.exceptions import DeltaError  # an extra

    try:
        vectors = pa.RecordBatchReader.from_stream(table.deletion_vectors()).read_all()
    except (DeltaError, OSError) as error:
        raise DataError(
            f"{place}: the deletion vectors of this Delta table cannot be read ({_first_line(error)}), so the rows "
            "that count are unknown. Restore the file, or purge them in the engine that wrote them."
        ) from error
    return {
        _delta_name(address.as_py()): np.flatnonzero(~kept.values.to_numpy(zero_copy_only=False)).astype(np.int64)
        for batch in vectors.to_batches()
        for address, kept in zip(batch.column("filepath"), batch.column("selection_vector"), strict=True)
    }


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0].rstrip(".")
