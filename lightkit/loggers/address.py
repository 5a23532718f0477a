"""Where MLflow tracks runs, and how that is shown without its password."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from lightkit import runs
from lightkit.errors import ConfigError

__all__ = ["Address", "find_address", "without_secret"]

_BARE = ("databricks", "databricks-uc")  # whole URIs: the workspace of the default profile


@dataclass(frozen=True)
class Address:
    """Where runs are tracked.

    Args:
        uri: MLflow's tracking URI; may hold a password.
        origin: What set it, in the user's words.
        artifacts: Folder for artifacts of a local database; None where the server decides.
    """

    uri: str
    origin: str
    artifacts: Path | None = None

    @property
    def database(self) -> Path | None:
        """File of a local database; None where a server or memory has it."""
        return Path(self.uri.removeprefix("sqlite:///")) if self.artifacts is not None else None

    @property
    def shown(self) -> str:
        """The URI without its password."""
        return without_secret(self.uri)


def find_address(tracking_uri: str | None, *, origin: str = "tracking_uri of the logger MLflow") -> Address:
    """Decide where to track: the argument, else ``MLFLOW_TRACKING_URI``, else SQLite in the run root.

    Args:
        tracking_uri: What the user says.
        origin: Where the user says so.

    Raises:
        ConfigError: If the URI names a folder.
    """
    run = runs.current()
    if tracking_uri:
        uri = tracking_uri
    elif from_environment := os.environ.get("MLFLOW_TRACKING_URI"):
        uri, origin = from_environment, "the environment variable MLFLOW_TRACKING_URI"
    else:
        path = (run.root if run else Path()) / "mlflow.db"
        uri, origin = f"sqlite:///{path}", "the default, mlflow.db in the run root"
    scheme = uri if uri in _BARE else urlsplit(uri).scheme
    if scheme in ("", "file") or len(scheme) == 1:  # one letter is a drive
        raise ConfigError(
            f"{origin} is {without_secret(uri)!r}, a folder. MLflow 3.13 and later keep no runs in folders: "
            f"use a database such as 'sqlite:///runs/mlflow.db', a server such as 'http://localhost:5000', "
            f"or leave it out for a database in the run root."
        )
    if scheme != "sqlite" or ":memory:" in uri:
        return Address(uri, origin)
    database = Path(uri.removeprefix("sqlite:///"))
    return Address(f"sqlite:///{database.absolute()}", origin, database.absolute().parent / "mlflow-artifacts")


def without_secret(text: str) -> str:
    """``text`` with the user and password of every URI in it masked."""
    return re.sub(r"(?<=//)[^/\s]*@", "***@", text)
