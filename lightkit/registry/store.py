"""MLflow's model registry.

Its address, names, the connection with its errors in words, and versions. No torch.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightkit import runs
from lightkit.config import Resolved, near, shown_path
from lightkit.config.secrets import mask
from lightkit.errors import ConfigError, ServerAway
from lightkit.loggers.mlflow_address import CONNECT_SETTINGS, Address, find_address
from lightkit.loggers.mlflow_database import prepare_database, require_writable
from lightkit.loggers.mlflow_errors import STORAGE_CLIENTS, can_pass

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion
    from mlflow.tracking import MlflowClient

KEPT = "checkpoint_artifact"
"""Tag of a version: address of its checkpoint and its config in MLflow."""
CHECKPOINT = "checkpoint_sha256"
"""Tag of a version: digest of its checkpoint. It is set once model and exports are there, so that
what is found by it is whole."""
WEIGHTS = "weights_sha256"
"""Tag of a version: digest of its weights alone, as `digest_weights` computes it."""
NO_MODELS = "there is none yet; `lightkit register` makes one"
_MAX_CHARS = 300  # of an error of MLflow's
_OPTION = "--tracking-uri"

# An upload is answered when the whole file is stored.
_UPLOADING = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "600",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
}


def address_of_run(tracking_uri: str | None, run: runs.Run, resolved: Resolved) -> Address:
    """Find MLflow.

    By the option, else the run's config, else the environment, else where the training was tracked.

    Args:
        tracking_uri: Value of ``--tracking-uri``.
        run: The run.
        resolved: Its config.
    """
    named, origin = _find_named_address(tracking_uri, resolved)
    if (
        not named
        and not os.environ.get("MLFLOW_TRACKING_URI")
        and (named := tracked_run(run).get("tracking_uri"))
    ):
        origin = shown_path(run.folder / "mlflow.json")
    return find_address(named, origin=origin, root=run.root)


def address_of_job(resolved: Resolved, root: Path) -> Address:
    """Find MLflow for a job that has no run yet.

    By its config, else the environment, else in the run root.
    """
    named, origin = _find_named_address(None, resolved)
    return find_address(named, origin=origin, root=root.absolute())


def _find_named_address(tracking_uri: str | None, resolved: Resolved) -> tuple[str | None, str]:
    """Return the address that the option or the config's logger names, and which of the two.

    None for neither.
    """
    named = tracking_uri
    origin = _OPTION
    loggers = resolved.value_of("logger")
    for entry in loggers.values() if isinstance(loggers, Mapping) and not named else []:
        if isinstance(entry, Mapping) and str(entry.get("class_path", "")).endswith(
            ("loggers.MLflow", "MLFlowLogger")
        ):
            uri = runs.find_value(entry, "init_args", "tracking_uri")
            if uri and not str(uri).startswith("file:"):  # which MLflow 3.13 and later refuse
                named = str(uri)
                origin = "the logger MLflow of the run's config"
                break
    return named, origin


def address_of_root(tracking_uri: str | None, root: Path) -> Address:
    """Find MLflow without a run.

    By the option, else the environment, else ``mlflow.db`` in the run root.
    """
    return find_address(tracking_uri, origin=_OPTION, root=root.absolute())


def tracked_run(run: runs.Run) -> Mapping[str, str]:
    """Return ``tracking_uri`` and ``run_id`` of the MLflow run of a training, as its logger noted.

    A URI that lost its password when it was noted is left out.
    """
    noted = runs.read_json(run.folder / "mlflow.json") or {}
    if "***@" in str(noted.get("tracking_uri")):
        noted.pop("tracking_uri")
    return {name: str(noted[name]) for name in ("tracking_uri", "run_id") if noted.get(name)}


def check_name(name: str, *, in_catalog: bool = False) -> str:
    """Return the name of a registered model, if MLflow takes it.

    Args:
        name: The name.
        in_catalog: Whether the registry is Databricks' Unity Catalog, where a name has three
            levels.

    Raises:
        ConfigError: If it does not, with the rule.
    """
    is_name = (
        0 < len(name) <= 256
        and name == name.strip()
        and name.isprintable()
        and not {*name} & {*"/:"}
    )
    rule = (
        "1 to 256 printable characters without a slash, a colon or"
        " space around them, such as flowers"
    )
    if is_name and in_catalog:
        is_name = name.count(".") == 2 and all(name.split("."))
        rule = "three levels, such as main.vision.flowers"
    if not is_name or name in (".", ".."):
        raise ConfigError(f"--name: {name!r} is not a valid model name: expected {rule}.")
    return name


def check_alias(alias: str) -> str:
    """Return an alias, if MLflow takes it.

    Raises:
        ConfigError: If it does not, with the rule.
    """
    if not re.fullmatch(r"(?!latest$|v\d+$)[a-z0-9_-]{1,255}", alias, re.IGNORECASE):
        rule = (
            "1 to 255 letters, digits, hyphens and underscores, and none of MLflow's own: latest,"
            " v1, v2 and so on"
        )
        raise ConfigError(
            f"--alias: {alias!r} is not a valid alias: expected {rule}. Give one such as --alias"
            " challenger."
        )
    return alias


@dataclass
class Registry:
    """MLflow's tracking store and its registry, as `open_registry` opens them.

    Args:
        address: Address of the tracking store.
        option: Setting that names another address, for errors.
    """

    address: Address
    option: str = _OPTION
    client: MlflowClient = field(init=False)
    """Client of both."""
    uri: str = field(init=False)
    """Address of the registry; may hold a password. It is ``MLFLOW_REGISTRY_URI``, else the same
    address; that of Databricks is Unity Catalog."""

    @property
    def in_catalog(self) -> bool:
        """Check whether the registry is Databricks' Unity Catalog: names have three levels."""
        return self.uri.startswith(("databricks-uc", "uc:"))

    @contextmanager
    def attempt(self, action: str) -> Iterator[None]:
        """Turn errors of MLflow and its connection into one line without secrets.

        Args:
            action: The attempt, as in "MLflow at … cannot …".

        Raises:
            ConfigError: If MLflow refuses, for instance an unknown name, or its database is none.
            ServerAway: If it does not answer, fails itself, or its disk is full.
        """
        from mlflow.exceptions import MlflowException  # 2 s
        from requests import RequestException
        from sqlalchemy.exc import SQLAlchemyError

        try:
            yield
        except Exception as error:
            is_of_storage = type(error).__module__.partition(".")[0] in STORAGE_CLIENTS
            known = (
                MlflowException,
                RequestException,
                SQLAlchemyError,
                OSError,
                ModuleNotFoundError,
            )
            if not isinstance(error, known) and not is_of_storage:
                raise
            text = (
                mask(" ".join(str(error).split()), hides_users=True).rstrip(".")
                or type(error).__name__
            )
            text = text if len(text) <= _MAX_CHARS else f"{text[:_MAX_CHARS]}…"
            message = f"MLflow at {self.address.shown} cannot {action}: {text}."
            is_refusal = (
                is_of_storage
                # the latter: boto3, for artifacts in S3
                or isinstance(error, (FileNotFoundError, ModuleNotFoundError))
                or (isinstance(error, MlflowException) and int(error.get_http_status_code()) < 500)  # type: ignore[no-untyped-call]
            )
            waits = can_pass(error, self.address)
            if is_refusal and not waits:  # of a name, for instance: the address is right
                raise ConfigError(message) from error
            message += f" The address comes from {self.address.origin}; "
            if not waits:
                raise ConfigError(f"{message}name another with {self.option}.") from error
            advice = "try again" if self.address.database is not None else "start the server"
            raise ServerAway(f"{message}{advice}, or name another with {self.option}.") from error


