"""MLflow's local database: whole, or not there, and of the schema of the installed MLflow.

No torch.

MLflow 3.17 makes a SQLite file in place, by dozens of migrations whose statements cannot be rolled
back together. A process that is killed meanwhile leaves a file that no later start can use and
`mlflow db upgrade` does not repair. So a database is made, or migrated to a newer schema, in
another file, and takes its place when it is whole.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from lightkit.errors import ConfigError, ServerAway
from lightkit.loggers.mlflow_address import Address
from lightkit.loggers.mlflow_errors import is_busy
from lightkit.runs.fence import aside_of

_log = logging.getLogger("lightkit.loggers")

_QUIET_S = 3.0  # a migration takes some hundredths of a second
_BUSY_S = 20.0  # as MLflow waits for a database that another process has locked
_BESIDE = ("-journal", "-wal", "-shm")  # of SQLite
_MADE_BY_MLFLOW = {"alembic_version", "experiments", "runs", "_alembic_tmp_experiments"}


@dataclass(frozen=True)
class _Content:
    """Content of a database.

    Args:
        tables: Names of its tables.
        revision: The newest migration that is done; None before the first.
        has_records: Whether there is an experiment or a run; MLflow makes an experiment as soon as
            the tables are made.
    """

    tables: frozenset[str]
    revision: str | None
    has_records: bool


@dataclass(frozen=True)
class Schema:
    """Revisions of the database's schema in the installed MLflow.

    Args:
        version: Version of MLflow.
        newest: The revision that it works with.
        known: All that it can migrate from, and the newest.
    """

    version: str
    newest: str
    known: frozenset[str]


def prepare_database(address: Address) -> None:
    """Make a local database that is missing, and migrate one of an older MLflow.

    In another file until it is whole.

    One that a killed process has left unfinished is moved aside, with a warning: it holds no
    records. One that is migrated is copied before, and a warning names the copy.

    Args:
        address: Address of MLflow; nothing happens for a server.

    Raises:
        ConfigError: If a newer MLflow has migrated it, or it cannot be migrated.
    """
    if not _is_file(address):
        return
    assert address.database is not None
    path = address.database.resolve()
    if _is_usable(path):
        require_known_schema(address)
        _migrate(path, address)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with exclusive(address) as is_locked:
        if _is_usable(path):  # by now
            return
        if is_locked:
            _remove_leftovers(path)
        whole = aside_of(path)
        try:
            _make(whole)
            if path.exists() and not _wait_until_usable(path, _read(whole)):
                _move_aside(path)
            _put_in_place(whole, path)
        finally:
            for suffix in ("", *_BESIDE):
                whole.with_name(whole.name + suffix).unlink(missing_ok=True)


def require_known_schema(address: Address) -> None:
    """Check that no newer MLflow than the installed one has migrated a local database.

    It is only read.

    Args:
        address: Address of MLflow; nothing happens for a server, which has an MLflow of its own.

    Raises:
        ConfigError: If one has.
    """
    if not _is_file(address):
        return
    assert address.database is not None
    revision = _read_revision(address.database)
    schema = _read_schema() if revision is not None else None
    if schema is None or revision in schema.known:
        return
    raise ConfigError(
        f"MLflow's database {address.database} is of a newer MLflow than the installed one: its"
        f" schema has revision {revision}, and MLflow {schema.version} knows those up to"
        f" {schema.newest}. Its place comes from {address.origin}. Install the MLflow that has"
        " migrated it, such as with pip install --upgrade mlflow, or name another database."
    )


def require_writable(address: Address, *, option: str) -> None:
    """Refuse a local database that this user can only read, before hours of training.

    SQLite needs its folder, too: it writes a journal beside the file.

    Args:
        address: Address of MLflow; nothing happens for a server.
        option: Setting that names another address.

    Raises:
        ConfigError: If the file or its folder cannot be written.
    """
    if not _is_file(address):
        return
    assert address.database is not None
    path = address.database.resolve()
    if not path.exists():
        return
    for place in (path, path.parent):
        if not os.access(place, os.W_OK):
            raise ConfigError(
                f"MLflow's database {address.database} cannot be written: this user may only read"
                f" {place}. Its address comes from {address.origin}; change the permissions, or"
                f" name another with {option}."
            )


def _is_file(address: Address) -> bool:
    """Check whether an address is a local database whose URI has no options.

    Options are no part of its path.
    """
    return address.database is not None and "?" not in address.uri


def _read_revision(path: Path) -> str | None:
    """Return the revision of a database's schema.

    None where there is none, or it cannot be read now.
    """
    try:
        with closing(
            sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=_BUSY_S)
        ) as connection:
            row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    except sqlite3.Error:
        return None
    return None if row is None else str(row[0])


def _read_schema() -> Schema | None:
    """Return the schema of the installed MLflow, by the files of its migrations.

    None where it has none.

    MLflow and Alembic would take seconds to import, and `lightkit check` has no seconds.
    """
    spec = find_spec("mlflow")
    folders = [] if spec is None else [Path(each) for each in spec.submodule_search_locations or ()]
    files = [
        file
        for folder in folders
        for file in (folder / "store" / "db_migrations" / "versions").glob("*.py")
    ]
    revisions: set[str] = set()
    replaced: set[str] = set()
    for file in files:
        text = file.read_text(encoding="utf-8")
        for name, found in (("revision", revisions), ("down_revision", replaced)):
            line = re.search(rf"^{name}\b[^=\n]*=(.*)", text, re.MULTILINE)
            found.update(re.findall(r"[\"'](\w+)[\"']", line[1] if line else ""))
    newest = revisions - replaced
    if len(newest) != 1:
        return None
    return Schema(metadata.version("mlflow"), newest.pop(), frozenset(revisions))


def _migrate(path: Path, address: Address) -> None:
    """Migrate a database of an older MLflow, and keep a copy of it.

    The copy is migrated first, which MLflow cannot undo half way; its content then replaces that of
    the database at once, so that no reader and no killed process sees a part of it.

    Raises:
        ConfigError: If MLflow cannot migrate it, or the disk or the folder refuses.
    """
    if not _is_older(path):
        return
    with exclusive(address) as is_locked:
        schema = _read_schema()
        revision = _read_revision(path)
        if schema is None or not _is_older(path):  # by now
            return
        if is_locked:
            _remove_leftovers(path)
        copy = aside_of(path)
        migrated = aside_of(path)
        try:
            with closing(sqlite3.connect(path, timeout=_BUSY_S)) as database:
                while True:
                    before = _read_data_version(database)
                    _copy_content(path, copy)
                    _copy_content(copy, migrated)
                    _upgrade(migrated)
                    # else somebody has written meanwhile
                    if _read_data_version(database) == before:
                        break
            kept = _keep(copy, path.with_name(f"{path.name}.revision-{revision}"))
            _copy_content(migrated, path)
        except (OSError, sqlite3.Error) as error:
            kind = ServerAway if is_busy(error) else ConfigError
            raise kind(
                f"MLflow's database {path} has the older revision {revision}, and cannot be"
                f" migrated to {schema.newest} of MLflow {schema.version}: {error}. It is as it"
                f" was. Its place comes from {address.origin}. Correct"
                " that, or name another database."
            ) from error
        finally:
            for each in (copy, migrated):
                for suffix in ("", *_BESIDE):
                    each.with_name(each.name + suffix).unlink(missing_ok=True)
    _log.warning(
        "MLflow %s has migrated its database %s from revision %s to %s, which older versions of"
        " MLflow cannot read. A copy from before is %s.",
        schema.version,
        path,
        revision,
        schema.newest,
        kept.name,
    )


def _remove_leftovers(path: Path) -> None:
    """Remove the files that a killed process has left beside a database; under its lock."""
    for leftover in path.parent.glob(f".{path.name}.*.aside*"):
        leftover.unlink(missing_ok=True)


def _is_older(path: Path) -> bool:
    """Check whether a database has an older schema than the installed MLflow's."""
    revision = _read_revision(path)
    schema = _read_schema() if revision is not None else None
    return schema is not None and revision in schema.known - {schema.newest}


