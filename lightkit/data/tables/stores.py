"""Where a table's files are: this machine's folders, or an object store with the options that reach it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

from pyarrow import fs

from lightkit.errors import ConfigError

__all__ = ["Store", "is_remote", "parquet_store"]

# What deltalake's options are called as arguments of pyarrow's file system for S3, so that one set of options reaches
# both kinds of tables.
_S3_ARGUMENTS = {
    "access_key_id": "access_key",
    "secret_access_key": "secret_key",
    "session_token": "session_token",
    "region": "region",
    "default_region": "region",
    "endpoint_url": "endpoint_override",
    "endpoint": "endpoint_override",
}
_FILE_SYSTEMS = {
    "s3": "S3FileSystem", "s3a": "S3FileSystem", "gs": "GcsFileSystem", "gcs": "GcsFileSystem",
    "abfs": "AzureFileSystem", "abfss": "AzureFileSystem", "hdfs": "HadoopFileSystem",
}  # fmt: skip


@dataclass(frozen=True)
class Store:
    """A place that holds files; it can be sent to other processes, which open it for themselves.

    Args:
        kind: `local`; `pyarrow` for its file systems; `delta` for the store of a Delta table, read through deltalake.
        uri: The address, such as ``s3://bucket/table``; empty for `local`.
        options: What the library that opens it is given, as names and values. They may hold secrets, so they are
            never shown.
    """

    kind: Literal["local", "pyarrow", "delta"] = "local"
    uri: str = ""
    options: tuple[tuple[str, Any], ...] = field(default=(), repr=False)

    @property
    def is_local(self) -> bool:
        """Whether its paths are those of this machine, which a forked process may read, too."""
        return self.kind == "local"

    def opened(self) -> fs.FileSystem:
        """Give the file system, opened once a process."""
        return _opened(self)


def is_remote(place: str) -> bool:
    """Whether ``place`` is an address other than ``file://``."""
    scheme, colon, _ = place.partition("://")
    return bool(colon) and scheme.lower() != "file"


def parquet_store(place: str, options: Mapping[str, Any]) -> tuple[Store, str]:
    """Give the store of an address, and the path in it.

    Args:
        place: Such as ``s3://bucket/folder``.
        options: Arguments of the class in `pyarrow.fs`, or, for S3, deltalake's names for them.

    Raises:
        ConfigError: If pyarrow has no file system for it, or refuses the options.
    """
    scheme, _, path = place.partition("://")
    name = _FILE_SYSTEMS.get(scheme.lower())
    if name is None or not hasattr(fs, name):
        known = ", ".join(f"{known}://" for known, name in _FILE_SYSTEMS.items() if hasattr(fs, name))
        raise ConfigError(
            f"data.init_args.path: no file system is known for {scheme}:// ({place}). Expected a folder of this "
            f"machine, file:// or one of {known}."
        )
    given = _s3_arguments(options) if name == "S3FileSystem" else dict(options)
    store = Store("pyarrow", f"{scheme.lower()}://", tuple(sorted(given.items())))
    try:
        store.opened()
    except (TypeError, ValueError, OSError) as error:
        raise ConfigError(
            f"data.init_args.storage_options: {', '.join(given) or 'none'} are not what pyarrow.fs.{name} takes "
            f"({error}). Expected its arguments by name."
        ) from error
    return store, path.rstrip("/")


def _s3_arguments(options: Mapping[str, Any]) -> dict[str, Any]:
    """Give pyarrow's names to deltalake's options."""
    given: dict[str, Any] = {}
    for name, value in options.items():
        plain = name.lower().removeprefix("aws_")
        if plain == "allow_http":
            if str(value).lower() == "true":
                given.setdefault("scheme", "http")
        else:
            given[_S3_ARGUMENTS.get(plain, name)] = value
    scheme, colon, host = str(given.get("endpoint_override", "")).partition("://")
    if colon:  # pyarrow reads the scheme from an argument of its own in older versions
        given.update(scheme=scheme, endpoint_override=host)
    return given


@lru_cache(maxsize=16)
def _opened(store: Store) -> fs.FileSystem:
    if store.kind == "local":
        return fs.LocalFileSystem()
    if store.kind == "delta":
        # deltalake is an extra, and its runtime does not survive a fork: only who reads a remote table loads it
        from deltalake.fs import DeltaStorageHandler

        return fs.PyFileSystem(DeltaStorageHandler(store.uri, dict(store.options)))
    return getattr(fs, _FILE_SYSTEMS[store.uri.removesuffix("://")])(**dict(store.options))