@contextmanager
def open_registry(
    address: Address, *, option: str = _OPTION, creates: bool = True, writes: bool = True
) -> Iterator[Registry]:
    """Connect, and send a first request.

    A server that is away is found before anything is built.

    Within it MLflow's own functions use this address, too: a client of 3.17 looks up ``models:/``
    through them.

    Args:
        address: Address of MLflow.
        option: Setting that names another address, for errors.
        creates: Whether a local database is created if missing; reading needs none.
        writes: Whether anything will be written; reading needs no permission for it.

    Raises:
        ConfigError: If it refuses, or is a database that cannot be opened, with ``writes`` cannot
            be written or, without ``creates``, does not exist.
        ServerAway: If it does not answer.
    """
    if not creates and address.database is not None and not address.database.is_file():
        raise ConfigError(
            f"There is no database of MLflow at {address.database}; its place comes from"
            f" {address.origin}. `lightkit register` makes one, or name another with {option}."
        )
    if writes:
        require_writable(address, option=option)
    import mlflow  # 2 s
    from mlflow.tracking import MlflowClient

    # A page of lines about tables that are made, and the tracebacks of errors that are translated.
    logging.getLogger("alembic").setLevel(logging.WARNING)
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)
    registry = Registry(address, option)
    with registry.attempt("open the registry"), set_environment(_unset(CONNECT_SETTINGS)):
        if address.artifacts is not None:
            address.artifacts.parent.mkdir(parents=True, exist_ok=True)
        prepare_database(address)
        registry.client = MlflowClient(address.uri)
        registry.client.search_experiments(max_results=1)
    before = mlflow.get_tracking_uri()
    with set_environment({**_unset(_UPLOADING), "MLFLOW_TRACKING_URI": address.uri}):
        mlflow.set_tracking_uri(address.uri)
        try:
            registry.uri = mlflow.get_registry_uri()
            yield registry
        finally:
            mlflow.set_tracking_uri(before)


