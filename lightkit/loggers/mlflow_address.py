"""Address of MLflow, names and tags as it takes them, and its experiments and models. No torch."""

from __future__ import annotations

import os
import posixpath
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from lightkit import runs
from lightkit.config.secrets import mask
from lightkit.errors import ConfigError

# MLflow's client tries seven times over two minutes; the first answer should come soon.
CONNECT_SETTINGS = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}
_VARIABLE = "MLFLOW_TRACKING_URI"
_MAX_KEY = 250  # characters: mlflow.utils.validation of MLflow 3.17
_BARE = ("databricks", "databricks-uc")  # whole URIs: the workspace of the default profile


@dataclass(frozen=True)
class Address:
    """Where runs are tracked.

    Args:
        uri: MLflow's tracking URI; may hold a password.
        origin: Key, variable or default that set it.
        artifacts: Folder for artifacts of a local database; None where the server decides.
    """

    uri: str
    origin: str
    artifacts: Path | None = None

    @property
    def database(self) -> Path | None:
        """File of a local database; None for a server or a database in memory."""
        return Path(self.uri.removeprefix("sqlite:///")) if self.artifacts is not None else None

    @property
    def shown(self) -> str:
        """The URI without its password."""
        return mask(self.uri, hides_users=True)


def find_address(
    tracking_uri: str | None,
    *,
    origin: str = "tracking_uri of the logger MLflow",
    root: Path | None = None,
) -> Address:
    """Choose where to track: the argument, else ``MLFLOW_TRACKING_URI``, else SQLite in run root.

    Args:
        tracking_uri: The user's address; None for the default.
        origin: Key that has it.
        root: The run root; that of the current run if None.

    Raises:
        ConfigError: If the URI names a folder, or a server without a host.
    """
    run = runs.current()
    if tracking_uri:
        uri = tracking_uri
    elif from_environment := os.environ.get(_VARIABLE):
        uri = from_environment
        origin = f"the environment variable {_VARIABLE}"
    else:
        path = (root or (run.root if run else Path())) / "mlflow.db"
        uri = f"sqlite:///{path}"
        origin = "the default, mlflow.db in the run root"
    scheme = uri if uri in _BARE else urlsplit(uri).scheme
    if scheme in ("", "file") or len(scheme) == 1:  # one letter is a drive
        raise ConfigError(
            f"{origin} is {mask(uri, hides_users=True)!r}, a folder. MLflow 3.13 and later keep no"
            " runs in folders: use a database such as 'sqlite:///runs/mlflow.db', a server such as"
            " 'http://localhost:5000', or leave it out for a database in the run root."
        )
    if scheme in ("http", "https") and not urlsplit(uri).hostname:
        raise ConfigError(
            f"{origin} is {mask(uri, hides_users=True)!r}, which names no host. Expected an address"
            " such as 'http://localhost:5000'."
        )
    if scheme != "sqlite" or ":memory:" in uri:
        return Address(uri, origin)
    database = Path(uri.removeprefix("sqlite:///"))
    return Address(
        f"sqlite:///{database.absolute()}", origin, database.absolute().parent / "mlflow-artifacts"
    )


def as_key(name: str) -> str:
    """Replace characters that MLflow refuses; make ``name`` relative and cut it to 250 characters.

    Letters and digits of every script stay, as in MLflow's own rule (``mlflow.utils.validation`` of
    3.17).
    """
    key = re.sub(r"[^\w/. :-]", "_", name)[:_MAX_KEY]
    return posixpath.normpath(f"/{key}").lstrip("/") or "_"


class UniqueKeys:
    """Keys of names as MLflow takes them.

    One key for each name, numbered where two names would have the same.

    Args:
        kept: Keys by name that were given earlier, as `changed` returns them.
    """

    def __init__(self, kept: Mapping[str, str] | None = None) -> None:
        self._keys = dict(kept or {})

    @property
    def changed(self) -> dict[str, str]:
        """The keys that differ from their names."""
        return {name: key for name, key in self._keys.items() if name != key}

    def key_of(self, name: str) -> str:
        """Return the key of a name, always the same one."""
        if name not in self._keys:
            taken = set(self._keys.values())
            plain = key = as_key(name)
            number = 1
            while key in taken:
                number += 1
                ending = f"_{number}"
                key = plain[: _MAX_KEY - len(ending)] + ending
            self._keys[name] = key
        return self._keys[name]


def manifest_tags(manifest: Mapping[str, Any]) -> dict[str, str]:
    """Select the facts of a manifest that tell runs apart.

    The commit, the data's fingerprint and source.
    """
    git = manifest.get("git") or {}
    data = manifest.get("data") or {}
    tags = {
        "git_commit": git.get("commit"),
        "mlflow.source.git.commit": git.get("commit"),
        "git_dirty": git.get("dirty"),
        "data_fingerprint": data.get("fingerprint"),
        "data_source": data.get("source"),
    }
    return {name: str(value) for name, value in tags.items() if value is not None}


def find_or_create_experiment(client: Any, name: str, *, address: Address, setting: str) -> str:
    """Return the id of an experiment, which is created if there is none.

    Args:
        client: An ``MlflowClient`` of the address.
        name: Its name.
        address: Where it is; a local one has the folder of a new experiment's artifacts.
        setting: Setting that names the experiment, for the error.

    Raises:
        ConfigError: If the experiment was deleted.
    """
    from mlflow.exceptions import MlflowException  # mlflow takes 2 s to import

    artifacts = None if address.artifacts is None else str(address.artifacts)
    if (found := client.get_experiment_by_name(name)) is None:
        try:
            return str(client.create_experiment(name, artifacts))
        except MlflowException:
            # else another process has made it meanwhile
            if (found := client.get_experiment_by_name(name)) is None:
                raise
    if found.lifecycle_stage == "deleted":
        is_set = _VARIABLE in address.origin  # for the user's shell too
        setting_it = "" if is_set else f"{_VARIABLE}={shlex.quote(address.shown)} "
        raise ConfigError(
            f"{setting}: the experiment {name!r} was deleted in MLflow. Choose another name, or"
            f" restore it with:\n  {setting_it}mlflow experiments restore -x {found.experiment_id}"
        )
    return str(found.experiment_id)


def send_model_files(client: Any, run_id: str, model: Any, folder: Path) -> None:
    """Send the files of a logged model as ``mlflow.pytorch.log_model`` does.

    Without opening its run again.

    `log_model` in MLflow 3.17 needs an active run, which it sets to running and then to finished,
    with a new end.

    Args:
        client: An ``MlflowClient``.
        run_id: Run that the model is an output of.
        model: The logged model, as it was created.
        folder: Its files; ``MLmodel`` is completed.
    """
    from mlflow.entities import LoggedModelOutput, LoggedModelStatus  # mlflow takes 2 s to import
    from mlflow.models import Model

    description = Model.load(str(folder))
    description.run_id = run_id
    description.model_id = model.model_id
    description.model_uuid = model.model_id
    description.artifact_path = model.artifact_location
    description.save(str(folder / "MLmodel"))
    client.log_model_artifacts(model.model_id, str(folder))
    # once: MLflow refuses a second link, which a resume or a repeated request would make
    linked = client.get_run(run_id).outputs
    if linked is None or model.model_id not in {output.model_id for output in linked.model_outputs}:
        client.log_outputs(run_id, [LoggedModelOutput(model.model_id, step=0)])
    client.finalize_logged_model(model.model_id, LoggedModelStatus.READY)
