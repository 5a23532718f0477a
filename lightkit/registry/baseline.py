"""The model that a gate compares a run with: its config and its checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lightkit import runs
from lightkit.config import shown_path
from lightkit.errors import ConfigError
from lightkit.registry.store import CHECKPOINT, KEPT, Registry, find_run_folder

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion

THRESHOLDS_ALONE = "give --gate.baseline=null to judge by the thresholds alone."
"""Advice in errors of a baseline."""


@dataclass(frozen=True)
class BaselineModel:
    """A model to compare with.

    Args:
        name: Its name in messages.
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


def fetch_baseline(
    registry: Registry, version: ModelVersion, folder: Path, *, alias: str | None = None
) -> BaselineModel:
    """Find config and checkpoint of a version.

    In its run folder, else as `lightkit promote` has kept them in MLflow.

    Args:
        registry: MLflow.
        version: The version.
        folder: Folder for downloads.
        alias: Alias by which it was found.

    Raises:
        ConfigError: If neither has the checkpoint that was registered.
    """
    from mlflow.artifacts import download_artifacts  # 2 s

    tags = version.tags
    name = f"{version.name} version {version.version}{f' ({alias})' if alias else ''}"
    advice = f"name another with --gate.baseline, or {THRESHOLDS_ALONE}"
    sha256 = tags.get(CHECKPOINT)
    run_folder = tags.get("run_folder")
    if not sha256 or not run_folder:
        raise ConfigError(
            f"gate.baseline: {name} was not registered by lightkit, and cannot be scored."
            f" {advice.capitalize()}"
        )

    def find_files() -> Iterator[tuple[Path, Path]]:
        """Yield the files of checkpoint and config where they may be."""
        beside = find_run_folder(registry, version)
        for run in dict.fromkeys([beside or Path(run_folder), Path(run_folder)]):
            yield run / tags.get("checkpoint", ""), run / "config.yaml"
        if kept := tags.get(KEPT):
            try:
                with registry.attempt(f"download {kept}"):
                    copy = Path(
                        download_artifacts(
                            kept, dst_path=str(folder), tracking_uri=registry.client.tracking_uri
                        )
                    )
            except ConfigError as error:
                raise ConfigError(
                    f"gate.baseline: {name} cannot be scored: {error} {advice.capitalize()}"
                ) from error
            yield next(copy.glob("*.ckpt"), copy), copy / "config.yaml"

    for checkpoint, config in find_files():
        if checkpoint.is_file() and config.is_file() and runs.digest(checkpoint) == sha256:
            return BaselineModel(
                name, str(version.version), config, checkpoint, sha256, tags.get("run")
            )
    raise ConfigError(
        f"gate.baseline: {name} cannot be scored: {shown_path(Path(run_folder))} has not the"
        f" checkpoint and the config that were registered. Put them back, {advice}"
    )
