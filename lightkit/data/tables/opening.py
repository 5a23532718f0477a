"""Opening a table of either format."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

from pyarrow import fs

from lightkit.data.tables.delta import open_delta
from lightkit.data.tables.parquet import local_path, open_parquet
from lightkit.data.tables.snapshot import Snapshot
from lightkit.data.tables.stores import Store, is_remote, parquet_store
from lightkit.errors import ConfigError, DataError

__all__ = ["Format", "open_table"]

Format = Literal["auto", "delta", "parquet"]

_LOG = "_delta_log"
_NUM_SHOWN = 5


def open_table(
    place: str,
    *,
    format: Format = "auto",  # noqa: A002  # the user's word for it, in their YAML
    version: int | None = None,
    timestamp: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Snapshot:
    """Open a Delta table, or a folder or file of Parquet, as it is now or was once.

    Args:
        place: A path of this machine, or an address such as ``s3://bucket/table``.
        format: `auto` takes for Delta what has a folder `_delta_log`.
        version: Delta's number of the state to read; default is the newest.
        timestamp: Moment (ISO 8601; UTC where no zone is said) whose state of the Delta table is read.
        storage_options: For an object store. For Delta as `deltalake` takes them; for Parquet the arguments of the
            class in `pyarrow.fs`, or for S3 deltalake's.

    Raises:
        ConfigError: If arguments exclude each other, or a library is missing.
        DataError: If there is no such table, state or file, or the table is empty.
    """
    _check_pins(version, timestamp)
    options = dict(storage_options or {})
    if not is_remote(place):
        _refuse_missing(place)
    chosen = format if format != "auto" else "delta" if _has_log(place, options) else "parquet"
    if chosen == "delta":
        snapshot = open_delta(place, version=version, timestamp=timestamp, storage_options=options)
    else:
        _refuse_delta(place, version, timestamp)
        snapshot = open_parquet(place, options)
    if not snapshot.num_rows:
        state = "" if snapshot.version is None else f" in version {snapshot.version}"
        raise DataError(
            f"{place}: this table is empty{state}. Write rows to it, or set data.init_args.path to another."
        )
    return snapshot


def _check_pins(version: int | None, timestamp: str | None) -> None:
    if version is not None and timestamp is not None:
        raise ConfigError(
            f"data.init_args.version ({version}) and data.init_args.timestamp ({timestamp}) both choose the state of "
            "the table. Leave out one of them."
        )
    if version is not None and version < 0:
        raise ConfigError(f"data.init_args.version: expected 0 or more, got {version}")


def _has_log(place: str, options: Mapping[str, Any]) -> bool:
    if not is_remote(place):
        return (local_path(place) / _LOG).is_dir()
    # asked of pyarrow, which is always there; an address that it does not know can only be deltalake's
    try:
        store, root = parquet_store(place, options)
    except ConfigError:
        return True
    return _remote_log(store, root)


def _remote_log(store: Store, root: str) -> bool:
    try:
        entries = store.opened().get_file_info(fs.FileSelector(f"{root}/{_LOG}", allow_not_found=True))
    except OSError as error:
        raise DataError(
            f"{store.uri}{root}: this table cannot be reached ({str(error).splitlines()[0]}). Check "
            "data.init_args.path and data.init_args.storage_options."
        ) from error
    return bool(entries)


def _refuse_delta(place: str, version: int | None, timestamp: str | None) -> None:
    """Refuse to read the files of a Delta table without its log, which says which of them count."""
    if not is_remote(place) and (local_path(place) / _LOG).is_dir():
        raise ConfigError(
            f"data.init_args.format: {place} is a Delta table, whose old files would be read as well as Parquet. Set "
            "it to auto or delta."
        )
    given = {"version": version, "timestamp": timestamp}
    for name, value in given.items():
        if value is not None:
            raise ConfigError(
                f"data.init_args.{name}: {value} chooses a state of a Delta table, but {place} is Parquet, which has "
                f"only one. Leave it out, or set data.init_args.path to a Delta table."
            )


def _refuse_missing(place: str) -> None:
    path = local_path(place)
    if path.exists():
        return
    parent = next(parent for parent in path.parents if parent.is_dir())
    missing = path.relative_to(parent).parts[0]
    try:
        siblings = sorted(entry.name for entry in parent.iterdir())
    except OSError:
        siblings = []
    near = [str(parent / name) for name in get_close_matches(missing, siblings, n=3)]
    shown = ", ".join(siblings[:_NUM_SHOWN]) + (", ..." if len(siblings) > _NUM_SHOWN else "")
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are in {parent}: {shown or 'none'}."
    raise DataError(f"{place}: this table does not exist (data.init_args.path, from {Path.cwd()}); {hint}")
