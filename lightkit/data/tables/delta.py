"""Opening a Delta table at one of its versions."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lightkit.data.tables.footers import footers_of
from lightkit.data.tables.parquet import local_path, row_groups_of
from lightkit.data.tables.snapshot import DataFile, Snapshot
from lightkit.data.tables.stores import Store, is_remote
from lightkit.errors import ConfigError, DataError

if TYPE_CHECKING:
    from deltalake import DeltaTable

__all__ = ["open_delta"]

# Features of a table whose reader needs no more than what is done here, or than a cast to the table's types.
_FEATURES = frozenset({
    "deletionVectors", "timestampNtz", "typeWidening", "typeWidening-preview", "v2Checkpoint", "vacuumProtocolCheck",
})  # fmt: skip
_REMEDY = {
    "columnMapping": "Copy it to a table without (in Spark: `CREATE TABLE ... AS SELECT`, with "
    "delta.columnMapping.mode left at none)",
    "deletionVectors": "Update deltalake, or purge them (in Spark: `REORG TABLE ... APPLY (PURGE)`, then `ALTER TABLE "
    "... DROP FEATURE deletionVectors`)",
}
_NUM_SHOWN = 3


def open_delta(
    place: str, *, version: int | None, timestamp: str | None, storage_options: Mapping[str, Any]
) -> Snapshot:
    """Open a Delta table; its version is read once, and stays.

    Rows that deletion vectors take out are not read. Columns that were added later are null in older files.

    Args:
        place: A folder with a `_delta_log`, or the address of one.
        version: Number of the state; default is the newest.
        timestamp: Moment (ISO 8601) of the state.
        storage_options: deltalake's, for an object store.

    Raises:
        ConfigError: If deltalake is missing, or the timestamp is none.
        DataError: If it is no Delta table, has no such state, needs what nobody here can read, or lacks a file.
    """
    options = {name: str(value) for name, value in storage_options.items()}
    table = _loaded(place, options, version, timestamp)
    _check_features(table, place)
    actions = pa.table(table.get_add_actions()).to_pylist()
    actions.sort(key=lambda action: action["path"])
    store = Store("delta", place, tuple(sorted(options.items()))) if is_remote(place) else Store()
    paths = [_path_of(action["path"], place) for action in actions]
    schema = pa.schema(table.schema().to_arrow()).remove_metadata()
    deleted = _deleted_rows(table, place)
    missing = (
        f"{{path}}: version {table.version()} of the Delta table {place} lists this file, but it is gone; perhaps it "
        "was vacuumed. Restore it, or set data.init_args.version to a newer one."
    )
    footers = footers_of(store, paths, missing=missing)
    fragments = []
    for action, path, footer in zip(actions, paths, footers, strict=True):
        _check_size(path, action["size_bytes"], footer.size_bytes)
        partition = _partition_of(action, schema, path)
        file = DataFile(path, store, schema, partition, deleted.get(_name_of(action["path"])))
        fragments += row_groups_of(file, footer)
    return Snapshot("delta", place, schema, table.version(), _fingerprint(table, actions, deleted), fragments)


def _loaded(place: str, options: dict[str, str], version: int | None, timestamp: str | None) -> DeltaTable:
    """Load the newest state, then go back to the one that is asked for."""
    try:  # deltalake is an extra
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError
    except ImportError as error:
        raise ConfigError(
            f"data.init_args.path: {place} is a Delta table, and deltalake, which reads it, is not installed. Run "
            "`pip install 'lightkit[delta]'`."
        ) from error
    moment = None if timestamp is None else _moment(timestamp)
    try:
        table = DeltaTable(place if is_remote(place) else str(local_path(place)), storage_options=options or None)
    except (DeltaError, OSError, ValueError) as error:
        raise DataError(
            f"{place}: this is no Delta table, or it cannot be reached ({_first_line(error)}). Check "
            "data.init_args.path, data.init_args.format and data.init_args.storage_options."
        ) from error
    try:
        if moment is not None:
            table.load_as_version(moment)
        elif version is not None and version != table.version():
            table.load_as_version(version)
    except (DeltaError, OSError, ValueError) as error:
        asked = f"version {version}" if moment is None else f"state of {timestamp}"
        raise DataError(f"{place}: this Delta table has no {asked}; it has {_versions(place, options)}.") from error
    if moment is not None:
        _refuse_before_first(table, moment, place, options)
    return table


def _moment(timestamp: str) -> datetime:
    try:
        moment = datetime.fromisoformat(timestamp.strip().replace("Z", "+00:00").replace("z", "+00:00"))
    except ValueError as error:
        raise ConfigError(
            f"data.init_args.timestamp: expected a moment such as 2026-01-31T12:00:00Z (ISO 8601), got {timestamp!r}"
        ) from error
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=timezone.utc)
    if moment > datetime.now(timezone.utc):
        raise ConfigError(
            f"data.init_args.timestamp: {timestamp} is in the future, so the table may still change before it. Leave "
            "it out to read the newest state, which the run notes."
        )
    return moment


def _refuse_before_first(table: DeltaTable, moment: datetime, place: str, options: dict[str, str]) -> None:
    """Refuse a moment before the first state, for which deltalake (1.6.6) gives that state without a word."""
    if table.version() > 0:
        return
    written = next((commit.get("timestamp") for commit in _history(place, options) if commit.get("version") == 0), None)
    if written is not None and moment.timestamp() * 1000 < int(written):
        first = datetime.fromtimestamp(int(written) / 1000, timezone.utc).isoformat(timespec="milliseconds")
        raise DataError(
            f"{place}: this Delta table begins at {first}, after data.init_args.timestamp ({moment.isoformat()}). "
            "Set a later one."
        )


def _history(place: str, options: dict[str, str]) -> list[dict[str, Any]]:
    """List the commits, from the newest state: that of an older one counts wrongly (deltalake 1.6.6)."""
    from deltalake import DeltaTable  # loaded already by whoever needs this

    table = DeltaTable(place if is_remote(place) else str(local_path(place)), storage_options=options or None)
    commits: list[dict[str, Any]] = table.history()
    return commits


def _versions(place: str, options: dict[str, str]) -> str:
    """Name the states that there are."""
    history = _history(place, options)
    numbers = sorted(int(commit["version"]) for commit in history if commit.get("version") is not None)
    if not numbers:
        return "none that its log still lists"
    return f"version {numbers[0]} only" if len(numbers) == 1 else f"versions {numbers[0]} to {numbers[-1]}"


def _check_features(table: DeltaTable, place: str) -> None:
    needed = set(table.protocol().reader_features or [])
    if table.metadata().configuration.get("delta.columnMapping.mode", "none") != "none":
        needed.add("columnMapping")
    else:
        needed.discard("columnMapping")  # allowed, but not used: files have the table's names
    unknown = sorted(needed - _FEATURES)
    if "deletionVectors" in needed and not hasattr(table, "deletion_vectors"):  # deltalake before 1.5
        unknown.append("deletionVectors")
    if unknown:
        remedies = [_REMEDY[feature] for feature in unknown if feature in _REMEDY]
        raise DataError(
            f"{place}: this Delta table uses {', '.join(unknown)}, which lightkit cannot read. "
            f"{'; '.join(remedies) or 'Copy it to a table without, in the engine that wrote it'}."
        )


def _path_of(listed: str, place: str) -> str:
    """Give the path of a file in the store; the log has it as part of an address."""
    if listed.startswith("file:"):  # of a clone, which has its files elsewhere
        return str(local_path("file://" + listed.removeprefix("file:").removeprefix("//")))
    if "://" in listed:
        raise DataError(
            f"{place}: this Delta table has files at other addresses ({listed}), as shallow clones do, which lightkit "
            "cannot read. Make a deep clone."
        )
    return unquote(listed) if is_remote(place) else str(local_path(place) / unquote(listed))


def _name_of(address: str) -> str:
    """A file's own name, which is a UUID, so that it can be found again whatever way its folder is written."""
    return unquote(unquote(address)).rsplit("/", 1)[-1]