def _unset(variables: Mapping[str, str]) -> dict[str, str]:
    """Leave out the variables that the user has set."""
    return {name: value for name, value in variables.items() if name not in os.environ}


@contextmanager
def set_environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables within it."""
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


def list_versions(registry: Registry, name: str) -> list[ModelVersion]:
    """List the versions of a registered model with their tags, oldest first.

    None where there is no such model.
    """
    quoted = name.replace("'", "''")
    with registry.attempt(f"list the versions of {name!r}"):
        found = list(registry.client.search_model_versions(f"name='{quoted}'", max_results=1000))
    return sorted(found, key=lambda version: int(version.version))


def find_run_folder(registry: Registry, version: ModelVersion) -> Path | None:
    """Find the folder of a version's run; None where this machine does not have it.

    A run root that was moved or copied with its database has it beside that database, and not where
    it was at the registration: there another copy may be.
    """
    run = version.tags.get("run", "")
    if registry.address.database is not None and run:
        beside = registry.address.database.absolute().parent / run
        if (beside / "manifest.json").is_file():
            return beside
    recorded = Path(version.tags.get("run_folder", ""))
    return recorded if recorded.is_absolute() and recorded.is_dir() else None


def find_version(registry: Registry, name: str, reference: str) -> ModelVersion | None:
    """Find a version by its number or by an alias.

    Returns:
        The version; None where the alias points to none, or there is no such registered model yet.

    Raises:
        ConfigError: If there is no version of that number, or an alias of a similar name exists.
    """
    aliases = read_aliases(registry, name) or {}
    number = reference if reference.isdecimal() else aliases.get(reference)
    if number is None:
        if hint := near(reference, aliases):  # a misspelt alias would pass for the first promotion
            known = ", ".join(aliases)
            raise ConfigError(
                f"gate.baseline: {name} has no alias {reference!r}{hint}\naliases: {known}"
            )
        return None
    versions = {str(version.version): version for version in list_versions(registry, name)}
    if number not in versions:
        known = ", ".join(versions) or "none"
        raise ConfigError(f"gate.baseline: {name} has no version {number}. Its versions: {known}.")
    return versions[number]


def check_model(registry: Registry, name: str) -> None:
    """Check that a registered model exists.

    Raises:
        ConfigError: If it does not, with those of similar names.
    """
    if read_aliases(registry, name) is not None:
        return
    names = list(list_models(registry))
    known = f"registered models: {', '.join(names[:10])}" if names else NO_MODELS
    raise ConfigError(
        f"There is no registered model {name!r} at"
        f" {registry.address.shown}{near(name, names)}\n{known}"
    )


def list_models(registry: Registry) -> dict[str, Mapping[str, str]]:
    """List the registered models by name, each with the version that an alias of it points to."""
    with registry.attempt("list its registered models"):
        models: list[Any] = registry.client.search_registered_models(max_results=1000)
    return {
        model.name: {alias: str(version) for alias, version in model.aliases.items()}
        for model in sorted(models, key=lambda model: str(model.name))
    }


def read_aliases(registry: Registry, name: str) -> Mapping[str, str] | None:
    """Return the aliases of a registered model; None where there is no such model."""
    from mlflow.exceptions import MlflowException  # 2 s

    with registry.attempt(f"find the model {name!r}"):
        try:
            model: Any = registry.client.get_registered_model(name)
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return None
    return {alias: str(version) for alias, version in model.aliases.items()}
