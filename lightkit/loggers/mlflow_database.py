"""MLflow's local database: whole, or not there. No torch.

MLflow 3.17 makes a SQLite file in place, by dozens of migrations whose statements cannot be rolled back together. A
process that is killed meanwhile leaves a file that no later start can use and `mlflow db upgrade` does not repair.
"""

from __future__ import annotations

import fcntl
import logging
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from lightkit.loggers.mlflow_address import Address
from lightkit.runs.fence import aside_of

_log = logging.getLogger("lightkit.loggers")

_QUIET_S = 3.0  # a migration takes some hundredths of a second
_BESIDE = ("-journal", "-wal", "-shm")  # of SQLite
_MADE_BY_MLFLOW = {"alembic_version", "experiments", "runs", "_alembic_tmp_experiments"}


@dataclass(frozen=True)
class _Content:
    """Content of a database.

    Args:
        tables: Names of its tables.
        revision: The newest migration that is done; None before the first.
        has_records: Whether there is an experiment or a run; MLflow makes an experiment as soon as the tables are made.
    """

    tables: frozenset[str]
    revision: str | None
    has_records: bool


def prepare_database(address: Address) -> None:
    """Make a local database that is missing, under another name until it is whole.

    One that a killed process has left unfinished is moved aside, with a warning: it holds no records.

    Args:
        address: Address of MLflow; nothing happens for a server.
    """
    if address.database is None or "?" in address.uri:  # options of the connection, which are no part of the path
        return
    path = address.database.resolve()
    if _is_usable(path):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with exclusive(address) as is_locked:
        if _is_usable(path):  # by now
            return
        if is_locked:
            for leftover in path.parent.glob(f".{path.name}.*.aside*"):
                leftover.unlink(missing_ok=True)

        whole = aside_of(path)
        try:
            _make(whole)
            if path.exists() and not _wait_until_usable(path, _read(whole)):
                _move_aside(path)
            _put_in_place(whole, path)
        finally:
            for suffix in ("", *_BESIDE):
                whole.with_name(whole.name + suffix).unlink(missing_ok=True)


@contextmanager
def exclusive(address: Address) -> Iterator[bool]:
    """Lock the folder of a local database, and yield whether it could be locked; a server has no such lock.

    A lock of the folder leaves no file behind, and ends with its process. Some network drives have none.
    """
    if address.database is None or not address.database.parent.is_dir():
        yield False
        return
    folder = os.open(address.database.parent, os.O_RDONLY)
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            is_locked = True
        except OSError:
            is_locked = False
        yield is_locked
    finally:
        os.close(folder)


def _read(path: Path) -> _Content:
    """Read a database.

    Raises:
        sqlite3.Error: If the file is no database, or is locked.
    """
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=rw", uri=True, timeout=20.0)) as connection:
        # Reading also rolls back what a killed process has left in a journal.
        tables = frozenset(name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type='table'"))
        revision, has_records = None, False
        if "alembic_version" in tables:
            row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
            revision = None if row is None else str(row[0])
        for table in tables & {"experiments", "runs"}:
            query = f"SELECT EXISTS (SELECT 1 FROM {table})"  # noqa: S608 - one of the two names above
            has_records = has_records or bool(connection.execute(query).fetchone()[0])
    return _Content(tables, revision, has_records)


def _is_usable(path: Path) -> bool:
    """Check whether a file is to be opened as it is: one with records, or one that MLflow's own error is about."""
    try:
        content = _read(path)
    except sqlite3.Error:
        return path.exists()
    return content.has_records or bool(content.tables and not content.tables & _MADE_BY_MLFLOW)


def _make(path: Path) -> None:
    """Make a database by MLflow's client, which makes the tables with its first request."""
    from mlflow.tracking import MlflowClient  # mlflow takes 2 s to import

    MlflowClient(f"sqlite:///{path}").search_experiments(max_results=1)


def _wait_until_usable(path: Path, whole: _Content) -> bool:
    """Wait while somebody, such as ``mlflow ui``, is making the database in place; return whether it is whole then."""
    seen, since_s = None, time.monotonic()
    while True:
        if _is_usable(path) or _read(path).revision == whole.revision:
            return True
        status = path.stat()
        if (now := (status.st_size, status.st_mtime_ns)) != seen:
            seen, since_s = now, time.monotonic()
        if not status.st_size or time.monotonic() - since_s >= _QUIET_S:
            return False
        time.sleep(0.1)


def _move_aside(path: Path) -> None:
    """Rename an unfinished database and the files of SQLite beside it, unless it is an empty file."""
    if not path.stat().st_size:
        path.unlink()
        return
    number = 1
    while (broken := path.with_name(f"{path.name}.unfinished-{number}")).exists():
        number += 1
    for suffix in (*_BESIDE, ""):
        beside = path.with_name(path.name + suffix)
        if beside.exists():
            beside.rename(broken.with_name(broken.name + suffix))
    _log.warning(
        "MLflow's database %s is unfinished and holds no records: the process that made it was killed. It is now %s, "
        "and a new one is made.",
        path,
        broken.name,
    )


def _put_in_place(whole: Path, path: Path) -> None:
    """Give a finished database its name, unless another process has been faster."""
    try:
        os.link(whole, path)
    except FileExistsError:
        return
    except OSError:  # a file system without links
        if not path.exists():
            whole.rename(path)
