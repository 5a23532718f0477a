"""MLflow as the place where models are registered: the connection, and its failures in words."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lightkit.errors import ConfigError, ServerAway
from lightkit.loggers.mlflow_address import Address, mask_password

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

__all__ = ["Store", "is_catalog", "open_store", "telling"]

# MLflow's own patience is seven tries over two minutes. The first answer should come soon; an upload is answered
# when the whole file is stored.
_FIRST = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}
_LATER = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "600",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
}
_LONGEST = 300  # characters of what MLflow says
_SERVER_ERRORS = 500
_MAKING_S = 30.0  # while another process makes the tables of a new database, which takes a second or two
_PAUSE_S = 0.3
_HALF_MADE = re.compile(r"table \S+ already exists|duplicate column|no such table|alembic_version")
_OPTION = "--tracking-uri"


@dataclass(frozen=True)
class Store:
    """MLflow's tracking store and its registry.

    Args:
        address: Of the tracking store.
        client: Talks to both. The registry is where ``MLFLOW_REGISTRY_URI`` says, else at the same address; of
            Databricks it is Unity Catalog.
        patience: MLflow's variables for uploads, but for those that the user has set.
        naming: What names another address, for errors.
    """

    address: Address
    client: MlflowClient
    patience: Mapping[str, str] = field(default_factory=dict)
    naming: str = _OPTION

    @property
    def registry_uri(self) -> str:
        """Address of the registry; may hold a password."""
        return str(self.client._registry_uri)

    @contextmanager
    def busy(self, doing: str) -> Iterator[None]:
        """Within it, give uploads their time, and tell failures in words: see `telling`."""
        with telling(self.address, doing, naming=self.naming), _set(self.patience):
            yield

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Within it, no other process is within it with the same local database; a server has no such lock."""
        with _alone(self.address):
            yield


def is_catalog(uri: str) -> bool:
    """Tell whether a registry is Databricks' Unity Catalog, where names have three levels."""
    return uri.startswith(("databricks-uc", "uc:"))


@contextmanager
def open_store(address: Address, *, naming: str = _OPTION, makes: bool = True) -> Iterator[Store]:
    """Connect, and ask for something, so that a server that is away is told before anything is built.

    Args:
        address: Where MLflow is.
        naming: What names another address, for errors.
        makes: Whether a local database is made where there is none; to read from one that is new is of no use.

    Raises:
        ConfigError: If it refuses, or is a database that cannot be opened or, without ``makes``, is not there.
        ServerAway: If it does not answer.
    """
    if not makes and address.database is not None and not address.database.is_file():
        raise ConfigError(
            f"There is no database of MLflow at {address.database}; its place comes from {address.origin}. Name "
            f"another with {naming}."
        )
    from mlflow.tracking import MlflowClient  # mlflow takes 2 s to import

    # A page of lines about tables that are made, and the tracebacks of errors that are told in words below.
    logging.getLogger("alembic").setLevel(logging.WARNING)
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)
    patience = {name: value for name, value in _LATER.items() if name not in os.environ}
    with _set({name: value for name, value in _FIRST.items() if name not in os.environ}):
        with telling(address, "open the registry", naming=naming):
            if address.artifacts is not None:
                address.artifacts.parent.mkdir(parents=True, exist_ok=True)
            with _alone(address):
                client = _answering(lambda: MlflowClient(address.uri))
        with _everywhere(address.uri):
            yield Store(address, client, patience, naming)


@contextmanager
def _alone(address: Address) -> Iterator[None]:
    """Let one process at a time work on a local database: of two that make its tables at once both fail, or worse.

    A lock of the folder leaves no file behind, and ends with its process. Some network drives have none.
    """
    if address.database is None or not address.database.parent.is_dir():
        yield
        return
    folder = os.open(address.database.parent, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _answering(connect: Callable[[], MlflowClient]) -> MlflowClient:
    """Connect and ask for something; of several processes that make the tables of a new database, let one be first."""
    from mlflow.exceptions import MlflowException  # mlflow takes 2 s to import
    from sqlalchemy.exc import SQLAlchemyError

    give_up_s = time.monotonic() + _MAKING_S
    while True:
        try:
            client = connect()
            client.search_experiments(max_results=1)
        except (MlflowException, SQLAlchemyError) as error:  # noqa: PERF203 (trying again is what the loop is for)
            if time.monotonic() >= give_up_s or _HALF_MADE.search(str(error)) is None:
                raise
            time.sleep(_PAUSE_S)
        else:
            return client


@contextmanager
def telling(address: Address, doing: str, *, naming: str = _OPTION) -> Iterator[None]:
    """Turn what MLflow and its connection raise into one line without secrets.

    Args:
        address: Where MLflow is.
        doing: What is tried, as in "MLflow at … cannot …".
        naming: What names another address.

    Raises:
        ConfigError: If MLflow refuses, as it does a name that it has not, or its database is none.
        ServerAway: If it does not answer, fails itself, or its disk is full.
    """
    from mlflow.exceptions import MlflowException  # mlflow takes 2 s to import
    from requests import RequestException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (MlflowException, RequestException, SQLAlchemyError, OSError) as error:
        says = f"MLflow at {address.shown} cannot {doing}: {_words(error)}."
        if _is_full(error):
            raise ServerAway(
                f"MLflow at {address.shown} cannot {doing}: the disk is full. Free space, and try again; "
                f"its place comes from {address.origin}."
            ) from error
        if _is_refusal(error):
            raise ConfigError(says) from error
        if address.database is not None and "locked" not in says:
            raise ConfigError(f"{says} Its place comes from {address.origin}; name another with {naming}.") from error
        advice = "try again" if address.database is not None else "start the server"
        raise ServerAway(
            f"{says} The address comes from {address.origin}; {advice}, or name another with {naming}."
        ) from error


def _is_full(error: Exception) -> bool:
    return getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or "disk is full" in str(error)


def _is_refusal(error: Exception) -> bool:
    from mlflow.exceptions import MlflowException  # mlflow takes 2 s to import

    if isinstance(error, MlflowException):
        return int(error.get_http_status_code()) < _SERVER_ERRORS  # type: ignore[no-untyped-call]
    return isinstance(error, FileNotFoundError)


def _words(error: Exception) -> str:
    words = mask_password(" ".join(str(error).split())).rstrip(".") or type(error).__name__
    return words if len(words) <= _LONGEST else f"{words[:_LONGEST]}…"


@contextmanager
def _everywhere(uri: str) -> Iterator[None]:
    """Within it, MLflow's own functions speak to this address: a client of 3.17 looks up ``models:/`` through them."""
    import mlflow  # mlflow takes 2 s to import

    before = mlflow.get_tracking_uri() if mlflow.tracking.is_tracking_uri_set() else ""  # type: ignore[no-untyped-call]
    with _set({"MLFLOW_TRACKING_URI": uri}):
        mlflow.set_tracking_uri(uri)
        try:
            yield
        finally:
            mlflow.set_tracking_uri(before)


@contextmanager
def _set(variables: Mapping[str, str]) -> Iterator[None]:
    """Within it, environment variables have these values."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
