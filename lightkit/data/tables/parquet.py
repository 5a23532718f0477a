"""Opening a folder of Parquet files, or a single one, as a table."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from pyarrow import fs

from lightkit.data.tables.footers import Footer, footers_of
from lightkit.data.tables.snapshot import DataFile, RowGroup, Snapshot
from lightkit.data.tables.stores import Store, is_remote, parquet_store
from lightkit.errors import ConfigError, DataError

__all__ = ["SUFFIXES", "local_path", "open_parquet", "row_groups_of"]

SUFFIXES = (".parquet", ".parq", ".pq")
_NULL = "__HIVE_DEFAULT_PARTITION__"
_MISSING = "{path}: this file disappeared while the table was opened. Start again when nobody writes to it."


def open_parquet(place: str, storage_options: Mapping[str, Any]) -> Snapshot:
    """Open all Parquet files under a folder as one table.

    Files and folders whose names begin with ``_`` or ``.`` are left out, as Spark and Hive do. Folders named
    ``column=value`` give a column to the files below them: of integers where all its values are, else of strings.

    Args:
        place: A folder, a file, or such an address.
        storage_options: For an object store; see `parquet_store`.

    Raises:
        ConfigError: If the address or the options are wrong.
        DataError: If there is no Parquet file, one is damaged, or two of them differ in a column's type.
    """
    if not is_remote(place) and storage_options:
        raise ConfigError(
            f"data.init_args.storage_options: {place} is on this machine, where they have no effect. Take them out, or "
            "set data.init_args.path to an address such as s3://bucket/folder."
        )
    store, root = parquet_store(place, storage_options) if is_remote(place) else (Store(), str(local_path(place)))
    paths = _files_under(store, root, place)
    footers = footers_of(store, paths, missing=_MISSING)
    partitions = _partitions([_below(root, path) for path in paths])
    schema = _common_schema(paths, footers, partitions)
    fragments = [
        group
        for path, footer, partition in zip(paths, footers, partitions, strict=True)
        for group in row_groups_of(DataFile(path, store, schema, partition, state=footer.state), footer)
    ]
    lines = (
        f"{_below(root, path)}\0{footer.size_bytes}\0{footer.digest}\n"
        for path, footer in zip(paths, footers, strict=True)
    )
    fingerprint = hashlib.sha256("".join(lines).encode("utf-8", "surrogateescape")).hexdigest()
    states = repr([footer.state for footer in footers])
    return Snapshot("parquet", place, schema, None, fingerprint, fragments, states)


def local_path(place: str) -> Path:
    """Give the path behind a path or a ``file://`` address."""
    is_address = place.lower().startswith("file://")
    return Path(unquote(place[len("file://") :]) if is_address else place).expanduser().absolute()


def row_groups_of(file: DataFile, footer: Footer) -> list[RowGroup]:
    """Cut a file into the row groups that its footer lists; empty ones are left out."""
    groups, first = [], 0
    for number in range(footer.metadata.num_row_groups):
        stored = footer.metadata.row_group(number)
        num_rows = stored.num_rows
        if file.deleted is not None:
            num_rows -= int(((file.deleted >= first) & (file.deleted < first + stored.num_rows)).sum())
        if num_rows:
            groups.append(RowGroup(file, number, first, stored.num_rows, num_rows, stored.total_byte_size))
        first += stored.num_rows
    return groups


def _files_under(store: Store, root: str, place: str) -> list[str]:
    """Paths of the Parquet files, by name."""
    try:
        paths = _local_files(Path(root)) if store.is_local else _remote_files(store, root)
    except OSError as error:
        raise DataError(
            f"{place}: this table cannot be listed ({str(error).splitlines()[0]}). Check data.init_args.path and "
            "data.init_args.storage_options."
        ) from error
    found = [path for path in paths if path == root or path.lower().endswith(SUFFIXES)]
    if not found:
        others = ", ".join(sorted({Path(path).name for path in paths})[:3])
        raise DataError(
            f"{place}: no Parquet files here ({f'found {others}' if others else 'it is empty'}). Set "
            f"data.init_args.path to a Delta table, or to a folder or file of Parquet ({', '.join(SUFFIXES)})."
        )
    return sorted(found)


def _local_files(root: Path) -> list[str]:
    if root.is_file():
        return [str(root)]
    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(("_", "."))]
        found += [os.path.join(folder, name) for name in names if not name.startswith(("_", "."))]  # noqa: PTH118
    return found


def _remote_files(store: Store, root: str) -> list[str]:
    system = store.opened()
    if system.get_file_info(root).type == fs.FileType.File:
        return [root]
    entries = system.get_file_info(fs.FileSelector(root, recursive=True, allow_not_found=True))
    return [
        entry.path
        for entry in entries
        if entry.type == fs.FileType.File and not any(part[:1] in "_." for part in _below(root, entry.path).split("/"))
    ]


def _below(root: str, path: str) -> str:
    return path.removeprefix(root).lstrip("/") or Path(path).name


def _partitions(paths: Sequence[str]) -> list[dict[str, Any]]:
    """What the folders of each file say of its columns."""
    said: list[dict[str, Any]] = []
    for path in paths:
        pairs = [part.partition("=") for part in path.split("/")[:-1] if "=" in part.strip("=")]
        said.append({unquote(name): None if value == _NULL else unquote(value) for name, _, value in pairs})
    for name in {name for values in said for name in values}:
        if all(_is_integer(values.get(name)) for values in said):
            for values in said:
                values[name] = None if values.get(name) is None else int(values[name])
        for values in said:
            values.setdefault(name, None)
    return said


def _is_integer(value: str | None) -> bool:
    if value is None:
        return True
    digits = value.removeprefix("-")
    # "007" is a name rather than a number, and would not find its way back
    return digits.isdecimal() and digits.isascii() and str(int(digits)) == digits and len(digits) < 19


def _common_schema(
    paths: Sequence[str], footers: Sequence[Footer], partitions: Sequence[Mapping[str, Any]]
) -> pa.Schema:
    """Give all columns that any file has; files that lack one have nulls there."""
    fields: dict[str, pa.Field] = {}
    origin: dict[str, str] = {}
    for path, footer in zip(paths, footers, strict=True):
        for field in footer.schema.remove_metadata():
            known = fields.get(field.name)
            fields[field.name] = field if known is None else _common_field(known, field, origin[field.name], path)
            origin.setdefault(field.name, path)
    for name in partitions[0] if partitions else ():
        numbers = all(isinstance(values[name], int | None) for values in partitions)
        fields[name] = pa.field(name, pa.int64() if numbers else pa.string())
    return pa.schema(list(fields.values()))


def _common_field(known: pa.Field, other: pa.Field, first: str, second: str) -> pa.Field:
    if known.type == other.type:
        return known
    try:
        # integers and floats of several widths, nulls, and large variants fit into each other; text and numbers do not
        merged = pa.unify_schemas([pa.schema([known]), pa.schema([other])], promote_options="permissive")
    except pa.ArrowException as error:
        raise DataError(
            f"{second}: column {other.name!r} holds {other.type}, but {known.type} in {first}. Write one of them "
            "again with the other's type."
        ) from error
    return merged.field(0)
