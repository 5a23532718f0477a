"""Whether a file is still the one that was looked at, without reading it."""

from __future__ import annotations

import os
from dataclasses import dataclass

import pyarrow as pa

from lightkit.data.tables.stores import Store

__all__ = ["FileState", "state_of"]

_TELLING = frozenset({"etag", "last-modified", "generation", "versionid", "version-id"})  # of an object


@dataclass(frozen=True)
class FileState:
    """What changes with a file.

    Args:
        size_bytes: Its length.
        written: When it was last written in ns; in an object store its tag, generation and date.
        entry: What tells a file that was put in its place from it even where the time was kept: inode, and when that
            changed. Copies and other permissions change it, too.
    """

    size_bytes: int
    written: tuple[str, ...]
    entry: tuple[int, ...] = ()

    def is_written_over(self, now: FileState) -> bool:
        """Whether the content may be another one by now."""
        return (self.size_bytes, self.written) != (now.size_bytes, now.written)


def state_of(store: Store, path: str, opened: pa.NativeFile | None = None) -> FileState:
    """Look at a file.

    Args:
        store: Where it is.
        path: In the store.
        opened: The file, open for reading, which a store then need not be asked for again.

    Raises:
        OSError: If it is missing or cannot be reached.
    """
    if store.is_local:
        found = os.stat(path)  # noqa: PTH116 (a path of the store, as a string)
        return FileState(found.st_size, (str(found.st_mtime_ns),), (found.st_ino, found.st_ctime_ns))
    said = {} if opened is None else _said_by(opened)
    telling = tuple(f"{name}={value!r}" for name, value in sorted(said.items()) if name.lower() in _TELLING)
    if opened is not None and telling:
        return FileState(opened.size(), telling)
    info = store.opened().get_file_info(path)
    return FileState(-1 if info.size is None else info.size, (str(info.mtime_ns),))


def _said_by(opened: pa.NativeFile) -> dict[str, object]:
    try:
        return dict(opened.metadata() or {})
    except (OSError, pa.ArrowException):  # a store that knows no such thing
        return {}