def _read_data_version(database: sqlite3.Connection) -> int:
    """Return a number that changes with each commit of another connection."""
    return int(database.execute("PRAGMA data_version").fetchone()[0])


def _copy_content(source: Path, target: Path) -> None:
    """Replace the content of a database, in one transaction, by that of another.

    Raises:
        sqlite3.Error: If one of them is locked for long, or the disk is full.
    """
    end_s = time.monotonic() + _BUSY_S

    def stop_waiting(status: int, *_: int) -> None:
        is_blocked = status in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
        if is_blocked and time.monotonic() > end_s:  # Python waits without an end
            raise sqlite3.OperationalError("database is locked")

    with (
        closing(sqlite3.connect(source, timeout=_BUSY_S)) as of_source,
        closing(sqlite3.connect(target, timeout=_BUSY_S)) as of_target,
    ):
        of_source.backup(of_target, progress=stop_waiting)


def _upgrade(path: Path) -> None:
    """Migrate a database by MLflow's own command.

    Raises:
        OSError: If it ends with an error.
    """
    words = [sys.executable, "-m", "mlflow", "db", "upgrade", f"sqlite:///{path}"]
    result = subprocess.run(words, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        said = (result.stderr.strip() or result.stdout.strip()).splitlines() or ["no message"]
        raise OSError(f"`mlflow db upgrade` ends with {result.returncode}: {said[-1]}")


def _keep(copy: Path, name: Path) -> Path:
    """Rename the copy to the first free one of ``name``, ``name-2`` and so on, and return it."""
    number = 1
    kept = name
    while True:
        try:
            os.link(copy, kept)
        except FileExistsError:
            number += 1
            kept = name.with_name(f"{name.name}-{number}")
        except OSError:  # a file system without links
            copy.rename(kept)
            return kept
        else:
            return kept


@contextmanager
def exclusive(address: Address) -> Iterator[bool]:
    """Lock the folder of a local database, and yield whether it could be locked.

    A server has no such lock.

    A lock of the folder leaves no file behind, and ends with its process. Some network drives have
    none.
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
    with closing(
        sqlite3.connect(f"{path.as_uri()}?mode=rw", uri=True, timeout=_BUSY_S)
    ) as connection:
        # Reading also rolls back what a killed process has left in a journal.
        tables = frozenset(
            name
            for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type='table'")
        )
        revision = None
        has_records = False
        if "alembic_version" in tables:
            row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
            revision = None if row is None else str(row[0])
        for table in tables & {"experiments", "runs"}:
            query = f"SELECT EXISTS (SELECT 1 FROM {table})"  # noqa: S608 - one of the two names above
            has_records = has_records or bool(connection.execute(query).fetchone()[0])
    return _Content(tables, revision, has_records)


def _is_usable(path: Path) -> bool:
    """Check whether a file is to be opened as it is.

    One with records, or one that MLflow's own error is about.
    """
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
    """Wait while somebody, such as ``mlflow ui``, is making the database in place.

    Return whether it is whole then.
    """
    seen = None
    since_s = time.monotonic()
    while True:
        if _is_usable(path) or _read(path).revision == whole.revision:
            return True
        status = path.stat()
        if (now := (status.st_size, status.st_mtime_ns)) != seen:
            seen = now
            since_s = time.monotonic()
        if not status.st_size or time.monotonic() - since_s >= _QUIET_S:
            return False
        time.sleep(0.1)


def _move_aside(path: Path) -> None:
    """Rename an unfinished database and SQLite's files beside it, unless it is an empty file."""
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
        "MLflow's database %s is unfinished and holds no records: the process that made it was"
        " killed. It is now %s, and a new one is made.",
        path,
        broken.name,
    )


def _put_in_place(whole: Path, path: Path) -> None:
    """Rename a finished database to its name, unless another process has been faster."""
    try:
        os.link(whole, path)
    except FileExistsError:
        return
    except OSError:  # a file system without links
        if not path.exists():
            whole.rename(path)