def _deleted_rows(table: DeltaTable, place: str) -> dict[str, npt.NDArray[np.int64]]:
    """Numbers of the rows that are deleted in each file, by the file's name."""
    if "deletionVectors" not in (table.protocol().reader_features or []):
        return {}
    from deltalake.exceptions import DeltaError  # loaded already by whoever needs this

    try:
        found = pa.RecordBatchReader.from_stream(table.deletion_vectors()).read_all()
    except (DeltaError, OSError) as error:
        raise DataError(
            f"{place}: the deletion vectors of this Delta table cannot be read ({_first_line(error)}), so nobody "
            "knows which rows count. Restore the file, or purge them in the engine that wrote them."
        ) from error
    deleted: dict[str, npt.NDArray[np.int64]] = {}
    for batch in found.to_batches():
        for address, kept in zip(batch.column("filepath"), batch.column("selection_vector"), strict=True):
            name = _name_of(address.as_py())
            if name in deleted:  # names are UUIDs in practice; a wrong row would not be noticed later
                raise DataError(f"{place}: two files of this Delta table are called {name}. Rewrite it (OPTIMIZE).")
            deleted[name] = np.flatnonzero(~kept.values.to_numpy(zero_copy_only=False)).astype(np.int64)
    return deleted


def _partition_of(action: Mapping[str, Any], schema: pa.Schema, path: str) -> dict[str, Any]:
    values: Mapping[str, Any] = action.get("partition") or {}
    try:
        return {
            name: None if value is None else pa.scalar(value).cast(schema.field(name).type).as_py()
            for name, value in values.items()
        }
    except (pa.ArrowException, KeyError) as error:
        raise DataError(f"{path}: the Delta log's partition values {dict(values)} do not fit its schema.") from error


def _check_size(path: str, listed: int, found: int) -> None:
    if listed != found:
        raise DataError(
            f"{path}: this file has {found} bytes, but the Delta log says {listed}. It was cut short or changed: "
            "restore it."
        )


def _fingerprint(
    table: DeltaTable, actions: Sequence[Mapping[str, Any]], deleted: Mapping[str, npt.NDArray[np.int64]]
) -> str:
    digest = hashlib.sha256(f"{table.metadata().id}\0{table.version()}\n".encode())
    for action in actions:
        digest.update(f"{action['path']}\0{action['size_bytes']}\0".encode("utf-8", "surrogateescape"))
        digest.update(deleted.get(_name_of(action["path"]), np.empty(0, np.int64)).tobytes())
    return digest.hexdigest()


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0].rstrip(".")
