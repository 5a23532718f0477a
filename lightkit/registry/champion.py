"""From a version in the registry to what is needed to score it: its config and its checkpoint. No torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightkit import runs
from lightkit.config import near, shown_path
from lightkit.errors import ConfigError
from lightkit.registry.store import Store

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion

__all__ = ["KEPT", "Baseline", "check_registered", "fetched", "find_version", "of_run", "versions_of"]

KEPT = "checkpoint_artifact"
"""Tag of a version: where MLflow has its checkpoint and its config."""


@dataclass(frozen=True)
class Baseline:
    """A model to compare with.

    Args:
        name: It, in words.
        version: Of the registered model; None for a run.
        config: File of its config.
        checkpoint: File of its weights.
        sha256: Digest of the weights.
        run: Run that trained it, as ``name/id``.
    """

    name: str
    version: str | None
    config: Path
    checkpoint: Path
    sha256: str
    run: str | None


def versions_of(store: Store, name: str) -> list[ModelVersion]:
    """List the versions of a registered model with their tags, oldest first; none where there is no such model."""
    with store.busy(f"list the versions of {name!r}"):
        found = list(store.client.search_model_versions(f"name='{_quoted(name)}'", max_results=1000))
    return sorted(found, key=lambda version: int(version.version))


def find_version(store: Store, name: str, reference: str) -> ModelVersion | None:
    """Find a version by its number or by an alias.

    Returns:
        The version; None where the alias points to none, or there is no such registered model yet.

    Raises:
        ConfigError: If there is no version of that number, or an alias that looks like it is there.
    """
    aliases = _aliases(store, name)
    if aliases is None and not reference.isdecimal():
        return None
    number = reference if reference.isdecimal() else (aliases or {}).get(reference)
    if number is None:
        _refuse_misspelt(reference, name, aliases or {})
        return None
    there = versions_of(store, name)
    found = next((version for version in there if str(version.version) == number), None)
    if found is None:
        known = ", ".join(str(version.version) for version in there) or "none"
        raise ConfigError(f"gate.baseline: {name} has no version {number}. Its versions: {known}.")
    return found


def _refuse_misspelt(alias: str, name: str, aliases: Mapping[str, str]) -> None:
    """Do not take a slip for the first promotion, in which nothing is compared."""
    if hint := near(alias, aliases):
        raise ConfigError(f"gate.baseline: {name} has no alias {alias!r}{hint}\naliases: {', '.join(aliases)}")


def check_registered(store: Store, name: str) -> None:
    """Refuse a name that is no registered model's, with those that look like it."""
    if _aliases(store, name) is not None:
        return
    with store.busy("list its registered models"):
        names = [model.name for model in store.client.search_registered_models(max_results=1000)]
    known = (
        f"registered models: {', '.join(names[:10])}" if names else "there is none yet; `lightkit register` makes one"
    )
    raise ConfigError(f"There is no registered model {name!r} at {store.address.shown}{near(name, names)}\n{known}")


def fetched(store: Store, version: ModelVersion, place: Path, *, alias: str | None = None) -> Baseline:
    """Find the config and the checkpoint of a version: in its run folder, else as `lightkit promote` has kept them.

    Args:
        store: MLflow.
        version: The version.
        place: Folder for what is downloaded.
        alias: Alias by which it was found.

    Raises:
        ConfigError: If neither has the checkpoint that was registered.
    """
    tags = version.tags
    says = f"{version.name} version {version.version}{f' ({alias})' if alias else ''}"
    sha256, folder = tags.get("checkpoint_sha256"), tags.get("run_folder")
    if not sha256 or not folder:
        raise ConfigError(
            f"gate.baseline: {says} was not registered by lightkit, and cannot be scored. Name another with "
            f"--gate.baseline, or say --gate.baseline=null to judge by the thresholds alone."
        )
    local = Path(folder) / tags.get("checkpoint", "")
    config = Path(folder) / "config.yaml"
    fault = _fault(local, config, sha256)
    if fault is not None and (kept := tags.get(KEPT)):
        config, local = _downloaded(store, kept, place)
        fault = _fault(local, config, sha256)
    if fault is not None:
        raise ConfigError(
            f"gate.baseline: {says} cannot be scored: {fault}. Put its run folder back, name another with "
            f"--gate.baseline, or say --gate.baseline=null to judge by the thresholds alone."
        )
    return Baseline(says, str(version.version), config, local, sha256, tags.get("run"))


def of_run(reference: str, root: Path) -> Baseline:
    """Find the best checkpoint of a run.

    Raises:
        ConfigError: If there is no such run, or it has none.
    """
    run = runs.find(reference, root)
    checkpoint = run.checkpoints / "best.ckpt"
    if not checkpoint.is_file():
        raise ConfigError(f"gate.baseline: {run.folder} has no best checkpoint.")
    name = f"{run.name}/{run.id}"
    return Baseline(f"run {name}", None, run.config_path, checkpoint, runs.digest(checkpoint), name)


def _aliases(store: Store, name: str) -> Mapping[str, str] | None:
    """Give the aliases of a registered model; None where there is no such model."""
    from mlflow.exceptions import MlflowException  # mlflow takes 2 s to import

    with store.busy(f"tell of the model {name!r}"):
        try:
            model: Any = store.client.get_registered_model(name)
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return None
    return {alias: str(version) for alias, version in model.aliases.items()}


def _fault(checkpoint: Path, config: Path, sha256: str) -> str | None:
    missing: Sequence[Path] = [path for path in (checkpoint, config) if not path.is_file()]
    if missing:
        return f"there is no {shown_path(missing[0])}"
    return None if runs.digest(checkpoint) == sha256 else f"{shown_path(checkpoint)} is not what was registered"


def _downloaded(store: Store, uri: str, place: Path) -> tuple[Path, Path]:
    from mlflow.artifacts import download_artifacts  # mlflow takes 2 s to import

    with store.busy(f"give {uri}"):
        folder = Path(download_artifacts(uri, dst_path=str(place), tracking_uri=store.client.tracking_uri))
    return folder / "config.yaml", next(folder.glob("*.ckpt"), folder / "best.ckpt")


def _quoted(name: str) -> str:
    return name.replace("'", "''")
